/* fl_py_fallbacks: why torch's own functions collated something, and how often. */
#ifndef FL_PY_FALLBACKS_H
#define FL_PY_FALLBACKS_H

#include "fl_py.h"
#include "fl_shm_queue.h" /* FL_FALLBACK_REASONS: replies of workers carry the counts */

enum { FL_PY_NOT_PLAIN, FL_PY_MIXED, FL_PY_STRIDED, FL_PY_REGISTRY, FL_PY_MODE };

/* Counts by reason as a new dict; those that are 0 are left out. */
PyObject *fl_py_fallbacks_dict(const int64_t *counts);

#endif
