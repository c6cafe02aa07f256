/* fl_py_pad: sequences of different length in one tensor: padded in rows, or packed.
 *
 * Covers lists and tuples of plain numbers, and 1-D tensors and ndarrays of one dtype. For any
 * other value the functions return NotImplemented, and have changed nothing. The functions take the
 * arguments of _core.Collate's methods of the same names. All functions need the interpreter lock;
 * long copies of arrays give up the lock. */
#ifndef FL_PY_PAD_H
#define FL_PY_PAD_H

#include "fl_py_stack.h"

/* pad(values, fill, is_widened, pad_left, multiple, max_length, has_mask, has_lengths, float_bits):
 * returns a tuple (padded, mask or None, lengths or None). New reference. */
PyObject *fl_py_pad(fl_py_stacker *self, PyObject *args);

/* pack(values, starts, lengths, rows, width, fill, is_widened, is_label, float_bits): returns the
 * tensor [rows, width]. New reference. */
PyObject *fl_py_pack(fl_py_stacker *self, PyObject *args);

extern const char fl_py_pack_rows_doc[];

/* pack_rows(lengths, max_tokens) of _core: lays sequences in rows, as fl_py_pack_rows_doc
 * describes. New reference. */
PyObject *fl_py_pack_rows(PyObject *module, PyObject *args);

/* segments(bounds, rows, width, copies, has_positions): returns a tuple (cu_seqlens, position_ids
 * or None); cu_seqlens is a list of `copies` equal tensors. New reference. */
PyObject *fl_py_segments(fl_py_stacker *self, PyObject *args);

#endif
