/* What to do, from a file of NUL-ended strings in threes: verb, name, value. No quoting, so nothing to escape from.
 *
 *   set NAME VALUE         one of SETTINGS in request.c
 *   option KEY VALUE       a provider option
 *   config KEY VALUE       a session config entry
 *   dimension NAME SIZE    the size of a symbolic dimension
 *   input NAME FILE        an input in a raw file, followed by
 *   shape TYPE SIZES       its ONNX element type and its sizes with commas between
 *   question NAME ""       a model of one operation to ask NNAPI about, followed by its operands in the order of the
 *                          operation's arguments, and the operation:
 *   scale BITS ZERO        how the next operand is quantized: the bits of a float, and the zero point as 32 bits
 *   operand TYPE SIZES     NNAPI's number of the type
 *   value "" HEX           the last operand is a constant of these bytes
 *   channels PLACE BITS    the last operand has these scales along the dimension at that place
 *   operation CODE COUNT   NNAPI's number of the operation, whose results are the last COUNT operands
 *   state OUTPUT INPUT     of a stream: the output of a step is the input of the next
 *   sequence NAME FILE     of a stream: an input's elements of all steps, one after the other
 *   track NAME ""          of a stream: an output whose file has the elements of all steps, one after the other
 *   beside MODEL ""        another model, with a session and a caller of its own while the callers call
 *   custom_ops LIBRARY ""  a library of custom operators, registered before the model is loaded
 *   check crc32 NUMBER     last of all: the checksum of every byte before it
 */
#ifndef REQUEST_H
#define REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "answer.h"

enum { REQUEST_BYTES = 16 * 1024 * 1024, DIMENSIONS_MAX = 64 };

struct request {
    const char *mode, *library, *model, *provider, *outputs, *labelled, *profile;
    const char *thread_cores, *thread_nice; /* of pool threads: numbers from 0 with commas, or "big"; a number */
    const char *plugin, *plugin_name; /* the library of a plugin provider, and the name to register it by */
    int64_t device_type; /* of the plugin's device: OrtHardwareDeviceType, -1 for any */
    int64_t flags, intra_threads, inter_threads, parallel, level, arena, pattern, log_level;
    int64_t cold, sustain_ns, seed, warmup, min_runs, min_ns, max_ns, timeout_ms, watch_stdin;
    int64_t callers, own_sessions, shared_arena, global_threads, concurrent_ns, steps;
    int64_t capture; /* the session captures its graph, so that inputs and outputs are bound */
    int64_t device_tensors; /* they are bound, and stay on the device */
    int64_t data_limit; /* bytes of private memory that the process may have, 0 for any */
    size_t count; /* of the strings */
    const char **strings;
    char *bytes;
};

/* A whole number not below 0, nothing else around it. */
bool parse_number(const char *text, int64_t *number);

/* Sizes with commas between; an empty text is a scalar. The count of them, or -1. */
int parse_sizes(const char *text, int64_t *sizes);

/* The next triple of this verb from `*at` on, or NULL; `*at` moves behind it. */
const char *const *next(const struct request *request, const char *verb, size_t *at);

/* The value of the triple with this verb and name, or NULL. */
const char *lookup(const struct request *request, const char *verb, const char *name);

/* How many triples have this verb. */
size_t count_of(const struct request *request, const char *verb);

/* Read a request over its defaults; false with the failure noted. What it names belongs to it until it is released. */
bool read_request(struct request *request, struct answer *answer, const char *path);
void release_request(struct request *request);

#endif
