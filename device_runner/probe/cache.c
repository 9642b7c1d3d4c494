#include "cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TRIES = 3 }; /* pages that another processor still holds in its list of new ones stay the first time */

#if defined(__linux__)

/* How many bytes of a file are in memory; -1 where the system does not say. Linux says to owners and to those who may
 * write the file; to others it calls every page resident. */
static int64_t resident_of(int file, size_t size) {
    size_t page = (size_t)getpagesize(), pages = (size + page - 1) / page, resident = 0;
    void *memory = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return -1;
    unsigned char *states = calloc(pages, 1);
    bool known = states && !mincore(memory, size, states);
    for (size_t i = 0; known && i < pages; i++) resident += states[i] & 1;
    free(states);
    munmap(memory, size);
    if (!known) return -1;
    return (int64_t)(resident * page > size ? size : resident * page);
}

static void drop(int file, struct dropped_file *answer) {
    fsync(file); /* only clean pages can go, and a file that was just pushed has others */
    for (int tries = 0; tries < TRIES && answer->resident; tries++) {
        int code = posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        if (code) snprintf(answer->why, sizeof answer->why, "%s", strerror(code));
        answer->resident = answer->bytes ? resident_of(file, (size_t)answer->bytes) : 0;
    }
}

#else

static void drop(int file, struct dropped_file *answer) {
    (void)file;
    snprintf(answer->why, sizeof answer->why, "this system cannot drop a file's pages");
}

#endif

void drop_pages(const char *path, struct dropped_file *file) {
    file->asked = true;
    file->bytes = file->resident = -1;
    int number = open(path, O_RDONLY | O_CLOEXEC);
    if (number >= 0) file->bytes = lseek(number, 0, SEEK_END);
    if (file->bytes < 0)
        snprintf(file->why, sizeof file->why, "%s", strerror(errno));
    else
        drop(number, file);
    if (number >= 0) close(number);
}

bool drop_cached(struct probe *probe) {
    if (!probe->request->cold) return true;
    drop_pages(probe->request->model, &probe->answer->model_pages);
    drop_pages(probe->request->library, &probe->answer->library_pages);
    return true;
}
