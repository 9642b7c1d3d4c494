#include "turns.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include "platform.h"

#if defined(__APPLE__)

/* An app may start no process; what runs turns there is an app that is launched for each. */
int run_turns(const char *folder, const char *seconds) {
    (void)folder, (void)seconds;
    return 2;
}

#else

enum { LINE_BYTES = 64, NAME_BYTES = LINE_BYTES + 32, NOT_FIT = 75, POLL_SECONDS = 5, CANNOT_START = 126 };

static void name_file(char *name, const char *turn, const char *what) { snprintf(name, NAME_BYTES, "%s.%s", turn, what); }

static bool exists(const char *name) {
    int file = open(name, O_RDONLY | O_CLOEXEC);
    return file >= 0 && !close(file);
}

/* Whole or not at all: a runner may be killed at any moment. */
static bool note(const char *turn, const char *what, const char *text) {
    char name[NAME_BYTES], part[NAME_BYTES];
    name_file(name, turn, what), name_file(part, turn, "part");
    FILE *file = fopen(part, "w");
    if (!file) return false;
    bool written = fwrite(text, 1, strlen(text), file) == strlen(text);
    return !fclose(file) && written && !rename(part, name);
}

static void redirect(const char *name, int to) {
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file >= 0) dup2(file, to), close(file);
}

/* Run a program with its output in files; its exit code, 128 and more for a signal. It is executed anew: a fork alone
 * would share its parent's addresses with all others, and with them the luck of one process. */
static int run_program(char *const *words, const char *out, const char *errors) {
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) return CANNOT_START;
    if (!pid) {
#if defined(__linux__)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
        if (getppid() != parent) _exit(CANNOT_START);
        redirect(out, STDOUT_FILENO);
        redirect(errors, STDERR_FILENO);
        execvp(words[0], words);
        _exit(CANNOT_START);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) continue;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Note the state of the device; whether runs may start in it. */
static bool note_state(const char *turn, const char *when) {
    char name[NAME_BYTES], *words[] = {"sh", "../state.sh", NULL};
    name_file(name, turn, when);
    return run_program(words, name, "/dev/null") != NOT_FIT;
}

/* Whoever waits in vain goes on: the state is noted, and the host judges. */
static void wait_until_fit(const char *turn, uint64_t seconds) {
    uint64_t end = now_ns() + seconds * 1000000000u;
    while (!note_state(turn, "before") && now_ns() < end) {
        uint64_t left = (end - now_ns()) / 1000000000u + 1;
        nanosleep(&(struct timespec){.tv_sec = (time_t)(left < POLL_SECONDS ? left : POLL_SECONDS)}, NULL);
    }
}

static bool run_turn(const char *turn, char *self, uint64_t seconds) {
    char name[NAME_BYTES], request[NAME_BYTES], text[NAME_BYTES], answer[NAME_BYTES], part[NAME_BYTES];
    name_file(name, turn, "code");
    if (exists(name)) return true;
    name_file(name, turn, "begun");
    if (exists(name)) return note(turn, "code", "lost\n");
    wait_until_fit(turn, seconds);
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)wall_ms());
    if (!note(turn, "begun", text)) return false;
    snprintf(request, sizeof request, "../requests/%s", turn);
    name_file(answer, turn, "answer"), name_file(part, turn, "part"), name_file(name, turn, "errors");
    char *words[] = {self, request, NULL};
    snprintf(text, sizeof text, "%d\n", run_program(words, part, name));
    note_state(turn, "after");
    return !rename(part, answer) && note(turn, "code", text);
}

/* The turn of a line without its end; false for a name that could lead elsewhere. */
static bool cut_name(char *line) {
    size_t length = 0;
    while (line[length] >= '0' && line[length] <= '9') length++;
    bool whole = length && length <= 8 && (line[length] == '\n' || !line[length]);
    line[length] = 0;
    return whole;
}

int run_turns(const char *folder, const char *seconds) {
    char self[4096], line[LINE_BYTES];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0 || chdir(folder)) return 2;
    self[length] = 0;
    FILE *turns = fopen("turns", "r");
    mkdir("session", 0755);
    if (!turns || chdir("session")) return 2;
    int lock = open("../lock", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (lock < 0) return 2;
    if (flock(lock, LOCK_EX | LOCK_NB)) return 3;
    uint64_t wait_seconds = strtoull(seconds, NULL, 10);
    int code = 0;
    while (!code && fgets(line, sizeof line, turns))
        if (!cut_name(line) || !run_turn(line, self, wait_seconds < 86400 ? wait_seconds : 86400)) code = 2;
    fclose(turns);
    close(lock);
    return code;
}

#endif
