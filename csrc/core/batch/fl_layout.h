/* fl_layout: the offset, type and shape of each tensor in the memory of one batch.
 *
 * Floor 1. fl_table_layout computes the layout on the consumer's thread, once the rows of a batch
 * are known; from then on the layout is read-only until the batch is received. A layout belongs to
 * a batch of a ring and is used again for the next: after the largest batch nothing is allocated
 * any more. */
#ifndef FL_LAYOUT_H
#define FL_LAYOUT_H

#include "fl_tensor.h"
#include "fl_transfer_ops.h"

enum { FL_OUTPUT_ALIGNMENT = 64 }; /* of each output in the buffer */

/* One tensor of a batch. A column sets every field but offset, cast.to and cast.drawn. */
typedef struct fl_output {
    fl_dtype dtype;
    int32_t ndim;
    bool is_whole; /* true: no dimension counts samples, so a single sample keeps all dimensions.
                      false: a sample loses dimension 0; samples lie side by side, and the part of
                      the batch that has a sample's row fills the sample */
    bool is_contiguous; /* same fact as stride */
    bool is_number;     /* the output is `number` itself, without a tensor or bytes */
    bool is_cast;    /* `cast` makes the elements at the destination, from the bytes filled for this
                        output or for an earlier output */
    int32_t cast_of; /* if is_cast: the bytes belong to the output this many places before; 0: to
                        this output */
    int64_t number;
    int64_t bytes;         /* bytes that are filled */
    int64_t offset;        /* in the buffer; a multiple of FL_OUTPUT_ALIGNMENT */
    fl_transfer_cast cast; /* if is_cast; `to` is then the tensor's offset. A column counts `from`
                              from the first of the bytes that are cast, and leaves out `drawn` */
    int64_t shape[FL_MAX_NDIM], stride[FL_MAX_NDIM]; /* of the tensor; strides in elements */
} fl_output;

/* Numbers that a column computes at layout and needs again in its gather, for example sums of
 * lengths. */
typedef struct fl_notes {
    int64_t *values; /* owned */
    int64_t capacity;
} fl_notes;

/* Batches with less work (work_bytes) are gathered sooner than a second thread wakes up. */
enum { FL_LAYOUT_SMALL_BYTES = 256 * 1024 };

typedef struct fl_layout {
    int64_t bytes;           /* of the filled buffer: all outputs */
    int64_t delivered_bytes; /* of the buffer at the destination: with the results of casts at the
                                end */
    int64_t work_bytes;      /* the cost of filling, in bytes that are copied */
    bool may_wait;           /* filling may wait for a disk */
    int32_t parts;      /* the best number of parts: 1 if one thread gathers the batch sooner than a
                           second thread wakes up */
    int32_t count;      /* outputs */
    fl_output *outputs; /* owned */
    int32_t capacity;   /* of outputs */
    fl_notes *notes;    /* owned: one for each column */
    int32_t columns;    /* capacity of notes */
} fl_layout;

void fl_layout_close(fl_layout *layout); /* frees what the layout owns, and zeroes the layout */

/* Makes room for this many outputs and columns, and sets count. FL_ENOMEM. */
int fl_layout_reserve(fl_layout *layout, int32_t columns, int32_t outputs, fl_err *err);

/* Makes room for `count` values. The values are left over from the last batch. FL_ENOMEM. */
int fl_notes_reserve(fl_notes *notes, int64_t count, fl_err *err);

/* Fails with FL_EINVAL: the batch is too large. */
int fl_fail_batch_size(fl_err *err);

/* Sets dtype, ndim, shape, strides and bytes for a contiguous tensor without a cast. FL_EINVAL: the
 * bytes do not fit int64_t. */
int fl_output_set(fl_output *output, fl_dtype dtype, int32_t ndim, const int64_t *shape,
                  fl_err *err);

/* Makes the output a number, without a tensor. */
void fl_output_set_number(fl_output *output, int64_t number);

/* Sets offsets, casts and both sums of bytes, once all outputs are set. FL_EINVAL: the bytes do not
 * fit int64_t. */
int fl_layout_set_offsets(fl_layout *layout, fl_err *err);

/* Chooses the slices of a placed batch of `rows` rows that are copied before the whole batch is
 * filled: slices of the output with the most bytes a sample. */
void fl_layout_slice(const fl_layout *layout, int64_t rows, fl_transfer_slices *out);

/* Returns the tensor's offset in the buffer once the buffer is delivered to its destination. */
static inline int64_t fl_output_at(const fl_output *output)
{
    return output->is_cast ? output->cast.to : output->offset;
}

#endif
