/* What goes wrong in a driver: calls that fail, never return or end the process, and outputs that are wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

#define TENSOR_FLOAT32 3
#define NOISE_SHARE 0.25f /* of an output's largest number: -12 dB at most, and at least -17 */

static atomic_ullong stage_calls[STAGE_COUNT];
static atomic_bool lost;

static void pause_for(int64_t ns) {
    struct timespec rest = {ns / 1000000000, ns % 1000000000};
    while (ns > 0 && nanosleep(&rest, &rest) && errno == EINTR) continue;
}

static void end_by(int number) {
    signal(number, SIG_DFL); /* a runtime of another language may have a handler of its own */
    raise(number);
}

static enum result suffer(const struct fault *fault) {
    if (fault->kind == FAULT_CRASH) end_by(SIGSEGV);
    if (fault->kind == FAULT_ABORT) end_by(SIGABRT);
    if (fault->kind == FAULT_ILLEGAL) end_by(SIGILL);
    while (fault->kind == FAULT_HANG) pause();
    if (fault->kind == FAULT_SLOW) pause_for(fault->delay_ns);
    if (fault->kind == FAULT_LOST) lost = true;
    if (fault->kind == FAULT_FAIL) return (enum result)fault->code;
    return fault->kind == FAULT_LOST ? DEAD_OBJECT : NO_ERROR;
}

/* The fault of a call of a stage, by its number; NULL for none. */
static const struct fault *due(enum stage stage, uint64_t number) {
    for (size_t i = 0; i < profile()->fault_count; i++) {
        const struct fault *fault = &profile()->faults[i];
        bool within = number >= fault->first && (!fault->count || number < fault->first + fault->count);
        if (fault->stage == stage && within) return fault;
    }
    return NULL;
}

enum result meet(enum stage stage, const struct fault **met) {
    uint64_t number = ++stage_calls[stage];
    pause_for(profile()->delays_ns[stage]);
    const struct fault *fault = lost ? NULL : due(stage, number);
    if (met) *met = fault;
    if (lost) return DEAD_OBJECT;
    return fault ? suffer(fault) : NO_ERROR;
}

static void add_noise(float *values, size_t count) {
    uint32_t state = 1;
    float most = 0;
    for (size_t i = 0; i < count; i++) most = fmaxf(most, fabsf(values[i]));
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] += (float)((int32_t)state) / 2147483648.0f * NOISE_SHARE * most;
    }
}

static void roll(unsigned char *bytes, size_t length, size_t element) {
    unsigned char first[16];
    if (element > sizeof first || length < element) return;
    memcpy(first, bytes, element);
    memmove(bytes, bytes + element, length - element);
    memcpy(bytes + length - element, first, element);
}

static void spoil_output(const struct fault *fault, const struct operand *operand, const struct buffer *buffer) {
    bool is_float = operand->kind->code == TENSOR_FLOAT32;
    float *values = buffer->output;
    size_t count = buffer->length / sizeof *values;
    if (fault->kind == FAULT_ZEROS) memset(buffer->output, 0, buffer->length);
    if (fault->kind == FAULT_PERMUTED) roll(buffer->output, buffer->length, operand->kind->bytes);
    if (fault->kind == FAULT_NAN && is_float && count) values[count / 3] = NAN;
    if (fault->kind == FAULT_NOISE && is_float) add_noise(values, count);
}

void spoil(const struct fault *fault, const struct model *model, const struct buffer *outputs) {
    for (uint32_t i = 0; fault && i < model->output_count; i++)
        if (outputs[i].output) spoil_output(fault, model->operands[model->outputs[i]], &outputs[i]);
}
