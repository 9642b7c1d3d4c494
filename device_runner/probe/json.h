/* Writes JSON to a file or into a bounded buffer: never invalid, whatever bytes a name or message has. */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Where text goes: `file` if there is one, else `bytes`, which stays NUL-ended; `full` says that some did not fit.
 * `sum` is the checksum of all that was put. */
struct sink {
    FILE *file;
    char *bytes;
    size_t capacity, used;
    bool full;
    uint32_t sum;
};

void put(struct sink *sink, const char *text, size_t length);
void put_text(struct sink *sink, const char *text);
void put_number(struct sink *sink, long long value);

/* A string in quotes; bytes that are no UTF-8 become U+FFFD. */
void put_string(struct sink *sink, const char *text);

/* `"key":`, after a comma unless it is the first of its object. */
void put_key(struct sink *sink, const char *key, bool first);
void put_field(struct sink *sink, const char *key, const char *value);
void put_count(struct sink *sink, const char *key, uint64_t value);

#endif
