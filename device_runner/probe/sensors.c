#include "sensors.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ZONES_MAX = 128,
    HOTTEST = 150000 /* millidegrees: what says more is no thermometer */
};

static const char *const OF_PROCESSORS[] = {"cpu", "CPU", "soc", "pkg", "package", "BIG", "MID", "LITTLE", "tsens"};

static bool first_line(const char *root, const char *format, unsigned number, char *line, size_t size) {
    char path[256], place[128];
    snprintf(place, sizeof place, format, number);
    snprintf(path, sizeof path, "%s/%s", root, place);
    FILE *file = fopen(path, "r");
    bool read = file && fgets(line, (int)size, file);
    if (file) fclose(file);
    return read;
}

static int64_t number_in(const char *root, const char *format, unsigned number) {
    char line[64];
    return first_line(root, format, number, line, sizeof line) ? strtoll(line, NULL, 10) : 0;
}

static bool is_of_processors(const char *type) {
    for (size_t i = 0; i < sizeof OF_PROCESSORS / sizeof *OF_PROCESSORS; i++)
        if (strstr(type, OF_PROCESSORS[i])) return true;
    return false;
}

static uint32_t mean_mhz(const char *root) {
    int64_t total = 0, count = 0;
    for (unsigned i = 0; i < PROCESSORS_MAX; i++) {
        int64_t khz = number_in(root, "devices/system/cpu/cpu%u/cpufreq/scaling_cur_freq", i);
        if (khz > 0 && khz < 100000000) total += khz, count++;
    }
    return count ? (uint32_t)(total / count / 1000) : 0;
}

static int32_t highest_temperature(const char *root) {
    int64_t of_all = 0, of_processors = 0;
    char type[64];
    for (unsigned i = 0; i < ZONES_MAX; i++) {
        if (!first_line(root, "class/thermal/thermal_zone%u/type", i, type, sizeof type)) continue;
        int64_t now = number_in(root, "class/thermal/thermal_zone%u/temp", i);
        if (now <= 0 || now > HOTTEST) continue;
        if (now > of_all) of_all = now;
        if (is_of_processors(type) && now > of_processors) of_processors = now;
    }
    return (int32_t)(of_processors ? of_processors : of_all);
}

int fast_cores(const char *root, int64_t numbers[PROCESSORS_MAX]) {
    int64_t khz[PROCESSORS_MAX], least = INT64_MAX;
    int count = 0, fast = 0;
    for (; count < PROCESSORS_MAX; count++) {
        khz[count] = number_in(root, "devices/system/cpu/cpu%u/cpufreq/cpuinfo_max_freq", (unsigned)count);
        if (khz[count] > 0 && khz[count] < least) least = khz[count];
    }
    for (int i = 0; i < count; i++)
        if (khz[i] > least) numbers[fast++] = i;
    return fast;
}

void read_sensors(const char *root, struct sample *sample) {
    sample->mhz = mean_mhz(root);
    sample->millidegrees = highest_temperature(root);
}
