/* Operations element by element: one function of one value, or of two with broadcasting. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "compute.h"

static enum result unary(struct call *call, float (*function)(float)) {
    if (!counts(call, 1, 1)) return BAD_DATA;
    const struct array *in = call->inputs;
    struct array *out = call->outputs;
    if (!in->values || in->count != out->count) return misfit(call, "other sizes than the input's");
    for (size_t i = 0; i < out->count; i++) out->values[i] = function(in->values[i]);
    return NO_ERROR;
}

static float same(float x) { return x; }
static float relu(float x) { return x < 0 ? 0 : x; }
static float relu1(float x) { return x < -1 ? -1 : x > 1 ? 1 : x; }
static float relu6(float x) { return x < 0 ? 0 : x > 6 ? 6 : x; }
static float logistic(float x) { return x < 0 ? expf(x) / (1 + expf(x)) : 1 / (1 + expf(-x)); }
static float negative(float x) { return -x; }

/* Reshapes, casts, quantize and dequantize too: reading and writing the operand does what is to be done. */
enum result compute_same(struct call *call) { return unary(call, same); }
enum result compute_relu(struct call *call) { return unary(call, relu); }
enum result compute_relu1(struct call *call) { return unary(call, relu1); }
enum result compute_relu6(struct call *call) { return unary(call, relu6); }
enum result compute_logistic(struct call *call) { return unary(call, logistic); }
enum result compute_tanh(struct call *call) { return unary(call, tanhf); }
enum result compute_floor(struct call *call) { return unary(call, floorf); }
enum result compute_abs(struct call *call) { return unary(call, fabsf); }
enum result compute_neg(struct call *call) { return unary(call, negative); }
enum result compute_sin(struct call *call) { return unary(call, sinf); }
enum result compute_log(struct call *call) { return unary(call, logf); }
enum result compute_exp(struct call *call) { return unary(call, expf); }
enum result compute_sqrt(struct call *call) { return unary(call, sqrtf); }

enum result compute_elu(struct call *call) {
    float alpha = real_at(call, 1, 1);
    enum result code = unary(call, same);
    for (size_t i = 0; !code && i < call->outputs->count; i++) {
        float value = call->outputs->values[i];
        call->outputs->values[i] = value < 0 ? alpha * (expf(value) - 1) : value;
    }
    return code;
}

/* Step of an input along each dimension of the output, 0 where it is broadcast; false when it does not fit. */
static bool broadcast_steps(const struct array *in, const struct array *out, size_t *steps) {
    size_t strides[RANK_MAX] = {0};
    if (!in->values || in->rank > out->rank) return false;
    strides_of(in, strides);
    uint32_t shift = out->rank - in->rank;
    for (uint32_t d = 0; d < out->rank; d++) {
        uint32_t size = d < shift ? 1 : in->sizes[d - shift];
        if (size != 1 && size != out->sizes[d]) return false;
        steps[d] = size == 1 ? 0 : strides[d - shift];
    }
    return true;
}

static size_t broadcast_index(const struct array *out, size_t position, const size_t *steps) {
    size_t index = 0;
    for (uint32_t d = out->rank; d-- > 0; position /= out->sizes[d]) index += position % out->sizes[d] * steps[d];
    return index;
}

static enum result binary(struct call *call, float (*function)(float, float)) {
    if (!counts(call, 2, 1)) return BAD_DATA;
    const struct array *a = &call->inputs[0], *b = &call->inputs[1];
    struct array *out = call->outputs;
    size_t steps_a[RANK_MAX] = {0}, steps_b[RANK_MAX] = {0};
    if (!broadcast_steps(a, out, steps_a) || !broadcast_steps(b, out, steps_b))
        return misfit(call, "sizes that do not broadcast");
    bool plain = same_sizes(a, out) && same_sizes(b, out);
    for (size_t i = 0; i < out->count; i++) {
        size_t at_a = plain ? i : broadcast_index(out, i, steps_a);
        size_t at_b = plain ? i : broadcast_index(out, i, steps_b);
        out->values[i] = function(a->values[at_a], b->values[at_b]);
    }
    return NO_ERROR;
}

static enum result binary_activated(struct call *call, float (*function)(float, float)) {
    enum result code = binary(call, function);
    if (!code) activate(call->outputs, whole_at(call, 2, FUSED_NONE));
    return code;
}

static float add(float a, float b) { return a + b; }
static float subtract(float a, float b) { return a - b; }
static float multiply(float a, float b) { return a * b; }
static float divide(float a, float b) { return a / b; }
static float larger(float a, float b) { return a > b || isnan(a) ? a : b; }
static float smaller(float a, float b) { return a < b || isnan(a) ? a : b; }
static float prelu(float a, float slope) { return a < 0 ? a * slope : a; }
static float less(float a, float b) { return a < b; }
static float greater(float a, float b) { return a > b; }

enum result compute_add(struct call *call) { return binary_activated(call, add); }
enum result compute_sub(struct call *call) { return binary_activated(call, subtract); }
enum result compute_mul(struct call *call) { return binary_activated(call, multiply); }
enum result compute_div(struct call *call) { return binary_activated(call, divide); }
enum result compute_maximum(struct call *call) { return binary(call, larger); }
enum result compute_minimum(struct call *call) { return binary(call, smaller); }
enum result compute_pow(struct call *call) { return binary(call, powf); }
enum result compute_prelu(struct call *call) { return binary(call, prelu); }
enum result compute_less(struct call *call) { return binary(call, less); }
enum result compute_greater(struct call *call) { return binary(call, greater); }

enum result compute_select(struct call *call) {
    if (!counts(call, 3, 1)) return BAD_DATA;
    struct array *out = call->outputs;
    for (uint32_t i = 0; i < 3; i++)
        if (!call->inputs[i].values || call->inputs[i].count != out->count) return misfit(call, "different sizes");
    for (size_t i = 0; i < out->count; i++)
        out->values[i] = call->inputs[call->inputs[0].values[i] != 0 ? 1 : 2].values[i];
    return NO_ERROR;
}
