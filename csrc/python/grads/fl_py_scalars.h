/* fl_py_scalars: single numbers in torch tensors, and the computations between passes; possibly
 * only a device knows the numbers.
 *
 * All functions need the interpreter lock; no function waits for a device. */
#ifndef FL_PY_SCALARS_H
#define FL_PY_SCALARS_H

#include "fl_py_launch.h"

/* Sets *out to the address of the one float of `bits` bits in a tensor; NULL if `tensor` is None. 0
 * done, -1 exception. fl_py_scalar_address explains *device. */
int fl_py_find_float(const fl_py_dlpack *dlpack, PyObject *tensor, uint8_t bits, int32_t *device,
                     void **out);

/* Computes *factor: multiplying gradients by *factor divides and clips the gradients; see
 * fl_grad_ops.h. All addresses are on the device. 0, -1 exception. */
int fl_py_find_clip_factor(fl_py_launcher *launcher, const fl_py_dlpack *dlpack, int32_t device,
                           const double *norm, double max_norm, const float *found_inf,
                           fl_divisor divisor, double *factor);

/* Computes *inverse = 1 / *scale. Both addresses are on the device. 0, -1 exception. */
int fl_py_invert(fl_py_launcher *launcher, const fl_py_dlpack *dlpack, int32_t device,
                 const float *scale, float *inverse);

/* The method update_scale of _core.GradListBase, without its object: None, or NULL and an
 * exception. Calls `written` with the scale and the tracker before the tensors change. */
PyObject *fl_py_update_scale(fl_py_launcher *launcher, const fl_py_dlpack *dlpack,
                             PyObject *written, PyObject *args);

#endif
