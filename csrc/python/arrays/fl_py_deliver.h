/* fl_py_deliver: turns batches of the ring into the user's batches. */
#ifndef FL_PY_DELIVER_H
#define FL_PY_DELIVER_H

#include "fl_py_array_ring.h"

enum { FL_PY_WAIT_MS = 50 }; /* a wait ends after this time to look for signals */

/* Returns the next batch, and submits the batch that follows. NULL without an exception: the epoch
 * has ended; NULL and an exception. The caller holds the interpreter lock and the loader's lock;
 * the function releases the interpreter lock while it waits. */
PyObject *fl_py_deliver_next(fl_py_array_ring *self);

#endif
