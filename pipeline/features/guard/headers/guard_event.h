// What happened to session options of a model: no identifiers, no inputs, no outputs. Nothing is sent anywhere.
#pragma once

#include <cstdio>
#include <ctime>
#include <functional>
#include <locale>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>

#include "guard_files.h"

namespace ort_mobile {

class GuardEvent {
  public:
    GuardEvent(std::string kind, std::string named, const std::string& digest, std::string options)
        : event(std::move(kind)), model(std::move(named)), way(std::move(options)) {
        const std::time_t now = std::time(nullptr);
        std::tm parts{};
        gmtime_r(&now, &parts);
        char at[32];
        std::strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%SZ", &parts);
        json_ = "{\"v\":1";
        With("at", at).With("model", model).With("digest", digest.substr(0, 8)).With("way", way).With("event", event);
    }

    // passed, refused, died, hung, wrong, suspected, raced, chosen, denied, postponed, forgotten, unusable; model_failed where
    // not even the CPU gives the bundle's outputs: take another bundle.
    std::string event;

    // The model's name, and the session options as measurements name them; "" for what is about all of them.
    std::string model, way;

    // One line of JSON.
    std::string Json() const { return json_ + "}"; }

    GuardEvent& With(const char* name, const std::string& text) {
        json_ += std::string(",\"") + name + "\":\"";
        for (unsigned char byte : text) {
            char code[8];
            const bool is_plain = byte >= ' ' && byte != '"' && byte != '\\' && byte != 127;
            std::snprintf(code, sizeof code, is_plain ? "%c" : "\\u%04x", byte);  // bytes of UTF-8 are JSON's as they are
            json_ += code;
        }
        json_ += '"';
        return *this;
    }

    GuardEvent& With(const char* name, double number) {
        std::ostringstream text;
        text.imbue(std::locale::classic());
        text << number;
        json_ += std::string(",\"") + name + "\":" + text.str();
        return *this;
    }

  private:
    std::string json_;
};

using GuardListener = std::function<void(const GuardEvent&)>;

// Who wants to know, in whichever thread it happens.
class GuardEvents {
  public:
    static void Listen(GuardListener listener) {
        const std::lock_guard<std::mutex> guard(Mutex());
        Listener() = std::make_shared<GuardListener>(std::move(listener));
    }

    // Keeps an event and tells of it.
    static void Tell(const GuardFiles& files, const GuardEvent& event) {
        try {
            files.Append("events.jsonl", event.Json());
        } catch (const GuardError&) {
            // An event is worth less than the app.
        }
        std::shared_ptr<GuardListener> listener;
        {
            const std::lock_guard<std::mutex> guard(Mutex());
            listener = Listener();
        }
        try {
            if (listener && *listener) (*listener)(event);
        } catch (...) {
            // What a listener throws must not close a model.
        }
    }

  private:
    static std::mutex& Mutex() {
        static auto* mutex = new std::mutex;  // threads may outlive static objects
        return *mutex;
    }
    static std::shared_ptr<GuardListener>& Listener() {
        static auto* listener = new std::shared_ptr<GuardListener>;
        return *listener;
    }
};

}  // namespace ort_mobile
