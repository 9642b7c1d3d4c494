/* A bad driver: the custom operator Driver of the domain guard.test copies a float tensor, and fails as the environment says:
 * FAULTS has words such as nnapi:abort@open. RegisterDriver gives session options the operator of a provider. It calls ONNX
 * Runtime by places of the function table; the structure is OrtCustomOp of API version 8, as in tests/custom_ops/twice.c. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

enum { FLOAT = 1, REQUIRED = 0, RANK_MAX = 8, NAME_MAX_BYTES = 32, FAIL = 1 };

/* A provider's operator; the first member is what ONNX Runtime calls. */
struct driver {
    struct custom_op op;
    char name[NAME_MAX_BYTES];
};

struct kernel {
    const struct driver *driver;
    unsigned runs;
};

/* The kind of a provider's fault at a stage; "" for none. An empty stage stands for any. */
static const char *fault(const char *provider, const char *stage, char *kind) {
    char words[512];
    const char *given = getenv("FAULTS");
    snprintf(words, sizeof words, "%s", given ? given : "");
    for (char *rest = words, *word; (word = strtok_r(rest, ",", &rest));) {
        char *of = strchr(word, ':'), *at = strchr(word, '@');
        if (!of || !at) continue;
        *of = *at = 0;
        if (!strcmp(word, provider) && (!*stage || !strcmp(at + 1, stage))) {
            snprintf(kind, NAME_MAX_BYTES, "%s", of + 1);
            return kind;
        }
    }
    return "";
}

static void suffer(const char *provider, const char *stage) {
    char buffer[NAME_MAX_BYTES];
    const char *kind = fault(provider, stage, buffer);
    const struct {
        const char *name;
        int number;
    } signals[] = {{"abort", SIGABRT}, {"segv", SIGSEGV}, {"ill", SIGILL}, {"bus", SIGBUS}, {"fpe", SIGFPE}};
    for (unsigned place = 0; place < sizeof signals / sizeof *signals; place++)
        if (!strcmp(kind, signals[place].name)) {
            signal(signals[place].number, SIG_DFL);
            raise(signals[place].number);
        }
    if (!strcmp(kind, "exit")) _exit(7);
    if (!strcmp(kind, "kill")) kill(getpid(), SIGKILL);
    while (!strcmp(kind, "hang")) pause();
    while (!strcmp(kind, "spin")) continue;
}

/* Keeps the provider busy for the microseconds that TIMES names: nnapi:500. */
static void work(const char *provider) {
    const char *times = getenv("TIMES"), *at = times ? strstr(times, provider) : NULL;
    struct timespec now, end;
    if (!at || at[strlen(provider)] != ':') return;
    long microseconds = atol(at + strlen(provider) + 1);
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += microseconds % 1000000 * 1000;
    end.tv_sec += microseconds / 1000000 + end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec));
}

static void spoil(const char *provider, const float *from, float *to, size_t count) {
    char buffer[NAME_MAX_BYTES];
    const char *kind = fault(provider, "", buffer);
    memcpy(to, from, count * sizeof *to);
    if (!strcmp(kind, "nan")) to[count / 3] = NAN;
    if (!strcmp(kind, "inf")) to[count / 2] = INFINITY;
    if (!strcmp(kind, "zeros")) memset(to, 0, count * sizeof *to);
    if (!strcmp(kind, "half")) memset(to + count / 2, 0, (count - count / 2) * sizeof *to);
    for (size_t i = 0; i < count && !strcmp(kind, "permuted"); i++) to[i] = from[(i + 1) % count];
    for (size_t i = 0; i < count && !strcmp(kind, "reversed"); i++) to[i] = from[count - 1 - i];
}

static void *create(const struct custom_op *op, const function *api, const void *info) {
    struct kernel *kernel = calloc(1, sizeof *kernel);
    (void)api, (void)info;
    if (!kernel) abort();
    kernel->driver = (const struct driver *)op;
    suffer(kernel->driver->name, "open");
    return kernel;
}

static const char *name(const struct custom_op *op) { return (void)op, "Driver"; }
static const char *provider_of(const struct custom_op *op) { return (void)op, NULL; }
static unsigned type(const struct custom_op *op, size_t place) { return (void)op, (void)place, FLOAT; }
static size_t count_of(const struct custom_op *op) { return (void)op, 1; }
static unsigned kind_of(const struct custom_op *op, size_t place) { return (void)op, (void)place, REQUIRED; }

static void destroy(void *given) {
    struct kernel *kernel = given;
    suffer(kernel->driver->name, "close");
    free(kernel);
}

static void check(void *status) {
    if (status) abort();
}

static void compute(void *given, void *context) {
    struct kernel *kernel = given;
    const void *input = NULL;
    void *info = NULL, *output = NULL, *from = NULL, *to = NULL;
    size_t rank = 0, elements = 1;
    int64_t sizes[RANK_MAX];
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
    work(kernel->driver->name);
    suffer(kernel->driver->name, ++kernel->runs == 1 ? "first_run" : "run");
    spoil(kernel->driver->name, from, to, elements);
}

struct base {
    const function *(*api)(uint32_t version);
};

__attribute__((visibility("default"))) void *RegisterDriver(void *options, const struct base *base, const char *provider);

void *RegisterDriver(void *options, const struct base *base, const char *provider) {
    char buffer[NAME_MAX_BYTES];
    struct driver *driver = calloc(1, sizeof *driver); /* lives as long as its sessions, which is for good */
    const struct custom_op op = {8,    create,   name,    provider_of, type,    count_of,
                                 type, count_of, compute, destroy,     kind_of, kind_of};
    void *domain = NULL;
    if (!driver) abort();
    table = base->api(8);
    suffer(provider, "options");
    for (int at = 0; at < 2; at++)
        if (!strcmp(fault(provider, at ? "open" : "options", buffer), "refuse"))
            return CALL(0, void *, int, const char *)(FAIL, "no driver");
    snprintf(driver->name, sizeof driver->name, "%s", provider);
    memcpy(&driver->op, &op, sizeof op);
    void *status = CALL(26, void *, const char *, void **)("guard.test", &domain);
    if (!status) status = CALL(27, void *, void *, const struct custom_op *)(domain, &driver->op);
    return status ? status : CALL(28, void *, void *, void *)(options, domain);
}
