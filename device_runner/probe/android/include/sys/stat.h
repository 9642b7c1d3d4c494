#ifndef PROBE_SYS_STAT_H
#define PROBE_SYS_STAT_H
int mkdir(const char *path, unsigned mode);
#endif
