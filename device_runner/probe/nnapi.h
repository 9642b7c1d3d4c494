/* Android's NNAPI, asked without ONNX Runtime: its level and its devices. Names, signatures and numbers are those of
 * the reference of the Neural Networks API. */
#ifndef NNAPI_H
#define NNAPI_H

#include "answer.h"
#include "json.h"

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

/* Open the system's NNAPI and note what it has; false where there is none. */
bool open_nnapi(struct nnapi *nnapi, struct nnapi_answer *answer);

/* The answer as a JSON object. */
void print_nnapi(struct sink *sink, const struct nnapi_answer *answer);

#endif
