// What the system says of itself, and of how processes of this app ended.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>

#if defined(__ANDROID__)
#include <sys/system_properties.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <sys/utsname.h>
#endif

#include "guard_digest.h"
#include "guard_files.h"

namespace ort_mobile {

// How a process ended: by a crash or without an answer, by a user or itself, by a new start of the kernel, nobody knows, or
// for lack of memory.
enum class GuardEnding { kCrashed, kKilled, kRebooted, kUnknown, kStarved };

// How a process ended, and when, in milliseconds since 1970; 0 where nothing says.
struct GuardEnd {
    GuardEnding ending = GuardEnding::kUnknown;
    std::int64_t at = 0;
};

struct GuardDevice {
    // The build of the system with its drivers: session options are tried anew where it changes.
    std::string system;

    // The chip's name, for events and lists of what is forbidden.
    std::string chip;

    // The API level of Android; 0 elsewhere.
    std::int64_t level = 0;

    // What is another number after each start of the kernel; -1 where nothing says.
    std::int32_t boot = -1;

    // How a process of the app ended, where the app can tell: Android's ApplicationExitInfo, by JNI.
    std::function<GuardEnd(int process)> ending;

    // Why trials and races wait, where the app knows: heat, a battery saver, little memory; "" for nothing.
    std::function<std::string()> busy;

    GuardEnd Ending(int process, std::int32_t in_boot) const {
        if (boot != in_boot) return {GuardEnding::kRebooted, 0};
        return ending ? ending(process) : GuardEnd();
    }

    static GuardDevice OfThis() {
        GuardDevice device;
#if defined(__ANDROID__)
        // Partitions have builds of their own: a vendor's drivers may change without the system's.
        for (const char* part : {"", "bootimage.", "odm.", "product.", "system_ext.", "vendor."})
            device.system += Property((std::string("ro.") + part + "build.fingerprint").c_str()) + ";";
        device.chip = Property("ro.soc.manufacturer") + " " + Property("ro.soc.model");
        if (device.chip == " ") device.chip = Property("ro.hardware");
        const std::string level = Property("ro.build.version.sdk");
        for (char digit : level) device.level = digit < '0' || digit > '9' ? device.level : 10 * device.level + digit - '0';
#elif defined(__APPLE__)
        device.system = Value("kern.osversion") + ";" + Value("hw.machine");
        device.chip = Value("hw.machine");
        device.boot = Boot(Value("kern.bootsessionuuid"));
#else
        struct utsname name;
        if (uname(&name) == 0) device.system = std::string(name.sysname) + ";" + name.release + ";" + name.version;
        device.chip = "unknown";
#endif
#if !defined(__APPLE__)
        std::string boot;
        if (GuardFiles("/proc/sys/kernel/random").Read("boot_id", boot)) device.boot = Boot(boot);
#endif
        return device;
    }

  private:
    static std::int32_t Boot(const std::string& name) {
        return name.empty() ? -1 : static_cast<std::int32_t>(Crc32(name) & 0x7fffffff);
    }
#if defined(__ANDROID__)
    static std::string Property(const char* name) {
        char value[PROP_VALUE_MAX] = {};
        const int size = __system_property_get(name, value);
        return std::string(value, static_cast<std::size_t>(size > 0 ? size : 0));
    }
#elif defined(__APPLE__)
    static std::string Value(const char* name) {
        char value[256] = {};
        std::size_t size = sizeof value - 1;
        return sysctlbyname(name, value, &size, nullptr, 0) == 0 ? std::string(value) : "";
    }
#endif
};

}  // namespace ort_mobile
