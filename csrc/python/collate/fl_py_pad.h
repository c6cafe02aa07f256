/* fl_py_pad: sequences of different length in one tensor: padded in rows, or packed.
 *
 * What is covered: lists and tuples of plain numbers; 1-D tensors and ndarrays of one dtype. For
 * anything else the functions return NotImplemented, and nothing has been done. Their arguments are
 * those of the methods of _core.Collate of the same names. All need the interpreter lock; long
 * copies of arrays give it up. */
#ifndef FL_PY_PAD_H
#define FL_PY_PAD_H

#include "fl_py_stack.h"

/* pad(values, fill, is_widened, is_left, multiple, max_length, has_mask, has_lengths, float_bits):
 * a tuple (padded, mask or None, lengths or None). New reference. */
PyObject *fl_py_pad(fl_py_stacker *self, PyObject *args);

/* pack(values, starts, lengths, rows, width, fill, is_widened, is_label, float_bits): the tensor
 * [rows, width]. New reference. */
PyObject *fl_py_pack(fl_py_stacker *self, PyObject *args);

extern const char fl_py_pack_rows_doc[];

/* pack_rows(lengths, max_tokens) of _core: where sequences lie in rows. New reference. */
PyObject *fl_py_pack_rows(PyObject *module, PyObject *args);

/* segments(bounds, rows, width, copies, has_positions): a tuple (cu_seqlens, position_ids or None),
 * of which cu_seqlens is a list of so many copies. New reference. */
PyObject *fl_py_segments(fl_py_stacker *self, PyObject *args);

#endif
