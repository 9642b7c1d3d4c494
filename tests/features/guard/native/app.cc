// One launch of an app: it opens the model, runs it, and perhaps waits for the trials. What it says is for tests.
#include <ort_mobile_guard.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <mutex>

extern "C" OrtStatus* RegisterDriver(OrtSessionOptions* options, const OrtApiBase* base, const char* provider);

static std::string Given(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

static void Say(const std::string& line) {
    static std::mutex mutex;
    const std::lock_guard<std::mutex> guard(mutex);
    std::cout << line << std::endl;
}

// What Android remembers of the process before: "process,reason,status,time".
static ort_mobile::GuardEnd Ended(int process) {
    const auto fields = ort_mobile::GuardFields(Given("ENDED"), ',');
    if (fields.size() != 4 || std::stoi(fields[0]) != process) return {};
    const int reason = std::stoi(fields[1]), status = std::stoi(fields[2]);
    const bool crashed = reason == 5 || reason == 6 || (reason == 2 && status != 9) || (reason == 1 && status != 0);
    using ort_mobile::GuardEnding;
    return {crashed ? GuardEnding::kCrashed : reason == 3 ? GuardEnding::kStarved : GuardEnding::kKilled, std::stoll(fields[3])};
}

static ort_mobile::GuardDevice Device() {
    ort_mobile::GuardDevice device;
    device.system = Given("SYSTEM");
    device.chip = "Test T1";
    device.level = std::stoi(Given("LEVEL"));
    device.boot = std::stoi(Given("BOOT"));
    if (device.level >= 30) device.ending = Ended;
    device.busy = [] { return Given("BUSY"); };
    return device;
}

static std::vector<ort_mobile::GuardWay> Ways(const Ort::Env& environment) {
    std::vector<ort_mobile::GuardWay> ways;
    for (const std::string& name : ort_mobile::GuardFields(Given("WAYS"), '\n')) {
        const std::string provider = name.substr(0, name.find('+'));
        ways.push_back({name, Given("DIGEST"), provider == "cpu", [&environment, provider] {
            Ort::SessionOptions options;
            Ort::ThrowOnError(RegisterDriver(options, OrtGetApiBase(), provider.c_str()));
            return Ort::Session(environment, Given("MODEL").c_str(), options);
        }});
    }
    return ways;
}

static double Sum(ort_mobile::GuardedSession& session) {
    std::vector<float> x(64);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / 10.0f - 3.0f;
    const std::int64_t shape[] = {1, 1, 8, 8};
    const char* inputs[] = {"x"};
    const char* outputs[] = {"y"};
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    const auto value = Ort::Value::CreateTensor<float>(memory, x.data(), x.size(), shape, 4);
    const auto results = session.Run(Ort::RunOptions{nullptr}, inputs, &value, 1, outputs, 1);
    double sum = 0;
    for (int i = 0; i < 128; ++i) sum += (i + 1) * static_cast<double>(results[0].GetTensorData<float>()[i]);
    return sum;
}

int main() {
    static Ort::Env environment(ORT_LOGGING_LEVEL_FATAL, "app");
    ort_mobile::Guard::Listen([](const ort_mobile::GuardEvent& event) { Say("event " + event.Json()); });
    const ort_mobile::Guard guard(Given("STORAGE"), Device());
    ort_mobile::GuardAttempt::LimitMilliseconds() = std::stoi(Given("LIMIT"));
    if (!Given("NOISE").empty()) ort_mobile::GuardRace::Noise() = std::stoi(Given("NOISE"));
    if (!Given("RESET").empty()) guard.Reset();
    const std::string signature = Given("SIGNATURE");
    const auto verifier = [&signature](const std::string& payload, const std::string& given) {
        std::string digits;
        for (unsigned char byte : given) digits += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
        return signature == ort_mobile::Sha256(payload) + " " + digits;
    };
    guard.Recall("my bundle", verifier);
    if (!Given("DENY").empty()) {
        try {
            guard.Deny(ort_mobile::ReadSample(Given("DENY")), "my bundle", verifier);
            Say("denied");
        } catch (const ort_mobile::GuardError& refused) {
            Say(std::string("refused ") + refused.what());
        }
    }
    const auto start = std::chrono::steady_clock::now();
    const ort_mobile::GuardModel names{"M", "my bundle", std::string(64, '4'), "previous,packaged"};
    const ort_mobile::GuardedModel model(guard, names, ort_mobile::ReadSample(Given("SAMPLE")), Ways(environment));
    {
        ort_mobile::GuardedSession session = Given("NOW").empty() ? model.Open() : model.OpenNow();
        const auto spent = std::chrono::steady_clock::now() - start;
        Say("way " + session.way());
        Say("ms " + std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(spent).count()));
        for (int i = 0; i < std::stoi(Given("RUNS")); ++i) Say("sum " + std::to_string(Sum(session)));
        if (!Given("WAIT").empty()) Say("choice " + model.Prepare().get().way);
        for (const std::string& reason : session.skipped()) Say("skipped " + reason);
    }
    Say("end");
    std::_Exit(0);  // as a system ends apps: no static object is destroyed
}
