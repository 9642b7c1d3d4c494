#include "callers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "measure.h"
#include "platform.h"
#include "tensors.h"

enum { START_NS = 20000000 }; /* until then every thread stands ready */

struct caller {
    struct probe probe; /* its own inputs and outputs; its session perhaps that of others */
    bool owner;
    struct request request;
    pthread_t thread;
    uint64_t start, length, runs, kept, slices[SLICES];
    uint64_t *latencies;
    OrtStatus *status;
};

bool share_environment(struct probe *probe) {
    OrtMemoryInfo *memory = NULL;
    if (!probe->request->shared_arena) return true;
    if (!ok(probe, ORT(probe->ort, CreateCpuMemoryInfo)(ORT_ARENA_ALLOCATOR, ORT_DEFAULT_MEMORY, &memory))) return false;
    bool done = ok(probe, ORT(probe->ort, CreateAndRegisterAllocator)(probe->env, memory, NULL));
    ORT(probe->ort, ReleaseMemoryInfo)(memory);
    return done;
}

/* The request for another model: settings, but none of the first one's inputs. */
static bool without_inputs(struct probe *probe, struct request *request) {
    const struct request *from = probe->request;
    request->strings = allocate(probe, from->count, sizeof *request->strings);
    request->count = 0;
    if (!request->strings) return false;
    for (size_t at = 0; at + 3 <= from->count; at += 3) {
        const char *verb = from->strings[at];
        if (!strcmp(verb, "input") || !strcmp(verb, "shape")) continue;
        memcpy(request->strings + request->count, from->strings + at, 3 * sizeof *from->strings);
        request->count += 3;
    }
    return true;
}

/* What the first session and its inference took: of a caller that shares the session, the inference alone. */
static uint64_t memory_each(const struct probe *first) {
    uint64_t now = private_bytes(), before = first->request->own_sessions ? first->private_before : first->private_after;
    return now > before ? now - before : 0;
}

/* Where there is no room, Linux and Android do not refuse memory: they kill processes, perhaps those of others. */
static bool enough_memory(struct probe *first, size_t callers, uint64_t each) {
    uint64_t free = free_bytes();
    return each <= free / callers || fail(first->answer, "out_of_memory", 0, "%zu more callers need about %llu MB of memory, "
                                          "%llu MB each as the first; %llu MB are free", callers,
                                          (unsigned long long)(callers * each >> 20), (unsigned long long)(each >> 20),
                                          (unsigned long long)(free >> 20));
}

/* A caller of `model`, NULL for the first one's; it has called once when this is done. */
static bool make_caller(struct probe *first, struct caller *caller, const char *model) {
    struct answer *answer = first->answer;
    uint64_t load = answer->load_ns, run = answer->first_run_ns, before = answer->memory_before_load;
    uint64_t after = answer->memory_after_load;
    size_t wrong = answer->wrong_shapes;
    struct probe *probe = &caller->probe;
    caller->request = *first->request;
    if (model && !without_inputs(first, &caller->request)) return false;
    if (model) caller->request.model = model;
    caller->owner = model || first->request->own_sessions;
    *probe = (struct probe){.request = &caller->request, .answer = answer, .log_lock = PTHREAD_MUTEX_INITIALIZER,
                            .library = first->library, .ort = first->ort, .env = first->env,
                            .registered = first->registered};
    if (!caller->owner) probe->session = first->session;
    bool done = !caller->owner || (set_options(probe) && append_provider(probe) && load_model(probe));
    done = done && make_inputs(probe) && first_run(probe);
    answer->load_ns = load, answer->first_run_ns = run, answer->wrong_shapes = wrong;
    answer->memory_before_load = before, answer->memory_after_load = after;
    caller->latencies = done ? allocate(first, CALLER_KEPT, sizeof *caller->latencies) : NULL;
    return caller->latencies;
}

static void *call(void *context) {
    struct caller *caller = context;
    uint64_t end = now_ns(), every = 1;
    if (end < caller->start)
        nanosleep(&(struct timespec){.tv_nsec = (long)(caller->start - end)}, NULL);
    end = now_ns();
    while (end - caller->start < caller->length) {
        drop_others(&caller->probe);
        uint64_t begin = now_ns();
        caller->status = run_once(&caller->probe);
        end = now_ns();
        if (caller->status) return NULL;
        if (end - caller->start < caller->length) caller->slices[(end - caller->start) * SLICES / caller->length]++;
        if (caller->runs++ % every) continue;
        if (caller->kept == CALLER_KEPT) { /* every second one from here on, of those before as well */
            every *= 2, caller->kept /= 2;
            for (size_t i = 0; i < caller->kept; i++) caller->latencies[i] = caller->latencies[2 * i];
        }
        caller->latencies[caller->kept++] = end - begin;
    }
    return NULL;
}

static int in_order(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

static void note_caller(struct answer *answer, struct caller *caller) {
    struct caller_share *share = &answer->callers[answer->caller_count];
    if (!caller->kept) return;
    qsort(caller->latencies, caller->kept, sizeof *caller->latencies, in_order);
    *share = (struct caller_share){.runs = caller->runs, .median = caller->latencies[caller->kept / 2],
                                   .high = caller->latencies[caller->kept * 95 / 100]};
    for (size_t i = 0; i < SLICES; i++) share->slices[i] = caller->slices[i];
    answer->caller_count++;
}

static void release_caller(struct probe *first, struct caller *caller) {
    struct probe *probe = &caller->probe;
    if (!probe->ort) return;
    release_tensors(probe);
    if (probe->memory) ORT(first->ort, ReleaseMemoryInfo)(probe->memory);
    if (caller->owner && probe->session) ORT(first->ort, ReleaseSession)(probe->session);
    if (probe->options) ORT(first->ort, ReleaseSessionOptions)(probe->options);
    if (caller->request.strings != first->request->strings) free(caller->request.strings);
    free(caller->latencies);
}

bool concurrent_runs(struct probe *probe) {
    const struct request *request = probe->request;
    size_t alike = (size_t)request->callers, count = alike + count_of(request, "beside"), made = 0, begun = 0, at = 0;
    if (!count) return true;
    if (probe->bound.binding)
        return fail(probe->answer, "bad_options", 0, "several callers of a provider that captures graphs or has tensors on its "
                    "device: sessions share that, and disturb each other");
    if (count > CALLERS_MAX) return fail(probe->answer, NULL, 0, "%zu callers; the probe has %d", count, CALLERS_MAX);
    struct caller *callers = allocate(probe, count, sizeof *callers);
    uint64_t each = memory_each(probe);
    bool done = callers;
    for (; done && made < count; made++) {
        const char *const *triple = made < alike ? NULL : next(request, "beside", &at);
        done = (triple || enough_memory(probe, alike - made, each)) && make_caller(probe, &callers[made], triple ? triple[1] : NULL);
    }
    uint64_t start = now_ns() + START_NS;
    for (; done && begun < count; begun++) {
        callers[begun].start = start, callers[begun].length = (uint64_t)request->concurrent_ns;
        if (pthread_create(&callers[begun].thread, NULL, call, &callers[begun]))
            done = fail(probe->answer, "out_of_memory", 0, "no thread for caller %zu", begun);
    }
    for (size_t i = 0; i < begun; i++) {
        pthread_join(callers[i].thread, NULL);
        done = ok(probe, callers[i].status) && done;
    }
    for (size_t i = 0; done && i < count; i++) note_caller(probe->answer, &callers[i]);
    probe->answer->memory_peak = peak_bytes(), probe->answer->memory_private = private_bytes();
    for (size_t i = 0; i < made && callers; i++) release_caller(probe, &callers[i]);
    free(callers);
    return done;
}
