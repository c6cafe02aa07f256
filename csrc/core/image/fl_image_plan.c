/* fl_image_plan: see fl_image_plan.h. */
#include "fl_image_plan.h"

#include "fl_image_output.h"
#include "fl_op.h"

#include <assert.h>
#include <string.h>

/* The types of operations, by kind. */
static const fl_op_type *const op_types[FL_OP_KINDS] = {
    [FL_OP_PAD] = &fl_op_pad,
    [FL_OP_CENTER_CROP] = &fl_op_center_crop,
    [FL_OP_RANDOM_CROP] = &fl_op_random_crop,
    [FL_OP_RESIZE] = &fl_op_resize,
    [FL_OP_RANDOM_RESIZED_CROP] = &fl_op_random_resized_crop,
    [FL_OP_HORIZONTAL_FLIP] = &fl_op_horizontal_flip,
    [FL_OP_VERTICAL_FLIP] = &fl_op_vertical_flip,
    [FL_OP_ERASE] = &fl_op_erase,
    [FL_OP_INVERT] = &fl_op_invert,
    [FL_OP_SOLARIZE] = &fl_op_solarize,
    [FL_OP_POSTERIZE] = &fl_op_posterize,
    [FL_OP_AUTOCONTRAST] = &fl_op_autocontrast,
    [FL_OP_EQUALIZE] = &fl_op_equalize,
    [FL_OP_GRAYSCALE] = &fl_op_grayscale,
    [FL_OP_RANDOM_GRAYSCALE] = &fl_op_random_grayscale,
    [FL_OP_COLOR_JITTER] = &fl_op_color_jitter,
    [FL_OP_CHANNEL_PERMUTATION] = &fl_op_channel_permutation,
    [FL_OP_PHOTOMETRIC_DISTORT] = &fl_op_photometric_distort,
    [FL_OP_SHARPNESS] = &fl_op_sharpness,
    [FL_OP_BLUR] = &fl_op_blur,
    [FL_OP_APPLY] = &fl_op_gate_apply,
    [FL_OP_CHOICE] = &fl_op_gate_choice,
    [FL_OP_ORDER] = &fl_op_gate_order,
    [FL_OP_BRANCH] = &fl_op_gate_branch,
    [FL_OP_ROTATION] = &fl_op_rotation,
    [FL_OP_AFFINE] = &fl_op_affine,
    [FL_OP_PERSPECTIVE] = &fl_op_perspective,
    [FL_OP_RAND_AUGMENT] = &fl_op_rand_augment,
    [FL_OP_TRIVIAL_AUGMENT] = &fl_op_trivial_augment,
    [FL_OP_AUTO_AUGMENT] = &fl_op_auto_augment,
    [FL_OP_NOISE] = &fl_op_noise,
    [FL_OP_AUG_MIX] = &fl_op_aug_mix,
};

const char *fl_image_op_name(fl_image_op_kind kind) { return op_types[kind]->name; }

enum { MAX_OCCURRENCES = 8 };

struct fl_image_plan {
    /* set at open, then read-only */
    int32_t count;
    int32_t channels; /* of an image; output.channels: of a result */
    fl_image_size in;
    fl_image_output output; /* owned */
    uint64_t seed;
    const fl_image_ops *image_ops; /* borrowed, static */
    fl_image_op ops[FL_MAX_IMAGE_OPS];
    fl_image_map map;

    fl_resample_cache *cache;  /* owned; atomic inside */
    fl_scratch_slots *scratch; /* owned; atomic inside */
};

/* ---- open */

static int check_config(const fl_image_config *config, fl_err *err)
{
    if (config->count < 0 || config->count > FL_MAX_IMAGE_OPS)
        return fl_fail(err, FL_EINVAL, "a plan must have at most %d operations on pixels, got %d",
                       FL_MAX_IMAGE_OPS, config->count);
    if (config->channels < 1 || config->channels > FL_MAX_CHANNELS)
        return fl_fail(err, FL_EINVAL, "the channels of images must be 1 to %d, got %d",
                       FL_MAX_CHANNELS, config->channels);
    if (config->type < 0 || config->type >= FL_IMAGE_TYPES || config->layout < 0 ||
        config->layout >= FL_IMAGE_LAYOUTS ||
        (config->type == FL_IMAGE_U8) != (config->tables == NULL))
        return fl_fail(err, FL_EINVAL,
                       "an output must have a type, a layout, and tables unless it is uint8, got "
                       "type %d and layout %d",
                       (int)config->type, (int)config->layout);
    return FL_OK;
}

static int check_op(const fl_image_op *op, fl_err *err)
{
    if (op->kind < 0 || op->kind >= FL_OP_KINDS)
        return fl_fail(err, FL_EINVAL, "the kind of an operation must be in [0, %d], got %d",
                       FL_OP_KINDS - 1, (int)op->kind);
    const fl_op_type *type = op_types[op->kind];
    if (type->is_drawn && op->occurrence >= MAX_OCCURRENCES)
        return fl_fail(err, FL_EINVAL, "a plan must have at most %d of %s", MAX_OCCURRENCES,
                       type->name);
    return type->check != NULL ? type->check(op, err) : FL_OK;
}

/* Erased rectangles are written last, so no later operation may mix their pixels with the image, or
 * repeat them. */
static int check_after_erase(const fl_image_op *op, fl_err *err)
{
    bool repeats = fl_op_pads(op->kind) && op->padding_mode != FL_PAD_CONSTANT;
    if (!fl_op_is_resize(op->kind) && !repeats) return FL_OK;
    return fl_fail(err, FL_EINVAL, "RandomErasing must stand after %s%s (put RandomErasing last)",
                   op_types[op->kind]->name, repeats ? " that repeats pixels" : "");
}

/* Counts the segments that an axis may have; the count starts again with each resize. */
static int count_segments(const fl_image_op *op, int64_t *count, fl_err *err)
{
    if (fl_op_is_resize(op->kind)) *count = 1;
    if (!fl_op_may_pad(op)) return FL_OK;
    *count = fl_image_axis_padded_count(*count, op->padding_mode);
    if (*count <= FL_MAX_SEGMENTS) return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "%s: too many paddings repeat the pixels of earlier paddings; pad once",
                   op_types[op->kind]->name);
}

static int check_image(fl_image_size in, fl_err *err)
{
    if (in.height >= 1 && in.width >= 1 && in.height <= FL_MAX_EDGE && in.width <= FL_MAX_EDGE)
        return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "both edges of an image must be in [1, %d], got an image of (%d, %d) (crop or "
                   "resize first)",
                   FL_MAX_EDGE, in.height, in.width);
}

static bool holds_others(const fl_image_op *op) { return op_types[op->kind]->apply == NULL; }

static inline bool is_same(fl_image_size a, fl_image_size b)
{
    return a.height == b.height && a.width == b.width;
}

static int check_channels(const fl_image_op *op, int32_t channels, fl_err *err)
{
    const fl_op_type *type = op_types[op->kind];
    if (!type->is_color || channels == 1 || channels == 3) return FL_OK;
    return fl_fail(err, FL_EINVAL, "%s: the channels of images must be 1 or 3, got %d", type->name,
                   channels);
}

static int trace_held(const fl_image_op *op, fl_image_trace *trace, fl_err *err);

/* Traces one operation and the operations it holds, from trace[0] to trace[1 + op->span]. */
static int trace_op(const fl_image_op *op, fl_image_trace *trace, fl_err *err)
{
    FL_TRY(check_op(op, err));
    if (holds_others(op)) return trace_held(op, trace, err);
    trace[1] = trace[0];
    FL_TRY(check_channels(op, trace[0].channels, err));
    const fl_op_type *type = op_types[op->kind];
    if (type->size != NULL) FL_TRY(type->size(op, trace[0].size, &trace[1].size, err));
    if (op->kind == FL_OP_GRAYSCALE) trace[1].channels = (int32_t)op->grey_channels;
    return fl_size_is_known(trace[1].size) ? check_image(trace[1].size, err) : FL_OK;
}

static int trace_range(const fl_image_op *op, int32_t count, fl_image_trace *trace, fl_err *err)
{
    for (int32_t i = 0; i < count; i += 1 + op[i].span) {
        if (op[i].span < 0 || op[i].span >= count - i)
            return fl_fail(err, FL_EINVAL, "an operation holds more operations than follow it");
        FL_TRY(trace_op(&op[i], &trace[i], err));
    }
    return FL_OK;
}

/* Every result must have the same size and channels, whatever is drawn. */
static int trace_held(const fl_image_op *op, fl_image_trace *trace, fl_err *err)
{
    const fl_image_trace before = trace[0];
    fl_image_trace *after = &trace[1 + op->span];
    bool is_branched = op->kind == FL_OP_CHOICE || op->kind == FL_OP_ORDER, is_alike = true;
    trace[1] = before;
    if (!is_branched) FL_TRY(trace_range(op + 1, op->span, trace + 1, err));
    fl_image_trace first = op->kind == FL_OP_CHOICE ? (fl_image_trace){.channels = 0} : before;
    for (int32_t i = 1; is_branched && i <= op->span; i += 1 + op[i].span) {
        trace[i] = before;
        FL_TRY(trace_range(op + i, 1 + op[i].span, trace + i, err));
        const fl_image_trace *end = &trace[i + 1 + op[i].span];
        if (first.channels == 0) first = *end;
        is_alike &= is_same(first.size, end->size) && first.channels == end->channels;
    }
    if (op->kind == FL_OP_APPLY)
        is_alike = is_same(before.size, after->size) && before.channels == after->channels;
    if (is_alike) return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "%s: the size and the channels of results depend on chance; put operations that "
                   "change size or channels outside",
                   op_types[op->kind]->name);
}

int fl_image_ops_trace(const fl_image_config *config, fl_image_trace *trace, fl_err *err)
{
    if (config->in.height != 0 || config->in.width != 0) FL_TRY(check_image(config->in, err));
    trace[0] = (fl_image_trace){config->in, config->channels};
    return trace_range(config->ops, config->count, trace, err);
}

/* Counts segments for the worst order: in a random order, paddings may come last, when they add
 * most. */
static int check_ordered(const fl_image_op *op, int64_t *segments, fl_err *err)
{
    if (op->kind == FL_OP_ERASE)
        return fl_fail(err, FL_EINVAL, "RandomErasing must stand after RandomOrder, not inside");
    if (fl_op_may_pad(op)) *segments += 2;
    return FL_OK;
}

static int check_ops(const fl_image_config *config, fl_image_trace *result, fl_err *err)
{
    bool has_erased = false;
    int64_t segments = 1;
    int32_t ordered_to = 0; /* operations before this index are in a RandomOrder */
    fl_image_trace trace[FL_MAX_IMAGE_OPS + 1];
    FL_TRY(fl_image_ops_trace(config, trace, err));
    for (int32_t i = 0; i < config->count; i++) {
        const fl_image_op *op = &config->ops[i];
        if (op->kind == FL_OP_ORDER && i + 1 + op->span > ordered_to) ordered_to = i + 1 + op->span;
        if (i < ordered_to) FL_TRY(check_ordered(op, &segments, err));
        FL_TRY(count_segments(op, &segments, err));
        if (has_erased) FL_TRY(check_after_erase(op, err));
        has_erased |= op->kind == FL_OP_ERASE;
    }
    *result = trace[config->count];
    if (fl_size_is_known(result->size)) return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "the images differ in size, and so would the results; add a Resize to (height, "
                   "width), a RandomResizedCrop or a crop");
}

static int copy_ops(fl_image_plan *plan, const fl_image_config *config, fl_err *err)
{
    fl_image_trace trace[FL_MAX_IMAGE_OPS + 1];
    FL_TRY(fl_image_ops_trace(config, trace, err));
    for (int32_t i = 0; i < config->count; i++) {
        plan->ops[i] = config->ops[i];
        plan->ops[i].channels = trace[i].channels;
        plan->ops[i].out = trace[i + 1].size;
        const fl_op_type *type = op_types[config->ops[i].kind];
        if (type->has_area) fl_op_set_ratio(&plan->ops[i]);
        if (type->is_bordered) memset(plan->ops[i].fill, 0, sizeof plan->ops[i].fill);
    }
    return FL_OK;
}

int fl_image_plan_open(const fl_image_config *config, fl_image_plan **out, fl_err *err)
{
    fl_image_trace result;
    *out = NULL;
    FL_TRY(check_config(config, err));
    FL_TRY(check_ops(config, &result, err));
    fl_image_plan *plan = fl_alloc((int64_t)sizeof *plan);
    if (plan == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a plan");
    plan->count = config->count;
    plan->in = config->in;
    plan->output = (fl_image_output){.size = result.size,
                                     .channels = result.channels,
                                     .type = config->type,
                                     .is_joined = config->layout == FL_HWC && result.channels > 1};
    plan->channels = config->channels;
    plan->seed = config->seed;
    plan->image_ops = config->image_ops;
    int status = copy_ops(plan, config, err);
    plan->cache = fl_resample_cache_open();
    plan->scratch = fl_alloc((int64_t)sizeof *plan->scratch);
    if (status == FL_OK)
        status = plan->cache != NULL && plan->scratch != NULL
                     ? fl_image_output_open(&plan->output, config->tables, config->linear,
                                            plan->ops, plan->count, err)
                     : fl_fail(err, FL_ENOMEM, "out of memory for a plan");
    if (status != FL_OK) {
        fl_image_plan_close(plan);
        return status;
    }
    plan->map = fl_image_plan_find_map(plan);
    *out = plan;
    return FL_OK;
}

void fl_image_plan_close(fl_image_plan *plan)
{
    if (plan == NULL) return;
    fl_scratch_close(plan->scratch);
    fl_resample_cache_close(plan->cache);
    fl_image_output_close(&plan->output);
    fl_free(plan);
}

/* ---- properties */

fl_image_size fl_image_plan_in(const fl_image_plan *plan) { return plan->in; }
fl_image_size fl_image_plan_out(const fl_image_plan *plan) { return plan->output.size; }
int32_t fl_image_plan_count(const fl_image_plan *plan) { return plan->count; }
int32_t fl_image_plan_channels(const fl_image_plan *plan) { return plan->channels; }
int32_t fl_image_plan_out_channels(const fl_image_plan *plan) { return plan->output.channels; }
uint64_t fl_image_plan_seed(const fl_image_plan *plan) { return plan->seed; }

bool fl_image_plan_resizes(const fl_image_plan *plan)
{
    for (int32_t i = 0; i < plan->count; i++) {
        const fl_image_op *op = &plan->ops[i];
        if (fl_op_is_resize(op->kind)) return true;
        if (op->kind > FL_OP_ERASE && !fl_op_holds_flips(op)) return true;
    }
    return false;
}

const fl_image_op *fl_image_plan_op(const fl_image_plan *plan, int32_t i)
{
    assert(i >= 0 && i < plan->count);
    return &plan->ops[i];
}

int64_t fl_image_plan_out_bytes(const fl_image_plan *plan)
{
    return fl_image_output_bytes(&plan->output);
}

const fl_image_output *fl_image_plan_output(const fl_image_plan *plan) { return &plan->output; }
fl_resample_cache *fl_image_plan_cache(const fl_image_plan *plan) { return plan->cache; }
const fl_image_map *fl_image_plan_get_map(const fl_image_plan *plan) { return &plan->map; }

/* ---- draw */

static int draw_range(const fl_image_plan *plan, const fl_sample_key *key, int32_t begin,
                      int32_t end, fl_image_size *size, fl_image_params *params, fl_err *err);

/* Draws the operations that operation i holds, if they are applied. */
static int draw_held(const fl_image_plan *plan, const fl_sample_key *key, int32_t i,
                     fl_image_size *size, fl_image_params *params, fl_err *err)
{
    const fl_image_op *op = &plan->ops[i];
    const fl_image_params *own = &params[i];
    const fl_image_size in = *size;
    int32_t end = i + 1 + op->span, branch = 0;
    for (int32_t k = i + 1; k < end; k++)
        params[k] = (fl_image_params){.is_applied = false, .out = *size};
    if (op->kind == FL_OP_APPLY || op->kind == FL_OP_BRANCH)
        return own->is_applied || key == NULL ? draw_range(plan, key, i + 1, end, size, params, err)
                                              : FL_OK;
    for (int32_t k = i + 1; k < end; k += 1 + plan->ops[k].span, branch++) {
        if (op->kind == FL_OP_CHOICE && key != NULL && branch != own->order[0]) continue;
        *size = in; /* branches of an order keep the size */
        FL_TRY(draw_range(plan, key, k, k + 1 + plan->ops[k].span, size, params, err));
    }
    return FL_OK;
}

/* Computes the size after operation i. Checks nothing if open has computed and checked the size. */
static int
find_size(const fl_image_plan *plan, int32_t i, fl_image_size in, fl_image_size *out, fl_err *err)
{
    const fl_op_type *type = op_types[plan->ops[i].kind];
    *out = fl_size_is_known(plan->in) ? plan->ops[i].out : in;
    if (type->size == NULL || fl_size_is_known(plan->in)) return FL_OK;
    FL_TRY(type->size(&plan->ops[i], in, out, err));
    return check_image(*out, err);
}

/* Sets every field to 0 but is_applied. Compilers clear 200 bytes at once by an instruction that
 * takes longer than the rest of a draw, but short pieces by plain moves. */
static inline void clear(fl_image_params *params)
{
    enum { PIECE = 40 };
    _Static_assert(sizeof *params % PIECE == 0, "the parameters consist of whole pieces");
    for (size_t at = 0; at < sizeof *params; at += PIECE) memset((char *)params + at, 0, PIECE);
    params->is_applied = true;
}

/* Draws operations [begin, end) for an image of *size, and sets *size to the size of the result. */
static int draw_range(const fl_image_plan *plan, const fl_sample_key *key, int32_t begin,
                      int32_t end, fl_image_size *size, fl_image_params *params, fl_err *err)
{
    for (int32_t i = begin; i < end; i += 1 + plan->ops[i].span) {
        const fl_image_op *op = &plan->ops[i];
        const fl_op_type *type = op_types[op->kind];
        clear(&params[i]);
        FL_TRY(find_size(plan, i, *size, &params[i].out, err));
        if (type->draw != NULL)
            type->draw(op, key != NULL ? key : &(fl_sample_key){0}, *size, &params[i]);
        if (type->apply == NULL)
            FL_TRY(draw_held(plan, key, i, size, params, err));
        else
            *size = params[i].out;
        params[i].out = *size;
    }
    return FL_OK;
}

int fl_image_plan_draw(const fl_image_plan *plan, const fl_sample_key *key, fl_image_size in,
                       fl_image_params *params, fl_err *err)
{
    FL_TRY(check_image(in, err));
    bool is_as_planned = in.height == plan->in.height && in.width == plan->in.width;
    if (fl_size_is_known(plan->in) && !is_as_planned)
        return fl_fail(err, FL_EINVAL,
                       "an image must have the size (%d, %d) of its plan, got (%d, %d)",
                       plan->in.height, plan->in.width, in.height, in.width);
    return draw_range(plan, key, 0, plan->count, &in, params, err);
}

/* ---- apply */

static int run_range(const fl_image_plan *plan, const fl_image_params *params, int32_t begin,
                     int32_t end, fl_image_view *view, fl_err *err);

/* Runs the branches of operation i in the order that was drawn. */
static int run_order(const fl_image_plan *plan, const fl_image_params *params, int32_t i,
                     fl_image_view *view, fl_err *err)
{
    for (int32_t n = 0; n < FL_MAX_ORDER && params[i].order[n] >= 0; n++) {
        int32_t k = i + fl_op_branch(&plan->ops[i], params[i].order[n]);
        FL_TRY(run_range(plan, params, k, k + 1 + plan->ops[k].span, view, err));
    }
    return FL_OK;
}

static int run_range(const fl_image_plan *plan, const fl_image_params *params, int32_t begin,
                     int32_t end, fl_image_view *view, fl_err *err)
{
    for (int32_t i = begin; i < end; i += 1 + plan->ops[i].span) {
        const fl_image_op *op = &plan->ops[i];
        const fl_op_type *type = op_types[op->kind];
        view->arithmetic = op->arithmetic;
        if (type->apply != NULL)
            FL_TRY(type->apply(op, i, &params[i], view, err));
        else if (op->kind == FL_OP_ORDER)
            FL_TRY(run_order(plan, params, i, view, err));
        else if (params[i].is_applied)
            FL_TRY(run_range(plan, params, i + 1, i + 1 + op->span, view, err));
    }
    return FL_OK;
}

static int run_ops(const fl_image_plan *plan, const fl_image_params *params,
                   const fl_image_steps *steps, fl_image_view *view, char *out, fl_err *err)
{
    FL_TRY(run_range(plan, params, 0, plan->count, view, err));
    FL_TRY(fl_image_steps_apply(steps, view, err));
    FL_TRY(fl_image_view_resolve(view, err));
    return fl_image_output_write(&plan->output, view, out, err);
}

int fl_image_plan_apply_steps(const fl_image_plan *plan, const fl_image_params *params,
                              const fl_image_steps *steps, const fl_image_source *source, void *out,
                              fl_err *err)
{
    fl_image_tools tools = {
        .ops = plan->ops, .image_ops = plan->image_ops, .channels = plan->channels};
    FL_TRY(fl_scratch_take(plan->scratch, &tools.scratch, err));
    fl_image_view view;
    fl_image_view_start(&view, &tools, plan->cache, source);
    int status = run_ops(plan, params, steps, &view, out, err);
    fl_scratch_give(plan->scratch, tools.scratch);
    return status;
}

int fl_image_plan_apply(const fl_image_plan *plan, const fl_image_params *params,
                        const fl_image_source *source, void *out, fl_err *err)
{
    static const fl_image_steps none = {.count = 0};
    return fl_image_plan_apply_steps(plan, params, &none, source, out, err);
}
