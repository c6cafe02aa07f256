/* fl_py_scalars: single numbers in torch tensors, and what is computed between passes from numbers
 * that only a device may know.
 *
 * All functions need the interpreter lock; none waits for a device. */
#ifndef FL_PY_SCALARS_H
#define FL_PY_SCALARS_H

#include "fl_py_launch.h"

/* The address in a tensor of one float of so many bits, NULL for None: 0 done, -1 exception. For
 * *device see fl_py_scalar_address. */
int fl_py_find_float(const fl_py_dlpack *dlpack, PyObject *tensor, uint8_t bits, int32_t *device,
                     void **out);

/* *factor = what gradients are multiplied by to divide and clip them; see fl_grad_ops.h. All
 * addresses are on the device. 0, -1 exception. */
int fl_py_find_clip_factor(fl_py_launcher *launcher, const fl_py_dlpack *dlpack, int32_t device,
                           const double *norm, double max_norm, const float *found_inf,
                           fl_divisor divisor, double *factor);

/* *inverse = 1 / *scale, likewise. */
int fl_py_invert(fl_py_launcher *launcher, const fl_py_dlpack *dlpack, int32_t device,
                 const float *scale, float *inverse);

/* The method update_scale of _core.GradListBase, without its object: None, or NULL and an
 * exception. `written` is called with the two tensors before they change. */
PyObject *fl_py_update_scale(fl_py_launcher *launcher, const fl_py_dlpack *dlpack,
                             PyObject *written, PyObject *args);

#endif
