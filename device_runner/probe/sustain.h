/* Inference after inference for minutes, kept as bins of time: memory is bounded however fast the model is. */
#ifndef SUSTAIN_H
#define SUSTAIN_H

#include <stdbool.h>

#include "session.h"

/* Latencies of the bin that is being filled. Once full, every second one is kept, then every fourth, and so on. */
struct filling {
    size_t kept, every;
    uint64_t latencies[BIN_KEPT];
};

/* Add an inference that began `at` nanoseconds after the first to the bins of `width` nanoseconds. */
void add_to_bins(struct answer *answer, struct filling *filling, uint64_t width, uint64_t at, uint64_t latency);

/* Note the median of the bin that is being filled. */
void close_bin(struct answer *answer, struct filling *filling);

/* Run until the request's time is over, where it wants that; in place of the timed loop. */
bool sustained_runs(struct probe *probe);

#endif
