#include "platform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__APPLE__)
#include <mach/mach.h>
#endif

#if defined(__aarch64__) && defined(__GLIBC__)
/* Android's code reads its stack guard at the thread pointer + 40 (bionic's slot 5). In a process with glibc the
 * program's first thread-locals are there: this is them, and nobody writes it, so that the word stays as it is. */
static _Thread_local _Alignas(16) unsigned char guard_slot[64];

__attribute__((constructor)) static void keep_guard_slot(void) { __asm__ volatile("" : : "r"(guard_slot)); }
#endif

uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t wall_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000u + (uint64_t)time.tv_nsec / 1000000u;
}

#if defined(__APPLE__)

/* The footprint is what the system counts before it ends an app: dirty and compressed pages, no clean ones of files. */
static task_vm_info_data_t memory(void) {
    task_vm_info_data_t info = {0};
    mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
    task_info(mach_task_self(), TASK_VM_INFO, (task_info_t)&info, &count);
    return info;
}

uint64_t resident_bytes(void) { return memory().phys_footprint; }
uint64_t peak_bytes(void) { return (uint64_t)memory().ledger_phys_footprint_peak; }
uint64_t private_bytes(void) { return resident_bytes(); }
uint64_t free_bytes(void) { return UINT64_MAX; }

#else

#define STATUS "/proc/self/status"

/* The number of a line such as "VmRSS:   1234 kB"; 0 where there is none. getrusage's maximum would be that of the parent
 * too, which execve hands on. */
static uint64_t number_in(const char *path, const char *name) {
    FILE *file = fopen(path, "r");
    char line[256];
    uint64_t number = 0;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name))) number = strtoull(line + strlen(name), NULL, 10);
    if (file) fclose(file);
    return number;
}

uint64_t resident_bytes(void) { return number_in(STATUS, "VmRSS:") * 1024; }
uint64_t peak_bytes(void) { return number_in(STATUS, "VmHWM:") * 1024; }
uint64_t private_bytes(void) { return number_in(STATUS, "RssAnon:") * 1024; }

uint64_t free_bytes(void) {
    uint64_t system = number_in("/proc/meminfo", "MemAvailable:") * 1024, taken = number_in(STATUS, "VmSize:") * 1024;
    uint64_t limit = number_in("/proc/self/limits", "Max address space"); /* in bytes; "unlimited" is 0 */
    uint64_t own = !limit ? UINT64_MAX : limit > taken ? limit - taken : 0;
    if (!system) system = UINT64_MAX;
    return own < system ? own : system;
}

#endif
