#ifndef PROBE_FCNTL_H
#define PROBE_FCNTL_H
#include <sys/types.h>
#define O_RDONLY 0
#define O_WRONLY 01
#define O_CREAT 0100
#define O_EXCL 0200
#define O_TRUNC 01000
#if defined(__aarch64__)
#define O_NOFOLLOW 0100000
#else
#define O_NOFOLLOW 0400000
#endif
#define O_CLOEXEC 02000000
#define POSIX_FADV_DONTNEED 4
int posix_fadvise(int file, off_t offset, off_t length, int advice);
int open(const char *path, int flags, ...);
#endif
