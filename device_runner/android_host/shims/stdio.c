/* Streams and formatted output: Android's FILE objects are an array (__sF) or variables, glibc's are its own. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "bionic.h"

#if defined(__LP64__)
#define BIONIC_FILE_BYTES 152
#else
#define BIONIC_FILE_BYTES 84
#endif
#define BIONIC_FILES 3

/* Filled in by the assembler's data section; code of old NDKs takes addresses inside bionic___sF for its streams. */
extern ADAPTER char bionic___sF[BIONIC_FILES * BIONIC_FILE_BYTES];
extern ADAPTER FILE *bionic_stdin, *bionic_stdout, *bionic_stderr;

/* Priority 101: before any constructor of the library that reads these variables. */
__attribute__((constructor(101))) static void fill_streams(void) {
    bionic_stdin = stdin;
    bionic_stdout = stdout;
    bionic_stderr = stderr;
}

static FILE *host(FILE *stream) {
    char *address = (char *)stream;
    if (address < bionic___sF || address >= bionic___sF + sizeof bionic___sF) return stream;
    FILE *streams[BIONIC_FILES] = {stdin, stdout, stderr};
    return streams[(address - bionic___sF) / BIONIC_FILE_BYTES];
}

/* A long double is IEEE binary128 on Android's x86_64, and x87's 80 bits here: its text is wrong. */
static void report_long_double(const char *format) {
#if !defined(__x86_64__)
    return;
#endif
    for (const char *at = strchr(format, '%'); at; at = strchr(at + 1, '%')) {
        at += 1 + strspn(at + 1, "-+ #0123456789.*'");
        if (*at == 'L') fprintf(stderr, "android-host: long double in the format \"%s\" is printed wrongly\n", format);
        if (!*at) return;
    }
}

ADAPTER void bionic_clearerr(FILE *stream) { clearerr(host(stream)); }
ADAPTER int bionic_fclose(FILE *stream) { return fclose(host(stream)); }
ADAPTER int bionic_feof(FILE *stream) { return feof(host(stream)); }
ADAPTER int bionic_ferror(FILE *stream) { return ferror(host(stream)); }
ADAPTER int bionic_fflush(FILE *stream) { return fflush(stream ? host(stream) : NULL); }
ADAPTER int bionic_fgetc(FILE *stream) { return fgetc(host(stream)); }
ADAPTER char *bionic_fgets(char *text, int size, FILE *stream) { return fgets(text, size, host(stream)); }
ADAPTER int bionic_fileno(FILE *stream) { return fileno(host(stream)); }
ADAPTER int bionic_fputc(int c, FILE *stream) { return fputc(c, host(stream)); }
ADAPTER int bionic_fputs(const char *text, FILE *stream) { return fputs(text, host(stream)); }
ADAPTER wint_t bionic_fputwc(wchar_t c, FILE *stream) { return fputwc(c, host(stream)); }
ADAPTER int bionic_fseek(FILE *stream, long offset, int whence) { return fseek(host(stream), offset, whence); }
ADAPTER int bionic_fseeko(FILE *stream, off_t offset, int whence) { return fseeko(host(stream), offset, whence); }
ADAPTER long bionic_ftell(FILE *stream) { return ftell(host(stream)); }
ADAPTER off_t bionic_ftello(FILE *stream) { return ftello(host(stream)); }
ADAPTER int bionic_getc(FILE *stream) { return getc(host(stream)); }
ADAPTER wint_t bionic_getwc(FILE *stream) { return getwc(host(stream)); }
ADAPTER int bionic_putc(int c, FILE *stream) { return putc(c, host(stream)); }
ADAPTER void bionic_rewind(FILE *stream) { rewind(host(stream)); }
ADAPTER void bionic_setbuf(FILE *stream, char *buffer) { setbuf(host(stream), buffer); }
ADAPTER int bionic_ungetc(int c, FILE *stream) { return ungetc(c, host(stream)); }
ADAPTER wint_t bionic_ungetwc(wint_t c, FILE *stream) { return ungetwc(c, host(stream)); }

ADAPTER size_t bionic_fread(void *items, size_t size, size_t count, FILE *stream) {
    return fread(items, size, count, host(stream));
}

ADAPTER size_t bionic_fwrite(const void *items, size_t size, size_t count, FILE *stream) {
    return fwrite(items, size, count, host(stream));
}

ADAPTER int bionic_setvbuf(FILE *stream, char *buffer, int mode, size_t size) {
    return setvbuf(host(stream), buffer, mode, size);
}

ADAPTER int bionic_vfprintf(FILE *stream, const char *format, va_list values) {
    report_long_double(format);
    return vfprintf(host(stream), format, values);
}

ADAPTER int bionic_fprintf(FILE *stream, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int written = bionic_vfprintf(stream, format, values);
    va_end(values);
    return written;
}

ADAPTER int bionic_vfscanf(FILE *stream, const char *format, va_list values) {
    return vfscanf(host(stream), format, values);
}

ADAPTER int bionic_fscanf(FILE *stream, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int read = bionic_vfscanf(stream, format, values);
    va_end(values);
    return read;
}

ADAPTER int bionic_vsnprintf(char *text, size_t size, const char *format, va_list values) {
    report_long_double(format);
    return vsnprintf(text, size, format, values);
}

ADAPTER int bionic_snprintf(char *text, size_t size, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int written = bionic_vsnprintf(text, size, format, values);
    va_end(values);
    return written;
}

ADAPTER int bionic_vsprintf(char *text, const char *format, va_list values) {
    report_long_double(format);
    return vsprintf(text, format, values);
}

ADAPTER int bionic_sprintf(char *text, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int written = bionic_vsprintf(text, format, values);
    va_end(values);
    return written;
}

ADAPTER int bionic_vasprintf(char **text, const char *format, va_list values) {
    report_long_double(format);
    return vasprintf(text, format, values);
}

ADAPTER int bionic_asprintf(char **text, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int written = bionic_vasprintf(text, format, values);
    va_end(values);
    return written;
}

/* The fortified forms: `flags` is unused in bionic too; `room` is the size of the object that `text` points into. */
ADAPTER int bionic___vsnprintf_chk(char *text, size_t size, int flags, size_t room, const char *format,
                                   va_list values) {
    (void)flags;
    if (size > room) abort();
    return bionic_vsnprintf(text, size, format, values);
}

ADAPTER int bionic___vsprintf_chk(char *text, int flags, size_t room, const char *format, va_list values) {
    (void)flags;
    int written = bionic_vsnprintf(text, room, format, values);
    if (written >= 0 && (size_t)written >= room) abort();
    return written;
}
