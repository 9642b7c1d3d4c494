/* Operations that slide a window over an image: convolutions and pools, in NHWC. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "compute.h"

/* The window's arguments. `pad` is what lies left of and above the image. */
struct window {
    int32_t filter_h, filter_w, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
    bool nchw;
};

/* A place in the image that a window's cell falls on, or -1 outside of it. */
static int32_t place(int32_t out, int32_t stride, int32_t cell, int32_t dilation, int32_t pad, uint32_t size) {
    int32_t at = out * stride + cell * dilation - pad;
    return at < 0 || at >= (int32_t)size ? -1 : at;
}

static int32_t row_at(const struct window *window, uint32_t y, int32_t cell, const struct array *in) {
    return place((int32_t)y, window->stride_h, cell, window->dilation_h, window->pad_top, in->sizes[1]);
}

static int32_t column_at(const struct window *window, uint32_t x, int32_t cell, const struct array *in) {
    return place((int32_t)x, window->stride_w, cell, window->dilation_w, window->pad_left, in->sizes[2]);
}

/* SAME centres the window, the odd cell behind; VALID has no padding. */
static int32_t implicit_pad(int32_t code, uint32_t in, uint32_t out, int32_t stride, int32_t filter, int32_t dilation) {
    int32_t total = ((int32_t)out - 1) * stride + (filter - 1) * dilation + 1 - (int32_t)in;
    return code == PADDING_SAME && total > 0 ? total / 2 : 0;
}

static bool sane(const struct window *window) {
    return window->filter_h > 0 && window->filter_w > 0 && window->stride_h > 0 && window->stride_w > 0 &&
           window->dilation_h > 0 && window->dilation_w > 0;
}

/* Paddings from the four numbers at `at`, or from the code there. Sizes are read in the layout of the operands. */
static void read_padding(const struct call *call, uint32_t at, bool explicit, struct window *window) {
    const struct array *in = &call->inputs[0], *out = &call->outputs[0];
    uint32_t h = window->nchw ? 2 : 1, w = h + 1;
    int32_t code = whole_at(call, at, 0);
    window->pad_left = explicit ? code
                                : implicit_pad(code, in->sizes[w], out->sizes[w], window->stride_w, window->filter_w,
                                               window->dilation_w);
    window->pad_top = explicit ? whole_at(call, at + 2, 0)
                               : implicit_pad(code, in->sizes[h], out->sizes[h], window->stride_h, window->filter_h,
                                              window->dilation_h);
}

/* Convolutions: input, weights, bias, paddings (4 or 1), strides (2), `extra` more, activation, [nchw], [dilations]. */
struct convolution {
    struct window window;
    int32_t extra, activation;
};

static bool read_convolution(const struct call *call, uint32_t extra, struct convolution *to) {
    uint32_t code_form_end = 7 + extra;
    bool explicit = call->input_count > code_form_end && call->inputs[code_form_end].type != BOOL;
    uint32_t stride = explicit ? 7 : 4, next = stride + 2;
    const struct array *weights = &call->inputs[1];
    *to = (struct convolution){.extra = extra ? whole_at(call, next, 1) : 1,
                               .activation = whole_at(call, next + extra, FUSED_NONE)};
    to->window = (struct window){.filter_h = (int32_t)weights->sizes[1], .filter_w = (int32_t)weights->sizes[2],
                                 .stride_w = whole_at(call, stride, 1), .stride_h = whole_at(call, stride + 1, 1),
                                 .nchw = whole_at(call, next + extra + 1, 0),
                                 .dilation_w = whole_at(call, next + extra + 2, 1),
                                 .dilation_h = whole_at(call, next + extra + 3, 1)};
    if (!sane(&to->window)) return false;
    read_padding(call, 3, explicit, &to->window);
    return true;
}

/* Everything that one convolution works on, in NHWC. Weights are [out, height, width, in], depthwise [1, h, w, out]. */
struct images {
    struct array in, out;
    const struct array *weights, *bias;
};

/* Sum over one group's channels at one output place. */
static float convolve_one(const struct images *images, const struct window *window, size_t n, uint32_t y, uint32_t x,
                          uint32_t channel, uint32_t first, uint32_t depth) {
    const struct array *in = &images->in;
    const float *weights = images->weights->values + (size_t)channel * window->filter_h * window->filter_w * depth;
    float sum = images->bias->values[channel];
    for (int32_t fy = 0; fy < window->filter_h; fy++) {
        int32_t row = row_at(window, y, fy, in);
        for (int32_t fx = 0; row >= 0 && fx < window->filter_w; fx++) {
            int32_t column = column_at(window, x, fx, in);
            if (column < 0) continue;
            size_t at = ((n * in->sizes[1] + (size_t)row) * in->sizes[2] + (size_t)column) * in->sizes[3] + first;
            sum += dot(in->values + at, weights + (size_t)(fy * window->filter_w + fx) * depth, depth);
        }
    }
    return sum;
}

static void convolve(const struct images *images, const struct window *window, uint32_t groups) {
    const uint32_t *sizes = images->out.sizes;
    uint32_t depth = images->in.sizes[3] / groups, each = sizes[3] / groups;
    float *to = images->out.values;
    for (size_t n = 0; n < sizes[0]; n++)
        for (uint32_t y = 0; y < sizes[1]; y++)
            for (uint32_t x = 0; x < sizes[2]; x++)
                for (uint32_t c = 0; c < sizes[3]; c++)
                    *to++ = convolve_one(images, window, n, y, x, c, c / each * depth, depth);
}

/* One output place of a depthwise convolution, all channels: channel c reads input channel c / multiplier. */
static void convolve_depthwise_place(const struct images *images, const struct window *window, uint32_t multiplier,
                                     size_t n, uint32_t y, uint32_t x, float *to) {
    const struct array *in = &images->in;
    uint32_t channels = images->out.sizes[3];
    memcpy(to, images->bias->values, channels * sizeof(float));
    for (int32_t fy = 0; fy < window->filter_h; fy++) {
        int32_t row = row_at(window, y, fy, in);
        for (int32_t fx = 0; row >= 0 && fx < window->filter_w; fx++) {
            int32_t column = column_at(window, x, fx, in);
            if (column < 0) continue;
            size_t pixel = (n * in->sizes[1] + (size_t)row) * in->sizes[2] + (size_t)column;
            const float *from = in->values + pixel * in->sizes[3];
            const float *weights = images->weights->values + (size_t)(fy * window->filter_w + fx) * channels;
            for (uint32_t c = 0; c < channels; c++) to[c] += from[c / multiplier] * weights[c];
        }
    }
}

static void convolve_depthwise(const struct images *images, const struct window *window, uint32_t multiplier) {
    const uint32_t *sizes = images->out.sizes;
    float *to = images->out.values;
    for (size_t n = 0; n < sizes[0]; n++)
        for (uint32_t y = 0; y < sizes[1]; y++)
            for (uint32_t x = 0; x < sizes[2]; x++, to += sizes[3])
                convolve_depthwise_place(images, window, multiplier, n, y, x, to);
}

static bool open_images(const struct call *call, bool nchw, struct images *images) {
    images->in = view_nhwc(&call->inputs[0], nchw);
    images->out = out_nhwc(&call->outputs[0], nchw);
    images->weights = &call->inputs[1];
    images->bias = &call->inputs[2];
    return images->in.values && images->out.values && images->in.sizes[0] == images->out.sizes[0] &&
           images->bias->count == images->out.sizes[3];
}

static bool rank_four(const struct call *call) {
    const struct array *in = call->inputs;
    return in[0].values && in[0].rank == 4 && call->outputs->rank == 4;
}

static bool convolution_arguments(const struct call *call) {
    const struct array *in = call->inputs;
    return rank_four(call) && in[1].values && in[1].rank == 4 && in[2].values;
}

static enum result plain_convolution(struct call *call, uint32_t extra) {
    struct convolution convolution;
    struct images images = {0};
    if (!counts(call, 7, 1) || !convolution_arguments(call) || !read_convolution(call, extra, &convolution))
        return misfit(call, "arguments do not fit");
    uint32_t groups = (uint32_t)convolution.extra;
    bool fits = open_images(call, convolution.window.nchw, &images) && groups && images.in.sizes[3] % groups == 0 &&
                images.out.sizes[3] % groups == 0 && images.weights->sizes[0] == images.out.sizes[3] &&
                images.weights->sizes[3] == images.in.sizes[3] / groups;
    if (fits) convolve(&images, &convolution.window, groups);
    enum result code = finish_nhwc(call->outputs, &images.in, &images.out, convolution.window.nchw);
    activate(call->outputs, convolution.activation);
    return fits ? code : misfit(call, "sizes do not fit");
}

enum result compute_conv(struct call *call) { return plain_convolution(call, 0); }
enum result compute_grouped_conv(struct call *call) { return plain_convolution(call, 1); }

enum result compute_depthwise_conv(struct call *call) {
    struct convolution convolution;
    struct images images = {0};
    if (!counts(call, 8, 1) || !convolution_arguments(call) || !read_convolution(call, 1, &convolution))
        return misfit(call, "arguments do not fit");
    uint32_t multiplier = (uint32_t)convolution.extra;
    bool fits = open_images(call, convolution.window.nchw, &images) && images.weights->sizes[0] == 1 &&
                images.weights->sizes[3] == images.out.sizes[3] &&
                (size_t)images.in.sizes[3] * multiplier == images.out.sizes[3];
    if (fits) convolve_depthwise(&images, &convolution.window, multiplier);
    enum result code = finish_nhwc(call->outputs, &images.in, &images.out, convolution.window.nchw);
    activate(call->outputs, convolution.activation);
    return fits ? code : misfit(call, "sizes do not fit");
}

/* One place of a pool: padding counts for nothing. */
static float pool_one(const struct array *in, const struct window *window, size_t n, uint32_t y, uint32_t x,
                      uint32_t channel, bool average) {
    float sum = 0, best = -INFINITY;
    uint32_t count = 0;
    for (int32_t fy = 0; fy < window->filter_h; fy++) {
        int32_t row = row_at(window, y, fy, in);
        for (int32_t fx = 0; row >= 0 && fx < window->filter_w; fx++) {
            int32_t column = column_at(window, x, fx, in);
            if (column < 0) continue;
            size_t pixel = (n * in->sizes[1] + (size_t)row) * in->sizes[2] + (size_t)column;
            float value = in->values[pixel * in->sizes[3] + channel];
            sum += value;
            best = value > best ? value : best;
            count++;
        }
    }
    return average ? sum / (float)(count ? count : 1) : best;
}

static void pool(const struct array *in, const struct array *out, const struct window *window, bool average) {
    const uint32_t *sizes = out->sizes;
    float *to = out->values;
    for (size_t n = 0; n < sizes[0]; n++)
        for (uint32_t y = 0; y < sizes[1]; y++)
            for (uint32_t x = 0; x < sizes[2]; x++)
                for (uint32_t c = 0; c < sizes[3]; c++) *to++ = pool_one(in, window, n, y, x, c, average);
}

/* Pools: input, paddings (4 or 1), strides (2), filter (2), activation, [nchw]. */
static enum result compute_pool(struct call *call, bool average) {
    if (!counts(call, 7, 1) || !rank_four(call)) return misfit(call, "arguments do not fit");
    bool explicit = call->input_count > 8;
    uint32_t stride = explicit ? 5 : 2;
    struct window window = {.stride_w = whole_at(call, stride, 1), .stride_h = whole_at(call, stride + 1, 1),
                            .filter_w = whole_at(call, stride + 2, 1), .filter_h = whole_at(call, stride + 3, 1),
                            .dilation_h = 1, .dilation_w = 1, .nchw = whole_at(call, stride + 5, 0)};
    if (!sane(&window)) return misfit(call, "arguments do not fit");
    read_padding(call, 1, explicit, &window);
    struct array in = view_nhwc(call->inputs, window.nchw), out = out_nhwc(call->outputs, window.nchw);
    bool fits = in.values && out.values && in.sizes[0] == out.sizes[0] && in.sizes[3] == out.sizes[3];
    if (fits) pool(&in, &out, &window, average);
    enum result code = finish_nhwc(call->outputs, &in, &out, window.nchw);
    activate(call->outputs, whole_at(call, stride + 4, FUSED_NONE));
    return fits ? code : misfit(call, "sizes do not fit");
}

enum result compute_average_pool(struct call *call) { return compute_pool(call, true); }
enum result compute_max_pool(struct call *call) { return compute_pool(call, false); }
