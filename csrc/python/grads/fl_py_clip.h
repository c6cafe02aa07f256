/* fl_py_clip: collecting, unscaling and clipping gradients, letting go of them: each in one call.
 *
 * All functions need the interpreter lock, which long passes give away; the caller keeps other
 * threads from the same list meanwhile. Where the engine does not cover the gradients, nothing has
 * been written and torch's functions have to run. */
#ifndef FL_PY_CLIP_H
#define FL_PY_CLIP_H

#include "fl_py_collect.h"

typedef struct fl_py_clip {
    double max_norm, norm_type; /* torch's; a norm_type other than 1, 2 and inf is not covered */
    bool error_if_nonfinite;    /* the caller will raise if the norm is inf or NaN */
} fl_py_clip;

/* FL_NORM_1, FL_NORM_2 or FL_NORM_MAX; -1 for a norm that the engine does not have. */
int32_t fl_py_find_norm(double norm_type);

/* Divides the gradients of an optimizer's groups by the scale (a 0-d float32 tensor) and sets
 * found_inf (likewise). With `clip` it clips them in the same pass, unless one is not finite or the
 * caller will raise. Waits for the device (SYNC) with error_if_nonfinite. New reference to:
 *   False   the engine does not cover the gradients, or the scale lies elsewhere; of DTensors one
 *           call covers those on the CPU that have one layout, with a `clip` that does not raise;
 *           they stay collected
 *   True    they are divided, not clipped: `clip` is NULL, or the engine does not have this norm
 *   a tensor of their dtype: their norm before clipping, of DTensors a DTensor. */
PyObject *fl_py_unscale_and_clip(fl_py_grads *self, fl_thread_pool *pool, PyObject *groups,
                                 PyObject *scale, PyObject *found_inf, const fl_py_clip *clip);

/* Clips the gradients of parameters. New reference to their norm before clipping, a tensor of their
 * dtype, as above; or None: the engine does not cover them in one call, or torch's function has to
 * raise, and the gradients stay collected. SYNC with error_if_nonfinite. */
PyObject *fl_py_clip_parameters(fl_py_grads *self, fl_thread_pool *pool, PyObject *parameters,
                                const fl_py_clip *clip);

#endif
