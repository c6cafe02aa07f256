/* fl_table: columns of equal length, and batches of their rows gathered into one buffer.
 *
 * Floor 1. Hides of which kinds the columns are (fl_column). A table is read-only once open, so any
 * number of threads may gather from it; a batch is cut into parts that different threads gather. */
#ifndef FL_TABLE_H
#define FL_TABLE_H

#include "fl_batch.h"
#include "fl_column.h"
#include "fl_gate.h"

typedef struct fl_table fl_table;

/* At least one column, all of the same length; else FL_EINVAL. The table takes the columns; on
 * failure they are still the caller's. The caller owns *out. */
int fl_table_open(fl_column *const *columns, int32_t count, fl_table **out, fl_err *err);
void fl_table_close(fl_table *table); /* and its columns */

int64_t fl_table_length(const fl_table *table);
int32_t fl_table_outputs(const fl_table *table);  /* of a batch: those of all columns, in order */
bool fl_table_is_volatile(const fl_table *table); /* any column is */

/* From now on gathers enter this gate, which outlives the table. */
void fl_table_guard(fl_table *table, fl_gate *gate);

/* Array `part` of column f, counted as in fl_column_ops.row_behind, is at `data` now. While its
 * gate is closed and nobody is inside. */
void fl_table_move(fl_table *table, int32_t f, int32_t part, const char *data);

/* What a batch of these rows, which are resolved, is. FL_EINVAL: it is too large, or a column
 * cannot make it; FL_ENOMEM. Does not block; one thread a layout. */
int fl_table_layout(const fl_table *table, const fl_rows *rows, uint32_t epoch, fl_layout *layout,
                    fl_err *err);

/* Gathers part `part` of `parts` of the batch into `buffer`, layout->bytes long; rows, epoch and
 * layout are those of fl_table_layout. The rows of a batch are divided, so parts write disjoint
 * memory. FL_ESOURCE names field and row of a source that vanished; FL_ENOMEM, FL_EINVAL. Waits for
 * the disk only where volatile, and at a closed gate. */
int fl_table_gather(const fl_table *table, const fl_rows *rows, uint32_t epoch,
                    const fl_layout *layout, int32_t part, int32_t parts, char *buffer,
                    fl_err *err);

/* The fl_fill of a ring whose batches have an fl_table as source: gathers the part into
 * batch->data. */
int fl_table_fill(const fl_batch *batch, int32_t part, fl_err *err);

/* The first of `rows` (resolved) of which array `part` of column f has a byte at or behind the
 * address `limit`; -1 if there is none: see fl_column_ops.row_behind. */
int64_t fl_table_row_behind(const fl_table *table, int32_t f, int32_t part, const fl_rows *rows,
                            const char *limit);

#endif
