#include "answer.h"

#include <stdarg.h>
#include <stdio.h>

const struct stage_name STAGES[] = {
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

const char *const STOPS[] = {"", "enough", "max_seconds", "max_runs"};

bool fail(
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

void add_log(struct strings *log, unsigned severity, const char *category, const char *message) {
    size_t room = sizeof log->bytes - log->used;
    char letter = severity < 5 ? "VIWEF"[severity] : '?';
    int length = snprintf(log->bytes + log->used, room, "%c %s: %s", letter, category, message);
    if (length < 0 || (size_t)length >= room) {
        log->dropped++;
        return;
    }
    log->used += (size_t)length + 1;
}
