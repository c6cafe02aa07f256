/* fl_py_submit: the half of the feed that turns what the sampler yields into posted batches.
 *
 * Runs on the consumer's thread with the feed's lock and the interpreter lock held, and runs the
 * user's sampler. What C does not cover (an index that is not an integer,
 * an exception of the sampler) is posted as a mark and met in its place. */
#include "fl_py_array_loader.h"

enum {
    SPARE_SLOTS = 6,               /* so many slots more are kept, for users who hold batches, */
    SPARE_BYTES = 32 * 1024 * 1024 /* up to so much memory */
};

static int raise_status(fl_py_array_loader *self, const fl_err *err)
{
    fl_py_raise(err, (PyObject *)self->table);
    return -1;
}

/* Gives the next block of the source to the plan: 1 done, 0 the source is used up, -1. */
static int feed_block(fl_py_array_loader *self)
{
    Py_CLEAR(self->block);
    PyObject *block = self->source != NULL ? PyIter_Next(self->source) : NULL;
    if (block == NULL) return PyErr_Occurred() ? -1 : 0;
    self->block = block;
    if (PyTuple_Check(block)) {
        long long first, count;
        if (!PyArg_ParseTuple(block, "LL", &first, &count)) return -1;
        fl_plan_feed_range(self->plan, first, count);
        return 1;
    }
    fl_tensor view;
    if (fl_py_index_vector(&self->table->door, block, &view) != 0) return -1;
    fl_plan_feed(self->plan, (const int64_t *)(const void *)view.data, view.shape[0]);
    return 1;
}

int fl_py_read_batch_size(fl_py_array_loader *self)
{
    PyObject *size = PyObject_GetAttrString(self->batch_sampler, "batch_size");
    if (size == NULL) return -1;
    long long value = PyLong_AsLongLong(size);
    Py_DECREF(size);
    if (value == -1 && PyErr_Occurred()) return -1;
    self->batch_size = value;
    return 0;
}

static int rows_from_blocks(fl_py_array_loader *self, fl_rows *rows)
{
    fl_err err;
    /* As torch's BatchSampler does. */
    if (!self->drop_last && fl_py_read_batch_size(self) != 0) return -1;
    int fed = 1;
    while (fed > 0) {
        if (fl_plan_fill(self->plan, rows, self->batch_size, &err) != FL_OK)
            return raise_status(self, &err);
        if (rows->count >= self->batch_size) break;
        fed = feed_block(self);
    }
    if (fed < 0) return -1;
    bool is_whole = rows->count == self->batch_size;
    return rows->count > 0 && (is_whole || !self->drop_last);
}

/* 1 rows are in `rows`; 2 *item is for `fetch`. Both -1 and 0 as below. */
static int rows_from_batch(fl_py_array_loader *self, PyObject **item, fl_rows *rows)
{
    int done = fl_py_rows_add(&self->table->door, *item, rows);
    if (done == 0 && !PyList_CheckExact(*item) && !PyTuple_CheckExact(*item)) {
        PyObject *list = PySequence_List(*item);
        if (list == NULL) return -1;
        Py_SETREF(*item, list);
        done = fl_py_rows_add(&self->table->door, list, rows);
    }
    if (done < 0) return -1;
    return done == 1 && rows->count > 0 ? 1 : 2;
}

static int rows_from_single(fl_py_array_loader *self, PyObject *item, fl_rows *rows, int64_t *tag)
{
    int64_t index;
    int done = 0;
    if (PyList_CheckExact(item)) {
        done = fl_py_rows_add(&self->table->door, item, rows);
    } else {
        fl_err err;
        *tag = FL_PY_TAG_SINGLE;
        done = fl_py_index(&self->table->door, item, &index);
        if (done == 1 && fl_rows_add(rows, &index, 1, &err) != FL_OK)
            return raise_status(self, &err);
    }
    if (done < 0) return -1;
    return done == 1 && rows->count > 0 ? 1 : 2;
}

/* Reads the indices of one batch: 1 they are in `rows`; 2 *item, a new reference, is to be
 * fetched by torch's own code; 0 the source is used up; -1 exception. */
static int read_rows(fl_py_array_loader *self, fl_rows *rows, int64_t *tag, PyObject **item)
{
    if (self->kind == FL_PY_BLOCKS) return rows_from_blocks(self, rows);
    *item = self->source != NULL ? PyIter_Next(self->source) : NULL;
    if (*item == NULL) return PyErr_Occurred() ? -1 : 0;
    int done = self->kind == FL_PY_BATCHES ? rows_from_batch(self, item, rows)
                                           : rows_from_single(self, *item, rows, tag);
    if (done != 2) Py_CLEAR(*item);
    return done;
}

/* Posts a mark for `what`, taking the reference. */
static int post_object(fl_py_array_loader *self, PyObject *what)
{
    int64_t tag = self->next_mark;
    self->next_mark += FL_PY_TAGS;
    PyObject *key = PyLong_FromLongLong(tag);
    int status = key != NULL && what != NULL ? PyDict_SetItem(self->marks, key, what) : -1;
    Py_XDECREF(key);
    Py_XDECREF(what);
    if (status != 0) return -1;
    fl_ring_submit_sentinel(self->ring, FL_OK, NULL, tag);
    return 1;
}

/* An exception of the sampler waits for its turn; one that is not an Exception, such as
 * KeyboardInterrupt, does not. */
static int post_exception(fl_py_array_loader *self)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return post_object(self, value);
}

/* Posts a batch of resolved rows. On failure nothing is posted and the batch stays prepared. */
static int post_resolved(fl_py_array_loader *self, fl_batch *batch, fl_err *err)
{
    const fl_table *table = self->table->table;
    FL_TRY(fl_table_bytes(table, batch->rows.count, &batch->bytes, err));
    batch->source = table;
    batch->parts = fl_table_parts(table, batch->rows.count);
    self->most_bytes = fl_max(self->most_bytes, batch->bytes);
    int64_t spare = fl_min(SPARE_SLOTS, SPARE_BYTES / (self->most_bytes + 1));
    fl_pool_reserve(self->slots->pool, self->depth + (self->runs_ahead ? 2 : 1) + spare);
    if (self->tickets == NULL) return fl_ring_submit(self->ring, err);
    int64_t kind = batch->tag;
    FL_TRY(fl_py_array_destination_post(self, batch, err));
    int status = fl_ring_submit(self->ring, err);
    if (status == FL_OK) return FL_OK;
    fl_py_array_destination_drop(self, batch->tag);
    batch->tag = kind;
    batch->data = NULL;
    batch->transfer = NULL;
    return status;
}

/* Where there is no room for a batch now there may be once others have gone. */
static inline bool may_come_later(const fl_py_array_loader *self, int status)
{
    return self->tickets != NULL && (status == FL_ENOMEM || status == FL_EDEVICE);
}

static int post_batch(fl_py_array_loader *self, fl_batch *batch)
{
    fl_err err;
    bool is_resolved = batch == self->unposted;
    int status = is_resolved ? FL_OK : fl_plan_resolve(self->plan, &batch->rows, &err);
    if (status == FL_OK) status = post_resolved(self, batch, &err);
    self->unposted = NULL;
    if (may_come_later(self, status)) {
        self->unposted = batch;
        self->unposted_err = err;
    } else if (status != FL_OK) {
        fl_ring_submit_sentinel(self->ring, status, &err, FL_PY_TAG_MARK);
    }
    if (PyErr_Occurred()) return -1; /* an interrupt: see fl_py_array_destination_post */
    return self->unposted == NULL;
}

/* What does not run ahead reads the data as it is now, after the sampler has run. */
static int look_at_data(fl_py_array_loader *self)
{
    if (fl_py_table_refresh(self->table) != 0) return -1;
    fl_plan_set_length(self->plan, fl_table_length(self->table->table));
    return 0;
}

int fl_py_submit_next(fl_py_array_loader *self)
{
    if (self->unposted != NULL) return post_batch(self, self->unposted);
    fl_batch *batch = fl_ring_prepare(self->ring);
    if (batch == NULL) { /* the sampler has forked, and this is the child */
        PyErr_SetString(PyExc_RuntimeError, "this iterator belongs to the parent process");
        return -1;
    }
    PyObject *item = NULL;
    batch->tag = FL_PY_TAG_BATCH;
    int got = read_rows(self, &batch->rows, &batch->tag, &item);
    if (got == 2) {
        PyObject *what = PyTuple_Pack(1, item);
        Py_DECREF(item);
        return post_object(self, what);
    }
    if (got < 0) return post_exception(self);
    if (got == 0) return 0;
    if (!self->runs_ahead && look_at_data(self) != 0) return -1;
    return post_batch(self, batch);
}
