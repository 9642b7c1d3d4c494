#include "pieces.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { JOINED = 0, PIECES_WRONG = 3, DISK_WRONG = 4, PIECES_BUFFER = 1 << 20 };

/* `lines` and `data` are the same file, read at two places: no step has to be kept in memory. */
struct joining {
    FILE *lines, *data;
    int target;
    char *buffer;
    uint64_t size, written;
};

static int wrong(int code, const char *what, const char *about) {
    fprintf(stderr, "join: %s: %s\n", what, about);
    return code;
}

/* How many characters a text begins with that are digits or letters up to `last`. */
static size_t count_letters(const char *text, char last) {
    size_t count = 0;
    while ((text[count] >= '0' && text[count] <= '9') || (text[count] >= 'a' && text[count] <= last)) count++;
    return count;
}

static bool is_stored_name(const char *name) {
    if (count_letters(name, 'f') != 64) return false;
    size_t suffix = name[64] == '.' ? count_letters(name + 65, 'z') : 0;
    return !name[64] || (suffix >= 1 && suffix <= 8 && !name[65 + suffix]);
}

/* The next word of a line, which ends there then; "" where there is none. */
static char *next_word(char **line) {
    char *word = *line, *end = word;
    while (*end && *end != ' ' && *end != '\n') end++;
    *line = *end ? end + 1 : end;
    *end = 0;
    return word;
}

/* Digits and nothing else, up to 2^62: sums of two fit. */
static bool read_size(const char *text, uint64_t *size) {
    *size = 0;
    for (const char *at = text; *at; at++) {
        if (*at < '0' || *at > '9' || *size > (UINT64_C(1) << 58)) return false;
        *size = *size * 10 + (uint64_t)(*at - '0');
    }
    return *text;
}

static int write_out(struct joining *joining, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t count = write(joining->target, joining->buffer + done, size - done);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return wrong(DISK_WRONG, "the file cannot be written", strerror(errno));
        done += (size_t)count;
    }
    joining->written += size;
    return JOINED;
}

static int copy_data(struct joining *joining, uint64_t size) {
    for (int code; size;) {
        size_t part = size < PIECES_BUFFER ? (size_t)size : PIECES_BUFFER;
        if (fread(joining->buffer, 1, part, joining->data) != part)
            return wrong(PIECES_WRONG, "the patch is cut off", "it has fewer bytes than its lines say");
        if ((code = write_out(joining, part))) return code;
        size -= part;
    }
    return JOINED;
}

static int copy_from(struct joining *joining, int source, uint64_t offset, uint64_t size) {
    for (int code; size;) {
        size_t part = size < PIECES_BUFFER ? (size_t)size : PIECES_BUFFER;
        ssize_t count = pread(source, joining->buffer, part, (off_t)offset);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return wrong(PIECES_WRONG, "a file is cut off or unreadable", strerror(count ? errno : 0));
        if ((code = write_out(joining, (size_t)count))) return code;
        offset += (uint64_t)count;
        size -= (uint64_t)count;
    }
    return JOINED;
}

static int copy_named(struct joining *joining, const char *name, uint64_t offset, uint64_t size) {
    if (!is_stored_name(name)) return wrong(PIECES_WRONG, "no name of a stored file", name);
    int source = open(name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (source < 0) return wrong(PIECES_WRONG, name, strerror(errno));
    int code = copy_from(joining, source, offset, size);
    close(source);
    return code;
}

/* One line of the patch: a step, or the size of the whole. */
static int take_line(struct joining *joining, char *line) {
    char *rest = line;
    const char *verb = next_word(&rest), *name = strcmp(verb, "copy") ? "" : next_word(&rest);
    uint64_t offset = 0, size = 0;
    bool sized = (!*name || read_size(next_word(&rest), &offset)) && read_size(next_word(&rest), &size) && !*rest;
    if (!sized) return wrong(PIECES_WRONG, "no line of a patch", verb);
    if (!strcmp(verb, "size") && !joining->written) {
        joining->size = size;
        return JOINED;
    }
    if (size > joining->size - joining->written) return wrong(PIECES_WRONG, "the patch makes more than its size", verb);
    if (*name) return copy_named(joining, name, offset, size);
    return strcmp(verb, "data") ? wrong(PIECES_WRONG, "no line of a patch", verb) : copy_data(joining, size);
}

/* Lines up to `end`, each given to a function or skipped. A line that is too long is taken for two, and refused. */
static int each_line(struct joining *joining, FILE *file, int (*take)(struct joining *, char *)) {
    char line[160];
    if (!fgets(line, sizeof line, file) || strcmp(line, "ort-mobile pieces 1\n"))
        return wrong(PIECES_WRONG, "this is no patch", "its first line is another");
    while (fgets(line, sizeof line, file)) {
        if (!strcmp(line, "end\n")) return JOINED;
        int code = take ? take(joining, line) : JOINED;
        if (code) return code;
    }
    return wrong(PIECES_WRONG, "the patch is cut off", "it has no end");
}

static int join_open(struct joining *joining) {
    int code = each_line(joining, joining->data, NULL);
    if (!code) code = each_line(joining, joining->lines, take_line);
    if (!code && joining->written != joining->size)
        code = wrong(PIECES_WRONG, "the patch is cut off", "it makes less than its size");
    if (!code && fsync(joining->target)) code = wrong(DISK_WRONG, "the file cannot be written", strerror(errno));
    return code;
}

int join_pieces(const char *patch, const char *target) {
    signal(SIGPIPE, SIG_IGN); /* to say what is wrong when nobody listens must not leave half a file */
    struct joining joining = {.lines = fopen(patch, "rb"), .data = fopen(patch, "rb"), .buffer = malloc(PIECES_BUFFER)};
    joining.target = open(target, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int code = PIECES_WRONG;
    if (joining.target < 0)
        wrong(code, target, strerror(errno));
    else if (!joining.lines || !joining.data || !joining.buffer)
        wrong(code, patch, "it cannot be read");
    else
        code = join_open(&joining);
    if (joining.target >= 0 && close(joining.target) && !code)
        code = wrong(DISK_WRONG, "the file cannot be written", strerror(errno));
    if (joining.target >= 0 && code) unlink(target);
    if (joining.lines) fclose(joining.lines);
    if (joining.data) fclose(joining.data);
    free(joining.buffer);
    return code;
}
