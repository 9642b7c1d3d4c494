#include "labelled.h"

#include <errno.h>
#include <string.h>

#include "checksum.h"
#include "measure.h"
#include "tensors.h"

/* One sample; false at the end of the file, too, where `*more` turns false. */
static bool run_sample(struct probe *probe, FILE *samples, FILE *answers, size_t bytes, uint32_t *sum, bool *more) {
    struct input *input = probe->inputs;
    struct shape shape = {0};
    void *data = NULL;
    size_t got = fread(input->data, 1, input->bytes, samples);
    *more = got > 0;
    if (!got) return true;
    if (got < input->bytes) return fail(probe->answer, "bad_input", 0, "the labelled set ends within a sample");
    drop_others(probe);
    if (!ok(probe, run_once(probe))) return false;
    if (!output_shape(probe, 0, &shape) || !total_bytes(&shape, &got) || got != bytes)
        return fail(probe->answer, "bad_input", 0, "the labelled outputs are not of one size");
    if (!ok(probe, ORT(probe->ort, GetTensorMutableData)(probe->output_values[0], &data))) return false;
    *sum = checksum(*sum, data, bytes);
    return fwrite(data, 1, bytes, answers) == bytes ||
           fail(probe->answer, errno == ENOSPC ? "no_space" : NULL, 0, "labelled outputs: %s", strerror(errno));
}

static bool run_samples(struct probe *probe, FILE *samples, FILE *answers, struct shape *shape, int64_t *count) {
    size_t bytes = 0;
    bool more = true;
    if (!total_bytes(shape, &bytes) || !bytes || !probe->inputs[0].bytes)
        return fail(probe->answer, "bad_input", 0, "a labelled set needs an input and an output with elements");
    for (*count = -1; more; ++*count)
        if (!run_sample(probe, samples, answers, bytes, &shape->sum, &more)) return false;
    return true;
}

/* Note the answers as one more output, with the samples as its first axis; its file tells it from the others. */
static bool note_answers(struct probe *probe, struct shape *shape, int64_t count, const char *path) {
    struct sink sink = {.bytes = probe->answer->outputs, .capacity = TENSORS_BYTES};
    sink.used = strlen(probe->answer->outputs);
    if (shape->rank == DIMENSIONS_MAX) return fail(probe->answer, NULL, 0, "the labelled outputs have too many axes");
    memmove(shape->sizes + 1, shape->sizes, shape->rank * sizeof *shape->sizes);
    shape->sizes[0] = count;
    shape->rank++;
    note_output(&sink, probe->outputs[0].name, shape, path);
    return !sink.full || fail(probe->answer, NULL, 0, "the model has too many outputs to list");
}

bool run_labelled(struct probe *probe) {
    const struct request *request = probe->request;
    struct shape shape = {0};
    char path[4096];
    int64_t count = 0;
    if (!request->labelled || !request->outputs) return true;
    if (probe->input_count != 1 || !probe->output_count || !probe->outputs[0].tensor)
        return fail(probe->answer, "bad_input", 0, "a labelled set needs a model of one input whose first output is a tensor");
    probe->inputs[0].stays = probe->outputs[0].stays = false;
    snprintf(path, sizeof path, "%slabelled.raw", request->outputs);
    FILE *samples = fopen(request->labelled, "rb"), *answers = fopen(path, "wb");
    bool done = samples && answers
                    ? output_shape(probe, 0, &shape) && run_samples(probe, samples, answers, &shape, &count)
                    : fail(probe->answer, NULL, 0, "%s: %s", samples ? path : request->labelled, strerror(errno));
    if (samples) fclose(samples);
    if (answers && fclose(answers) && done) done = fail(probe->answer, NULL, 0, "%s: %s", path, strerror(errno));
    return done && note_answers(probe, &shape, count, path);
}
