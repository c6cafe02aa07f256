/* fl_table: fields of equal length, and batches of their rows gathered into one buffer.
 *
 * Floor 1. Hides strides of any sign, rows that are not contiguous, images that a plan works on,
 * and sources that may vanish (mapped files), which are read through fl_safe_read. A table is
 * read-only once open, so any number of threads may gather from it; a batch is cut into parts that
 * different threads gather. */
#ifndef FL_TABLE_H
#define FL_TABLE_H

#include "fl_batch.h"
#include "fl_image_plan.h"
#include "fl_row_ops.h"
#include "fl_tensor.h"

typedef struct fl_table fl_table;

/* Batches of less work (fl_table_work) are gathered sooner than another thread wakes up. */
enum { FL_TABLE_SMALL_BYTES = 256 * 1024 };

/* One field as the caller describes it: view.shape[0] is the number of rows. */
typedef struct fl_column {
    fl_tensor view;            /* its memory is kept alive by the caller until fl_table_close */
    bool is_volatile;          /* a mapped file: reads go through fl_safe_read */
    const fl_image_plan *plan; /* borrowed until fl_table_close: what a row becomes in a batch;
                                  NULL: rows are copied */
    fl_image_layout layout;    /* with a plan: of the images in `view` */
} fl_column;

/* At least one column, each of ndim >= 1, all of the same length; those with a plan hold uint8
 * images of its size and channels. Else FL_EINVAL. Copies the descriptions. The caller owns *out.
 */
int fl_table_open(const fl_column *columns, int32_t count, const fl_row_ops *row_ops,
                  fl_table **out, fl_err *err);
void fl_table_close(fl_table *table);

int64_t fl_table_length(const fl_table *table);
bool fl_table_is_volatile(const fl_table *table); /* any column is */

/* How many bytes the buffer of a batch of `rows` rows has; FL_EINVAL when that overflows. The
 * fields follow each other in the buffer, each at a multiple of 64. */
int fl_table_bytes(const fl_table *table, int64_t rows, int64_t *bytes, fl_err *err);

/* How far field f + 1 begins behind field f, for a batch whose fl_table_bytes is known to fit. */
int64_t fl_table_field_bytes(const fl_table *table, int32_t f, int64_t rows);

/* What gathering such a batch costs, in bytes that are copied: those of the batch, and those that
 * plans read. */
int64_t fl_table_work(const fl_table *table, int64_t rows);

/* Into how many parts a batch is best cut: 1 for what one thread gathers sooner than another wakes
 * up. */
int32_t fl_table_parts(const fl_table *table, int64_t rows);

/* Gathers part `part` of `parts` of the batch into `buffer`, fl_table_bytes long. Rows must be
 * resolved. The rows of a batch are divided, so parts write disjoint memory. A plan's random
 * numbers are those of row, epoch and view. FL_ESOURCE names field and row of a source that
 * vanished; FL_ENOMEM. Waits for the disk only where volatile. */
int fl_table_gather(const fl_table *table, const fl_rows *rows, uint32_t epoch, int32_t part,
                    int32_t parts, char *buffer, fl_err *err);

/* The fl_fill of a ring whose batches have an fl_table as source: gathers the part into
 * batch->data.
 */
int fl_table_fill(const fl_batch *batch, int32_t part, fl_err *err);

/* The first of `rows` (resolved) of which field f has a byte at or behind the address `limit`;
 * -1 if there is none. For a mapped file that has become shorter: the kernel reads zeros between
 * its end and the end of its last page. */
int64_t
fl_table_row_behind(const fl_table *table, int32_t f, const fl_rows *rows, const char *limit);

#endif
