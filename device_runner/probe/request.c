#include "request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"

/* Names of `set`, and where the value goes: to a text or to a number. */
static const struct {
    const char *name;
    bool number;
    size_t offset;
} SETTINGS[] = {
#define TEXT_SETTING(name) {#name, false, offsetof(struct request, name)},
#define NUMBER_SETTING(name) {#name, true, offsetof(struct request, name)},
    TEXT_SETTING(mode) TEXT_SETTING(library) TEXT_SETTING(model) TEXT_SETTING(provider) TEXT_SETTING(outputs)
    TEXT_SETTING(labelled) TEXT_SETTING(profile) TEXT_SETTING(plugin) TEXT_SETTING(plugin_name)
    TEXT_SETTING(thread_cores) TEXT_SETTING(thread_nice)
    NUMBER_SETTING(device_type) NUMBER_SETTING(flags) NUMBER_SETTING(intra_threads)
    NUMBER_SETTING(inter_threads) NUMBER_SETTING(parallel) NUMBER_SETTING(level) NUMBER_SETTING(arena) NUMBER_SETTING(pattern)
    NUMBER_SETTING(log_level) NUMBER_SETTING(cold) NUMBER_SETTING(sustain_ns) NUMBER_SETTING(seed) NUMBER_SETTING(warmup) NUMBER_SETTING(min_runs)
    NUMBER_SETTING(min_ns) NUMBER_SETTING(max_ns) NUMBER_SETTING(timeout_ms) NUMBER_SETTING(watch_stdin)
    NUMBER_SETTING(callers) NUMBER_SETTING(own_sessions) NUMBER_SETTING(shared_arena) NUMBER_SETTING(global_threads)
    NUMBER_SETTING(concurrent_ns) NUMBER_SETTING(steps) NUMBER_SETTING(capture) NUMBER_SETTING(device_tensors)
    NUMBER_SETTING(data_limit)
};

static const char *const VERBS[] = {"set",   "option",  "config", "dimension", "input",    "shape",     "check",
                                    "scale", "operand", "value",  "question",  "channels", "operation", "beside",  "state",    "sequence", "track",
                                    "custom_ops"};

bool parse_number(const char *text, int64_t *number) {
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < 0) return false;
    *number = value;
    return true;
}

int parse_sizes(const char *text, int64_t *sizes) {
    int count = 0;
    while (*text) {
        char *end = NULL;
        errno = 0;
        long long value = strtoll(text, &end, 10);
        if (errno || end == text || value < 0 || count == DIMENSIONS_MAX) return -1;
        sizes[count++] = value;
        if (*end && (*end != ',' || !end[1])) return -1;
        text = *end ? end + 1 : end;
    }
    return count;
}

const char *const *next(const struct request *request, const char *verb, size_t *at) {
    for (; *at + 3 <= request->count; *at += 3) {
        if (strcmp(request->strings[*at], verb)) continue;
        *at += 3;
        return request->strings + *at - 3;
    }
    return NULL;
}

const char *lookup(const struct request *request, const char *verb, const char *name) {
    const char *const *triple;
    for (size_t at = 0; (triple = next(request, verb, &at));)
        if (!strcmp(triple[1], name)) return triple[2];
    return NULL;
}

size_t count_of(const struct request *request, const char *verb) {
    size_t count = 0;
    for (size_t at = 0; next(request, verb, &at);) count++;
    return count;
}

static bool apply_setting(struct request *request, struct answer *answer, const char *name, const char *value) {
    for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++) {
        if (strcmp(SETTINGS[i].name, name)) continue;
        void *place = (char *)request + SETTINGS[i].offset;
        if (!SETTINGS[i].number)
            *(const char **)place = value;
        else if (!parse_number(value, place))
            return fail(answer, NULL, 0, "setting %s is no number: %s", name, value);
        return true;
    }
    return fail(answer, NULL, 0, "unknown setting: %s", name);
}

static bool apply_triple(struct request *request, struct answer *answer, const char *const *triple) {
    if (!strcmp(triple[0], "set")) return apply_setting(request, answer, triple[1], triple[2]);
    for (size_t i = 0; i < sizeof VERBS / sizeof *VERBS; i++)
        if (!strcmp(VERBS[i], triple[0])) return true;
    return fail(answer, NULL, 0, "unknown verb: %s", triple[0]);
}

/* All of a file, with a NUL behind it; NULL with errno. */
static char *read_all(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    char *bytes = file ? malloc(REQUEST_BYTES + 1) : NULL;
    *length = bytes ? fread(bytes, 1, REQUEST_BYTES, file) : 0;
    if (file) fclose(file);
    if (bytes) bytes[*length] = 0;
    return bytes;
}

static bool split(struct request *request, struct answer *answer, size_t length) {
    const char *end = request->bytes + length;
    for (const char *at = request->bytes; at < end; at++) request->count += !*at;
    if (!length || end[-1] || request->count % 3) return fail(answer, NULL, 0, "the request is cut off");
    request->strings = calloc(request->count, sizeof *request->strings);
    if (!request->strings) return fail(answer, "out_of_memory", 0, "no memory for the request");
    const char *at = request->bytes;
    for (size_t i = 0; i < request->count; i++, at += strlen(at) + 1) request->strings[i] = at;
    return true;
}

/* Whether the last triple is the checksum of all before it. */
static bool is_whole(const struct request *request) {
    const char *const *last = request->strings + request->count - 3;
    int64_t sum = 0;
    return !strcmp(last[0], "check") && !strcmp(last[1], "crc32") && parse_number(last[2], &sum) &&
           sum == checksum(0, request->bytes, (size_t)(last[0] - request->bytes));
}

bool read_request(struct request *request, struct answer *answer, const char *path) {
    size_t length = 0;
    request->bytes = read_all(path, &length);
    if (!request->bytes) return fail(answer, NULL, 0, "the request cannot be read: %s: %s", path, strerror(errno));
    if (!split(request, answer, length)) return false;
    if (!is_whole(request)) return fail(answer, NULL, 0, "the request is cut off or garbled");
    for (size_t at = 0; at < request->count; at += 3)
        if (!apply_triple(request, answer, request->strings + at)) return false;
    return true;
}

void release_request(struct request *request) {
    free(request->strings);
    free(request->bytes);
}
