#include "plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORD "session.record_ep_graph_assignment_info"

static const char *const TYPES[] = {"CPU", "GPU", "NPU"}; /* OrtHardwareDeviceType */

static const char *type_name(int64_t type) {
    return type >= 0 && type < (int64_t)(sizeof TYPES / sizeof *TYPES) ? TYPES[type] : "other";
}

/* The devices that the library offers after registration, with those that are built in, are noted up to the limit. The
 * first one of the plugin that is of the wanted type, or NULL. */
static const OrtEpDevice *find_device(struct probe *probe, const OrtEpDevice *const *devices, size_t count) {
    const ort_function *ort = probe->ort;
    struct answer *answer = probe->answer;
    const OrtEpDevice *chosen = NULL;
    answer->ep_device_count = 0;
    for (size_t i = 0; i < count; i++) {
        const char *provider = ORT(ort, EpDevice_EpName)(devices[i]);
        int64_t type = (int64_t)ORT(ort, HardwareDevice_Type)(ORT(ort, EpDevice_Device)(devices[i]));
        if (answer->ep_device_count < EP_DEVICES_MAX) {
            struct ep_device *device = &answer->ep_devices[answer->ep_device_count++];
            snprintf(device->provider, sizeof device->provider, "%s", provider);
            snprintf(device->vendor, sizeof device->vendor, "%s", ORT(ort, EpDevice_EpVendor)(devices[i]));
            device->type = (int32_t)type;
        }
        bool wanted = probe->request->device_type < 0 || probe->request->device_type == type;
        if (!chosen && wanted && !strcmp(provider, probe->request->provider)) chosen = devices[i];
    }
    return chosen;
}

static bool no_device(struct probe *probe) {
    const struct request *request = probe->request;
    const struct answer *answer = probe->answer;
    char offered[MESSAGE_BYTES / 2] = "";
    for (size_t i = 0, used = 0; i < answer->ep_device_count && used < sizeof offered; i++)
        used += (size_t)snprintf(offered + used, sizeof offered - used, "%s%s on %s", i ? ", " : "",
                                 answer->ep_devices[i].provider, type_name(answer->ep_devices[i].type));
    bool any = request->device_type < 0;
    return fail(probe->answer, "provider_missing", 0, "plugin %s offers no device of %s%s%s; there are: %s",
                request->plugin, request->provider, any ? "" : " of type ", any ? "" : type_name(request->device_type),
                offered);
}

bool append_plugin(struct probe *probe) {
    const struct request *request = probe->request;
    const ort_function *ort = probe->ort;
    const char *name = request->plugin_name ? request->plugin_name : request->provider;
    if (!probe->registered && /* by the first session of this environment */
        !ok_or(probe, ORT(ort, RegisterExecutionProviderLibrary)(probe->env, name, request->plugin), "wrong_library"))
        return false;
    probe->registered = name;
    const OrtEpDevice *const *devices = NULL;
    size_t count = 0;
    if (!ok(probe, ORT(ort, GetEpDevices)(probe->env, &devices, &count))) return false;
    const OrtEpDevice *device = find_device(probe, devices, count);
    struct provider_options options;
    if (!device) return no_device(probe);
    if (!collect_options(probe, &options)) return false;
    bool done = ok(probe, ORT(ort, AddSessionConfigEntry)(probe->options, RECORD, "1")) &&
                ok(probe, ORT(ort, SessionOptionsAppendExecutionProvider_V2)(
                              probe->options, probe->env, &device, 1, options.keys, options.values, options.count));
    free(options.keys);
    return done;
}

/* The row of a provider, a new one for a name that has none yet; NULL where no more fit. */
static struct ep_share *share_of(struct answer *answer, const char *provider) {
    for (size_t i = 0; i < answer->ep_share_count; i++)
        if (!strcmp(answer->ep_shares[i].provider, provider)) return &answer->ep_shares[i];
    if (answer->ep_share_count == EP_SHARES_MAX) return NULL;
    struct ep_share *share = &answer->ep_shares[answer->ep_share_count++];
    snprintf(share->provider, sizeof share->provider, "%s", provider);
    return share;
}

/* Before 1.31 the list lacks WebGPU's nodes that no layout change touched; one without any of them says nothing. */
static bool lists_all(const struct probe *probe) {
    char *end = NULL;
    long long major = strtoll(probe->answer->ort_version, &end, 10);
    return strcmp(probe->request->provider, "WebGpuExecutionProvider") || major != 1 || *end != '.' ||
           strtoll(end + 1, NULL, 10) >= 31;
}

bool note_assignment(struct probe *probe) {
    const ort_function *ort = probe->ort;
    const char *provider = NULL;
    if (!probe->registered) return true;
    const OrtEpAssignedSubgraph *const *subgraphs = NULL;
    const OrtEpAssignedNode *const *nodes = NULL;
    size_t subgraph_count = 0, count = 0, all = 0, taken = 0;
    if (!ok(probe, ORT(ort, Session_GetEpGraphAssignmentInfo)(probe->session, &subgraphs, &subgraph_count)))
        return false;
    for (size_t i = 0; i < subgraph_count; i++) {
        if (!ok(probe, ORT(ort, EpAssignedSubgraph_GetEpName)(subgraphs[i], &provider)) ||
            !ok(probe, ORT(ort, EpAssignedSubgraph_GetNodes)(subgraphs[i], &nodes, &count)))
            return false;
        struct ep_share *share = share_of(probe->answer, provider);
        if (share) share->subgraphs++, share->nodes += count;
        all += count;
        if (!strcmp(provider, probe->request->provider)) taken += count;
    }
    if (taken || !all || !lists_all(probe)) return true;
    return fail(probe->answer, "provider_refused", 0, "%s took none of the model's %zu nodes", probe->request->provider,
                all);
}

void release_plugin(struct probe *probe) {
    if (!probe->registered) return;
    OrtStatus *status = ORT(probe->ort, UnregisterExecutionProviderLibrary)(probe->env, probe->registered);
    if (status) ORT(probe->ort, ReleaseStatus)(status);
}
