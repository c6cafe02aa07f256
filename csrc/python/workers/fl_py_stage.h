/* fl_py_stage: the memory of one batch that several workers make together. It has the rows of the
 * batch, then a mark for each row: 0, or 1 plus the number of the worker that has claimed the row.
 *
 * The parent opens a stage in a slot; workers claim rows (WorkerEnd.claim) and write them.
 * docs/internals/processes.md says who owns the memory. */
#ifndef FL_PY_STAGE_H
#define FL_PY_STAGE_H

#include "fl_py_channel.h"

#define FL_PY_STAGE_DOC                                                                           \
    "stage(like, count, /)\n--\n\n"                                                               \
    "Open memory in which workers make a stack of `count` tensors like `like`. Returns (stack,\n" \
    "marks, offset): the stack, the marks of its rows, and where WorkerEnd.claim() finds both.\n" \
    "The memory is used again once both tensors are gone, so keep the marks in the tasks of\n"    \
    "requests, which outlive the workers' work. Batches must have no destination."

PyObject *fl_py_stage_open(fl_py_parent_end *self, PyObject *args);

/* Where the marks begin, for rows of `bytes` together, and the bytes of the whole stage. */
static inline int64_t fl_py_stage_marks(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static inline int64_t fl_py_stage_bytes(int64_t bytes, int64_t rows)
{
    return fl_py_stage_marks(bytes) + rows * (int64_t)sizeof(int32_t);
}

#endif
