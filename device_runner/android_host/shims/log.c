/* liblog: ONNX Runtime's own log goes here on Android. One line for each message, "PRIORITY/TAG: TEXT". */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bionic.h"

static FILE *open_log(void) {
    const char *path = getenv(VARIABLE_LOG);
    return path ? fopen(path, "ae") : NULL;
}

/* Priorities of Android: 2 verbose, 3 debug, 4 info, 5 warning, 6 error, 7 fatal. */
static char letter(int priority) { return priority >= 2 && priority <= 7 ? "VDIWEF"[priority - 2] : '?'; }

ADAPTER int bionic___android_log_write(int priority, const char *tag, const char *text) {
    FILE *file = open_log();
    int written = fprintf(file ? file : stderr, "%c/%s: %s\n", letter(priority), tag ? tag : "", text ? text : "");
    if (file) fclose(file);
    return written;
}

ADAPTER int bionic___android_log_vprint(int priority, const char *tag, const char *format, va_list values) {
    char *text = NULL;
    if (vasprintf(&text, format, values) < 0) return -1;
    int written = bionic___android_log_write(priority, tag, text);
    free(text);
    return written;
}

ADAPTER int bionic___android_log_print(int priority, const char *tag, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int written = bionic___android_log_vprint(priority, tag, format, values);
    va_end(values);
    return written;
}
