// What the guard knows of a model in this process: settled once, from what earlier processes left.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "guard_attempt.h"
#include "guard_deny.h"
#include "guard_device.h"
#include "guard_event.h"
#include "guard_files.h"
#include "guard_flag.h"
#include "guard_race.h"
#include "guard_rows.h"
#include "guard_sample.h"

namespace ort_mobile {

// What `Prepare` decided: how the model is opened from the next time on, and what became of what comes before it.
struct GuardChoice {
    std::string way, why;
};

// What the bundle says of a model: names, its digest, and what an app goes on with where nothing runs the model.
struct GuardModel {
    std::string name, bundle, digest, rollback;
};

class GuardState : public std::enable_shared_from_this<GuardState> {
  public:
    // An opened session and the flag that is set while it runs.
    struct Opened {
        std::shared_ptr<Ort::Session> session;
        std::string way;
        std::shared_ptr<GuardFlag> flag;
    };

    // The state of a model; the first call in a process settles what the last one left.
    static std::shared_ptr<GuardState> Of(const GuardFiles& files, const GuardDevice& device, const GuardModel& model,
                                          const std::string& sample) {
        const std::lock_guard<std::recursive_mutex> guard(Mutex());
        std::shared_ptr<GuardState>& known = Models()[files.Path(model.name)];
        if (!known) {
            known = std::shared_ptr<GuardState>(new GuardState(files, device, model, sample));
            known->Begin();
        }
        return known;
    }

    // Forgets the rows of all models of this process.
    static void ForgetAll() {
        const std::lock_guard<std::recursive_mutex> guard(Mutex());
        for (auto& model : Models()) model.second->Forget();
        Died() = false;
    }

    // Puts a list in force in this process.
    static void Forbid(std::shared_ptr<const GuardDeny> list) {
        const std::lock_guard<std::recursive_mutex> guard(Mutex());
        Denied() = std::move(list);
    }

    // A session of what was chosen; without one where the CPU is to be opened.
    Opened Open(const std::vector<GuardWay>& ways) {
        const Guarded guard(*this);
        const GuardWay* way = Choice(ways);
        if (!way || way->safe) return {};
        const GuardRow row = rows_->Of(Key(*way), way->name);
        GuardAttempt attempt = GuardAttempt::Of(*way, row, opened_, device_, sample_, true);
        if (attempt.error.empty() && End(attempt, *opened_)) return {attempt.session, way->name, use_};
        GuardRow& kept = rows_->Of(row.key, way->name);
        if (attempt.state == GuardRow::kRefused) kept.Suspect(attempt.error, GuardNow());  // once may be for lack of memory
        else if (attempt.state != GuardRow::kNew) kept.Decide(attempt.state, attempt.error, GuardNow());
        Keep();
        End(attempt, *opened_);
        Tell(Event(attempt.state, way->name).With("stage", opened_->flag->StageName()).With("text", attempt.error));
        return {};
    }

    // Why the session options before some are not used, in the bundle's order.
    std::vector<std::string> Reasons(const std::vector<GuardWay>& ways, const std::string& before) {
        const Guarded guard(*this);
        std::vector<std::string> reasons;
        for (const GuardWay& way : ways) {
            if (way.name == before) break;
            if (way.safe) continue;
            const GuardRow* known = rows_->Get(Key(way));
            GuardRow row;
            row.way = way.name;
            const std::string forbidden = Forbidden(way);
            if (!forbidden.empty()) reasons.push_back(way.name + ": denied, " + forbidden);
            else if (!unusable_.empty()) reasons.push_back(way.name + ": " + unusable_);
            else reasons.push_back((known ? *known : row).Reason());
        }
        return reasons;
    }

    // Tries in a thread of its own what was not tried; the same task for everybody until this process ends.
    std::shared_future<GuardChoice> Prepare(const std::vector<GuardWay>& ways) {
        const Guarded guard(*this);
        if (!prepared_.valid()) {
            auto promise = std::make_shared<std::promise<GuardChoice>>();
            prepared_ = promise->get_future().share();
            std::thread([state = shared_from_this(), ways, promise] { promise->set_value(state->Decide(ways)); }).detach();
        }
        return prepared_;
    }

    // As `Prepare` where there is anything to try.
    void PrepareLater(const std::vector<GuardWay>& ways) {
        const Guarded guard(*this);
        bool is_needed = Racers(ways).size() > 1;
        for (const GuardWay& way : ways) is_needed |= !way.safe && !IsDecided(way) && Forbidden(way).empty();
        if (is_needed && unusable_.empty()) Prepare(ways);
    }

    // Tells that nothing runs the model here: the app takes the bundle before this one, or what it was packaged with.
    void Fail(const std::string& why) {
        Tell(Event("model_failed", "").With("rollback", model_.rollback).With("text", why));
    }

  private:
    // Races after which the bundle's order stays, where no two in a row agreed.
    static constexpr std::int64_t kMostRaces = 6;

    // How long a run may take before the end of its process by a user counts against what ran.
    static constexpr std::int64_t kHangMilliseconds = 10'000;

    struct Guarded {
        explicit Guarded(GuardState& state) : lock(state.mutex_) {}
        std::lock_guard<std::recursive_mutex> lock;
    };

    // They outlive static objects, since threads may.
    static std::recursive_mutex& Mutex() {
        static auto* mutex = new std::recursive_mutex;
        return *mutex;
    }
    static std::map<std::string, std::shared_ptr<GuardState>>& Models() {
        static auto* models = new std::map<std::string, std::shared_ptr<GuardState>>;
        return *models;
    }
    static std::shared_ptr<const GuardDeny>& Denied() {
        static auto* denied = new std::shared_ptr<const GuardDeny>;
        return *denied;
    }

    // Whether a process of this app died before this one: then nothing is tried until the next launch.
    static std::atomic<bool>& Died() {
        static std::atomic<bool> died{false};
        return died;
    }

    GuardState(const GuardFiles& files, const GuardDevice& device, const GuardModel& model, const std::string& sample)
        : files_(files), device_(device), model_(model), release_(OrtGetApiBase()->GetVersionString()) {
        try {
            if (!sample.empty()) sample_ = std::make_shared<GuardSample>(sample);
        } catch (const std::exception&) {
            sample_.reset();  // as where there is none: session options are tried without a look at their outputs
        }
    }

    void Begin() {
        rows_.reset(new GuardRows(files_, model_.name + ".rows", GuardNow()));
        try {
            files_.Make();
            if (!files_.Lock(model_.name + ".lock"))
                throw GuardError("another process of the app has the model, or its folder cannot be written");
            if (!rows_->damage.empty()) Tell(Event("forgotten", "").With("text", rows_->damage));
            use_ = std::make_shared<GuardFlag>(files_, model_.name + ".use");
            auto trial = std::make_shared<GuardFlag>(files_, model_.name + ".trial.use");
            tried_ = std::make_shared<GuardMarker>(files_, model_.name + ".try", trial);
            opened_ = std::make_shared<GuardMarker>(files_, model_.name + ".open", use_);
            Settle();
        } catch (const GuardError& unwritable) {
            GiveUp(unwritable.what());
        }
    }

    void Forget() {
        const Guarded guard(*this);
        rows_.reset(new GuardRows(files_, model_.name + ".rows", GuardNow()));
        prepared_ = {};
    }

    void GiveUp(const std::string& why) {
        unusable_ = why;
        Tell(Event("unusable", "").With("text", why));
    }

    GuardEvent Event(const std::string& event, const std::string& way) const {
        GuardEvent happened(event, model_.name, model_.digest, way);
        happened.With("os", device_.system).With("chip", device_.chip).With("ort", release_);
        return happened;
    }

    void Tell(const GuardEvent& event) const { GuardEvents::Tell(files_, event); }

    void Settle() {
        GuardMarker::Left left;
        bool is_charged = Settle(*tried_, true);
        const bool was_opening = opened_->Find(left);
        is_charged |= Settle(*opened_, false);
        if (!was_opening && use_->WasRunning()) is_charged |= ChargeRun();
        GuardRow* running = rows_->Get(use_->Key());
        if (use_->IsTrusted() && running && running->IsGood() && running->suspicions > 0) {
            running->suspicions = 0;
            use_->ClearTrust();
            is_charged = true;
        }
        is_charged |= NoteTimes(running);
        if (is_charged) rows_->Save();  // before the markers go: a process that dies here settles once more
        use_->Clear();
        tried_->flag->Clear();
        if (!tried_->Clear() || !opened_->Clear()) GiveUp("a marker cannot be removed");
    }

    // Counts a launch in which the winner of the races took much longer than in them; whether there is anything to keep.
    bool NoteTimes(const GuardRow* running) {
        const double typical = use_->TypicalMilliseconds();
        if (!running || typical <= 0 || running->milliseconds <= 0 || running->key != rows_->settled) return false;
        if (rows_->IsSlower(typical, running->milliseconds)) {
            const std::string times = Milliseconds(typical) + ", " + Milliseconds(running->milliseconds) + " in the race";
            Tell(Event("slower", running->way).With("text", times));
        }
        return true;
    }

    // For people: "1.250 ms", whatever the locale of the app writes between whole numbers and the rest.
    static std::string Milliseconds(double milliseconds) {
        const long micro = std::lround(1000 * milliseconds);
        char text[32];
        std::snprintf(text, sizeof text, "%ld.%03ld ms", micro / 1000, micro % 1000);
        return text;
    }

    // Charges what a marker stands for.
    bool Settle(const GuardMarker& marker, bool is_trial) {
        GuardMarker::Left left;
        if (!marker.Find(left)) return false;
        GuardFlag& flag = *marker.flag;
        // In a race two take turns, and the flag says which was at work.
        const bool is_named = flag.Process() == left.process && rows_->Get(flag.Key());
        GuardRow& row = is_named ? *rows_->Get(flag.Key()) : rows_->Of(left.key, left.way);
        const GuardEnd end = device_.Ending(static_cast<int>(left.process), static_cast<std::int32_t>(left.boot));
        const std::string stage = row.key == flag.Key() ? flag.StageName() : "start";
        if (IsInnocent(end, flag)) return false;
        const bool is_race = is_trial && row.IsGood();  // which takes seconds, of what is known to work
        Charge(row, stage, end.ending == GuardEnding::kCrashed || (end.ending == GuardEnding::kUnknown && !is_race));
        return true;
    }

    // Whether somebody ended the process in the middle of something that had not lasted long.
    static bool IsInnocent(const GuardEnd& end, const GuardFlag& flag) {
        return end.ending == GuardEnding::kKilled && end.at - flag.Started() <= kHangMilliseconds;
    }

    // Charges what ran when its process ended.
    bool ChargeRun() {
        GuardRow* row = rows_->Get(use_->Key());
        if (!row) return false;
        const GuardEnd end = device_.Ending(use_->Process(), use_->Boot());
        if (end.ending == GuardEnding::kStarved || IsInnocent(end, *use_)) return false;
        Charge(*row, use_->StageName(), end.ending == GuardEnding::kCrashed);
        return true;
    }

    void Charge(GuardRow& row, const std::string& stage, bool is_proven) {
        if (is_proven) row.Decide(GuardRow::kDied, stage, GuardNow());
        else row.Suspect(stage, GuardNow());
        use_->ClearTrust();
        Died() = true;
        const char* event = row.state == GuardRow::kDied ? "died" : "suspected";
        Tell(Event(event, row.way).With("stage", stage).With("by", "app"));
    }

    GuardChoice Decide(const std::vector<GuardWay>& ways) {
        const std::string before = Name(ways);
        const std::string postponed = TryAll(ways);
        const std::vector<GuardWay> racers = Racers(ways);
        if (postponed.empty() && racers.size() > 1) Race(racers);
        const std::string name = Name(ways);
        std::string why;
        for (const std::string& reason : Reasons(ways, name)) why += (why.empty() ? "" : "; ") + reason;
        if (name != before) Tell(Event("chosen", name).With("text", why));
        return {name, postponed.empty() ? why : "postponed: " + postponed};
    }

    // Tries what was not tried; why that waits, "" where it does not.
    std::string TryAll(const std::vector<GuardWay>& ways) {
        bool is_cpu_tried = !sample_;
        for (const GuardWay& way : ways) {
            const bool is_wanted = !way.safe || !is_cpu_tried;
            is_cpu_tried |= way.safe;
            if (!is_wanted || IsDecided(way)) continue;
            const std::string forbidden = Forbidden(way);
            if (!forbidden.empty()) {
                Tell(Event("denied", way.name).With("text", forbidden));
                continue;
            }
            const std::string unusable = Unusable();
            const std::string busy = device_.busy ? device_.busy() : "";
            const std::string postponed = !unusable.empty() ? unusable : Died() ? "a process of the app died" : busy;
            if (!postponed.empty()) {
                if (unusable.empty()) Tell(Event("postponed", way.name).With("text", postponed));
                return postponed;
            }
            AttemptOnce(way);
        }
        return "";
    }

    // Tries session options in this process and keeps what came of it.
    void AttemptOnce(const GuardWay& way) {
        const GuardRow row = Row(way);
        GuardAttempt attempt = GuardAttempt::Of(way, row, tried_, device_, sample_, false);
        {
            const Guarded guard(*this);
            GuardRow& kept = rows_->Of(row.key, way.name);
            kept.Decide(attempt.state, attempt.error, GuardNow());
            kept.decibels = attempt.decibels;
            Keep();  // before the marker goes
            End(attempt, *tried_);
        }
        if (attempt.state == GuardRow::kHung) Died() = true;
        if (!way.safe) {
            GuardEvent event = Event(attempt.state, way.name);
            event.With("stage", tried_->flag->StageName()).With("by", "app").With("db", attempt.decibels);
            Tell(event.With("text", attempt.error));
        } else if (attempt.state == GuardRow::kWrong) {
            Fail(way.name + ": " + attempt.error);
        }
    }

    // What may race: what passed and the first of the CPU's; none where it is settled or nothing can be told.
    std::vector<GuardWay> Racers(const std::vector<GuardWay>& ways) {
        const Guarded guard(*this);
        std::vector<GuardWay> racers;
        bool has_cpu = false, is_settled = false, is_open = false;
        for (const GuardWay& way : ways) {
            const std::string key = Key(way);
            const GuardRow* row = rows_->Get(key);
            if (Forbidden(way).empty() && (way.safe ? !has_cpu : row && row->IsGood())) {
                racers.push_back(way);
                is_settled |= key == rows_->settled;
                is_open |= key == rows_->fastest;
            }
            has_cpu |= way.safe;
        }
        if (!is_open && rows_->races > 0) rows_->StartAnew();
        const bool is_over = is_settled || !sample_ || !unusable_.empty() || rows_->races >= kMostRaces;
        return is_over ? std::vector<GuardWay>() : racers;
    }

    // A session in a race.
    struct Racer {
        std::string key, way;
        std::shared_ptr<Ort::Session> session;
        std::shared_ptr<GuardRunner> runner;
    };

    // Lets session options run against each other, at most two sessions at a time, and keeps who won.
    void Race(const std::vector<GuardWay>& racers) {
        Racer best;
        const double seconds = GuardRace::kCapSeconds / static_cast<double>(racers.size() - 1);
        std::string times;
        bool is_whole = false;
        try {
            for (std::size_t i = 0; i < racers.size(); ++i) {
                Racer racer = Entered(racers[i]);
                if (!racer.session) break;  // it passed before: a race without it would settle nothing
                if (i == 0 && !GuardRace::IsCalm(*racer.runner)) {
                    Leave(racer);
                    Tell(Event("postponed", racer.way).With("text", "the phone is at work"));
                    break;
                }
                const bool is_faster = i == 0 || GuardRace::IsFaster(*racer.runner, *best.runner, seconds);
                times += Measured(racer);
                if (is_faster) std::swap(best, racer);
                Leave(racer);
                is_whole = i + 1 == racers.size();
            }
            if (is_whole) {
                const Guarded guard(*this);
                rows_->Win(best.key);
                Keep();
                const double races = static_cast<double>(rows_->races);
                Tell(Event("raced", best.way).With("text", times).With("races", races));
            }
        } catch (const std::exception& error) {
            Tell(Event("postponed", "").With("text", error.what()));
        }
        Leave(best);
        if (!tried_->Clear()) GiveUp("a marker cannot be removed");
    }

    Racer Entered(const GuardWay& way) {
        const GuardRow row = Row(way);
        GuardAttempt attempt = GuardAttempt::Of(way, row, tried_, device_, sample_, true);
        Racer racer{row.key, way.name, attempt.session, nullptr};
        racer.runner = std::make_shared<GuardRunner>([this, key = row.key, session = attempt.session.get()] {
            tried_->flag->Name(key, device_.boot, getpid());  // two take turns: the flag says which runs
            tried_->flag->SetStage(GuardFlag::kRun);
            return sample_->Seconds(*session);
        });
        return racer;
    }

    void Leave(Racer& racer) {
        if (racer.session) GuardAttempt::Close(racer.session, *tried_->flag, racer.key, device_);
    }

    std::string Measured(const Racer& racer) {
        const Guarded guard(*this);
        const double milliseconds = 1000 * racer.runner->Estimate();
        rows_->Of(racer.key, racer.way).milliseconds = milliseconds;
        return racer.way + " " + Milliseconds(milliseconds) + "; ";
    }

    GuardRow Row(const GuardWay& way) {
        const Guarded guard(*this);
        return rows_->Of(Key(way), way.name);
    }

    std::string Unusable() {
        const Guarded guard(*this);
        return unusable_;
    }

    bool IsDecided(const GuardWay& way) {
        const Guarded guard(*this);
        const GuardRow* row = rows_->Get(Key(way));
        return row && row->IsDecided();
    }

    // Why session options must not be used; "" where nothing forbids them.
    std::string Forbidden(const GuardWay& way) const {
        std::shared_ptr<const GuardDeny> list;
        {
            const std::lock_guard<std::recursive_mutex> guard(Mutex());
            list = Denied();
        }
        return list && !way.safe ? list->Reason(way.name, way.digests, device_) : "";
    }

    // Takes the marker of an attempt away; false where nothing more can be tried.
    bool End(const GuardAttempt& attempt, GuardMarker& marker) {
        if (!attempt.unusable.empty()) GiveUp(attempt.unusable);
        else if (!marker.Clear()) GiveUp("a marker cannot be removed");
        return unusable_.empty();
    }

    void Keep() {
        try {
            rows_->Save();
        } catch (const GuardError& full) {
            GiveUp(full.what());
        }
    }

    std::string Name(const std::vector<GuardWay>& ways) {
        const Guarded guard(*this);
        const GuardWay* way = Choice(ways);
        return way ? way->name : "";
    }

    // What won three races, else the first in the bundle's order that the CPU runs or that passed; nullptr where the guard
    // cannot be used.
    const GuardWay* Choice(const std::vector<GuardWay>& ways) {
        const GuardWay* first = nullptr;
        if (!unusable_.empty()) return first;
        for (const GuardWay& way : ways) {
            const GuardRow* row = rows_->Get(Key(way));
            const bool is_good = way.safe || (row && row->IsGood() && Forbidden(way).empty());
            if (is_good && Key(way) == rows_->settled) return &way;
            if (is_good && !first) first = &way;
        }
        return first;
    }

    // What a row is about: what is opened and how, by which release, on which build of the system.
    std::string Key(const GuardWay& way) const {
        return Sha256(way.digests + "\n" + way.name + "\n" + release_ + "\n" + device_.system).substr(0, 32);
    }

    const GuardFiles files_;
    const GuardDevice device_;
    const GuardModel model_;
    const std::string release_;
    std::shared_ptr<GuardSample> sample_;
    std::unique_ptr<GuardRows> rows_;
    std::shared_ptr<GuardFlag> use_;
    std::shared_ptr<GuardMarker> tried_, opened_;
    std::string unusable_;
    std::shared_future<GuardChoice> prepared_;
    std::recursive_mutex mutex_;
};

}  // namespace ort_mobile
