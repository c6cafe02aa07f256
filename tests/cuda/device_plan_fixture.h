/* device_plan_fixture.h: random plans that a device can run, and memory without room to spare. */
#ifndef DEVICE_PLAN_FIXTURE_H
#define DEVICE_PLAN_FIXTURE_H

#include "image_fixture.h"

#include "fl_image_plan.h"

enum { MOST_OPS = 5, GUARD = 0x5A };

static const fl_image_op_kind moving[] = {FL_OP_PAD,           FL_OP_CENTER_CROP,
                                          FL_OP_RANDOM_CROP,   FL_OP_HORIZONTAL_FLIP,
                                          FL_OP_VERTICAL_FLIP, FL_OP_ERASE};
static const fl_image_op_kind early[] = {FL_OP_RANDOM_CROP, FL_OP_HORIZONTAL_FLIP,
                                         FL_OP_VERTICAL_FLIP};
static const fl_image_op_kind resizing[] = {FL_OP_RESIZE, FL_OP_RANDOM_RESIZED_CROP};
static const fl_image_op_kind late[] = {
    FL_OP_HORIZONTAL_FLIP, FL_OP_VERTICAL_FLIP,       FL_OP_INVERT,
    FL_OP_SOLARIZE,        FL_OP_POSTERIZE,           FL_OP_AUTOCONTRAST,
    FL_OP_EQUALIZE,        FL_OP_GRAYSCALE,           FL_OP_COLOR_JITTER,
    FL_OP_COLOR_JITTER,    FL_OP_COLOR_JITTER,        FL_OP_RANDOM_GRAYSCALE,
    FL_OP_ERASE,           FL_OP_CHANNEL_PERMUTATION, FL_OP_PHOTOMETRIC_DISTORT};

/* Allocates owned memory that ends at the end of its contents. */
static inline char *allocate(int64_t bytes)
{
    void *data;
    CHECK(posix_memalign(&data, 64, (size_t)fl_max(bytes, 1)) == 0);
    memset(data, GUARD, (size_t)fl_max(bytes, 1));
    return data;
}

#define ANY_OF(seed, kinds) (kinds)[random_below(seed, sizeof(kinds) / sizeof *(kinds))]

/* Adds operations that change colours, or hold such operations, after the operations of the
 * case. */
static inline void add_colors(uint64_t *seed, plan_case *p)
{
    for (int32_t n = 1 + (int32_t)random_below(seed, 4); n > 0; n--) {
        fl_image_op *op = &p->ops[p->config.count];
        *op = random_op(seed, ANY_OF(seed, late), 1);
        if (op->kind == FL_OP_GRAYSCALE) op->grey_channels = p->config.channels;
        p->config.count += random_below(seed, 4) > 0 ? 1 : random_gate(seed, p, p->config.count);
    }
}

enum { RESIZES = 1, COLORS = 2 };

/* Opens a plan that moves pixels, and does the further things it is told to. */
static inline fl_image_plan *open_moving(uint64_t *seed, plan_case *p, int32_t longest, int does)
{
    fl_image_plan *plan = NULL;
    const bool resizes = does & RESIZES;
    while (plan == NULL) {
        random_case(seed, p, 0, longest);
        p->config.count = 1 + (int32_t)random_below(seed, MOST_OPS);
        int32_t resize = resizes ? (int32_t)random_below(seed, p->config.count) : -1;
        for (int32_t i = 0; i < p->config.count; i++) {
            fl_image_op_kind kind = i < resize    ? ANY_OF(seed, early)
                                    : i == resize ? ANY_OF(seed, resizing)
                                                  : ANY_OF(seed, moving);
            p->ops[i] = random_op(seed, kind, longest);
            if (i == resize) p->ops[i].interpolation %= FL_PILLOW_BILINEAR;
            if (i >= resize) continue;
            memset(p->ops[i].padding, 0, sizeof p->ops[i].padding);
            p->ops[i].pad_if_needed = false;
        }
        if (does & COLORS) add_colors(seed, p);
        set_occurrences(p);
        make_fills(seed, p);
        if (fl_image_plan_open(&p->config, &plan, NULL) != FL_OK) continue;
        const bool has_map = fl_image_plan_map_length(plan) > 0;
        CHECK(has_map || does & COLORS);
        if (has_map) continue;
        fl_image_plan_close(plan);
        plan = NULL;
    }
    return plan;
}

#endif
