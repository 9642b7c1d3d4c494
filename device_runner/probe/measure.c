#include "measure.h"

#include <stdio.h>
#include <stdlib.h>

#include "platform.h"

OrtStatus *run_once(struct probe *probe) {
    return ORT(probe->ort, Run)(probe->session, NULL, probe->input_names, probe->input_values, probe->input_count,
                                probe->output_names, probe->output_count, probe->output_values);
}

void drop_others(struct probe *probe) {
    for (size_t i = 0; i < probe->output_count; i++) {
        if (probe->outputs[i].tensor || !probe->output_values[i]) continue;
        ORT(probe->ort, ReleaseValue)(probe->output_values[i]);
        probe->output_values[i] = NULL;
    }
}

bool first_run(struct probe *probe) {
    uint64_t start = now_ns();
    OrtStatus *status = run_once(probe);
    probe->answer->first_run_ns = now_ns() - start;
    if (!ok(probe, status)) return false;
    for (size_t i = 0; i < probe->output_count; i++) {
        int tensor = 0;
        if (!ok(probe, ORT(probe->ort, IsTensor)(probe->output_values[i], &tensor))) return false;
        probe->outputs[i].tensor = tensor;
        probe->outputs[i].value = probe->output_values[i];
    }
    drop_others(probe);
    return true;
}

static bool warm_up(struct probe *probe) {
    uint64_t end = now_ns() + (uint64_t)probe->request->max_ns;
    for (int64_t i = 0; i < probe->request->warmup && now_ns() < end; i++) {
        if (!ok(probe, run_once(probe))) return false;
        drop_others(probe);
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
        uint64_t begin = now_ns();
        OrtStatus *status = run_once(probe);
        end = now_ns();
        if (status) return ok(probe, status);
        answer->latencies[answer->runs] = end - begin;
        answer->runs++;
        drop_others(probe);
    }
    answer->memory_peak = peak_bytes();
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

static void release_tensors(struct probe *probe) {
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
    if (probe->env) ORT(probe->ort, ReleaseEnv)(probe->env);
}
