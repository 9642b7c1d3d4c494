#include "stages.h"

#include <string.h>

#include "bind.h"
#include "cache.h"
#include "callers.h"
#include "inspect.h"
#include "labelled.h"
#include "measure.h"
#include "plugin.h"
#include "stream.h"
#include "sustain.h"
#include "tensors.h"

static bool measured_runs(struct probe *probe) {
    if (probe->request->steps) return stream_runs(probe);
    return (probe->request->sustain_ns ? sustained_runs(probe) : timed_runs(probe)) && concurrent_runs(probe);
}

static bool finish(struct probe *probe) {
    return fetch_bound(probe) && write_outputs(probe) && run_labelled(probe) && end_profile(probe);
}

/* What the system's NNAPI has; that it has none is an answer too. */
static bool inspect(struct probe *probe) {
    struct nnapi nnapi = {0};
    struct nnapi_answer *answer = &probe->answer->nnapi;
    if (open_nnapi(&nnapi, answer)) ask_questions(&nnapi, probe->request, answer);
    return true;
}

struct step {
    enum stage stage;
    bool (*work)(struct probe *);
};

static const struct step RUN[] = {
    {STAGE_OPEN, drop_cached},    {STAGE_OPEN, open_library},        {STAGE_ENVIRONMENT, create_environment},
    {STAGE_OPTIONS, set_options}, {STAGE_PROVIDER, append_provider}, {STAGE_LOAD, load_model},
    {STAGE_LOAD, note_assignment}, {STAGE_INPUTS, make_inputs},      {STAGE_FIRST_RUN, first_run},
    {STAGE_RUN, measured_runs},   {STAGE_OUTPUTS, finish},           {STAGE_DONE, NULL},
};

static const struct step INSPECT[] = {{STAGE_PROVIDER, inspect}, {STAGE_DONE, NULL}};

/* What a request may ask for: what it must name beside, and the steps of the work. */
enum need { NEEDS_NOTHING = 0, NEEDS_LIBRARY = 1, NEEDS_MODEL = 2 };

static const struct mode {
    const char *name;
    unsigned needs;
    const struct step *steps;
} MODES[] = {
    {"run", NEEDS_LIBRARY | NEEDS_MODEL, RUN},
    {"inspect", NEEDS_NOTHING, INSPECT},
};

/* The steps of the request's mode; NULL, with the reason noted, when there is no such mode or something is missing. */
static const struct step *find_steps(const struct request *request, struct answer *answer) {
    const struct mode *mode = NULL;
    for (size_t i = 0; i < sizeof MODES / sizeof *MODES; i++)
        if (!strcmp(MODES[i].name, request->mode)) mode = &MODES[i];
    if (!mode) fail(answer, NULL, 0, "unknown mode: %s", request->mode);
    if (mode && mode->needs & NEEDS_LIBRARY && !request->library) fail(answer, NULL, 0, "no library is given");
    if (mode && mode->needs & NEEDS_MODEL && !request->model) fail(answer, NULL, 0, "no model is given");
    return answer->failed ? NULL : mode->steps;
}

void execute(const struct request *request, struct answer *answer) {
    struct probe probe = {.request = request, .answer = answer, .log_lock = PTHREAD_MUTEX_INITIALIZER};
    const struct step *step = find_steps(request, answer);
    bool done = step;
    for (; done && step->work; step++) {
        answer->stage = step->stage;
        done = step->work(&probe);
    }
    if (done) {
        answer->measured = true;
        answer->stage = STAGE_RELEASE;
    }
    release_all(&probe);
    if (done) answer->stage = STAGE_DONE;
}
