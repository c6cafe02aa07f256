/* fl_py_submit: see fl_py_submit.h. If the sampler raises, or yields an index that is not an
 * integer or is out of bounds, a sentinel takes the place of the batch, and next() raises when the
 * sentinel's turn comes. */
#include "fl_py_submit.h"

#include "fl_py_error.h"
#include "fl_py_put.h"

enum {
    SPARE_SLOTS = 6, /* the pool keeps this many extra slots, for users who hold batches */
    SPARE_BYTES = 32 * 1024 * 1024 /* most bytes of the extra slots */
};

/* Submits a sentinel for `what`, and takes the reference: 1, or -1 and an exception. */
static int submit_object(fl_py_array_ring *self, PyObject *what)
{
    int64_t tag = self->next_sentinel++;
    PyObject *key = PyLong_FromLongLong(tag);
    int status = key != NULL && what != NULL ? PyDict_SetItem(self->sentinels, key, what) : -1;
    Py_XDECREF(key);
    Py_XDECREF(what);
    if (status != 0) return -1;
    fl_ring_submit_sentinel(self->ring, FL_OK, NULL, tag);
    return 1;
}

/* Takes the exception that is set. New reference. */
static PyObject *take_exception(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

/* Submits a sentinel for an exception of the sampler, which is raised after the batches before it.
 * If the exception is not an Exception, for example KeyboardInterrupt, the function raises it at
 * once. */
static int submit_exception(fl_py_array_ring *self)
{
    return PyErr_ExceptionMatches(PyExc_Exception) ? submit_object(self, take_exception()) : -1;
}

/* Rebuilds one index of the sampler: an integer, or a tuple (index, view). New reference. */
static PyObject *make_index(const fl_rows *rows, int64_t position)
{
    long long index = fl_row_at(rows, position);
    int view = rows->has_views ? rows->view[position] : 0;
    return view == 0 ? PyLong_FromLongLong(index) : Py_BuildValue("(Li)", index, view);
}

/* Rebuilds the sampler's item for a batch with unresolved indices. New reference. */
static PyObject *make_item(const fl_batch *batch)
{
    const fl_rows *rows = &batch->rows;
    if (batch->tag == FL_PY_TAG_SINGLE) return make_index(rows, 0);
    PyObject *list = PyList_New(rows->count);
    for (int64_t i = 0; list != NULL && i < rows->count; i++)
        fl_py_put(&list, i, make_index(rows, i));
    return list;
}

/* Submits a sentinel for a batch with an index out of bounds. The dataset raises the error when the
 * sentinel's turn comes, because the text depends on how the dataset is nested. */
static int submit_outside(fl_py_array_ring *self, const fl_batch *batch, const fl_err *err)
{
    PyObject *item = make_item(batch);
    if (item == NULL) return -1;
    fl_py_raise(err, &self->table->fields);
    return submit_object(self, Py_BuildValue("(NN)", item, take_exception()));
}

/* Submits a batch with a destination. On failure the batch stays prepared and unchanged. */
static int submit_to_destination(fl_py_array_ring *self, fl_batch *batch, fl_err *err)
{
    fl_py_array_destination *destination = &self->destination;
    FL_TRY(fl_py_array_destination_prepare(destination, self->ring, batch, err));
    int status = fl_ring_submit(self->ring, err);
    if (status == FL_OK) return FL_OK;
    fl_py_array_destination_cancel(destination, batch);
    batch->data = NULL;
    batch->transfer = NULL;
    return status;
}

/* Submits a batch of resolved rows. On failure the batch stays prepared. */
static int submit_resolved(fl_py_array_ring *self, fl_batch *batch, fl_err *err)
{
    const fl_table *table = self->table->table;
    FL_TRY(fl_table_layout(table, &batch->rows, self->epoch, &batch->layout, err));
    batch->source = table;
    batch->gate = &self->table->gate;
    batch->bytes = batch->layout.bytes;
    batch->parts = batch->layout.parts;
    batch->work_bytes = batch->layout.work_bytes;
    batch->epoch = self->epoch;
    self->most_bytes = fl_max(self->most_bytes, batch->bytes);
    self->most_work_bytes = fl_max(self->most_work_bytes, batch->work_bytes);
    int64_t spare = fl_min(SPARE_SLOTS, SPARE_BYTES / (self->most_bytes + 1));
    fl_pool_reserve(self->pool->pool, self->depth + (self->runs_ahead ? 2 : 1) + spare);
    if (fl_py_array_destination_is_open(&self->destination))
        return submit_to_destination(self, batch, err);
    return fl_ring_submit(self->ring, err);
}

/* Returns true if a failed batch may succeed later: memory may be free once earlier batches are
 * delivered. */
static inline bool may_succeed_later(const fl_py_array_ring *self, int status)
{
    return fl_py_array_destination_is_open(&self->destination) &&
           (status == FL_ENOMEM || status == FL_EDEVICE);
}

static int submit_batch(fl_py_array_ring *self, fl_batch *batch)
{
    fl_err err;
    bool is_resolved = batch == self->deferred;
    int status = is_resolved ? FL_OK : fl_plan_resolve(self->indices.plan, &batch->rows, &err);
    if (status == FL_OK) status = submit_resolved(self, batch, &err);
    self->deferred = NULL;
    if (status == FL_EINDEX && self->fetch != Py_None) return submit_outside(self, batch, &err);
    if (may_succeed_later(self, status)) {
        self->deferred = batch;
        self->deferred_err = err;
    } else if (status != FL_OK) {
        fl_ring_submit_sentinel(self->ring, status, &err, FL_PY_TAG_SENTINEL);
    }
    /* An interrupt may have come, see fl_py_array_destination_prepare. */
    if (PyErr_Occurred()) return -1;
    return self->deferred == NULL;
}

/* A loader that does not run ahead reads the data now, after the sampler has run. */
static int refresh_table(fl_py_array_ring *self)
{
    if (fl_py_table_refresh(self->table) != 0) return -1;
    fl_plan_set_length(self->indices.plan, fl_table_length(self->table->table));
    return 0;
}

/* Submits the end of an epoch, if the source has the next epoch as well: 1; 0 the source has no
 * more indices; -1 and an exception. */
static int submit_end(fl_py_array_ring *self)
{
    if (self->indices.next_epoch < 0) return 0;
    fl_py_array_ring_submit_end(self);
    return fl_py_index_source_begin_next(&self->indices) == 0 ? 1 : -1;
}

int fl_py_submit_next(fl_py_array_ring *self)
{
    if (self->deferred != NULL) return submit_batch(self, self->deferred);
    fl_batch *batch = fl_ring_prepare(self->ring);
    if (batch == NULL) { /* the sampler has forked, and this process is the child */
        PyErr_SetString(
            PyExc_RuntimeError,
            "this iterator belongs to the parent process; call iter() on the loader in the child");
        return -1;
    }
    bool is_single;
    PyObject *item;
    int got = fl_py_index_source_read(&self->indices, &self->table->dlpack, &batch->rows,
                                      &is_single, &item);
    if (got < 0) {
        self->has_raised = true;
        return submit_exception(self);
    }
    if (got == FL_PY_INDEX_END) return submit_end(self);
    if (got == FL_PY_INDEX_ITEM) {
        PyObject *what = PyTuple_Pack(1, item);
        Py_DECREF(item);
        return submit_object(self, what);
    }
    batch->tag = is_single ? FL_PY_TAG_SINGLE : FL_PY_TAG_BATCH;
    if (!self->runs_ahead && refresh_table(self) != 0) return -1;
    return submit_batch(self, batch);
}
