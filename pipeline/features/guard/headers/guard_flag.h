// What session options are doing and how long runs took, in a mapped file: stores of some nanoseconds that the kernel keeps
// when the process dies. Nothing is synced: a power cut may lose it, and is no fault of theirs.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>

#include "guard_files.h"

namespace ort_mobile {

// Milliseconds since 1970.
inline std::int64_t GuardNow() {
    using std::chrono::milliseconds;
    return std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class GuardFlag {
  public:
    enum Stage { kStart = 0, kOptions = 1, kOpen = 2, kFirstRun = 3, kRun = 4, kClose = 5 };

    // Clean runs that take a suspicion back.
    static constexpr std::int32_t kCleanRuns = 1000;

    GuardFlag(const GuardFiles& files, const std::string& name) {
        files.Make();
        const int file = open(files.Path(name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        // A file that was there keeps its content. On a full disk a store would raise SIGBUS.
        const bool is_filled = file >= 0 && Filled(file);
        void* address = is_filled ? mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
        if (file >= 0) close(file);
        if (address == MAP_FAILED) throw GuardError("cannot map " + files.Path(name));
        mapped_ = static_cast<unsigned char*>(address);
    }
    ~GuardFlag() { munmap(mapped_, kBytes); }
    GuardFlag(const GuardFlag&) = delete;
    GuardFlag& operator=(const GuardFlag&) = delete;

    // Whether the process that wrote it ended while the session options ran.
    bool WasRunning() const { return Number(0) == kMagic && Number(kRunningAt) != 0; }

    // The key of the session options; "" where there is none.
    std::string Key() const {
        if (Number(0) != kMagic) return "";
        const char* key = reinterpret_cast<const char*>(mapped_ + kKeyAt);
        return std::string(key, strnlen(key, kKeyBytes));
    }

    const char* StageName() const {
        static const char* const kNames[] = {"start", "options", "open", "first_run", "run", "close"};
        const std::int32_t stage = Number(kStageAt);
        return kNames[stage >= 0 && stage <= kClose ? stage : 0];
    }

    // When the latest run, trial or opening began, in milliseconds since 1970.
    std::int64_t Started() const {
        std::int64_t started;
        std::memcpy(&started, mapped_ + kStartedAt, sizeof started);
        return started;
    }

    std::int32_t Boot() const { return Number(kBootAt); }
    std::int32_t Process() const { return Number(kProcessAt); }

    // Whether so many runs ended well that a suspicion goes.
    bool IsTrusted() const { return Number(kCleanAt) >= kCleanRuns; }

    // Names the session options whose runs it is about from now on.
    void Name(const std::string& key, std::int32_t boot, std::int32_t process) {
        Set(kRunningAt, 0);
        Set(kStageAt, 0);
        if (key != Key()) {
            Set(kCleanAt, 0);
            Set(kCountAt, 0);
        }
        char bytes[kKeyBytes] = {};
        key.copy(bytes, kKeyBytes);
        std::memcpy(mapped_ + kKeyAt, bytes, kKeyBytes);
        Start();
        Set(kBootAt, boot);
        Set(kProcessAt, process);
        Set(0, kMagic);
    }

    // The median of the latest launch's last runs in milliseconds, of those that no other ran beside; 0 for too few.
    double TypicalMilliseconds() const {
        float times[kTimes];
        std::memcpy(times, mapped_ + kTimesAt, sizeof times);
        if (Number(kCountAt) < kTimes) return 0;
        for (float& time : times) time = time > 0 ? time : 0;  // a damaged file may hold a NaN, which has no order
        std::nth_element(times, times + kTimes / 2, times + kTimes);
        return times[kTimes / 2];
    }

    // Forgets what ran and how long; clean runs stay.
    void Clear() {
        Set(kRunningAt, 0);
        Set(kCountAt, 0);
    }

    // Forgets clean runs.
    void ClearTrust() { Set(kCleanAt, 0); }

    // Says what is done next, while a marker stands for it.
    void SetStage(Stage stage) { Set(kStageAt, stage); }

    // Before each run, in any thread.
    void Begin(Stage stage) {
        const std::lock_guard<std::mutex> guard(mutex_);
        if (running_++ == 0) {
            Start();
            Set(kStageAt, stage);
            Set(kRunningAt, 1);
            began_ = std::chrono::steady_clock::now();
        }
        is_alone_ = running_ == 1;
    }

    // Behind each run, whether it gave outputs or an exception.
    void End() {
        const std::lock_guard<std::mutex> guard(mutex_);
        if (--running_ == 0) {
            const std::int32_t count = Number(kCountAt);
            if (is_alone_ && count >= 0 && count < std::numeric_limits<std::int32_t>::max()) Took(count);
            Set(kRunningAt, 0);
        }
        const std::int32_t clean = Number(kCleanAt);
        Set(kCleanAt, clean < kCleanRuns ? clean + 1 : clean);
    }

  private:
    static constexpr std::int32_t kMagic = 0x4f4d4731;

    // Runs of a launch whose times are kept; of fewer nothing is said.
    static constexpr std::int32_t kTimes = 64;

    static constexpr std::size_t kKeyBytes = 32;
    static constexpr std::size_t kRunningAt = 4, kStageAt = 8, kCleanAt = 12, kKeyAt = 16, kStartedAt = 48, kBootAt = 56;
    static constexpr std::size_t kProcessAt = 60, kCountAt = 64, kTimesAt = 68, kBytes = kTimesAt + kTimes * sizeof(float);

    static bool Filled(int file) {
        unsigned char bytes[kBytes] = {};
        return pread(file, bytes, kBytes, 0) >= 0 && pwrite(file, bytes, kBytes, 0) == static_cast<ssize_t>(kBytes);
    }

    // All systems that it is for are little-endian, as the file is.
    std::int32_t Number(std::size_t at) const {
        std::int32_t number;
        std::memcpy(&number, mapped_ + at, sizeof number);
        return number;
    }

    // The compiler must keep the order of stores around a run.
    void Set(std::size_t at, std::int32_t number) {
        std::atomic_signal_fence(std::memory_order_seq_cst);
        *reinterpret_cast<volatile std::int32_t*>(mapped_ + at) = number;
        std::atomic_signal_fence(std::memory_order_seq_cst);
    }

    void Start() {
        const std::int64_t now = GuardNow();
        std::memcpy(mapped_ + kStartedAt, &now, sizeof now);
    }

    // Keeps how long a run took, in the place of the oldest.
    void Took(std::int32_t count) {
        const std::chrono::duration<float, std::milli> took = std::chrono::steady_clock::now() - began_;
        const float milliseconds = took.count();
        const std::size_t place = static_cast<std::size_t>(count % kTimes) * sizeof milliseconds;
        std::memcpy(mapped_ + kTimesAt + place, &milliseconds, sizeof milliseconds);
        Set(kCountAt, count + 1);
    }

    unsigned char* mapped_;
    std::mutex mutex_;
    std::chrono::steady_clock::time_point began_;
    int running_ = 0;
    bool is_alone_ = false;
};

}  // namespace ort_mobile
