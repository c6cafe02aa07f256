/* fl_py_sequence_column: the heap type _core.SequenceColumn, one output of a batch of sequences
 * (fl_column_pad, fl_column_pack) over the user's arrays.
 *
 * The object is a source of a Table (fl_py_source); the Table keeps the source alive while the
 * opened column is read. The storages of its tensors cannot be resized. All functions need the
 * interpreter lock. */
#ifndef FL_PY_SEQUENCE_COLUMN_H
#define FL_PY_SEQUENCE_COLUMN_H

#include "fl_column_pack.h"
#include "fl_column_pad.h"
#include "fl_py_dlpack.h"

typedef struct fl_py_sequence_column {
    PyObject_HEAD
    PyObject *values, *offsets; /* owned: tensors and ndarrays that the column reads */
    PyObject *config;           /* owned: tuple that keeps the main offsets and the names alive */
    int32_t device;             /* of the values: FL_PY_CPU, or the index of a CUDA device */
    bool is_packed;             /* true: `pack` is used; false: `pad` */
    fl_column_pad_config pad;
    fl_column_pack_config pack;
} fl_py_sequence_column;

extern PyType_Spec fl_py_sequence_column_spec;

/* Returns the description of the sequences; if no values are read, its dtype has no meaning. */
static inline const fl_ragged *fl_py_sequence_column_ragged(const fl_py_sequence_column *self)
{
    return self->is_packed ? &self->pack.ragged : &self->pad.ragged;
}

#endif
