/* Compilations, executions and events. startCompute computes at once and hands back a finished event. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "driver.h"

static int create(const struct model *model, const struct device *const *devices, uint32_t count,
                  struct compilation **compilation, const char *call) {
    struct compilation *made = calloc(1, sizeof *made);
    if (!made) return OUT_OF_MEMORY;
    *made = (struct compilation){.id = next_id(), .model = model, .device_count = count};
    bool ready = model->finished && count <= DEVICES_MAX;
    for (uint32_t i = 0; ready && i < count; i++) made->devices[i] = devices[i];
    if (ready) *compilation = made;
    int code = record(ready ? NO_ERROR : BAD_STATE, call, "\"compilation\":%u,\"model\":%u,\"devices\":%u", made->id,
                      model->id, count);
    if (!ready) free(made);
    return code;
}

API int ANeuralNetworksCompilation_create(const struct model *model, struct compilation **compilation) {
    return create(model, NULL, 0, compilation, "Compilation_create");
}

API int ANeuralNetworksCompilation_createForDevices(const struct model *model, const struct device *const *devices,
                                                    uint32_t count, struct compilation **compilation) {
    return create(model, devices, count, compilation, "Compilation_createForDevices");
}

API void ANeuralNetworksCompilation_free(struct compilation *compilation) {
    if (!compilation) return;
    record(NO_ERROR, "Compilation_free", "\"compilation\":%u", compilation->id);
    free(compilation);
}

API int ANeuralNetworksCompilation_setPreference(struct compilation *compilation, int32_t preference) {
    return record(NO_ERROR, "Compilation_setPreference", "\"compilation\":%u,\"preference\":%d", compilation->id,
                  preference);
}

/* With devices of its own a compilation has no CPU to fall back to. */
static enum result check_devices(const struct compilation *compilation) {
    const struct model *model = compilation->model;
    for (size_t i = 0; compilation->device_count && i < model->operation_count; i++) {
        bool accepted = false;
        for (size_t d = 0; d < compilation->device_count; d++)
            accepted = accepted || device_accepts(compilation->devices[d], model, &model->operations[i]);
        if (!accepted) return refuse("no chosen device takes %s", model->operations[i].kind->name);
    }
    return NO_ERROR;
}

API int ANeuralNetworksCompilation_finish(struct compilation *compilation) {
    enum result code = meet(STAGE_COMPILE, NULL);
    if (!code) code = check_devices(compilation);
    compilation->finished = !code;
    return record(code, "Compilation_finish", "\"compilation\":%u", compilation->id);
}

API int ANeuralNetworksExecution_create(const struct compilation *compilation, struct execution **execution) {
    const struct model *model = compilation->model;
    struct execution *made = calloc(1, sizeof *made);
    struct buffer *buffers = calloc((size_t)model->input_count + model->output_count + 1, sizeof *buffers);
    if (!made || !buffers || !compilation->finished) {
        free(made);
        free(buffers);
        return record(BAD_STATE, "Execution_create", "\"compilation\":%u", compilation->id);
    }
    *made = (struct execution){next_id(), compilation, false, buffers, buffers + model->input_count};
    *execution = made;
    return record(NO_ERROR, "Execution_create", "\"execution\":%u,\"compilation\":%u", made->id, compilation->id);
}

API void ANeuralNetworksExecution_free(struct execution *execution) {
    if (!execution) return;
    record(NO_ERROR, "Execution_free", "\"execution\":%u", execution->id);
    free(execution->inputs);
    free(execution);
}

/* The sizes that the caller gives must be those of the model: the provider claims static shapes only. */
static enum result check_buffer(const struct operand *operand, const struct nn_operand_type *type, size_t length) {
    for (uint32_t i = 0; type && i < type->dimension_count && i < operand->rank; i++)
        if (type->dimensions[i] && type->dimensions[i] != operand->sizes[i])
            return refuse("other sizes than the model's");
    size_t wanted = byte_count(operand);
    return length == wanted ? NO_ERROR : refuse("a buffer of %zu bytes for %zu", length, wanted);
}

static enum result set_buffer(struct execution *execution, bool output, int32_t index,
                              const struct nn_operand_type *type, void *bytes, size_t length) {
    const struct model *model = execution->compilation->model;
    uint32_t count = output ? model->output_count : model->input_count;
    if (execution->started) return BAD_STATE;
    if (index < 0 || (uint32_t)index >= count) return BAD_DATA;
    if (!bytes && length) return UNEXPECTED_NULL;
    const struct operand *operand = model->operands[(output ? model->outputs : model->inputs)[index]];
    enum result code = check_buffer(operand, type, length);
    if (code) return code;
    struct buffer *buffer = (output ? execution->outputs : execution->inputs) + index;
    *buffer = (struct buffer){.input = output ? NULL : bytes, .output = output ? bytes : NULL, .length = length};
    return NO_ERROR;
}

static int set(struct execution *execution, bool output, int32_t index, const struct nn_operand_type *type,
               const void *bytes, size_t length, const char *call) {
    enum result code = set_buffer(execution, output, index, type, (void *)(uintptr_t)bytes, length);
    return record(code, call, "\"execution\":%u,\"index\":%d,\"length\":%zu", execution->id, index, length);
}

API int ANeuralNetworksExecution_setInput(struct execution *execution, int32_t index,
                                          const struct nn_operand_type *type, const void *bytes, size_t length) {
    return set(execution, false, index, type, bytes, length, "Execution_setInput");
}

API int ANeuralNetworksExecution_setOutput(struct execution *execution, int32_t index,
                                           const struct nn_operand_type *type, void *bytes, size_t length) {
    return set(execution, true, index, type, bytes, length, "Execution_setOutput");
}

static const void *inside(const struct memory *memory, size_t offset, size_t length) {
    return memory && offset <= memory->size && length <= memory->size - offset ? memory->bytes + offset : NULL;
}

API int ANeuralNetworksExecution_setInputFromMemory(struct execution *execution, int32_t index,
                                                    const struct nn_operand_type *type, const struct memory *memory,
                                                    size_t offset, size_t length) {
    return set(execution, false, index, type, inside(memory, offset, length), length, "Execution_setInputFromMemory");
}

API int ANeuralNetworksExecution_setOutputFromMemory(struct execution *execution, int32_t index,
                                                     const struct nn_operand_type *type, const struct memory *memory,
                                                     size_t offset, size_t length) {
    return set(execution, true, index, type, inside(memory, offset, length), length, "Execution_setOutputFromMemory");
}

API int ANeuralNetworksExecution_startCompute(struct execution *execution, struct execution **event) {
    const struct fault *met = NULL;
    enum result code = execution->started ? BAD_STATE : meet(STAGE_RUN, &met);
    execution->started = true;
    if (!code) code = interpret(execution->compilation->model, execution->inputs, execution->outputs);
    if (!code) spoil(met, execution->compilation->model, execution->outputs);
    *event = code ? NULL : execution;
    return record(code, "Execution_startCompute", "\"execution\":%u", execution->id);
}

/* An event is its execution, which outlives it. */
API int ANeuralNetworksEvent_wait(struct execution *event) {
    return record(event ? meet(STAGE_WAIT, NULL) : UNEXPECTED_NULL, "Event_wait", "\"execution\":%u", event ? event->id : 0);
}

API void ANeuralNetworksEvent_free(struct execution *event) {
    if (event) record(NO_ERROR, "Event_free", "\"execution\":%u", event->id);
}

static const struct operand *output_operand(const struct execution *execution, int32_t index) {
    const struct model *model = execution->compilation->model;
    return index >= 0 && (uint32_t)index < model->output_count ? model->operands[model->outputs[index]] : NULL;
}

API int ANeuralNetworksExecution_getOutputOperandRank(struct execution *execution, int32_t index, uint32_t *rank) {
    const struct operand *operand = output_operand(execution, index);
    if (operand) *rank = operand->rank;
    return record(operand ? NO_ERROR : BAD_DATA, "Execution_getOutputOperandRank", "\"execution\":%u,\"index\":%d",
                  execution->id, index);
}

API int ANeuralNetworksExecution_getOutputOperandDimensions(struct execution *execution, int32_t index,
                                                            uint32_t *sizes) {
    const struct operand *operand = output_operand(execution, index);
    for (uint32_t i = 0; operand && i < operand->rank; i++) sizes[i] = operand->sizes[i];
    return record(operand ? NO_ERROR : BAD_DATA, "Execution_getOutputOperandDimensions",
                  "\"execution\":%u,\"index\":%d", execution->id, index);
}
