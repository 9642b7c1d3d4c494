#ifndef PROBE_STDLIB_H
#define PROBE_STDLIB_H
#include <stddef.h>
void *malloc(size_t size);
void *calloc(size_t count, size_t size);
void qsort(void *all, size_t count, size_t size, int (*order)(const void *, const void *));
void free(void *memory);
int posix_memalign(void **memory, size_t alignment, size_t size);
long long strtoll(const char *text, char **end, int base);
unsigned long long strtoull(const char *text, char **end, int base);
int setenv(const char *name, const char *value, int replace);
#endif
