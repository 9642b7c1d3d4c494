#ifndef PROBE_SYS_TYPES_H
#define PROBE_SYS_TYPES_H
#include <stddef.h>
#if !defined(__aarch64__) && !defined(__x86_64__)
#error "these declarations hold for 64-bit bionic on arm64 and x86_64; use the NDK for other ABIs"
#endif
typedef int pid_t;
typedef long ssize_t;
typedef long off_t;
#endif
