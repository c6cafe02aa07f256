/* fl_py_thread_pool: the heap type _core.ThreadPool, threads that passes over gradients share. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "fl_py.h"

#include "fl_thread.h"

#include <dlfcn.h>

/* The function with which the OpenMP of this process lends its threads; NULL if there is none, and
 * in a forked child, where it would wait for the parent's. */
static fl_parallel_fn *find_openmp(void)
{
    fl_parallel_fn *lend = NULL;
    if (fl_fork_generation() != 0) return NULL;
    *(void **)&lend = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    return lend;
}

static PyObject *team_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"threads", "uses_openmp", NULL};
    int threads, uses_openmp = 0;
    fl_err err;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|p:ThreadPool", keywords, &threads,
                                     &uses_openmp))
        return NULL;
    if (threads < 1)
        return PyErr_Format(PyExc_ValueError, "ThreadPool needs at least 1 thread, got %d",
                            threads);
    fl_py_thread_pool *self = (fl_py_thread_pool *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    fl_parallel_fn *lend = uses_openmp ? find_openmp() : NULL;
    if (fl_thread_pool_open(threads, lend, &self->team, &err) == FL_OK) return (PyObject *)self;
    Py_DECREF(self);
    return fl_py_raise(&err, NULL);
}

static void team_dealloc(fl_py_thread_pool *self)
{
    PyTypeObject *type = Py_TYPE(self);
    fl_thread_pool_close(self->team); /* whoever runs a job holds a reference */
    type->tp_free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(team_doc,
             "ThreadPool(threads, uses_openmp=False)\n--\n\n"
             "Threads, the caller's among them, that share passes over gradients: those of\n"
             "OpenMP, which torch's operations leave spinning, or ones that sleep in between (in\n"
             "a forked child always). Inert in children forked later.");

static PyType_Slot team_slots[] = {
    {Py_tp_doc, (void *)team_doc}, {Py_tp_new, team_new}, {Py_tp_dealloc, team_dealloc}, {0, NULL}};

PyType_Spec fl_py_thread_pool_spec = {.name = "fastloop._core.ThreadPool",
                                      .basicsize = sizeof(fl_py_thread_pool),
                                      .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                                      .slots = team_slots};
