/* fl_py_index_source: see fl_py_index_source.h. */
#include "fl_py_index_source.h"

#include "fl_py_error.h"
#include "fl_py_indices.h"
#include "fl_py_mixture.h"

static inline const int64_t *indices_of(const fl_tensor *view)
{
    return (const int64_t *)(const void *)view->data;
}

static int find_mixed(void *context, uint32_t epoch, const int64_t *index, int64_t count,
                      int64_t *row, fl_err *err)
{
    return fl_mixed_rows_find(context, epoch, index, count, row, err);
}

/* Adds a map to the plan: a vector of rows, or a mixture. 0, or -1 and an exception. */
static int
add_map(fl_plan *plan, const fl_py_state *state, const fl_py_dlpack *dlpack, PyObject *map)
{
    fl_tensor view;
    fl_err err;
    if (Py_IS_TYPE(map, state->mixture_type)) {
        fl_mixed_rows *mixed = fl_py_mixture_rows(map);
        int64_t length = fl_mixed_rows_length(mixed);
        return fl_py_check(fl_plan_map_by(plan, find_mixed, mixed, length, &err), &err, NULL);
    }
    if (fl_py_index_vector(dlpack, map, &view) != 0) return -1;
    return fl_py_check(fl_plan_map(plan, indices_of(&view), view.shape[0], &err), &err, NULL);
}

int fl_py_index_source_open(fl_py_index_source *self, const fl_py_state *state,
                            const fl_py_dlpack *dlpack, PyObject *maps, int64_t length,
                            bool has_views)
{
    fl_err err;
    self->maps = Py_NewRef(maps);
    self->has_views = has_views;
    if (fl_py_check(fl_plan_open(length, &self->plan, &err), &err, NULL) != 0) return -1;
    for (Py_ssize_t m = 0; m < PyTuple_GET_SIZE(maps); m++)
        if (add_map(self->plan, state, dlpack, PyTuple_GET_ITEM(maps, m)) != 0) return -1;
    return 0;
}

static int read_batch_size(fl_py_index_source *self)
{
    PyObject *size = PyObject_GetAttrString(self->batch_sampler, "batch_size");
    if (size == NULL) return -1;
    long long value = PyLong_AsLongLong(size);
    Py_DECREF(size);
    if (value == -1 && PyErr_Occurred()) return -1;
    self->is_recut = self->is_recut || value != self->batch_size;
    self->batch_size = value;
    return 0;
}

static int read_drop_last(fl_py_index_source *self)
{
    PyObject *drop_last = PyObject_GetAttrString(self->batch_sampler, "drop_last");
    int is_true = drop_last != NULL ? PyObject_IsTrue(drop_last) : -1;
    Py_XDECREF(drop_last);
    self->drop_last = is_true == 1;
    return is_true < 0 ? -1 : 0;
}

/* Reads what blocks are cut by. */
static int read_cut(fl_py_index_source *self)
{
    return read_drop_last(self) == 0 ? read_batch_size(self) : -1;
}

int fl_py_index_source_begin_next(fl_py_index_source *self)
{
    fl_plan_set_epoch(self->plan, (uint32_t)self->next_epoch);
    self->next_epoch = -1;
    return read_cut(self);
}

int fl_py_index_source_restart(fl_py_index_source *self, PyObject *indices, fl_py_index_kind kind,
                               PyObject *batch_sampler, uint32_t epoch)
{
    fl_py_index_source_drop(self);
    fl_plan_set_epoch(self->plan, epoch);
    self->kind = kind;
    self->batch_sampler = Py_NewRef(batch_sampler);
    if (kind == FL_PY_INDEX_BLOCKS && read_cut(self) != 0) return -1;
    self->iterator = PyObject_GetIter(indices);
    return self->iterator != NULL ? 0 : -1;
}

int fl_py_index_source_go_on(fl_py_index_source *self, PyObject *indices)
{
    PyObject *iterator = PyObject_GetIter(indices);
    if (iterator == NULL) return -1;
    Py_XSETREF(self->iterator, iterator);
    return 0;
}

/* Returns the sampler's next item. NULL without an exception: the sampler has ended; NULL and an
 * exception. New reference. */
static PyObject *next_item(fl_py_index_source *self)
{
    return self->iterator != NULL ? PyIter_Next(self->iterator) : NULL;
}

/* Gives the next index block to the plan: 1 done, 0 the epoch has ended, -1 exception. */
static int set_next_block(fl_py_index_source *self, const fl_py_dlpack *dlpack)
{
    if (self->next_epoch >= 0) return 0;
    Py_CLEAR(self->block);
    PyObject *block = next_item(self);
    if (block == NULL) return PyErr_Occurred() ? -1 : 0;
    self->block = block;
    if (PyLong_Check(block)) {
        self->next_epoch = PyLong_AsLongLong(block);
        self->is_recut = false;
        return self->next_epoch < 0 ? -1 : 0;
    }
    if (PyTuple_Check(block)) {
        long long first, count;
        if (!PyArg_ParseTuple(block, "LL", &first, &count)) return -1;
        fl_plan_set_range(self->plan, first, count);
        return 1;
    }
    fl_tensor view;
    if (fl_py_index_vector(dlpack, block, &view) != 0) return -1;
    fl_plan_set_block(self->plan, indices_of(&view), view.shape[0]);
    return 1;
}

static int read_from_blocks(fl_py_index_source *self, const fl_py_dlpack *dlpack, fl_rows *rows)
{
    fl_err err;
    /* torch's BatchSampler also reads batch_size for each batch. */
    if (!self->drop_last && read_batch_size(self) != 0) return -1;
    int has_block = 1;
    while (has_block > 0) {
        int status = fl_plan_fill(self->plan, rows, self->batch_size, &err);
        if (fl_py_check(status, &err, NULL) != 0) return -1;
        if (rows->count >= self->batch_size) break;
        has_block = set_next_block(self, dlpack);
    }
    if (has_block < 0) return -1;
    bool is_whole = rows->count == self->batch_size;
    bool has_rows = rows->count > 0 && (is_whole || !self->drop_last);
    return has_rows ? FL_PY_INDEX_ROWS : FL_PY_INDEX_END;
}

/* Turns the result of adding an item's indices into FL_PY_INDEX_ROWS or FL_PY_INDEX_ITEM; torch
 * fetches a batch without rows. */
static inline int rows_or_item(int added, const fl_rows *rows)
{
    if (added < 0) return -1;
    return added == 1 && rows->count > 0 ? FL_PY_INDEX_ROWS : FL_PY_INDEX_ITEM;
}

static int
add_rows(const fl_py_index_source *self, const fl_py_dlpack *dlpack, PyObject *list, fl_rows *rows)
{
    int added = fl_py_rows_add(dlpack, list, rows);
    return added == 0 && self->has_views ? fl_py_rows_add_views(dlpack, list, rows) : added;
}

static int read_batch(const fl_py_index_source *self, const fl_py_dlpack *dlpack, PyObject **item,
                      fl_rows *rows)
{
    int added = add_rows(self, dlpack, *item, rows);
    if (added == 0 && !PyList_CheckExact(*item) && !PyTuple_CheckExact(*item)) {
        PyObject *list = PySequence_List(*item);
        if (list == NULL) return -1;
        Py_SETREF(*item, list);
        added = add_rows(self, dlpack, list, rows);
    }
    return rows_or_item(added, rows);
}

static int read_single(fl_py_index_kind kind, const fl_py_dlpack *dlpack, PyObject *item,
                       fl_rows *rows, bool *is_single)
{
    int64_t index;
    fl_err err;
    if (PyList_CheckExact(item)) return rows_or_item(fl_py_rows_add(dlpack, item, rows), rows);
    if (kind == FL_PY_INDEX_LISTS) return FL_PY_INDEX_ITEM;
    *is_single = true;
    int added = fl_py_index(dlpack, item, &index);
    if (added == 1 && fl_py_check(fl_rows_add(rows, &index, 1, &err), &err, NULL) != 0) return -1;
    return rows_or_item(added, rows);
}

int fl_py_index_source_read(fl_py_index_source *self, const fl_py_dlpack *dlpack, fl_rows *rows,
                            bool *is_single, PyObject **item)
{
    *is_single = false;
    *item = NULL;
    if (self->kind == FL_PY_INDEX_BLOCKS) return read_from_blocks(self, dlpack, rows);
    *item = next_item(self);
    if (*item == NULL) return PyErr_Occurred() ? -1 : FL_PY_INDEX_END;
    int got = self->kind == FL_PY_INDEX_BATCHES
                  ? read_batch(self, dlpack, item, rows)
                  : read_single(self->kind, dlpack, *item, rows, is_single);
    if (got != FL_PY_INDEX_ITEM) Py_CLEAR(*item);
    return got;
}

static PyObject *or_none(PyObject *object) { return object != NULL ? object : Py_None; }

PyObject *fl_py_index_source_rest(const fl_py_index_source *self)
{
    return Py_BuildValue("(OOLiO)", or_none(self->iterator), or_none(self->block),
                         (long long)fl_plan_remaining(self->plan), (int)self->kind,
                         or_none(self->batch_sampler));
}

void fl_py_index_source_drop(fl_py_index_source *self)
{
    if (self->plan != NULL) fl_plan_restart(self->plan);
    self->next_epoch = -1;
    Py_CLEAR(self->batch_sampler);
    Py_CLEAR(self->iterator);
    Py_CLEAR(self->block);
}

int fl_py_index_source_traverse(fl_py_index_source *self, visitproc visit, void *arg)
{
    Py_VISIT(self->maps);
    Py_VISIT(self->batch_sampler);
    Py_VISIT(self->iterator);
    Py_VISIT(self->block);
    return 0;
}

void fl_py_index_source_close(fl_py_index_source *self)
{
    fl_py_index_source_drop(self);
    fl_plan_close(self->plan);
    self->plan = NULL;
    Py_CLEAR(self->maps);
}
