/* image_fixture.h: random plans and images, and the expected results, pixel by pixel. In the
 * reference an image is pixels, and each pixel knows its byte or the operation that filled it.
 * The reference follows the parameters that the plan drew, and knows nothing about segments or
 * planes. */
#ifndef IMAGE_FIXTURE_H
#define IMAGE_FIXTURE_H

#include "policy_fixture.h"

#include "fl_cpu_image.h"
#include "fl_cpu_level.h"

enum { MAX_TABLES = 8 };

static inline int32_t type_bytes(fl_image_type type)
{
    return type == FL_IMAGE_U8 ? 1 : type == FL_IMAGE_F32 ? 4 : 2;
}

/* Returns the sample that padding repeats at position i of an axis of `length`; -1: no sample. */
static inline int32_t mirrored(int32_t i, int32_t length, fl_padding_mode mode)
{
    if (i >= 0 && i < length) return i;
    if (mode == FL_PAD_CONSTANT) return -1;
    if (mode == FL_PAD_EDGE) return i < 0 ? 0 : length - 1;
    if (mode == FL_PAD_REFLECT) return i < 0 ? -i : 2 * (length - 1) - i;
    return i < 0 ? -1 - i : 2 * length - 1 - i;
}

static inline void pad_picture(picture *p, const int32_t padding[4], fl_padding_mode mode, int op)
{
    picture new = make_picture(p->size.height + padding[1] + padding[3],
                               p->size.width + padding[0] + padding[2]);
    for (int32_t y = 0; y < new.size.height; y++)
        for (int32_t x = 0; x < new.size.width; x++) {
            int32_t from_y = mirrored(y - padding[1], p->size.height, mode);
            int32_t from_x = mirrored(x - padding[0], p->size.width, mode);
            bool is_filled = from_y < 0 || from_x < 0;
            *pixel_at(&new, y, x) = is_filled ? (pixel){.fill = op} : *pixel_at(p, from_y, from_x);
        }
    replace(p, new);
}

static inline void crop_picture(picture *p, int32_t top, int32_t left, fl_image_size size)
{
    picture new = make_picture(size.height, size.width);
    for (int32_t y = 0; y < size.height; y++)
        for (int32_t x = 0; x < size.width; x++)
            *pixel_at(&new, y, x) = *pixel_at(p, top + y, left + x);
    replace(p, new);
}

static inline void flip_picture(picture *p, bool is_x)
{
    picture new = make_picture(p->size.height, p->size.width);
    for (int32_t y = 0; y < p->size.height; y++)
        for (int32_t x = 0; x < p->size.width; x++)
            *pixel_at(&new, y, x) =
                *pixel_at(p, is_x ? y : p->size.height - 1 - y, is_x ? p->size.width - 1 - x : x);
    replace(p, new);
}

/* Returns sample i of a resized axis; `samples` are its source. */
static inline uint8_t resized(const fl_resample *axis, int32_t i, const uint8_t *samples)
{
    const uint8_t *x = samples + axis->first[i];
    if (axis->weight == NULL) return x[0];
    int64_t sum = (int64_t)1 << axis->precision >> 1;
    for (int32_t k = 0; k < axis->count[i]; k++)
        sum += fl_resample_weight(axis, (int64_t)i * axis->taps + k) * x[k];
    sum >>= axis->precision;
    return (uint8_t)fl_max(0, fl_min(255, sum));
}

static inline void resize_x(picture *p, fl_interpolation how, int32_t width, int32_t channels)
{
    if (width == p->size.width) return;
    fl_resample axis = {0};
    CHECK_INT(fl_resample_make(&axis, how, p->size.width, width, NULL), FL_OK);
    uint8_t *line = malloc((size_t)p->size.width);
    picture new = make_picture(p->size.height, width);
    for (int32_t y = 0; y < p->size.height; y++)
        for (int32_t c = 0; c < channels; c++) {
            for (int32_t x = 0; x < p->size.width; x++) line[x] = pixel_at(p, y, x)->byte[c];
            for (int32_t x = 0; x < width; x++)
                pixel_at(&new, y, x)->byte[c] = resized(&axis, x, line);
        }
    free(line);
    fl_resample_close(&axis);
    replace(p, new);
}

static inline void transpose(picture *p)
{
    picture new = make_picture(p->size.width, p->size.height);
    for (int32_t y = 0; y < p->size.height; y++)
        for (int32_t x = 0; x < p->size.width; x++) *pixel_at(&new, x, y) = *pixel_at(p, y, x);
    replace(p, new);
}

static inline void resize_picture(picture *p, fl_interpolation how, fl_image_size size,
                                  int32_t channels, const fl_image_op *ops)
{
    if (size.height == p->size.height && size.width == p->size.width) return;
    settle(p, ops);
    int32_t rows = p->size.height - size.height, columns = p->size.width - size.width;
    bool is_columns_first = how >= FL_PILLOW_13_BILINEAR && rows > 0 && rows > 2 * columns;
    if (!is_columns_first) resize_x(p, how, size.width, channels);
    transpose(p);
    resize_x(p, how, size.height, channels);
    transpose(p);
    if (is_columns_first) resize_x(p, how, size.width, channels);
    for (int64_t i = 0; i < (int64_t)p->size.height * p->size.width; i++)
        p->pixels[i].fill = NOT_FILLED;
}

static inline void erase_picture(picture *p, const fl_image_params *at, int op)
{
    for (int32_t y = 0; y < at->size.height; y++)
        for (int32_t x = 0; x < at->size.width; x++)
            pixel_at(p, at->top + y, at->left + x)->fill = op;
}

/* Follows the operations, and sets *channels to the channels of the result. */
static inline void
follow(picture *p, const fl_image_op *ops, int32_t i, const fl_image_params *at, int32_t *channels)
{
    const fl_image_op *op = &ops[i];
    switch (op->kind) {
    case FL_OP_PAD:
        pad_picture(p, at->padding, op->padding_mode, i);
        break;
    case FL_OP_CENTER_CROP:
    case FL_OP_RANDOM_CROP:
        pad_picture(p, at->padding, op->padding_mode, i);
        crop_picture(p, at->top, at->left, op->size);
        break;
    case FL_OP_RESIZE:
        resize_picture(p, op->interpolation, at->out, *channels, ops);
        break;
    case FL_OP_RANDOM_RESIZED_CROP:
        crop_picture(p, at->top, at->left, at->size);
        resize_picture(p, op->interpolation, op->size, *channels, ops);
        break;
    case FL_OP_HORIZONTAL_FLIP:
        if (at->is_applied) flip_picture(p, true);
        break;
    case FL_OP_VERTICAL_FLIP:
        if (at->is_applied) flip_picture(p, false);
        break;
    case FL_OP_ERASE:
        if (at->is_applied) erase_picture(p, at, i);
        break;
    case FL_OP_ROTATION:
    case FL_OP_AFFINE:
    case FL_OP_PERSPECTIVE:
        follow_warp(p, ops, i, at, *channels);
        break;
    case FL_OP_RAND_AUGMENT:
    case FL_OP_TRIVIAL_AUGMENT:
    case FL_OP_AUTO_AUGMENT:
    case FL_OP_AUG_MIX:
        follow_policy(p, ops, i, at, *channels);
        break;
    default:
        follow_tone(p, ops, i, at, channels);
    }
}

static inline bool needs_colors(fl_image_op_kind kind) { return is_color(kind) || is_policy(kind); }

static inline bool is_gate(fl_image_op_kind kind)
{
    return kind >= FL_OP_APPLY && kind <= FL_OP_BRANCH;
}

/* Operations [begin, end), with those that they hold. */
static inline void follow_range(picture *p, const fl_image_op *ops, const fl_image_params *params,
                                int32_t begin, int32_t end, int32_t *channels)
{
    for (int32_t i = begin; i < end; i += 1 + ops[i].span) {
        int32_t branches[FL_MAX_IMAGE_OPS], count = 0;
        for (int32_t k = i + 1; k <= i + ops[i].span; k += 1 + ops[k].span) branches[count++] = k;
        if (!is_gate(ops[i].kind)) {
            follow(p, ops, i, &params[i], channels);
        } else if (ops[i].kind == FL_OP_CHOICE || ops[i].kind == FL_OP_ORDER) {
            for (int32_t n = 0; n < (ops[i].kind == FL_OP_CHOICE ? 1 : count); n++) {
                int32_t k = branches[params[i].order[n]];
                follow_range(p, ops, params, k + 1, k + 1 + ops[k].span, channels);
            }
        } else if (params[i].is_applied) {
            follow_range(p, ops, params, i + 1, i + 1 + ops[i].span, channels);
        }
        CHECK_INT(p->size.height, params[i].out.height);
        CHECK_INT(p->size.width, params[i].out.width);
    }
}

/* Returns the output that a plan with `config` should write for these parameters. The caller frees
 * the output. */
static inline char *expected_output(const fl_image_config *config, const fl_image_params *params,
                                    const fl_image_source *source)
{
    picture p = make_picture(source->size.height, source->size.width);
    for (int32_t y = 0; y < p.size.height; y++)
        for (int32_t x = 0; x < p.size.width; x++) {
            pixel *at = pixel_at(&p, y, x);
            at->fill = NOT_FILLED;
            for (int32_t c = 0; c < config->channels; c++)
                at->byte[c] =
                    source
                        ->data[y * source->stride_y + x * source->stride_x + c * source->stride_c];
        }
    int32_t channels = config->channels;
    follow_range(&p, config->ops, params, 0, config->count, &channels);
    int32_t bytes = type_bytes(config->type), height = p.size.height, width = p.size.width;
    char *out = malloc((size_t)height * (size_t)width * (size_t)(channels * bytes));
    CHECK(out != NULL);
    for (int32_t y = 0; y < height; y++)
        for (int32_t x = 0; x < width; x++)
            for (int32_t c = 0; c < channels; c++) {
                const pixel *at = pixel_at(&p, y, x);
                const char *value = (const char *)&at->byte[c];
                if (config->tables != NULL)
                    value = (const char *)config->tables + (c * 256 + at->byte[c]) * bytes;
                if (at->fill != NOT_FILLED)
                    value = (const char *)config->ops[at->fill].out_fill + c * bytes;
                int64_t element = config->layout == FL_HWC ? ((int64_t)y * width + x) * channels + c
                                                           : ((int64_t)c * height + y) * width + x;
                memcpy(out + element * bytes, value, (size_t)bytes);
            }
    free(p.pixels);
    return out;
}

/* ---- sources */

/* The ways in which an image lies in memory. */
typedef enum lying { AS_CHW, AS_HWC, AS_PADDED, AS_BACKWARD, AS_STEPPED, AS_WIDER_PIXELS } lying;
enum { WAYS_TO_LIE = AS_WIDER_PIXELS + 1 };

/* Makes an image over fresh random memory that holds nothing else. *memory is the caller's. */
static inline fl_image_source
make_source(uint64_t *seed, lying how, fl_image_size size, int32_t channels, char **memory)
{
    int64_t h = size.height, w = size.width, c = channels, bytes = h * w * c;
    fl_image_source s = {.stride_y = w, .stride_x = 1, .stride_c = h * w, .size = size};
    if (how == AS_HWC) s.stride_y = w * c, s.stride_x = c, s.stride_c = 1;
    if (how == AS_PADDED) s.stride_y = w + 3, s.stride_c = h * (w + 3), bytes = c * h * (w + 3);
    if (how == AS_STEPPED) s.stride_y = 2 * w, s.stride_x = 2, s.stride_c = h * w * 2, bytes *= 2;
    if (how == AS_WIDER_PIXELS)
        s.stride_y = w * (c + 1), s.stride_x = c + 1, s.stride_c = 1, bytes = h * w * (c + 1);
    s.is_padded = how == AS_WIDER_PIXELS && c + 1 == FL_MAX_CHANNELS && random_below(seed, 4) > 0;
    *memory = malloc((size_t)bytes);
    CHECK(*memory != NULL);
    fill_random(seed, *memory, bytes);
    s.data = (const uint8_t *)*memory;
    if (how == AS_BACKWARD) {
        s.data += bytes - 1;
        s.stride_y *= -1, s.stride_x *= -1, s.stride_c *= -1;
    }
    return s;
}

/* ---- tables of kernels that this machine has */

static inline int find_tables(const fl_image_ops *tables[MAX_TABLES])
{
    int count = 0;
    tables[count++] = &fl_cpu_image_plain;
#if defined(__x86_64__)
    if (fl_cpu_level_find() >= FL_CPU_AVX2) tables[count++] = &fl_cpu_image_avx2;
    if (fl_cpu_level_find() >= FL_CPU_AVX512) tables[count++] = &fl_cpu_image_avx512;
#elif defined(__aarch64__)
    if (fl_cpu_level_find() >= FL_CPU_NEON) tables[count++] = &fl_cpu_image_neon;
#endif
    return count;
}

/* ---- plans */

/* A configuration, with the memory that it points to. */
typedef struct plan_case {
    fl_image_config config;
    fl_image_op ops[FL_MAX_IMAGE_OPS];
    _Alignas(64) char tables[FL_MAX_CHANNELS * 256 * 4];
    float linear[3 * FL_MAX_CHANNELS];
} plan_case;

static inline int32_t random_length(uint64_t *seed, int32_t longest)
{
    return 1 + (int32_t)random_below(seed, random_below(seed, 4) == 0 ? 3 : longest);
}

static inline bool has_padding(fl_image_op_kind kind)
{
    return kind == FL_OP_PAD || kind == FL_OP_RANDOM_CROP;
}

static inline bool has_size(fl_image_op_kind kind)
{
    return kind == FL_OP_CENTER_CROP || kind == FL_OP_RANDOM_CROP || kind == FL_OP_RESIZE ||
           kind == FL_OP_RANDOM_RESIZED_CROP;
}

static inline fl_image_op random_op(uint64_t *seed, fl_image_op_kind kind, int32_t longest)
{
    fl_image_op op = {.kind = kind, .p = (double)random_below(seed, 4) / 3};
    if (has_size(kind))
        op.size = (fl_image_size){random_length(seed, longest), random_length(seed, longest)};
    if (kind == FL_OP_RESIZE && random_below(seed, 3) == 0) {
        op.size.width = 0;
        if (random_below(seed, 2)) op.max_size = op.size.height + random_length(seed, longest);
        if (op.max_size > 0 && random_below(seed, 3) == 0) op.size.height = 0;
    }
    if (has_size(kind)) op.interpolation = (fl_interpolation)random_below(seed, FL_INTERPOLATIONS);
    if (has_padding(kind)) {
        op.padding_mode = (fl_padding_mode)random_below(seed, FL_PADDING_MODES);
        for (int i = 0; i < 4; i++) op.padding[i] = (int32_t)random_below(seed, 6);
        op.pad_if_needed = random_below(seed, 2);
    }
    random_numbers(seed, &op);
    if (is_warp(kind)) random_warp(seed, &op);
    if (is_policy(kind)) random_policy(seed, &op);
    op.scale[0] = 0.1, op.scale[1] = 1, op.ratio[0] = 0.5, op.ratio[1] = 2.5;
    return op;
}

static inline void set_occurrences(plan_case *p)
{
    for (int32_t i = 0; i < p->config.count; i++)
        for (int32_t k = 0; k < i; k++)
            if (p->ops[k].kind == p->ops[i].kind) p->ops[i].occurrence++;
}

/* Draws an operation that keeps the size and the channels. */
static inline fl_image_op random_held(uint64_t *seed, const plan_case *p, bool is_ordered)
{
    for (;;) {
        fl_image_op_kind kind = (fl_image_op_kind)random_below(seed, FL_OP_KINDS);
        bool is_refused = kind < FL_OP_HORIZONTAL_FLIP || is_gate(kind) ||
                          kind == FL_OP_GRAYSCALE || (kind == FL_OP_ERASE && is_ordered) ||
                          (needs_colors(kind) && p->config.channels % 2 == 0);
        if (!is_refused) return random_op(seed, kind, 1);
    }
}

/* One to three operations, held by one, from p->ops[at] on; returns how many there are in all. */
static inline int32_t random_gate(uint64_t *seed, plan_case *p, int32_t at)
{
    fl_image_op *gate = &p->ops[at], *next = gate + 1;
    *gate = (fl_image_op){.kind = FL_OP_APPLY + (fl_image_op_kind)random_below(seed, 3), .p = 0.6};
    int32_t branches = 1 + (int32_t)random_below(seed, 3);
    for (int32_t n = 0; n < branches; n++) {
        int32_t held = (int32_t)random_below(seed, 3);
        if (gate->kind != FL_OP_APPLY)
            *next++ = (fl_image_op){
                .kind = FL_OP_BRANCH, .span = held, .branch_end = (double)(n + 1) / branches};
        while (held-- > 0) *next++ = random_held(seed, p, gate->kind == FL_OP_ORDER);
    }
    gate->span = (int32_t)(next - gate) - 1;
    return gate->span + 1;
}

/* Random tables, or (v * scale - mean) / std for floats, which both claim to be the latter. */
static inline void make_tables(uint64_t *seed, plan_case *p)
{
    fill_random(seed, p->tables, sizeof p->tables);
    if (p->config.type == FL_IMAGE_U8) return;
    p->config.tables = p->tables;
    p->config.linear = p->linear;
    bool is_linear = p->config.type == FL_IMAGE_F32 && random_below(seed, 3) > 0;
    bool divides = random_below(seed, 2) > 0;
    for (int32_t c = 0; c < FL_MAX_CHANNELS; c++) {
        float *l = &p->linear[3 * c];
        l[0] = 1 / 255.0f, l[1] = (float)random_below(seed, 99) / 100;
        l[2] = (float)(1 + random_below(seed, 99)) / 100;
        for (int v = 0; is_linear && v < 256; v++) {
            float product = divides ? (float)v / 255 : (float)v * l[0];
            float value = (product - l[1]) / l[2];
            memcpy(p->tables + (c * 256 + v) * 4, &value, 4);
        }
    }
}

/* Sets the fills of all operations: half of them to the casts of their bytes, the rest to any
 * elements. */
static inline void make_fills(uint64_t *seed, plan_case *p)
{
    int32_t bytes = type_bytes(p->config.type);
    for (int32_t i = 0; i < p->config.count; i++) {
        fl_image_op *op = &p->ops[i];
        fill_random(seed, (char *)op->fill, sizeof op->fill);
        fill_random(seed, (char *)op->out_fill, sizeof op->out_fill);
        if (random_below(seed, 2)) continue;
        for (int32_t c = 0; c < FL_MAX_CHANNELS; c++) {
            const void *element = p->tables + (c * 256 + op->fill[c]) * bytes;
            if (p->config.tables == NULL) element = &op->fill[c];
            memcpy(op->out_fill + c * bytes, element, (size_t)bytes);
        }
    }
}

/* A plan that may not open. Its operations point into *p. */
static inline void random_case(uint64_t *seed, plan_case *p, int32_t most_ops, int32_t longest)
{
    static const int32_t channels[] = {1, 2, 3, 3, 4};
    memset(p, 0, sizeof *p);
    p->config = (fl_image_config){.ops = p->ops,
                                  .count = (int32_t)random_below(seed, most_ops + 1),
                                  .channels = channels[random_below(seed, 5)],
                                  .type = (fl_image_type)random_below(seed, FL_IMAGE_TYPES),
                                  .layout = (fl_image_layout)random_below(seed, FL_IMAGE_LAYOUTS),
                                  .seed = next_random(seed),
                                  .image_ops = &fl_cpu_image_plain};
    p->config.in = (fl_image_size){random_length(seed, longest), random_length(seed, longest)};
    int32_t wanted = p->config.count, filled = 0;
    for (int32_t i = 0; i < wanted; i++) {
        fl_image_op_kind kind;
        do kind = (fl_image_op_kind)random_below(seed, FL_OP_KINDS);
        while (is_gate(kind) || (needs_colors(kind) && p->config.channels % 2 == 0));
        p->ops[filled++] = random_op(seed, kind, longest);
        if (filled < FL_MAX_IMAGE_OPS / 2 && random_below(seed, 4) == 0)
            filled += random_gate(seed, p, filled);
    }
    p->config.count = filled;
    set_occurrences(p);
    make_tables(seed, p);
    make_fills(seed, p);
}

#endif
