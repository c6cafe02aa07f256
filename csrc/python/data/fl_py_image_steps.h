/* fl_py_image_steps: what a caller of _core.ImagePlan has drawn, as parameters and steps.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_IMAGE_STEPS_H
#define FL_PY_IMAGE_STEPS_H

#include "fl_py.h"
#include "fl_image_plan.h"

/* Reads for each operation of the plan what was drawn: (top, left, height, width) of a
 * RandomResizedCrop, or whether a flip is applied. Sets the parameters for an image of size `in`:
 * 0, or -1 and an exception, ValueError if the plan has other operations. */
int fl_py_image_drawn_read(const fl_image_plan *plan, PyObject *drawn, fl_image_size in,
                           fl_image_params *params);

/* Reads a tuple of steps, each (name, interpolation, numbers...), and a border of three numbers,
 * and checks them for images of `size`: 0, or -1 and an exception. */
int fl_py_image_steps_read(PyObject *steps, PyObject *border, fl_image_size size,
                           fl_image_steps *out);

#endif
