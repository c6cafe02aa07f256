/* fl_column: one column of a table, of any kind: an object with a table of functions.
 *
 * Floor 1. A column makes one or more tensors of a batch (outputs) out of the rows that the batch
 * takes of it. Kinds: fl_column_rows copies rows, fl_column_image runs an image plan over them. A
 * new kind is one file that fills fl_column_ops and has an open function.
 *
 * A column is read-only once open: any number of threads may gather from it, in forked children
 * too. What a thread needs for itself (scratch memory) a column keeps in slots that threads take
 * and give without a lock, as fl_scratch does. */
#ifndef FL_COLUMN_H
#define FL_COLUMN_H

#include "fl_layout.h"
#include "fl_plan.h"
#include "fl_row_runs.h"

typedef struct fl_column fl_column;

/* A batch as one column of it sees it. */
typedef struct fl_column_batch {
    const fl_rows *rows; /* resolved */
    uint32_t epoch;
    int32_t field;      /* the column's place in its table, for errors */
    fl_output *outputs; /* the column's own, `column->outputs` of them: layout sets them (all but
                           offset and cast.to), gather reads them */
    fl_notes *notes; /* the column's own: layout writes, gather reads. Those of the columns before
                        it in the table lie before it, and are written before */
    int64_t work_bytes; /* layout sets it: what gathering costs, in bytes that are copied; at most
                           INT64_MAX */
    bool may_wait;      /* gathering may wait for a disk; is_volatile, unless layout knows better */
} fl_column_batch;

typedef struct fl_column_ops {
    /* What the batch is. Called by the consumer for every batch: it takes few ns where only the
     * number of rows matters, allocates nothing after the largest batch, and does not block.
     * FL_EINVAL (a batch that is too large, rows that cannot be), FL_ENOMEM. */
    int (*layout)(const fl_column *column, fl_column_batch *batch, fl_err *err);

    /* Writes what rows from <= i < to of the batch are to its outputs in `buffer`, each at its
     * offset. Every byte of the outputs is written by the gathers of all parts, each by one of
     * them; bytes between outputs by none. from < to. Any thread, parts at once. FL_ESOURCE names
     * field and row of a source that vanished; FL_ENOMEM; other errors name field and row in their
     * text (fl_column_name_row). Waits for the disk only where volatile. */
    int (*gather)(const fl_column *column, const fl_column_batch *batch, int64_t from, int64_t to,
                  char *buffer, fl_err *err);

    /* The first of `rows` (resolved) that has a byte in array `part` of the column, counted from 0,
     * at or behind the address `limit`; -1 if there is none. For a mapped file that has become
     * shorter: the kernel reads zeros between its end and the end of its last page. */
    int64_t (*row_behind)(const fl_column *column, int32_t part, const fl_rows *rows,
                          const char *limit);

    /* Array `part` of the column, counted as in row_behind, has moved: its first element is at
     * `data` now. NULL: the column keeps no address. While nobody gathers; never fails. */
    void (*move)(fl_column *column, int32_t part, const char *data);

    /* Frees the column. */
    void (*close)(fl_column *column);
} fl_column_ops;

/* The first member of each kind's own struct; set by its open, then read-only. */
struct fl_column {
    const fl_column_ops *ops; /* static */
    int64_t length;           /* rows */
    int32_t outputs;          /* tensors that it gives a batch, >= 1 */
    bool is_volatile;         /* reads may wait for a disk and fail: a mapped file, say */
};

static inline void fl_column_close(fl_column *column)
{
    if (column != NULL) column->ops->close(column);
}

/* Copies rows from <= i < to of the batch to dst, which has those before `from`, packed, too. From
 * a volatile column through fl_safe_read: FL_ESOURCE names the row, FL_ENOMEM. */
int fl_column_copy_rows(const fl_column *column, const fl_row_runs *runs, const fl_row_ops *row_ops,
                        const fl_column_batch *batch, int64_t from, int64_t to, char *dst,
                        fl_err *err);

/* FL_ESOURCE of this row. */
int fl_column_fail_row(fl_err *err, const fl_column_batch *batch, int64_t row);

/* Puts field and row before the text of an error that has one. Returns `status`. */
int fl_column_name_row(fl_err *err, int status, const fl_column_batch *batch, int64_t row);

/* Puts "field N " before the text of an error: those of open functions go on from there. Returns
 * `status`. */
int fl_column_name_field(fl_err *err, int status, int32_t field);

#endif
