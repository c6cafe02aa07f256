/* fl_image_draws: see fl_image_draws.h. */
#include "fl_image_draws.h"

#include "fl_image_draws_color.h"
#include "fl_image_draws_policy.h"
#include "fl_image_draws_warp.h"
#include "fl_op.h"

#include <math.h>
#include <string.h>

enum { TRIES = 10 };

struct fl_image_draws {
    /* set at open, then read-only */
    const fl_image_plan *plan; /* borrowed */
    int32_t ops;
    fl_draw_ways ways;

    fl_image_params *params; /* owned: [rows][ops] */
    int64_t capacity, rows;
};

/* ---- open */

static int check_op(const fl_image_op *op, fl_err *err)
{
    switch (op->kind) {
    case FL_OP_PAD:
    case FL_OP_CENTER_CROP:
    case FL_OP_RANDOM_CROP:
    case FL_OP_RESIZE:
    case FL_OP_RANDOM_RESIZED_CROP:
    case FL_OP_HORIZONTAL_FLIP:
    case FL_OP_VERTICAL_FLIP:
    case FL_OP_ERASE:
        return FL_OK;
    case FL_OP_APPLY:
    case FL_OP_CHOICE:
    case FL_OP_ORDER:
    case FL_OP_BRANCH:
        return FL_OK;
    default:
        if (fl_draws_color(op->kind) || fl_draws_warp(op->kind) || fl_draws_policy(op->kind))
            return FL_OK;
        return fl_fail(err, FL_EINVAL, "torchvision draws operation %d in a different way",
                       (int)op->kind);
    }
}

/* Checks colours for images of the plan's size, if there is one. Operations on colours keep the
 * size. */
static int check_colors(const fl_image_plan *plan, fl_err *err)
{
    fl_image_params params[FL_MAX_IMAGE_OPS];
    const fl_image_size in = fl_image_plan_in(plan);
    if (!fl_size_is_known(in)) return FL_OK;
    FL_TRY(fl_image_plan_draw(plan, NULL, in, params, err));
    for (int32_t i = 0; i < fl_image_plan_count(plan); i++)
        FL_TRY(fl_check_color(fl_image_plan_op(plan, i), params[i].out, err));
    return FL_OK;
}

int fl_image_draws_open(const fl_image_plan *plan, const fl_draw_ways *ways, fl_image_draws **out,
                        fl_err *err)
{
    *out = NULL;
    for (int32_t i = 0; i < fl_image_plan_count(plan); i++)
        FL_TRY(check_op(fl_image_plan_op(plan, i), err));
    FL_TRY(check_colors(plan, err));
    fl_image_draws *self = fl_alloc(sizeof *self);
    if (self == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for draws");
    self->plan = plan;
    self->ops = fl_image_plan_count(plan);
    self->ways = *ways;
    self->rows = -1;
    *out = self;
    return FL_OK;
}

void fl_image_draws_close(fl_image_draws *self)
{
    if (self == NULL) return;
    fl_free(self->params);
    fl_free(self);
}

/* ---- draws */

static int32_t draw_below(fl_image_drawing *with, int32_t range)
{
    return (int32_t)fl_torch_random_int(with->random, 0, range);
}

static void draw_crop(fl_image_drawing *with, fl_image_size in, fl_image_params *params)
{
    const int32_t *padding = params->padding;
    int32_t rows = in.height + padding[1] + padding[3] - params->size.height;
    int32_t columns = in.width + padding[0] + padding[2] - params->size.width;
    bool draws_rows = rows > 0 || (with->ways->is_v1 && columns > 0);
    bool draws_columns = columns > 0 || (with->ways->is_v1 && rows > 0);
    params->top = draws_rows ? draw_below(with, rows + 1) : 0;
    params->left = draws_columns ? draw_below(with, columns + 1) : 0;
}

/* Draws whether RandomApply applies its operations. */
static bool draw_gate(fl_image_drawing *with, double p)
{
    float unit = fl_torch_random_unit(with->random);
    return unit < (float)p || (with->ways->is_v1 && unit == (float)p);
}

typedef struct edges {
    int64_t larger_with_ratio, smaller_with_ratio;
} edges;

static edges edges_of(double area, float ratio)
{
    return (edges){(int64_t)rint(sqrt(area * ratio)), (int64_t)rint(sqrt(area / ratio))};
}

static bool are_equal(edges a, edges b)
{
    return a.larger_with_ratio == b.larger_with_ratio &&
           a.smaller_with_ratio == b.smaller_with_ratio;
}

/* Computes the edges of a rectangle of this area whose ratio is torch.exp(log_ratio). torch's
 * result is the correctly rounded number or a neighbour of it, so torch is asked only if a
 * neighbour gives different edges. */
static int draw_edges(fl_image_drawing *with, double area, float log_ratio, edges *out, fl_err *err)
{
    float ratio = (float)exp((double)log_ratio);
    *out = edges_of(area, ratio);
    if (are_equal(*out, edges_of(area, nextafterf(ratio, 0))) &&
        are_equal(*out, edges_of(area, nextafterf(ratio, INFINITY))))
        return FL_OK;
    if (with->answers->exp(with->answers->context, log_ratio, &ratio) != 0)
        return fl_fail(err, FL_EINVAL, "torch.exp() has failed");
    *out = edges_of(area, ratio);
    return FL_OK;
}

/* Draws one try of a rectangle in an image of this size, for operation i. */
static int draw_rectangle(fl_image_drawing *with, const fl_image_op *op, int32_t i,
                          fl_image_size in, edges *out, fl_err *err)
{
    const float *log_ratio = with->ways->log_ratio[i];
    bool is_fused = with->ways->is_fused;
    double area = (double)((int64_t)in.height * in.width);
    float share = fl_draw_between(with, op->scale);
    float ratio = fl_torch_random_uniform(with->random, log_ratio[0], log_ratio[1], is_fused);
    return draw_edges(with, area * share, ratio, out, err);
}

/* Draws the position of a rectangle of this size inside the image. */
static void place_rectangle(fl_image_drawing *with, int64_t height, int64_t width, fl_image_size in,
                            fl_image_params *params)
{
    params->size = (fl_image_size){(int32_t)height, (int32_t)width};
    params->top = draw_below(with, in.height - params->size.height + 1);
    params->left = draw_below(with, in.width - params->size.width + 1);
}

/* Sets the crop after ten failed tries: the whole image, or the middle if the image's ratio is out
 * of the range asked for. torchvision cannot crop an edge that rounds to 0. */
static int
crop_middle(const double ratio[2], fl_image_size in, fl_image_params *params, fl_err *err)
{
    double found = (double)in.width / in.height;
    double height = found < ratio[0] ? rint(in.width / ratio[0]) : in.height;
    double width = !(found < ratio[0]) && found > ratio[1] ? rint(in.height * ratio[1]) : in.width;
    if (height < 1 || width < 1)
        return fl_fail(err, FL_EINVAL, "RandomResizedCrop cannot crop an edge of 0 pixels");
    params->size = (fl_image_size){(int32_t)height, (int32_t)width};
    params->top = (in.height - params->size.height) / 2;
    params->left = (in.width - params->size.width) / 2;
    return FL_OK;
}

static int draw_resized_crop(fl_image_drawing *with, const fl_image_op *op, int32_t i,
                             fl_image_size in, fl_image_params *params, fl_err *err)
{
    for (int t = 0; t < TRIES; t++) {
        edges found;
        FL_TRY(draw_rectangle(with, op, i, in, &found, err));
        int64_t width = found.larger_with_ratio, height = found.smaller_with_ratio;
        if (width < 1 || width > in.width || height < 1 || height > in.height) continue;
        place_rectangle(with, height, width, in, params);
        return FL_OK;
    }
    return crop_middle(op->ratio, in, params, err);
}

static int draw_erase(fl_image_drawing *with, const fl_image_op *op, int32_t i, fl_image_size in,
                      fl_image_params *params, fl_err *err)
{
    params->is_applied = false;
    if (!fl_draw_applied(with, op->p)) return FL_OK;
    for (int t = 0; t < TRIES; t++) {
        edges found;
        FL_TRY(draw_rectangle(with, op, i, in, &found, err));
        int64_t height = found.larger_with_ratio, width = found.smaller_with_ratio;
        if (height >= in.height || width >= in.width) continue;
        params->is_applied = true;
        place_rectangle(with, height, width, in, params);
        return FL_OK;
    }
    return FL_OK;
}

/* Draws a branch of RandomChoice, whose weights torch reads as float32; the parameters of its
 * branches follow *params. */
static void draw_choice(fl_image_drawing *with, const fl_image_op *op, fl_image_params *params)
{
    float weights[FL_MAX_ORDER];
    const int32_t count = fl_op_count_branches(op);
    for (int32_t n = 0; n < count; n++) weights[n] = (float)op[fl_op_branch(op, n)].p;
    params->order[0] = (int8_t)fl_torch_random_choice(with->random, count, weights);
    for (int32_t n = 0; n < count; n++)
        params[fl_op_branch(op, n)].is_applied = n == params->order[0];
}

/* Draws operation i, for an image that has size `in` before the operation. */
static int draw_op(fl_image_drawing *with, const fl_image_op *op, int32_t i, fl_image_size in,
                   fl_image_params *params, fl_err *err)
{
    switch (op->kind) {
    case FL_OP_APPLY:
        params->is_applied = draw_gate(with, op->p);
        break;
    case FL_OP_CHOICE:
        draw_choice(with, op, params);
        break;
    case FL_OP_ORDER:
        fl_draw_order(with, fl_op_count_branches(op), params);
        break;
    case FL_OP_HORIZONTAL_FLIP:
    case FL_OP_VERTICAL_FLIP:
        params->is_applied = fl_draw_applied(with, op->p);
        break;
    case FL_OP_RANDOM_CROP:
        draw_crop(with, in, params);
        break;
    case FL_OP_RANDOM_RESIZED_CROP:
        return draw_resized_crop(with, op, i, in, params, err);
    case FL_OP_ERASE:
        return draw_erase(with, op, i, in, params, err);
    default:
        if (fl_draws_color(op->kind)) return fl_draw_color(with, op, in, params, err);
        if (fl_draws_warp(op->kind)) return fl_draw_warp(with, op, in, params, err);
        if (fl_draws_policy(op->kind)) return fl_draw_policy(with, op, in, params, err);
    }
    return FL_OK;
}

static int draw_held(fl_image_drawing *with, const fl_image_op *ops, int32_t i, fl_image_size in,
                     fl_image_params *out, fl_err *err);

/* Draws the operations [begin, end). Operation `begin` gets an image of size `in`. */
static int draw_range(fl_image_drawing *with, const fl_image_op *ops, int32_t begin, int32_t end,
                      fl_image_size in, fl_image_params *out, fl_err *err)
{
    for (int32_t i = begin; i < end; i += 1 + ops[i].span) {
        FL_TRY(draw_op(with, &ops[i], i, in, &out[i], err));
        if (ops[i].span > 0) FL_TRY(draw_held(with, ops, i, in, out, err));
        in = out[i].out;
    }
    return FL_OK;
}

/* Draws the operations that operation i applies, in the order in which it applies them. */
static int draw_held(fl_image_drawing *with, const fl_image_op *ops, int32_t i, fl_image_size in,
                     fl_image_params *out, fl_err *err)
{
    const bool is_order = ops[i].kind == FL_OP_ORDER;
    if (!is_order && ops[i].kind != FL_OP_CHOICE)
        return out[i].is_applied ? draw_range(with, ops, i + 1, i + 1 + ops[i].span, in, out, err)
                                 : FL_OK;
    for (int32_t n = 0; n < (is_order ? FL_MAX_ORDER : 1) && out[i].order[n] >= 0; n++) {
        int32_t k = i + fl_op_branch(&ops[i], out[i].order[n]);
        FL_TRY(draw_range(with, ops, k, k + 1, in, out, err));
    }
    return FL_OK;
}

int32_t fl_image_draws_count(const fl_image_draws *self) { return self->ops; }

int fl_image_draws_one(const fl_image_draws *self, fl_torch_random *random, fl_image_size in,
                       const fl_torch_answers *answers, fl_image_params *out, fl_err *err)
{
    fl_image_drawing with = {.ways = &self->ways, .random = random, .answers = answers};
    FL_TRY(fl_image_plan_draw(self->plan, NULL, in, out, err)); /* sets what is not random */
    if (self->ops == 0) return FL_OK;
    const fl_image_op *ops = fl_image_plan_op(self->plan, 0);
    FL_TRY(draw_range(&with, ops, 0, self->ops, in, out, err));
    for (int32_t i = 0; i < self->ops; i++)
        if (!fl_op_is_reached(ops, out, i)) out[i].is_applied = false;
    return FL_OK;
}

static bool is_padded(const fl_image_params *params)
{
    const int32_t *padding = params->padding;
    return (padding[0] | padding[1] | padding[2] | padding[3]) != 0;
}

uint32_t fl_image_draws_applied(const fl_image_draws *self, const fl_image_params *params)
{
    uint32_t bits = 0;
    _Static_assert(FL_MAX_IMAGE_OPS <= 32, "a bit for each operation");
    for (int32_t i = 0; i < self->ops; i++) {
        const fl_image_op *op = fl_image_plan_op(self->plan, i);
        const bool holds = op->span > 0;
        const bool is_applied = fl_op_pads(op->kind) ? is_padded(&params[i]) : params[i].is_applied;
        if (is_applied) bits |= UINT32_C(1) << i;
        if (holds && !is_applied) i += op->span;
    }
    return bits;
}

int fl_image_draws_make(fl_image_draws *self, fl_torch_random *random, int64_t rows,
                        const fl_torch_answers *answers, fl_err *err)
{
    int64_t count;
    self->rows = -1;
    if (rows < 0 || !fl_mul(rows, self->ops, &count))
        return fl_fail(err, FL_EINVAL, "a batch of %lld rows is too large", (long long)rows);
    FL_TRY(fl_grow((void **)&self->params, &self->capacity, count, sizeof *self->params, err));
    fl_torch_random copy = *random;
    fl_image_size in = fl_image_plan_in(self->plan);
    for (int64_t i = 0; i < rows; i++)
        FL_TRY(fl_image_draws_one(self, &copy, in, answers, self->params + i * self->ops, err));
    *random = copy;
    self->rows = rows;
    return FL_OK;
}

int fl_image_draws_copy(const fl_image_draws *self, int64_t rows, fl_image_params *out, fl_err *err)
{
    if (rows != self->rows)
        return fl_fail(err, FL_EINVAL, "a batch must have %lld rows, as its draws have, got %lld",
                       (long long)self->rows, (long long)rows);
    int64_t bytes = rows * self->ops * (int64_t)sizeof *out;
    if (bytes > 0) memcpy(out, self->params, (size_t)bytes);
    return FL_OK;
}
