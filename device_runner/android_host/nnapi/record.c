/* The record of calls: one JSON line each, appended whole, so that threads and processes never mix theirs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define VARIABLE_RECORD "ORT_MOBILE_NNAPI_RECORD"
#define LINE_BYTES 16384
#define PREFIX "ANeuralNetworks"

static int descriptor = -1;

static void open_record(void) {
    const char *path = getenv(VARIABLE_RECORD);
    if (path) descriptor = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (path && descriptor < 0) fprintf(stderr, "android-host: the record of calls cannot be written: %s\n", path);
}

enum result record(enum result code, const char *call, const char *members, ...) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static __thread char line[LINE_BYTES];
    pthread_once(&once, open_record);
    if (descriptor < 0) return code;
    int used = snprintf(line, sizeof line, "{\"call\":\"" PREFIX "%s\"", call);
    if (*members) line[used++] = ',';
    va_list values;
    va_start(values, members);
    int added = vsnprintf(line + used, sizeof line - (size_t)used, members, values);
    va_end(values);
    if (added < 0 || (size_t)(used + added) > sizeof line - 32) return code;
    used += added;
    used += snprintf(line + used, sizeof line - (size_t)used, ",\"result\":%d}\n", (int)code);
    if (write(descriptor, line, (size_t)used) != used) descriptor = -1;
    return code;
}

const char *list_numbers(char *text, size_t size, const uint32_t *numbers, size_t count) {
    size_t used = 0;
    *text = 0;
    for (size_t i = 0; numbers && i < count && used + 12 < size; i++)
        used += (size_t)snprintf(text + used, size - used, i ? ",%u" : "%u", numbers[i]);
    return text;
}

enum result refuse(const char *format, ...) {
    va_list values;
    va_start(values, format);
    fputs("android-host: NNAPI refuses: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
    return BAD_DATA;
}

const char *caller_at(const void *address) {
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname) return "";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

uint32_t next_id(void) {
    static atomic_uint last;
    return ++last;
}
