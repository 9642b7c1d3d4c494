#include "nnapi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "symbol.h"

/* Find the functions in an open libneuralnetworks.so; NULL stays where the phone is too old for one. */
static void find_nnapi_calls(struct nnapi *nnapi, void *library) {
    static const char *const NAMES[] = {
#define NAME(name, result, parameters) "ANeuralNetworks" #name,
        NNAPI_CALLS(NAME)
#undef NAME
    };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        any_function function = symbol(library, NAMES[i]);
        memcpy((char *)nnapi + i * sizeof function, &function, sizeof function);
    }
}

static void list_device(struct nnapi *nnapi, uint32_t index, struct nnapi_device *to) {
    const char *name = NULL, *version = NULL;
    nn_device *device = NULL;
    if (nnapi->_getDevice(index, &device)) return;
    if (!nnapi->Device_getName(device, &name) && name) snprintf(to->name, sizeof to->name, "%s", name);
    if (!nnapi->Device_getVersion(device, &version) && version)
        snprintf(to->version, sizeof to->version, "%s", version);
    if (nnapi->Device_getType(device, &to->type)) to->type = 0;
    if (nnapi->Device_getFeatureLevel(device, &to->level)) to->level = 0;
    nnapi->devices[index] = device;
}

bool open_nnapi(struct nnapi *nnapi, struct nnapi_answer *answer) {
    void *library = dlopen("libneuralnetworks.so", RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
    find_nnapi_calls(nnapi, library);
    answer->found = true;
    if (nnapi->_getRuntimeFeatureLevel) answer->level = nnapi->_getRuntimeFeatureLevel();
    uint32_t count = 0;
    if (!nnapi->_getDeviceCount || !nnapi->_getDevice || !nnapi->Device_getName || !nnapi->Device_getVersion ||
        !nnapi->Device_getType || !nnapi->Device_getFeatureLevel || nnapi->_getDeviceCount(&count))
        return true;
    for (uint32_t i = 0; i < count && i < NNAPI_DEVICES_MAX; i++) {
        list_device(nnapi, i, &answer->devices[i]);
        answer->count = i + 1;
    }
    return true;
}

void print_nnapi(struct sink *sink, const struct nnapi_answer *answer) {
    put_text(sink, answer->found ? "{\"found\":true" : "{\"found\":false");
    put_count(sink, "level", (uint64_t)answer->level);
    put_text(sink, ",\"devices\":[");
    for (uint32_t i = 0; i < answer->count; i++) {
        const struct nnapi_device *device = &answer->devices[i];
        put_text(sink, i ? ",{\"name\":" : "{\"name\":");
        put_string(sink, device->name);
        put_field(sink, "version", device->version);
        put_count(sink, "type", (uint64_t)device->type);
        put_count(sink, "level", (uint64_t)device->level);
        put_field(sink, "answers", device->answers);
        put_text(sink, "}");
    }
    put_text(sink, "]}");
}
