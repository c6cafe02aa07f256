/* fl_plan: which rows make the next batch.
 *
 * Floor 1. Indices arrive in index blocks of any size, for example a whole permutation, 32 random
 * draws, or a range. A plan cuts the blocks into batches and maps the indices through nested
 * subsets, or a function, to rows of the table. At every step the plan checks bounds and makes
 * negative indices positive, as Python's sequences do. One thread at a time. */
#ifndef FL_PLAN_H
#define FL_PLAN_H

#include "fl_base.h"

/* The row list of one batch: either `index[0..count)` or the range first, first + 1, ... */
typedef struct fl_rows {
    int64_t count;
    int64_t first;    /* when is_range */
    int64_t *index;   /* owned; when not is_range */
    int64_t capacity; /* of index */
    int64_t *spare;   /* owned: fl_plan_resolve writes rows here until all indices have passed */
    int64_t spare_capacity; /* of spare */
    bool is_range;
    bool has_views;
    uint8_t *view; /* owned; when has_views: the view of row index[i]. Otherwise all views are 0 */
    int64_t view_capacity; /* of view */
} fl_rows;

/* Returns the row at this position; the rows must be resolved. */
static inline int64_t fl_row_at(const fl_rows *rows, int64_t position)
{
    return rows->is_range ? rows->first + position : rows->index[position];
}

void fl_rows_clear(fl_rows *rows); /* empties, keeping the memory */
void fl_rows_close(fl_rows *rows); /* frees */

/* Append indices; on FL_ENOMEM nothing changes. */
int fl_rows_add(fl_rows *rows, const int64_t *index, int64_t count, fl_err *err);
int fl_rows_add_range(fl_rows *rows, int64_t first, int64_t count, fl_err *err);

/* Appends indices with their views. The rows must be empty or have views. */
int fl_rows_add_views(fl_rows *rows, const int64_t *index, const uint8_t *view, int64_t count,
                      fl_err *err);

typedef struct fl_plan fl_plan;

/* Opens a plan over a table of `length` rows. The caller closes *out. */
int fl_plan_open(int64_t length, fl_plan **out, fl_err *err);
void fl_plan_close(fl_plan *plan);

/* Tells the plan that its table now has `length` rows. */
void fl_plan_set_length(fl_plan *plan, int64_t length);

/* Adds a subset around the table or the last subset: row i of the subset is row index[i] of what
 * the subset wraps. Call this for the innermost subset first. `index` is borrowed until
 * fl_plan_close. */
int fl_plan_map(fl_plan *plan, const int64_t *index, int64_t length, fl_err *err);

/* Writes the row of each index, 0 <= index, in an epoch; `row` and `index` may be the same array.
 */
typedef int fl_plan_find(void *context, uint32_t epoch, const int64_t *index, int64_t count,
                         int64_t *row, fl_err *err);

/* Adds `length` indices around the table, as fl_plan_map does, whose rows a function finds.
 * `context` is borrowed until fl_plan_close. */
int fl_plan_map_by(fl_plan *plan, fl_plan_find *find, void *context, int64_t length, fl_err *err);

/* Tells the epoch of the next batches to the functions. */
void fl_plan_set_epoch(fl_plan *plan, uint32_t epoch);

/* Sets the next index block; `index` is borrowed until fl_plan_needs_block is true again. */
void fl_plan_set_block(fl_plan *plan, const int64_t *index, int64_t count);
void fl_plan_set_range(fl_plan *plan, int64_t first, int64_t count);
bool fl_plan_needs_block(const fl_plan *plan);  /* the last block is used up */
int64_t fl_plan_remaining(const fl_plan *plan); /* indices of the block that no batch has taken */

/* Drops the rest of the block. */
void fl_plan_restart(fl_plan *plan);

/* Adds indices of the block to `rows` until `rows` has batch_size indices or the block ends. */
int fl_plan_fill(fl_plan *plan, fl_rows *rows, int64_t batch_size, fl_err *err);

/* Turns indices into rows of the table and leaves views alone. FL_EINDEX names the first index out
 * of bounds at the outermost level that has one, its position in the batch and the length. After a
 * failure `rows` still holds the sampler's indices. Otherwise an error of a function. */
int fl_plan_resolve(const fl_plan *plan, fl_rows *rows, fl_err *err);

#endif
