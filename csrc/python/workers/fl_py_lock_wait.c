/* fl_py_lock_wait: see fl_py_lock_wait.h. Worker threads call this function between two batches. */
#include "fl_py_lock_wait.h"

#include "fl_thread.h"

#include <time.h>

const char fl_py_lock_wait_doc[] =
    PyDoc_STR("lock_wait()\n--\n\n"
              "Give up the interpreter lock for about 50 us, so that a waiting thread can run.\n"
              "Returns the nanoseconds until this thread has the lock again.");

PyObject *fl_py_lock_wait(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyThreadState *saved = PyEval_SaveThread();
    /* A thread that gives up the lock and takes the lock back at once wins against the waiting
     * thread, so this thread sleeps. The kernel adds some 50 us to the shortest sleep. */
    nanosleep(&(struct timespec){.tv_nsec = 1}, NULL);
    int64_t ready_ns = fl_now_ns();
    PyEval_RestoreThread(saved);
    return PyLong_FromLongLong(fl_now_ns() - ready_ns);
}
