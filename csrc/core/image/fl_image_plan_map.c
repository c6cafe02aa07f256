/* fl_image_plan_map: plans for a device, as numbers: where pixels come from, how colours change,
 * what bytes become, and the weights of a resize. See fl_image_plan.h; fl_cuda_images and
 * fl_cuda_colors read these numbers. */
#include "fl_image_plan.h"

#include "fl_image_output.h"
#include "fl_op.h"

#include <string.h>

enum {
    MOST_TAPS_BYTES = 64 << 20,
    /* A float sum of this many bytes is exact in any order. */
    EXACT_PIXELS = (1 << 24) / 255
};

_Static_assert(sizeof(fl_color_step) == FL_STEP_NUMBERS * sizeof(int32_t), "a step is its numbers");

static int32_t count_erases(const fl_image_plan *plan)
{
    int32_t count = 0;
    for (int32_t i = 0; i < fl_image_plan_count(plan); i++)
        count += fl_image_plan_op(plan, i)->kind == FL_OP_ERASE;
    return count;
}

static bool is_gate(const fl_image_op *op)
{
    return op->kind >= FL_OP_APPLY && op->kind <= FL_OP_BRANCH;
}

/* Returns true for an operation that a device can do: its kernels have the arithmetic of v2. */
static bool is_on_colors(const fl_image_op *op)
{
    if (op->arithmetic != FL_BY_TENSOR_V2) return false;
    return op->kind >= FL_OP_INVERT && op->kind <= FL_OP_PHOTOMETRIC_DISTORT;
}

/* Returns the most steps on colours that any image may need. */
static int32_t count_steps(const fl_image_plan *plan)
{
    int32_t count = 0;
    for (int32_t i = 0; i < fl_image_plan_count(plan); i++) {
        const fl_image_op *op = fl_image_plan_op(plan, i);
        if (is_on_colors(op))
            count += op->kind == FL_OP_COLOR_JITTER          ? 4
                     : op->kind == FL_OP_PHOTOMETRIC_DISTORT ? 5
                                                             : 1;
    }
    return count;
}

/* Returns the index of the first operation that resizes; the number of operations: no operation
 * resizes. */
static int32_t find_resize(const fl_image_plan *plan)
{
    int32_t i = 0, count = fl_image_plan_count(plan);
    while (i < count && !fl_op_is_resize(fl_image_plan_op(plan, i)->kind)) i++;
    return i;
}

bool fl_image_plan_taps(const fl_image_plan *plan, fl_image_taps taps[2])
{
    const int32_t resize = find_resize(plan);
    if (resize == fl_image_plan_count(plan) || !fl_size_is_known(fl_image_plan_in(plan)))
        return false;
    const fl_image_op *op = fl_image_plan_op(plan, resize);
    const fl_image_config config = {.ops = op - resize,
                                    .count = resize + 1,
                                    .channels = fl_image_plan_channels(plan),
                                    .in = fl_image_plan_in(plan)};
    fl_image_trace trace[FL_MAX_IMAGE_OPS + 1];
    (void)fl_image_ops_trace(&config, trace, NULL); /* config was right at open */
    const fl_image_size in = trace[resize].size, out = trace[resize + 1].size;
    const bool crops = op->kind == FL_OP_RANDOM_RESIZED_CROP;
    for (int32_t axis = 0; axis < 2; axis++) {
        int32_t longest = axis == 0 ? in.height : in.width;
        taps[axis] = (fl_image_taps){.shortest = crops ? 1 : longest,
                                     .longest = longest,
                                     .out = axis == 0 ? out.height : out.width};
        taps[axis].taps = fl_resample_most_taps(op->interpolation, longest, taps[axis].out);
    }
    return true;
}

int64_t fl_image_plan_taps_bytes(const fl_image_plan *plan)
{
    fl_image_taps taps[2];
    if (!fl_image_plan_taps(plan, taps)) return 0;
    int64_t numbers = fl_image_taps_numbers(&taps[0]) + fl_image_taps_numbers(&taps[1]);
    return numbers * (int64_t)sizeof(int32_t);
}

/* Returns true if a device can run the operations from `from` on; operation `from` changes colours
 * or holds operations. Pixels may move only by flips, and only in images so small that the order of
 * a sum does not matter. No colour may change after an erase. */
static bool are_on_colors(const fl_image_plan *plan, int32_t from)
{
    const fl_image_size out = fl_image_plan_out(plan);
    const bool flips = (int64_t)out.height * out.width <= EXACT_PIXELS;
    bool is_erased = false;
    for (int32_t i = from; i < fl_image_plan_count(plan); i++) {
        const fl_image_op *op = fl_image_plan_op(plan, i);
        const bool is_flip = op->kind == FL_OP_HORIZONTAL_FLIP || op->kind == FL_OP_VERTICAL_FLIP;
        if (op->kind == FL_OP_ERASE)
            is_erased = true;
        else if (!(is_flip && flips) && !is_gate(op) && (!is_on_colors(op) || is_erased))
            return false;
        if (op->kind == FL_OP_GRAYSCALE && op->grey_channels != op->channels) return false;
    }
    return true;
}

/* Returns true if a device can run the plan: operations before a resize read one run of rows and of
 * columns, and elements that are filled before colours change are bytes. */
static bool is_for_device(const fl_image_plan *plan)
{
    const int32_t resize = find_resize(plan), count = fl_image_plan_count(plan);
    const bool has_steps = count_steps(plan) > 0;
    int32_t i = 0;
    if (!fl_size_is_known(fl_image_plan_in(plan))) return false;
    for (; i < count; i++) {
        const fl_image_op *op = fl_image_plan_op(plan, i);
        const bool is_typed = fl_image_plan_output(plan)->typed_fills >> i & 1;
        if (op->kind > FL_OP_ERASE && !fl_op_holds_flips(op)) break;
        if (i > resize && fl_op_is_resize(op->kind)) return false;
        if (i < resize && resize < count && fl_op_may_pad(op)) return false;
        if (has_steps && (op->kind == FL_OP_ERASE || (is_typed && fl_op_may_pad(op)))) return false;
    }
    if (!are_on_colors(plan, i)) return false;
    if (resize == count) return true;
    return fl_image_plan_op(plan, resize)->interpolation < FL_PILLOW_BILINEAR &&
           fl_image_plan_taps_bytes(plan) <= MOST_TAPS_BYTES;
}

fl_image_map fl_image_plan_find_map(const fl_image_plan *plan)
{
    const fl_image_size out = fl_image_plan_out(plan);
    fl_image_map map = {.erases = count_erases(plan), .steps = count_steps(plan)};
    map.resize = find_resize(plan);
    map.runs_at =
        out.height + out.width + FL_ERASED_NUMBERS * map.erases + fl_steps_numbers(map.steps);
    const bool resizes = map.resize < fl_image_plan_count(plan);
    if (is_for_device(plan)) map.numbers = map.runs_at + (resizes ? FL_CROP_NUMBERS : 0);
    return map;
}

int32_t fl_image_plan_map_length(const fl_image_plan *plan)
{
    return fl_image_plan_get_map(plan)->numbers;
}

void fl_image_plan_describe(const fl_image_plan *plan, fl_image_batch *out)
{
    const fl_image_output *o = fl_image_plan_output(plan);
    fl_image_taps taps[2] = {0};
    *out = (fl_image_batch){.channels = o->channels,
                            .height = o->size.height,
                            .width = o->size.width,
                            .element_bytes = fl_image_type_bytes(o->type),
                            .map_numbers = fl_image_plan_map_length(plan),
                            .erased = count_erases(plan),
                            .steps = count_steps(plan),
                            .runs_at = fl_image_plan_get_map(plan)->runs_at,
                            .values = fl_image_plan_values(plan),
                            .resizes = fl_image_plan_taps(plan, taps)};
    out->rows = taps[0];
    out->columns = taps[1];
}

/* Writes the steps on colours in the order in which the operations are applied. */
static void map_steps(const fl_map_ops *ops, fl_color_step *out)
{
    fl_color_step steps[FL_MAX_IMAGE_OPS][FL_MOST_STEPS];
    int32_t counts[FL_MAX_IMAGE_OPS];
    for (int32_t i = 0; i < ops->count; i++)
        counts[i] = fl_op_find_steps(&ops->ops[i], &ops->params[i], steps[i]);
    for (int32_t i = 0; i < ops->count; i++) {
        if (counts[i] == 0) continue;
        const int32_t at = fl_op_find_place(ops->ops, ops->params, counts, ops->count, i);
        memcpy(out + at, steps[i], (size_t)counts[i] * sizeof *out);
    }
}

void fl_image_plan_map(const fl_image_plan *plan, const fl_image_params *params, int32_t *map)
{
    const fl_image_map *parts = fl_image_plan_get_map(plan);
    const fl_image_size out = fl_image_plan_out(plan);
    int32_t *runs = map + parts->runs_at;
    int32_t *steps = runs - fl_steps_numbers(parts->steps);
    int32_t *erased = steps - FL_ERASED_NUMBERS * parts->erases;
    fl_map_ops ops = {
        .params = params, .count = fl_image_plan_count(plan), .in = fl_image_plan_in(plan)};
    if (ops.count > 0) ops.ops = fl_image_plan_op(plan, 0);
    memset(erased, 0, (size_t)(runs - erased) * sizeof *map);
    if (parts->steps > 0) map_steps(&ops, (fl_color_step *)(void *)steps);
    if (parts->resize < ops.count) {
        fl_map_run(&ops, parts->resize, FL_MAP_ROWS, runs);
        fl_map_run(&ops, parts->resize, FL_MAP_COLUMNS, runs + FL_CROP_NUMBERS / 2);
        ops = fl_map_after(ops, parts->resize);
    }
    fl_map_axis(&ops, FL_MAP_ROWS, 0, out.height, map);
    fl_map_axis(&ops, FL_MAP_COLUMNS, 0, out.width, map + out.height);
    if (parts->erases == 0) return;
    fl_map_erases(&ops, FL_MAP_ROWS, erased);
    fl_map_erases(&ops, FL_MAP_COLUMNS, erased);
}

void fl_image_plan_describe_maps(const fl_image_plan *plan, fl_map_batch *out)
{
    *out = (fl_map_batch){.count = fl_image_plan_count(plan),
                          .parts = *fl_image_plan_get_map(plan),
                          .in = fl_image_plan_in(plan),
                          .out = fl_image_plan_out(plan),
                          .seed = fl_image_plan_seed(plan)};
}

int64_t fl_image_plan_ops_bytes(const fl_image_plan *plan)
{
    return fl_image_plan_count(plan) * (int64_t)sizeof(fl_image_op);
}

void fl_image_plan_write_ops(const fl_image_plan *plan, char *out)
{
    const size_t bytes = (size_t)fl_image_plan_ops_bytes(plan);
    if (bytes > 0) memcpy(out, fl_image_plan_op(plan, 0), bytes);
}

int32_t fl_image_plan_values(const fl_image_plan *plan) { return 256 + fl_image_plan_count(plan); }

int64_t fl_image_plan_values_bytes(const fl_image_plan *plan)
{
    const fl_image_output *o = fl_image_plan_output(plan);
    int64_t as_bytes = count_steps(plan) > 0;
    int64_t each = fl_image_plan_values(plan) * (fl_image_type_bytes(o->type) + as_bytes);
    return (each * o->channels + 3) / 4 * 4;
}

void fl_image_plan_write_values(const fl_image_plan *plan, char *out)
{
    const fl_image_output *o = fl_image_plan_output(plan);
    int64_t bytes = fl_image_type_bytes(o->type);
    memset(out, 0, (size_t)fl_image_plan_values_bytes(plan));
    for (int32_t c = 0; c < o->channels; c++) {
        for (int32_t v = 0; o->tables == NULL && v < 256; v++) out[v] = (char)v;
        if (o->tables != NULL)
            memcpy(out, (char *)o->tables + c * 256 * bytes, (size_t)(256 * bytes));
        out += 256 * bytes;
        for (int32_t i = 0; i < fl_image_plan_count(plan); i++, out += bytes)
            memcpy(out, fl_image_plan_op(plan, i)->out_fill + c * bytes, (size_t)bytes);
    }
    for (int32_t c = 0; count_steps(plan) > 0 && c < o->channels; c++) {
        for (int32_t v = 0; v < 256; v++) *out++ = (char)v;
        for (int32_t i = 0; i < fl_image_plan_count(plan); i++)
            *out++ = (char)fl_image_plan_op(plan, i)->fill[c];
    }
}

/* ---- taps */

/* Writes the taps for one length of one axis. Returns where the next length is written. */
static int32_t *write_axis(const fl_resample *made, const fl_image_taps *axis, int32_t *out)
{
    for (int32_t i = 0; i < axis->out; i++) {
        *out++ = made->first[i];
        *out++ = made->count[i];
        *out++ = made->precision;
        for (int32_t k = 0; k < axis->taps; k++)
            *out++ = k >= made->count[i]    ? 0
                     : made->weight == NULL ? 1
                                            : made->weight[(int64_t)i * made->taps + k];
    }
    return out;
}

int fl_image_plan_write_taps(const fl_image_plan *plan, int32_t *out, fl_err *err)
{
    fl_image_taps taps[2];
    fl_resample made = {0};
    int status = FL_OK;
    if (!fl_image_plan_taps(plan, taps)) return FL_OK;
    const fl_interpolation how = fl_image_plan_op(plan, find_resize(plan))->interpolation;
    for (int32_t axis = 0; axis < 2; axis++)
        for (int32_t n = taps[axis].shortest; status == FL_OK && n <= taps[axis].longest; n++) {
            status = fl_resample_make(&made, how, n, taps[axis].out, err);
            if (status == FL_OK) out = write_axis(&made, &taps[axis], out);
        }
    fl_resample_close(&made);
    return status;
}

int64_t fl_image_plan_all_bytes(const fl_image_plan *plan)
{
    return fl_image_plan_ops_bytes(plan) + fl_image_plan_values_bytes(plan) +
           fl_image_plan_taps_bytes(plan);
}

int fl_image_plan_write_all(const fl_image_plan *plan, char *out, fl_err *err)
{
    fl_image_plan_write_ops(plan, out);
    out += fl_image_plan_ops_bytes(plan);
    fl_image_plan_write_values(plan, out);
    out += fl_image_plan_values_bytes(plan);
    return fl_image_plan_write_taps(plan, (int32_t *)(void *)out, err);
}

int32_t fl_image_plan_own_taps(const fl_image_plan *plan)
{
    fl_image_taps taps[2];
    if (!fl_image_plan_taps(plan, taps)) return 0;
    return taps[0].out * (FL_TAP_NUMBERS + taps[0].taps) +
           taps[1].out * (FL_TAP_NUMBERS + taps[1].taps);
}

int fl_image_plan_write_own_taps(const fl_image_plan *plan, int32_t *map, fl_err *err)
{
    fl_image_taps taps[2];
    fl_resample own = {0};
    int status = FL_OK;
    if (!fl_image_plan_taps(plan, taps)) return FL_OK;
    const fl_interpolation how = fl_image_plan_op(plan, find_resize(plan))->interpolation;
    const int32_t *run = map + fl_image_plan_get_map(plan)->runs_at;
    int32_t *out = map + fl_image_plan_get_map(plan)->runs_at + FL_CROP_NUMBERS;
    for (int32_t axis = 0; status == FL_OK && axis < 2; axis++, run += FL_CROP_NUMBERS / 2) {
        const fl_resample *found;
        status = fl_resample_cache_find(fl_image_plan_cache(plan), how, *run, taps[axis].out, &own,
                                        &found, err);
        if (status == FL_OK) out = write_axis(found, &taps[axis], out);
    }
    fl_resample_close(&own);
    return status;
}
