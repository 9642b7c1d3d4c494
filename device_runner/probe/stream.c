#include "stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bind.h"
#include "checksum.h"
#include "measure.h"
#include "platform.h"
#include "tensors.h"

/* An output that becomes an input. */
struct state {
    size_t output, input;
};

struct sequence {
    struct input *input;
    FILE *file;
};

/* An output of which each step is written. */
struct track {
    size_t output, bytes;
    struct shape shape;
    FILE *file;
    char path[4096];
};

static bool input_index(struct probe *probe, const char *name, size_t *index) {
    for (*index = 0; *index < probe->input_count; ++*index)
        if (!strcmp(probe->inputs[*index].name, name)) return true;
    return fail(probe->answer, "bad_input", 0, "the model has no input %s", name);
}

static bool output_index(struct probe *probe, const char *name, size_t *index) {
    for (*index = 0; *index < probe->output_count; ++*index)
        if (!strcmp(probe->outputs[*index].name, name)) return true;
    return fail(probe->answer, "bad_input", 0, "the model has no output %s", name);
}

/* Whether the output can take the input's place: the same type and sizes. */
static bool fits(struct probe *probe, const struct state *state) {
    struct shape given = {0}, taken = {0};
    OrtTensorTypeAndShapeInfo *info = NULL;
    const char *from = probe->outputs[state->output].name, *to = probe->inputs[state->input].name;
    if (!probe->outputs[state->output].tensor)
        return fail(probe->answer, "bad_input", 0, "the state %s is no tensor", from);
    bool done = output_shape(probe, state->output, &given) &&
                ok(probe, ORT(probe->ort, GetTensorTypeAndShape)(probe->inputs[state->input].value, &info)) &&
                read_shape(probe, info, &taken);
    if (info) ORT(probe->ort, ReleaseTensorTypeAndShapeInfo)(info);
    if (!done) return false;
    bool same = given.type == taken.type && given.rank == taken.rank &&
                !memcmp(given.sizes, taken.sizes, given.rank * sizeof *given.sizes);
    return same || fail(probe->answer, "bad_input", 0, "the state changes its shape or type from %s to %s: a stream of "
                        "steps needs states of one size", to, from);
}

/* What a replay takes or gives: tensors of the CPU have kept the values of the capture. */
static bool replayed(struct probe *probe, OrtValue *const *placed, size_t index, const char *name) {
    return !probe->request->capture || placed[index] ||
           fail(probe->answer, "bad_options", 0, "%s is in the CPU's memory, which a captured graph neither reads nor writes "
                "again", name);
}

static bool find_states(struct probe *probe, struct state *states) {
    const char *const *triple;
    size_t count = 0;
    for (size_t at = 0; (triple = next(probe->request, "state", &at)); count++) {
        if (!output_index(probe, triple[1], &states[count].output) || !input_index(probe, triple[2], &states[count].input) ||
            !fits(probe, &states[count]) || !replayed(probe, probe->bound.outputs, states[count].output, triple[1]) ||
            !replayed(probe, probe->bound.inputs, states[count].input, triple[2]))
            return false;
        probe->outputs[states[count].output].reused = true; /* into the buffer that the input has left */
        probe->outputs[states[count].output].stays = probe->inputs[states[count].input].stays = true;
    }
    return true;
}

static bool open_sequences(struct probe *probe, struct sequence *sequences) {
    const char *const *triple;
    size_t count = 0, index = 0;
    for (size_t at = 0; (triple = next(probe->request, "sequence", &at)); count++) {
        if (!input_index(probe, triple[1], &index) || !replayed(probe, probe->bound.inputs, index, triple[1])) return false;
        sequences[count].input = &probe->inputs[index];
        probe->inputs[index].stays = false;
        sequences[count].file = fopen(triple[2], "rb");
        if (!sequences[count].file)
            return fail(probe->answer, "bad_input", 0, "sequence %s: %s: %s", triple[1], triple[2], strerror(errno));
    }
    return true;
}

static bool open_tracks(struct probe *probe, struct track *tracks) {
    const char *const *triple;
    size_t count = 0;
    for (size_t at = 0; (triple = next(probe->request, "track", &at)); count++) {
        struct track *track = tracks + count;
        if (!output_index(probe, triple[1], &track->output) || !probe->outputs[track->output].tensor ||
            !output_shape(probe, track->output, &track->shape) || !total_bytes(&track->shape, &track->bytes) ||
            !element_bytes(track->shape.type) || track->shape.rank == DIMENSIONS_MAX)
            return fail(probe->answer, "bad_input", 0, "the steps of output %s cannot be kept", triple[1]);
        snprintf(track->path, sizeof track->path, "%s%zu.raw", probe->request->outputs, track->output);
        track->file = fopen(track->path, "wb");
        if (!track->file) return fail(probe->answer, NULL, 0, "%s: %s", track->path, strerror(errno));
    }
    return true;
}

/* Write what the step gave, after the time that it took. */
static bool keep(struct probe *probe, struct track *tracks, size_t count) {
    if (count && !fetch_bound(probe)) return false;
    for (struct track *track = tracks; track < tracks + count; track++) {
        struct shape shape = {0};
        void *data = NULL;
        if (!output_shape(probe, track->output, &shape)) return false;
        if (shape.type != track->shape.type || shape.rank != track->shape.rank ||
            memcmp(shape.sizes, track->shape.sizes, shape.rank * sizeof *shape.sizes))
            return fail(probe->answer, "bad_input", 0, "the output %s changes its shape from step to step",
                        probe->outputs[track->output].name);
        if (!ok(probe, ORT(probe->ort, GetTensorMutableData)(probe->output_values[track->output], &data))) return false;
        track->shape.sum = checksum(track->shape.sum, data, track->bytes);
        if (fwrite(data, 1, track->bytes, track->file) != track->bytes)
            return fail(probe->answer, errno == ENOSPC ? "no_space" : NULL, 0, "%s: %s", track->path, strerror(errno));
    }
    return true;
}

/* Close the files and note each as an output whose first axis are the steps. */
static bool close_tracks(struct probe *probe, struct track *tracks, size_t count, bool done) {
    struct sink sink = {.bytes = probe->answer->outputs, .capacity = TENSORS_BYTES};
    for (struct track *track = tracks; track < tracks + count; track++) {
        struct shape *shape = &track->shape;
        if (track->file && fclose(track->file) && done)
            done = fail(probe->answer, errno == ENOSPC ? "no_space" : NULL, 0, "%s: %s", track->path, strerror(errno));
        if (!done) continue;
        memmove(shape->sizes + 1, shape->sizes, shape->rank * sizeof *shape->sizes);
        shape->sizes[0] = probe->request->steps;
        shape->rank++;
        note_output(&sink, probe->outputs[track->output].name, shape, track->path);
        probe->outputs[track->output].tracked = true;
    }
    return done && (!sink.full || fail(probe->answer, NULL, 0, "the model has too many outputs to list"));
}

/* The inputs of the next step. */
static bool feed(struct probe *probe, const struct sequence *sequences, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct input *input = sequences[i].input;
        if (fread(input->data, 1, input->bytes, sequences[i].file) != input->bytes)
            return fail(probe->answer, "bad_input", 0, "the sequence of input %s has fewer steps than the stream",
                        input->name);
    }
    return true;
}

static OrtStatus *carry(struct probe *probe, const struct state *states, size_t count) {
    OrtStatus *status = NULL;
    for (size_t i = 0; i < count && !status; i++) {
        OrtValue **given = &probe->output_values[states[i].output], *left = probe->inputs[states[i].input].value;
        probe->inputs[states[i].input].value = *given;
        probe->input_values[states[i].input] = *given;
        *given = left;
        if (probe->bound.binding) status = pass_on(probe, states[i].output, states[i].input);
    }
    return status;
}

/* One step; all but the first take the states of the one before. */
static bool step(struct probe *probe, const struct state *states, size_t count) {
    struct answer *answer = probe->answer;
    drop_others(probe);
    uint64_t begin = now_ns();
    OrtStatus *status = answer->runs ? carry(probe, states, count) : NULL;
    if (!status) status = run_once(probe);
    answer->latencies[answer->runs] = now_ns() - begin;
    if (status) return ok(probe, status);
    answer->runs++;
    return true;
}

/* The first inference, which made the outputs' memory, left the inputs as they were: the stream begins with them. */
static bool run_steps(struct probe *probe, const struct state *states, size_t state_count,
                      const struct sequence *sequences, size_t sequence_count, struct track *tracks, size_t track_count) {
    uint64_t end = now_ns() + (uint64_t)probe->request->max_ns;
    for (int64_t at = 0; at < probe->request->steps; at++) {
        if (!feed(probe, sequences, sequence_count) || !step(probe, states, state_count) || !keep(probe, tracks, track_count))
            return false;
        if (now_ns() >= end) return fail(probe->answer, "timeout", 0, "%lld of %lld steps in the longest time allowed",
                                         (long long)at + 1, (long long)probe->request->steps);
    }
    probe->answer->stop = STOP_ENOUGH;
    probe->answer->memory_peak = peak_bytes();
    return true;
}

bool stream_runs(struct probe *probe) {
    size_t state_count = count_of(probe->request, "state"), sequence_count = count_of(probe->request, "sequence");
    size_t track_count = probe->request->outputs ? count_of(probe->request, "track") : 0;
    struct state *states = allocate(probe, state_count, sizeof *states);
    struct sequence *sequences = allocate(probe, sequence_count, sizeof *sequences);
    struct track *tracks = allocate(probe, track_count, sizeof *tracks);
    if (probe->request->steps > RUNS_KEPT)
        fail(probe->answer, "bad_input", 0, "a stream of over %d steps", RUNS_KEPT);
    bool done = states && sequences && tracks && !probe->answer->failed && find_states(probe, states) &&
                open_sequences(probe, sequences) && (!track_count || open_tracks(probe, tracks)) &&
                run_steps(probe, states, state_count, sequences, sequence_count, tracks, track_count);
    done = tracks && close_tracks(probe, tracks, track_count, done);
    for (size_t i = 0; sequences && i < sequence_count; i++)
        if (sequences[i].file) fclose(sequences[i].file);
    free(tracks);
    free(sequences);
    free(states);
    return done;
}
