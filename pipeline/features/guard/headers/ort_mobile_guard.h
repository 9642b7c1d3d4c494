// What keeps the app from drivers that die, hang or compute nonsense: a model is opened on the CPU until its other session
// options were tried on this device, once for each build of the system. What was found stays in a folder of the app; nothing
// is sent. For C++17 on Android, Apple's systems and Linux, with ONNX Runtime and nothing else. docs/guard.md of ort-mobile.
#pragma once

#include <dirent.h>
#include <onnxruntime_cxx_api.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "guard_state.h"

namespace ort_mobile {

// The bytes of a sample, `MODEL.sample`; "" where there are none: then session options are tried without a look at outputs.
inline std::string ReadSample(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

// The guard of an app: a folder that only this app can write and that no backup takes to another device.
class Guard {
  public:
    explicit Guard(std::string folder, GuardDevice device = GuardDevice::OfThis())
        : files_(std::move(folder)), device_(std::move(device)) {}

    // Tells a listener of each event from now on, in whichever thread it happens.
    static void Listen(GuardListener listener) { GuardEvents::Listen(std::move(listener)); }

    // Forgets what was found, so that everything is tried again: a switch in an app's settings.
    void Reset() const {
        if (DIR* folder = opendir(files_.folder().c_str())) {
            while (const dirent* file = readdir(folder)) {
                const std::string name = file->d_name;
                const auto ends = [&name](const std::string& end) {
                    return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
                };
                if (name[0] != '.' && !ends(".lock") && !ends(".use") && name != GuardDeny::kFile) files_.Remove(name);
            }
            closedir(folder);
        }
        GuardState::ForgetAll();
    }

    // Takes a list of `ort-mobile bundle deny` for a bundle: it holds from the next opening on. GuardError for one that is not
    // newer than the last, and as GuardDeny.
    void Deny(const std::string& list, const std::string& bundle, const GuardVerifier& verifier) const {
        auto denied = std::make_shared<GuardDeny>(list, bundle, GuardNow(), verifier);
        const std::shared_ptr<GuardDeny> last = Stored(bundle, verifier);
        if (last && last->serial() >= denied->serial())
            throw GuardError("a list that is not newer than the last is refused");
        files_.Write(GuardDeny::kFile, list);
        GuardState::Forbid(denied);
    }

    // Puts the list of an earlier process in force, where there is one that is sound: call it before models are opened.
    void Recall(const std::string& bundle, const GuardVerifier& verifier) const {
        if (auto list = Stored(bundle, verifier)) GuardState::Forbid(list);
    }

    const GuardFiles& files() const { return files_; }
    const GuardDevice& device() const { return device_; }

  private:
    std::shared_ptr<GuardDeny> Stored(const std::string& bundle, const GuardVerifier& verifier) const {
        std::string text;
        if (!files_.Read(GuardDeny::kFile, text)) return nullptr;
        try {
            return std::make_shared<GuardDeny>(text, bundle, GuardNow(), verifier);
        } catch (const GuardError&) {
            return nullptr;
        }
    }

    GuardFiles files_;
    GuardDevice device_;
};

// A session of a model. `Run` is guarded; what is run by `session` is not: if that ends the process, nothing is noted.
class GuardedSession {
  public:
    GuardedSession(GuardState::Opened opened, std::vector<std::string> skipped)
        : opened_(std::move(opened)), skipped_(std::move(skipped)) {}
    GuardedSession(GuardedSession&&) = default;
    GuardedSession& operator=(GuardedSession&&) = delete;
    ~GuardedSession() {
        if (opened_.session && opened_.flag) {
            opened_.flag->Begin(GuardFlag::kClose);  // drivers die there, too
            opened_.session.reset();
            opened_.flag->End();
        }
    }

    // As Ort::Session::Run.
    std::vector<Ort::Value> Run(const Ort::RunOptions& options, const char* const* inputs, const Ort::Value* values,
                                std::size_t count, const char* const* outputs, std::size_t output_count) {
        struct Running {
            explicit Running(GuardFlag* set) : flag(set) {
                if (flag) flag->Begin(GuardFlag::kRun);
            }
            ~Running() {
                if (flag) flag->End();
            }
            GuardFlag* const flag;
        } running(opened_.flag.get());
        return opened_.session->Run(options, inputs, values, count, outputs, output_count);
    }

    Ort::Session& session() { return *opened_.session; }

    // The session options in use, as measurements name them, and why not those before.
    const std::string& way() const { return opened_.way; }
    const std::vector<std::string>& skipped() const { return skipped_; }

  private:
    GuardState::Opened opened_;
    std::vector<std::string> skipped_;
};

// A model with the session options that it was released with.
class GuardedModel {
  public:
    GuardedModel(const Guard& guard, const GuardModel& model, const std::string& sample, std::vector<GuardWay> ways)
        : state_(GuardState::Of(guard.files(), guard.device(), model, sample)), ways_(std::move(ways)) {}

    // Opens what passed on this device, else the CPU, and tries the rest in a thread of its own. Throws Ort::Exception where
    // not even the CPU can be opened.
    GuardedSession Open() const {
        GuardState::Opened opened = state_->Open(ways_);
        if (!opened.session) {
            state_->PrepareLater(ways_);
            opened = OpenSafe();
        }
        std::vector<std::string> skipped = state_->Reasons(ways_, opened.way);
        return GuardedSession(std::move(opened), std::move(skipped));
    }

    // As `Open`, behind what `Prepare` decides: it may take a minute once.
    GuardedSession OpenNow() const {
        Prepare().wait();
        return Open();
    }

    // Tries in a thread of its own what was not tried on this device: the next `Open` uses what was best.
    std::shared_future<GuardChoice> Prepare() const { return state_->Prepare(ways_); }

  private:
    GuardState::Opened OpenSafe() const {
        std::exception_ptr failure;
        std::string why = "nothing is for the CPU";
        for (const GuardWay& way : ways_) {
            if (!way.safe) continue;
            try {
                return {std::make_shared<Ort::Session>(way.open()), way.name, nullptr};
            } catch (const Ort::Exception& error) {
                failure = std::current_exception();
                why = error.what();
            }
        }
        state_->Fail(why);
        if (!failure) throw Ort::Exception(std::move(why), ORT_NOT_IMPLEMENTED);
        std::rethrow_exception(failure);
    }

    std::shared_ptr<GuardState> state_;
    std::vector<GuardWay> ways_;
};

}  // namespace ort_mobile
