/* fl_py_thread_pool: the heap type _core.ThreadPool, threads that share long work with the calling
 * thread. */
#ifndef FL_PY_THREAD_POOL_H
#define FL_PY_THREAD_POOL_H

#include "fl_py.h"

#include "fl_thread_pool.h"

typedef struct fl_py_thread_pool {
    PyObject_HEAD
    fl_thread_pool *pool; /* owned; any thread that holds a reference may run a job on it */
} fl_py_thread_pool;

extern PyType_Spec fl_py_thread_pool_spec;

#endif
