#ifndef PROBE_SYS_PRCTL_H
#define PROBE_SYS_PRCTL_H
#define PR_SET_PDEATHSIG 1
int prctl(int operation, ...);
#endif
