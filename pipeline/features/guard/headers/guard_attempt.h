// One opening of session options in this process, behind a marker, in a thread that is left alone where it hangs.
#pragma once

#include <onnxruntime_cxx_api.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "guard_device.h"
#include "guard_files.h"
#include "guard_flag.h"
#include "guard_rows.h"
#include "guard_sample.h"

namespace ort_mobile {

// A file of a model with session options, as the guard tries them. `digests` are those of the model's files, a line each;
// `safe` says that the CPU alone runs it: never out. What `open` uses lives as long as the process.
struct GuardWay {
    std::string name, digests;
    bool safe = false;
    std::function<Ort::Session()> open;
};

// A file that stands while session options are tried or opened: if the process dies, the next one finds who was at work.
class GuardMarker {
  public:
    // What stands in a marker.
    struct Left {
        std::string key, way;
        std::int64_t boot = 0, process = 0;
    };

    GuardMarker(const GuardFiles& files, std::string name, std::shared_ptr<GuardFlag> flag)
        : flag(std::move(flag)), files_(files), name_(std::move(name)) {}

    // What they are doing meanwhile, without a file to be written for each step.
    const std::shared_ptr<GuardFlag> flag;

    // Puts it on the disk, or throws GuardError: then the session options must not be touched.
    void Set(const GuardRow& row, const GuardDevice& device) {
        const std::string process = std::to_string(getpid()), boot = std::to_string(device.boot);
        files_.Write(name_, std::string(kFormat) + "\t" + row.key + "\t" + row.way + "\t" + boot + "\t" + process + "\tend");
        flag->Name(row.key, device.boot, getpid());
    }

    // Takes it away; false where it stays.
    bool Clear() { return files_.Remove(name_); }

    // Who was at work; false where nobody was, or the marker is torn.
    bool Find(Left& left) const {
        std::string text;
        const std::vector<std::string> fields = files_.Read(name_, text) ? GuardFields(text) : std::vector<std::string>();
        if (fields.size() != 6 || fields[0] != kFormat || fields[1].empty() || fields[5] != "end") return false;
        left.key = fields[1];
        left.way = fields[2];
        return GuardNumber(fields[3], left.boot) && GuardNumber(fields[4], left.process);
    }

  private:
    static constexpr const char* kFormat = "ort-mobile guard 1";

    GuardFiles files_;
    std::string name_;
};

class GuardAttempt {
  public:
    // What came of it; `error` is "" where it is good, and `unusable` where a later one may do.
    std::shared_ptr<Ort::Session> session;
    std::string error, state = GuardRow::kPassed, unusable;
    double decibels = 0;

    // How long one may take: nothing can end a call into a driver.
    static std::atomic<std::int64_t>& LimitMilliseconds() {
        static std::atomic<std::int64_t> limit{20'000};
        return limit;
    }

    // With `keeps` the session stays open, else it is closed behind the marker, too.
    static GuardAttempt Of(const GuardWay& way, const GuardRow& row, const std::shared_ptr<GuardMarker>& marker,
                           const GuardDevice& device, const std::shared_ptr<GuardSample>& sample, bool keeps) {
        auto call = std::make_shared<Call>();
        std::thread([call, way, row, marker, device, sample, keeps] {
            call->Run(way, row, *marker, device, sample.get(), keeps);
        }).detach();
        GuardAttempt attempt;
        std::unique_lock<std::mutex> lock(call->mutex);
        const std::chrono::milliseconds limit(LimitMilliseconds().load());
        if (!call->ended.wait_for(lock, limit, [&call] { return call->is_over; })) {
            call->is_late = true;
            attempt.Fail(GuardRow::kHung, marker->flag->StageName());
        } else if (!call->error.empty()) {
            attempt.Fail(call->is_marked ? GuardRow::kRefused : GuardRow::kNew, call->error);
            if (!call->is_marked) attempt.unusable = call->error;
        } else {
            attempt.session = std::move(call->session);
            attempt.decibels = call->margin;
            if (call->margin < 0) attempt.Fail(GuardRow::kWrong, Wrong(call->margin));
        }
        return attempt;
    }

    // Closes a session under its flag: drivers die there, too.
    static void Close(std::shared_ptr<Ort::Session>& session, GuardFlag& flag, const std::string& key,
                      const GuardDevice& device) {
        flag.Name(key, device.boot, getpid());
        flag.SetStage(GuardFlag::kClose);
        session.reset();
    }

  private:
    // What the thread and who waits for it share.
    struct Call {
        std::mutex mutex;
        std::condition_variable ended;
        std::shared_ptr<Ort::Session> session;
        std::string error;
        double margin = 0;
        bool is_over = false, is_marked = false, is_late = false;

        void Run(const GuardWay& way, const GuardRow& row, GuardMarker& marker, const GuardDevice& device,
                 GuardSample* sample, bool keeps) {
            std::shared_ptr<Ort::Session> opened;
            std::string said;
            double reached = 0;
            bool marked = false;
            try {
                marker.Set(row, device);
                marked = true;
                marker.flag->SetStage(GuardFlag::kOpen);
                opened = std::make_shared<Ort::Session>(way.open());
                marker.flag->SetStage(GuardFlag::kFirstRun);
                reached = sample ? sample->Margin(*opened, way.digests, way.name) : 0;
            } catch (const std::exception& thrown) {
                said = *thrown.what() ? thrown.what() : "an exception";
            } catch (...) {
                said = "an exception of no known type";
            }
            std::unique_lock<std::mutex> lock(mutex);
            if (opened && (!keeps || is_late || reached < 0 || !said.empty())) {
                lock.unlock();
                Close(opened, *marker.flag, row.key, device);
                lock.lock();
            }
            session = std::move(opened);
            error = said;
            margin = reached;
            is_marked = marked;
            is_over = true;
            ended.notify_all();
        }
    };

    static std::string Wrong(double margin) {
        if (margin <= GuardSample::kLeastDecibels / 2) return "not finite, or of another size";
        const long tenths = std::lround(-10 * margin);
        return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " dB below what it must reach";
    }

    void Fail(const char* failed, const std::string& said) {
        state = failed;
        error = said;
    }
};

}  // namespace ort_mobile
