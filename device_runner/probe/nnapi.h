/* Android's NNAPI, asked without ONNX Runtime: its level and its devices. Names, signatures and numbers are those of
 * the reference of the Neural Networks API. */
#ifndef NNAPI_H
#define NNAPI_H

#include "answer.h"
#include "json.h"
#include "symbol.h"

typedef struct nn_device nn_device;
typedef struct nn_model nn_model;

/* ANeuralNetworksOperandType */
struct nn_operand {
    int32_t type;
    uint32_t rank;
    const uint32_t *sizes;
    float scale;
    int32_t zero_point;
};

/* ANeuralNetworksSymmPerChannelQuantParams */
struct nn_channels {
    uint32_t dimension, count;
    const float *scales;
};

/* X(name without prefix, result, parameters). A phone has each from its API level on: those of models 27, of devices
 * 29, the runtime's level 31. */
#define NNAPI_CALLS(X)                                                                                               \
    X(_getRuntimeFeatureLevel, int64_t, (void))                                                                      \
    X(_getDeviceCount, int, (uint32_t *))                                                                            \
    X(_getDevice, int, (uint32_t, nn_device **))                                                                     \
    X(Device_getName, int, (const nn_device *, const char **))                                                       \
    X(Device_getVersion, int, (const nn_device *, const char **))                                                    \
    X(Device_getType, int, (const nn_device *, int32_t *))                                                           \
    X(Device_getFeatureLevel, int, (const nn_device *, int64_t *))                                                   \
    X(Model_create, int, (nn_model **))                                                                              \
    X(Model_free, void, (nn_model *))                                                                                \
    X(Model_addOperand, int, (nn_model *, const struct nn_operand *))                                                \
    X(Model_setOperandValue, int, (nn_model *, int32_t, const void *, size_t))                                       \
    X(Model_setOperandSymmPerChannelQuantParams, int, (nn_model *, int32_t, const struct nn_channels *))             \
    X(Model_addOperation, int, (nn_model *, int32_t, uint32_t, const uint32_t *, uint32_t, const uint32_t *))        \
    X(Model_identifyInputsAndOutputs, int, (nn_model *, uint32_t, const uint32_t *, uint32_t, const uint32_t *))     \
    X(Model_finish, int, (nn_model *))                                                                               \
    X(Model_getSupportedOperationsForDevices, int, (const nn_model *, const nn_device *const *, uint32_t, bool *))

struct nnapi {
#define MEMBER(name, result, parameters) result(*name) parameters;
    NNAPI_CALLS(MEMBER)
#undef MEMBER
    nn_device *devices[NNAPI_DEVICES_MAX]; /* in the order of the answer's; NULL where one cannot be asked */
};

/* Find the functions in an open libneuralnetworks.so; NULL stays where the phone is too old for one. */
static void find_nnapi_calls(struct nnapi *nnapi, void *library) {
    static const char *const NAMES[] = {
#define NAME(name, result, parameters) "ANeuralNetworks" #name,
        NNAPI_CALLS(NAME)
#undef NAME
    };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        any_function function = symbol(library, NAMES[i]);
        memcpy((char *)nnapi + i * sizeof function, &function, sizeof function);
    }
}

static void list_device(struct nnapi *nnapi, uint32_t index, struct nnapi_device *to) {
    const char *name = NULL, *version = NULL;
    nn_device *device = NULL;
    if (nnapi->_getDevice(index, &device)) return;
    if (!nnapi->Device_getName(device, &name) && name) snprintf(to->name, sizeof to->name, "%s", name);
    if (!nnapi->Device_getVersion(device, &version) && version)
        snprintf(to->version, sizeof to->version, "%s", version);
    if (nnapi->Device_getType(device, &to->type)) to->type = 0;
    if (nnapi->Device_getFeatureLevel(device, &to->level)) to->level = 0;
    nnapi->devices[index] = device;
}

/* Open the system's NNAPI and note what it has; false where there is none. */
static bool open_nnapi(struct nnapi *nnapi, struct nnapi_answer *answer) {
    void *library = dlopen("libneuralnetworks.so", RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
    find_nnapi_calls(nnapi, library);
    answer->found = true;
    if (nnapi->_getRuntimeFeatureLevel) answer->level = nnapi->_getRuntimeFeatureLevel();
    uint32_t count = 0;
    if (!nnapi->_getDeviceCount || !nnapi->_getDevice || !nnapi->Device_getName || !nnapi->Device_getVersion ||
        !nnapi->Device_getType || !nnapi->Device_getFeatureLevel || nnapi->_getDeviceCount(&count))
        return true;
    for (uint32_t i = 0; i < count && i < NNAPI_DEVICES_MAX; i++) {
        list_device(nnapi, i, &answer->devices[i]);
        answer->count = i + 1;
    }
    return true;
}

static void print_nnapi(struct sink *sink, const struct nnapi_answer *answer) {
    put_text(sink, answer->found ? "{\"found\":true" : "{\"found\":false");
    put_count(sink, "level", (uint64_t)answer->level);
    put_text(sink, ",\"devices\":[");
    for (uint32_t i = 0; i < answer->count; i++) {
        const struct nnapi_device *device = &answer->devices[i];
        put_text(sink, i ? ",{\"name\":" : "{\"name\":");
        put_string(sink, device->name);
        put_field(sink, "version", device->version);
        put_count(sink, "type", (uint64_t)device->type);
        put_count(sink, "level", (uint64_t)device->level);
        put_field(sink, "answers", device->answers);
        put_text(sink, "}");
    }
    put_text(sink, "]}");
}

#endif
