/* fl_py_array_destination: see fl_py_array_destination.h. */
#include "fl_py_array_destination.h"

#include "fl_copier.h"
#include "fl_cuda_transfer.h"

int fl_py_array_destination_open(fl_py_array_destination *self, PyObject *allocate, PyObject *split,
                                 int32_t device, int64_t depth, int64_t budget)
{
    fl_err err;
    int64_t bytes;
    int status = FL_OK;
    self->allocate = Py_NewRef(allocate);
    self->split = Py_NewRef(split);
    self->device = device;
    self->depth = depth;
    self->budget = budget;
    if (fl_mul(depth, sizeof *self->slots, &bytes)) self->slots = fl_alloc(bytes);
    if (self->slots == NULL) status = fl_fail(&err, FL_ENOMEM, "out of memory for uploads");
    if (status == FL_OK && device >= 0)
        status = fl_cuda_transfer_ops.open(device, &self->copy_stream, &err);
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

/* The upload slot of a batch; NULL: it has none. */
static fl_py_upload_slot *slot_of(const fl_py_array_destination *self, const fl_batch *batch)
{
    for (int64_t i = 0; self->slots != NULL && i < self->depth; i++) {
        fl_py_upload_slot *slot = &self->slots[i];
        bool is_its =
            self->device >= 0 ? slot->transfer == batch->transfer : slot->data == batch->data;
        if (slot->is_used && is_its) return slot;
    }
    return NULL;
}

static int set_device_buffer(const fl_py_array_destination *self, const fl_py_table *table,
                             fl_py_upload_slot *slot, PyObject *buffer, int64_t bytes)
{
    fl_err err;
    void *data = fl_py_buffer_address(&table->dlpack, buffer, self->device, bytes);
    if (data == NULL || fl_py_stream(&table->dlpack, self->device, &slot->stream) != 0) return -1;
    int status =
        fl_cuda_transfer_ops.set_buffer(slot->transfer, data, slot->stream, &slot->is_filled, &err);
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

static int
set_host_buffer(const fl_py_table *table, fl_py_upload_slot *slot, PyObject *buffer, int64_t bytes)
{
    slot->data = fl_py_buffer_address(&table->dlpack, buffer, FL_PY_CPU, bytes);
    return slot->data != NULL ? 0 : -1;
}

/* Allocates the buffer and sets it as the transfer's; -1 exception, and there is no buffer. */
static int
make_buffer(const fl_py_array_destination *self, const fl_py_table *table, fl_py_upload_slot *slot)
{
    int64_t bytes = fl_max(slot->bytes, 1); /* so that it has an address */
    PyObject *buffer = PyObject_CallFunction(self->allocate, "L", (long long)bytes);
    if (buffer == NULL) return -1;
    int status = slot->transfer != NULL ? set_device_buffer(self, table, slot, buffer, bytes)
                                        : set_host_buffer(table, slot, buffer, bytes);
    if (status == 0)
        slot->buffer = buffer;
    else
        Py_DECREF(buffer);
    return status;
}

/* Moves the current exception to alloc_error: it is raised once nothing is left to deliver before
 * the batch. */
static void keep_alloc_error(fl_py_array_destination *self)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    Py_XSETREF(self->alloc_error, value);
}

/* Makes the buffer of a batch before it is to be delivered: 1 done; 0 it failed and is tried again
 * at delivery; -1 an interrupt has come. */
static int
try_buffer(fl_py_array_destination *self, const fl_py_table *table, fl_py_upload_slot *slot)
{
    if (make_buffer(self, table, slot) == 0) return 1;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    if (self->copy_stream == NULL) keep_alloc_error(self);
    PyErr_Clear();
    return 0;
}

/* Whether another batch may take memory before it is delivered. One always may. */
static bool
is_within_budget(const fl_py_array_destination *self, const fl_ring *ring, int64_t bytes)
{
    int64_t left = self->budget;
    if (fl_ring_pending(ring) == 0) return true;
    if (self->copy_stream != NULL) left -= fl_cuda_transfer_ops.collect(self->copy_stream);
    for (int64_t i = 0; i < self->depth; i++) left -= self->slots[i].bytes;
    return bytes <= left;
}

int fl_py_array_destination_prepare(fl_py_array_destination *self, const fl_ring *ring,
                                    const fl_py_table *table, fl_batch *batch, fl_err *err)
{
    fl_py_upload_slot *slot = self->slots;
    while (slot->is_used) slot++; /* fewer than `depth` batches are submitted, so one is free */
    if (!is_within_budget(self, ring, batch->bytes))
        return fl_fail(err, FL_ENOMEM, "a batch of %lld bytes waits for memory_budget=%lld",
                       (long long)batch->bytes, (long long)self->budget);
    if (self->copy_stream != NULL)
        FL_TRY(fl_cuda_transfer_ops.get(self->copy_stream, batch->parts, &slot->transfer, err));
    slot->bytes = batch->bytes;
    bool is_next = fl_ring_pending(ring) == 0;
    bool is_made = (is_next || self->copy_stream == NULL) && try_buffer(self, table, slot) == 1;
    if (is_made) Py_CLEAR(self->alloc_error);
    if (!is_made && self->copy_stream == NULL) {
        *slot = (fl_py_upload_slot){0};
        return fl_fail(err, FL_ENOMEM, "no pinned memory for a batch of %lld bytes",
                       (long long)batch->bytes);
    }
    slot->is_used = true;
    batch->data = slot->data;
    batch->transfer = slot->transfer;
    return FL_OK;
}

/* Starts the copy of the submitted batch at this position, which was filled before it had its
 * buffer: here if that takes no time, else on a thread of the ring. */
static void start_copy(fl_ring *ring, int64_t position, const fl_batch *batch)
{
    if (!fl_slot_is_pinned(batch->slot, batch->bytes))
        fl_ring_add_part(ring, position);
    else /* what fails is tried again at delivery */
        (void)fl_cuda_transfer_ops.start(batch->transfer, batch->slot, batch->bytes, NULL);
}

int fl_py_array_destination_run_ahead(fl_py_array_destination *self, fl_ring *ring,
                                      const fl_py_table *table, int64_t most_bytes)
{
    const fl_batch *batch;
    int32_t ahead = fl_copy_ahead(most_bytes);
    for (int32_t position = 0; self->copy_stream != NULL && position < ahead; position++) {
        if ((batch = fl_ring_submitted(ring, position)) == NULL) break;
        if (batch->transfer == NULL) continue;
        fl_py_upload_slot *slot = slot_of(self, batch);
        if (slot->buffer != NULL) continue;
        int made = try_buffer(self, table, slot);
        if (made != 1) return made;
        if (slot->is_filled) start_copy(ring, position, batch);
    }
    return 0;
}

static void cancel_slot(fl_py_upload_slot *slot)
{
    PyObject *buffer = slot->buffer;
    if (slot->transfer != NULL) fl_cuda_transfer_ops.cancel(slot->transfer);
    *slot = (fl_py_upload_slot){0};
    Py_XDECREF(buffer);
}

void fl_py_array_destination_cancel(fl_py_array_destination *self, const fl_batch *batch)
{
    fl_py_upload_slot *slot = slot_of(self, batch);
    if (slot != NULL) cancel_slot(slot);
}

void fl_py_array_destination_cancel_all(fl_py_array_destination *self)
{
    Py_CLEAR(self->alloc_error);
    for (int64_t i = 0; self->slots != NULL && i < self->depth; i++) cancel_slot(&self->slots[i]);
}

/* Where the fields begin in the buffer. New reference. */
static PyObject *list_offsets(const fl_py_table *table, int64_t rows)
{
    int64_t offset = 0;
    PyObject *offsets = PyTuple_New(table->count);
    for (int32_t f = 0; offsets != NULL && f < table->count; f++) {
        PyObject *number = PyLong_FromLongLong(offset);
        if (number == NULL) {
            Py_DECREF(offsets);
            return NULL;
        }
        PyTuple_SET_ITEM(offsets, f, number);
        offset += fl_table_field_bytes(table->table, f, rows);
    }
    return offsets;
}

/* The list of fields as a dict. Takes the list. New reference. */
static PyObject *name_fields(PyObject *fields, PyObject *keys, int32_t count)
{
    PyObject *named = NULL;
    if (!PyList_CheckExact(fields) || PyList_GET_SIZE(fields) != count)
        PyErr_SetString(PyExc_TypeError, "split must return a list of one tensor a field");
    else
        named = PyDict_New();
    for (int32_t f = 0; named != NULL && f < count; f++)
        if (PyDict_SetItem(named, PyTuple_GET_ITEM(keys, f), PyList_GET_ITEM(fields, f)) != 0)
            Py_CLEAR(named);
    Py_DECREF(fields);
    return named;
}

/* What `split` makes of the buffer. New reference. */
static PyObject *split_buffer(const fl_py_array_destination *self, const fl_py_table *table,
                              PyObject *buffer, int64_t rows, bool is_single, bool is_other_stream)
{
    PyObject *offsets = list_offsets(table, rows);
    PyObject *lead = is_single ? PyTuple_New(0) : Py_BuildValue("(L)", (long long)rows);
    PyObject *fields = NULL;
    if (offsets != NULL && lead != NULL)
        fields = PyObject_CallFunctionObjArgs(self->split, buffer, offsets, lead,
                                              is_other_stream ? Py_True : Py_False, NULL);
    Py_XDECREF(lead);
    Py_XDECREF(offsets);
    return fields;
}

/* Starts a copy that was not started ahead. To pin the slot may take long. */
static int start_now(void *transfer, const fl_batch *batch)
{
    fl_err err;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = fl_cuda_transfer_ops.start(transfer, batch->slot, batch->bytes, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

/* Makes the current stream, which becomes *stream, wait for the copy; the batch's slot is then the
 * copy stream's. */
static int finish_transfer(const fl_py_array_destination *self, const fl_py_table *table,
                           const fl_batch *batch, void **stream)
{
    fl_err err;
    fl_py_upload_slot *slot = slot_of(self, batch);
    void *transfer = slot->transfer;
    if (slot->buffer == NULL && make_buffer(self, table, slot) != 0) return -1;
    if (!fl_cuda_transfer_ops.is_started(transfer) && start_now(transfer, batch) != 0) return -1;
    if (fl_py_stream(&table->dlpack, self->device, stream) != 0) return -1;
    int status = fl_cuda_transfer_ops.finish(transfer, batch->slot, batch->bytes, *stream, &err);
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

PyObject *
fl_py_array_destination_deliver(fl_py_array_destination *self, fl_py_table *table, PyObject *keys,
                                const fl_batch *batch, bool is_single, bool *is_undelivered)
{
    void *stream = NULL;
    *is_undelivered =
        self->copy_stream != NULL && finish_transfer(self, table, batch, &stream) != 0;
    if (*is_undelivered) return NULL;
    fl_py_upload_slot *slot = slot_of(self, batch);
    PyObject *buffer = slot->buffer;
    bool is_other_stream = stream != slot->stream;
    *slot = (fl_py_upload_slot){0};
    /* First, because it lets the allocator know of the stream that waits for the copy. */
    PyObject *result =
        split_buffer(self, table, buffer, batch->rows.count, is_single, is_other_stream);
    if (result != NULL && keys != Py_None) result = name_fields(result, keys, table->count);
    if (result != NULL && fl_table_is_volatile(table->table) &&
        fl_py_table_check_files(table, &batch->rows) != 0)
        Py_CLEAR(result);
    Py_DECREF(buffer);
    return result;
}

int fl_py_array_destination_traverse(fl_py_array_destination *self, visitproc visit, void *arg)
{
    Py_VISIT(self->allocate);
    Py_VISIT(self->split);
    Py_VISIT(self->alloc_error);
    for (int64_t i = 0; self->slots != NULL && i < self->depth; i++)
        Py_VISIT(self->slots[i].buffer);
    return 0;
}

void fl_py_array_destination_close(fl_py_array_destination *self)
{
    fl_py_array_destination_cancel_all(self);
    if (self->copy_stream != NULL) fl_cuda_transfer_ops.close(self->copy_stream);
    self->copy_stream = NULL;
    fl_free(self->slots);
    self->slots = NULL;
    Py_CLEAR(self->allocate);
    Py_CLEAR(self->split);
}
