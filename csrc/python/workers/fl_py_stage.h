/* fl_py_stage: the parent opens an fl_stage in a slot, as tensors; workers claim its rows
 * (WorkerEnd.claim). */
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

#endif
