/* fl_py_deliver: the half of the feed that takes batches from the ring and hands them out.
 *
 * Runs on the consumer's thread with the feed's lock held, and without the interpreter lock
 * wherever there is something to wait for. */
#include "fl_py_array_loader.h"

#include "fl_thread.h"

/* fl_ring_receive without the interpreter lock, looking for signals every FL_PY_WAIT_MS and for the
 * user's timeout. */
static int take_waiting(fl_py_array_loader *self, fl_batch *batch, fl_err *err)
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
        if (PyErr_CheckSignals() != 0) return FL_PY_RAISED;
        left_ns = until_ns - fl_now_ns();
    }
    PyErr_Format(PyExc_RuntimeError, "DataLoader timed out after %S seconds", self->timeout);
    return FL_PY_RAISED;
}

/* Takes the next batch, counting the time the caller spends on it. One that is ready, or so small
 * that copying it costs no more than giving the interpreter lock away, is taken with the lock; to
 * a device also the first use of its slot costs. */
static int take(fl_py_array_loader *self, fl_batch *batch, fl_err *err)
{
    if (self->is_late) {
        *batch = self->late;
        return FL_OK;
    }
    bool is_ready = self->runs_ahead && fl_ring_is_ready(self->ring);
    bool is_small = self->most_bytes < FL_TABLE_SMALL_BYTES && self->fills_itself;
    is_small = is_small && self->stage == NULL;
    int64_t begin_ns = is_ready ? 0 : fl_now_ns();
    int status = FL_ETIMEOUT;
    if (is_ready || is_small) status = fl_ring_receive(self->ring, 0, batch, err);
    if (status == FL_ETIMEOUT) status = take_waiting(self, batch, err);
    if (!is_ready && status != FL_EEND) {
        self->slots->waits++;
        self->slots->wait_ns += fl_now_ns() - begin_ns;
    }
    return status;
}

static PyObject *redeem_mark(fl_py_array_loader *self, int64_t tag)
{
    PyObject *result = NULL, *key = PyLong_FromLongLong(tag);
    if (key == NULL) return NULL;
    PyObject *what = PyDict_GetItemWithError(self->marks, key);
    Py_XINCREF(what);
    if (what != NULL && PyDict_DelItem(self->marks, key) == 0) {
        if (PyTuple_CheckExact(what))
            result = PyObject_CallOneArg(self->fetch, PyTuple_GET_ITEM(what, 0));
        else
            PyErr_SetObject((PyObject *)Py_TYPE(what), what);
    }
    Py_XDECREF(what);
    Py_DECREF(key);
    return result;
}

static PyObject *deliver_on_cpu(fl_py_array_loader *self, const fl_batch *batch)
{
    if (!fl_table_is_volatile(self->table->table) ||
        fl_py_table_check_files(self->table, &batch->rows) == 0)
        return fl_py_batch(self->table, self->keys, batch, batch->tag == FL_PY_TAG_SINGLE);
    fl_slot_return(batch->slot);
    return NULL;
}

static PyObject *deliver(fl_py_array_loader *self, const fl_batch *batch)
{
    fl_py_batch_pool *slots = self->slots;
    if (batch->tag % FL_PY_TAGS == FL_PY_TAG_MARK) {
        PyObject *fetched = redeem_mark(self, batch->tag);
        slots->batches += fetched != NULL;
        return fetched;
    }
    PyObject *result = self->tickets != NULL ? fl_py_array_destination_deliver(self, batch)
                                             : deliver_on_cpu(self, batch);
    if (result == NULL) return NULL;
    slots->batches++;
    slots->samples += batch->rows.count;
    slots->bytes += batch->bytes;
    return result;
}

/* Nothing is left: a feed that will not be restarted lets its threads go. */
static void finish(fl_py_array_loader *self)
{
    if (self->runs_ahead && !self->is_persistent) fl_py_array_loader_close_ring(self);
}

/* Posts the batch that follows the one just taken, as torch does before it returns or raises, and
 * has the next ones uploaded. On an interrupt the one just taken is kept for the next call. */
static int refill(fl_py_array_loader *self, PyObject *result)
{
    if (!self->runs_ahead) return 0;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (fl_py_submit_next(self) >= 0 && fl_py_array_destination_ahead(self) == 0) {
        PyErr_Restore(type, value, traceback);
        return 0;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    self->held = result;
    return -1;
}

/* close() was called, perhaps from inside the call that notices. */
static PyObject *raise_closed(fl_py_array_loader *self)
{
    fl_py_array_loader_close_ring(self);
    PyErr_SetString(PyExc_RuntimeError,
                    "the loader of this iterator was closed; call iter() on it again");
    return NULL;
}

/* Posts what is to be posted before the next batch is taken; -1 exception. */
static int prepare(fl_py_array_loader *self)
{
    if (self->is_late || (self->runs_ahead && self->unposted == NULL)) return 0;
    if (fl_py_submit_next(self) < 0) {
        if (!self->runs_ahead) fl_py_array_loader_reset_ring(self);
        return -1;
    }
    if (self->unposted == NULL || fl_ring_pending(self->ring) > 0) return 0;
    PyObject *refusal = self->refusal;
    self->refusal = NULL;
    if (refusal != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(refusal), refusal);
    else
        fl_py_raise(&self->unposted_err, (PyObject *)self->table);
    Py_XDECREF(refusal);
    return -1;
}

PyObject *fl_py_deliver_next(fl_py_array_loader *self)
{
    PyObject *result = self->held;
    self->held = NULL;
    if (result != NULL) return result;
    if (self->is_closed) return raise_closed(self);
    if (self->ring == NULL) return NULL;
    if (prepare(self) != 0) return NULL;
    fl_batch batch = {.tag = FL_PY_TAG_MARK};
    fl_err err = {0};
    int status = take(self, &batch, &err);
    if (status == FL_PY_RAISED) {
        /* What is not ahead is gone, as in torch: the data may move before the next call. */
        if (!self->runs_ahead) fl_py_array_loader_reset_ring(self);
        return NULL;
    }
    if (status == FL_EEND) {
        finish(self);
        return NULL;
    }
    if (status == FL_ECLOSED) return raise_closed(self);
    if (status == FL_OK) {
        result = deliver(self, &batch);
        if (self->is_late) return NULL;
    } else {
        fl_py_array_destination_drop(self, batch.tag);
        fl_py_raise(&err, (PyObject *)self->table);
    }
    return refill(self, result) == 0 ? result : NULL;
}
