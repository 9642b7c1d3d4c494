/* A library of custom operators: Twice of the domain test.ops doubles a float tensor. It calls ONNX Runtime by places
 * of the function table; the structure is OrtCustomOp of API version 8. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef void (*function)(void);
#define CALL(place, result, ...) ((result(*)(__VA_ARGS__))table[place])

static const function *table;

struct custom_op {
    uint32_t version;
    void *(*create)(const struct custom_op *, const function *, const void *);
    const char *(*name)(const struct custom_op *);
    const char *(*provider)(const struct custom_op *);
    unsigned (*input_type)(const struct custom_op *, size_t);
    size_t (*input_count)(const struct custom_op *);
    unsigned (*output_type)(const struct custom_op *, size_t);
    size_t (*output_count)(const struct custom_op *);
    void (*compute)(void *, void *);
    void (*destroy)(void *);
    unsigned (*input_kind)(const struct custom_op *, size_t);
    unsigned (*output_kind)(const struct custom_op *, size_t);
};

enum { FLOAT = 1, REQUIRED = 0, RANK_MAX = 8 };

static void *create(const struct custom_op *op, const function *api, const void *info) {
    static int kernel;
    (void)op, (void)api, (void)info;
    return &kernel;
}

static const char *name(const struct custom_op *op) { return (void)op, "Twice"; }
static const char *provider(const struct custom_op *op) { return (void)op, NULL; }
static unsigned type(const struct custom_op *op, size_t place) { return (void)op, (void)place, FLOAT; }
static size_t count(const struct custom_op *op) { return (void)op, 1; }
static unsigned kind(const struct custom_op *op, size_t place) { return (void)op, (void)place, REQUIRED; }
static void destroy(void *kernel) { (void)kernel; }

static void check(void *status) {
    if (status) abort();
}

static void compute(void *kernel, void *context) {
    const void *input = NULL;
    void *info = NULL, *output = NULL, *from = NULL, *to = NULL;
    size_t rank = 0, elements = 1;
    int64_t sizes[RANK_MAX];
    (void)kernel;
    check(CALL(90, void *, const void *, size_t, const void **)(context, 0, &input));
    check(CALL(65, void *, const void *, void **)(input, &info));
    check(CALL(61, void *, const void *, size_t *)(info, &rank));
    if (rank > RANK_MAX) abort();
    check(CALL(62, void *, const void *, int64_t *, size_t)(info, sizes, rank));
    CALL(99, void, void *)(info);
    check(CALL(91, void *, void *, size_t, const int64_t *, size_t, void **)(context, 0, sizes, rank, &output));
    check(CALL(51, void *, const void *, void **)(input, &from));
    check(CALL(51, void *, void *, void **)(output, &to));
    for (size_t i = 0; i < rank; i++) elements *= (size_t)sizes[i];
    for (size_t i = 0; i < elements; i++) ((float *)to)[i] = 2 * ((const float *)from)[i];
}

static const struct custom_op TWICE = {8,     create,  name,    provider, type, count,
                                       type,  count,   compute, destroy,  kind, kind};

struct base {
    const function *(*api)(uint32_t version);
};

__attribute__((visibility("default"))) void *RegisterCustomOps(void *options, const struct base *base);

void *RegisterCustomOps(void *options, const struct base *base) {
    void *domain = NULL;
    table = base->api(8);
    void *status = CALL(26, void *, const char *, void **)("test.ops", &domain);
    if (!status) status = CALL(27, void *, void *, const struct custom_op *)(domain, &TWICE);
    return status ? status : CALL(28, void *, void *, void *)(options, domain);
}
