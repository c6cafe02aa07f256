/* fl_py_deliver: batches of the ring as the user gets them. */
#ifndef FL_PY_DELIVER_H
#define FL_PY_DELIVER_H

#include "fl_py_array_ring.h"

enum { FL_PY_WAIT_MS = 50 }; /* between two looks at signals */

/* The next batch, or NULL at the end (without exception) or on one. Submits the batch that follows.
 * The interpreter lock, which it lets go while it waits, and the loader's lock are held. */
PyObject *fl_py_deliver_next(fl_py_array_ring *self);

#endif
