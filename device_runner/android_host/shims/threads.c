/* Threads, whose structures are smaller and less aligned in bionic than in glibc on some processors, and the files that
 * describe a processor. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bionic.h"

#if defined(__arm__) /* in arm.c */
extern int bionic_pthread_mutex_lock(void *mutex), bionic_pthread_mutex_unlock(void *mutex);
#define pthread_mutex_lock bionic_pthread_mutex_lock
#define pthread_mutex_unlock bionic_pthread_mutex_unlock
#endif

enum { MUTEX_BYTES = 40, ATTRIBUTE_BYTES = 56, MONOTONIC = 2, STEP = 4, PATH_BYTES = 4096 };

/* bionic's condition variable is a counter and needs an alignment of 4; glibc's has 64-bit atomics, for which arm64
 * raises SIGBUS at such an address. As in bionic, bit 1 of the counter is the clock. */
struct condition {
    atomic_uint state;
};

ADAPTER int bionic_pthread_cond_init(struct condition *condition, const pthread_condattr_t *attributes) {
    clockid_t clock = CLOCK_REALTIME;
    if (attributes) pthread_condattr_getclock(attributes, &clock);
    atomic_store(&condition->state, clock == CLOCK_MONOTONIC ? MONOTONIC : 0);
    return 0;
}

ADAPTER int bionic_pthread_cond_destroy(struct condition *condition) {
    (void)condition;
    return 0;
}

static int wake(struct condition *condition, int threads) {
    int before = errno;
    atomic_fetch_add(&condition->state, STEP);
    syscall(SYS_futex, &condition->state, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
    errno = before;
    return 0;
}

ADAPTER int bionic_pthread_cond_signal(struct condition *condition) { return wake(condition, 1); }
ADAPTER int bionic_pthread_cond_broadcast(struct condition *condition) { return wake(condition, INT_MAX); }

/* `until` is absolute, by the condition's clock; NULL waits for ever. It may return early, as POSIX allows. */
ADAPTER int bionic_pthread_cond_timedwait(struct condition *condition, pthread_mutex_t *mutex,
                                          const struct timespec *until) {
    int before = errno;
    unsigned seen = atomic_load(&condition->state);
    int call = FUTEX_WAIT_BITSET_PRIVATE | (seen & MONOTONIC ? 0 : FUTEX_CLOCK_REALTIME);
    int code = pthread_mutex_unlock(mutex);
    if (code) return code;
    long failed = syscall(SYS_futex, &condition->state, call, seen, until, NULL, FUTEX_BITSET_MATCH_ANY);
    code = failed && (errno == ETIMEDOUT || errno == EINVAL) ? errno : 0;
    errno = before;
    int locked = pthread_mutex_lock(mutex);
    return locked ? locked : code;
}

ADAPTER int bionic_pthread_cond_wait(struct condition *condition, pthread_mutex_t *mutex) {
    return bionic_pthread_cond_timedwait(condition, mutex, NULL);
}

#if !defined(__arm__)
/* glibc's own functions clear what its types have: 8 bytes more than bionic's on arm64, where something else is. */
ADAPTER int bionic_pthread_mutex_init(void *mutex, const pthread_mutexattr_t *attributes) {
    pthread_mutex_t made;
    int code = pthread_mutex_init(&made, attributes);
    if (!code) memcpy(mutex, &made, MUTEX_BYTES);
    return code;
}

ADAPTER int bionic_pthread_attr_init(void *attributes) {
    pthread_attr_t made;
    int code = pthread_attr_init(&made);
    if (!code) memcpy(attributes, &made, ATTRIBUTE_BYTES);
    return code;
}

ADAPTER int bionic_pthread_getattr_np(pthread_t thread, void *attributes) {
    pthread_attr_t made;
    int code = pthread_getattr_np(thread, &made);
    if (!code) memcpy(attributes, &made, ATTRIBUTE_BYTES);
    return code;
}

#endif

/* An emulator may show this computer's processor: where a folder is named, its files stand for the system's. */
static const char *shown(const char *path, char other[PATH_BYTES]) {
    static const char *const SYSTEM = "/sys/devices/system/cpu/";
    const char *folder = getenv(VARIABLE_CPU);
    if (!folder || !path) return path;
    if (strcmp(path, "/proc/cpuinfo") && strncmp(path, SYSTEM, strlen(SYSTEM))) return path;
    int length = snprintf(other, PATH_BYTES, "%s%s", folder, path);
    return length > 0 && length < PATH_BYTES ? other : path;
}

/* What the kernel announces beyond what the processor has: the file hwcap2 beside those of the processor. */
ADAPTER unsigned long bionic_getauxval(unsigned long type) {
    unsigned long value = getauxval(type);
    const char *folder = getenv("ORT_MOBILE_ANDROID_CPU");
    if (type != AT_HWCAP2 || !folder) return value;
    char path[PATH_BYTES], text[32] = "";
    if (snprintf(path, sizeof path, "%s/hwcap2", folder) >= PATH_BYTES) return value;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return value;
    ssize_t count = read(file, text, sizeof text - 1);
    close(file);
    return count > 0 ? value | strtoul(text, NULL, 16) : value;
}

ADAPTER int bionic_open(const char *path, int flags, ...) {
    char other[PATH_BYTES];
    mode_t mode = 0;
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {
        va_list values;
        va_start(values, flags);
        mode = va_arg(values, mode_t);
        va_end(values);
    }
    return open(shown(path, other), flags, mode);
}
