/* The 32-bit ABI of ARM: bionic's structures that glibc has in another size. Mutexes have 4 bytes there, attributes of
 * threads 24, the state of multibyte text 4; struct stat and struct dirent are the kernel's 64-bit ones. */
#define _GNU_SOURCE
#include "bionic.h"

#if defined(__arm__)
#include <dirent.h>
#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <wchar.h>

extern ADAPTER uintptr_t bionic___stack_chk_guard;

__attribute__((constructor(101))) static void set_guard(void) { bionic___stack_chk_guard = 0x5aff0a0d; }

/* One word, as bionic's static initializers have it: bits 14 and 15 are the type (1 recursive, 2 error checking). Ours
 * are bits 0 and 1, free, locked or waited for; from bit 2 on how often it was locked again; from bit 16 on whose. */
enum { FREE = 0, LOCKED = 1, WAITED = 2, STATE = 3, AGAIN = 4, AGAIN_MAX = 0x1ffc, TYPE = 0xc000, RECURSIVE = 0x4000 };

static uint32_t own_number(void) {
    static atomic_uint last;
    static __thread uint32_t number;
    while (!(number & 0xffff)) number = atomic_fetch_add(&last, 1) + 1;
    return number << 16;
}

/* EDEADLK or 0 where the thread has it already, else -1. */
static int lock_again(atomic_uint *mutex) {
    uint32_t word = atomic_load(mutex);
    if (!(word & TYPE) || !(word & STATE) || (word & 0xffff0000u) != own_number()) return -1;
    if ((word & TYPE) != RECURSIVE) return EDEADLK;
    if ((word & AGAIN_MAX) == AGAIN_MAX) return EAGAIN;
    atomic_fetch_add(mutex, AGAIN);
    return 0;
}

static bool take(atomic_uint *mutex, uint32_t state) {
    uint32_t word = atomic_load(mutex);
    return !(word & STATE) && atomic_compare_exchange_strong(mutex, &word, (word & TYPE) | state | own_number());
}

ADAPTER int bionic_pthread_mutex_lock(atomic_uint *mutex) {
    int again = lock_again(mutex), before = errno;
    if (again >= 0) return again;
    if (take(mutex, LOCKED)) return 0;
    while (!take(mutex, WAITED)) {
        uint32_t word = atomic_load(mutex), waited = (word & ~(uint32_t)STATE) | WAITED;
        if ((word & STATE) == FREE || !atomic_compare_exchange_strong(mutex, &word, waited)) continue;
        syscall(SYS_futex, mutex, FUTEX_WAIT_PRIVATE, waited, NULL, NULL, 0);
    }
    errno = before;
    return 0;
}

ADAPTER int bionic_pthread_mutex_trylock(atomic_uint *mutex) {
    int again = lock_again(mutex);
    if (again >= 0) return again == EDEADLK ? EBUSY : again;
    return take(mutex, LOCKED) ? 0 : EBUSY;
}

ADAPTER int bionic_pthread_mutex_unlock(atomic_uint *mutex) {
    uint32_t word = atomic_load(mutex);
    int before = errno;
    if (word & TYPE && ((word & 0xffff0000u) != own_number() || !(word & STATE))) return EPERM;
    if (word & AGAIN_MAX) return atomic_fetch_sub(mutex, AGAIN), 0;
    if ((atomic_exchange(mutex, word & TYPE) & STATE) == WAITED)
        syscall(SYS_futex, mutex, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    errno = before;
    return 0;
}

ADAPTER int bionic_pthread_mutex_init(atomic_uint *mutex, const pthread_mutexattr_t *attributes) {
    int type = PTHREAD_MUTEX_NORMAL;
    if (attributes) pthread_mutexattr_gettype(attributes, &type);
    atomic_store(mutex, (uint32_t)type << 14);
    return 0;
}

ADAPTER int bionic_pthread_mutex_destroy(atomic_uint *mutex) { return atomic_load(mutex) & STATE ? EBUSY : 0; }

/* As bionic/libc/include/bits/pthread_types.h has it. */
struct attributes {
    uint32_t flags;
    void *stack;
    size_t stack_bytes, guard_bytes;
    int32_t policy, priority;
};
enum { DETACHED = 1 };

ADAPTER int bionic_pthread_attr_init(struct attributes *attributes) {
    *attributes = (struct attributes){0};
    return 0;
}

ADAPTER int bionic_pthread_attr_destroy(struct attributes *attributes) { return bionic_pthread_attr_init(attributes); }

ADAPTER int bionic_pthread_attr_setstacksize(struct attributes *attributes, size_t bytes) {
    if (bytes < (size_t)sysconf(_SC_THREAD_STACK_MIN)) return EINVAL;
    attributes->stack_bytes = bytes;
    return 0;
}

ADAPTER int bionic_pthread_attr_setdetachstate(struct attributes *attributes, int state) {
    attributes->flags = state == PTHREAD_CREATE_DETACHED ? DETACHED : 0;
    return 0;
}

ADAPTER int bionic_pthread_attr_getstack(const struct attributes *attributes, void **stack, size_t *bytes) {
    *stack = attributes->stack;
    *bytes = attributes->stack_bytes;
    return 0;
}

ADAPTER int bionic_pthread_getattr_np(pthread_t thread, struct attributes *attributes) {
    pthread_attr_t made;
    int code = pthread_getattr_np(thread, &made);
    if (code) return code;
    bionic_pthread_attr_init(attributes);
    pthread_attr_getstack(&made, &attributes->stack, &attributes->stack_bytes);
    return pthread_attr_destroy(&made);
}

ADAPTER int bionic_pthread_create(pthread_t *thread, const struct attributes *given, void *(*start)(void *), void *with) {
    pthread_attr_t made;
    int code = pthread_attr_init(&made);
    if (code) return code;
    if (given && given->stack_bytes) pthread_attr_setstacksize(&made, given->stack_bytes);
    if (given && given->flags & DETACHED) pthread_attr_setdetachstate(&made, PTHREAD_CREATE_DETACHED);
    code = pthread_create(thread, &made, start, with);
    pthread_attr_destroy(&made);
    return code;
}

ADAPTER int bionic_stat(const char *path, struct stat64 *status) { return stat64(path, status); }
ADAPTER int bionic_lstat(const char *path, struct stat64 *status) { return lstat64(path, status); }
ADAPTER int bionic_fstat(int descriptor, struct stat64 *status) { return fstat64(descriptor, status); }
ADAPTER struct dirent64 *bionic_readdir(DIR *folder) { return readdir64(folder); }

/* `page` counts pages of 4 KB, as the system call of that name does. */
ADAPTER void *bionic___mmap2(void *address, size_t size, int protection, int flags, int descriptor, size_t page) {
    return mmap64(address, size, protection, flags, descriptor, (off64_t)page << 12);
}

extern uintptr_t __gnu_Unwind_Find_exidx(uintptr_t address, int *count);

ADAPTER uintptr_t bionic_dl_unwind_find_exidx(uintptr_t address, int *count) {
    return __gnu_Unwind_Find_exidx(address, count);
}

/* The locale is C, in which no character has two bytes: a state never says anything. */
ADAPTER size_t bionic_mbrlen(const char *text, size_t size, void *state) {
    (void)state;
    return mbrlen(text, size, &(mbstate_t){0});
}

ADAPTER size_t bionic_mbrtowc(wchar_t *wide, const char *text, size_t size, void *state) {
    (void)state;
    return mbrtowc(wide, text, size, &(mbstate_t){0});
}

ADAPTER size_t bionic_wcrtomb(char *text, wchar_t wide, void *state) {
    (void)state;
    return wcrtomb(text, wide, &(mbstate_t){0});
}

ADAPTER size_t bionic_mbsrtowcs(wchar_t *wide, const char **text, size_t size, void *state) {
    (void)state;
    return mbsrtowcs(wide, text, size, &(mbstate_t){0});
}

ADAPTER size_t bionic_wcsrtombs(char *text, const wchar_t **wide, size_t size, void *state) {
    (void)state;
    return wcsrtombs(text, wide, size, &(mbstate_t){0});
}

ADAPTER size_t bionic_mbsnrtowcs(wchar_t *wide, const char **text, size_t count, size_t size, void *state) {
    (void)state;
    return mbsnrtowcs(wide, text, count, size, &(mbstate_t){0});
}

ADAPTER size_t bionic_wcsnrtombs(char *text, const wchar_t **wide, size_t count, size_t size, void *state) {
    (void)state;
    return wcsnrtombs(text, wide, count, size, &(mbstate_t){0});
}
#endif
