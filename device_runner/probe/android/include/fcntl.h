#ifndef PROBE_FCNTL_H
#define PROBE_FCNTL_H
#define O_RDONLY 0
#define O_WRONLY 01
#define O_CREAT 0100
#define O_EXCL 0200
#if defined(__aarch64__)
#define O_NOFOLLOW 0100000
#else
#define O_NOFOLLOW 0400000
#endif
#define O_CLOEXEC 02000000
int open(const char *path, int flags, ...);
#endif
