/* What the probe uses of bionic's stdio, nothing else: a function that is not here is not to be used. */
#ifndef PROBE_STDIO_H
#define PROBE_STDIO_H
#include <stdarg.h>
#include <stddef.h>
#define EOF (-1)
typedef struct bionic_file FILE;
extern FILE *stdin, *stdout, *stderr; /* plain variables since API level 23 */
FILE *fopen(const char *path, const char *mode);
int fclose(FILE *file);
int rename(const char *from, const char *to);
int fflush(FILE *file);
size_t fread(void *data, size_t size, size_t count, FILE *file);
size_t fwrite(const void *data, size_t size, size_t count, FILE *file);
char *fgets(char *line, int size, FILE *file);
int fgetc(FILE *file);
int fprintf(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));
int snprintf(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
int vsnprintf(char *text, size_t size, const char *format, va_list arguments) __attribute__((format(printf, 3, 0)));
#endif
