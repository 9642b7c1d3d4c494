/* A plugin that passes everything on to another one, named by PROXIED_PLUGIN, and writes the kernels that it registers
 * to the file KERNELS_FILE, one JSON object a line. It gives the plugin a copy of ONNX Runtime's two tables of functions
 * in which those that describe a kernel are ours. Places in the tables: onnxruntime_ep_c_api.h of release 1.29; tables
 * only ever grow. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*function)(void);
typedef void *status;
typedef struct {
    const function *(*GetApi)(uint32_t);
    const char *(*GetVersionString)(void);
} api_base;

enum { CREATE_STATUS = 0, RELEASE_STATUS = 93, GET_EP_API = 317, API_SIZE = 480 };
enum { OPERATOR = 23, DOMAIN = 24, SINCE = 25, INPUT = 27, OUTPUT = 28, TYPES = 29, BUILD = 32, DATA_TYPE = 40, EP_SIZE = 96 };
enum { MOST_TYPES = 27 };

static const api_base *real_base;
static api_base base;
static const function *real_api, *real_ep;
static function api[API_SIZE], ep[EP_SIZE];
static const void *types[MOST_TYPES];
static char operator_name[256], domain[256], constraints[16384], places[4096];
static int first_version, last_version;
static void *plugin;
static FILE *out;

#define REAL(index, ...) ((status(*)(__VA_ARGS__))real_ep[index])

static void add(char *text, size_t size, const char *more) {
    strncat(text, more, size - strlen(text) - 1);
}

static status set_operator(void *builder, const char *name) {
    snprintf(operator_name, sizeof operator_name, "%s", name);
    return REAL(OPERATOR, void *, const char *)(builder, name);
}

static status set_domain(void *builder, const char *name) {
    snprintf(domain, sizeof domain, "%s", name);
    return REAL(DOMAIN, void *, const char *)(builder, name);
}

static status set_since(void *builder, int first, int last) {
    first_version = first;
    last_version = last;
    return REAL(SINCE, void *, int, int)(builder, first, last);
}

static void add_place(const char *side, size_t index) {
    char text[64];
    snprintf(text, sizeof text, "%s\"%s%zu\"", *places ? "," : "", side, index);
    add(places, sizeof places, text);
}

static status set_input(void *builder, size_t index, int memory) {
    if (memory) add_place("in", index);
    return REAL(INPUT, void *, size_t, int)(builder, index, memory);
}

static status set_output(void *builder, size_t index, int memory) {
    if (memory) add_place("out", index);
    return REAL(OUTPUT, void *, size_t, int)(builder, index, memory);
}

static status add_types(void *builder, const char *name, const void *const *kinds, size_t count) {
    char text[300];
    snprintf(text, sizeof text, "%s\"%s\":[", *constraints ? "," : "", name);
    add(constraints, sizeof constraints, text);
    for (size_t i = 0; i < count; i++) {
        int code = 0;
        for (int known = 1; known < MOST_TYPES; known++)
            if (types[known] && types[known] == kinds[i]) code = known;
        snprintf(text, sizeof text, "%s%d", i ? "," : "", code);
        add(constraints, sizeof constraints, text);
    }
    add(constraints, sizeof constraints, "]");
    return REAL(TYPES, void *, const char *, const void *const *, size_t)(builder, name, kinds, count);
}

static status build(void *builder, void **kernel) {
    if (out) {
        fprintf(out, "{\"op\":\"%s\",\"domain\":\"%s\",\"first\":%d,\"last\":%d,\"types\":{%s},\"cpu\":[%s]}\n",
                operator_name, domain, first_version, last_version, constraints, places);
        fflush(out);
    }
    *operator_name = *domain = *constraints = *places = 0;
    return REAL(BUILD, void *, void **)(builder, kernel);
}

static const function *get_ep_api(void) {
    return ep;
}

static const function *get_api(uint32_t version) {
    real_api = real_base->GetApi(version);
    if (!real_api) return NULL;
    real_ep = ((const function *(*)(void))real_api[GET_EP_API])();
    memcpy(api, real_api, sizeof api);
    memcpy(ep, real_ep, sizeof ep);
    api[GET_EP_API] = (function)get_ep_api;
    ep[OPERATOR] = (function)set_operator;
    ep[DOMAIN] = (function)set_domain;
    ep[SINCE] = (function)set_since;
    ep[INPUT] = (function)set_input;
    ep[OUTPUT] = (function)set_output;
    ep[TYPES] = (function)add_types;
    ep[BUILD] = (function)build;
    for (int code = 1; code < MOST_TYPES; code++) {
        status failed = REAL(DATA_TYPE, int, const void **)(code, &types[code]);
        if (failed) ((void (*)(status))real_api[RELEASE_STATUS])(failed);
    }
    return api;
}

__attribute__((visibility("default"))) status CreateEpFactories(const char *name, const api_base *given, const void *log,
                                                                void **factories, size_t most, size_t *count) {
    const char *path = getenv("PROXIED_PLUGIN"), *written = getenv("KERNELS_FILE");
    real_base = given;
    base.GetApi = get_api;
    base.GetVersionString = given->GetVersionString;
    out = written ? fopen(written, "w") : NULL;
    plugin = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    function create = plugin ? (function)dlsym(plugin, "CreateEpFactories") : NULL;
    if (!create) return ((status(*)(int, const char *))given->GetApi(1)[CREATE_STATUS])(1, "no plugin to pass on to");
    return ((status(*)(const char *, const api_base *, const void *, void **, size_t, size_t *))create)(
        name, &base, log, factories, most, count);
}

__attribute__((visibility("default"))) status ReleaseEpFactory(void *factory) {
    return ((status(*)(void *))dlsym(plugin, "ReleaseEpFactory"))(factory);
}
