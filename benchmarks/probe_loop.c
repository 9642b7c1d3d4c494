/* What the probe's timed loop adds to bare Run calls: `probe_loop REQUEST` prints one row of nanoseconds per inference
 * a round: bare calls, the probe's loop as a whole, and the median of the latencies that it noted. The first two are
 * processor time of the thread, so that other processes of the machine do not count. */
int probe_main(int count, char **arguments);
#define main probe_main
#include "probe.c"
#undef main
#include "stages.c"

enum { ROUNDS = 61 };

static uint64_t used_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int by_size(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

static double bare_ns(struct probe *probe, int64_t runs) {
    uint64_t start = used_ns();
    for (int64_t i = 0; i < runs; i++)
        if (!ok(probe, run_once(probe))) return 0;
    return (double)(used_ns() - start) / (double)runs;
}

static double loop_ns(struct probe *probe, double *noted) {
    struct answer *answer = probe->answer;
    uint64_t start = used_ns();
    answer->runs = 0;
    if (!timed_runs(probe)) return 0;
    uint64_t taken = used_ns() - start;
    qsort(answer->latencies, answer->runs, sizeof *answer->latencies, by_size);
    *noted = (double)answer->latencies[answer->runs / 2];
    return (double)taken / (double)answer->runs;
}

int main(int count, char **arguments) {
    struct answer *answer = make_answer();
    struct request request = DEFAULTS;
    if (count != 2 || !answer || !read_request(&request, answer, arguments[1])) return 2;
    struct probe probe = {.request = &request, .answer = answer, .log_lock = PTHREAD_MUTEX_INITIALIZER};
    for (const struct step *step = RUN; step->stage < STAGE_RUN; step++)
        if (!step->work(&probe)) return 1;
    for (int round = 0; round < ROUNDS; round++) {
        double noted = 0, bare = bare_ns(&probe, request.min_runs), loop = loop_ns(&probe, &noted);
        if (round) printf("%.2f %.2f %.2f\n", bare, loop, noted);
    }
    release_all(&probe);
    release_request(&request);
    return answer->failed;
}
