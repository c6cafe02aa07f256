/* fl_py_clip: collects, unscales, clips and releases gradients, each in one call.
 *
 * All functions need the interpreter lock, and give up the lock during long passes; the caller
 * keeps other threads from the same list meanwhile. If the engine does not cover the gradients,
 * nothing has been written and torch's functions have to run. */
#ifndef FL_PY_CLIP_H
#define FL_PY_CLIP_H

#include "fl_py_collect.h"

typedef struct fl_py_clip {
    double max_norm, norm_type; /* torch's; only the norm_types 1, 2 and inf are covered */
    bool error_if_nonfinite;    /* the caller will raise if the norm is inf or NaN */
} fl_py_clip;

/* Returns FL_NORM_1, FL_NORM_2 or FL_NORM_MAX; -1 if the engine does not have the norm. */
int32_t fl_py_find_norm(double norm_type);

/* Divides the gradients of an optimizer's groups by the scale (a 0-d float32 tensor), and sets
 * found_inf (a tensor of the same kind). If `clip` is given, also clips the gradients in the same
 * pass, unless a gradient is not finite or the caller will raise. With error_if_nonfinite the
 * function waits for the device (SYNC).
 *
 * Returns a new reference to False if the engine does not cover the gradients, or if the scale lies
 * on a different device. The gradients then stay collected. For DTensors, one call covers gradients
 * on the CPU with one layout, and a `clip` that does not raise.
 *
 * Returns True if the gradients are divided but not clipped: `clip` is NULL, or the engine does not
 * have the norm. Otherwise returns the norm before clipping, a tensor of the gradients' dtype; for
 * DTensors the norm is a DTensor. */
PyObject *fl_py_unscale_and_clip(fl_py_grads *self, fl_thread_pool *pool, PyObject *groups,
                                 PyObject *scale, PyObject *found_inf, const fl_py_clip *clip);

/* Clips the gradients of parameters. Returns a new reference to the norm before clipping, as
 * fl_py_unscale_and_clip does. Returns None if the engine does not cover the gradients in one call,
 * or if torch's function has to raise; the gradients then stay collected. SYNC with
 * error_if_nonfinite. */
PyObject *fl_py_clip_parameters(fl_py_grads *self, fl_thread_pool *pool, PyObject *parameters,
                                const fl_py_clip *clip);

#endif
