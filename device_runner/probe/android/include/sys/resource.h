#ifndef PROBE_SYS_RESOURCE_H
#define PROBE_SYS_RESOURCE_H
#define PRIO_PROCESS 0
int setpriority(int kind, unsigned id, int priority);
#endif
