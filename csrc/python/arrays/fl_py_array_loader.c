/* fl_py_array_loader: see fl_py_array_loader.h. Threads may call next() together: a lock lets in
 * one thread at a time, and a thread that waits for the lock has released the interpreter lock. */
#include "fl_py_array_loader.h"

#include "fl_py.h"
#include "fl_cpus.h"
#include "fl_py_deliver.h"
#include "fl_py_structure.h"
#include "fl_py_submit.h"

enum { MAX_HELPERS = 7 }; /* threads that help a loader without workers to fill large batches */

typedef struct fl_py_array_loader {
    PyObject_HEAD
    uint32_t generation;     /* of the process that made the loader; set by new, then read-only */
    PyThread_type_lock lock; /* owned: held during next, restart and close */
    atomic_ulong owner;      /* SHARED(owner): the thread that holds the lock, 0: none. The holder
                                writes; any thread may read whether it is the holder itself */
    bool is_torn;        /* lock: the process forked inside next(), and this process is the child */
    atomic_ulong owners; /* SHARED(owners): the iterators that have handed the loader over. Written
                            with the lock; a call of next() also reads it before */
    fl_py_array_ring ring; /* lock */
} fl_py_array_loader;

/* Returns true while Python ends. A thread that ended with the interpreter keeps its lock, so
 * waiting for the lock would never end. */
static bool is_finalizing(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

static int enter(fl_py_array_loader *self)
{
    if (self->generation != fl_fork_generation()) {
        PyErr_SetString(PyExc_RuntimeError,
                        "this iterator belongs to the parent process; call iter() on the loader "
                        "in the child");
        return -1;
    }
    unsigned long me = PyThread_get_thread_ident();
    if (self->owner == me)
        return FL_PY_FAIL(PyExc_RuntimeError,
                          "the iterator is already in use by this thread (called from its own "
                          "sampler or from a signal handler)");
    PyLockStatus got = PyThread_acquire_lock_timed(self->lock, 0, 0);
    while (got != PY_LOCK_ACQUIRED) {
        Py_BEGIN_ALLOW_THREADS
        got = PyThread_acquire_lock_timed(self->lock, FL_PY_WAIT_MS * 1000, 1);
        Py_END_ALLOW_THREADS
        if (got != PY_LOCK_ACQUIRED && PyErr_CheckSignals() != 0) return -1;
        if (got != PY_LOCK_ACQUIRED && is_finalizing())
            return FL_PY_FAIL(PyExc_RuntimeError, "the iterator was in use when Python ended");
    }
    self->owner = me;
    return 0;
}

static void leave(fl_py_array_loader *self)
{
    self->is_torn = self->is_torn || self->generation != fl_fork_generation();
    self->owner = 0;
    PyThread_release_lock(self->lock);
}

static PyObject *loader_next(fl_py_array_loader *self)
{
    unsigned long owners = self->owners;
    if (enter(self) != 0) return NULL;
    /* The iterator whose call has waited here has no more batches. */
    bool is_late = owners != self->owners;
    PyObject *result = is_late ? NULL : fl_py_deliver_next(&self->ring);
    fl_py_array_ring_wake(&self->ring);
    leave(self);
    return result;
}

/* The configuration as Python gives it; objects are borrowed. */
typedef struct loader_config {
    PyObject *structure, *maps, *fetch, *wrap, *timeout, *destination;
    int workers, in_order, persistent;
    long long prefetch, budget;
} loader_config;

/* Reads the configuration from a tuple. 0, or -1 and an exception. */
static int read_config(PyObject *tuple, loader_config *out)
{
    return PyArg_ParseTuple(tuple, "OO!OOiLppOOL:ArrayLoader", &out->structure, &PyTuple_Type,
                            &out->maps, &out->fetch, &out->wrap, &out->workers, &out->prefetch,
                            &out->in_order, &out->persistent, &out->timeout, &out->destination,
                            &out->budget)
               ? 0
               : -1;
}

/* Checks that table, pool and configuration go together: 0, or -1 and ValueError. */
static int
check_parts(const fl_py_table *table, const fl_py_batch_pool *pool, const loader_config *config)
{
    int32_t outputs = fl_table_outputs(table->table);
    const char *text = NULL;
    if (pool->device >= 0 && config->destination == Py_None)
        text = "a pool for a device must come with a destination";
    else if (table->share != FL_PY_HOST_ALL && pool->device < 0)
        text = "a table for a device must come with a pool for the device";
    else if (pool->arena != NULL)
        text = "a pool for threads must not be shared with workers";
    else if (pool->fields < outputs)
        text = "a pool must have room for every tensor that the table makes";
    else
        return fl_py_structure_check(config->structure, outputs);
    return FL_PY_FAIL(PyExc_ValueError, "%s", text);
}

/* Sets how far the ring runs ahead, and how long next() waits: 0, or -1 and an exception. */
static int set_times(fl_py_array_ring *ring, const loader_config *config)
{
    double seconds = PyFloat_AsDouble(config->timeout);
    if (seconds == -1.0 && PyErr_Occurred()) return -1;
    if (seconds > 0) ring->timeout_ns = seconds < 1e9 ? (int64_t)(seconds * 1e9) : INT64_MAX / 2;
    ring->runs_ahead = config->workers > 0;
    ring->depth = 1;
    if (!ring->runs_ahead ||
        (config->prefetch >= 1 && fl_mul(config->workers, config->prefetch, &ring->depth)))
        return 0;
    return FL_PY_FAIL(PyExc_ValueError, "prefetch must be at least 1, got %lld", config->prefetch);
}

/* Opens the destination, the indices and the ring with its threads. 0, or -1 and an exception. */
static int open_ring(fl_py_array_ring *ring, const loader_config *config)
{
    const fl_py_table *table = ring->table;
    int32_t helpers = (int32_t)fl_min(fl_cpu_count(), 1 + MAX_HELPERS) - 1;
    if (config->destination != Py_None) {
        ring->destination.base.copy_stream = atomic_exchange(&ring->pool->copies, NULL);
        if (fl_py_array_destination_open(&ring->destination, config->destination, table,
                                         ring->pool->device, ring->depth, config->budget) != 0)
            return -1;
    }
    int64_t length = fl_table_length(table->table);
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE(table));
    if (fl_py_index_source_open(&ring->indices, state, &table->dlpack, config->maps, length,
                                table->has_views) != 0)
        return -1;
    return fl_py_array_ring_open(ring, config->workers > 0 ? config->workers : helpers,
                                 config->in_order);
}

static PyObject *loader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"table", "pool", "config", NULL};
    fl_py_state *state = PyType_GetModuleState(type);
    PyObject *table, *pool, *tuple;
    loader_config config;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!:ArrayLoader", keywords,
                                     state->table_type, &table, state->batch_pool_type, &pool,
                                     &PyTuple_Type, &tuple) ||
        read_config(tuple, &config) != 0 ||
        check_parts((fl_py_table *)table, (fl_py_batch_pool *)pool, &config) != 0)
        return NULL;
    fl_py_array_loader *self = (fl_py_array_loader *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->generation = fl_fork_generation();
    self->lock = PyThread_allocate_lock();
    fl_py_array_ring *ring = &self->ring;
    ring->table = (fl_py_table *)Py_NewRef(table);
    ring->pool = (fl_py_batch_pool *)Py_NewRef(pool);
    ring->fetch = Py_NewRef(config.fetch);
    ring->structure = Py_NewRef(config.structure);
    ring->timeout = Py_NewRef(config.timeout);
    ring->wrap = Py_NewRef(config.wrap);
    ring->is_persistent = config.persistent;
    ring->reads_files = fl_table_is_volatile(ring->table->table);
    ring->next_sentinel = FL_PY_TAG_SENTINEL + 1;
    ring->sentinels = PyDict_New();
    if (self->lock == NULL) PyErr_NoMemory();
    if (ring->sentinels != NULL && self->lock != NULL && set_times(ring, &config) == 0 &&
        open_ring(ring, &config) == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int loader_traverse(fl_py_array_loader *self, visitproc visit, void *arg)
{
    fl_py_array_ring *ring = &self->ring;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(ring->table);
    Py_VISIT(ring->pool);
    Py_VISIT(ring->fetch);
    Py_VISIT(ring->structure);
    Py_VISIT(ring->timeout);
    Py_VISIT(ring->wrap);
    Py_VISIT(ring->sentinels);
    Py_VISIT(ring->pending_result);
    int status = fl_py_index_source_traverse(&ring->indices, visit, arg);
    return status != 0 ? status : fl_py_array_destination_traverse(&ring->destination, visit, arg);
}

static int loader_clear(fl_py_array_loader *self)
{
    fl_py_array_ring_close(&self->ring);
    fl_py_array_ring_drop_epoch(&self->ring);
    Py_CLEAR(self->ring.fetch);
    return 0;
}

static void loader_dealloc(fl_py_array_loader *self)
{
    PyObject_GC_UnTrack(self);
    loader_clear(self);
    fl_py_array_ring *ring = &self->ring;
    fl_py_index_source_close(&ring->indices);
    fl_py_array_ring_free(ring);
    if (self->lock != NULL) PyThread_free_lock(self->lock);
    Py_XDECREF(ring->sentinels);
    Py_XDECREF(ring->timeout);
    Py_XDECREF(ring->wrap);
    Py_XDECREF(ring->structure);
    Py_XDECREF(ring->pool);
    Py_XDECREF(ring->table);
    fl_py_free(self);
}

/* Submits the batches that threads make before the first next(): 0, or -1 and an exception. */
static int submit_first(fl_py_array_ring *ring)
{
    int status = 1;
    while (status > 0 && ring->runs_ahead && fl_ring_pending(ring->ring) < ring->depth)
        status = fl_py_submit_next(ring);
    fl_py_array_ring_wake(ring);
    return status < 0 ? -1 : 0;
}

PyDoc_STRVAR(restart_doc,
             "restart(source, kind, batch_sampler, epoch=0)\n--\n\n"
             "Begin an epoch over the iterable `source`, and drop the rest of the previous\n"
             "epoch. If the loader has threads, submits workers * prefetch batches.\n\n"
             "kind: 0 if the source yields int64 vectors and (first, count) ranges, which the\n"
             "loader cuts into batches of batch_sampler.batch_size indices (if drop_last is\n"
             "False, the loader reads batch_size again for each batch), and into epochs at each\n"
             "int: the blocks after the int are of the epoch with this number, and their batches\n"
             "are read ahead for enter_next(); 1 if the source yields\n"
             "the indices of one batch; 2 if the source yields single indices or lists of\n"
             "indices; 3 as 2, but an item that is not a list goes to `fetch`. epoch: the\n"
             "epoch for the table's image plans and for mixtures.");

static PyObject *loader_restart(fl_py_array_loader *self, PyObject *args)
{
    PyObject *source, *batch_sampler;
    int kind;
    long long epoch = 0;
    if (!PyArg_ParseTuple(args, "OiO|L:restart", &source, &kind, &batch_sampler, &epoch))
        return NULL;
    if (epoch < 0 || epoch > UINT32_MAX)
        return PyErr_Format(PyExc_ValueError, "epoch must be in [0, %lld], got %lld",
                            (long long)UINT32_MAX, epoch);
    if (enter(self) != 0) return NULL;
    fl_py_array_ring *ring = &self->ring;
    int status = -1;
    if (ring->ring == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a finished iterator cannot be restarted");
        goto done;
    }
    fl_py_array_ring_reset(ring);
    fl_py_array_ring_drop_epoch(ring);
    ring->most_bytes = ring->most_work_bytes = 0;
    ring->epoch = (uint32_t)epoch;
    if (fl_py_index_source_restart(&ring->indices, source, (fl_py_index_kind)kind, batch_sampler,
                                   ring->epoch) != 0)
        goto done;
    status = submit_first(ring);
done:
    leave(self);
    if (status < 0) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(enter_next_doc,
             "enter_next(source)\n--\n\n"
             "Enter the next epoch with the batches that were read ahead; the blocks that follow\n"
             "the blocks read so far come from the iterable `source`. Returns False, and does\n"
             "nothing, if no batch was read ahead, if the present epoch has batches that next()\n"
             "has not returned, or if batch_size has changed meanwhile.");

static PyObject *loader_enter_next(fl_py_array_loader *self, PyObject *source)
{
    if (enter(self) != 0) return NULL;
    fl_py_array_ring *ring = &self->ring;
    bool is_ahead = ring->ring != NULL && fl_py_array_ring_enter(ring);
    int status = 0;
    if (is_ahead) status = fl_py_index_source_go_on(&ring->indices, source);
    if (is_ahead && status == 0) status = submit_first(ring);
    leave(self);
    return status == 0 ? PyBool_FromLong(is_ahead) : NULL;
}

PyDoc_STRVAR(hand_over_doc,
             "hand_over()\n--\n\n"
             "Return True if next() has returned all batches of the epoch: a different iterator\n"
             "may then begin the next epoch, and calls of next() that wait end. Return False if\n"
             "there are more batches, in a forked child, and while any thread is in a call. Never\n"
             "waits.");

static PyObject *loader_hand_over(fl_py_array_loader *self, PyObject *Py_UNUSED(ignored))
{
    bool is_at_end = false;
    if (self->generation == fl_fork_generation() &&
        PyThread_acquire_lock(self->lock, NOWAIT_LOCK) == PY_LOCK_ACQUIRED) {
        is_at_end = fl_py_array_ring_is_at_end(&self->ring);
        self->owners += is_at_end;
        PyThread_release_lock(self->lock);
    }
    return PyBool_FromLong(is_at_end);
}

PyDoc_STRVAR(close_doc,
             "close()\n--\n\n"
             "End the threads and drop the submitted batches. If next() waits in a different\n"
             "thread, that call raises RuntimeError, like every later call. Returned batches\n"
             "stay valid.");

static PyObject *loader_close(fl_py_array_loader *self, PyObject *Py_UNUSED(ignored))
{
    if (self->generation != fl_fork_generation()) Py_RETURN_NONE;
    fl_py_array_ring *ring = &self->ring;
    fl_py_array_ring_stop(ring);
    /* If a signal handler or the sampler calls close() inside next(), next() itself closes the ring
     * and raises. */
    if (self->owner == PyThread_get_thread_ident()) Py_RETURN_NONE;
    if (enter(self) != 0) return NULL;
    fl_py_array_ring_close(ring);
    fl_py_array_ring_drop_epoch(ring);
    leave(self);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(is_own_doc, "is_own()\n--\n\n"
                         "Return False in a forked child: there the loader does nothing.");

static PyObject *loader_is_own(fl_py_array_loader *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(self->generation == fl_fork_generation());
}

PyDoc_STRVAR(rest_doc,
             "rest()\n--\n\n"
             "Return the unread part of the epoch as (iterator, block, left, kind,\n"
             "batch_sampler). The last `left` indices of `block` come first, then the\n"
             "iterator's items. A forked child continues the epoch with this tuple. Only for a\n"
             "loader without threads.\n\n"
             "Raises RuntimeError in the process that made the loader, and if a thread was in\n"
             "next() during the fork.");

static PyObject *loader_rest(fl_py_array_loader *self, PyObject *Py_UNUSED(ignored))
{
    if (self->generation == fl_fork_generation()) {
        PyErr_SetString(PyExc_RuntimeError,
                        "rest() is for an iterator in a forked child, not in the process that "
                        "made it");
        return NULL;
    }
    if (self->ring.runs_ahead || self->owner != 0 || self->is_torn) {
        PyErr_SetString(PyExc_RuntimeError, "this iterator was in use when the process forked");
        return NULL;
    }
    return fl_py_index_source_rest(&self->ring.indices);
}

static PyMethodDef loader_methods[] = {
    {"rest", (PyCFunction)loader_rest, METH_NOARGS, rest_doc},
    {"is_own", (PyCFunction)loader_is_own, METH_NOARGS, is_own_doc},
    {"restart", (PyCFunction)loader_restart, METH_VARARGS, restart_doc},
    {"enter_next", (PyCFunction)loader_enter_next, METH_O, enter_next_doc},
    {"hand_over", (PyCFunction)loader_hand_over, METH_NOARGS, hand_over_doc},
    {"close", (PyCFunction)loader_close, METH_NOARGS, close_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(loader_doc,
             "ArrayLoader(table, pool, config)\n--\n\n"
             "An iterator over the batches of `table`. Iteration begins after restart().\n"
             "next() waits for a batch without the interpreter lock.\n\n"
             "config: an ArrayConfig of fastloop/loader/arrays, or a tuple with the same\n"
             "items.");

static PyType_Slot loader_slots[] = {{Py_tp_doc, (void *)loader_doc},
                                     {Py_tp_new, loader_new},
                                     {Py_tp_traverse, loader_traverse},
                                     {Py_tp_clear, loader_clear},
                                     {Py_tp_dealloc, loader_dealloc},
                                     {Py_tp_iter, PyObject_SelfIter},
                                     {Py_tp_iternext, loader_next},
                                     {Py_tp_methods, loader_methods},
                                     {0, NULL}};

PyType_Spec fl_py_array_loader_spec =
    FL_PY_SPEC("ArrayLoader", fl_py_array_loader, Py_TPFLAGS_HAVE_GC, loader_slots);
