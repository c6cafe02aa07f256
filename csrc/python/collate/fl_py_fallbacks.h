/* fl_py_fallbacks: counts how often torch's own functions collated values, by reason. */
#ifndef FL_PY_FALLBACKS_H
#define FL_PY_FALLBACKS_H

#include "fl_py.h"
#include "fl_shm_queue.h" /* FL_FALLBACK_REASONS: replies of workers carry the counts */

enum { FL_PY_NOT_PLAIN, FL_PY_MIXED, FL_PY_STRIDED, FL_PY_REGISTRY, FL_PY_MODE };

/* Returns the counts by reason as a new dict, without the counts that are 0. */
PyObject *fl_py_fallbacks_dict(const int64_t *counts);

#endif
