/* Asks a library what it claims, and lets it save what it makes of a model: `ask REQUEST`.
 *
 * REQUEST is a file of NUL-ended strings in threes, carried out in order; settings stay until they are set again:
 *
 *   set library PATH      set provider NAME      set flags N       set level N      set log 0|1
 *   config KEY VALUE      a session config entry for all that follows
 *   save PATH -           where the next model is saved; an empty path saves none
 *   model ID PATH         make a session of the model, and answer
 *
 * Answers are JSON lines: {"begun": ID} before a model, so that whoever reads knows which one crashed, and behind it
 * {"id", "code", "message", "resident_bytes", "recorded", "subgraphs": [{"provider", "nodes": [[NAME, DOMAIN,
 * OPERATOR]...]}], "log"}. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../probe/json.h"
#include "../../probe/ort_table.h"
#include "../../probe/platform.h"

/* What stands in the table beyond the probe's calls. The claims came with version 24 of the C API (release 1.24). */
enum more_calls {
    SET_OPTIMIZED_PATH = 11,
    GET_ASSIGNMENT = 407,
    SUBGRAPH_PROVIDER = 408,
    SUBGRAPH_NODES = 409,
    NODE_NAME = 410,
    NODE_DOMAIN = 411,
    NODE_OPERATOR = 412,
};
enum { VERSION_WITH_CLAIMS = 24, CONFIGS_MAX = 64, LOG_BYTES = 8 << 20, LOG_VERBOSE = 0, LOG_WARNING = 2 };

typedef struct OrtEpAssignedSubgraph subgraph;
typedef struct OrtEpAssignedNode node;
typedef OrtStatus *(*set_path)(OrtSessionOptions *, const char *);
typedef OrtStatus *(*get_assignment)(const OrtSession *, const subgraph *const **, size_t *);
typedef OrtStatus *(*get_nodes)(const subgraph *, const node *const **, size_t *);
typedef OrtStatus *(*get_subgraph_text)(const subgraph *, const char **);
typedef OrtStatus *(*get_node_text)(const node *, const char **);
typedef OrtStatus *(*append_by_flags)(OrtSessionOptions *, uint32_t);

struct asker {
    void *library;
    const ort_function *ort;
    bool claims; /* the library can say what it claims */
    OrtEnv *env;
    const char *provider, *saved;
    long flags, level, log;
    const char *configs[CONFIGS_MAX][2];
    size_t config_count;
    char message[4096];
    int code;
    struct sink lines;
};

static bool ok(struct asker *asker, OrtStatus *status) {
    if (!status) return true;
    asker->code = (int)ORT(asker->ort, GetErrorCode)(status);
    snprintf(asker->message, sizeof asker->message, "%s", ORT(asker->ort, GetErrorMessage)(status));
    ORT(asker->ort, ReleaseStatus)(status);
    return false;
}

static ort_function symbol(void *library, const char *name) {
    void *address = dlsym(library, name);
    ort_function function = NULL;
    memcpy(&function, &address, sizeof function);
    return function;
}

/* Parts of the places whose lines are kept: the files of NNAPI and WebGPU, what ONNX Runtime leaves to the CPU or does
 * not ask about, and the list of what was assigned. The rest of a verbose log is long. */
static const char *const KEPT[] = {"nnapi", "op_builder", "helper.cc", "VerifyEachNodeIsAssignedToAnEp",
                                   "webgpu_execution_provider", "fallback_cpu_capability", "GetCapabilityForEP"};

static bool is_kept(const char *place) {
    for (size_t i = 0; place && i < sizeof KEPT / sizeof *KEPT; i++)
        if (strstr(place, KEPT[i])) return true;
    return false;
}

static void keep_line(void *context, unsigned severity, const char *category, const char *id, const char *place,
                      const char *text) {
    struct asker *asker = context;
    (void)severity, (void)category, (void)id;
    size_t before = asker->lines.used;
    if (!asker->log || asker->lines.full || !is_kept(place)) return;
    put_text(&asker->lines, before ? "," : "");
    put_string(&asker->lines, text);
    if (asker->lines.full) asker->lines.used = before;
}

static bool open_library(struct asker *asker, const char *path) {
    asker->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!asker->library) return fprintf(stderr, "%s\n", dlerror()), false;
    const struct ort_base *(*get_base)(void) =
        (const struct ort_base *(*)(void))symbol(asker->library, "OrtGetApiBase");
    if (!get_base) return fprintf(stderr, "no OrtGetApiBase\n"), false;
    long minor = strtol(strchr(get_base()->get_version(), '.') + 1, NULL, 10);
    asker->claims = minor >= VERSION_WITH_CLAIMS;
    asker->ort = get_base()->get_api(asker->claims ? VERSION_WITH_CLAIMS : ORT_VERSION_NEEDED);
    asker->lines = (struct sink){.bytes = malloc(LOG_BYTES), .capacity = LOG_BYTES};
    return asker->ort && asker->lines.bytes;
}

/* The environment is made at the first model, when it is known whether the log is wanted. */
static bool open_environment(struct asker *asker) {
    unsigned level = asker->log ? LOG_VERBOSE : LOG_WARNING;
    if (asker->env) return true;
    return ok(asker, ORT(asker->ort, CreateEnvWithCustomLogger)(keep_line, asker, level, "ask", &asker->env));
}

static bool append_provider(struct asker *asker, OrtSessionOptions *options) {
    if (!asker->provider || !strcmp(asker->provider, "cpu")) return true;
    ort_SessionOptionsAppendExecutionProvider generic = ORT(asker->ort, SessionOptionsAppendExecutionProvider);
    if (strcmp(asker->provider, "nnapi")) return ok(asker, generic(options, asker->provider, NULL, NULL, 0));
    append_by_flags append = (append_by_flags)symbol(asker->library, "OrtSessionOptionsAppendExecutionProvider_Nnapi");
    if (append) return ok(asker, append(options, (uint32_t)asker->flags));
    snprintf(asker->message, sizeof asker->message, "no NNAPI in this libonnxruntime");
    return false;
}

static bool set_options(struct asker *asker, OrtSessionOptions *options) {
    for (size_t i = 0; i < asker->config_count; i++)
        if (!ok(asker, ORT(asker->ort, AddSessionConfigEntry)(options, asker->configs[i][0], asker->configs[i][1])))
            return false;
    set_path save = (set_path)asker->ort[SET_OPTIMIZED_PATH];
    return ok(asker, ORT(asker->ort, SetIntraOpNumThreads)(options, 1)) &&
           ok(asker, ORT(asker->ort, SetSessionGraphOptimizationLevel)(options, (unsigned)asker->level)) &&
           (!asker->saved || !*asker->saved || ok(asker, save(options, asker->saved))) &&
           append_provider(asker, options);
}

static void put_node(struct asker *asker, const node *one) {
    static const enum more_calls CALLS[] = {NODE_NAME, NODE_DOMAIN, NODE_OPERATOR};
    struct sink sink = {.file = stdout};
    for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++) {
        const char *text = "";
        if (!ok(asker, ((get_node_text)asker->ort[CALLS[i]])(one, &text))) text = "";
        put_text(&sink, i ? "," : "[");
        put_string(&sink, text);
    }
    put_text(&sink, "]");
}

static void put_subgraph(struct asker *asker, const subgraph *one) {
    struct sink sink = {.file = stdout};
    const char *provider = "";
    const node *const *nodes = NULL;
    size_t count = 0;
    if (!ok(asker, ((get_subgraph_text)asker->ort[SUBGRAPH_PROVIDER])(one, &provider)) ||
        !ok(asker, ((get_nodes)asker->ort[SUBGRAPH_NODES])(one, &nodes, &count)))
        count = 0;
    put_text(&sink, "{\"provider\":");
    put_string(&sink, provider);
    put_text(&sink, ",\"nodes\":[");
    for (size_t i = 0; i < count; i++) {
        if (i) put_text(&sink, ",");
        put_node(asker, nodes[i]);
    }
    put_text(&sink, "]}");
}

static void put_subgraphs(struct asker *asker, const OrtSession *session) {
    struct sink sink = {.file = stdout};
    const subgraph *const *subgraphs = NULL;
    size_t count = 0;
    put_text(&sink, ",\"subgraphs\":[");
    if (session && asker->claims) ok(asker, ((get_assignment)asker->ort[GET_ASSIGNMENT])(session, &subgraphs, &count));
    for (size_t i = 0; i < count; i++) {
        if (i) put_text(&sink, ",");
        put_subgraph(asker, subgraphs[i]);
    }
    put_text(&sink, "]");
}

static void answer(struct asker *asker, const char *id, const OrtSession *session) {
    struct sink sink = {.file = stdout};
    put_text(&sink, "{\"id\":");
    put_string(&sink, id);
    put_count(&sink, "code", (uint64_t)asker->code);
    put_field(&sink, "message", asker->message);
    put_count(&sink, "resident_bytes", resident_bytes());
    put_text(&sink, asker->claims ? ",\"recorded\":true" : ",\"recorded\":false");
    put_subgraphs(asker, session);
    put_text(&sink, ",\"log\":[");
    put(&sink, asker->lines.bytes, asker->lines.used);
    put_text(&sink, "]}\n");
    fflush(stdout);
}

static void ask_model(struct asker *asker, const char *id, const char *path) {
    struct sink sink = {.file = stdout};
    OrtSessionOptions *options = NULL;
    OrtSession *session = NULL;
    asker->message[0] = 0;
    asker->code = 0;
    asker->lines.used = 0;
    asker->lines.full = false;
    put_text(&sink, "{\"begun\":");
    put_string(&sink, id);
    put_text(&sink, "}\n");
    fflush(stdout);
    bool made = open_environment(asker) && ok(asker, ORT(asker->ort, CreateSessionOptions)(&options)) &&
                set_options(asker, options) &&
                ok(asker, ORT(asker->ort, CreateSession)(asker->env, path, options, &session));
    answer(asker, id, made ? session : NULL);
    if (session) ORT(asker->ort, ReleaseSession)(session);
    if (options) ORT(asker->ort, ReleaseSessionOptions)(options);
}

static bool set(struct asker *asker, const char *name, const char *value) {
    long number = strtol(value, NULL, 10);
    if (!strcmp(name, "library")) return open_library(asker, value);
    if (!strcmp(name, "provider")) return asker->provider = value, true;
    if (!strcmp(name, "flags")) return asker->flags = number, true;
    if (!strcmp(name, "level")) return asker->level = number, true;
    if (!strcmp(name, "log")) return asker->log = number, true;
    return false;
}

static bool add_config(struct asker *asker, const char *key, const char *value) {
    if (asker->config_count == CONFIGS_MAX) return false;
    asker->configs[asker->config_count][0] = key;
    asker->configs[asker->config_count++][1] = value;
    return true;
}

static bool carry_out(struct asker *asker, const char *verb, const char *name, const char *value) {
    if (!strcmp(verb, "set")) return set(asker, name, value);
    if (!strcmp(verb, "config")) return add_config(asker, name, value);
    if (!strcmp(verb, "save")) return asker->saved = name, true;
    if (strcmp(verb, "model") || !asker->ort) return false;
    ask_model(asker, name, value);
    return true;
}

static char *read_request(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) return NULL;
    long size = ftell(file);
    char *bytes = size > 0 ? malloc((size_t)size) : NULL;
    rewind(file);
    *length = bytes ? fread(bytes, 1, (size_t)size, file) : 0;
    fclose(file);
    return *length && !bytes[*length - 1] ? bytes : NULL;
}

int main(int count, char **arguments) {
    size_t length = 0;
    static struct asker asker;
    char *bytes = count == 2 ? read_request(arguments[1], &length) : NULL;
    if (!bytes) return fputs("usage: ask REQUEST\n", stderr), 2;
    for (char *at = bytes; at < bytes + length;) {
        char *strings[3];
        for (int i = 0; i < 3; i++) {
            if (at >= bytes + length) return fputs("the request is cut off\n", stderr), 2;
            strings[i] = at;
            at += strlen(at) + 1;
        }
        if (!carry_out(&asker, strings[0], strings[1], strings[2]))
            return fprintf(stderr, "cannot carry out: %s %s\n", strings[0], strings[1]), 1;
    }
    return 0;
}
