/* Runs a model: reads operands into arrays, calls the functions of its operations, writes their outputs back. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compute.h"

/* Bytes of each operand as they lie in memory: constants, the caller's inputs, or results allocated here. */
struct storage {
    const struct model *model;
    const void **bytes;
    void **allocated;
};

static float scale_at(const struct operand *operand, size_t index, size_t inner) {
    if (!operand->channel_scales) return operand->scale;
    return operand->channel_scales[index / inner % operand->channel_count];
}

static size_t inner_count(const struct operand *operand) {
    size_t inner = 1;
    for (uint32_t i = operand->channel_dimension + 1; i < operand->rank; i++) inner *= operand->sizes[i];
    return inner ? inner : 1;
}

static void read_bytes(const struct operand *operand, const unsigned char *from, float *to, size_t count) {
    bool is_signed = operand->kind->code != TENSOR_QUANT8_ASYMM;
    bool plain = operand->kind->code == TENSOR_BOOL8 || operand->kind->code == BOOL;
    int32_t zero = operand->channel_scales ? 0 : operand->zero_point;
    size_t inner = inner_count(operand);
    for (size_t i = 0; i < count; i++) {
        if (plain) to[i] = from[i] != 0;
        else to[i] = (float)((is_signed ? (signed char)from[i] : from[i]) - zero) * scale_at(operand, i, inner);
    }
}

/* 32-bit integers are quantized only as the bias of a quantized operation: then with a scale. */
static void read_integers(const struct operand *operand, const int32_t *from, float *to, size_t count) {
    double scale = operand->scale != 0 ? (double)operand->scale : 1;
    for (size_t i = 0; i < count; i++) to[i] = (float)(from[i] * scale);
}

/* The bias beside a filter with a scale for each channel: the caller gives the scale 0, and the real one of each value
 * is that of the input by that of its channel. Source: the reference of CONV_2D, DEPTHWISE_CONV_2D, GROUPED_CONV_2D. */
static enum result scale_bias(struct operand *const *operands, const struct operation *operation, struct call *call) {
    if (operation->input_count < 3) return NO_ERROR;
    const struct operand *input = operands[operation->inputs[0]], *filter = operands[operation->inputs[1]];
    const struct operand *bias = operands[operation->inputs[2]];
    struct array *read = &call->inputs[2];
    if (!filter->channel_scales || bias->kind->code != TENSOR_INT32 || !read->values) return NO_ERROR;
    if (bias->scale != 0) return refuse("%s: a bias beside scales of channels has the scale 0", call->kind->name);
    for (size_t i = 0; i < read->count && i < filter->channel_count; i++)
        read->values[i] = (float)((double)read->values[i] * (double)input->scale * (double)filter->channel_scales[i]);
    return NO_ERROR;
}

static enum result read_operand(const struct operand *operand, const void *bytes, struct array *array) {
    size_t count = element_count(operand);
    bool real = operand->kind->code == TENSOR_FLOAT32 || operand->kind->code == FLOAT32;
    *array = (struct array){.rank = operand->rank, .count = count, .type = operand->kind->code};
    memcpy(array->sizes, operand->sizes, sizeof array->sizes);
    if (operand->omitted) return NO_ERROR;
    if (!bytes) return refuse("an operation reads an operand before it is computed");
    array->owned = !real;
    array->values = real ? (float *)(uintptr_t)bytes : malloc((count ? count : 1) * sizeof(float));
    if (!array->values) return OUT_OF_MEMORY;
    if (operand->kind->bytes == 1) read_bytes(operand, bytes, array->values, count);
    else if (!real) read_integers(operand, bytes, array->values, count);
    return NO_ERROR;
}

static unsigned char quantized(const struct operand *operand, float value) {
    bool is_signed = operand->kind->code != TENSOR_QUANT8_ASYMM;
    float low = is_signed ? -128 : 0, high = is_signed ? 127 : 255;
    float level = rintf(value / operand->scale) + (float)operand->zero_point;
    level = level < low ? low : level > high ? high : level;
    return (unsigned char)(int)(isnan(level) ? 0 : level);
}

static int32_t whole(float value) {
    if (isnan(value)) return 0;
    return value >= 2147483648.0F ? INT32_MAX : value < -2147483648.0F ? INT32_MIN : (int32_t)value;
}

/* Float results are written in place; others are converted. */
static void write_operand(const struct operand *operand, const struct array *array, void *bytes) {
    if (operand->kind->code == TENSOR_FLOAT32) return;
    for (size_t i = 0; i < array->count; i++) {
        if (operand->kind->code == TENSOR_INT32) ((int32_t *)bytes)[i] = whole(array->values[i]);
        else if (operand->kind->code == TENSOR_BOOL8) ((unsigned char *)bytes)[i] = array->values[i] != 0;
        else ((unsigned char *)bytes)[i] = quantized(operand, array->values[i]);
    }
}

static enum result open_output(struct storage *storage, uint32_t index, struct array *array) {
    const struct operand *operand = storage->model->operands[index];
    size_t bytes = byte_count(operand);
    free(storage->allocated[index]);
    storage->allocated[index] = calloc(1, bytes ? bytes : 1);
    *array = (struct array){.rank = operand->rank, .count = element_count(operand), .type = operand->kind->code};
    memcpy(array->sizes, operand->sizes, sizeof array->sizes);
    array->owned = operand->kind->code != TENSOR_FLOAT32;
    array->values = array->owned ? calloc(array->count + 1, sizeof(float)) : storage->allocated[index];
    storage->bytes[index] = storage->allocated[index];
    return array->values && storage->allocated[index] ? NO_ERROR : OUT_OF_MEMORY;
}

static void close_arrays(struct array *arrays, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (arrays[i].owned) free(arrays[i].values);
    free(arrays);
}

static enum result open_arrays(struct storage *storage, const struct operation *operation, struct call *call) {
    enum result code = NO_ERROR;
    for (uint32_t i = 0; !code && i < operation->input_count; i++) {
        uint32_t index = operation->inputs[i];
        code = read_operand(storage->model->operands[index], storage->bytes[index], &call->inputs[i]);
    }
    if (!code) code = scale_bias(storage->model->operands, operation, call);
    for (uint32_t i = 0; !code && i < operation->output_count; i++)
        code = open_output(storage, operation->outputs[i], &call->outputs[i]);
    return code;
}

static enum result run_operation(struct storage *storage, const struct operation *operation) {
    struct call call = {operation->kind, operation->input_count, operation->output_count, NULL, NULL};
    call.inputs = calloc(call.input_count + 1, sizeof *call.inputs);
    call.outputs = calloc(call.output_count + 1, sizeof *call.outputs);
    enum result code = call.inputs && call.outputs ? open_arrays(storage, operation, &call) : OUT_OF_MEMORY;
    if (!code) code = operation->kind->compute(&call);
    for (uint32_t i = 0; !code && i < call.output_count; i++) {
        uint32_t index = operation->outputs[i];
        write_operand(storage->model->operands[index], &call.outputs[i], storage->allocated[index]);
    }
    if (call.inputs) close_arrays(call.inputs, call.input_count);
    if (call.outputs) close_arrays(call.outputs, call.output_count);
    return code;
}

static void fill_storage(struct storage *storage, const struct buffer *inputs) {
    const struct model *model = storage->model;
    for (size_t i = 0; i < model->operand_count; i++) storage->bytes[i] = model->operands[i]->value;
    for (uint32_t i = 0; i < model->input_count; i++) storage->bytes[model->inputs[i]] = inputs[i].input;
}

/* Copied at the end: an output may be an input, a constant, or read by other operations too. */
static enum result give_outputs(const struct storage *storage, const struct buffer *outputs) {
    for (uint32_t i = 0; i < storage->model->output_count; i++) {
        const void *bytes = storage->bytes[storage->model->outputs[i]];
        if (outputs[i].length && (!bytes || !outputs[i].output)) return refuse("output %u is never computed or set", i);
        if (outputs[i].length) memcpy(outputs[i].output, bytes, outputs[i].length);
    }
    return NO_ERROR;
}

enum result interpret(const struct model *model, const struct buffer *inputs, const struct buffer *outputs) {
    struct storage storage = {model, calloc(model->operand_count + 1, sizeof(void *)),
                              calloc(model->operand_count + 1, sizeof(void *))};
    enum result code = storage.bytes && storage.allocated ? NO_ERROR : OUT_OF_MEMORY;
    if (!code) fill_storage(&storage, inputs);
    for (size_t i = 0; !code && i < model->operation_count; i++) code = run_operation(&storage, &model->operations[i]);
    if (!code) code = give_outputs(&storage, outputs);
    for (size_t i = 0; storage.allocated && i < model->operand_count; i++) free(storage.allocated[i]);
    free(storage.allocated);
    free(storage.bytes);
    return code == BAD_DATA ? OP_FAILED : code;
}
