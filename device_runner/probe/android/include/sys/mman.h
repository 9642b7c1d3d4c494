#ifndef PROBE_SYS_MMAN_H
#define PROBE_SYS_MMAN_H
#include <stddef.h>
#include <sys/types.h>
#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_SHARED 1
#define MAP_ANONYMOUS 0x20
#define MAP_FAILED ((void *)-1)
int munmap(void *memory, size_t size);
int mincore(void *memory, size_t size, unsigned char *states);
void *mmap(void *wanted, size_t size, int protection, int flags, int file, off_t offset);
#endif
