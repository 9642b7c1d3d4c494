/* NNAPI's own numbers: result codes, operand types, structures that a caller passes. Source: Android's public headers
 * and the reference of the Neural Networks API. */
#ifndef NNAPI_H
#define NNAPI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum result {
    NO_ERROR = 0,
    OUT_OF_MEMORY = 1,
    UNEXPECTED_NULL = 3,
    BAD_DATA = 4,
    OP_FAILED = 5,
    BAD_STATE = 6,
    UNMAPPABLE = 7,
    OUTPUT_INSUFFICIENT_SIZE = 8,
    UNAVAILABLE_DEVICE = 9,
    DEAD_OBJECT = 14,
};

enum operand_type {
#define TYPE(code, name, bytes, tensor, level) name = code,
#include "types.def"
#undef TYPE
};

enum activation { FUSED_NONE = 0, FUSED_RELU = 1, FUSED_RELU1 = 2, FUSED_RELU6 = 3 };
enum padding_code { PADDING_SAME = 1, PADDING_VALID = 2 };
enum device_type { DEVICE_OTHER = 1, DEVICE_CPU = 2, DEVICE_GPU = 3, DEVICE_ACCELERATOR = 4 };

/* ANeuralNetworksOperandType */
struct nn_operand_type {
    int32_t type;
    uint32_t dimension_count;
    const uint32_t *dimensions;
    float scale;
    int32_t zero_point;
};

/* ANeuralNetworksSymmPerChannelQuantParams */
struct nn_channel_scales {
    uint32_t channel_dimension;
    uint32_t scale_count;
    const float *scales;
};

#endif
