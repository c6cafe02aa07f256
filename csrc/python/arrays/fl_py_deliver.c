/* fl_py_deliver: see fl_py_deliver.h. Runs on the consumer's thread; waits without the interpreter
 * lock. */
#include "fl_py_deliver.h"

#include "fl_py_batch.h"
#include "fl_py_structure.h"
#include "fl_py_submit.h"
#include "fl_thread.h"

enum { RAISED = 1 }; /* a status: a Python exception is set */

/* Calls fl_ring_receive without the interpreter lock; looks for signals every FL_PY_WAIT_MS, and
 * ends after the user's timeout. */
static int receive_waiting(fl_py_array_ring *self, fl_batch *batch, fl_err *err)
{
    int64_t until_ns = self->timeout_ns > 0 ? fl_now_ns() + self->timeout_ns : INT64_MAX;
    int64_t left_ns = until_ns - fl_now_ns();
    while (left_ns > 0) {
        int64_t wait_ms = fl_min(FL_PY_WAIT_MS, left_ns / 1000000 + 1);
        int status;
        Py_BEGIN_ALLOW_THREADS
        status = fl_ring_receive(self->ring, wait_ms, batch, err);
        Py_END_ALLOW_THREADS
        if (status != FL_ETIMEOUT) return status;
        if (PyErr_CheckSignals() != 0) return RAISED;
        left_ns = until_ns - fl_now_ns();
    }
    PyErr_Format(PyExc_RuntimeError, "DataLoader timed out after %S seconds", self->timeout);
    return RAISED;
}

/* Receives the next batch, and counts the time for it. If the batch is ready, or so small that
 * filling it costs no more than releasing the interpreter lock, the function keeps the lock. For a
 * device a small batch gets no such treatment, because the first use of a slot costs more. */
static int receive(fl_py_array_ring *self, fl_batch *batch, fl_err *err)
{
    if (self->is_undelivered) {
        *batch = self->undelivered;
        return FL_OK;
    }
    bool is_ready = self->runs_ahead && fl_ring_is_ready(self->ring);
    bool is_small = self->most_work_bytes < FL_LAYOUT_SMALL_BYTES && !self->reads_files;
#ifdef Py_GIL_DISABLED
    is_small = false; /* SHARED(gate): the gate may close at any time, and nobody waits for the gate
                         here */
#endif
    is_small = is_small && !fl_gate_is_closed(&self->table->gate);
    is_small = is_small && self->destination.base.copy_stream == NULL;
    int64_t begin_ns = is_ready ? 0 : fl_now_ns();
    int status = FL_ETIMEOUT;
    if (is_ready || is_small) status = fl_ring_receive(self->ring, 0, batch, err);
    if (status == FL_ETIMEOUT) status = receive_waiting(self, batch, err);
    if (!is_ready && status != FL_EEND) {
        self->pool->waits++;
        self->pool->wait_ns += fl_now_ns() - begin_ns;
    }
    return status;
}

/* Lets the dataset raise its own error for an item with an index out of bounds; `error`, which
 * names index, position and length, becomes the context of that error. If the dataset raises
 * nothing, raises `error`. */
static void raise_outside(fl_py_array_ring *self, PyObject *item, PyObject *error)
{
    PyObject *fetched = PyObject_CallOneArg(self->fetch, item);
    if (fetched != NULL) {
        Py_DECREF(fetched);
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *context = PyException_GetContext(value);
    if (context == NULL) PyException_SetContext(value, Py_NewRef(error));
    Py_XDECREF(context);
    PyErr_Restore(type, value, traceback);
}

/* Resolves a sentinel: fetches its item, or raises its exception. */
static PyObject *resolve_sentinel(fl_py_array_ring *self, int64_t tag)
{
    PyObject *result = NULL, *key = PyLong_FromLongLong(tag);
    if (key == NULL) return NULL;
    PyObject *what = PyDict_GetItemWithError(self->sentinels, key);
    Py_XINCREF(what);
    if (what != NULL && PyDict_DelItem(self->sentinels, key) == 0) {
        if (!PyTuple_CheckExact(what))
            PyErr_SetObject((PyObject *)Py_TYPE(what), what);
        else if (PyTuple_GET_SIZE(what) == 1)
            result = PyObject_CallOneArg(self->fetch, PyTuple_GET_ITEM(what, 0));
        else
            raise_outside(self, PyTuple_GET_ITEM(what, 0), PyTuple_GET_ITEM(what, 1));
    }
    Py_XDECREF(what);
    Py_DECREF(key);
    return result;
}

static PyObject *deliver_slot(fl_py_array_ring *self, const fl_batch *batch)
{
    if (!fl_table_is_volatile(self->table->table) ||
        fl_py_table_check_files(self->table, &batch->rows) == 0)
        return fl_py_batch(self->table, batch, batch->tag == FL_PY_TAG_SINGLE);
    fl_slot_return(batch->slot);
    return NULL;
}

static PyObject *deliver(fl_py_array_ring *self, const fl_batch *batch)
{
    fl_py_batch_pool *pool = self->pool;
    if (batch->tag >= FL_PY_TAG_SENTINEL) {
        PyObject *fetched = resolve_sentinel(self, batch->tag);
        pool->batches += fetched != NULL;
        return fetched;
    }
    PyObject *result;
    if (fl_py_array_destination_is_open(&self->destination))
        result =
            fl_py_array_destination_deliver(&self->destination, self->table, batch,
                                            batch->tag == FL_PY_TAG_SINGLE, &self->is_undelivered);
    else
        result = deliver_slot(self, batch);
    if (self->is_undelivered) self->undelivered = *batch;
    if (result == NULL) return NULL;
    pool->batches++;
    pool->samples += batch->rows.count;
    pool->bytes += batch->bytes;
    result = fl_py_structure_around(self->structure, result);
    if (result == NULL || self->wrap == Py_None) return result;
    PyObject *wrapped = PyObject_CallOneArg(self->wrap, result);
    Py_DECREF(result);
    return wrapped;
}

/* Ends the threads after the last batch, unless the loader will be restarted. */
static void finish(fl_py_array_ring *self)
{
    if (self->runs_ahead && !self->is_persistent) fl_py_array_ring_close(self);
}

/* Submits the batch that follows the received batch, as torch does before it returns or raises, and
 * starts copies of the next batches to their destination. On an interrupt the function takes
 * `result`, and keeps it for the next call: 0, or -1 and an exception. */
static int refill(fl_py_array_ring *self, PyObject *result)
{
    if (!self->runs_ahead) return 0;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (fl_py_submit_next(self) >= 0 &&
        fl_py_array_destination_run_ahead(&self->destination, self->ring) == 0) {
        PyErr_Restore(type, value, traceback);
        return 0;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    self->pending_result = result;
    return -1;
}

/* Raises RuntimeError because close() was called, perhaps from inside the present call. */
static PyObject *raise_closed(fl_py_array_ring *self)
{
    fl_py_array_ring_close(self);
    PyErr_SetString(PyExc_RuntimeError,
                    "the loader of this iterator was closed; call iter() on it again");
    return NULL;
}

/* Submits the batches that are due before the next batch is received: 0, or -1 and an exception. */
static int prepare(fl_py_array_ring *self)
{
    if (self->is_undelivered || (self->runs_ahead && self->deferred == NULL)) return 0;
    if (fl_py_submit_next(self) < 0) {
        if (!self->runs_ahead) fl_py_array_ring_reset(self);
        return -1;
    }
    if (self->deferred == NULL || fl_ring_pending(self->ring) > 0) return 0;
    PyObject *alloc_error = self->destination.alloc_error;
    self->destination.alloc_error = NULL;
    if (alloc_error != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(alloc_error), alloc_error);
    else
        fl_py_raise(&self->deferred_err, &self->table->fields);
    Py_XDECREF(alloc_error);
    return -1;
}

PyObject *fl_py_deliver_next(fl_py_array_ring *self)
{
    PyObject *result = self->pending_result;
    self->pending_result = NULL;
    if (result != NULL) return result;
    if (self->is_closed) return raise_closed(self);
    if (self->ring == NULL || self->is_over) return NULL;
    if (prepare(self) != 0) return NULL;
    fl_batch batch = {.tag = FL_PY_TAG_SENTINEL};
    fl_err err = {0};
    int status = receive(self, &batch, &err);
    if (status == RAISED) {
        /* Without workers the batch is dropped, as in torch: the data may move before the next
         * call. */
        if (!self->runs_ahead) fl_py_array_ring_reset(self);
        return NULL;
    }
    if (status == FL_EEND) {
        finish(self);
        return NULL;
    }
    if (status == FL_ECLOSED) return raise_closed(self);
    if (status == FL_OK && batch.tag == FL_PY_TAG_END) {
        self->is_over = true;
        (void)refill(self, NULL); /* an interrupt is raised in place of StopIteration */
        return NULL;
    }
    if (status == FL_OK) {
        result = deliver(self, &batch);
        if (self->is_undelivered) return NULL;
    } else {
        fl_py_array_destination_cancel(&self->destination, &batch);
        fl_slot_return(batch.slot);
        fl_py_raise(&err, &self->table->fields);
    }
    return refill(self, result) == 0 ? result : NULL;
}
