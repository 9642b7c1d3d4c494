/* Opens a model and runs it once, for an app that must outlive what a driver does: `trial REQUEST`, a request of the probe
 * (see request.h), of which this reads what a session needs.
 *
 * Without `outputs` in the request the model is opened and not run.
 *
 * On stdout is a line for each stage before it begins: start, library, options, open, first_run, close; at the end `done`,
 * or `failed` with a tab and the reason. Who reads them sees in them how far a process came that died or hangs; outputs are
 * files that are whole when `close` is said. Nothing else is written there: stdout and stderr of libraries are closed off.
 *
 * Exit codes: 0 done, 1 failed, 2 wrong usage, 3 failed since a library of the provider cannot be opened by this process:
 * the linker may hide vendors' libraries from programs that are none of an app, so that this says nothing about the app. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include "../answer.h"
#include "../measure.h"
#include "../plugin.h"
#include "../request.h"
#include "../session.h"
#include "../tensors.h"

static void say(int out, const char *word, const char *text) {
    char line[1024];
    int length = snprintf(line, sizeof line, *text ? "%s\t%s" : "%s", word, text);
    if (length < 0) return;
    if ((size_t)length > sizeof line - 2) length = sizeof line - 2;
    for (int i = 0; i < length; i++)
        if ((unsigned char)line[i] < ' ' && line[i] != '\t') line[i] = ' ';
    line[length++] = '\n';
    if (write(out, line, (size_t)length) < 0) _exit(2); /* nobody reads any more */
}

static bool try_inputs(struct probe *probe) {
    return !probe->request->outputs || (make_inputs(probe) && first_run(probe) && write_outputs(probe));
}

static bool close_session(struct probe *probe) {
    release_all(probe);
    return true;
}

static const struct step {
    const char *stage; /* "" where it is a part of the one before */
    bool (*work)(struct probe *);
} STEPS[] = {
    {"library", open_library}, {"", create_environment}, {"options", set_options}, {"", append_provider},
    {"open", load_model},      {"", note_assignment},    {"first_run", try_inputs}, {"close", close_session},
};

static bool try_once(const struct request *request, struct answer *answer, int out) {
    static struct probe probe = {.log_lock = PTHREAD_MUTEX_INITIALIZER};
    probe.request = request, probe.answer = answer;
    for (size_t i = 0; i < sizeof STEPS / sizeof *STEPS; i++) {
        if (*STEPS[i].stage) say(out, STEPS[i].stage, "");
        if (!STEPS[i].work(&probe)) return false;
    }
    return true;
}

static int exit_code(const struct answer *answer) {
    bool is_hidden = !strcmp(answer->kind, "provider_missing") || !strcmp(answer->kind, "wrong_library");
    return is_hidden ? 3 : 1;
}

int main(int count, char **arguments) {
    struct request request = {.mode = "run", .provider = "cpu", .device_type = -1, .level = 99, .arena = 1, .pattern = 1,
                              .log_level = 4};
    struct answer *answer = calloc(1, sizeof *answer);
    int out = dup(STDOUT_FILENO), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (count != 2 || !answer || out < 0 || nowhere < 0) return 2;
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* of an app that ends: nobody waits for this any more */
#endif
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    setenv("ORT_DISABLE_TELEMETRY", "1", 1);
    say(out, "start", "");
    bool done = read_request(&request, answer, arguments[1]) && try_once(&request, answer, out);
    answer->message[sizeof answer->message - 1] = 0;
    say(out, done ? "done" : "failed", done ? "" : answer->message);
    _exit(done ? 0 : exit_code(answer)); /* a driver's destructors have done harm to others */
}
