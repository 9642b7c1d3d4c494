/* Measures a model with any libonnxruntime: `probe REQUEST` reads what to do from the file REQUEST (see request.h)
 * and prints one JSON document on stdout. `probe turns FOLDER SECONDS` does so for many (see turns.h).
 *
 * The work is done in a child process: a library, driver or model that crashes or hangs ends that child, and this
 * process reports its signal, the stage that it had come to, and the log up to there. On macOS system frameworks may
 * not be used between fork and exec, so there it is one process and whoever started it sees the signal. With PROBE_APP
 * it is a part of an app that links ONNX Runtime and calls `run_turns`: no process is started, and there is no main.
 *
 * Exit codes: 0 a measurement, 1 a document that says what failed, 2 wrong usage. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#include <sys/resource.h>
#endif

#include "answer.h"
#include "json.h"
#include "nnapi.h"
#include "pieces.h"
#include "platform.h"
#include "request.h"
#include "sensors.h"
#include "stages.h"
#include "turns.h"

#ifndef PROBE_EXIT
#define PROBE_EXIT _exit /* the library's destructors are no part of a measurement; leak checkers want exit */
#endif

static const char *signal_name(int number) {
    static const struct {
        int number;
        const char *name;
    } NAMES[] = {
        {SIGSEGV, "SIGSEGV"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGILL, "SIGILL"},   {SIGFPE, "SIGFPE"},
        {SIGKILL, "SIGKILL"}, {SIGTERM, "SIGTERM"}, {SIGTRAP, "SIGTRAP"}, {SIGSYS, "SIGSYS"},   {SIGPIPE, "SIGPIPE"},
        {SIGINT, "SIGINT"},   {SIGHUP, "SIGHUP"},   {SIGXCPU, "SIGXCPU"}, {SIGALRM, "SIGALRM"},
    };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (NAMES[i].number == number) return NAMES[i].name;
    return "unknown signal";
}

/* Keys with their values, as the members of an open JSON object. */
static void print_numbers(struct sink *sink, const struct answer *answer) {
    put_count(sink, "open_ns", answer->open_ns);
    put_count(sink, "load_ns", answer->load_ns);
    put_count(sink, "first_run_ns", answer->first_run_ns);
    put_count(sink, "memory_before_load_bytes", answer->memory_before_load);
    put_count(sink, "memory_after_load_bytes", answer->memory_after_load);
    put_count(sink, "memory_peak_bytes", answer->memory_peak);
    put_count(sink, "memory_private_bytes", answer->memory_private);
    put_count(sink, "wrong_shapes", answer->wrong_shapes);
    put_count(sink, "log_dropped", answer->log.dropped);
    put_key(sink, "latencies_ns", false);
    put_text(sink, "[");
    for (size_t i = 0; i < answer->runs; i++) {
        if (i) put_text(sink, ",");
        put_number(sink, (long long)answer->latencies[i]);
    }
    put_text(sink, "]");
}

static void print_dropped(struct sink *sink, const char *key, const struct dropped_file *file) {
    if (!file->asked) return;
    put_key(sink, key, false);
    put_text(sink, "[");
    put_number(sink, file->bytes);
    put_text(sink, ",");
    put_number(sink, file->resident);
    put_text(sink, ",");
    put_string(sink, file->why);
    put_text(sink, "]");
}

/* Numbers as an array, after a comma unless it is the first. */
static void print_array(struct sink *sink, bool first, const uint64_t *numbers, size_t count) {
    put_text(sink, first ? "[" : ",[");
    for (size_t i = 0; i < count; i++) {
        if (i) put_text(sink, ",");
        put_number(sink, (long long)numbers[i]);
    }
    put_text(sink, "]");
}

static void print_sustained(struct sink *sink, const struct answer *answer) {
    put_key(sink, "bins", false);
    put_text(sink, "[");
    for (size_t i = 0; i < answer->bin_count; i++) {
        const struct bin *bin = &answer->bins[i];
        uint64_t numbers[] = {bin->start, bin->count, bin->total, bin->least, bin->median, bin->most};
        print_array(sink, !i, numbers, sizeof numbers / sizeof *numbers);
    }
    put_text(sink, "]");
    put_key(sink, "samples", false);
    put_text(sink, "[");
    for (size_t i = 0; i < answer->sample_count; i++) {
        const struct sample *sample = &answer->samples[i];
        uint64_t numbers[] = {sample->at, sample->mhz, (uint64_t)sample->millidegrees};
        print_array(sink, !i, numbers, sizeof numbers / sizeof *numbers);
    }
    put_text(sink, "]");
}

static void print_strings(struct sink *sink, const char *key, const char *bytes, size_t used) {
    put_key(sink, key, false);
    put_text(sink, "[");
    for (size_t at = 0; at < used; at += strlen(bytes + at) + 1) {
        if (at) put_text(sink, ",");
        put_string(sink, bytes + at);
    }
    put_text(sink, "]");
}

static size_t list_length(const char *list) {
    size_t length = 0;
    while (list[length]) length += strlen(list + length) + 1;
    return length;
}

/* What plugins offered and took. */
static void print_plugins(struct sink *sink, const struct answer *answer) {
    put_key(sink, "ep_devices", false);
    put_text(sink, "[");
    for (size_t i = 0; i < answer->ep_device_count; i++) {
        const struct ep_device *device = &answer->ep_devices[i];
        put_text(sink, i ? ",[" : "[");
        put_string(sink, device->provider);
        put_text(sink, ",");
        put_string(sink, device->vendor);
        put_text(sink, ",");
        put_number(sink, device->type);
        put_text(sink, "]");
    }
    put_text(sink, "]");
    put_key(sink, "ep_shares", false);
    put_text(sink, "[");
    for (size_t i = 0; i < answer->ep_share_count; i++) {
        const struct ep_share *share = &answer->ep_shares[i];
        put_text(sink, i ? ",[" : "[");
        put_string(sink, share->provider);
        put_text(sink, ",");
        put_number(sink, (long long)share->nodes);
        put_text(sink, ",");
        put_number(sink, (long long)share->subgraphs);
        put_text(sink, "]");
    }
    put_text(sink, "]");
}

/* Of each caller [inferences, median, high], then its slices. */
static void print_callers(struct sink *sink, const struct answer *answer) {
    put_key(sink, "callers", false);
    put_text(sink, "[");
    for (size_t i = 0; i < answer->caller_count; i++) {
        const struct caller_share *share = &answer->callers[i];
        uint64_t numbers[] = {share->runs, share->median, share->high};
        put_text(sink, i ? ",[" : "[");
        print_array(sink, true, numbers, sizeof numbers / sizeof *numbers);
        print_array(sink, false, share->slices, SLICES);
        put_text(sink, "]");
    }
    put_text(sink, "]");
}

/* What the answer belongs to: the checksum of its request, and when the probe began and ended. */
static void print_origin(struct sink *sink, const struct request *request, uint64_t began_ms) {
    const char *check = request->strings ? lookup(request, "check", "crc32") : NULL;
    put_count(sink, "request", check ? strtoull(check, NULL, 10) : 0);
    put_count(sink, "began_ms", began_ms);
    put_count(sink, "ended_ms", wall_ms());
}

static void print_answer(const struct request *request, const struct answer *answer, uint64_t began_ms, int signal) {
    struct sink sink = {.file = stdout};
    put_text(&sink, "{\"probe\":1");
    print_origin(&sink, request, began_ms);
    put_field(&sink, "status", answer->measured && !answer->failed ? "ok" : "failed");
    put_field(&sink, "stage", STAGES[answer->stage].name);
    put_field(&sink, "kind", answer->kind);
    put_field(&sink, "message", answer->message);
    put_count(&sink, "ort_code", (uint64_t)answer->ort_code);
    put_field(&sink, "signal", signal ? signal_name(signal) : "");
    put_field(&sink, "ort_version", answer->ort_version);
    put_field(&sink, "stop", STOPS[answer->stop]);
    put_field(&sink, "profile", answer->profile);
    print_strings(&sink, "available_providers", answer->providers, list_length(answer->providers));
    print_strings(&sink, "log", answer->log.bytes, answer->log.used);
    print_numbers(&sink, answer);
    print_dropped(&sink, "model_pages", &answer->model_pages);
    print_dropped(&sink, "library_pages", &answer->library_pages);
    if (answer->sustained_from) print_sustained(&sink, answer);
    if (answer->caller_count) print_callers(&sink, answer);
    if (answer->ep_device_count) print_plugins(&sink, answer);
    put_key(&sink, "nnapi", false);
    print_nnapi(&sink, &answer->nnapi);
    put_text(&sink, ",\"outputs\":[");
    put_text(&sink, answer->outputs);
    put_text(&sink, "]");
    put_count(&sink, "crc32", sink.sum);
    put_text(&sink, "}\n");
    fflush(stdout);
}

static void mend_nnapi(struct nnapi_answer *answer) {
    if (answer->count > NNAPI_DEVICES_MAX) answer->count = NNAPI_DEVICES_MAX;
    for (size_t i = 0; i < NNAPI_DEVICES_MAX; i++) {
        struct nnapi_device *device = &answer->devices[i];
        device->name[sizeof device->name - 1] = device->version[sizeof device->version - 1] = 0;
        device->answers[QUESTIONS_MAX] = 0;
    }
}

static void mend_plugins(struct answer *answer) {
    if (answer->ep_device_count > EP_DEVICES_MAX) answer->ep_device_count = EP_DEVICES_MAX;
    if (answer->ep_share_count > EP_SHARES_MAX) answer->ep_share_count = EP_SHARES_MAX;
    for (size_t i = 0; i < EP_DEVICES_MAX; i++) {
        struct ep_device *device = &answer->ep_devices[i];
        device->provider[sizeof device->provider - 1] = device->vendor[sizeof device->vendor - 1] = 0;
    }
    for (size_t i = 0; i < EP_SHARES_MAX; i++)
        answer->ep_shares[i].provider[sizeof answer->ep_shares[i].provider - 1] = 0;
}

/* A dying child may have written anywhere: make the answer safe to read. */
static void mend(struct answer *answer) {
    answer->kind[sizeof answer->kind - 1] = 0;
    answer->message[sizeof answer->message - 1] = 0;
    answer->ort_version[sizeof answer->ort_version - 1] = 0;
    answer->profile[sizeof answer->profile - 1] = 0;
    answer->outputs[TENSORS_BYTES - 1] = 0;
    answer->providers[LIST_BYTES - 1] = answer->providers[LIST_BYTES - 2] = 0;
    answer->log.bytes[LOG_BYTES - 1] = 0;
    mend_nnapi(&answer->nnapi);
    mend_plugins(answer);
    answer->model_pages.why[sizeof answer->model_pages.why - 1] = 0;
    answer->library_pages.why[sizeof answer->library_pages.why - 1] = 0;
    if (answer->caller_count > CALLERS_MAX) answer->caller_count = CALLERS_MAX;
    if (answer->bin_count > BINS_MAX) answer->bin_count = BINS_MAX;
    if (answer->sample_count > SAMPLES_MAX) answer->sample_count = SAMPLES_MAX;
    if (answer->log.used > LOG_BYTES) answer->log.used = LOG_BYTES;
    if (answer->stage > STAGE_DONE) answer->stage = STAGE_DONE;
    if (answer->stop > STOP_MAX_RUNS) answer->stop = STOP_NONE;
    if (answer->runs > RUNS_KEPT) answer->runs = RUNS_KEPT;
}

#define ANSWER_SIZE (sizeof(struct answer) + RUNS_KEPT * sizeof(uint64_t))

/* Memory that a forked child shares; pages come into being when they are written. */
static struct answer *make_answer(void) {
    void *memory = mmap(NULL, ANSWER_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Stdout is for the document alone: what libraries print goes to stderr. */
static void work(const struct request *request, struct answer *answer) {
    int out = dup(STDOUT_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execute(request, answer);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    close(out);
}

#if defined(__APPLE__) || defined(PROBE_APP)

static int supervise(const struct request *request, struct answer *answer) {
    if (request->data_limit) return fail(answer, "wrong_device", 0, "this system limits no process's private memory");
    work(request, answer);
    return 0;
}

#else

/* Nanoseconds from one sample of a sustained run to the next: reading some files costs the device a millisecond. */
static uint64_t sampling_ns(const struct request *request) {
    uint64_t even = (uint64_t)request->sustain_ns / SAMPLES_MAX, least = 500000000;
    return even > least ? even : least;
}

/* Look at the device when it is time. The measuring process does not: its loop is inferences alone. */
static void take_sample(const struct request *request, struct answer *answer) {
    size_t count = answer->sample_count;
    if (!answer->sustained_from || count >= SAMPLES_MAX) return;
    uint64_t at = now_ns() - answer->sustained_from;
    if (count && at < answer->samples[count - 1].at + sampling_ns(request)) return;
    read_sensors("/sys", &answer->samples[count]);
    answer->samples[count].at = at;
    answer->sample_count = count + 1;
}

/* Wait until the child closes its end of the pipe, the time is over, or nobody listens on stdin any more. */
static const char *watch(const struct request *request, struct answer *answer, int pipe_end) {
    uint64_t milliseconds = request->timeout_ms < 86400000 ? (uint64_t)request->timeout_ms : 86400000;
    uint64_t end = now_ns() + milliseconds * 1000000u;
    struct pollfd ends[] = {{.fd = pipe_end, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
    for (;;) {
        uint64_t now = now_ns();
        if (now >= end) return "timeout";
        int left = (int)((end - now) / 1000000u) + 1, pause = (int)(sampling_ns(request) / 1000000u);
        if (request->sustain_ns && left > pause) left = pause;
        if (request->sustain_ns) take_sample(request, answer);
        int ready = poll(ends, request->watch_stdin ? 2 : 1, left);
        if (ready > 0 && ends[0].revents) return NULL;
        char byte;
        if (ready > 0 && ends[1].revents && read(STDIN_FILENO, &byte, 1) <= 0) return "lost_device";
    }
}

/* The child's wait status; after a kill not for ever, since a driver may hold it in the kernel. */
static int reap(pid_t child, bool killed) {
    int status = 0;
    if (!killed) {
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
        return status;
    }
    for (int tries = 0; tries < 200 && waitpid(child, &status, WNOHANG) == 0; tries++)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    return SIGKILL;
}

/* The signal that ended the child, 0 if none did; notes a crash, a time-out or a kill. */
static int judge(struct answer *answer, int status, const char *killed) {
    if (killed && !answer->measured) {
        answer->failed = false;
        fail(answer, killed, 0, "killed by the probe in stage %s", STAGES[answer->stage].name);
        return SIGKILL;
    }
    int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (answer->measured || answer->failed) return signal;
    if (signal == SIGKILL)
        fail(answer, "out_of_memory", 0, "killed from outside in stage %s", STAGES[answer->stage].name);
    else if (signal)
        fail(answer, "crash", 0, "%s in stage %s", signal_name(signal), STAGES[answer->stage].name);
    else
        fail(answer, "crash", 0, "the process left by itself with exit code %d in stage %s", WEXITSTATUS(status),
             STAGES[answer->stage].name);
    return signal;
}

static void child(const struct request *request, struct answer *answer, pid_t parent) {
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    if (getppid() != parent) _exit(1);
#if defined(__linux__)
    struct rlimit limit = {.rlim_cur = (rlim_t)request->data_limit, .rlim_max = (rlim_t)request->data_limit};
    if (request->data_limit) setrlimit(RLIMIT_DATA, &limit);
#endif
    work(request, answer);
    PROBE_EXIT(0);
}

/* Run the request in a child; the signal that ended it, or 0. */
static int supervise(const struct request *request, struct answer *answer) {
    int ends[2];
    pid_t parent = getpid();
    if (pipe(ends)) return fail(answer, "device_error", 0, "no pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid < 0) return fail(answer, "device_error", 0, "no process: %s", strerror(errno));
    if (!pid) {
        close(ends[0]);
        child(request, answer, parent);
    }
    close(ends[1]);
    const char *why = watch(request, answer, ends[0]);
    if (why) kill(pid, SIGKILL);
    int status = reap(pid, why);
    close(ends[0]);
    return judge(answer, status, why);
}

#endif

static const struct request DEFAULTS = {
    .mode = "run", .provider = "cpu", .device_type = -1, .level = 99, .arena = 1, .pattern = 1, .log_level = 2, .warmup = 1,
    .min_runs = 10, .max_ns = 60000000000, .timeout_ms = 300000,
};

int run_request(const char *path) {
    uint64_t began_ms = wall_ms();
    struct answer *answer = make_answer();
    struct request request = DEFAULTS;
    int signal = 0;
    if (!answer) return 2;
    if (read_request(&request, answer, path)) {
        setenv("ORT_DISABLE_TELEMETRY", "1", 1);
        signal = supervise(&request, answer);
    }
    mend(answer);
    print_answer(&request, answer, began_ms, signal);
    release_request(&request);
    bool measured = answer->measured && !answer->failed;
    munmap(answer, ANSWER_SIZE);
    return measured ? 0 : 1;
}

#if !defined(PROBE_APP)

int main(int count, char **arguments) {
    if (count == 4 && !strcmp(arguments[1], "join")) return join_pieces(arguments[2], arguments[3]);
    if (count == 4 && !strcmp(arguments[1], "turns")) {
        uint64_t seconds = strtoull(arguments[3], NULL, 10);
        struct turns_order order = {.folder = arguments[2], .wait_seconds = seconds, .most = UINT64_MAX};
        return run_turns(&order);
    }
    if (count == 2) return run_request(arguments[1]);
    fprintf(stderr, "usage: %s REQUEST | join PATCH TARGET | turns FOLDER SECONDS\n", count ? arguments[0] : "probe");
    return 2;
}

#endif
