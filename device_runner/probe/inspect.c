#include "inspect.h"

#include <string.h>

enum { OPERANDS_MAX = 32, VALUE_BYTES = 128 }; /* NNAPI copies values up to 128 bytes at once */

enum { SUPPORTED = 'y', REFUSED = 'n', IMPOSSIBLE = 'x', BROKEN = 'e' };

/* A model while it is built. `from` are the operands that are no constants; `scale` is for the next operand. */
struct draft {
    const struct nnapi *nnapi;
    nn_model *model;
    uint32_t count, from[OPERANDS_MAX], all[OPERANDS_MAX], froms;
    float scale;
    int32_t zero_point;
};

static bool parse_word(const char *text, uint32_t *word) {
    int64_t number = 0;
    bool good = parse_number(text, &number) && number <= UINT32_MAX;
    *word = (uint32_t)number;
    return good;
}

static bool parse_float(const char *text, float *number) {
    uint32_t bits = 0;
    bool good = parse_word(text, &bits);
    memcpy(number, &bits, sizeof bits);
    return good;
}

static int digit(char letter) {
    if (letter >= '0' && letter <= '9') return letter - '0';
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

/* Bytes from pairs of hexadecimal digits; the count of them, or -1. */
static int parse_bytes(const char *text, unsigned char *bytes) {
    int count = 0;
    for (; *text; text += 2, count++) {
        int high = digit(text[0]), low = high < 0 ? -1 : digit(text[1]);
        if (low < 0 || count == VALUE_BYTES) return -1;
        bytes[count] = (unsigned char)(high << 4 | low);
    }
    return count;
}

static bool draft_scale(struct draft *draft, const char *bits, const char *zero_point) {
    uint32_t word = 0;
    bool good = parse_float(bits, &draft->scale) && parse_word(zero_point, &word);
    draft->zero_point = (int32_t)word;
    return good;
}

static bool draft_operand(struct draft *draft, const char *code, const char *list) {
    int64_t sizes[DIMENSIONS_MAX];
    uint32_t type = 0, dimensions[DIMENSIONS_MAX];
    int rank = parse_sizes(list, sizes);
    if (rank < 0 || !parse_word(code, &type) || draft->count == OPERANDS_MAX) return false;
    for (int i = 0; i < rank; i++) dimensions[i] = (uint32_t)sizes[i];
    struct nn_operand operand = {(int32_t)type, (uint32_t)rank, dimensions, draft->scale, draft->zero_point};
    draft->scale = 0;
    draft->zero_point = 0;
    draft->all[draft->count] = draft->from[draft->froms++] = draft->count;
    draft->count++;
    return !draft->nnapi->Model_addOperand(draft->model, &operand);
}

/* The last operand is a constant. */
static bool draft_value(struct draft *draft, const char *name, const char *text) {
    unsigned char bytes[VALUE_BYTES];
    int count = parse_bytes(text, bytes);
    (void)name;
    if (count < 0 || !draft->count) return false;
    draft->froms--;
    return !draft->nnapi->Model_setOperandValue(draft->model, (int32_t)draft->count - 1, bytes, (size_t)count);
}

/* The last operand has a scale for each channel along a dimension. */
static bool draft_channels(struct draft *draft, const char *place, const char *list) {
    float scales[OPERANDS_MAX];
    int64_t numbers[DIMENSIONS_MAX];
    uint32_t dimension = 0;
    int count = parse_sizes(list, numbers);
    if (count < 0 || count > OPERANDS_MAX || !parse_word(place, &dimension) || !draft->count) return false;
    for (int i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)numbers[i];
        memcpy(&scales[i], &bits, sizeof bits);
    }
    struct nn_channels channels = {dimension, (uint32_t)count, scales};
    int32_t last = (int32_t)draft->count - 1;
    return draft->nnapi->Model_setOperandSymmPerChannelQuantParams &&
           !draft->nnapi->Model_setOperandSymmPerChannelQuantParams(draft->model, last, &channels);
}

/* The operation takes all operands but the last `outputs`, which are what it gives. */
static bool draft_operation(struct draft *draft, const char *code, const char *outputs) {
    uint32_t number = 0, given = 0;
    const struct nnapi *nnapi = draft->nnapi;
    if (!parse_word(code, &number) || !parse_word(outputs, &given) || given > draft->froms) return false;
    uint32_t taken = draft->count - given, *results = draft->all + taken;
    return !nnapi->Model_addOperation(draft->model, (int32_t)number, taken, draft->all, given, results) &&
           !nnapi->Model_identifyInputsAndOutputs(draft->model, draft->froms - given, draft->from, given, results) &&
           !nnapi->Model_finish(draft->model);
}

static const struct {
    const char *verb;
    bool (*work)(struct draft *, const char *, const char *);
} DRAFTING[] = {
    {"scale", draft_scale},       {"operand", draft_operand},     {"value", draft_value},
    {"channels", draft_channels}, {"operation", draft_operation},
};

/* Build the model of the question that begins at `at`; `*at` moves to the next question or to the end. */
static bool build_model(struct draft *draft, const struct request *request, size_t *at) {
    bool done = !draft->nnapi->Model_create(&draft->model);
    for (; *at + 3 <= request->count && strcmp(request->strings[*at], "question"); *at += 3) {
        const char *const *triple = request->strings + *at;
        for (size_t i = 0; i < sizeof DRAFTING / sizeof *DRAFTING; i++)
            if (done && !strcmp(DRAFTING[i].verb, triple[0])) done = DRAFTING[i].work(draft, triple[1], triple[2]);
    }
    return done;
}

static char ask_device(const struct nnapi *nnapi, const struct draft *draft, const nn_device *device) {
    bool supported = false;
    if (!device || nnapi->Model_getSupportedOperationsForDevices(draft->model, &device, 1, &supported)) return BROKEN;
    return supported ? SUPPORTED : REFUSED;
}

/* Ask every device; what was answered before a driver crashes is known then. */
static void ask_question(const struct nnapi *nnapi, const struct request *request, size_t *at, size_t number,
                         struct nnapi_answer *answer) {
    struct draft draft = {.nnapi = nnapi};
    bool built = build_model(&draft, request, at);
    for (uint32_t i = 0; i < answer->count; i++)
        answer->devices[i].answers[number] = built ? ask_device(nnapi, &draft, nnapi->devices[i]) : IMPOSSIBLE;
    if (draft.model) nnapi->Model_free(draft.model);
}

void ask_questions(const struct nnapi *nnapi, const struct request *request, struct nnapi_answer *answer) {
    size_t at = 0;
    bool able = nnapi->Model_create && nnapi->Model_free && nnapi->Model_addOperand && nnapi->Model_setOperandValue &&
                nnapi->Model_addOperation && nnapi->Model_identifyInputsAndOutputs && nnapi->Model_finish &&
                nnapi->Model_getSupportedOperationsForDevices;
    for (size_t number = 0; able && number < QUESTIONS_MAX && next(request, "question", &at); number++)
        ask_question(nnapi, request, &at, number, answer);
}
