#ifndef PROBE_SYS_RESOURCE_H
#define PROBE_SYS_RESOURCE_H
#define PRIO_PROCESS 0
#define RLIMIT_DATA 2
typedef unsigned long rlim_t;
struct rlimit {
    rlim_t rlim_cur, rlim_max;
};
int setrlimit(int of, const struct rlimit *limit);
int setpriority(int kind, unsigned id, int priority);
#endif
