/* fl_py_submit: turns the sampler's items into submitted batches. */
#ifndef FL_PY_SUBMIT_H
#define FL_PY_SUBMIT_H

#include "fl_py_array_ring.h"

/* Submits the next batch, or a sentinel instead: 1 done; 0 the sampler is used up, or the batch is
 * deferred because memory is lacking; -1 exception. Runs the user's sampler. The caller holds the
 * interpreter lock and the loader's lock, and fewer than `depth` batches are submitted. */
int fl_py_submit_next(fl_py_array_ring *self);

#endif
