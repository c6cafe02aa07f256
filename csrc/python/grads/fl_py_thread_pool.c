/* fl_py_thread_pool: see fl_py_thread_pool.h. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "fl_py_thread_pool.h"

#include "fl_cpu_mix.h"
#include "fl_py.h"
#include "fl_thread.h"

#include <dlfcn.h>
#include <string.h>

/* Finds the function that runs work on the OpenMP threads of this process. NULL if there is no such
 * function, and in a forked child: the function would wait for the parent's threads. */
static fl_parallel_fn *find_openmp(void)
{
    fl_parallel_fn *lend = NULL;
    if (fl_fork_generation() != 0) return NULL;
    *(void **)&lend = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    return lend;
}

static PyObject *pool_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"threads", "uses_openmp", NULL};
    int threads, uses_openmp = 0;
    fl_err err;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|p:ThreadPool", keywords, &threads,
                                     &uses_openmp))
        return NULL;
    if (threads < 1)
        return PyErr_Format(PyExc_ValueError, "ThreadPool: threads must be at least 1, got %d",
                            threads);
    fl_py_thread_pool *self = (fl_py_thread_pool *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    fl_parallel_fn *lend = uses_openmp ? find_openmp() : NULL;
    if (fl_thread_pool_open(threads, lend, &self->pool, &err) == FL_OK) return (PyObject *)self;
    Py_DECREF(self);
    return fl_py_raise(&err, NULL);
}

static void pool_dealloc(fl_py_thread_pool *self)
{
    fl_thread_pool_close(self->pool); /* no job runs: a job holds a reference */
    fl_py_free(self);
}

PyDoc_STRVAR(mix_rows_doc,
             "mix_rows(rows, share, rest, /)\n--\n\n"
             "Mix each row of a float32 array [rows, columns] with the row before, in place:\n"
             "row[i] = row[i - 1] * rest + row[i] * share. Releases the interpreter lock.");

static PyObject *pool_mix_rows(fl_py_thread_pool *self, PyObject *args)
{
    PyObject *rows;
    fl_mix mix;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "Off:mix_rows", &rows, &mix.share, &mix.rest)) return NULL;
    if (PyObject_GetBuffer(rows, &view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0)
        return NULL;
    bool fits = view.ndim == 2 && view.format != NULL && strcmp(view.format, "f") == 0;
    if (fits && view.len > 0) {
        mix.rows = view.buf, mix.count = view.shape[0], mix.columns = view.shape[1];
        Py_BEGIN_ALLOW_THREADS
        fl_thread_pool_run(self->pool, fl_mix_do, &mix, fl_mix_parts(&mix), 1);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    if (!fits) return PyErr_Format(PyExc_TypeError, "mix_rows: the rows must be float32 [n, k]");
    Py_RETURN_NONE;
}

static PyMethodDef pool_methods[] = {
    {"mix_rows", (PyCFunction)pool_mix_rows, METH_VARARGS, mix_rows_doc}, {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(pool_doc,
             "ThreadPool(threads, uses_openmp=False)\n--\n\n"
             "Threads that share long work with the calling thread, which counts as one of\n"
             "`threads`. With uses_openmp the threads are OpenMP's, which spin after torch's\n"
             "operations. Otherwise, and always in a forked child, the threads are the pool's\n"
             "own, and sleep between jobs. In a child that is forked later the pool runs jobs\n"
             "on the calling thread alone.");

static PyType_Slot pool_slots[] = {{Py_tp_doc, (void *)pool_doc},
                                   {Py_tp_new, pool_new},
                                   {Py_tp_dealloc, pool_dealloc},
                                   {Py_tp_methods, pool_methods},
                                   {0, NULL}};

PyType_Spec fl_py_thread_pool_spec = FL_PY_SPEC("ThreadPool", fl_py_thread_pool, 0, pool_slots);
