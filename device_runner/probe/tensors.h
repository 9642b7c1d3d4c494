/* Inputs from raw files or from a seed, outputs into raw files. */
#ifndef TENSORS_H
#define TENSORS_H

#include "json.h"
#include "session.h"

/* What is known of a tensor; `sum` is the checksum of its elements in a file. */
struct shape {
    unsigned type;
    uint32_t sum;
    size_t rank;
    int64_t sizes[DIMENSIONS_MAX];
    const char *names[DIMENSIONS_MAX]; /* of symbolic dimensions; the type info owns them */
};

/* Bytes of an element of a type; 0 for those without a fixed size. */
size_t element_bytes(unsigned type);

/* Bytes of the whole tensor; false when they do not fit a size_t. */
bool total_bytes(const struct shape *shape, size_t *bytes);

/* What ONNX Runtime says of a tensor. */
bool read_shape(struct probe *probe, const OrtTensorTypeAndShapeInfo *info, struct shape *shape);

/* What the model declares of an output; of rank 0 where it is no tensor or declares no shape. */
bool declared_shape(struct probe *probe, size_t index, struct shape *shape);

/* What the last inference gave as an output, a tensor. */
bool output_shape(struct probe *probe, size_t index, struct shape *shape);

/* The values of all inputs, and room for the outputs. */
bool make_inputs(struct probe *probe);

/* An output as a JSON object behind those noted before; `path` is "" where it has no raw form. */
void note_output(struct sink *sink, const char *name, const struct shape *shape, const char *path);

/* Every output into its file, where the request names a place for them. */
bool write_outputs(struct probe *probe);

#endif
