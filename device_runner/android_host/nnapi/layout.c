/* Operations that only move elements: transpose, concatenate, split, slice, pad, gather, depth to space. */
#define _GNU_SOURCE
#include <string.h>

#include "compute.h"

static bool axis_of(const struct call *call, int32_t axis, uint32_t rank, uint32_t *found) {
    int64_t at = axis < 0 ? (int64_t)axis + rank : axis;
    *found = (uint32_t)at;
    if (at >= 0 && at < rank) return true;
    misfit(call, "an axis outside of the rank");
    return false;
}

static size_t product(const uint32_t *sizes, uint32_t first, uint32_t last) {
    size_t count = 1;
    for (uint32_t i = first; i < last; i++) count *= sizes[i];
    return count;
}

enum result compute_transpose(struct call *call) {
    if (!counts(call, 1, 1)) return BAD_DATA;
    const struct array *in = &call->inputs[0], *order = call->input_count > 1 ? &call->inputs[1] : NULL;
    uint32_t to[RANK_MAX], seen = 0;
    for (uint32_t i = 0; i < in->rank; i++) {
        bool listed = order && order->values && order->count == in->rank;
        to[i] = listed ? (uint32_t)order->values[i] : in->rank - 1 - i;
        if (to[i] >= in->rank) return misfit(call, "a wrong permutation");
        seen |= 1U << to[i];
    }
    if (!in->values || seen != (1U << in->rank) - 1) return misfit(call, "a wrong permutation");
    struct array moved = permuted(in, to);
    bool fits = moved.values && same_sizes(&moved, call->outputs);
    if (fits) memcpy(call->outputs->values, moved.values, moved.count * sizeof(float));
    free(moved.values);
    return fits ? NO_ERROR : misfit(call, "other sizes than the permuted input's");
}

/* Copies `in` into `out` at `offset` along an axis, or the other way round when `back`. */
static bool copy_along(struct array *whole, struct array *part, uint32_t axis, size_t offset, bool back) {
    if (part->rank != whole->rank || !part->values || offset + part->sizes[axis] > whole->sizes[axis]) return false;
    size_t outer = product(part->sizes, 0, axis), inner = product(part->sizes, axis + 1, part->rank);
    if (outer != product(whole->sizes, 0, axis) || inner != product(whole->sizes, axis + 1, whole->rank)) return false;
    size_t length = part->sizes[axis] * inner, step = whole->sizes[axis] * inner;
    for (size_t i = 0; i < outer; i++) {
        float *in_whole = whole->values + i * step + offset * inner, *in_part = part->values + i * length;
        memcpy(back ? in_part : in_whole, back ? in_whole : in_part, length * sizeof(float));
    }
    return true;
}

enum result compute_concatenation(struct call *call) {
    uint32_t axis = 0;
    size_t offset = 0;
    if (!counts(call, 2, 1) || !axis_of(call, whole_at(call, call->input_count - 1, 0), call->outputs->rank, &axis))
        return BAD_DATA;
    for (uint32_t i = 0; i + 1 < call->input_count; offset += call->inputs[i++].sizes[axis])
        if (!copy_along(call->outputs, &call->inputs[i], axis, offset, false)) return misfit(call, "sizes do not fit");
    return offset == call->outputs->sizes[axis] ? NO_ERROR : misfit(call, "sizes do not add up");
}

enum result compute_split(struct call *call) {
    uint32_t axis = 0;
    size_t offset = 0;
    if (!counts(call, 3, call->output_count) || !call->inputs->values ||
        !axis_of(call, whole_at(call, 1, 0), call->inputs->rank, &axis))
        return BAD_DATA;
    for (uint32_t i = 0; i < call->output_count; offset += call->outputs[i++].sizes[axis])
        if (!copy_along(call->inputs, &call->outputs[i], axis, offset, true)) return misfit(call, "sizes do not fit");
    return NO_ERROR;
}

enum result compute_gather(struct call *call) {
    uint32_t axis = 0;
    if (!counts(call, 3, 1) || !axis_of(call, whole_at(call, 1, 0), call->inputs->rank, &axis)) return BAD_DATA;
    const struct array *in = &call->inputs[0], *indices = &call->inputs[2];
    struct array *out = call->outputs;
    size_t outer = product(in->sizes, 0, axis), inner = product(in->sizes, axis + 1, in->rank);
    if (!in->values || !indices->values || out->count != outer * indices->count * inner)
        return misfit(call, "sizes do not fit");
    for (size_t o = 0; o < outer; o++) {
        for (size_t i = 0; i < indices->count; i++) {
            float at = indices->values[i];
            if (at < 0 || at >= (float)in->sizes[axis]) return misfit(call, "an index outside of the axis");
            memcpy(out->values + (o * indices->count + i) * inner,
                   in->values + (o * in->sizes[axis] + (size_t)at) * inner, inner * sizeof(float));
        }
    }
    return NO_ERROR;
}

/* Output element by output element from begin + index * step; the places must lie inside. */
static enum result take(struct call *call, const struct array *in, const int64_t *begin, const int64_t *steps) {
    struct array view = *call->outputs;
    size_t strides[RANK_MAX] = {0};
    strides_of(in, strides);
    for (uint32_t d = 0; d < in->rank; d++) {
        int64_t last = begin[d] + ((int64_t)view.sizes[d] - 1) * steps[d];
        if (view.sizes[d] && (begin[d] < 0 || begin[d] >= in->sizes[d] || last < 0 || last >= in->sizes[d]))
            return misfit(call, "a slice outside of the input");
    }
    for (size_t i = 0; i < view.count; i++) {
        size_t rest = i;
        int64_t from = 0;
        for (uint32_t d = in->rank; d-- > 0; rest /= view.sizes[d])
            from += (begin[d] + (int64_t)(rest % view.sizes[d]) * steps[d]) * (int64_t)strides[d];
        view.values[i] = in->values[from];
    }
    return NO_ERROR;
}

enum result compute_slice(struct call *call) {
    if (!counts(call, 3, 1)) return BAD_DATA;
    const struct array *in = call->inputs, *at = &call->inputs[1];
    int64_t begin[RANK_MAX] = {0}, steps[RANK_MAX] = {0};
    if (!in->values || !at->values || at->count != in->rank || call->outputs->rank != in->rank)
        return misfit(call, "sizes do not fit");
    for (uint32_t d = 0; d < in->rank; d++) {
        begin[d] = (int64_t)at->values[d];
        steps[d] = 1;
    }
    return take(call, in, begin, steps);
}

/* Where a strided slice begins along one dimension: as given, from the end when negative, at an end when masked. */
static int64_t strided_begin(int64_t begin, int64_t step, int64_t size, bool masked) {
    if (masked) return step > 0 ? 0 : size - 1;
    if (begin < 0) begin += size;
    return begin < 0 ? 0 : begin >= size ? size - 1 : begin;
}

/* The output's own sizes say how far it goes; a shrunk dimension has one element and is not among them. */
enum result compute_strided_slice(struct call *call) {
    if (!counts(call, 7, 1)) return BAD_DATA;
    const struct array *in = call->inputs, *begins = &call->inputs[1], *strides = &call->inputs[3];
    int64_t begin[RANK_MAX] = {0}, steps[RANK_MAX] = {0};
    int32_t begin_mask = whole_at(call, 4, 0), shrink = whole_at(call, 6, 0);
    struct array full = *call->outputs;
    if (!in->values || !begins->values || !strides->values || begins->count != in->rank || strides->count != in->rank)
        return misfit(call, "sizes do not fit");
    for (uint32_t d = 0, kept = 0; d < in->rank; d++) {
        steps[d] = (int64_t)strides->values[d];
        begin[d] = strided_begin((int64_t)begins->values[d], steps[d], in->sizes[d], begin_mask >> d & 1);
        bool dropped = shrink >> d & 1;
        full.sizes[d] = dropped ? 1 : kept < call->outputs->rank ? call->outputs->sizes[kept] : 0;
        kept += !dropped;
    }
    full.rank = in->rank;
    if (product(full.sizes, 0, full.rank) != call->outputs->count) return misfit(call, "sizes do not fit");
    struct call inner = {call->kind, call->input_count, 1, call->inputs, &full};
    return take(&inner, in, begin, steps);
}

/* PAD and PAD_V2: paddings are [rank, 2], before and behind; the value is a scalar, 0 for PAD. */
enum result compute_pad(struct call *call) {
    if (!counts(call, 2, 1)) return BAD_DATA;
    const struct array *in = call->inputs, *pads = &call->inputs[1];
    struct array *out = call->outputs;
    float value = real_at(call, 2, 0);
    size_t strides[RANK_MAX] = {0};
    if (!in->values || !pads->values || pads->count != 2 * (size_t)in->rank || out->rank != in->rank)
        return misfit(call, "sizes do not fit");
    for (uint32_t d = 0; d < in->rank; d++)
        if (pads->values[2 * d] < 0 || pads->values[2 * d] + (float)in->sizes[d] > (float)out->sizes[d])
            return misfit(call, "paddings do not fit");
    strides_of(out, strides);
    for (size_t i = 0; i < out->count; i++) out->values[i] = value;
    for (size_t i = 0; i < in->count; i++) {
        size_t rest = i, to = 0;
        for (uint32_t d = in->rank; d-- > 0; rest /= in->sizes[d])
            to += (rest % in->sizes[d] + (size_t)pads->values[2 * d]) * strides[d];
        out->values[to] = in->values[i];
    }
    return NO_ERROR;
}

enum result compute_depth_to_space(struct call *call) {
    if (!counts(call, 2, 1) || call->inputs->rank != 4 || call->outputs->rank != 4 || !call->inputs->values)
        return misfit(call, "not two images");
    bool nchw = whole_at(call, 2, 0);
    uint32_t block = (uint32_t)whole_at(call, 1, 1);
    struct array image = view_nhwc(call->inputs, nchw), out = out_nhwc(call->outputs, nchw);
    uint32_t h = image.sizes[1], w = image.sizes[2], depth = image.sizes[3], c = out.sizes[3];
    bool fits = image.values && out.values && block && out.sizes[1] == h * block && out.sizes[2] == w * block &&
                depth == c * block * block && out.count == image.count;
    for (size_t i = 0; fits && i < image.count; i++) {
        size_t from = i % depth, x = i / depth % w, y = i / depth / w % h, n = i / depth / w / h;
        size_t row = y * block + from / c / block, column = x * block + from / c % block;
        out.values[((n * h * block + row) * w * block + column) * c + from % c] = image.values[i];
    }
    enum result code = finish_nhwc(call->outputs, &image, &out, nchw);
    return fits ? code : misfit(call, "sizes do not fit");
}
