/* The driver's own values: the profile, models, compilations, executions. */
#ifndef DRIVER_H
#define DRIVER_H

#include <stdatomic.h>
#include <stdlib.h>

#include "nnapi.h"

#define API __attribute__((visibility("default")))

enum limits { DEVICES_MAX = 16, CODES_MAX = 256, FAULTS_MAX = 32, REFUSALS_MAX = 256, RANK_MAX = 8, COPIED_BYTES = 128 };

/* What an operation code means. */
struct call;
struct operation_kind {
    int32_t code;
    const char *name;
    int32_t level;
    enum result (*compute)(struct call *);
};
const struct operation_kind *find_operation(int32_t code); /* NULL for codes that no one emits */

struct type_kind {
    int32_t code;
    const char *name;
    size_t bytes;
    bool tensor;
    int32_t level;
};
const struct type_kind *find_type(int32_t code); /* NULL for a type that no one emits */

/* An operation with operands of exactly these types, a bit for each code. */
struct refusal {
    int32_t operation;
    uint32_t types;
};

/* A device of the profile. An empty set of codes accepts all. */
struct device {
    char name[64], version[64];
    int32_t type;
    int64_t level;
    bool operations_limited, types_limited;
    bool operations[CODES_MAX], types[CODES_MAX];
    size_t refusal_count;
    struct refusal refusals[REFUSALS_MAX];
};

enum stage { STAGE_MODEL, STAGE_COMPILE, STAGE_RUN, STAGE_WAIT, STAGE_COUNT };
enum fault_kind {
    FAULT_FAIL,
    FAULT_HANG,
    FAULT_LOST,
    FAULT_CRASH,
    FAULT_ABORT,
    FAULT_ILLEGAL,
    FAULT_NAN, /* from here on outputs are wrong, of the stage run */
    FAULT_ZEROS,
    FAULT_NOISE,
    FAULT_PERMUTED,
    FAULT_SLOW
};

/* From call number `first` (1 is the first) of its stage on, `count` times; 0: for ever. */
struct fault {
    enum stage stage;
    enum fault_kind kind;
    int32_t code;
    uint64_t first, count;
    int64_t delay_ns; /* of a slow call */
};

struct profile {
    int64_t level; /* the runtime's feature level: below API level 31 that is the API level */
    size_t device_count, fault_count;
    struct device devices[DEVICES_MAX];
    struct fault faults[FAULTS_MAX];
    int64_t delays_ns[STAGE_COUNT];
};

/* The profile of this process, read at the first call. */
const struct profile *profile(void);

/* Delay and faults of a stage: NO_ERROR, or what the call must return. Hangs and crashes do not return. The fault that is
 * due goes to `met` where that is not NULL. */
enum result meet(enum stage stage, const struct fault **met);

/* One JSON line {"call": NAME, MEMBERS, "result": CODE} in the record; `members` is a format with its own quotes. */
enum result record(enum result code, const char *call, const char *members, ...)
    __attribute__((format(printf, 3, 4)));

/* Numbers as a JSON list without brackets, into `text`; what does not fit is left out. */
const char *list_numbers(char *text, size_t size, const uint32_t *numbers, size_t count);

/* Name of the program or library that an address of code lies in. */
const char *caller_at(const void *address);
#define CALLER caller_at(__builtin_return_address(0))

/* A message on stderr for whoever debugs, and BAD_DATA. */
enum result refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct memory {
    uint32_t id;
    size_t size;
    unsigned char *bytes;
};

struct operand {
    const struct type_kind *kind;
    uint32_t rank, sizes[RANK_MAX];
    float scale;
    int32_t zero_point;
    uint32_t channel_dimension, channel_count;
    float *channel_scales;
    const void *value; /* NULL: not constant */
    unsigned char copied[COPIED_BYTES];
    bool omitted;
};

struct operation {
    const struct operation_kind *kind;
    uint32_t input_count, output_count;
    uint32_t *inputs, *outputs;
};

struct model {
    uint32_t id;
    bool finished, relaxed;
    size_t operand_count, operation_count, operand_room, operation_room;
    struct operand **operands; /* each allocated alone: values point into them */
    struct operation *operations;
    uint32_t input_count, output_count;
    uint32_t *inputs, *outputs;
};

struct compilation {
    uint32_t id;
    const struct model *model;
    bool finished;
    size_t device_count; /* 0: created without devices */
    const struct device *devices[DEVICES_MAX];
};

struct buffer {
    const void *input;
    void *output;
    size_t length;
};

struct execution {
    uint32_t id;
    const struct compilation *compilation;
    bool started;
    struct buffer *inputs, *outputs;
};

uint32_t next_id(void);
size_t element_count(const struct operand *operand);
size_t byte_count(const struct operand *operand);
bool device_accepts(const struct device *device, const struct model *model, const struct operation *operation);

/* Compute all operations of a model in their order; buffers are those of its inputs and outputs. */
enum result interpret(const struct model *model, const struct buffer *inputs, const struct buffer *outputs);

/* Makes outputs wrong as a fault says; nothing where it is NULL or of another kind. */
void spoil(const struct fault *fault, const struct model *model, const struct buffer *outputs);

#endif
