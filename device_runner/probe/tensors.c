#include "tensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checksum.h"

enum { STRINGS_BYTES = 16 << 20 }; /* most of an output's, with their NULs: device_runner/spec.py has it, too */

size_t element_bytes(unsigned type) {
    static const unsigned char BYTES[] = {
        [ELEMENT_FLOAT] = 4, [ELEMENT_UINT8] = 1,   [ELEMENT_INT8] = 1,   [ELEMENT_UINT16] = 2, [ELEMENT_INT16] = 2,
        [ELEMENT_INT32] = 4, [ELEMENT_INT64] = 8,   [ELEMENT_BOOL] = 1,   [ELEMENT_FLOAT16] = 2,
        [ELEMENT_DOUBLE] = 8, [ELEMENT_UINT32] = 4, [ELEMENT_UINT64] = 8, [ELEMENT_BFLOAT16] = 2,
    };
    return type < sizeof BYTES ? BYTES[type] : 0;
}

bool total_bytes(const struct shape *shape, size_t *bytes) {
    uint64_t total = element_bytes(shape->type);
    for (size_t i = 0; i < shape->rank; i++)
        if (__builtin_mul_overflow(total, (uint64_t)shape->sizes[i], &total)) return false;
    *bytes = (size_t)total;
    return total <= SIZE_MAX / 2;
}

/* splitmix64: a well-mixed sequence from any seed, the same on every platform. */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The half-precision number for k/1024 with 0 <= k < 1024: exact, since ten bits fit its fraction. */
static uint16_t half_of(unsigned k) {
    unsigned exponent = 15;
    if (!k) return 0;
    for (; k < 1024; k *= 2) exponent--;
    return (uint16_t)(exponent << 10 | (k - 1024));
}

static void put_element(unsigned char *at, unsigned type, uint64_t random) {
    float number = (float)(random >> 40) / 16777216.0f;
    double precise = (double)(random >> 11) / 9007199254740992.0;
    uint16_t half = half_of((unsigned)(random >> 54)), brain = 0;
    uint64_t integer = random & 1; /* 0 and 1 are valid as indices, ids and masks of nearly every model */
    unsigned char byte = (unsigned char)(random >> 32);
    memcpy(&brain, (const char *)&number + 2, 2);
    const void *source = &integer;
    if (type == ELEMENT_FLOAT) source = &number;
    if (type == ELEMENT_DOUBLE) source = &precise;
    if (type == ELEMENT_FLOAT16) source = &half;
    if (type == ELEMENT_BFLOAT16) source = &brain;
    if (type == ELEMENT_UINT8 || type == ELEMENT_INT8) source = &byte;
    memcpy(at, source, element_bytes(type));
}

/* Floats in [0, 1), bytes of any value, other integers and bools 0 or 1. */
static void fill_random(unsigned char *data, size_t bytes, unsigned type, uint64_t seed) {
    size_t size = element_bytes(type);
    for (size_t at = 0; at + size <= bytes; at += size) put_element(data + at, type, next_random(&seed));
}

static bool fill_from_file(struct probe *probe, const char *name, const char *path, void *data, size_t bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) return fail(probe->answer, NULL, 0, "input %s: %s: %s", name, path, strerror(errno));
    size_t got = fread(data, 1, bytes, file);
    bool more = fgetc(file) != EOF;
    fclose(file);
    return (got == bytes && !more) ||
           fail(probe->answer, NULL, 0, "input %s: %s has %s than the %zu bytes of its shape", name, path,
                more ? "more" : "less", bytes);
}

bool read_shape(struct probe *probe, const OrtTensorTypeAndShapeInfo *info, struct shape *shape) {
    const ort_function *ort = probe->ort;
    if (!ok(probe, ORT(ort, GetTensorElementType)(info, &shape->type))) return false;
    if (!ok(probe, ORT(ort, GetDimensionsCount)(info, &shape->rank))) return false;
    if (shape->rank > DIMENSIONS_MAX)
        return fail(probe->answer, NULL, 0, "a tensor of %zu dimensions; the probe has %d", shape->rank, DIMENSIONS_MAX);
    return ok(probe, ORT(ort, GetDimensions)(info, shape->sizes, shape->rank)) &&
           ok(probe, ORT(ort, GetSymbolicDimensions)(info, shape->names, shape->rank));
}

/* Give symbolic dimensions the sizes of the request. */
static bool fix_shape(struct probe *probe, const char *input, struct shape *shape) {
    for (size_t i = 0; i < shape->rank; i++) {
        const char *name = shape->names[i] ? shape->names[i] : "";
        const char *size = *name ? lookup(probe->request, "dimension", name) : NULL;
        if (shape->sizes[i] >= 0 || (size && parse_number(size, &shape->sizes[i]))) continue;
        return fail(probe->answer, NULL, 0, "input %s: dimension %zu (%s) is not fixed", input, i,
                    *name ? name : "unnamed");
    }
    return true;
}

/* The shape and file that the request gives for an input: the triple after its own is `shape`. */
static bool requested_shape(struct probe *probe, const char *const *input, struct shape *shape) {
    int64_t type = 0;
    const char *const *end = probe->request->strings + probe->request->count;
    bool follows = input + 6 <= end && !strcmp(input[3], "shape") && parse_number(input[4], &type);
    int rank = follows ? parse_sizes(input[5], shape->sizes) : -1;
    if (rank < 0) return fail(probe->answer, NULL, 0, "input %s: no valid shape follows it", input[1]);
    if ((unsigned)type != shape->type)
        return fail(probe->answer, NULL, 0, "input %s: the file has element type %d, the model wants %u", input[1],
                    (int)type, shape->type);
    shape->rank = (size_t)rank;
    return true;
}

static const char *const *requested_input(const struct request *request, const char *name) {
    const char *const *triple;
    for (size_t at = 0; (triple = next(request, "input", &at));)
        if (!strcmp(triple[1], name)) return triple;
    return NULL;
}

static bool wrap_input(struct probe *probe, struct input *input, const struct shape *shape, size_t bytes) {
    return ok(probe, ORT(probe->ort, CreateTensorWithDataAsOrtValue)(probe->memory, input->data, bytes, shape->sizes,
                                                                     shape->rank, shape->type, &input->value));
}

/* The strings of a file, each ended by a NUL, as many as the shape has: the first at its beginning. */
static const char **read_strings(struct probe *probe, struct input *input, const char *path, size_t count) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    off_t size = file < 0 ? -1 : lseek(file, 0, SEEK_END);
    if (file >= 0) close(file);
    if (size >= 0) input->data = allocate(probe, (size_t)size + 1, 1);
    bool done = input->data && fill_from_file(probe, input->name, path, input->data, (size_t)size);
    const char *at = input->data, *end = done ? at + size : at;
    const char **texts = done && count <= (size_t)size ? allocate(probe, count, sizeof *texts) : NULL;
    for (size_t i = 0; texts && i < count && at < end; i++) texts[i] = at, at += strlen(at) + 1;
    if (texts && at == end && (!count || texts[count - 1])) return texts;
    free(texts);
    fail(probe->answer, NULL, 0, "input %s: %s has not the %zu strings of its shape", input->name, path, count);
    return NULL;
}

/* ONNX Runtime copies the strings into a tensor of its own. */
static bool fill_strings(struct probe *probe, struct input *input, const struct shape *shape, const char *path) {
    size_t count = 1;
    for (size_t i = 0; i < shape->rank; i++)
        if (__builtin_mul_overflow(count, (size_t)shape->sizes[i], &count))
            return fail(probe->answer, "out_of_memory", 0, "input %s: no memory for its shape", input->name);
    const char **texts = read_strings(probe, input, path, count);
    bool done = texts &&
                ok(probe, ORT(probe->ort, CreateTensorAsOrtValue)(probe->allocator, shape->sizes, shape->rank,
                                                                  shape->type, &input->value)) &&
                ok(probe, ORT(probe->ort, FillStringTensor)(input->value, texts, count));
    free(texts);
    return done;
}

/* Memory for an input's elements, on a cache line; one byte more, since some allocators refuse 0. */
static bool fill_input(struct probe *probe, size_t index, struct shape *shape) {
    struct input *input = probe->inputs + index;
    const char *const *triple = requested_input(probe->request, input->name);
    size_t bytes = 0;
    if (triple && shape->type == ELEMENT_STRING)
        return requested_shape(probe, triple, shape) && fill_strings(probe, input, shape, triple[2]);
    if (!element_bytes(shape->type))
        return fail(probe->answer, NULL, 0, "input %s: element type %u cannot be random (strings and packed types)",
                    input->name, shape->type);
    if (!(triple ? requested_shape(probe, triple, shape) : fix_shape(probe, input->name, shape))) return false;
    if (!total_bytes(shape, &bytes) || posix_memalign(&input->data, 64, bytes + 1))
        return fail(probe->answer, "out_of_memory", 0, "input %s: no memory for its shape", input->name);
    input->bytes = bytes;
    if (triple && !fill_from_file(probe, input->name, triple[2], input->data, bytes)) return false;
    if (!triple) fill_random(input->data, bytes, shape->type, (uint64_t)probe->request->seed + index);
    return wrap_input(probe, input, shape, bytes);
}

static bool make_input(struct probe *probe, size_t index) {
    struct input *input = probe->inputs + index;
    OrtTypeInfo *type = NULL;
    const OrtTensorTypeAndShapeInfo *info = NULL;
    struct shape shape = {0};
    if (!ok(probe, ORT(probe->ort, SessionGetInputName)(probe->session, index, probe->allocator, &input->name)))
        return false;
    if (!ok(probe, ORT(probe->ort, SessionGetInputTypeInfo)(probe->session, index, &type))) return false;
    bool done = ok(probe, ORT(probe->ort, CastTypeInfoToTensorInfo)(type, &info));
    if (done && !info) done = fail(probe->answer, NULL, 0, "input %s is no tensor", input->name);
    done = done && read_shape(probe, info, &shape) && fill_input(probe, index, &shape);
    ORT(probe->ort, ReleaseTypeInfo)(type);
    probe->input_names[index] = input->name;
    probe->input_values[index] = input->value;
    return done;
}

bool declared_shape(struct probe *probe, size_t index, struct shape *shape) {
    OrtTypeInfo *type = NULL;
    const OrtTensorTypeAndShapeInfo *info = NULL;
    if (!ok(probe, ORT(probe->ort, SessionGetOutputTypeInfo)(probe->session, index, &type))) return false;
    bool done = ok(probe, ORT(probe->ort, CastTypeInfoToTensorInfo)(type, &info)) &&
                (!info || read_shape(probe, info, shape));
    ORT(probe->ort, ReleaseTypeInfo)(type);
    return done;
}

bool output_shape(struct probe *probe, size_t index, struct shape *shape) {
    OrtTensorTypeAndShapeInfo *info = NULL;
    bool done = ok(probe, ORT(probe->ort, GetTensorTypeAndShape)(probe->output_values[index], &info)) &&
                read_shape(probe, info, shape);
    if (info) ORT(probe->ort, ReleaseTensorTypeAndShapeInfo)(info);
    return done;
}

static bool make_output(struct probe *probe, size_t index) {
    struct output *output = probe->outputs + index;
    bool done =
        ok(probe, ORT(probe->ort, SessionGetOutputName)(probe->session, index, probe->allocator, &output->name));
    probe->output_names[index] = output->name;
    return done;
}

/* Every input of the request must be one of the model. */
static bool check_names(struct probe *probe) {
    const char *const *triple;
    for (size_t at = 0; (triple = next(probe->request, "input", &at));) {
        bool known = false;
        for (size_t i = 0; i < probe->input_count; i++) known |= !strcmp(probe->inputs[i].name, triple[1]);
        if (!known) return fail(probe->answer, NULL, 0, "the model has no input %s", triple[1]);
    }
    return true;
}

static bool make_arrays(struct probe *probe) {
    const ort_function *ort = probe->ort;
    if (!ok(probe, ORT(ort, SessionGetInputCount)(probe->session, &probe->input_count)) ||
        !ok(probe, ORT(ort, SessionGetOutputCount)(probe->session, &probe->output_count)))
        return false;
    probe->inputs = allocate(probe, probe->input_count, sizeof *probe->inputs);
    probe->outputs = allocate(probe, probe->output_count, sizeof *probe->outputs);
    probe->input_names = allocate(probe, probe->input_count, sizeof *probe->input_names);
    probe->output_names = allocate(probe, probe->output_count, sizeof *probe->output_names);
    probe->input_values = allocate(probe, probe->input_count, sizeof *probe->input_values);
    probe->output_values = allocate(probe, probe->output_count, sizeof *probe->output_values);
    return !probe->answer->failed;
}

bool make_inputs(struct probe *probe) {
    if (!ok(probe, ORT(probe->ort, GetAllocatorWithDefaultOptions)(&probe->allocator)) ||
        !ok(probe, ORT(probe->ort, CreateCpuMemoryInfo)(ORT_DEVICE_ALLOCATOR, ORT_DEFAULT_MEMORY, &probe->memory)) ||
        !make_arrays(probe))
        return false;
    for (size_t i = 0; i < probe->output_count; i++)
        if (!make_output(probe, i)) return false;
    for (size_t i = 0; i < probe->input_count; i++)
        if (!make_input(probe, i)) return false;
    return check_names(probe);
}

static bool write_file(struct probe *probe, const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    bool done = file && fwrite(data, 1, bytes, file) == bytes;
    if (file && fclose(file)) done = false;
    return done || fail(probe->answer, errno == ENOSPC ? "no_space" : NULL, 0, "%s: %s", path, strerror(errno));
}

void note_output(struct sink *sink, const char *name, const struct shape *shape, const char *path) {
    put_text(sink, sink->used ? ",{\"name\":" : "{\"name\":");
    put_string(sink, name);
    put_count(sink, "type", shape->type);
    put_count(sink, "crc32", shape->sum);
    put_field(sink, "file", path);
    put_key(sink, "shape", false);
    for (size_t i = 0; i < shape->rank; i++) {
        put_text(sink, i ? "," : "[");
        put_number(sink, shape->sizes[i]);
    }
    put_text(sink, shape->rank ? "]}" : "[]}");
}

/* The strings of an output, each ended by a NUL as those of inputs are; NULL where they are too many or have a NUL. */
static bool join_strings(struct probe *probe, const OrtValue *value, const struct shape *shape, char **joined,
                         size_t *bytes) {
    size_t count = 1, length = 0, used = 0;
    for (size_t i = 0; i < shape->rank; i++)
        if (__builtin_mul_overflow(count, (size_t)shape->sizes[i], &count)) return true;
    if (!ok(probe, ORT(probe->ort, GetStringTensorDataLength)(value, &length))) return false;
    if (count > STRINGS_BYTES || length > STRINGS_BYTES - count) return true;
    char *text = allocate(probe, length, 1), *into = allocate(probe, length + count, 1);
    size_t *starts = allocate(probe, count, sizeof *starts);
    bool done = text && into && starts &&
                (!count || ok(probe, ORT(probe->ort, GetStringTensorContent)(value, text, length, starts, count)));
    bool whole = done;
    for (size_t i = 0; whole && i < count; i++) {
        size_t size = (i + 1 < count ? starts[i + 1] : length) - starts[i];
        whole = !memchr(text + starts[i], 0, size);
        memcpy(into + used, text + starts[i], size);
        used += size + 1;
    }
    if (whole) *joined = into, *bytes = used;
    if (!whole) free(into);
    free(text);
    free(starts);
    return done;
}

/* One output into its file; what has no raw form (sequences, more than STRINGS_BYTES) is noted without a file. */
static bool write_output(struct probe *probe, size_t index, struct sink *sink) {
    const struct output *output = probe->outputs + index;
    struct shape shape = {0};
    char path[4096] = "";
    void *data = NULL;
    char *joined = NULL;
    size_t bytes = 0;
    if (!output->tensor) {
        note_output(sink, output->name, &shape, "");
        return true;
    }
    bool done = output_shape(probe, index, &shape);
    bool raw = done && total_bytes(&shape, &bytes) && element_bytes(shape.type);
    if (raw) done = ok(probe, ORT(probe->ort, GetTensorMutableData)(probe->output_values[index], &data));
    if (done && shape.type == ELEMENT_STRING)
        done = join_strings(probe, probe->output_values[index], &shape, &joined, &bytes), data = joined, raw = joined;
    if (done && raw) {
        snprintf(path, sizeof path, "%s%zu.raw", probe->request->outputs, index);
        done = write_file(probe, path, data, bytes);
        shape.sum = done ? checksum(0, data, bytes) : 0;
    }
    free(joined);
    note_output(sink, output->name, &shape, path);
    return done;
}

bool write_outputs(struct probe *probe) {
    struct sink sink = {.bytes = probe->answer->outputs, .capacity = TENSORS_BYTES};
    sink.used = strlen(probe->answer->outputs);
    if (!probe->request->outputs) return true;
    for (size_t i = 0; i < probe->output_count; i++)
        if (!probe->outputs[i].tracked && !write_output(probe, i, &sink)) return false;
    return !sink.full || fail(probe->answer, NULL, 0, "the model has too many outputs to list");
}
