/* libandroid: shared memory, which the NNAPI provider looks up with dlsym. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bionic.h"

ADAPTER int bionic_ASharedMemory_create(const char *name, size_t size) {
    int descriptor = memfd_create(name ? name : "shared", MFD_CLOEXEC);
    if (descriptor < 0 || ftruncate(descriptor, (off_t)size) == 0) return descriptor;
    close(descriptor);
    return -1;
}

ADAPTER size_t bionic_ASharedMemory_getSize(int descriptor) {
    struct stat status;
    return fstat(descriptor, &status) == 0 ? (size_t)status.st_size : 0;
}
