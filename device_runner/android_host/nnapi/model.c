/* Models: operands, their values, operations. Checked as NNAPI checks them, so that a wrong model is refused here. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "compute.h"

enum { LIST_BYTES = 4096 };
static const size_t ELEMENTS_MAX = (size_t)1 << 36; /* far from where products of sizes and bytes overflow */

static const struct operation_kind OPERATIONS[] = {
#define OPERATION(code, name, level, function) {code, #name, level, function},
#include "operations.def"
#undef OPERATION
};

/* Operations that take 8 bits at a later level than floats; source as of operations.def. */
static const struct {
    int32_t code;
    int32_t level;
} BYTES_LATER[] = {{23 /* RESIZE_BILINEAR */, 29}, {28 /* TANH */, 29}, {36 /* SUB */, 29}};

static const struct type_kind TYPES[] = {
#define TYPE(code, name, bytes, tensor, level) {code, #name, bytes, tensor, level},
#include "types.def"
#undef TYPE
};

const struct operation_kind *find_operation(int32_t code) {
    for (size_t i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++)
        if (OPERATIONS[i].code == code) return &OPERATIONS[i];
    return NULL;
}

const struct type_kind *find_type(int32_t code) {
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (TYPES[i].code == code) return &TYPES[i];
    return NULL;
}

size_t element_count(const struct operand *operand) {
    size_t count = 1;
    for (uint32_t i = 0; i < operand->rank; i++) count *= operand->sizes[i];
    return count;
}

size_t byte_count(const struct operand *operand) { return element_count(operand) * operand->kind->bytes; }

/* Room for one more in a growing array; NULL when there is no memory. */
static void *grow(void *array, size_t count, size_t *room, size_t size) {
    if (count < *room) return array;
    *room = *room ? 2 * *room : 64;
    return realloc(array, *room * size);
}

API int ANeuralNetworksModel_create(struct model **model) {
    struct model *made = calloc(1, sizeof *made);
    if (!model || !made) return OUT_OF_MEMORY;
    made->id = next_id();
    *model = made;
    return record(NO_ERROR, "Model_create", "\"model\":%u", made->id);
}

API void ANeuralNetworksModel_free(struct model *model) {
    if (!model) return;
    record(NO_ERROR, "Model_free", "\"model\":%u", model->id);
    for (size_t i = 0; i < model->operand_count; i++) {
        free(model->operands[i]->channel_scales);
        free(model->operands[i]);
    }
    for (size_t i = 0; i < model->operation_count; i++) free(model->operations[i].inputs);
    free(model->operands);
    free(model->operations);
    free(model->inputs);
    free(model);
}

static enum result check_type(const struct nn_operand_type *type) {
    const struct type_kind *kind = type ? find_type(type->type) : NULL;
    if (!type) return UNEXPECTED_NULL;
    if (!kind) return refuse("operand type %d is not known", type->type);
    if (kind->level > profile()->level) return refuse("operand type %s needs level %d", kind->name, kind->level);
    if (type->dimension_count > RANK_MAX) return refuse("an operand of rank %u", type->dimension_count);
    size_t elements = 1;
    for (uint32_t i = 0; i < type->dimension_count; i++) {
        elements *= type->dimensions[i];
        if (elements > ELEMENTS_MAX) return refuse("an operand of more elements than memory has");
    }
    return kind->tensor || !type->dimension_count ? NO_ERROR : refuse("a scalar operand with dimensions");
}

static enum result add_operand(struct model *model, const struct nn_operand_type *type) {
    enum result code = model->finished ? BAD_STATE : check_type(type);
    if (code) return code;
    struct operand **operands =
        grow(model->operands, model->operand_count, &model->operand_room, sizeof *model->operands);
    struct operand *operand = calloc(1, sizeof *operand);
    if (operands) model->operands = operands;
    if (!operands || !operand) {
        free(operand);
        return OUT_OF_MEMORY;
    }
    *operand = (struct operand){.kind = find_type(type->type), .rank = type->dimension_count,
                                .scale = type->scale, .zero_point = type->zero_point};
    for (uint32_t i = 0; i < operand->rank; i++) operand->sizes[i] = type->dimensions[i];
    operands[model->operand_count++] = operand;
    return NO_ERROR;
}

API int ANeuralNetworksModel_addOperand(struct model *model, const struct nn_operand_type *type) {
    char sizes[LIST_BYTES];
    enum result code = add_operand(model, type);
    if (!type) return code;
    list_numbers(sizes, sizeof sizes, type->dimensions, type->dimension_count);
    return record(code, "Model_addOperand",
                  "\"model\":%u,\"type\":%d,\"dimensions\":[%s],\"scale\":%.9g,\"zero_point\":%d", model->id,
                  type->type, sizes, (double)type->scale, type->zero_point);
}

static struct operand *operand_at(const struct model *model, int64_t index) {
    return index >= 0 && (size_t)index < model->operand_count ? model->operands[index] : NULL;
}

/* Up to 128 bytes are copied at once; a longer value must stay where it is while the model lives. */
static enum result set_value(struct operand *operand, const void *bytes, size_t length) {
    if (!operand) return BAD_DATA;
    if (!bytes && length) return UNEXPECTED_NULL;
    operand->omitted = !bytes;
    if (!bytes) return NO_ERROR;
    if (length != byte_count(operand)) return refuse("a value of %zu bytes for %zu", length, byte_count(operand));
    if (length <= COPIED_BYTES) memcpy(operand->copied, bytes, length);
    operand->value = length <= COPIED_BYTES ? operand->copied : bytes;
    return NO_ERROR;
}

API int ANeuralNetworksModel_setOperandValue(struct model *model, int32_t index, const void *bytes, size_t length) {
    struct operand *operand = operand_at(model, index);
    enum result code = model->finished ? BAD_STATE : set_value(operand, bytes, length);
    int32_t word = 0;
    float number = 0;
    if (code || length != sizeof word || !bytes)
        return record(code, "Model_setOperandValue", "\"model\":%u,\"index\":%d,\"length\":%zu", model->id, index,
                      length);
    memcpy(&word, bytes, sizeof word);
    memcpy(&number, bytes, sizeof number);
    bool real = operand->kind->code == FLOAT32 || operand->kind->code == TENSOR_FLOAT32;
    return record(code, "Model_setOperandValue", "\"model\":%u,\"index\":%d,\"length\":%zu,\"value\":%.9g", model->id,
                  index, length, real ? (double)number : (double)word);
}

static enum result set_from_memory(struct operand *operand, const struct memory *memory, size_t offset,
                                   size_t length) {
    if (!operand) return BAD_DATA;
    if (!memory) return UNEXPECTED_NULL;
    if (offset > memory->size || length > memory->size - offset) return refuse("a value outside of its memory");
    if (length != byte_count(operand)) return refuse("a value of %zu bytes for %zu", length, byte_count(operand));
    operand->value = memory->bytes + offset;
    return NO_ERROR;
}

API int ANeuralNetworksModel_setOperandValueFromMemory(struct model *model, int32_t index,
                                                       const struct memory *memory, size_t offset, size_t length) {
    enum result code =
        model->finished ? BAD_STATE : set_from_memory(operand_at(model, index), memory, offset, length);
    return record(code, "Model_setOperandValueFromMemory",
                  "\"model\":%u,\"index\":%d,\"memory\":%u,\"offset\":%zu,\"length\":%zu", model->id, index,
                  memory ? memory->id : 0, offset, length);
}

static enum result set_channels(struct operand *operand, const struct nn_channel_scales *channels) {
    if (!operand || operand->kind->code != TENSOR_QUANT8_SYMM_PER_CHANNEL) return BAD_DATA;
    if (channels->channel_dimension >= operand->rank ||
        channels->scale_count != operand->sizes[channels->channel_dimension])
        return refuse("%u channel scales at dimension %u", channels->scale_count, channels->channel_dimension);
    float *scales = calloc(channels->scale_count, sizeof *scales);
    if (!scales) return OUT_OF_MEMORY;
    memcpy(scales, channels->scales, channels->scale_count * sizeof *scales);
    free(operand->channel_scales);
    operand->channel_scales = scales;
    operand->channel_dimension = channels->channel_dimension;
    operand->channel_count = channels->scale_count;
    return NO_ERROR;
}

API int ANeuralNetworksModel_setOperandSymmPerChannelQuantParams(struct model *model, int32_t index,
                                                                const struct nn_channel_scales *channels) {
    enum result code = !channels ? UNEXPECTED_NULL : set_channels(operand_at(model, index), channels);
    return record(code, "Model_setOperandSymmPerChannelQuantParams",
                  "\"model\":%u,\"index\":%d,\"channel_dimension\":%u,\"scales\":%u", model->id, index,
                  channels ? channels->channel_dimension : 0, channels ? channels->scale_count : 0);
}

static bool indices_known(const struct model *model, uint32_t count, const uint32_t *indices) {
    for (uint32_t i = 0; i < count; i++)
        if (!operand_at(model, indices[i])) return false;
    return true;
}

/* Both lists in one allocation, the second behind the first. */
static uint32_t *copy_lists(uint32_t first, const uint32_t *firsts, uint32_t second, const uint32_t *seconds) {
    uint32_t *copy = calloc((size_t)first + second + 1, sizeof *copy);
    if (copy) memcpy(copy, firsts, first * sizeof *copy);
    if (copy) memcpy(copy + first, seconds, second * sizeof *copy);
    return copy;
}

static enum result add_operation(struct model *model, int32_t code, uint32_t input_count, const uint32_t *inputs,
                                 uint32_t output_count, const uint32_t *outputs) {
    const struct operation_kind *kind = find_operation(code);
    if (model->finished) return BAD_STATE;
    if (!kind) return refuse("operation %d is not known", code);
    if (kind->level > profile()->level) return refuse("%s needs level %d", kind->name, kind->level);
    if (!indices_known(model, input_count, inputs) || !indices_known(model, output_count, outputs))
        return refuse("%s names an operand that is not there", kind->name);
    for (size_t i = 0; i < sizeof BYTES_LATER / sizeof *BYTES_LATER && input_count; i++)
        if (BYTES_LATER[i].code == code && BYTES_LATER[i].level > profile()->level &&
            operand_at(model, inputs[0])->kind->bytes == 1)
            return refuse("%s of 8 bits needs level %d", kind->name, BYTES_LATER[i].level);
    struct operation *operations =
        grow(model->operations, model->operation_count, &model->operation_room, sizeof *model->operations);
    if (operations) model->operations = operations;
    uint32_t *lists = copy_lists(input_count, inputs, output_count, outputs);
    if (!operations || !lists) {
        free(lists);
        return OUT_OF_MEMORY;
    }
    operations[model->operation_count++] =
        (struct operation){kind, input_count, output_count, lists, lists + input_count};
    return NO_ERROR;
}

API int ANeuralNetworksModel_addOperation(struct model *model, int32_t code, uint32_t input_count,
                                          const uint32_t *inputs, uint32_t output_count, const uint32_t *outputs) {
    char in[LIST_BYTES], out[LIST_BYTES];
    const struct operation_kind *kind = find_operation(code);
    enum result result = add_operation(model, code, input_count, inputs, output_count, outputs);
    return record(result, "Model_addOperation",
                  "\"model\":%u,\"code\":%d,\"operation\":\"%s\",\"inputs\":[%s],\"outputs\":[%s]", model->id, code,
                  kind ? kind->name : "", list_numbers(in, sizeof in, inputs, input_count),
                  list_numbers(out, sizeof out, outputs, output_count));
}

static enum result identify(struct model *model, uint32_t input_count, const uint32_t *inputs, uint32_t output_count,
                            const uint32_t *outputs) {
    if (model->finished) return BAD_STATE;
    if (!indices_known(model, input_count, inputs) || !indices_known(model, output_count, outputs)) return BAD_DATA;
    free(model->inputs);
    model->inputs = copy_lists(input_count, inputs, output_count, outputs);
    if (!model->inputs) return OUT_OF_MEMORY;
    model->outputs = model->inputs + input_count;
    model->input_count = input_count;
    model->output_count = output_count;
    return NO_ERROR;
}

API int ANeuralNetworksModel_identifyInputsAndOutputs(struct model *model, uint32_t input_count,
                                                      const uint32_t *inputs, uint32_t output_count,
                                                      const uint32_t *outputs) {
    char in[LIST_BYTES], out[LIST_BYTES];
    enum result code = identify(model, input_count, inputs, output_count, outputs);
    return record(code, "Model_identifyInputsAndOutputs", "\"model\":%u,\"inputs\":[%s],\"outputs\":[%s]", model->id,
                  list_numbers(in, sizeof in, inputs, input_count),
                  list_numbers(out, sizeof out, outputs, output_count));
}

API int ANeuralNetworksModel_relaxComputationFloat32toFloat16(struct model *model, bool allow) {
    model->relaxed = allow;
    return record(model->finished ? BAD_STATE : NO_ERROR, "Model_relaxComputationFloat32toFloat16",
                  "\"model\":%u,\"allow\":%s", model->id, allow ? "true" : "false");
}

API int ANeuralNetworksModel_finish(struct model *model) {
    enum result code = model->finished ? BAD_STATE : meet(STAGE_MODEL, NULL);
    if (!code) model->finished = true;
    return record(code, "Model_finish", "\"model\":%u,\"operations\":%zu,\"operands\":%zu", model->id,
                  model->operation_count, model->operand_count);
}

API int ANeuralNetworksModel_getSupportedOperationsForDevices(const struct model *model,
                                                              const struct device *const *devices, uint32_t count,
                                                              bool *supported) {
    size_t refused = 0;
    if (!model->finished) return record(BAD_STATE, "Model_getSupportedOperationsForDevices", "\"model\":%u", model->id);
    for (size_t i = 0; i < model->operation_count; i++) {
        supported[i] = false;
        for (uint32_t d = 0; d < count; d++)
            supported[i] = supported[i] || device_accepts(devices[d], model, &model->operations[i]);
        refused += !supported[i];
    }
    return record(NO_ERROR, "Model_getSupportedOperationsForDevices",
                  "\"model\":%u,\"devices\":%u,\"refused\":%zu", model->id, count, refused);
}
