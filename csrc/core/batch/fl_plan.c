/* fl_plan: see fl_plan.h. */
#include "fl_plan.h"

#include <assert.h>
#include <string.h>

typedef struct fl_map {
    const int64_t *index; /* borrowed from the caller of fl_plan_map */
    int64_t length;
    fl_plan_find *find; /* NULL: index has the rows */
    void *context;      /* borrowed from the caller of fl_plan_map_by */
} fl_map;

struct fl_plan {
    int64_t length; /* rows of the table */
    fl_map *maps;   /* owned; innermost first */
    int64_t map_count, map_capacity;
    uint32_t epoch;
    const int64_t *block; /* borrowed from the caller of fl_plan_set_block; NULL for a range */
    int64_t block_next, block_end; /* positions in block, or the range itself */
};

void fl_rows_clear(fl_rows *rows)
{
    rows->count = 0;
    rows->is_range = rows->has_views = false;
}

void fl_rows_close(fl_rows *rows)
{
    fl_free(rows->index);
    fl_free(rows->spare);
    fl_free(rows->view);
    *rows = (fl_rows){0};
}

static int reserve(fl_rows *rows, int64_t more, fl_err *err)
{
    int64_t count;
    if (!fl_add(rows->count, more, &count))
        return fl_fail(err, FL_EINVAL,
                       "a batch has more rows than memory can hold; pass a smaller batch_size");
    return fl_grow((void **)&rows->index, &rows->capacity, count, sizeof *rows->index, err);
}

/* Turns a range into single indices, so that any index can follow. */
static int spell_out(fl_rows *rows, fl_err *err)
{
    FL_TRY(fl_grow((void **)&rows->index, &rows->capacity, rows->count, sizeof *rows->index, err));
    for (int64_t i = 0; i < rows->count; i++) rows->index[i] = rows->first + i;
    rows->is_range = false;
    return FL_OK;
}

int fl_rows_add(fl_rows *rows, const int64_t *index, int64_t count, fl_err *err)
{
    assert(!rows->has_views);
    if (count == 0) return FL_OK;
    if (rows->is_range) FL_TRY(spell_out(rows, err));
    FL_TRY(reserve(rows, count, err));
    memcpy(rows->index + rows->count, index, (size_t)count * sizeof *index);
    rows->count += count;
    return FL_OK;
}

int fl_rows_add_range(fl_rows *rows, int64_t first, int64_t count, fl_err *err)
{
    if (count == 0) return FL_OK;
    if (rows->count == 0) {
        rows->is_range = true;
        rows->first = first;
        rows->count = count;
        return FL_OK;
    }
    if (rows->is_range && rows->first + rows->count == first) {
        rows->count += count;
        return FL_OK;
    }
    if (rows->is_range) FL_TRY(spell_out(rows, err));
    FL_TRY(reserve(rows, count, err));
    for (int64_t i = 0; i < count; i++) rows->index[rows->count++] = first + i;
    return FL_OK;
}

int fl_rows_add_views(fl_rows *rows, const int64_t *index, const uint8_t *view, int64_t count,
                      fl_err *err)
{
    assert(rows->count == 0 || rows->has_views);
    if (count == 0) return FL_OK;
    FL_TRY(reserve(rows, count, err));
    FL_TRY(fl_grow((void **)&rows->view, &rows->view_capacity, rows->count + count,
                   sizeof *rows->view, err));
    memcpy(rows->index + rows->count, index, (size_t)count * sizeof *index);
    memcpy(rows->view + rows->count, view, (size_t)count);
    rows->count += count;
    rows->has_views = true;
    return FL_OK;
}

int fl_plan_open(int64_t length, fl_plan **out, fl_err *err)
{
    *out = fl_alloc(sizeof **out);
    if (*out == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a plan");
    (*out)->length = length;
    return FL_OK;
}

void fl_plan_close(fl_plan *plan)
{
    if (plan == NULL) return;
    fl_free(plan->maps);
    fl_free(plan);
}

void fl_plan_set_length(fl_plan *plan, int64_t length) { plan->length = length; }

static int add_map(fl_plan *plan, fl_map map, fl_err *err)
{
    FL_TRY(fl_grow((void **)&plan->maps, &plan->map_capacity, plan->map_count + 1,
                   sizeof *plan->maps, err));
    plan->maps[plan->map_count++] = map;
    return FL_OK;
}

int fl_plan_map(fl_plan *plan, const int64_t *index, int64_t length, fl_err *err)
{
    return add_map(plan, (fl_map){.index = index, .length = length}, err);
}

int fl_plan_map_by(fl_plan *plan, fl_plan_find *find, void *context, int64_t length, fl_err *err)
{
    return add_map(plan, (fl_map){.find = find, .context = context, .length = length}, err);
}

void fl_plan_set_epoch(fl_plan *plan, uint32_t epoch) { plan->epoch = epoch; }

void fl_plan_set_block(fl_plan *plan, const int64_t *index, int64_t count)
{
    plan->block = index;
    plan->block_next = 0;
    plan->block_end = count;
}

void fl_plan_set_range(fl_plan *plan, int64_t first, int64_t count)
{
    plan->block = NULL;
    plan->block_next = first;
    plan->block_end = first + count;
}

bool fl_plan_needs_block(const fl_plan *plan) { return plan->block_next == plan->block_end; }

int64_t fl_plan_remaining(const fl_plan *plan) { return plan->block_end - plan->block_next; }

void fl_plan_restart(fl_plan *plan) { plan->block_next = plan->block_end; }

int fl_plan_fill(fl_plan *plan, fl_rows *rows, int64_t batch_size, fl_err *err)
{
    int64_t take = fl_min(batch_size - rows->count, plan->block_end - plan->block_next);
    if (take <= 0) return FL_OK;
    if (plan->block == NULL)
        FL_TRY(fl_rows_add_range(rows, plan->block_next, take, err));
    else
        FL_TRY(fl_rows_add(rows, plan->block + plan->block_next, take, err));
    plan->block_next += take;
    return FL_OK;
}

static int fail_index(fl_err *err, int64_t position, int64_t value, int64_t length)
{
    if (err != NULL)
        *err = (fl_err){.code = FL_EINDEX, .position = position, .value = value, .length = length};
    return FL_EINDEX;
}

static inline bool is_within(int64_t index, int64_t length)
{
    return index >= -length && index < length;
}

static inline bool is_range_within(const fl_rows *rows, int64_t length)
{
    return rows->first >= 0 && rows->first <= length - rows->count;
}

/* Checks every index against `length`, and writes the index into `row` as a positive number.
 * `index` and `row` may be the same array. */
static int
check_bounds(const int64_t *index, int64_t count, int64_t length, int64_t *row, fl_err *err)
{
    for (int64_t i = 0; i < count; i++) {
        if (!is_within(index[i], length)) return fail_index(err, i, index[i], length);
        row[i] = index[i] < 0 ? index[i] + length : index[i];
    }
    return FL_OK;
}

static inline bool lists_rows(const fl_plan *plan, int64_t level)
{
    return level >= 0 && plan->maps[level].find == NULL;
}

int fl_plan_resolve(const fl_plan *plan, fl_rows *rows, fl_err *err)
{
    int64_t levels = plan->map_count;
    const int64_t *index = NULL;
    if (rows->is_range && levels == 0 && is_range_within(rows, plan->length)) return FL_OK;
    if (rows->is_range && lists_rows(plan, levels - 1) &&
        is_range_within(rows, plan->maps[levels - 1].length))
        index = plan->maps[--levels].index + rows->first;
    else if (rows->is_range)
        FL_TRY(spell_out(rows, err));
    FL_TRY(fl_grow((void **)&rows->spare, &rows->spare_capacity, rows->count, sizeof *rows->spare,
                   err));
    int64_t *row = rows->spare;
    if (index == NULL) index = rows->index;
    for (int64_t m = levels - 1; m >= 0; m--) {
        const fl_map *map = &plan->maps[m];
        FL_TRY(check_bounds(index, rows->count, map->length, row, err));
        index = row;
        if (map->find != NULL)
            FL_TRY(map->find(map->context, plan->epoch, row, rows->count, row, err));
        else
            for (int64_t i = 0; i < rows->count; i++) row[i] = map->index[row[i]];
    }
    FL_TRY(check_bounds(index, rows->count, plan->length, row, err));
    int64_t *given = rows->index, capacity = rows->capacity;
    rows->index = row;
    rows->capacity = rows->spare_capacity;
    rows->spare = given;
    rows->spare_capacity = capacity;
    rows->is_range = false;
    return FL_OK;
}
