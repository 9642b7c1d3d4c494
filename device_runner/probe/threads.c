#include "threads.h"

#if defined(__linux__)
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "sensors.h"

static struct {
    cpu_set_t cores;
    bool pinned;
    int nice;
} plan; /* a process has one request */

struct pool_thread {
    pthread_t thread;
    ort_work work;
    void *context;
};

/* Of the calling thread, which is what Linux takes 0 for; 0 or errno. */
static int follow_plan(void) {
    if (plan.pinned && sched_setaffinity(0, sizeof plan.cores, &plan.cores)) return errno;
    return plan.nice && setpriority(PRIO_PROCESS, 0, plan.nice) ? errno : 0;
}

static void *try_plan(void *code) {
    *(int *)code = follow_plan();
    return NULL;
}

static void *begin(void *context) {
    struct pool_thread *thread = context;
    follow_plan();
    thread->work(thread->context);
    return NULL;
}

static ort_thread create(void *unused, ort_work work, void *context) {
    struct pool_thread *thread = malloc(sizeof *thread);
    (void)unused;
    if (!thread) return NULL;
    *thread = (struct pool_thread){.work = work, .context = context};
    if (!pthread_create(&thread->thread, NULL, begin, thread)) return (ort_thread)thread;
    free(thread);
    return NULL;
}

static void join(ort_thread handle) {
    struct pool_thread *thread = (struct pool_thread *)(uintptr_t)handle;
    pthread_join(thread->thread, NULL);
    free(thread);
}

static bool find_cores(const char *text) {
    int64_t numbers[DIMENSIONS_MAX];
    int count = strcmp(text, "big") ? parse_sizes(text, numbers) : fast_cores("/sys", numbers);
    for (int i = 0; i < count; i++) {
        if (numbers[i] >= CPU_SETSIZE) return false;
        CPU_SET((size_t)numbers[i], &plan.cores);
    }
    plan.pinned = count > 0;
    return count >= 0;
}

bool plan_threads(struct probe *probe) {
    const struct request *request = probe->request;
    pthread_t thread;
    int code = 0;
    if (request->thread_nice) plan.nice = (int)strtoll(request->thread_nice, NULL, 10);
    if (request->thread_cores && !find_cores(request->thread_cores))
        return fail(probe->answer, "bad_options", 0, "no cores for threads: %s", request->thread_cores);
    int failed = pthread_create(&thread, NULL, try_plan, &code);
    if (failed || (failed = pthread_join(thread, NULL))) code = failed;
    return !code || fail(probe->answer, "bad_options", 0, "no thread %swith nice %d: %s",
                         request->thread_cores ? "on the cores asked for " : "", plan.nice, strerror(code));
}

bool make_threads(struct probe *probe, OrtThreadingOptions *shared) {
    const ort_function *ort = probe->ort;
    if (!plan.pinned && !plan.nice) return true;
    if (shared)
        return ok(probe, ORT(ort, SetGlobalCustomCreateThreadFn)(shared, create)) &&
               ok(probe, ORT(ort, SetGlobalCustomJoinThreadFn)(shared, join));
    return ok(probe, ORT(ort, SessionOptionsSetCustomCreateThreadFn)(probe->options, create)) &&
           ok(probe, ORT(ort, SessionOptionsSetCustomJoinThreadFn)(probe->options, join));
}

#else

bool plan_threads(struct probe *probe) {
    const struct request *request = probe->request;
    return !(request->thread_cores || request->thread_nice) ||
           fail(probe->answer, "wrong_device", 0, "this system has neither core masks nor nice values of threads");
}

bool make_threads(struct probe *probe, OrtThreadingOptions *shared) {
    (void)probe, (void)shared;
    return true;
}

#endif
