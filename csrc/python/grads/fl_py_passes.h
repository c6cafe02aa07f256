/* fl_py_passes: passes over the tensors collected last.
 *
 * Every function needs plain tensors and the interpreter lock, and gives up the lock during a long
 * pass on the CPU; the caller keeps other threads from the same tensors meanwhile. Addresses are on
 * the tensors' device. 0 for success, or -1 and an exception: then no element has changed. No
 * function waits for a device. fl_grad_ops.h defines the results. */
#ifndef FL_PY_PASSES_H
#define FL_PY_PASSES_H

#include "fl_py_collect.h"

int fl_py_pass_norm_check(fl_py_grads *self, fl_thread_pool *pool, int32_t norm_type,
                          fl_divisor divisor, float *found_inf, double *norm);

/* If the host knows that *factor is 1, does nothing. */
int fl_py_pass_scale(fl_py_grads *self, fl_thread_pool *pool, const double *factor);

/* If the host knows that *inv_scale is 1, only reads. */
int fl_py_pass_unscale(fl_py_grads *self, fl_thread_pool *pool, const float *inv_scale,
                       float *found_inf);

/* Computes self = beta * self + alpha * *factor * from: 1 done; 0 the engine does not offer this
 * for the two lists, and nothing was done; -1 exception. Only the caller uses the two lists. */
int fl_py_pass_combine(fl_py_grads *self, fl_thread_pool *pool, fl_py_grads *from, double alpha,
                       const double *factor, double beta, float *found_inf);

#endif
