/* The runtime's level, its devices, and memory. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

API int64_t ANeuralNetworks_getRuntimeFeatureLevel(void) {
    record(NO_ERROR, "_getRuntimeFeatureLevel", "\"level\":%lld,\"caller\":\"%s\"", (long long)profile()->level, CALLER);
    return profile()->level;
}

API int ANeuralNetworks_getDeviceCount(uint32_t *count) {
    if (!count) return record(UNEXPECTED_NULL, "_getDeviceCount", "\"count\":0");
    *count = (uint32_t)profile()->device_count;
    return record(NO_ERROR, "_getDeviceCount", "\"count\":%u,\"caller\":\"%s\"", *count, CALLER);
}

API int ANeuralNetworks_getDevice(uint32_t index, const struct device **device) {
    bool there = device && index < profile()->device_count;
    if (there) *device = &profile()->devices[index];
    return record(there ? NO_ERROR : BAD_DATA, "_getDevice", "\"index\":%u,\"caller\":\"%s\"", index, CALLER);
}

API int ANeuralNetworksDevice_getName(const struct device *device, const char **name) {
    *name = device->name;
    return record(NO_ERROR, "Device_getName", "\"name\":\"%s\",\"caller\":\"%s\"", device->name, CALLER);
}

API int ANeuralNetworksDevice_getVersion(const struct device *device, const char **version) {
    *version = device->version;
    return record(NO_ERROR, "Device_getVersion", "\"name\":\"%s\",\"caller\":\"%s\"", device->name, CALLER);
}

API int ANeuralNetworksDevice_getType(const struct device *device, int32_t *type) {
    *type = device->type;
    return record(NO_ERROR, "Device_getType", "\"name\":\"%s\",\"type\":%d,\"caller\":\"%s\"", device->name,
                  device->type, CALLER);
}

API int ANeuralNetworksDevice_getFeatureLevel(const struct device *device, int64_t *level) {
    *level = device->level;
    return record(NO_ERROR, "Device_getFeatureLevel", "\"name\":\"%s\",\"level\":%lld,\"caller\":\"%s\"", device->name,
                  (long long)device->level, CALLER);
}

static bool type_accepted(const struct device *device, const struct operand *operand) {
    return !device->types_limited || device->types[operand->kind->code];
}

bool device_accepts(const struct device *device, const struct model *model, const struct operation *operation) {
    if (operation->kind->level > device->level) return false;
    if (device->operations_limited && !device->operations[operation->kind->code]) return false;
    uint32_t types = 0;
    for (uint32_t i = 0; i < operation->input_count + operation->output_count; i++) {
        const struct operand *operand = model->operands[operation->inputs[i]]; /* outputs lie behind */
        if (!type_accepted(device, operand)) return false;
        types |= UINT32_C(1) << operand->kind->code;
    }
    for (size_t i = 0; i < device->refusal_count; i++)
        if (device->refusals[i].operation == operation->kind->code && device->refusals[i].types == types) return false;
    return true;
}

/* Constants come so: one region for all plain initializers, one for each weight that was laid out anew. */
API int ANeuralNetworksMemory_createFromFd(size_t size, int protect, int descriptor, size_t offset,
                                           struct memory **memory) {
    struct memory *made = calloc(1, sizeof *made);
    void *bytes = made ? mmap(NULL, size, protect, MAP_SHARED, descriptor, (off_t)offset) : MAP_FAILED;
    if (bytes == MAP_FAILED) {
        free(made);
        return record(UNMAPPABLE, "Memory_createFromFd", "\"size\":%zu,\"offset\":%zu", size, offset);
    }
    *made = (struct memory){.id = next_id(), .size = size, .bytes = bytes};
    *memory = made;
    return record(NO_ERROR, "Memory_createFromFd", "\"memory\":%u,\"size\":%zu,\"offset\":%zu", made->id, size, offset);
}

API void ANeuralNetworksMemory_free(struct memory *memory) {
    if (!memory) return;
    record(NO_ERROR, "Memory_free", "\"memory\":%u", memory->id);
    munmap(memory->bytes, memory->size);
    free(memory);
}
