/* From a library's path to a session: open, environment, options, provider, load. */
#ifndef SESSION_H
#define SESSION_H

#include <pthread.h>
#include <stdbool.h>

#include "answer.h"
#include "ort_table.h"
#include "request.h"

struct input {
    char *name;
    OrtValue *value;
    void *data;
    size_t bytes;
    bool stays; /* on the device: no inference is preceded by writing it there */
};

struct output {
    char *name;
    bool tensor;
    bool tracked; /* its file has each step of a stream */
    bool reused; /* Run fills it again; it can neither with other values nor where the model declares another shape */
    bool stays;  /* on the device: no inference is followed by reading it from there */
};

/* What is bound in the provider's memory; a tensor is NULL where the session wants it in the CPU's. Of `mark`, an element
 * in both memories, one is read from the device to wait for it. */
struct bound {
    OrtIoBinding *binding;
    OrtAllocator *allocator;
    OrtValue **inputs, **outputs, *mark[2];
};

/* Everything that one run holds. */
struct probe {
    const struct request *request;
    struct answer *answer;
    pthread_mutex_t log_lock;
    void *library;
    const ort_function *ort;
    OrtEnv *env;
    OrtSessionOptions *options;
    OrtSession *session;
    OrtAllocator *allocator;
    OrtMemoryInfo *memory;
    uint64_t private_before, private_after; /* bytes of memory before and after the load */
    const char *registered; /* the name that the plugin's library is registered by */
    size_t input_count, output_count;
    struct input *inputs;
    struct output *outputs;
    /* The arrays that Run takes. */
    const char **input_names, **output_names;
    const OrtValue **input_values;
    OrtValue **output_values;
    struct bound bound;
};

/* Whether a call went well; otherwise its message is noted. */
bool ok(struct probe *probe, OrtStatus *status);

/* The same with a kind of failure, NULL for the stage's. */
bool ok_or(struct probe *probe, OrtStatus *status, const char *kind);

/* The request's options of the provider; `keys` is to be freed, `values` lies behind it. False with the failure noted. */
struct provider_options {
    const char **keys, **values;
    size_t count;
};
bool collect_options(struct probe *probe, struct provider_options *options);

/* Zeroed memory; NULL with the failure noted. */
void *allocate(struct probe *probe, size_t count, size_t size);

/* The steps from a library to a session, in this order; false with the failure noted. */
bool open_library(struct probe *probe);
bool create_environment(struct probe *probe);
bool set_options(struct probe *probe);
bool append_provider(struct probe *probe);
bool load_model(struct probe *probe);

#endif
