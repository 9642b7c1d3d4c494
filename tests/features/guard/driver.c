/* A libonnxruntime with bad drivers for programs that are no JVM: the real one (REAL_ORT), whose sessions fail as FAULTS
 * says, in the words of ai.onnxruntime.Fault. NNAPI and WebGPU are the CPU here. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ort_table.h"

void die(const char *kind);

enum { CREATE_STATUS = 0, COUNT_OF_ELEMENTS = 64, COPIED = ORT_INDEX_SessionOptionsAppendExecutionProvider + 1 };

typedef OrtStatus *(*create_status)(unsigned, const char *);
typedef OrtStatus *(*count_of_elements)(const OrtTensorTypeAndShapeInfo *, size_t *);

static const ort_function *real;
static ort_function table[COPIED];
static char provider[64] = "cpu";
static int runs;

/* Whether a word of FAULTS is about this provider; its kind and stage. */
static int next_fault(const char **at, char *kind, char *stage) {
    char named[64];
    while (*at && **at) {
        int got = sscanf(*at, "%63[^:]:%31[^@]@%31[^,]", named, kind, stage);
        const char *comma = strchr(*at, ',');
        *at = comma ? comma + 1 : "";
        if (got == 3 && !strcmp(named, provider)) return 1;
    }
    return 0;
}

static OrtStatus *suffer(const char *where) {
    char kind[32], stage[32];
    for (const char *at = getenv("FAULTS"); next_fault(&at, kind, stage);) {
        if (strcmp(stage, where)) continue;
        if (!strcmp(kind, "refuse") || !strcmp(kind, "java"))
            return ((create_status)real[CREATE_STATUS])(1, "no driver");
        die(kind);
    }
    return NULL;
}

static void spoil(OrtValue *value) {
    OrtTensorTypeAndShapeInfo *info = NULL;
    char kind[32], stage[32];
    float *values = NULL;
    size_t count = 0;
    ORT(real, GetTensorTypeAndShape)(value, &info);
    ((count_of_elements)real[COUNT_OF_ELEMENTS])(info, &count);
    ORT(real, GetTensorMutableData)(value, (void **)&values);
    for (const char *at = getenv("FAULTS"); next_fault(&at, kind, stage);) {
        if (!strcmp(kind, "nan")) values[count / 3] = NAN;
        if (!strcmp(kind, "inf")) values[count / 2] = INFINITY;
        if (!strcmp(kind, "zeros")) memset(values, 0, count * sizeof *values);
        if (!strcmp(kind, "half")) memset(values + count / 2, 0, (count - count / 2) * sizeof *values);
        if (!strcmp(kind, "permuted")) {
            float first = values[0];
            memmove(values, values + 1, (count - 1) * sizeof *values);
            values[count - 1] = first;
        }
        for (size_t i = 0; !strcmp(kind, "reversed") && i < count / 2; i++) {
            float kept = values[i];
            values[i] = values[count - 1 - i], values[count - 1 - i] = kept;
        }
    }
}

static OrtStatus *append(OrtSessionOptions *options, const char *name, const char *const *keys,
                         const char *const *values, size_t count) {
    (void)options, (void)keys, (void)values, (void)count;
    for (size_t i = 0; i < sizeof provider - 1 && name[i]; i++) provider[i] = (char)(name[i] | 0x20), provider[i + 1] = 0;
    return suffer("options");
}

__attribute__((visibility("default"))) OrtStatus *OrtSessionOptionsAppendExecutionProvider_Nnapi(OrtSessionOptions *options,
                                                                                               uint32_t flags) {
    (void)flags;
    return append(options, "nnapi", NULL, NULL, 0);
}

static OrtStatus *create(const OrtEnv *env, const char *path, const OrtSessionOptions *options, OrtSession **session) {
    OrtStatus *status = suffer("open");
    return status ? status : ORT(real, CreateSession)(env, path, options, session);
}

static OrtStatus *create_from(const OrtEnv *env, const void *bytes, size_t size, const OrtSessionOptions *options,
                              OrtSession **session) {
    OrtStatus *status = suffer("open");
    return status ? status : ORT(real, CreateSessionFromArray)(env, bytes, size, options, session);
}

static OrtStatus *run(OrtSession *session, const OrtRunOptions *options, const char *const *names,
                      const OrtValue *const *inputs, size_t count, const char *const *output_names, size_t output_count,
                      OrtValue **outputs) {
    OrtStatus *status = suffer(runs++ ? "run" : "first_run");
    if (!status) status = ORT(real, Run)(session, options, names, inputs, count, output_names, output_count, outputs);
    if (!status) spoil(outputs[0]);
    return status;
}

static void release(OrtSession *session) {
    OrtStatus *status = suffer("close");
    if (status) ORT(real, ReleaseStatus)(status);
    ORT(real, ReleaseSession)(session);
}

static const ort_function *get_api(uint32_t version) {
    void *library = dlopen(getenv("REAL_ORT"), RTLD_NOW | RTLD_LOCAL);
    const struct ort_base *(*get_base)(void) = (const struct ort_base *(*)(void))dlsym(library, "OrtGetApiBase");
    real = get_base()->get_api(version);
    memcpy(table, real, sizeof table);
    table[ORT_INDEX_CreateSession] = (ort_function)create;
    table[ORT_INDEX_CreateSessionFromArray] = (ort_function)create_from;
    table[ORT_INDEX_Run] = (ort_function)run;
    table[ORT_INDEX_ReleaseSession] = (ort_function)release;
    table[ORT_INDEX_SessionOptionsAppendExecutionProvider] = (ort_function)append;
    return table;
}

static const char *get_version(void) { return "1.29.0"; }

__attribute__((visibility("default"))) const struct ort_base *OrtGetApiBase(void) {
    static const struct ort_base base = {get_api, get_version};
    return &base;
}
