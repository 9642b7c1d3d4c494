/* Operations over a whole axis: fully connected, softmax, mean, local response normalization; and resizing. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "compute.h"

/* Weights are [out, in]; the input is taken as rows of `in`. */
enum result compute_fully_connected(struct call *call) {
    if (!counts(call, 4, 1)) return BAD_DATA;
    const struct array *in = &call->inputs[0], *weights = &call->inputs[1], *bias = &call->inputs[2];
    struct array *out = call->outputs;
    if (!in->values || !weights->values || weights->rank != 2) return misfit(call, "arguments do not fit");
    size_t units = weights->sizes[0], depth = weights->sizes[1], rows = depth ? in->count / depth : 0;
    if (!bias->values || bias->count != units || rows * depth != in->count || out->count != rows * units)
        return misfit(call, "sizes do not fit");
    for (size_t r = 0; r < rows; r++)
        for (size_t u = 0; u < units; u++)
            out->values[r * units + u] =
                bias->values[u] + dot(in->values + r * depth, weights->values + u * depth, depth);
    activate(out, whole_at(call, 3, FUSED_NONE));
    return NO_ERROR;
}

static void softmax_line(const float *in, float *out, size_t count, size_t step, float beta) {
    float best = -INFINITY, sum = 0;
    for (size_t i = 0; i < count; i++) best = in[i * step] > best ? in[i * step] : best;
    for (size_t i = 0; i < count; i++) sum += out[i * step] = expf((in[i * step] - best) * beta);
    for (size_t i = 0; i < count; i++) out[i * step] /= sum;
}

static bool lines_of(const struct array *array, int32_t axis, size_t *outer, size_t *count, size_t *inner) {
    int64_t at = axis < 0 ? (int64_t)axis + array->rank : axis;
    if (!array->values || at < 0 || at >= array->rank) return false;
    *outer = *inner = 1;
    for (uint32_t i = 0; i < at; i++) *outer *= array->sizes[i];
    for (uint32_t i = (uint32_t)at + 1; i < array->rank; i++) *inner *= array->sizes[i];
    *count = array->sizes[at];
    return true;
}

enum result compute_softmax(struct call *call) {
    size_t outer, count, inner;
    if (!counts(call, 2, 1) || call->inputs->count != call->outputs->count ||
        !lines_of(call->inputs, whole_at(call, 2, -1), &outer, &count, &inner))
        return misfit(call, "arguments do not fit");
    for (size_t o = 0; o < outer; o++)
        for (size_t i = 0; i < inner; i++) {
            size_t at = o * count * inner + i;
            softmax_line(call->inputs->values + at, call->outputs->values + at, count, inner, real_at(call, 1, 1));
        }
    return NO_ERROR;
}

enum result compute_local_response_normalization(struct call *call) {
    size_t outer, count, inner;
    if (!counts(call, 5, 1) || call->inputs->count != call->outputs->count ||
        !lines_of(call->inputs, whole_at(call, 5, -1), &outer, &count, &inner))
        return misfit(call, "arguments do not fit");
    int64_t radius = whole_at(call, 1, 0);
    float bias = real_at(call, 2, 1), alpha = real_at(call, 3, 1), beta = real_at(call, 4, 0.5F);
    for (size_t i = 0; i < call->inputs->count; i++) {
        int64_t at = (int64_t)(i / inner % count);
        const float *line = call->inputs->values + i - (size_t)at * inner;
        float sum = 0;
        for (int64_t k = at - radius; k <= at + radius; k++)
            if (k >= 0 && k < (int64_t)count) sum += line[(size_t)k * inner] * line[(size_t)k * inner];
        call->outputs->values[i] = call->inputs->values[i] * powf(bias + alpha * sum, -beta);
    }
    return NO_ERROR;
}

/* Bit i is set for each axis that is averaged; all for an empty list. */
static bool axes_mask(const struct array *axes, uint32_t rank, uint32_t *mask) {
    *mask = axes->count ? 0 : (1U << rank) - 1;
    for (size_t i = 0; i < axes->count; i++) {
        int64_t axis = (int64_t)axes->values[i];
        axis += axis < 0 ? rank : 0;
        if (axis < 0 || axis >= rank) return false;
        *mask |= 1U << axis;
    }
    return true;
}

/* Sums are taken in double and in the order of the input; the output's place leaves the averaged axes out. */
enum result compute_mean(struct call *call) {
    uint32_t mask = 0;
    if (!counts(call, 2, 1) || !call->inputs->values || !call->inputs[1].values ||
        !axes_mask(&call->inputs[1], call->inputs->rank, &mask))
        return misfit(call, "arguments do not fit");
    const struct array *in = call->inputs;
    struct array *out = call->outputs;
    double *sums = calloc(out->count + 1, sizeof *sums);
    size_t averaged = 1, kept = 1;
    for (uint32_t d = 0; d < in->rank; d++) *(mask >> d & 1 ? &averaged : &kept) *= in->sizes[d];
    bool fits = sums && kept == out->count;
    for (size_t i = 0; fits && i < in->count; i++) {
        size_t rest = i, to = 0, step = 1;
        for (uint32_t d = in->rank; d-- > 0; rest /= in->sizes[d]) {
            if (mask >> d & 1) continue;
            to += rest % in->sizes[d] * step;
            step *= in->sizes[d];
        }
        sums[to] += (double)in->values[i];
    }
    for (size_t i = 0; fits && i < out->count; i++) out->values[i] = (float)(sums[i] / (double)averaged);
    free(sums);
    return fits ? NO_ERROR : misfit(call, "sizes do not fit");
}

/* How a place of the output is found in the input. Source: the reference of RESIZE_BILINEAR and
 * RESIZE_NEAREST_NEIGHBOR. */
struct scaling {
    float scale;
    bool align, half;
};

static struct scaling scaling_of(uint32_t in, uint32_t out, bool align, bool half) {
    bool corners = align && out > 1;
    return (struct scaling){corners ? (float)(in - 1) / (float)(out - 1) : (float)in / (float)out, align, half};
}

static float source(const struct scaling *scaling, uint32_t at) {
    if (!scaling->half) return (float)at * scaling->scale;
    float place = ((float)at + 0.5F) * scaling->scale - 0.5F;
    return place < 0 ? 0 : place;
}

static uint32_t nearest(const struct scaling *scaling, uint32_t at, uint32_t size) {
    float place = scaling->half ? ((float)at + 0.5F) * scaling->scale : (float)at * scaling->scale;
    float whole = scaling->align ? roundf(place) : floorf(place);
    return whole >= (float)size ? size - 1 : (uint32_t)whole;
}

/* Places above and below, and the share of the one below. */
struct pair {
    size_t first, second;
    float share;
};

static struct pair pair_at(const struct scaling *scaling, uint32_t at, uint32_t size, bool bilinear) {
    if (!bilinear) return (struct pair){nearest(scaling, at, size), nearest(scaling, at, size), 0};
    float place = source(scaling, at);
    uint32_t first = (uint32_t)place < size ? (uint32_t)place : size - 1;
    return (struct pair){first, first + 1 < size ? first + 1 : first, place - (float)first};
}

static void resize_row(const struct array *in, const struct array *out, size_t n, uint32_t y, struct pair rows,
                       struct scaling across, bool bilinear) {
    size_t w = in->sizes[2], c = in->sizes[3];
    const float *above = in->values + (n * in->sizes[1] + rows.first) * w * c;
    const float *below = in->values + (n * in->sizes[1] + rows.second) * w * c;
    float *to = out->values + (n * out->sizes[1] + y) * out->sizes[2] * c;
    for (uint32_t x = 0; x < out->sizes[2]; x++) {
        struct pair columns = pair_at(&across, x, in->sizes[2], bilinear);
        for (size_t k = 0; k < c; k++) {
            size_t left = columns.first * c + k, right = columns.second * c + k;
            float top = above[left] + (above[right] - above[left]) * columns.share;
            float bottom = below[left] + (below[right] - below[left]) * columns.share;
            *to++ = top + (bottom - top) * rows.share;
        }
    }
}

/* Input, width, height (or their scales), [nchw], [align corners], [half pixel centers]. The output knows its sizes. */
static enum result resize(struct call *call, bool bilinear) {
    if (!counts(call, 3, 1) || call->inputs->rank != 4 || call->outputs->rank != 4 || !call->inputs->values)
        return misfit(call, "arguments do not fit");
    bool nchw = whole_at(call, 3, 0), align = whole_at(call, 4, 0), half = whole_at(call, 5, 0);
    struct array in = view_nhwc(call->inputs, nchw), out = out_nhwc(call->outputs, nchw);
    bool fits = in.values && out.values && in.count && in.sizes[0] == out.sizes[0] && in.sizes[3] == out.sizes[3];
    struct scaling down = scaling_of(in.sizes[1], out.sizes[1], align, half);
    struct scaling across = scaling_of(in.sizes[2], out.sizes[2], align, half);
    for (size_t n = 0; fits && n < out.sizes[0]; n++)
        for (uint32_t y = 0; y < out.sizes[1]; y++)
            resize_row(&in, &out, n, y, pair_at(&down, y, in.sizes[1], bilinear), across, bilinear);
    enum result code = finish_nhwc(call->outputs, &in, &out, nchw);
    return fits ? code : misfit(call, "sizes do not fit");
}

enum result compute_resize_bilinear(struct call *call) { return resize(call, true); }
enum result compute_resize_nearest(struct call *call) { return resize(call, false); }
