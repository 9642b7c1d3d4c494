#include "json.h"

#include <string.h>

#include "checksum.h"

void put(struct sink *sink, const char *text, size_t length) {
    sink->sum = checksum(sink->sum, text, length);
    if (sink->file) {
        fwrite(text, 1, length, sink->file);
    } else if (sink->full || length >= sink->capacity - sink->used) {
        sink->full = true;
    } else {
        memcpy(sink->bytes + sink->used, text, length);
        sink->used += length;
        sink->bytes[sink->used] = 0;
    }
}

void put_text(struct sink *sink, const char *text) { put(sink, text, strlen(text)); }

void put_number(struct sink *sink, long long value) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%lld", value);
    put(sink, digits, (size_t)length);
}

/* Bytes of the UTF-8 character at `text`, 0 if it is none: overlong forms and surrogates are none (RFC 3629). */
static size_t utf8_length(const unsigned char *text) {
    static const struct {
        unsigned char first, last, low, high, length;
    } FORMS[] = {
        {0x20, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t form = 0; form < sizeof FORMS / sizeof *FORMS; form++) {
        if (text[0] < FORMS[form].first || text[0] > FORMS[form].last) continue;
        size_t length = FORMS[form].length;
        if (length > 1 && (text[1] < FORMS[form].low || text[1] > FORMS[form].high)) return 0;
        for (size_t at = 2; at < length; at++)
            if ((text[at] & 0xc0) != 0x80) return 0;
        return length;
    }
    return 0;
}

void put_string(struct sink *sink, const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    put_text(sink, "\"");
    while (*at) {
        size_t length = utf8_length(at);
        char escaped[8];
        if (*at == '"' || *at == '\\') {
            snprintf(escaped, sizeof escaped, "\\%c", *at);
            put_text(sink, escaped);
        } else if (length) {
            put(sink, (const char *)at, length);
        } else {
            snprintf(escaped, sizeof escaped, "\\u%04x", *at < 0x20 ? *at : 0xfffdu);
            put_text(sink, escaped);
        }
        at += length ? length : 1;
    }
    put_text(sink, "\"");
}

void put_key(struct sink *sink, const char *key, bool first) {
    if (!first) put_text(sink, ",");
    put_string(sink, key);
    put_text(sink, ":");
}

void put_field(struct sink *sink, const char *key, const char *value) {
    put_key(sink, key, false);
    put_string(sink, value);
}

void put_count(struct sink *sink, const char *key, uint64_t value) {
    put_key(sink, key, false);
    put_number(sink, (long long)value);
}
