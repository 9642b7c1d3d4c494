/* What several operations need: arguments, strides, layouts, activations. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compute.h"

enum { LANES = 8 };

enum result misfit(const struct call *call, const char *what) { return refuse("%s: %s", call->kind->name, what); }

bool counts(const struct call *call, uint32_t inputs, uint32_t outputs) {
    if (call->input_count >= inputs && call->output_count == outputs) return true;
    misfit(call, "a wrong number of inputs or outputs");
    return false;
}

float real_at(const struct call *call, uint32_t index, float fallback) {
    bool there = index < call->input_count && call->inputs[index].count == 1 && call->inputs[index].values;
    return there ? call->inputs[index].values[0] : fallback;
}

int32_t whole_at(const struct call *call, uint32_t index, int32_t fallback) {
    return (int32_t)real_at(call, index, (float)fallback);
}

void strides_of(const struct array *array, size_t *strides) {
    size_t step = 1;
    for (uint32_t i = array->rank; i-- > 0; step *= array->sizes[i]) strides[i] = step;
}

bool same_sizes(const struct array *a, const struct array *b) {
    return a->rank == b->rank && !memcmp(a->sizes, b->sizes, a->rank * sizeof *a->sizes);
}

void activate(struct array *array, int32_t code) {
    static const float LOW[] = {-INFINITY, 0, -1, 0}, HIGH[] = {INFINITY, INFINITY, 1, 6};
    if (code <= FUSED_NONE || code > FUSED_RELU6) return;
    for (size_t i = 0; i < array->count; i++) {
        float value = array->values[i];
        array->values[i] = value < LOW[code] ? LOW[code] : value > HIGH[code] ? HIGH[code] : value;
    }
}

/* Step to the next index in C order; the caller counts. */
static void advance(const struct array *array, uint32_t *index) {
    for (uint32_t i = array->rank; i-- > 0; index[i] = 0)
        if (++index[i] < array->sizes[i]) return;
}

struct array permuted(const struct array *array, const uint32_t *order) {
    struct array copy = {.rank = array->rank, .count = array->count, .owned = true, .type = array->type};
    size_t strides[RANK_MAX] = {0};
    uint32_t index[RANK_MAX] = {0};
    strides_of(array, strides);
    for (uint32_t i = 0; i < array->rank; i++) copy.sizes[i] = array->sizes[order[i]];
    copy.values = malloc((copy.count + 1) * sizeof(float));
    for (size_t i = 0; copy.values && i < copy.count; i++, advance(&copy, index)) {
        size_t from = 0;
        for (uint32_t d = 0; d < copy.rank; d++) from += index[d] * strides[order[d]];
        copy.values[i] = array->values[from];
    }
    return copy;
}

struct array new_array4(uint32_t n, uint32_t h, uint32_t w, uint32_t c) {
    struct array made = {.rank = 4, .sizes = {n, h, w, c}, .count = (size_t)n * h * w * c, .owned = true};
    made.values = calloc(made.count + 1, sizeof(float));
    return made;
}

static const uint32_t TO_NHWC[] = {0, 2, 3, 1}, TO_NCHW[] = {0, 3, 1, 2};

struct array view_nhwc(const struct array *array, bool nchw) {
    if (nchw) return permuted(array, TO_NHWC);
    struct array view = *array;
    view.owned = false;
    return view;
}

struct array out_nhwc(const struct array *output, bool nchw) {
    if (!nchw) return view_nhwc(output, false);
    return new_array4(output->sizes[0], output->sizes[2], output->sizes[3], output->sizes[1]);
}

enum result finish_nhwc(struct array *output, struct array *image, struct array *result, bool nchw) {
    enum result code = NO_ERROR;
    if (nchw) {
        struct array back = permuted(result, TO_NCHW);
        code = back.values ? NO_ERROR : OUT_OF_MEMORY;
        if (back.values) memcpy(output->values, back.values, output->count * sizeof(float));
        free(back.values);
    }
    if (image->owned) free(image->values);
    if (result->owned) free(result->values);
    return code;
}

float dot(const float *a, const float *b, size_t count) {
    float lanes[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++) lanes[lane] += a[i + lane] * b[i + lane];
    for (; i < count; i++) sum += a[i] * b[i];
    for (size_t lane = 0; lane < LANES; lane++) sum += lanes[lane];
    return sum;
}
