#include "bind.h"

#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "tensors.h"

enum { CPU_MEMORY = 0 }; /* OrtMemoryInfoDeviceType_CPU */

/* The tensor to bind in the place of `value`, of its type and shape: in the memory that the session wants there, or
 * NULL for `value` itself where that is the CPU's. */
static bool place(struct probe *probe, const OrtMemoryInfo *memory, const OrtValue *value, OrtValue **placed) {
    const ort_function *ort = probe->ort;
    struct bound *bound = &probe->bound;
    OrtTensorTypeAndShapeInfo *info = NULL;
    struct shape shape = {0};
    unsigned device = CPU_MEMORY;
    ORT(ort, MemoryInfoGetDeviceType)(memory, &device);
    if (device == CPU_MEMORY) return true;
    bool done = (bound->allocator || ok(probe, ORT(ort, CreateAllocator)(probe->session, memory, &bound->allocator))) &&
                ok(probe, ORT(ort, GetTensorTypeAndShape)(value, &info)) && read_shape(probe, info, &shape) &&
                ok(probe, ORT(ort, CreateTensorAsOrtValue)(bound->allocator, shape.sizes, shape.rank, shape.type, placed));
    if (info) ORT(ort, ReleaseTensorTypeAndShapeInfo)(info);
    return done;
}

static bool bind_inputs(struct probe *probe, const OrtMemoryInfo **memories) {
    const ort_function *ort = probe->ort;
    OrtValue **placed = probe->bound.inputs;
    if (!ok(probe, ORT(ort, SessionGetMemoryInfoForInputs)(probe->session, memories, probe->input_count))) return false;
    for (size_t i = 0; i < probe->input_count; i++)
        if (!place(probe, memories[i], probe->input_values[i], &placed[i]) ||
            !ok(probe, ORT(ort, BindInput)(probe->bound.binding, probe->input_names[i],
                                           placed[i] ? placed[i] : probe->input_values[i])))
            return false;
    return true;
}

/* What is compared later must come from the inferences that are measured. */
static bool clear_output(struct probe *probe, size_t index) {
    struct shape shape = {0};
    size_t bytes = 0;
    void *data = NULL;
    if (!output_shape(probe, index, &shape) || !total_bytes(&shape, &bytes) ||
        !ok(probe, ORT(probe->ort, GetTensorMutableData)(probe->output_values[index], &data)))
        return false;
    memset(data, 0, bytes);
    return true;
}

static bool bind_outputs(struct probe *probe, const OrtMemoryInfo **memories) {
    const ort_function *ort = probe->ort;
    OrtValue **placed = probe->bound.outputs;
    if (!ok(probe, ORT(ort, SessionGetMemoryInfoForOutputs)(probe->session, memories, probe->output_count))) return false;
    for (size_t i = 0; i < probe->output_count; i++) {
        if (!probe->outputs[i].tensor)
            return fail(probe->answer, "bad_options", 0, "output %s is no tensor: what is bound on a device is",
                        probe->outputs[i].name);
        probe->outputs[i].reused = true; /* its shape stays */
        if (!clear_output(probe, i) || !place(probe, memories[i], probe->output_values[i], &placed[i]) ||
            !ok(probe, ORT(ort, BindOutput)(probe->bound.binding, probe->output_names[i],
                                            placed[i] ? placed[i] : probe->output_values[i])))
            return false;
    }
    return true;
}

static OrtStatus *copy(struct probe *probe, const OrtValue *from, OrtValue *to) {
    return from && to ? ORT(probe->ort, CopyTensors)(probe->env, &from, &to, NULL, 1) : NULL;
}

/* What waits for the device, and inputs and outputs that stay there. */
static bool settle(struct probe *probe) {
    struct bound *bound = &probe->bound;
    OrtAllocator *const allocators[] = {bound->allocator, probe->allocator};
    if (!bound->allocator)
        return !probe->request->device_tensors ||
               fail(probe->answer, "bad_options", 0, "no device tensors: the session has all inputs and outputs in the CPU's "
                    "memory");
    for (size_t i = 0; i < 2; i++)
        if (!ok(probe, ORT(probe->ort, CreateTensorAsOrtValue)(allocators[i], (const int64_t[]){1}, 1, ELEMENT_FLOAT,
                                                               &bound->mark[i])))
            return false;
    for (size_t i = 0; i < probe->input_count; i++) {
        probe->inputs[i].stays = probe->request->device_tensors;
        if (!ok(probe, copy(probe, probe->input_values[i], bound->inputs[i]))) return false;
    }
    for (size_t i = 0; i < probe->output_count; i++) probe->outputs[i].stays = probe->request->device_tensors;
    return true;
}

bool bind_tensors(struct probe *probe) {
    struct bound *bound = &probe->bound;
    size_t in = probe->input_count, out = probe->output_count;
    if (!probe->request->capture && !probe->request->device_tensors) return true;
    const OrtMemoryInfo **memories = allocate(probe, in + out, sizeof *memories);
    bound->inputs = allocate(probe, in, sizeof *bound->inputs);
    bound->outputs = allocate(probe, out, sizeof *bound->outputs);
    bool done = memories && bound->inputs && bound->outputs &&
                ok(probe, ORT(probe->ort, CreateIoBinding)(probe->session, &bound->binding)) &&
                bind_inputs(probe, memories) && bind_outputs(probe, memories) && settle(probe);
    free(memories);
    return done;
}

OrtStatus *run_uncaptured(struct probe *probe) {
    const ort_function *ort = probe->ort;
    OrtRunOptions *options = NULL;
    OrtStatus *status = ORT(ort, CreateRunOptions)(&options);
    if (!status) status = ORT(ort, AddRunConfigEntry)(options, "gpu_graph_id", "-1");
    if (!status)
        status = ORT(ort, Run)(probe->session, options, probe->input_names, probe->input_values, probe->input_count,
                               probe->output_names, probe->output_count, probe->output_values);
    if (options) ORT(ort, ReleaseRunOptions)(options);
    return status;
}

OrtStatus *run_bound(struct probe *probe) {
    const struct bound *bound = &probe->bound;
    bool read = false;
    OrtStatus *status = NULL;
    for (size_t i = 0; !status && i < probe->input_count; i++)
        if (!probe->inputs[i].stays) status = copy(probe, probe->input_values[i], bound->inputs[i]);
    if (!status) status = ORT(probe->ort, RunWithBinding)(probe->session, NULL, bound->binding);
    for (size_t i = 0; !status && i < probe->output_count; i++) {
        if (probe->outputs[i].stays || !bound->outputs[i]) continue;
        status = copy(probe, bound->outputs[i], probe->output_values[i]);
        read = true;
    }
    if (!status && !read) status = copy(probe, bound->mark[0], bound->mark[1]); /* after all that the device has to do */
    return status;
}

OrtStatus *pass_on(struct probe *probe, size_t output, size_t input) {
    const ort_function *ort = probe->ort;
    const struct bound *bound = &probe->bound;
    OrtValue **given = &bound->outputs[output], **taken = &bound->inputs[input], *left = *taken;
    if (probe->request->capture) return copy(probe, *given, *taken); /* a replay is of these very buffers */
    *taken = *given;
    *given = left;
    OrtStatus *status = ORT(ort, BindInput)(bound->binding, probe->input_names[input],
                                            *taken ? *taken : probe->input_values[input]);
    return status ? status : ORT(ort, BindOutput)(bound->binding, probe->output_names[output],
                                                  *given ? *given : probe->output_values[output]);
}

bool fetch_bound(struct probe *probe) {
    for (size_t i = 0; probe->bound.binding && i < probe->output_count; i++)
        if (!ok(probe, copy(probe, probe->bound.outputs[i], probe->output_values[i]))) return false;
    return true;
}

void release_bound(struct probe *probe) {
    struct bound *bound = &probe->bound;
    if (bound->binding) ORT(probe->ort, ReleaseIoBinding)(bound->binding);
    for (size_t i = 0; bound->inputs && i < probe->input_count; i++)
        if (bound->inputs[i]) ORT(probe->ort, ReleaseValue)(bound->inputs[i]);
    for (size_t i = 0; bound->outputs && i < probe->output_count; i++)
        if (bound->outputs[i]) ORT(probe->ort, ReleaseValue)(bound->outputs[i]);
    for (size_t i = 0; i < 2; i++)
        if (bound->mark[i]) ORT(probe->ort, ReleaseValue)(bound->mark[i]);
    if (bound->allocator) ORT(probe->ort, ReleaseAllocator)(bound->allocator);
    free(bound->inputs);
    free(bound->outputs);
}
