/* fl_py_image_op: converts operations of an image plan and their parameters between Python's dicts,
 * keyed by the names of the fields, and the core's structs.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_IMAGE_OP_H
#define FL_PY_IMAGE_OP_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_image_plan.h"

/* Reads a dict with fields of fl_image_op; missing fields become 0. 0, or -1 and ValueError or
 * TypeError. */
int fl_py_image_op_read(PyObject *dict, fl_image_op *out);

/* Adds mappings from names to numbers to the module, so that Python has the core's numbers:
 * IMAGE_OPS, the kinds by torchvision's names; IMAGE_LIMITS; IMAGE_ARITHMETICS;
 * INTERPOLATIONS; PADDING_MODES. 0, or
 * -1 and an exception. */
int fl_py_image_op_export(PyObject *module);

/* Implements policy_strengths(op, height, width): a list with a tuple of strengths for each
 * fl_policy_op. */
extern const char fl_py_policy_strengths_doc[];
PyObject *fl_py_policy_strengths(PyObject *module, PyObject *args);

/* Makes a dict of the parameters. New reference. */
PyObject *fl_py_image_params(const fl_image_params *params);

#endif
