/* Text: fortified forms, error texts, Android's class table and its dirname. */
#define _GNU_SOURCE
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "bionic.h"

#if defined(__x86_64__)
extern binary128 strtof128(const char *text, char **end);
extern binary128 strtof128_l(const char *text, char **end, locale_t locale);
#else
#define strtof128 strtold
#define strtof128_l strtold_l
#endif
extern int __xpg_strerror_r(int number, char *text, size_t size);

ADAPTER binary128 bionic_strtold(const char *text, char **end) { return strtof128(text, end); }

ADAPTER binary128 bionic_strtold_l(const char *text, char **end, locale_t locale) {
    return strtof128_l(text, end, locale);
}

ADAPTER int bionic_strerror_r(int number, char *text, size_t size) { return __xpg_strerror_r(number, text, size); }

ADAPTER char *bionic___gnu_strerror_r(int number, char *text, size_t size) { return strerror_r(number, text, size); }

ADAPTER size_t bionic___strlen_chk(const char *text, size_t room) {
    size_t length = strlen(text);
    if (length >= room) abort();
    return length;
}

ADAPTER char *bionic___strchr_chk(const char *text, int c, size_t room) {
    if (strnlen(text, room) == room) abort();
    return strchr(text, c);
}

ADAPTER char *bionic___strrchr_chk(const char *text, int c, size_t room) {
    if (strnlen(text, room) == room) abort();
    return strrchr(text, c);
}

ADAPTER char *bionic___strncpy_chk2(char *to, const char *from, size_t count, size_t room, size_t from_room) {
    if (count > room || (strnlen(from, from_room) == from_room && count > from_room)) abort();
    return strncpy(to, from, count);
}

/* setjmp of glibc keeps the mask of signals in its structure, for which bionic's has no room; its _setjmp does not. */
#if defined(__x86_64__)
#define JUMP "jmp *_setjmp@GOTPCREL(%rip)"
#else
#define JUMP "b _setjmp"
#endif
__asm__(".globl bionic_setjmp\n.hidden bionic_setjmp\n.type bionic_setjmp, %function\nbionic_setjmp: " JUMP);

static const char *without_slashes(const char *start, const char *end) {
    while (end > start + 1 && end[-1] == '/') end--;
    return end;
}

static const char *parent_end(const char *path, const char *end) {
    while (end > path && end[-1] != '/') end--;
    return end > path ? without_slashes(path, end) : path;
}

/* Unlike glibc's it never writes into its argument, which the library passes a constant string. */
ADAPTER char *bionic_dirname(const char *path) {
    static __thread char folder[4096];
    const char *end = path && *path ? parent_end(path, without_slashes(path, path + strlen(path))) : path;
    size_t length = end ? (size_t)(end - path) : 0;
    if (length >= sizeof folder) return NULL;
    memcpy(folder, length ? path : ".", length ? length : 1);
    folder[length ? length : 1] = 0;
    return folder;
}

/* Class bits of one byte in bionic's table: upper 1, lower 2, digit 4, space 8, punctuation 16, control 32, a-f 64,
   blank 128. ASCII only, as in bionic. */
static unsigned char class_of(int c) {
    if (c >= 'A' && c <= 'Z') return c <= 'F' ? 0x41 : 0x01;
    if (c >= 'a' && c <= 'z') return c <= 'f' ? 0x42 : 0x02;
    if (c >= '0' && c <= '9') return 0x04;
    if (c == ' ') return 0x88;
    if (c >= '\t' && c <= '\r') return 0x28;
    if (c < ' ' || c == 0x7f) return 0x20;
    return c < 0x7f ? 0x10 : 0;
}

extern ADAPTER const char *bionic__ctype_;
static unsigned char classes[1 + 256]; /* the first is that of EOF */

__attribute__((constructor(101))) static void fill_classes(void) {
    for (int c = 0; c < 256; c++) classes[1 + c] = class_of(c);
    bionic__ctype_ = (const char *)classes;
}
