/* What the probe has to say. It lies in memory that the supervising process shares with the measuring one, so that a
 * crash loses nothing that was known before it. */
#ifndef ANSWER_H
#define ANSWER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Steps of a run in order; a failure names the step, and its kind unless a closer one is known. */
enum stage {
    STAGE_REQUEST,
    STAGE_OPEN,
    STAGE_ENVIRONMENT,
    STAGE_OPTIONS,
    STAGE_PROVIDER,
    STAGE_LOAD,
    STAGE_INPUTS,
    STAGE_FIRST_RUN,
    STAGE_RUN,
    STAGE_OUTPUTS,
    STAGE_RELEASE,
    STAGE_DONE
};

static const struct {
    const char *name, *kind;
} STAGES[] = {
    [STAGE_REQUEST] = {"request", "bad_options"},
    [STAGE_OPEN] = {"open", "missing_library"},
    [STAGE_ENVIRONMENT] = {"environment", "wrong_library"},
    [STAGE_OPTIONS] = {"options", "bad_options"},
    [STAGE_PROVIDER] = {"provider", "provider_refused"},
    [STAGE_LOAD] = {"load", "model_load"},
    [STAGE_INPUTS] = {"inputs", "bad_input"},
    [STAGE_FIRST_RUN] = {"first_run", "run_error"},
    [STAGE_RUN] = {"run", "run_error"},
    [STAGE_OUTPUTS] = {"outputs", "device_error"},
    [STAGE_RELEASE] = {"release", "crash"},
    [STAGE_DONE] = {"done", "crash"},
};

enum stop { STOP_NONE, STOP_ENOUGH, STOP_MAX_SECONDS, STOP_MAX_RUNS };

static const char *const STOPS[] = {"", "enough", "max_seconds", "max_runs"};

enum {
    MESSAGE_BYTES = 16 * 1024,
    LIST_BYTES = 64 * 1024,
    LOG_BYTES = 512 * 1024,
    TENSORS_BYTES = 1024 * 1024,
    RUNS_KEPT = 10000000, /* latencies that fit; pages of them come into being as they are written */
    NNAPI_DEVICES_MAX = 16,
    QUESTIONS_MAX = 1024
};

/* A device of Android's NNAPI; `answers` has a letter for each question of inspect.h that it was asked. */
struct nnapi_device {
    char name[256], version[256];
    int32_t type;
    int64_t level;
    char answers[QUESTIONS_MAX + 1];
};

/* What the system's NNAPI says of itself; level 0 where it does not tell. */
struct nnapi_answer {
    bool found;
    int64_t level;
    volatile uint32_t count;
    struct nnapi_device devices[NNAPI_DEVICES_MAX];
};

/* Strings one after the other, each ended by NUL; what no longer fits is counted and left out. */
struct strings {
    size_t used, dropped;
    char bytes[LOG_BYTES];
};

struct answer {
    volatile unsigned stage;
    volatile bool failed;
    volatile bool measured; /* every stage before the release is done */
    char kind[32];
    int ort_code;
    char message[MESSAGE_BYTES];
    char ort_version[64];
    char providers[LIST_BYTES]; /* NUL-ended names, then an empty one */
    struct nnapi_answer nnapi;
    char profile[4096];
    uint64_t open_ns, load_ns, first_run_ns;
    uint64_t memory_before_load, memory_after_load, memory_peak;
    char outputs[TENSORS_BYTES]; /* JSON objects, comma between */
    unsigned stop; /* which bound ended the loop */
    struct strings log;
    volatile size_t runs;
    uint64_t latencies[];
};

/* Note the first failure; later ones (of cleaning up) do not replace it. Always false, for `return fail(...)`. */
__attribute__((format(printf, 4, 5))) static bool fail(
    struct answer *answer, const char *kind, int ort_code, const char *format, ...) {
    if (answer->failed) return false;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(answer->message, sizeof answer->message, format, arguments);
    va_end(arguments);
    snprintf(answer->kind, sizeof answer->kind, "%s", kind ? kind : STAGES[answer->stage].kind);
    answer->ort_code = ort_code;
    answer->failed = true;
    return false;
}

/* Append "L category: message" (L is the first letter of the severity). The caller holds the log's lock. */
static void add_log(struct strings *log, unsigned severity, const char *category, const char *message) {
    size_t room = sizeof log->bytes - log->used;
    char letter = severity < 5 ? "VIWEF"[severity] : '?';
    int length = snprintf(log->bytes + log->used, room, "%c %s: %s", letter, category, message);
    if (length < 0 || (size_t)length >= room) {
        log->dropped++;
        return;
    }
    log->used += (size_t)length + 1;
}

#endif
