/* The driver profile, from the file that an environment variable names: one value a line, words with blanks between.
 * Written by device_runner/android_host/device.py from the JSON that people write.
 *
 *   level LEVEL
 *   device NAME TYPE LEVEL VERSION         then for that device:
 *   operation CODE                         type CODE
 *   refuse OPERATION TYPE ...              that operation, where its operands have exactly these types
 *   delay STAGE NANOSECONDS                fault STAGE KIND CODE FIRST COUNT NANOSECONDS
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"

#define VARIABLE_PROFILE "ORT_MOBILE_NNAPI_PROFILE"
#define DEFAULT_LEVEL 31

static const char *const STAGES[STAGE_COUNT] = {"model", "compile", "run", "wait"};
static const char *const FAULTS[] = {"fail", "hang",  "lost",  "crash",    "abort", "illegal",
                                     "nan",  "zeros", "noise", "permuted", "slow"};

static struct profile loaded = {.level = DEFAULT_LEVEL};

static int find_word(const char *const *words, size_t count, const char *word) {
    for (size_t i = 0; i < count; i++)
        if (!strcmp(words[i], word)) return (int)i;
    return -1;
}

static bool add_device(struct profile *to, const char *line) {
    struct device *device = &to->devices[to->device_count];
    if (to->device_count == DEVICES_MAX) return false;
    to->device_count++;
    return sscanf(line, "device %63s %d %" SCNd64 " %63s", device->name, &device->type, &device->level, device->version) == 4;
}

static bool add_code(struct profile *to, const char *word, unsigned code) {
    if (!to->device_count || code >= CODES_MAX) return false;
    struct device *device = &to->devices[to->device_count - 1];
    bool operation = !strcmp(word, "operation");
    *(operation ? &device->operations_limited : &device->types_limited) = true;
    (operation ? device->operations : device->types)[code] = true;
    return true;
}

static bool add_refusal(struct profile *to, const char *line) {
    struct device *device = to->device_count ? &to->devices[to->device_count - 1] : NULL;
    if (!device || device->refusal_count == REFUSALS_MAX) return false;
    struct refusal *refusal = &device->refusals[device->refusal_count++];
    char *at = NULL;
    refusal->operation = (int32_t)strtol(line + strlen("refuse"), &at, 10);
    for (char *end = at; *at; at = end) {
        unsigned long code = strtoul(at, &end, 10);
        if (end == at) break;
        if (code < 32) refusal->types |= UINT32_C(1) << code;
    }
    return true;
}

static bool add_fault(struct profile *to, const char *line) {
    char stage[16], kind[16];
    struct fault *fault = &to->faults[to->fault_count];
    if (to->fault_count == FAULTS_MAX ||
        sscanf(line, "fault %15s %15s %d %lu %lu %ld", stage, kind, &fault->code, &fault->first, &fault->count,
               &fault->delay_ns) != 6)
        return false;
    int at = find_word(STAGES, STAGE_COUNT, stage), which = find_word(FAULTS, sizeof FAULTS / sizeof *FAULTS, kind);
    if (at < 0 || which < 0) return false;
    fault->stage = (enum stage)at;
    fault->kind = (enum fault_kind)which;
    to->fault_count++;
    return true;
}

static bool add_delay(struct profile *to, const char *line) {
    char stage[16];
    int64_t ns = 0;
    if (sscanf(line, "delay %15s %ld", stage, &ns) != 2 || find_word(STAGES, STAGE_COUNT, stage) < 0) return false;
    to->delays_ns[find_word(STAGES, STAGE_COUNT, stage)] = ns;
    return true;
}

static bool add_line(struct profile *to, const char *line) {
    char word[16] = "";
    unsigned code = 0;
    if (sscanf(line, "%15s", word) != 1) return true;
    if (!strcmp(word, "device")) return add_device(to, line);
    if (!strcmp(word, "fault")) return add_fault(to, line);
    if (!strcmp(word, "delay")) return add_delay(to, line);
    if (!strcmp(word, "refuse")) return add_refusal(to, line);
    if (!strcmp(word, "level")) return sscanf(line, "level %" SCNd64, &to->level) == 1;
    if (strcmp(word, "operation") && strcmp(word, "type")) return false;
    return sscanf(line, "%*s %u", &code) == 1 && add_code(to, word, code);
}

static void load_profile(void) {
    const char *path = getenv(VARIABLE_PROFILE);
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[512];
    if (path && !file) fprintf(stderr, "android-host: the driver profile cannot be read: %s\n", path);
    while (file && fgets(line, sizeof line, file))
        if (!add_line(&loaded, line)) fprintf(stderr, "android-host: wrong line in the driver profile: %s", line);
    if (file) fclose(file);
}

const struct profile *profile(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_profile);
    return &loaded;
}
