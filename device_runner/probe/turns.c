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

enum { LINE_BYTES = 64, NAME_BYTES = LINE_BYTES + 32, POLL_SECONDS = 5, MOST_SECONDS = 86400 };

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

#if defined(PROBE_APP)

static bool prepare(void) { return true; }

/* In this process; what it prints goes to files meanwhile. */
static int run(const char *request, const char *out, const char *errors) {
    int kept[] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    fflush(NULL);
    redirect(out, STDOUT_FILENO);
    redirect(errors, STDERR_FILENO);
    int code = run_request(request);
    fflush(NULL);
    for (int end = 0; end < 2; end++) dup2(kept[end], STDOUT_FILENO + end), close(kept[end]);
    return code;
}

static bool note_state(const struct turns_order *order, const char *turn, const char *when) {
    char name[NAME_BYTES];
    name_file(name, turn, when);
    return order->write_state(name);
}

#else

enum { NOT_FIT = 75, CANNOT_START = 126 };

static char self[4096];

static bool prepare(void) {
#if defined(__linux__)
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    return length > 0;
#else
    return false; /* on macOS nobody asks for it */
#endif
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

static int run(const char *request, const char *out, const char *errors) {
    char path[NAME_BYTES];
    snprintf(path, sizeof path, "%s", request);
    return run_program((char *[]){self, path, NULL}, out, errors);
}

static bool note_state(const struct turns_order *order, const char *turn, const char *when) {
    char name[NAME_BYTES], *words[] = {"sh", "../state.sh", NULL};
    (void)order;
    name_file(name, turn, when);
    return run_program(words, name, "/dev/null") != NOT_FIT;
}

#endif

/* Whoever waits in vain goes on: the state is noted, and the host judges. */
static void wait_until_fit(const struct turns_order *order, const char *turn) {
    uint64_t seconds = order->wait_seconds < MOST_SECONDS ? order->wait_seconds : MOST_SECONDS;
    uint64_t end = now_ns() + seconds * 1000000000u;
    while (!note_state(order, turn, "before") && now_ns() < end) {
        uint64_t left = (end - now_ns()) / 1000000000u + 1;
        nanosleep(&(struct timespec){.tv_sec = (time_t)(left < POLL_SECONDS ? left : POLL_SECONDS)}, NULL);
    }
}

/* Whether a turn has to be run; one that an earlier runner did not end is noted as lost. */
static bool is_due(const char *turn, bool *noted) {
    char code[NAME_BYTES], begun[NAME_BYTES];
    name_file(code, turn, "code"), name_file(begun, turn, "begun");
    *noted = true;
    if (exists(code)) return false;
    if (!exists(begun)) return true;
    *noted = note(turn, "code", "lost\n");
    return false;
}

static bool run_turn(const struct turns_order *order, const char *turn) {
    char request[NAME_BYTES], errors[NAME_BYTES], answer[NAME_BYTES], part[NAME_BYTES], text[NAME_BYTES];
    wait_until_fit(order, turn);
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)wall_ms());
    if (!note(turn, "begun", text)) return false;
    snprintf(request, sizeof request, "../requests/%s", turn);
    name_file(answer, turn, "answer"), name_file(part, turn, "part"), name_file(errors, turn, "errors");
    snprintf(text, sizeof text, "%d\n", run(request, part, errors));
    note_state(order, turn, "after");
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

int run_turns(const struct turns_order *order) {
    char line[LINE_BYTES];
    uint64_t most = order->most;
    if (!prepare() || chdir(order->folder)) return 2;
    FILE *turns = fopen("turns", "r");
    mkdir("session", 0755);
    if (!turns || chdir("session")) return 2;
    int lock = open("../lock", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (lock < 0) return 2;
    if (flock(lock, LOCK_EX | LOCK_NB)) return 3;
    bool usable = true;
    while (usable && most && fgets(line, sizeof line, turns)) {
        if (!(usable = cut_name(line)) || !is_due(line, &usable)) continue;
        usable = run_turn(order, line);
        most--;
    }
    fclose(turns);
    close(lock);
    return usable ? 0 : 2;
}
