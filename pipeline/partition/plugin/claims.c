/* An execution provider that claims the nodes it is told to and computes none.
 *
 * A session that saves an ORT format file asks its providers, optimizes around what they claim, and compiles nothing.
 * So a stock onnxruntime with this one in the place of NNAPI or CoreML saves the file that a build with these would.
 *
 * The session config entry `ort_mobile.claims` is the path of a file with the nodes in ascending order of bytes, each
 * as operator, space, first output, and a NUL behind it. The operator counts because a function that is inlined when
 * nobody claimed it leaves its output's name to one of its nodes, which is asked about again. Nodes in
 * bodies of control flow are no different: no name in a body is that of a value around it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ep_table.h"

#define TRY(call) \
    do { \
        OrtStatus *failed = (call); \
        if (failed) return failed; \
    } while (0)

/* A factory each. Some fusions are made of a named provider's nodes alone, so that of WebGPU has its real name. */
static const char *const titles[] = {"OrtMobileClaims", "WebGpuExecutionProvider"};
static OrtEpFactory factories[sizeof titles / sizeof *titles];

static const ort_function *api, *ep_api;

struct claims_ep {
    OrtEp ep; /* first: ONNX Runtime hands back a pointer to it */
    const OrtEpFactory *maker;
    char *text;
    const char **names;
    size_t count;
};

static OrtStatus *error(const char *text) { return CALL(api, CreateStatus)(STATUS_FAIL, text); }

static const char *factory_name(const OrtEpFactory *self) { return titles[self - factories]; }
static const char *ep_name(const OrtEp *ep) { return factory_name(((const struct claims_ep *)ep)->maker); }

/* "" for a node that has none. */
static OrtStatus *first_output(const OrtNode *node, const char **name) {
    size_t count = 0;
    *name = "";
    TRY(CALL(api, Node_GetNumOutputs)(node, &count));
    const OrtValueInfo **outputs = calloc(count + 1, sizeof *outputs);
    if (!outputs) return error("out of memory");
    OrtStatus *status = CALL(api, Node_GetOutputs)(node, outputs, count);
    for (size_t i = 0; !status && i < count && !**name; i++) /* an output that is left out is NULL or has no name */
        if (outputs[i]) status = CALL(api, GetValueInfoName)(outputs[i], name);
    free(outputs);
    return status;
}

static int compare(const void *key, const void *entry) { return strcmp(key, *(const char *const *)entry); }

static OrtStatus *claim(const struct claims_ep *ep, const OrtNode *node, OrtEpGraphSupportInfo *info) {
    const char *name = "", *op_type = "";
    TRY(first_output(node, &name));
    TRY(CALL(api, Node_GetOperatorType)(node, &op_type));
    size_t space = strlen(op_type) + strlen(name) + 2;
    char *key = malloc(space);
    if (!key) return error("out of memory");
    snprintf(key, space, "%s %s", op_type, name);
    bool told = *name && bsearch(key, ep->names, ep->count, sizeof *ep->names, compare);
    free(key);
    /* One by one: for each group to be fused, ONNX Runtime walks the whole graph. Only who has a node matters here. */
    return told ? CALL(ep_api, EpGraphSupportInfo_AddSingleNode)(info, node) : NULL;
}

static OrtStatus *get_capability(OrtEp *self, const OrtGraph *graph, OrtEpGraphSupportInfo *info) {
    const struct claims_ep *ep = (const struct claims_ep *)self;
    size_t count = 0;
    TRY(CALL(api, Graph_GetNumNodes)(graph, &count));
    const OrtNode **nodes = calloc(count + 1, sizeof *nodes);
    if (!nodes) return error("out of memory");
    OrtStatus *status = CALL(api, Graph_GetNodes)(graph, nodes, count);
    for (size_t i = 0; !status && i < count; i++) status = claim(ep, nodes[i], info);
    free(nodes);
    return status;
}

static OrtStatus *compile(OrtEp *ep, const OrtGraph **graphs, const OrtNode **nodes, size_t count, void **infos,
                          OrtNode **contexts) {
    (void)ep, (void)graphs, (void)nodes, (void)count, (void)infos, (void)contexts;
    return error("the claims provider computes nothing");
}

static void release_infos(OrtEp *ep, void **infos, size_t count) { (void)ep, (void)infos, (void)count; }

static OrtStatus *read_names(struct claims_ep *ep, const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return error("the list of claims cannot be opened");
    long size = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
    rewind(file);
    ep->text = size < 0 ? NULL : calloc((size_t)size + 1, 1);
    bool whole = ep->text && fread(ep->text, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    if (!whole) return error("the list of claims cannot be read");
    const char *end = ep->text + size;
    for (const char *at = ep->text; at < end; at++) ep->count += !*at;
    ep->names = calloc(ep->count + 1, sizeof *ep->names);
    if (!ep->names) return error("out of memory");
    const char *at = ep->text;
    for (size_t i = 0; i < ep->count; i++, at += strlen(at) + 1) ep->names[i] = at;
    return NULL;
}

static void release_ep(OrtEpFactory *maker, OrtEp *self) {
    struct claims_ep *ep = (struct claims_ep *)self;
    (void)maker;
    if (!ep) return;
    free(ep->names);
    free(ep->text);
    free(ep);
}

static OrtStatus *create_ep(OrtEpFactory *self, const OrtHardwareDevice *const *devices,
                            const OrtKeyValuePairs *const *metadata, size_t count, const OrtSessionOptions *options,
                            const OrtLogger *logger, OrtEp **out) {
    char path[4096];
    size_t size = sizeof path;
    (void)devices, (void)metadata, (void)count, (void)logger;
    TRY(CALL(api, GetSessionConfigEntry)(options, "ort_mobile.claims", path, &size));
    struct claims_ep *ep = calloc(1, sizeof *ep);
    if (!ep) return error("out of memory");
    ep->ep = (OrtEp){.version = EP_API_VERSION,
                     .GetName = ep_name,
                     .GetCapability = get_capability,
                     .Compile = compile,
                     .ReleaseNodeComputeInfos = release_infos};
    ep->maker = self;
    OrtStatus *status = read_names(ep, path);
    if (status)
        release_ep(self, &ep->ep);
    else
        *out = &ep->ep;
    return status;
}

static OrtStatus *supported_devices(OrtEpFactory *self, const OrtHardwareDevice *const *devices, size_t count,
                                    OrtEpDevice **out, size_t room, size_t *used) {
    *used = 0;
    for (size_t i = 0; i < count && room && !*used; i++)
        if (CALL(api, HardwareDevice_Type)(devices[i]) == HARDWARE_CPU) {
            TRY(CALL(ep_api, CreateEpDevice)(self, devices[i], NULL, NULL, out));
            *used = 1;
        }
    return NULL;
}

static const char *vendor(const OrtEpFactory *self) { return (void)self, "ort-mobile"; }
static uint32_t vendor_id(const OrtEpFactory *self) { return (void)self, 0; }
static const char *version(const OrtEpFactory *self) { return (void)self, "1.0.0"; }
static bool is_stream_aware(const OrtEpFactory *self) { return (void)self, false; }

static OrtStatus *create_allocator(OrtEpFactory *self, const void *memory, const OrtKeyValuePairs *options,
                                   void **out) {
    (void)self, (void)memory, (void)options;
    *out = NULL; /* memory of the CPU is that of onnxruntime */
    return NULL;
}

static void release_allocator(OrtEpFactory *self, void *allocator) { (void)self, (void)allocator; }

static OrtStatus *create_transfer(OrtEpFactory *self, void **out) {
    (void)self;
    *out = NULL;
    return NULL;
}

static const OrtEpFactory factory = {.version = EP_API_VERSION,
                               .GetName = factory_name,
                               .GetVendor = vendor,
                               .GetSupportedDevices = supported_devices,
                               .CreateEp = create_ep,
                               .ReleaseEp = release_ep,
                               .GetVendorId = vendor_id,
                               .GetVersion = version,
                               .CreateAllocator = create_allocator,
                               .ReleaseAllocator = release_allocator,
                               .CreateDataTransfer = create_transfer,
                               .IsStreamAware = is_stream_aware};

#define EXPORTED __attribute__((visibility("default")))

EXPORTED OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *base, const OrtLogger *logger,
                                      OrtEpFactory **out, size_t room, size_t *used);
EXPORTED OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *base, const OrtLogger *logger,
                                      OrtEpFactory **out, size_t room, size_t *used) {
    (void)name, (void)logger;
    api = base->GetApi(EP_API_VERSION); /* onnxruntime before 1.23 never calls this function */
    ep_api = CALL(api, GetEpApi)();
    for (*used = 0; *used < room && *used < sizeof titles / sizeof *titles; ++*used) {
        factories[*used] = factory;
        out[*used] = &factories[*used];
    }
    return NULL;
}

EXPORTED OrtStatus *ReleaseEpFactory(OrtEpFactory *self);
EXPORTED OrtStatus *ReleaseEpFactory(OrtEpFactory *self) { return (void)self, NULL; }
