/* What the probe has to say. It lies in memory that the supervising process shares with the measuring one, so that a
 * crash loses nothing that was known before it. */
#ifndef ANSWER_H
#define ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Steps of a run in order; a failure names the step, and its kind unless a closer one is known. */
enum stage {
    STAGE_REQUEST,
    STAGE_OPEN,
    STAGE_ENVIRONMENT,
    STAGE_OPTIONS,
    STAGE_PROVIDER,
    STAGE_LOAD,
    STAGE_INPUTS,
    STAGE_FIRST_RUN,
    STAGE_RUN,
    STAGE_OUTPUTS,
    STAGE_RELEASE,
    STAGE_DONE
};

extern const struct stage_name {
    const char *name, *kind;
} STAGES[STAGE_DONE + 1];

enum stop { STOP_NONE, STOP_ENOUGH, STOP_MAX_SECONDS, STOP_MAX_RUNS };

extern const char *const STOPS[STOP_MAX_RUNS + 1];

enum {
    MESSAGE_BYTES = 16 * 1024,
    LIST_BYTES = 64 * 1024,
    LOG_BYTES = 512 * 1024,
    TENSORS_BYTES = 1024 * 1024,
    RUNS_KEPT = 10000000, /* latencies that fit; pages of them come into being as they are written */
    NNAPI_DEVICES_MAX = 16,
    QUESTIONS_MAX = 1024,
    BINS_MAX = 300,
    BIN_KEPT = 4096,
    SAMPLES_MAX = 600,
    EP_DEVICES_MAX = 32,
    EP_SHARES_MAX = 8,
    CALLERS_MAX = 64,
    CALLER_KEPT = 65536,
    SLICES = 20
};

/* A device of Android's NNAPI; `answers` has a letter for each question of inspect.h that it was asked. */
struct nnapi_device {
    char name[256], version[256];
    int32_t type;
    int64_t level;
    char answers[QUESTIONS_MAX + 1];
};

/* What the system's NNAPI says of itself; level 0 where it does not tell. */
struct nnapi_answer {
    bool found;
    int64_t level;
    volatile uint32_t count;
    struct nnapi_device devices[NNAPI_DEVICES_MAX];
};

/* A device that an execution provider offers; the type is OrtHardwareDeviceType's number. */
struct ep_device {
    char provider[128], vendor[128];
    int32_t type;
};

/* What a provider took of a session's graph. */
struct ep_share {
    char provider[128];
    uint64_t nodes, subgraphs;
};

/* Strings one after the other, each ended by NUL; what no longer fits is counted and left out. */
struct strings {
    size_t used, dropped;
    char bytes[LOG_BYTES];
};

/* A file whose pages were to leave the page cache: its size and what stayed, -1 where that is not known. */
struct dropped_file {
    bool asked;
    int64_t bytes, resident;
    char why[128];
};

/* Inferences that began within the same stretch of time; times are nanoseconds, `start` from the first inference on. */
struct bin {
    uint64_t start, count, total, least, median, most;
};

/* The device at a moment of a sustained run, `at` nanoseconds after its first inference; 0 for what it does not say. */
struct sample {
    uint64_t at;
    uint32_t mhz;
    int32_t millidegrees;
};

/* What one of several callers did; the slices are equal parts of the time, each with the inferences that ended in it. */
struct caller_share {
    uint64_t runs, median, high; /* high: 19 of 20 took at most so long */
    uint64_t slices[SLICES];
};

struct answer {
    volatile unsigned stage;
    volatile bool failed;
    volatile bool measured; /* every stage before the release is done */
    char kind[32];
    int ort_code;
    char message[MESSAGE_BYTES];
    char ort_version[64];
    char providers[LIST_BYTES]; /* NUL-ended names, then an empty one */
    struct nnapi_answer nnapi;
    volatile size_t ep_device_count, ep_share_count;
    struct ep_device ep_devices[EP_DEVICES_MAX];
    struct ep_share ep_shares[EP_SHARES_MAX];
    char profile[4096];
    uint64_t open_ns, load_ns, first_run_ns;
    uint64_t memory_before_load, memory_after_load, memory_peak;
    uint64_t memory_private; /* of memory when the inferences end: what is no file's */
    char outputs[TENSORS_BYTES]; /* JSON objects, comma between */
    struct dropped_file model_pages, library_pages;
    volatile uint64_t sustained_from; /* when the sustained loop began, by the clock that only goes forward */
    volatile size_t bin_count, sample_count;
    struct bin bins[BINS_MAX];
    struct sample samples[SAMPLES_MAX];
    volatile size_t caller_count;
    struct caller_share callers[CALLERS_MAX];
    size_t wrong_shapes; /* outputs whose shape is not what the model declares */
    unsigned stop; /* which bound ended the loop */
    struct strings log;
    volatile size_t runs;
    uint64_t latencies[];
};

/* Note the first failure; later ones (of cleaning up) do not replace it. Always false, for `return fail(...)`. */
__attribute__((format(printf, 4, 5))) bool fail( struct answer *answer, const char *kind, int ort_code, const char *format, ...);

/* Append "L category: message" (L is the first letter of the severity). The caller holds the log's lock. */
void add_log(struct strings *log, unsigned severity, const char *category, const char *message);

#endif
