/* fl_py_array_loader: the heap type _core.ArrayLoader, the engine of an iterator over array data.
 *
 * Threads may call next() together: a lock lets one in at a time, and whoever waits for it has let
 * go of the interpreter lock. What happens inside is in fl_py_submit.c and fl_py_deliver.c. */
#include "fl_py_array_loader.h"

#include "fl_thread.h"

enum {
    MAX_HELPERS = 7 /* threads that help a loader without workers with large batches */
};

/* A thread that ended with the interpreter keeps the lock it held. */
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
    if (self->owner == me) {
        PyErr_SetString(PyExc_RuntimeError,
                        "the iterator is already in use by this thread (called from its own "
                        "sampler or from a signal handler)");
        return -1;
    }
    PyLockStatus got = PyThread_acquire_lock_timed(self->lock, 0, 0);
    while (got != PY_LOCK_ACQUIRED) {
        Py_BEGIN_ALLOW_THREADS
        got = PyThread_acquire_lock_timed(self->lock, FL_PY_WAIT_MS * 1000, 1);
        Py_END_ALLOW_THREADS
        if (got != PY_LOCK_ACQUIRED && PyErr_CheckSignals() != 0) return -1;
        if (got != PY_LOCK_ACQUIRED && is_finalizing()) {
            PyErr_SetString(PyExc_RuntimeError, "the iterator was in use when Python ended");
            return -1;
        }
    }
    self->owner = me;
    return 0;
}

static void leave(fl_py_array_loader *self)
{
    self->owner = 0;
    PyThread_release_lock(self->lock);
}

void fl_py_array_loader_reset_ring(fl_py_array_loader *self)
{
    Py_BEGIN_ALLOW_THREADS
    if (self->stage != NULL) fl_cuda_transfer_ops.halt(self->stage);
    fl_ring_reset(self->ring);
    Py_END_ALLOW_THREADS
    fl_py_array_destination_forget(self);
}

void fl_py_array_loader_close_ring(fl_py_array_loader *self)
{
    fl_ring *ring = self->ring;
    self->ring = NULL;
    if (ring == NULL) return;
    Py_BEGIN_ALLOW_THREADS
    if (self->stage != NULL) fl_cuda_transfer_ops.halt(self->stage);
    fl_ring_close(ring);
    Py_END_ALLOW_THREADS
    fl_py_array_destination_forget(self);
    if (self->stage != NULL)
        fl_cuda_transfer_ops.close(self->stage); /* halted: nothing to wait for */
    self->stage = NULL;
}

static PyObject *feed_next(fl_py_array_loader *self)
{
    if (enter(self) != 0) return NULL;
    PyObject *result = fl_py_deliver_next(self);
    leave(self);
    return result;
}

static int open_ring(fl_py_array_loader *self, int32_t threads, bool is_in_order)
{
    fl_err err;
    fl_ring_config config = {.fill = fl_table_fill,
                             .transfers = &fl_cuda_transfer_ops,
                             .pool = self->slots->pool,
                             .depth = self->depth,
                             .threads = threads,
                             .runs_ahead = self->runs_ahead,
                             .consumer_fills = self->fills_itself,
                             .lazy_bytes = self->fills_itself ? FL_TABLE_SMALL_BYTES : 0,
                             .is_in_order = is_in_order};
    int status = fl_plan_open(fl_table_length(self->table->table), &self->plan, &err);
    for (Py_ssize_t m = 0; status == FL_OK && m < PyTuple_GET_SIZE(self->maps); m++) {
        fl_tensor view;
        if (fl_py_index_vector(&self->table->door, PyTuple_GET_ITEM(self->maps, m), &view) != 0)
            return -1;
        status =
            fl_plan_map(self->plan, (const int64_t *)(const void *)view.data, view.shape[0], &err);
    }
    if (status == FL_OK) status = fl_ring_open(&config, &self->ring, &err);
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

static PyObject *feed_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"table",     "slots",    "fetch",    "keys",       "maps",
                               "workers",   "prefetch", "in_order", "persistent", "timeout",
                               "new_block", "split",    "budget",   NULL};
    fl_py_state *state = PyType_GetModuleState(type);
    PyObject *table, *slots, *fetch, *keys, *maps, *timeout;
    PyObject *new_block = Py_None, *split = Py_None;
    int workers, in_order, persistent;
    long long prefetch, budget = INT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!OOO!iLppO|OOL:ArrayLoader", keywords,
                                     state->table_type, &table, state->batch_pool_type, &slots,
                                     &fetch, &keys, &PyTuple_Type, &maps, &workers, &prefetch,
                                     &in_order, &persistent, &timeout, &new_block, &split, &budget))
        return NULL;
    bool has_blocks = new_block != Py_None;
    if ((split != Py_None) != has_blocks ||
        (((fl_py_batch_pool *)slots)->device >= 0 && !has_blocks))
        return PyErr_Format(PyExc_ValueError,
                            "slots of a device need new_block and split, which go together");
    if (((fl_py_batch_pool *)slots)->arena != NULL)
        return PyErr_Format(PyExc_ValueError, "slots shared with workers are not for threads");
    double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1.0 && PyErr_Occurred()) return NULL;
    int64_t depth = 1;
    if (workers > 0 && (prefetch < 1 || !fl_mul(workers, prefetch, &depth)))
        return PyErr_Format(PyExc_ValueError, "prefetch must be positive, got %lld", prefetch);
    if (((fl_py_batch_pool *)slots)->fields < ((fl_py_table *)table)->count)
        return PyErr_Format(PyExc_ValueError, "slots have room for fewer fields than the table");
    fl_py_array_loader *self = (fl_py_array_loader *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->table = (fl_py_table *)Py_NewRef(table);
    self->slots = (fl_py_batch_pool *)Py_NewRef(slots);
    self->fetch = Py_NewRef(fetch);
    self->keys = Py_NewRef(keys);
    self->maps = Py_NewRef(maps);
    self->timeout = Py_NewRef(timeout);
    self->new_block = Py_NewRef(new_block);
    self->split = Py_NewRef(split);
    self->is_persistent = persistent;
    self->runs_ahead = workers > 0;
    self->depth = depth;
    self->budget = budget;
    self->fills_itself = !fl_table_is_volatile(self->table->table);
    if (seconds > 0) self->timeout_ns = seconds < 1e9 ? (int64_t)(seconds * 1e9) : INT64_MAX / 2;
    self->generation = fl_fork_generation();
    self->next_mark = FL_PY_TAG_MARK;
    self->marks = PyDict_New();
    self->lock = PyThread_allocate_lock();
    int32_t threads = workers > 0 ? workers : (int32_t)fl_min(fl_cpu_count(), 1 + MAX_HELPERS) - 1;
    if (self->lock == NULL) PyErr_NoMemory();
    if (self->marks == NULL || self->lock == NULL ||
        (has_blocks && fl_py_array_destination_open(self) != 0) ||
        open_ring(self, threads, in_order) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int feed_traverse(fl_py_array_loader *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->table);
    Py_VISIT(self->slots);
    Py_VISIT(self->fetch);
    Py_VISIT(self->keys);
    Py_VISIT(self->maps);
    Py_VISIT(self->timeout);
    Py_VISIT(self->new_block);
    Py_VISIT(self->split);
    for (int64_t number = 0; self->tickets != NULL && number < self->depth; number++)
        Py_VISIT(self->tickets[number].block);
    Py_VISIT(self->batch_sampler);
    Py_VISIT(self->source);
    Py_VISIT(self->block);
    Py_VISIT(self->marks);
    Py_VISIT(self->held);
    Py_VISIT(self->refusal);
    return 0;
}

static void drop_source(fl_py_array_loader *self)
{
    fl_plan_restart(self->plan);
    Py_CLEAR(self->batch_sampler);
    Py_CLEAR(self->source);
    Py_CLEAR(self->block);
    Py_CLEAR(self->held);
    PyDict_Clear(self->marks);
}

static int feed_clear(fl_py_array_loader *self)
{
    fl_py_array_loader_close_ring(self);
    if (self->plan != NULL && self->marks != NULL) drop_source(self);
    Py_CLEAR(self->fetch);
    Py_CLEAR(self->new_block);
    Py_CLEAR(self->split);
    Py_CLEAR(self->refusal);
    return 0;
}

static void feed_dealloc(fl_py_array_loader *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    feed_clear(self);
    fl_plan_close(self->plan);
    if (self->stage != NULL)
        fl_cuda_transfer_ops.close(self->stage); /* of a feed that could not be opened */
    fl_free(self->tickets);
    if (self->lock != NULL) PyThread_free_lock(self->lock);
    Py_XDECREF(self->marks);
    Py_XDECREF(self->timeout);
    Py_XDECREF(self->maps);
    Py_XDECREF(self->keys);
    Py_XDECREF(self->slots);
    Py_XDECREF(self->table);
    type->tp_free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(restart_doc,
             "restart(source, kind, batch_sampler)\n--\n\n"
             "Begin an epoch over `source`, dropping what is left of the last one. With workers,\n"
             "pulls and posts workers * prefetch batches.\n\n"
             "kind: 0 the source yields int64 vectors and (first, count) ranges to be cut into\n"
             "batches as batch_sampler says (its batch_size at the time, unless drop_last), 1 the\n"
             "indices of a batch, 2 single indices.");

static int read_cut(fl_py_array_loader *self)
{
    PyObject *drop_last = PyObject_GetAttrString(self->batch_sampler, "drop_last");
    int is_true = drop_last != NULL ? PyObject_IsTrue(drop_last) : -1;
    Py_XDECREF(drop_last);
    self->drop_last = is_true == 1;
    return is_true < 0 ? -1 : fl_py_read_batch_size(self);
}

static PyObject *feed_restart(fl_py_array_loader *self, PyObject *args)
{
    PyObject *source, *batch_sampler;
    int kind;
    if (!PyArg_ParseTuple(args, "OiO:restart", &source, &kind, &batch_sampler)) return NULL;
    if (enter(self) != 0) return NULL;
    int status = -1;
    if (self->ring == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a finished iterator cannot be restarted");
        goto done;
    }
    fl_py_array_loader_reset_ring(self);
    drop_source(self);
    self->kind = (fl_py_array_loader_kind)kind;
    self->batch_sampler = Py_NewRef(batch_sampler);
    if (kind == FL_PY_BLOCKS && read_cut(self) != 0) goto done;
    self->most_bytes = 0;
    self->source = PyObject_GetIter(source);
    if (self->source == NULL) goto done;
    status = 1;
    while (status > 0 && self->runs_ahead && fl_ring_pending(self->ring) < self->depth)
        status = fl_py_submit_next(self);
done:
    leave(self);
    if (status < 0) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(close_doc,
             "close()\n--\n\n"
             "End threads and forget what is posted. A next() that waits in another thread\n"
             "raises RuntimeError, as does every later one. Batches handed out stay valid.");

static PyObject *feed_close(fl_py_array_loader *self, PyObject *Py_UNUSED(ignored))
{
    if (self->generation != fl_fork_generation()) Py_RETURN_NONE;
    self->is_closed = true;
    if (self->ring != NULL) fl_ring_stop(self->ring);
    /* From a signal handler or sampler inside next(): that call raises, the rest waits for it. */
    if (self->owner == PyThread_get_thread_ident()) Py_RETURN_NONE;
    if (enter(self) != 0) return NULL;
    fl_py_array_loader_close_ring(self);
    drop_source(self);
    leave(self);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(use_doc, "use(table)\n--\n\n"
                      "Read from another table from the next batch on. Only without workers.");

static PyObject *feed_use(fl_py_array_loader *self, PyObject *table)
{
    if (!Py_IS_TYPE(table, Py_TYPE(self->table)) || self->runs_ahead ||
        ((fl_py_table *)table)->count != self->table->count)
        return PyErr_Format(PyExc_ValueError, "use needs a Table of %d fields and no workers",
                            self->table->count);
    if (enter(self) != 0) return NULL;
    if (self->is_closed)
        fl_py_array_loader_close_ring(self); /* nobody reads the old table any more */
    fl_py_table *old = self->table;
    self->table = (fl_py_table *)Py_NewRef(table);
    Py_DECREF(old);
    self->fills_itself = !fl_table_is_volatile(self->table->table);
    leave(self);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(is_own_doc, "is_own()\n--\n\nFalse in a forked child, where a feed is inert.");

static PyObject *feed_is_own(fl_py_array_loader *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(self->generation == fl_fork_generation());
}

static PyMethodDef feed_methods[] = {
    {"is_own", (PyCFunction)feed_is_own, METH_NOARGS, is_own_doc},
    {"use", (PyCFunction)feed_use, METH_O, use_doc},
    {"restart", (PyCFunction)feed_restart, METH_VARARGS, restart_doc},
    {"close", (PyCFunction)feed_close, METH_NOARGS, close_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(
    feed_doc,
    "ArrayLoader(table, slots, fetch, keys, maps, workers, prefetch, in_order, persistent,\n"
    "     timeout, new_block=None, split=None, budget=2**63 - 1)\n--\n\n"
    "Iterator over batches of `table`; begins with restart().\n\n"
    "fetch: called with an item of the source that holds no plain integers.\n"
    "keys: tuple of dict keys, or None for lists. maps: int64 vectors of nested subsets,\n"
    "innermost first. timeout: seconds or 0. budget: bytes that batches may take in pinned\n"
    "memory before they are handed out; one always may.");

static PyType_Slot feed_slots[] = {
    {Py_tp_doc, (void *)feed_doc}, {Py_tp_new, feed_new},         {Py_tp_traverse, feed_traverse},
    {Py_tp_clear, feed_clear},     {Py_tp_dealloc, feed_dealloc}, {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, feed_next},   {Py_tp_methods, feed_methods}, {0, NULL}};

PyType_Spec fl_py_array_loader_spec = {.name = "fastloop._core.ArrayLoader",
                                       .basicsize = sizeof(fl_py_array_loader),
                                       .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                                Py_TPFLAGS_IMMUTABLETYPE,
                                       .slots = feed_slots};
