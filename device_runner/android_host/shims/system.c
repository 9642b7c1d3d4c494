/* The system: numbers of sysconf, pathconf and nftw, signal sets, properties, the abort message. */
#define _GNU_SOURCE
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bionic.h"

#define PROPERTY_BYTES 92 /* PROP_VALUE_MAX, the end mark included */
#define UNKNOWN (-1)

typedef unsigned long bionic_sigset;

ADAPTER int *bionic___errno(void) { return &errno; }

ADAPTER void bionic___assert2(const char *file, int line, const char *function, const char *text) {
    fprintf(stderr, "%s:%d: %s: assertion \"%s\" failed\n", file, line, function, text);
    abort();
}

ADAPTER void bionic_android_set_abort_message(const char *text) { fprintf(stderr, "%s\n", text ? text : ""); }

struct number {
    int bionic;
    int here;
};

static const struct number SYSCONF[] = {
    {0x06, _SC_CLK_TCK},          {0x0b, _SC_OPEN_MAX},         {0x26, _SC_IOV_MAX},
    {0x27, _SC_PAGESIZE},         {0x28, _SC_PAGESIZE},         {0x4c, _SC_THREAD_STACK_MIN},
    {0x60, _SC_NPROCESSORS_CONF}, {0x61, _SC_NPROCESSORS_ONLN}, {0x62, _SC_PHYS_PAGES},
    {0x63, _SC_AVPHYS_PAGES},     {0x6f, _SC_HOST_NAME_MAX},
};

#define BIONIC_FIRST_CACHE 0x8f
#define BIONIC_LAST_CACHE 0x9d

ADAPTER long bionic_sysconf(int name) {
    if (name >= BIONIC_FIRST_CACHE && name <= BIONIC_LAST_CACHE)
        return sysconf(_SC_LEVEL1_ICACHE_SIZE + (name - BIONIC_FIRST_CACHE));
    for (size_t i = 0; i < sizeof SYSCONF / sizeof *SYSCONF; i++)
        if (SYSCONF[i].bionic == name) return sysconf(SYSCONF[i].here);
    errno = EINVAL;
    return UNKNOWN;
}

static const int PATHCONF[] = {
    _PC_FILESIZEBITS,   _PC_LINK_MAX,          _PC_MAX_CANON,         _PC_MAX_INPUT,          _PC_NAME_MAX,
    _PC_PATH_MAX,       _PC_PIPE_BUF,          _PC_2_SYMLINKS,        _PC_ALLOC_SIZE_MIN,     _PC_REC_INCR_XFER_SIZE,
    _PC_REC_MAX_XFER_SIZE, _PC_REC_MIN_XFER_SIZE, _PC_REC_XFER_ALIGN, _PC_SYMLINK_MAX,        _PC_CHOWN_RESTRICTED,
    _PC_NO_TRUNC,       _PC_VDISABLE,          _PC_ASYNC_IO,          _PC_PRIO_IO,            _PC_SYNC_IO,
};

ADAPTER long bionic_pathconf(const char *path, int name) {
    if (name >= 0 && (size_t)name < sizeof PATHCONF / sizeof *PATHCONF) return pathconf(path, PATHCONF[name]);
    errno = EINVAL;
    return UNKNOWN;
}

/* bionic's flags: PHYS 1, MOUNT 2, DEPTH 4, CHDIR 8. Its types: F 0, D 1, DNR 2, DP 3, NS 4, SL 5, SLN 6. */
#if defined(__LP64__)
#define bionic_stat_structure stat
#define nftw_of_bionic nftw
#else
#define bionic_stat_structure stat64
#define nftw_of_bionic nftw64
#endif
typedef int (*visitor)(const char *, const struct bionic_stat_structure *, int, struct FTW *);
static __thread visitor visit;

static int bionic_type(int type) {
    static const struct number TYPES[] = {{0, FTW_F},  {1, FTW_D},  {2, FTW_DNR}, {3, FTW_DP},
                                        {4, FTW_NS}, {5, FTW_SL}, {6, FTW_SLN}};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (TYPES[i].here == type) return TYPES[i].bionic;
    return 4;
}

static int visit_one(const char *path, const struct bionic_stat_structure *status, int type, struct FTW *place) {
    return visit(path, status, bionic_type(type), place);
}

ADAPTER int bionic_nftw(const char *path, visitor each, int descriptors, int flags) {
    visitor outer = visit;
    int here = (flags & 1 ? FTW_PHYS : 0) | (flags & 2 ? FTW_MOUNT : 0) | (flags & 4 ? FTW_DEPTH : 0) |
             (flags & 8 ? FTW_CHDIR : 0);
    visit = each;
    int result = nftw_of_bionic(path, visit_one, descriptors, here);
    visit = outer;
    return result;
}

ADAPTER int bionic_sigfillset(bionic_sigset *set) {
    *set = ~(bionic_sigset)0;
    return 0;
}

ADAPTER int bionic_sigemptyset(bionic_sigset *set) {
    *set = 0;
    return 0;
}

/* Both hold one bit for each signal from bit 0 on; glibc's set is longer and would overrun bionic's 8 bytes (4 on 32 bits). */
ADAPTER int bionic_pthread_sigmask(int how, const bionic_sigset *set, bionic_sigset *old) {
    sigset_t here, before;
    sigemptyset(&here);
    if (set) memcpy(&here, set, sizeof *set);
    int code = pthread_sigmask(how, set ? &here : NULL, &before);
    if (!code && old) memcpy(old, &before, sizeof *old);
    return code;
}

ADAPTER ssize_t bionic___read_chk(int descriptor, void *bytes, size_t count, size_t room) {
    if (count > room) abort();
    return read(descriptor, bytes, count);
}

static int checked(int descriptor, size_t room) {
    if (descriptor < 0 || descriptor >= FD_SETSIZE || room < sizeof(fd_set)) abort();
    return descriptor;
}

ADAPTER int bionic___FD_ISSET_chk(int descriptor, const fd_set *set, size_t room) {
    return FD_ISSET(checked(descriptor, room), set);
}

ADAPTER void bionic___FD_SET_chk(int descriptor, fd_set *set, size_t room) { FD_SET(checked(descriptor, room), set); }

ADAPTER void bionic___FD_CLR_chk(int descriptor, fd_set *set, size_t room) { FD_CLR(checked(descriptor, room), set); }

static int give(char value[PROPERTY_BYTES], const char *text, size_t length) {
    if (length >= PROPERTY_BYTES) length = PROPERTY_BYTES - 1;
    memcpy(value, text, length);
    value[length] = 0;
    return (int)length;
}

static int read_property(const char *name, char value[PROPERTY_BYTES]) {
    const char *path = getenv(VARIABLE_PROPERTIES);
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[512];
    size_t length = strlen(name);
    int found = give(value, "", 0);
    while (file && !found && fgets(line, sizeof line, file))
        if (!strncmp(line, name, length) && line[length] == '=')
            found = give(value, line + length + 1, strcspn(line + length + 1, "\r\n"));
    if (file) fclose(file);
    return found;
}

/* Returns the length of the value, 0 when it is not set, as on a phone. */
ADAPTER int bionic___system_property_get(const char *name, char value[PROPERTY_BYTES]) {
    const char *sdk = getenv(VARIABLE_SDK);
    if (sdk && !strcmp(name, "ro.build.version.sdk")) return give(value, sdk, strlen(sdk));
    return read_property(name, value);
}
