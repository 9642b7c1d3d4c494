#include "session.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "callers.h"
#include "platform.h"
#include "plugin.h"
#include "symbol.h"
#include "threads.h"

enum { FORMAT_END = 8 }; /* of a FlatBuffer's identifier, which begins at byte 4 */

bool ok_or(struct probe *probe, OrtStatus *status, const char *kind) {
    if (!status) return true;
    int code = (int)ORT(probe->ort, GetErrorCode)(status);
    fail(probe->answer, kind, code, "%s", ORT(probe->ort, GetErrorMessage)(status));
    ORT(probe->ort, ReleaseStatus)(status);
    return false;
}

bool ok(struct probe *probe, OrtStatus *status) { return ok_or(probe, status, NULL); }

void *allocate(struct probe *probe, size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) fail(probe->answer, "out_of_memory", 0, "no memory for %zu times %zu bytes", count, size);
    return memory;
}

#if defined(PROBE_APP)
const struct ort_base *OrtGetApiBase(void); /* which the app links */
#endif

bool open_library(struct probe *probe) {
    struct answer *answer = probe->answer;
    uint64_t start = now_ns();
#if defined(PROBE_APP)
    probe->library = dlopen(NULL, RTLD_NOW);
    const struct ort_base *(*get_base)(void) = OrtGetApiBase;
#else
    probe->library = dlopen(probe->request->library, RTLD_NOW | RTLD_LOCAL);
    if (!probe->library) return fail(answer, NULL, 0, "%s", dlerror());
    const struct ort_base *(*get_base)(void) =
        (const struct ort_base *(*)(void))symbol(probe->library, "OrtGetApiBase");
#endif
    if (!get_base) return fail(answer, "wrong_library", 0, "%s has no OrtGetApiBase", probe->request->library);
    const struct ort_base *base = get_base();
    snprintf(answer->ort_version, sizeof answer->ort_version, "%s", base->get_version());
    bool newer = probe->request->plugin || probe->request->capture || probe->request->device_tensors;
    unsigned version = newer ? ORT_VERSION_OF_PLUGINS : ORT_VERSION_NEEDED;
    probe->ort = base->get_api(version);
    if (!probe->ort && newer)
        return fail(answer, "wrong_library", 0, "ONNX Runtime %s cannot %s: it has no API of version %u",
                    answer->ort_version, probe->request->plugin ? "load plugins" : "bind device tensors", version);
    if (!probe->ort)
        return fail(answer, "wrong_library", 0, "ONNX Runtime %s has no API version %u", answer->ort_version, version);
    answer->open_ns = now_ns() - start;
    return true;
}

/* ONNX Runtime's log; it may call from any of its threads. */
static void log_message(void *context, unsigned severity, const char *category, const char *id, const char *place,
                        const char *message) {
    struct probe *probe = context;
    (void)id, (void)place;
    pthread_mutex_lock(&probe->log_lock);
    add_log(&probe->answer->log, severity, category, message);
    pthread_mutex_unlock(&probe->log_lock);
}

static bool list_providers(struct probe *probe) {
    char **names = NULL;
    int count = 0;
    size_t used = 0;
    char *list = probe->answer->providers;
    if (!ok(probe, ORT(probe->ort, GetAvailableProviders)(&names, &count))) return false;
    for (int i = 0; i < count && used + strlen(names[i]) + 2 < LIST_BYTES; i++) {
        memcpy(list + used, names[i], strlen(names[i]) + 1);
        used += strlen(names[i]) + 1;
    }
    return ok(probe, ORT(probe->ort, ReleaseAvailableProviders)(names, count));
}

/* An environment whose threads serve all sessions. */
static bool create_shared(struct probe *probe, unsigned level) {
    const ort_function *ort = probe->ort;
    OrtThreadingOptions *threads = NULL;
    bool done = ok(probe, ORT(ort, CreateThreadingOptions)(&threads)) &&
                ok(probe, ORT(ort, SetGlobalIntraOpNumThreads)(threads, (int)probe->request->intra_threads)) &&
                ok(probe, ORT(ort, SetGlobalInterOpNumThreads)(threads, (int)probe->request->inter_threads)) &&
                make_threads(probe, threads) &&
                ok(probe, ORT(ort, CreateEnvWithCustomLoggerAndGlobalThreadPools)(log_message, probe, level, "probe",
                                                                                 threads, &probe->env));
    if (threads) ORT(ort, ReleaseThreadingOptions)(threads);
    return done;
}

static bool create_plain(struct probe *probe, unsigned level) {
    return ok(probe, ORT(probe->ort, CreateEnvWithCustomLogger)(log_message, probe, level, "probe", &probe->env));
}

bool create_environment(struct probe *probe) {
    unsigned level = (unsigned)probe->request->log_level;
    return plan_threads(probe) &&
           (probe->request->global_threads ? create_shared(probe, level) : create_plain(probe, level)) &&
           share_environment(probe) && ok(probe, ORT(probe->ort, DisableTelemetryEvents)(probe->env)) && list_providers(probe);
}

/* ONNX Runtime opens the libraries; they stay open until the process ends. */
static bool register_custom_ops(struct probe *probe) {
    const char *const *triple;
    void *handle = NULL;
    for (size_t at = 0; (triple = next(probe->request, "custom_ops", &at));)
        if (!ok_or(probe, ORT(probe->ort, RegisterCustomOpsLibrary)(probe->options, triple[1], &handle), "wrong_library"))
            return false;
    return true;
}

/* Config entries and symbolic dimensions. */
static bool add_entries(struct probe *probe) {
    const char *const *triple;
    int64_t size = 0;
    for (size_t at = 0; (triple = next(probe->request, "config", &at));)
        if (!ok(probe, ORT(probe->ort, AddSessionConfigEntry)(probe->options, triple[1], triple[2]))) return false;
    for (size_t at = 0; (triple = next(probe->request, "dimension", &at));) {
        if (!parse_number(triple[2], &size))
            return fail(probe->answer, NULL, 0, "the size of dimension %s is no number: %s", triple[1], triple[2]);
        if (!ok(probe, ORT(probe->ort, AddFreeDimensionOverrideByName)(probe->options, triple[1], size))) return false;
    }
    return true;
}

static bool set_memory(struct probe *probe) {
    const ort_function *ort = probe->ort;
    OrtSessionOptions *options = probe->options;
    bool arena = probe->request->arena, pattern = probe->request->pattern;
    return ok(probe, arena ? ORT(ort, EnableCpuMemArena)(options) : ORT(ort, DisableCpuMemArena)(options)) &&
           ok(probe, pattern ? ORT(ort, EnableMemPattern)(options) : ORT(ort, DisableMemPattern)(options));
}

bool set_options(struct probe *probe) {
    const struct request *request = probe->request;
    const ort_function *ort = probe->ort;
    if (!ok(probe, ORT(ort, CreateSessionOptions)(&probe->options))) return false;
    OrtSessionOptions *options = probe->options;
    return ok(probe, ORT(ort, SetIntraOpNumThreads)(options, (int)request->intra_threads)) &&
           ok(probe, ORT(ort, SetInterOpNumThreads)(options, (int)request->inter_threads)) &&
           ok(probe, ORT(ort, SetSessionExecutionMode)(options, (unsigned)request->parallel)) &&
           ok(probe, ORT(ort, SetSessionGraphOptimizationLevel)(options, (unsigned)request->level)) &&
           (!request->profile || ok(probe, ORT(ort, EnableProfiling)(options, request->profile))) &&
           (request->global_threads ? ok(probe, ORT(ort, DisablePerSessionThreads)(options)) : make_threads(probe, NULL)) &&
           (!request->shared_arena ||
            ok(probe, ORT(ort, AddSessionConfigEntry)(options, "session.use_env_allocators", "1"))) &&
           set_memory(probe) && add_entries(probe) && register_custom_ops(probe);
}

bool collect_options(struct probe *probe, struct provider_options *options) {
    const struct request *request = probe->request;
    options->count = 0;
    options->keys = allocate(probe, 2 * count_of(request, "option"), sizeof *options->keys);
    if (!options->keys) return false;
    options->values = options->keys + count_of(request, "option");
    const char *const *triple;
    for (size_t at = 0; (triple = next(request, "option", &at)); options->count++) {
        options->keys[options->count] = triple[1];
        options->values[options->count] = triple[2];
    }
    return true;
}

static bool append_generic(struct probe *probe) {
    struct provider_options options;
    if (!collect_options(probe, &options)) return false;
    bool done =
        ok(probe, ORT(probe->ort, SessionOptionsAppendExecutionProvider)(
                      probe->options, probe->request->provider, options.keys, options.values, options.count));
    free(options.keys);
    return done;
}

/* The C functions of NNAPI and CoreML that stand beside the table. */
typedef OrtStatus *(*append_by_flags)(OrtSessionOptions *, uint32_t);

/* CoreML by options came with 1.21; before that, and where the library was built without, by its own function. */
static bool append_coreml(struct probe *probe) {
    append_by_flags append = (append_by_flags)symbol(probe->library, "OrtSessionOptionsAppendExecutionProvider_CoreML");
    if (append && !count_of(probe->request, "option"))
        return ok(probe, append(probe->options, (uint32_t)probe->request->flags));
    return append_generic(probe);
}

/* Some builds of ONNX Runtime call a null pointer where the phone has no libneuralnetworks.so, so look first. */
static bool append_nnapi(struct probe *probe) {
    append_by_flags append = (append_by_flags)symbol(probe->library, "OrtSessionOptionsAppendExecutionProvider_Nnapi");
    if (!append) return fail(probe->answer, "provider_missing", 0, "no NNAPI in this libonnxruntime");
    if (!dlopen("libneuralnetworks.so", RTLD_NOW | RTLD_LOCAL))
        return fail(probe->answer, "provider_missing", 0, "this system has no NNAPI: %s", dlerror());
    return ok(probe, append(probe->options, (uint32_t)probe->request->flags));
}

/* These two take their options by functions of their own. */
#define APPEND(NAME) \
    static bool append_##NAME(struct probe *probe) { \
        const ort_function *ort = probe->ort; \
        struct provider_options options; \
        Ort##NAME##ProviderOptionsV2 *taken = NULL; \
        if (!collect_options(probe, &options)) return false; \
        bool done = ok(probe, ORT(ort, Create##NAME##ProviderOptions)(&taken)) && \
                    ok(probe, ORT(ort, Update##NAME##ProviderOptions)(taken, options.keys, options.values, \
                                                                      options.count)) && \
                    ok(probe, ORT(ort, SessionOptionsAppendExecutionProvider_##NAME##_V2)(probe->options, taken)); \
        if (taken) ORT(ort, Release##NAME##ProviderOptions)(taken); \
        free(options.keys); \
        return done; \
    }
APPEND(CUDA)
APPEND(TensorRT)

bool append_provider(struct probe *probe) {
    const char *name = probe->request->provider;
    if (probe->request->plugin) return append_plugin(probe);
    if (!strcmp(name, "cpu")) return true;
    if (!strcmp(name, "nnapi")) return append_nnapi(probe);
    if (!strcmp(name, "cuda")) return append_CUDA(probe);
    if (!strcmp(name, "tensorrt")) return append_TensorRT(probe);
    return strcmp(name, "CoreML") ? append_generic(probe) : append_coreml(probe);
}

/* The bytes of an ORT format file, mapped until the process ends: the session reads them where they lie. NULL for any
 * other file, which is left to ONNX Runtime. */
static const void *map_model(const char *path, size_t *size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NULL;
    off_t end = lseek(file, 0, SEEK_END);
    void *bytes = MAP_FAILED;
    if (end > FORMAT_END) {
        *size = (size_t)end;
        bytes = mmap(NULL, *size, PROT_READ, MAP_SHARED, file, 0);
    }
    close(file);
    if (bytes == MAP_FAILED) return NULL;
    if (!memcmp((const char *)bytes + FORMAT_END - 4, "ORTM", 4)) return bytes;
    munmap(bytes, *size);
    return NULL;
}

static OrtStatus *create_session(struct probe *probe) {
    const struct request *request = probe->request;
    const char *directly = lookup(request, "config", "session.use_ort_model_bytes_directly");
    size_t size = 0;
    const void *bytes = directly && !strcmp(directly, "1") ? map_model(request->model, &size) : NULL;
    if (bytes)
        return ORT(probe->ort, CreateSessionFromArray)(probe->env, bytes, size, probe->options, &probe->session);
    return ORT(probe->ort, CreateSession)(probe->env, request->model, probe->options, &probe->session);
}

bool load_model(struct probe *probe) {
    struct answer *answer = probe->answer;
    answer->memory_before_load = resident_bytes(), probe->private_before = private_bytes();
    uint64_t start = now_ns();
    bool done = ok(probe, create_session(probe));
    answer->load_ns = now_ns() - start;
    answer->memory_after_load = resident_bytes(), probe->private_after = private_bytes();
    return done;
}
