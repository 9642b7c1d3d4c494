#ifndef PROBE_SCHED_H
#define PROBE_SCHED_H
#include <sys/types.h>
#define CPU_SETSIZE 1024
typedef struct {
    unsigned long bits[CPU_SETSIZE / 64];
} cpu_set_t;
#define CPU_SET(number, set) ((set)->bits[(number) / 64] |= 1ul << (number) % 64)
int sched_setaffinity(pid_t thread, size_t size, const cpu_set_t *set);
#endif
