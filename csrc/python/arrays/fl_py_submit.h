/* fl_py_submit: what the sampler yields becomes submitted batches. */
#ifndef FL_PY_SUBMIT_H
#define FL_PY_SUBMIT_H

#include "fl_py_array_ring.h"

/* Submits the next batch, or a sentinel in its place: 1 done; 0 the sampler is used up, or
 * memory for the batch is lacking, which is deferred; -1 exception. Runs the user's sampler. The
 * interpreter lock and the loader's lock are held, and fewer than `depth` batches are submitted. */
int fl_py_submit_next(fl_py_array_ring *self);

#endif
