#include "measure.h"

#include <stdio.h>
#include <stdlib.h>

#include "bind.h"
#include "platform.h"
#include "plugin.h"
#include "tensors.h"

OrtStatus *run_once(struct probe *probe) {
    if (probe->bound.binding) return run_bound(probe);
    return ORT(probe->ort, Run)(probe->session, NULL, probe->input_names, probe->input_values, probe->input_count,
                                probe->output_names, probe->output_count, probe->output_values);
}

void drop_others(struct probe *probe) {
    for (size_t i = 0; i < probe->output_count; i++) {
        if (probe->outputs[i].reused || !probe->output_values[i]) continue;
        ORT(probe->ort, ReleaseValue)(probe->output_values[i]);
        probe->output_values[i] = NULL;
    }
}

/* Whether Run takes the output to fill it again: it checks the shape of one that it is given, and only warns of a wrong
 * shape of one that it makes. A declared rank of 0 is also that of an output without a shape. */
static bool check_output(struct probe *probe, size_t index) {
    struct output *output = probe->outputs + index;
    struct shape declared = {0}, shape = {0};
    int tensor = 0;
    if (!ok(probe, ORT(probe->ort, IsTensor)(probe->output_values[index], &tensor))) return false;
    output->tensor = tensor;
    if (!tensor) return true;
    if (!declared_shape(probe, index, &declared) || !output_shape(probe, index, &shape)) return false;
    output->reused = !declared.rank || declared.rank == shape.rank;
    for (size_t i = 0; i < declared.rank && output->reused; i++)
        output->reused = declared.sizes[i] < 0 || declared.sizes[i] == shape.sizes[i];
    probe->answer->wrong_shapes += !output->reused;
    return true;
}

bool first_run(struct probe *probe) {
    uint64_t start = now_ns();
    OrtStatus *status = probe->request->capture ? run_uncaptured(probe) : run_once(probe);
    probe->answer->first_run_ns = now_ns() - start;
    if (!ok(probe, status)) return false;
    for (size_t i = 0; i < probe->output_count; i++)
        if (!check_output(probe, i)) return false;
    return bind_tensors(probe);
}

static bool warm_up(struct probe *probe) {
    uint64_t end = now_ns() + (uint64_t)probe->request->max_ns;
    for (int64_t i = 0; i < probe->request->warmup && now_ns() < end; i++) {
        drop_others(probe);
        if (!ok(probe, run_once(probe))) return false;
    }
    return true;
}

/* Which bound ends the loop after `runs` inferences in `elapsed` nanoseconds. */
static enum stop reached(const struct request *request, size_t runs, uint64_t elapsed) {
    if (runs >= (size_t)request->min_runs && elapsed >= (uint64_t)request->min_ns) return STOP_ENOUGH;
    if (elapsed >= (uint64_t)request->max_ns) return STOP_MAX_SECONDS;
    return runs == RUNS_KEPT ? STOP_MAX_RUNS : STOP_NONE;
}

bool timed_runs(struct probe *probe) {
    struct answer *answer = probe->answer;
    if (!warm_up(probe)) return false;
    uint64_t start = now_ns(), end = start;
    while (!(answer->stop = reached(probe->request, answer->runs, end - start))) {
        drop_others(probe);
        uint64_t begin = now_ns();
        OrtStatus *status = run_once(probe);
        end = now_ns();
        if (status) return ok(probe, status);
        answer->latencies[answer->runs] = end - begin;
        answer->runs++;
    }
    answer->memory_peak = peak_bytes(), answer->memory_private = private_bytes();
    return true;
}

bool end_profile(struct probe *probe) {
    char *path = NULL;
    if (!probe->request->profile) return true;
    if (!ok(probe, ORT(probe->ort, SessionEndProfiling)(probe->session, probe->allocator, &path))) return false;
    snprintf(probe->answer->profile, sizeof probe->answer->profile, "%s", path);
    return ok(probe, ORT(probe->ort, AllocatorFree)(probe->allocator, path));
}

static void release_name(struct probe *probe, char *name) {
    if (name) ok(probe, ORT(probe->ort, AllocatorFree)(probe->allocator, name));
}

void release_tensors(struct probe *probe) {
    release_bound(probe);
    for (size_t i = 0; probe->inputs && i < probe->input_count; i++) {
        if (probe->inputs[i].value) ORT(probe->ort, ReleaseValue)(probe->inputs[i].value);
        release_name(probe, probe->inputs[i].name);
        free(probe->inputs[i].data);
    }
    for (size_t i = 0; probe->outputs && i < probe->output_count; i++) {
        if (probe->output_values && probe->output_values[i])
            ORT(probe->ort, ReleaseValue)(probe->output_values[i]);
        release_name(probe, probe->outputs[i].name);
    }
    free(probe->inputs);
    free(probe->outputs);
    free(probe->input_names);
    free(probe->output_names);
    free(probe->input_values);
    free(probe->output_values);
}

void release_all(struct probe *probe) {
    if (!probe->ort) return;
    release_tensors(probe);
    if (probe->memory) ORT(probe->ort, ReleaseMemoryInfo)(probe->memory);
    if (probe->session) ORT(probe->ort, ReleaseSession)(probe->session);
    if (probe->options) ORT(probe->ort, ReleaseSessionOptions)(probe->options);
    release_plugin(probe);
    if (probe->env) ORT(probe->ort, ReleaseEnv)(probe->env);
}
