/* fl_table: columns of equal length, and batches of their rows gathered into one buffer.
 *
 * Floor 1. Hides the kinds of the columns (fl_column). A table is read-only once open, so any
 * number of threads may gather from a table; a batch is cut into parts that different threads
 * gather. */
#ifndef FL_TABLE_H
#define FL_TABLE_H

#include "fl_batch.h"
#include "fl_column.h"

typedef struct fl_table fl_table;

/* Opens a table of at least one column, all of the same length; otherwise FL_EINVAL. The table
 * takes the columns; on failure the columns are still the caller's. The caller closes *out. */
int fl_table_open(fl_column *const *columns, int32_t count, fl_table **out, fl_err *err);
void fl_table_close(fl_table *table); /* also closes the columns */

int64_t fl_table_length(const fl_table *table);
int32_t fl_table_outputs(const fl_table *table);  /* for all columns, in order */
bool fl_table_is_volatile(const fl_table *table); /* true if any column is */

/* Tells that array `part` of column f, counted as in fl_column_ops.row_beyond, is at `data` now.
 * Call this while nobody gathers. */
void fl_table_move(fl_table *table, int32_t f, int32_t part, const char *data);

/* Computes the layout of a batch of these rows, which must be resolved. FL_EINVAL: the batch is too
 * large, or a column cannot make it; FL_ENOMEM. Does not block; one thread a layout. */
int fl_table_layout(const fl_table *table, const fl_rows *rows, uint32_t epoch, fl_layout *layout,
                    fl_err *err);

/* Gathers part `part` of `parts` of the batch into `buffer`, layout->bytes long; rows, epoch and
 * layout must be the arguments of fl_table_layout. Parts divide the rows of a batch, so parts write
 * disjoint memory. FL_ESOURCE names field and row of a source that vanished; FL_ENOMEM, FL_EINVAL.
 * A volatile table may wait for the disk. */
int fl_table_gather(const fl_table *table, const fl_rows *rows, uint32_t epoch,
                    const fl_layout *layout, int32_t part, int32_t parts, char *buffer,
                    fl_err *err);

/* The fl_fill of a ring whose batches have an fl_table as source: gathers the part into
 * batch->data. */
int fl_table_fill(const fl_batch *batch, int32_t part, fl_err *err);

/* Returns the first of `rows` (resolved) that has a byte in array `part` of column f at or after
 * the address `limit`; -1: no row has. See fl_column_ops.row_beyond. */
int64_t fl_table_row_beyond(const fl_table *table, int32_t f, int32_t part, const fl_rows *rows,
                            const char *limit);

#endif
