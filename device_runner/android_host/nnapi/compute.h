/* What the functions that compute operations work with: inputs as float arrays, whatever their operand type was.
 *
 * Quantized operands are dequantized when they are read and rounded when they are written; integers pass through
 * floats (Gather's indices and axes are below 2^24). Each function may take for granted that all listed inputs and
 * outputs are there; how many, and their sizes, it must check itself: `outputs` come from the caller's model. */
#ifndef COMPUTE_H
#define COMPUTE_H

#include "driver.h"

struct array {
    uint32_t rank, sizes[RANK_MAX];
    size_t count;
    float *values; /* NULL for an omitted operand */
    bool owned;
    int32_t type; /* operand type */
};

struct call {
    const struct operation_kind *kind;
    uint32_t input_count, output_count;
    struct array *inputs, *outputs;
};

#define OPERATION(code, name, level, function) enum result function(struct call *);
#include "operations.def"
#undef OPERATION

/* Whether an operation has at least so many inputs and exactly so many outputs; says which one has not. */
bool counts(const struct call *call, uint32_t inputs, uint32_t outputs);

/* The scalar at an input, or the fallback where the list of inputs is shorter. */
float real_at(const struct call *call, uint32_t index, float fallback);
int32_t whole_at(const struct call *call, uint32_t index, int32_t fallback);

/* BAD_DATA with a message that names the operation. */
enum result misfit(const struct call *call, const char *what);

/* Distance in elements between neighbours along each dimension, in C order. */
void strides_of(const struct array *array, size_t *strides);

bool same_sizes(const struct array *a, const struct array *b);
void activate(struct array *array, int32_t code);

/* A copy with permuted dimensions: dimension i of the copy is dimension order[i]. values is NULL without memory. */
struct array permuted(const struct array *array, const uint32_t *order);

/* A new array of rank 4, zero filled. */
struct array new_array4(uint32_t n, uint32_t h, uint32_t w, uint32_t c);

/* Images as NHWC, whatever the layout argument said: `view_nhwc` gives the array itself or a permuted copy. */
struct array view_nhwc(const struct array *array, bool nchw);
struct array out_nhwc(const struct array *output, bool nchw);
/* Give a result of out_nhwc back to the output, and free both views. */
enum result finish_nhwc(struct array *output, struct array *image, struct array *result, bool nchw);

/* Sum of products; eight lanes, so that compilers use vectors without reordering sums themselves. */
float dot(const float *a, const float *b, size_t count);

#endif
