#include "sustain.h"

#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "platform.h"

static int in_order(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

void close_bin(struct answer *answer, struct filling *filling) {
    if (!filling->kept) return;
    qsort(filling->latencies, filling->kept, sizeof *filling->latencies, in_order);
    answer->bins[answer->bin_count - 1].median = filling->latencies[filling->kept / 2];
    filling->kept = 0;
    filling->every = 1;
}

static void keep(struct filling *filling, uint64_t number, uint64_t latency) {
    if (number % filling->every) return;
    if (filling->kept == BIN_KEPT) {
        filling->every *= 2;
        filling->kept /= 2;
        for (size_t i = 0; i < filling->kept; i++) filling->latencies[i] = filling->latencies[2 * i];
        if (number % filling->every) return;
    }
    filling->latencies[filling->kept++] = latency;
}

void add_to_bins(struct answer *answer, struct filling *filling, uint64_t width, uint64_t at, uint64_t latency) {
    struct bin *bin = answer->bin_count ? &answer->bins[answer->bin_count - 1] : NULL;
    if (!bin || (at / width > bin->start / width && answer->bin_count < BINS_MAX)) {
        close_bin(answer, filling);
        filling->every = 1;
        bin = &answer->bins[answer->bin_count++];
        *bin = (struct bin){.start = at, .least = latency};
    }
    keep(filling, bin->count, latency);
    bin->count++;
    bin->total += latency;
    if (latency < bin->least) bin->least = latency;
    if (latency > bin->most) bin->most = latency;
}

bool sustained_runs(struct probe *probe) {
    struct answer *answer = probe->answer;
    struct filling *filling = allocate(probe, 1, sizeof *filling);
    if (!filling) return false;
    uint64_t length = (uint64_t)probe->request->sustain_ns, width = length / BINS_MAX + 1, end = 0;
    uint64_t start = answer->sustained_from = now_ns();
    OrtStatus *status = NULL;
    while (!status && end < length) {
        drop_others(probe);
        uint64_t begin = now_ns();
        status = run_once(probe);
        uint64_t done = now_ns();
        end = done - start;
        if (!status) add_to_bins(answer, filling, width, begin - start, done - begin);
    }
    close_bin(answer, filling);
    answer->stop = STOP_ENOUGH;
    answer->memory_peak = peak_bytes();
    free(filling);
    return ok(probe, status);
}
