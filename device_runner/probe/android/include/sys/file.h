#ifndef PROBE_SYS_FILE_H
#define PROBE_SYS_FILE_H
#define LOCK_EX 2
#define LOCK_NB 4
int flock(int file, int operation);
#endif
