/* fl_column: one column of a table, of any kind: an object with a table of functions.
 *
 * Floor 1. A column makes one or more tensors of a batch (outputs) from the rows that the batch
 * takes. For example, fl_column_rows copies rows, and fl_column_image runs an image plan over them.
 * A new kind is one file that fills fl_column_ops and has an open function.
 *
 * A column is read-only once open: any number of threads may gather from a column, also in forked
 * children. If a thread needs memory for itself (scratch memory), the column keeps that memory in
 * slots that threads take and give without a lock, as fl_scratch does. */
#ifndef FL_COLUMN_H
#define FL_COLUMN_H

#include "fl_layout.h"
#include "fl_plan.h"
#include "fl_row_runs.h"

typedef struct fl_column fl_column;

/* A batch as one column sees it. */
typedef struct fl_column_batch {
    const fl_rows *rows; /* resolved */
    uint32_t epoch;
    int32_t field;      /* the column's index in its table, for errors */
    fl_output *outputs; /* the column's own, `column->outputs` many: layout sets them (all fields
                           but offset and cast.to), gather reads them */
    fl_notes *notes; /* the column's own: layout writes, gather reads. The notes of earlier columns
                        come before these in memory, and are written first */
    int64_t work_bytes; /* set by layout: the cost of gathering, in bytes that are copied; at most
                           INT64_MAX */
    bool may_wait; /* gathering may wait for a disk; the same as is_volatile, unless layout knows
                      better */
} fl_column_batch;

typedef struct fl_column_ops {
    /* Describes the outputs for a batch. The consumer calls layout for every batch. If only the
     * number of rows matters, layout takes few ns; it allocates nothing after the largest batch,
     * and does not block. FL_EINVAL (the batch is too large, or has impossible rows), FL_ENOMEM. */
    int (*layout)(const fl_column *column, fl_column_batch *batch, fl_err *err);

    /* Writes rows from <= i < to of the batch to the outputs in `buffer`, each output at its
     * offset; from < to. The gathers of all parts together write every byte of the outputs, each
     * byte once, and no byte between outputs. Any thread, parts at once. FL_ESOURCE names field and
     * row of a source that vanished; FL_ENOMEM; further errors name field and row in their text
     * (fl_column_name_row). A volatile column may wait for the disk. */
    int (*gather)(const fl_column *column, const fl_column_batch *batch, int64_t from, int64_t to,
                  char *buffer, fl_err *err);

    /* Returns the first of `rows` (resolved) that has a byte in array `part` of the column, counted
     * from 0, at or after the address `limit`; -1: no row has. If a mapped file has become shorter,
     * this finds the rows that were read as zeros: the kernel gives zeros between the file's end
     * and the end of its last page. NULL: -1. */
    int64_t (*row_beyond)(const fl_column *column, int32_t part, const fl_rows *rows,
                          const char *limit);

    /* Tells that array `part` of the column, counted as in row_beyond, has moved: its first element
     * is at `data` now. Called while nobody gathers; never fails. NULL: the column keeps no
     * address. */
    void (*move)(fl_column *column, int32_t part, const char *data);

    /* Frees the column. NULL: the column owns no other memory. */
    void (*close)(fl_column *column);
} fl_column_ops;

/* The first member of each kind's own struct; set by the kind's open, then read-only. */
struct fl_column {
    const fl_column_ops *ops; /* static */
    int64_t length;           /* rows */
    int32_t outputs;          /* tensors in a batch, >= 1 */
    bool is_volatile;         /* reads may wait for a disk and fail, for example in a mapped file */
};

static inline void fl_column_close(fl_column *column)
{
    if (column == NULL) return;
    if (column->ops->close != NULL)
        column->ops->close(column);
    else
        fl_free(column);
}

/* Copies rows from <= i < to of the batch to their place in dst, which holds all rows of the batch,
 * packed. Reads a volatile column through fl_safe_read: FL_ESOURCE names the row, FL_ENOMEM. */
int fl_column_copy_rows(const fl_column *column, const fl_row_runs *runs, const fl_row_ops *row_ops,
                        const fl_column_batch *batch, int64_t from, int64_t to, char *dst,
                        fl_err *err);

/* Fails with FL_ESOURCE for this row. */
int fl_column_fail_row(fl_err *err, const fl_column_batch *batch, int64_t row);

/* Puts field and row before the text of an error, if there is a text. Returns `status`. */
int fl_column_name_row(fl_err *err, int status, const fl_column_batch *batch, int64_t row);

/* Puts "field N " before the text of an error: the texts of open functions continue that sentence.
 * Returns `status`. */
int fl_column_name_field(fl_err *err, int status, int32_t field);

#endif
