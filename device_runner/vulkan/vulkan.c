/* A libvulkan with one driver: the library that ORT_MOBILE_VULKAN names, without Khronos's loader between.

   A driver exports vk_icdGetInstanceProcAddr (Vulkan-LoaderInterfaceArchitecture), of which every function comes. Two
   answers are changed: device extensions of Android are hidden, since Dawn, built for Android, wants functions of them
   that a Linux driver announces and does not have (lavapipe); and a driver need not know layers, which are a loader's. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VISIBLE __attribute__((visibility("default")))
#define HIDDEN_EXTENSIONS "VK_ANDROID_"
#define VK_SUCCESS 0
#define VK_INCOMPLETE 5
#define VK_ERROR_OUT_OF_HOST_MEMORY (-1)
#define INTERFACE_VERSION 5

typedef void (*Function)(void);
typedef Function (*GetInstanceProcAddr)(void *instance, const char *name);

typedef struct {
    char name[256];
    uint32_t version;
} ExtensionProperties;

typedef int32_t (*EnumerateDeviceExtensions)(void *, const char *, uint32_t *, ExtensionProperties *);

static GetInstanceProcAddr driver;
static EnumerateDeviceExtensions all_extensions;

/* With POSIX's leave: a pointer to data becomes one to a function. */
static Function function_of(void *library, const char *name) {
    void *address = dlsym(library, name);
    Function function = NULL;
    memcpy(&function, &address, sizeof function);
    return function;
}

static void open_driver(void) {
    const char *path = getenv("ORT_MOBILE_VULKAN");
    /* What lavapipe compiles calls exp2f and others of half precision by name, among what every library may use. */
    dlopen("libm.so.6", RTLD_NOW | RTLD_GLOBAL);
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "no Vulkan driver: %s\n", path ? dlerror() : "ORT_MOBILE_VULKAN names none");
        return;
    }
    int32_t (*negotiate)(uint32_t *) = (int32_t (*)(uint32_t *))function_of(library, "vk_icdNegotiateLoaderICDInterfaceVersion");
    uint32_t version = INTERFACE_VERSION;
    if (negotiate && negotiate(&version) != VK_SUCCESS) {
        fprintf(stderr, "no Vulkan driver: %s speaks another version of the loader's interface\n", path);
        return;
    }
    driver = (GetInstanceProcAddr)function_of(library, "vk_icdGetInstanceProcAddr");
    if (!driver) fprintf(stderr, "no Vulkan driver: %s has no vk_icdGetInstanceProcAddr\n", path);
}

static int32_t enumerate_extensions(void *device, const char *layer, uint32_t *count, ExtensionProperties *properties) {
    uint32_t known = 0, shown = 0;
    int32_t status = all_extensions(device, layer, &known, NULL);
    if (status != VK_SUCCESS) return status;
    ExtensionProperties *all = calloc(known + 1, sizeof *all);
    if (!all) return VK_ERROR_OUT_OF_HOST_MEMORY;
    status = all_extensions(device, layer, &known, all);
    for (uint32_t i = 0; i < known; i++)
        if (strncmp(all[i].name, HIDDEN_EXTENSIONS, strlen(HIDDEN_EXTENSIONS))) all[shown++] = all[i];
    if (!properties) {
        *count = shown;
    } else {
        if (*count < shown && status == VK_SUCCESS) status = VK_INCOMPLETE;
        if (*count > shown) *count = shown;
        memcpy(properties, all, *count * sizeof *all);
    }
    free(all);
    return status;
}

static int32_t enumerate_layers(uint32_t *count, void *properties) {
    (void)properties;
    *count = 0;
    return VK_SUCCESS;
}

VISIBLE Function vkGetInstanceProcAddr(void *instance, const char *name) {
    if (!driver) open_driver();
    if (!driver) return NULL;
    if (!strcmp(name, "vkGetInstanceProcAddr")) return (Function)vkGetInstanceProcAddr;
    if (!strcmp(name, "vkEnumerateInstanceLayerProperties")) return (Function)enumerate_layers;
    Function function = driver(instance, name);
    if (function && !strcmp(name, "vkEnumerateDeviceExtensionProperties")) {
        all_extensions = (EnumerateDeviceExtensions)function;
        return (Function)enumerate_extensions;
    }
    return function;
}
