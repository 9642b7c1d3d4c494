// Which of two sessions is faster, in a time that is short and therefore proves little: three races must agree.
// Turns of three runs, since one run at a time would measure how units wake up; who is far behind is out early.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

namespace ort_mobile {

// A session in a race: `run` gives the seconds of a run.
class GuardRunner {
  public:
    explicit GuardRunner(std::function<double()> run) : run_(std::move(run)) {}

    // Runs until there is a time to keep, and says how many seconds went by, what is around the runs among them. A time
    // is that of as many runs as fill a millisecond: a race of a fast model has no more of them than of others.
    double Run() {
        const auto start = std::chrono::steady_clock::now();
        double sum = 0, spent = 0;
        int runs = 0;
        for (; spent < 0.001; ++runs) {
            sum += run_();
            spent = std::max(sum, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        }
        const double seconds = sum / runs;
        seconds_.insert(std::upper_bound(seconds_.begin(), seconds_.end(), seconds), seconds);
        return spent;
    }

    std::size_t Count() const { return seconds_.size(); }

    // What stands for the times: never the least of many, since a clock may jump up for a moment.
    double Estimate() const { return seconds_[seconds_.size() < 4 ? 0 : (seconds_.size() - 1) / 4]; }

    // How far the times lie apart: what is above the lower quartile up to the upper one, as a share.
    double Spread() const { return seconds_[3 * (seconds_.size() - 1) / 4] / Estimate() - 1; }

  private:
    std::function<double()> run_;
    std::vector<double> seconds_;
};

struct GuardRace {
    // What all races of a launch may take, in seconds.
    static constexpr double kCapSeconds = 2;

    // The session that the bundle prefers wins where the other is not faster by more than this share.
    static constexpr double kTie = 0.05;

    // How far times may lie apart on a device that is calm enough.
    static double& Noise() {
        static double noise = 0.10;
        return noise;
    }

    // Whether times of the session repeat themselves, so that a race would mean something.
    static bool IsCalm(GuardRunner& runner) {
        double spent = 0;
        while (spent < 0.2 || runner.Count() < kTurn) spent += runner.Run();
        return runner.Spread() <= Noise();
    }

    // Whether the second of two sessions is faster than the first, which the bundle prefers, within so many seconds.
    static bool IsFaster(GuardRunner& second, GuardRunner& first, double seconds) {
        GuardRunner* const both[] = {&first, &second};
        double left = seconds, behind = 1.6;
        for (int run = 0; run < 2 && (run == 0 || left > 0); ++run)
            for (GuardRunner* runner : both) left -= runner->Run();
        while (std::max(first.Estimate(), second.Estimate()) <= behind * std::min(first.Estimate(), second.Estimate())) {
            const std::size_t turn = kTurn * (first.Estimate() + second.Estimate()) < left / 2 ? kTurn : 1;
            bool ran = false;
            for (GuardRunner* runner : both)
                for (std::size_t i = 0; i < turn && runner->Estimate() <= left; ++i, ran = true) left -= runner->Run();
            if (!ran) break;
            behind = std::min(first.Count(), second.Count()) >= 5 ? 1.25 : std::numeric_limits<double>::max();
        }
        return second.Estimate() < first.Estimate() * (1 - kTie);
    }

  private:
    static constexpr std::size_t kTurn = 3;
};

}  // namespace ort_mobile
