/* fl_layout: where the tensors of one batch lie in its memory, and what they are.
 *
 * Floor 1. fl_table_layout computes it once the rows of a batch are known, on the consumer's
 * thread; from then on it is read-only until the batch is received. It belongs to a batch of a ring
 * and is used again for the next: after the largest batch nothing is allocated any more. */
#ifndef FL_LAYOUT_H
#define FL_LAYOUT_H

#include "fl_tensor.h"
#include "fl_transfer_ops.h"

enum { FL_OUTPUT_ALIGNMENT = 64 }; /* of each output in the buffer */

/* One tensor of a batch. A column sets all but offset and cast.to. */
typedef struct fl_output {
    fl_dtype dtype;
    int32_t ndim;
    bool is_whole;      /* no dimension counts samples: a single sample keeps all dimensions. Else
                           it loses dimension 0, and its samples lie one behind another, each
                           filled by the part of the batch that has its row */
    bool is_contiguous; /* stride says the same */
    bool is_number;     /* no tensor: `number` itself. It has no bytes */
    bool is_cast;    /* `cast` makes the elements at the destination, of what is filled here or in
                        an output before */
    int32_t cast_of; /* where is_cast: so many outputs before this one. 0: its own bytes */
    int64_t number;
    int64_t bytes;         /* that are filled */
    int64_t offset;        /* where, in the buffer; a multiple of FL_OUTPUT_ALIGNMENT */
    fl_transfer_cast cast; /* where is_cast; `to` is where the tensor then lies. A column counts
                              `from` from the begin of the bytes that are cast */
    int64_t shape[FL_MAX_NDIM], stride[FL_MAX_NDIM]; /* of the tensor; strides in elements */
} fl_output;

/* What a column notes of a batch at layout, for its gather: sums of lengths, say. */
typedef struct fl_notes {
    int64_t *values; /* owned */
    int64_t capacity;
} fl_notes;

/* Batches of less work (work_bytes) are gathered sooner than another thread wakes up. */
enum { FL_LAYOUT_SMALL_BYTES = 256 * 1024 };

typedef struct fl_layout {
    int64_t bytes;           /* of the buffer when it is filled: all outputs */
    int64_t delivered_bytes; /* of the buffer at the destination: what casts make lies behind */
    int64_t work_bytes;      /* what filling costs, in bytes that are copied */
    bool may_wait;           /* filling may wait for a disk */
    int32_t parts;           /* into how many the batch is best cut: 1 for what one thread gathers
                                sooner than another wakes up */
    int32_t count;           /* outputs */
    fl_output *outputs;      /* owned */
    int32_t capacity;        /* of outputs */
    fl_notes *notes;         /* owned: of each column */
    int32_t columns;         /* capacity of notes */
} fl_layout;

void fl_layout_close(fl_layout *layout); /* frees what it owns; it is then zeroed */

/* Room for so many outputs and columns; FL_ENOMEM. Sets count. */
int fl_layout_reserve(fl_layout *layout, int32_t columns, int32_t outputs, fl_err *err);

/* Room for `count` values, which are whatever the last batch left there; FL_ENOMEM. */
int fl_notes_reserve(fl_notes *notes, int64_t count, fl_err *err);

/* FL_EINVAL: a batch that does not fit. */
int fl_fail_batch_size(fl_err *err);

/* Sets dtype, ndim, shape and strides of a contiguous tensor, and its bytes; nothing is cast.
 * FL_EINVAL where the bytes do not fit. */
int fl_output_set(fl_output *output, fl_dtype dtype, int32_t ndim, const int64_t *shape,
                  fl_err *err);

/* Sets the output to a number. */
void fl_output_set_number(fl_output *output, int64_t number);

/* Once all outputs are set: offsets, casts and both sums of bytes. FL_EINVAL where they do not
 * fit. */
int fl_layout_place(fl_layout *layout, fl_err *err);

/* Which slices of a placed batch of so many rows are copied before it is filled: of the output with
 * the most bytes a sample. */
void fl_layout_slice(const fl_layout *layout, int64_t rows, fl_transfer_slices *out);

/* Where the tensor lies in the buffer once it is delivered to its destination. */
static inline int64_t fl_output_at(const fl_output *output)
{
    return output->is_cast ? output->cast.to : output->offset;
}

#endif
