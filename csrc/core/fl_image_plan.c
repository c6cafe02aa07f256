/* fl_image_plan: see fl_image_plan.h. */
#include "fl_image_plan.h"

#include "fl_image_cast.h"
#include "fl_op.h"

#include <assert.h>
#include <string.h>

/* What the operations are, by kind. */
static const fl_op_type *const op_types[FL_OP_KINDS] = {
    [FL_OP_PAD] = &fl_op_pad,
    [FL_OP_CENTER_CROP] = &fl_op_center_crop,
    [FL_OP_RANDOM_CROP] = &fl_op_random_crop,
    [FL_OP_RESIZE] = &fl_op_resize,
    [FL_OP_RANDOM_RESIZED_CROP] = &fl_op_random_resized_crop,
    [FL_OP_HORIZONTAL_FLIP] = &fl_op_horizontal_flip,
    [FL_OP_VERTICAL_FLIP] = &fl_op_vertical_flip,
    [FL_OP_ERASE] = &fl_op_erase,
};

enum { MAX_OCCURRENCES = 8 };

struct fl_image_plan {
    /* set at open, then read-only */
    int32_t count, channels;
    fl_image_size in, out;
    fl_image_type type;
    fl_image_layout layout;
    uint64_t seed;
    const fl_image_ops *image_ops; /* borrowed, static */
    fl_image_op ops[FL_MAX_IMAGE_OPS];
    void *tables;                        /* owned; NULL: bytes stay */
    fl_image_cast cast[FL_MAX_CHANNELS]; /* borrow from `tables` */

    fl_resample_cache *cache;  /* owned; atomic inside */
    fl_scratch_slots *scratch; /* owned; atomic inside */
};

/* ---- open */

static inline bool is_resize(fl_image_op_kind kind)
{
    return kind == FL_OP_RESIZE || kind == FL_OP_RANDOM_RESIZED_CROP;
}

static inline bool pads(fl_image_op_kind kind)
{
    return kind == FL_OP_PAD || kind == FL_OP_RANDOM_CROP || kind == FL_OP_CENTER_CROP;
}

static int check_config(const fl_image_config *config, fl_err *err)
{
    if (config->count < 0 || config->count > FL_MAX_IMAGE_OPS)
        return fl_fail(err, FL_EINVAL, "a plan has at most %d operations on pixels, not %d",
                       FL_MAX_IMAGE_OPS, config->count);
    if (config->channels < 1 || config->channels > FL_MAX_CHANNELS)
        return fl_fail(err, FL_EINVAL, "images have 1 to %d channels, not %d", FL_MAX_CHANNELS,
                       config->channels);
    if (config->type < 0 || config->type >= FL_IMAGE_TYPES || config->layout < 0 ||
        config->layout >= FL_IMAGE_LAYOUTS ||
        (config->type == FL_IMAGE_U8) != (config->tables == NULL))
        return fl_fail(err, FL_EINVAL,
                       "type %d and layout %d: an output has one of each, and tables unless it is "
                       "of bytes",
                       (int)config->type, (int)config->layout);
    return FL_OK;
}

static int check_op(const fl_image_op *op, fl_err *err)
{
    if (op->kind < 0 || op->kind >= FL_OP_KINDS)
        return fl_fail(err, FL_EINVAL, "there is no operation of kind %d", (int)op->kind);
    const fl_op_type *type = op_types[op->kind];
    if (type->is_drawn && op->occurrence >= MAX_OCCURRENCES)
        return fl_fail(err, FL_EINVAL, "a plan has at most %d of %s", MAX_OCCURRENCES, type->name);
    return type->check(op, err);
}

/* What was erased is written last, so nothing may mix it with other pixels or repeat it. */
static int check_after_erase(const fl_image_op *op, fl_err *err)
{
    bool repeats = pads(op->kind) && op->padding_mode != FL_PAD_CONSTANT;
    if (!is_resize(op->kind) && !repeats) return FL_OK;
    return fl_fail(err, FL_EINVAL, "RandomErasing comes before %s%s: put it last",
                   op_types[op->kind]->name, repeats ? " that repeats pixels" : "");
}

/* How many segments an axis may have; it begins anew with each resize. */
static int count_segments(const fl_image_op *op, int64_t *count, fl_err *err)
{
    if (is_resize(op->kind)) *count = 1;
    if (!pads(op->kind)) return FL_OK;
    *count = fl_image_axis_padded_count(*count, op->padding_mode);
    if (*count <= FL_MAX_SEGMENTS) return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "%s: too many paddings that repeat pixels of paddings before them; pad once",
                   op_types[op->kind]->name);
}

static int check_image(fl_image_size in, fl_err *err)
{
    if (in.height >= 1 && in.width >= 1 && in.height <= FL_MAX_EDGE && in.width <= FL_MAX_EDGE)
        return FL_OK;
    return fl_fail(err, FL_EINVAL, "an image of (%d, %d): both edges are between 1 and %d",
                   in.height, in.width, FL_MAX_EDGE);
}

static int check_ops(const fl_image_config *config, fl_image_size *size, fl_err *err)
{
    bool has_erased = false;
    int64_t segments = 1;
    if (config->in.height != 0 || config->in.width != 0) FL_TRY(check_image(config->in, err));
    *size = config->in;
    for (int32_t i = 0; i < config->count; i++) {
        const fl_image_op *op = &config->ops[i];
        FL_TRY(check_op(op, err));
        FL_TRY(op_types[op->kind]->size(op, *size, size, err));
        FL_TRY(count_segments(op, &segments, err));
        if (has_erased) FL_TRY(check_after_erase(op, err));
        has_erased |= op->kind == FL_OP_ERASE;
    }
    if (fl_size_is_known(*size)) return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "the images differ in size and so would the results: add a Resize of "
                   "(height, width), a RandomResizedCrop or a crop");
}

static int copy_tables(fl_image_plan *plan, const fl_image_config *config, fl_err *err)
{
    if (config->tables == NULL) return FL_OK;
    int64_t bytes = (int64_t)256 * fl_image_type_bytes(plan->type);
    plan->tables = fl_alloc(plan->channels * bytes);
    if (plan->tables == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a plan's tables");
    memcpy(plan->tables, config->tables, (size_t)(plan->channels * bytes));
    for (int32_t c = 0; c < plan->channels; c++)
        plan->cast[c] = fl_image_cast_make(plan->type, (char *)plan->tables + c * bytes,
                                           config->linear != NULL ? config->linear + 3 * c : NULL);
    return FL_OK;
}

static void copy_ops(fl_image_plan *plan, const fl_image_config *config)
{
    for (int32_t i = 0; i < config->count; i++) {
        plan->ops[i] = config->ops[i];
        if (op_types[plan->ops[i].kind]->has_area) fl_op_set_ratio(&plan->ops[i]);
    }
}

int fl_image_plan_open(const fl_image_config *config, fl_image_plan **out, fl_err *err)
{
    fl_image_size size;
    *out = NULL;
    FL_TRY(check_config(config, err));
    FL_TRY(check_ops(config, &size, err));
    fl_image_plan *plan = fl_alloc((int64_t)sizeof *plan);
    if (plan == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a plan");
    plan->count = config->count;
    plan->channels = config->channels;
    plan->in = config->in;
    plan->out = size;
    plan->type = config->type;
    plan->layout = config->layout;
    plan->seed = config->seed;
    plan->image_ops = config->image_ops;
    copy_ops(plan, config);
    plan->cache = fl_resample_cache_open();
    plan->scratch = fl_alloc((int64_t)sizeof *plan->scratch);
    int status = plan->cache != NULL && plan->scratch != NULL
                     ? copy_tables(plan, config, err)
                     : fl_fail(err, FL_ENOMEM, "out of memory for a plan");
    if (status != FL_OK) {
        fl_image_plan_close(plan);
        return status;
    }
    *out = plan;
    return FL_OK;
}

void fl_image_plan_close(fl_image_plan *plan)
{
    if (plan == NULL) return;
    fl_scratch_close(plan->scratch);
    fl_resample_cache_close(plan->cache);
    fl_free(plan->tables);
    fl_free(plan);
}

/* ---- what it is */

fl_image_size fl_image_plan_in(const fl_image_plan *plan) { return plan->in; }
fl_image_size fl_image_plan_out(const fl_image_plan *plan) { return plan->out; }
int32_t fl_image_plan_count(const fl_image_plan *plan) { return plan->count; }
int32_t fl_image_plan_channels(const fl_image_plan *plan) { return plan->channels; }
uint64_t fl_image_plan_seed(const fl_image_plan *plan) { return plan->seed; }

const fl_image_op *fl_image_plan_op(const fl_image_plan *plan, int32_t i)
{
    assert(i >= 0 && i < plan->count);
    return &plan->ops[i];
}

int64_t fl_image_plan_out_bytes(const fl_image_plan *plan)
{
    return (int64_t)plan->out.height * plan->out.width * plan->channels *
           fl_image_type_bytes(plan->type);
}

/* ---- draw */

int fl_image_plan_draw(const fl_image_plan *plan, const fl_sample_key *key, fl_image_size in,
                       fl_image_params *params, fl_err *err)
{
    FL_TRY(check_image(in, err));
    bool is_as_planned = in.height == plan->in.height && in.width == plan->in.width;
    if (fl_size_is_known(plan->in) && !is_as_planned)
        return fl_fail(err, FL_EINVAL, "an image of (%d, %d) for a plan for images of (%d, %d)",
                       in.height, in.width, plan->in.height, plan->in.width);
    for (int32_t i = 0; i < plan->count; i++) {
        const fl_image_op *op = &plan->ops[i];
        const fl_op_type *type = op_types[op->kind];
        params[i] = (fl_image_params){.is_applied = true};
        FL_TRY(type->size(op, in, &params[i].out, err));
        if (type->draw != NULL) type->draw(op, key, in, &params[i]);
        in = params[i].out;
    }
    return FL_OK;
}

/* ---- apply */

/* How the output lies in memory. */
typedef struct fl_image_target {
    char *data; /* borrowed from the caller */
    int32_t height, width, channels, bytes;
    bool is_joined; /* channels lie next to each other */
} fl_image_target;

static int write_rows(const fl_image_plan *plan, const fl_image_view *view,
                      const fl_image_target *to, fl_err *err)
{
    fl_row_reader reader;
    FL_TRY(fl_row_reader_open(&reader, &view->tools, true, &view->source, &view->y, &view->x, err));
    int64_t row_bytes = (int64_t)to->width * to->bytes;
    if (!to->is_joined) {
        for (int32_t i = 0; i < to->height; i++)
            fl_row_reader_read(&reader, i, to->data + i * row_bytes, to->height * row_bytes);
        return FL_OK;
    }
    int64_t pitch = fl_image_pitch(row_bytes);
    char *line = fl_scratch_memory(view->tools.scratch, FL_SCRATCH_TYPED, pitch * to->channels);
    if (line == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a row of the output");
    for (int32_t i = 0; i < to->height; i++) {
        fl_row_reader_read(&reader, i, line, pitch);
        plan->image_ops->join(to->data + i * row_bytes * to->channels, line, pitch, to->width,
                              to->channels, to->bytes);
    }
    return FL_OK;
}

static void erase_planes(const fl_image_plan *plan, const fl_erased *e, const fl_image_target *to)
{
    const uint8_t *value = plan->ops[e->op].out_fill;
    for (int32_t c = 0; c < to->channels; c++)
        for (int32_t i = 0; i < e->size.height; i++) {
            int64_t row = (int64_t)c * to->height + e->top + i;
            plan->image_ops->fill(to->data + (row * to->width + e->left) * to->bytes,
                                  value + c * to->bytes, e->size.width, to->bytes);
        }
}

static void erase_pixels(const fl_image_plan *plan, const fl_erased *e, const fl_image_target *to)
{
    const uint8_t *pixel = plan->ops[e->op].out_fill;
    size_t bytes = (size_t)(to->channels * to->bytes);
    for (int32_t i = 0; i < e->size.height; i++) {
        int64_t first = (int64_t)(e->top + i) * to->width + e->left;
        char *row = to->data + first * (int64_t)bytes;
        for (int32_t j = 0; j < e->size.width; j++) memcpy(row + j * (int64_t)bytes, pixel, bytes);
    }
}

static int run_ops(const fl_image_plan *plan, const fl_image_params *params, fl_image_view *view,
                   const fl_image_target *to, fl_err *err)
{
    for (int32_t i = 0; i < plan->count; i++)
        FL_TRY(op_types[plan->ops[i].kind]->apply(&plan->ops[i], i, &params[i], view, err));
    FL_TRY(fl_image_view_resolve(view, err));
    assert(view->y.length == to->height && view->x.length == to->width);
    FL_TRY(write_rows(plan, view, to, err));
    for (int32_t n = 0; n < view->erased_count; n++)
        (to->is_joined ? erase_pixels : erase_planes)(plan, &view->erased[n], to);
    return FL_OK;
}

int fl_image_plan_apply(const fl_image_plan *plan, const fl_image_params *params,
                        const fl_image_source *source, void *out, fl_err *err)
{
    fl_image_target to = {.data = out,
                          .height = plan->out.height,
                          .width = plan->out.width,
                          .channels = plan->channels,
                          .bytes = fl_image_type_bytes(plan->type),
                          .is_joined = plan->layout == FL_HWC && plan->channels > 1};
    fl_image_tools tools = {.ops = plan->ops,
                            .image_ops = plan->image_ops,
                            .channels = plan->channels,
                            .type = plan->type,
                            .cast = plan->tables != NULL ? plan->cast : NULL};
    FL_TRY(fl_scratch_take(plan->scratch, &tools.scratch, err));
    fl_image_view view;
    fl_image_view_start(&view, &tools, plan->cache, source);
    int status = run_ops(plan, params, &view, &to, err);
    fl_scratch_give(plan->scratch, tools.scratch);
    return status;
}
