/* fl_py_passes: passes over the tensors that were collected last.
 *
 * Every function needs plain tensors and the interpreter lock, which it gives away while a long
 * pass runs on the CPU; the caller keeps other threads from the same tensors meanwhile. Addresses
 * are on the tensors' device. 0 for success, or -1 and an exception: then no element has changed.
 * None waits for a device. fl_grad_ops.h says what the passes compute. */
#ifndef FL_PY_PASSES_H
#define FL_PY_PASSES_H

#include "fl_py_collect.h"

int fl_py_pass_norm_check(fl_py_grads *self, fl_thread_pool *pool, int32_t norm_type,
                          fl_divisor divisor, float *found_inf, double *norm);

/* Does nothing where the host knows that *factor is 1. */
int fl_py_pass_scale(fl_py_grads *self, fl_thread_pool *pool, const double *factor);

/* Only reads where the host knows that *inv_scale is 1. */
int fl_py_pass_unscale(fl_py_grads *self, fl_thread_pool *pool, const float *inv_scale,
                       float *found_inf);

/* self = beta * self + alpha * *factor * from: 1 done; 0 the engine does not offer that for the
 * two, nothing was done; -1 exception. Both lists are the caller's alone. */
int fl_py_pass_combine(fl_py_grads *self, fl_thread_pool *pool, fl_py_grads *from, double alpha,
                       const double *factor, double beta, float *found_inf);

#endif
