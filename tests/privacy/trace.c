/* trace LOG PROGRAM [ARGUMENT...]: runs a program and notes what it and all its children try to reach or to change.
 *
 * A seccomp filter stops each of these system calls before it is made, so that neither a statically linked library nor
 * a thread nor a child is missed. LOG gets "what\twhere\0" for each: `connect` and `send` with an address, and `open`
 * (for writing), `mkdir`, `rename`, `remove`, `link` with an absolute path. The exit code is the program's; 125 when it
 * cannot be traced here.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/ptrace.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

long ptrace(int, ...); /* <sys/ptrace.h> and <linux/ptrace.h> define the same names */

enum { CANNOT_TRACE = 125, WRITES = O_WRONLY | O_RDWR | O_CREAT };

/* Where a call keeps what is noted: the argument with the path (its folder's descriptor before it, if `at`), or with
 * the address, or with the message header. */
enum how { PATH, PATH_AT, OPEN, OPEN_AT, OPEN_HOW, ADDRESS, ADDRESS_5TH, MESSAGE };

static const struct watched {
    long number;
    const char *what;
    enum how how;
    int argument;
} WATCHED[] = {
    {SYS_connect, "connect", ADDRESS, 1},
    {SYS_sendto, "send", ADDRESS_5TH, 4},
    {SYS_sendmsg, "send", MESSAGE, 1},
    {SYS_sendmmsg, "send", MESSAGE, 1},
    {SYS_openat, "open", OPEN_AT, 1},
    {SYS_openat2, "open", OPEN_HOW, 1},
    {SYS_mkdirat, "mkdir", PATH_AT, 1},
    {SYS_renameat2, "rename", PATH_AT, 3},
    {SYS_unlinkat, "remove", PATH_AT, 1},
    {SYS_linkat, "link", PATH_AT, 3},
    {SYS_symlinkat, "link", PATH_AT, 2},
    {SYS_mknodat, "mknod", PATH_AT, 1},
    {SYS_truncate, "open", PATH, 0},
#ifdef SYS_renameat
    {SYS_renameat, "rename", PATH_AT, 3},
#endif
#ifdef SYS_open
    {SYS_open, "open", OPEN, 0},
    {SYS_creat, "open", PATH, 0},
    {SYS_mkdir, "mkdir", PATH, 0},
    {SYS_rename, "rename", PATH, 1},
    {SYS_unlink, "remove", PATH, 0},
    {SYS_rmdir, "remove", PATH, 0},
    {SYS_link, "link", PATH, 1},
    {SYS_symlink, "link", PATH, 1},
    {SYS_mknod, "mknod", PATH, 0},
#endif
};
enum { COUNT = sizeof WATCHED / sizeof *WATCHED };

static FILE *log_file;

static size_t copy_in(pid_t pid, uint64_t from, void *to, size_t size) {
    struct iovec here = {to, size}, there = {(void *)(uintptr_t)from, size};
    ssize_t count = process_vm_readv(pid, &here, 1, &there, 1, 0);
    return count < 0 ? 0 : (size_t)count;
}

/* A text of the process; read up to the end of a page at a time, because the next one may not be there. */
static void copy_text(pid_t pid, uint64_t from, char *to, size_t size) {
    size_t length = 0;
    while (length + 1 < size) {
        size_t part = 4096 - (from + length) % 4096;
        if (part > size - 1 - length) part = size - 1 - length;
        part = copy_in(pid, from + length, to + length, part);
        char *end = memchr(to + length, 0, part);
        if (end) return;
        if (!part) break;
        length += part;
    }
    to[length] = 0;
}

static void note(const char *what, const char *where) {
    fprintf(log_file, "%s\t%s", what, where);
    fputc(0, log_file);
    fflush(log_file);
}

static void note_path(pid_t pid, const char *what, int folder, uint64_t address) {
    char path[4096], base[4096] = "", name[64], whole[8200];
    copy_text(pid, address, path, sizeof path);
    if (path[0] == '/') {
        note(what, path);
        return;
    }
    if (folder == AT_FDCWD) snprintf(name, sizeof name, "/proc/%d/cwd", (int)pid);
    else snprintf(name, sizeof name, "/proc/%d/fd/%d", (int)pid, folder);
    ssize_t length = readlink(name, base, sizeof base - 1);
    base[length < 0 ? 0 : length] = 0;
    snprintf(whole, sizeof whole, "%s/%s", base, path);
    note(what, whole);
}

static void note_address(pid_t pid, const char *what, uint64_t address, uint64_t size) {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_un local;
        char bytes[sizeof(struct sockaddr_un) + 1];
    } to = {0};
    char text[INET6_ADDRSTRLEN] = "", whole[160];
    if (!address) return; /* on a connected socket: its connect was noted */
    if (!copy_in(pid, address, to.bytes, size < sizeof to.local ? size : sizeof to.local)) return;
    if (to.any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &to.v4.sin_addr, text, sizeof text);
        snprintf(whole, sizeof whole, "%s:%d", text, ntohs(to.v4.sin_port));
    } else if (to.any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &to.v6.sin6_addr, text, sizeof text);
        snprintf(whole, sizeof whole, "[%s]:%d", text, ntohs(to.v6.sin6_port));
    } else if (to.any.sa_family == AF_UNIX) {
        snprintf(whole, sizeof whole, "unix:%s%s", to.local.sun_path[0] ? "" : "@",
                 to.local.sun_path + !to.local.sun_path[0]);
    } else {
        snprintf(whole, sizeof whole, "family %d", to.any.sa_family);
    }
    note(what, whole);
}

static void note_call(pid_t pid, const struct watched *call, const uint64_t *arguments) {
    uint64_t place = arguments[call->argument], flags = 0;
    struct msghdr message = {0};
    switch (call->how) {
    case PATH: note_path(pid, call->what, AT_FDCWD, place); break;
    case PATH_AT: note_path(pid, call->what, (int)arguments[call->argument - 1], place); break;
    case OPEN: /* the filter lets only writers stop */ note_path(pid, call->what, AT_FDCWD, place); break;
    case OPEN_AT: note_path(pid, call->what, (int)arguments[0], place); break;
    case OPEN_HOW:
        copy_in(pid, arguments[2], &flags, sizeof flags);
        if (flags & WRITES) note_path(pid, call->what, (int)arguments[0], place);
        break;
    case ADDRESS: note_address(pid, call->what, place, arguments[2]); break;
    case ADDRESS_5TH: note_address(pid, call->what, place, arguments[5]); break;
    case MESSAGE:
        copy_in(pid, place, &message, sizeof message);
        note_address(pid, call->what, (uintptr_t)message.msg_name, message.msg_namelen);
        break;
    }
}

static void note_stop(pid_t pid) {
    struct ptrace_syscall_info info = {0};
    if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) <= 0) return;
    for (size_t i = 0; i < COUNT; i++)
        if (WATCHED[i].number == (long)info.seccomp.nr) {
            uint64_t arguments[6];
            for (int k = 0; k < 6; k++) arguments[k] = info.seccomp.args[k];
            note_call(pid, &WATCHED[i], arguments);
            return;
        }
}

/* Let the calls of the table stop for the tracer; those that open files only when they may write. */
static int set_filter(void) {
    struct sock_filter code[8 * COUNT + 2];
    unsigned short n = 0;
    for (size_t i = 0; i < COUNT; i++) {
        const struct watched *call = &WATCHED[i];
        int flags = call->how == OPEN ? 1 : call->how == OPEN_AT ? 2 : -1;
        code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call->number, 0,
                                                 flags < 0 ? 1 : 4);
        if (flags >= 0) {
            uint32_t place = (uint32_t)(offsetof(struct seccomp_data, args) + 8 * (size_t)flags);
            code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, place);
            code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, WRITES, 1, 0);
            code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        }
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {n, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void go_on(pid_t pid, int status) {
    int event = status >> 16, sign = WSTOPSIG(status);
    if (event == PTRACE_EVENT_SECCOMP) note_stop(pid);
    if (event == PTRACE_EVENT_STOP && sign != SIGTRAP) ptrace(PTRACE_LISTEN, pid, 0, 0); /* stopped as by a shell */
    else ptrace(PTRACE_CONT, pid, 0, (long)(event ? 0 : sign));
}

int main(int count, char **arguments) {
    int ready[2], code = CANNOT_TRACE, status;
    char byte = 0;
    if (count < 3 || !(log_file = fopen(arguments[1], "we")) || pipe(ready)) return CANNOT_TRACE;
    pid_t program = fork(), pid;
    if (program < 0) return CANNOT_TRACE;
    if (!program) {
        close(ready[1]);
        if (read(ready[0], &byte, 1) != 1 || set_filter()) _exit(CANNOT_TRACE);
        close(ready[0]);
        execvp(arguments[2], arguments + 2);
        _exit(127);
    }
    long options = PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC |
                   PTRACE_O_TRACESECCOMP | PTRACE_O_EXITKILL;
    close(ready[0]);
    if (ptrace(PTRACE_SEIZE, program, 0, options)) {
        perror("trace: PTRACE_SEIZE");
        close(ready[1]);
        return CANNOT_TRACE;
    }
    if (write(ready[1], &byte, 1) != 1) return CANNOT_TRACE;
    close(ready[1]);
    while ((pid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR) {
        if (pid < 0) continue;
        if (WIFSTOPPED(status)) go_on(pid, status);
        else if (pid == program) code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return code;
}
