/* fl_py_array_destination: see fl_py_array_destination.h. */
#include "fl_py_array_destination.h"

#include "fl_py_tensor_slot.h"

int fl_py_array_destination_open(fl_py_array_destination *self, PyObject *object,
                                 const fl_py_table *table, int32_t device, int64_t depth,
                                 int64_t budget)
{
    int64_t bytes, casts;
    self->depth = depth;
    self->outputs = fl_table_outputs(table->table);
    self->budget = budget;
    if (fl_py_destination_open(&self->base, object, &table->dlpack, device, device >= 0) != 0)
        return -1;
    if (fl_mul(depth, self->outputs, &casts) && fl_mul(casts, sizeof *self->casts, &bytes))
        self->casts = fl_alloc(bytes);
    if (self->casts != NULL && fl_mul(depth, sizeof *self->slots, &bytes))
        self->slots = fl_alloc(bytes);
    if (self->slots != NULL) return 0;
    return FL_PY_FAIL(PyExc_MemoryError, "out of memory for uploads");
}

static inline bool has_copies(const fl_py_array_destination *self)
{
    return self->base.copy_stream != NULL;
}

/* Returns the upload slot of a batch; NULL: the batch has none. */
static fl_py_upload_slot *slot_of(const fl_py_array_destination *self, const fl_batch *batch)
{
    for (int64_t i = 0; self->slots != NULL && i < self->depth; i++) {
        fl_py_upload_slot *slot = &self->slots[i];
        if (!slot->is_used || slot->transfer != batch->transfer) continue;
        if (slot->transfer != NULL || slot->buffer.target == batch->data) return slot;
    }
    return NULL;
}

/* Makes the buffer of a slot: 0; -1 exception, and no buffer was made. */
static int make_buffer(const fl_py_array_destination *self, fl_py_upload_slot *slot)
{
    return fl_py_destination_allocate(&self->base, slot->transfer, slot->buffer_bytes,
                                      &slot->buffer, &slot->is_filled);
}

/* Moves the current exception to alloc_error. The exception is raised once every earlier batch has
 * been delivered. */
static void keep_alloc_error(fl_py_array_destination *self)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    Py_XSETREF(self->alloc_error, value);
}

/* Makes the buffer of a batch before the batch's delivery: 1 done; 0 the buffer could not be made,
 * and the delivery tries again; -1 an interrupt has come. */
static int try_buffer(fl_py_array_destination *self, fl_py_upload_slot *slot)
{
    if (make_buffer(self, slot) == 0) return 1;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    if (!has_copies(self)) keep_alloc_error(self);
    PyErr_Clear();
    return 0;
}

/* Returns true if one more batch may take memory before its delivery. If nothing is submitted, a
 * batch always may. */
static bool
is_within_budget(const fl_py_array_destination *self, const fl_ring *ring, int64_t bytes)
{
    if (fl_ring_pending(ring) == 0) return true;
    int64_t left = self->budget - fl_py_destination_count_reading(&self->base);
    for (int64_t i = 0; i < self->depth; i++) left -= self->slots[i].bytes;
    return bytes <= left;
}

static fl_transfer_cast *
casts_of(const fl_py_array_destination *self, const fl_py_upload_slot *slot)
{
    return self->casts + (slot - self->slots) * self->outputs;
}

/* Gives the slot a transfer with the slices and casts of the batch's layout. */
static int get_transfer(fl_py_array_destination *self, const fl_batch *batch,
                        fl_py_upload_slot *slot, fl_err *err)
{
    const fl_transfer_ops *ops = self->base.ops;
    const fl_layout *layout = &batch->layout;
    fl_transfer_cast *casts = casts_of(self, slot);
    int32_t count = 0;
    FL_TRY(ops->get(self->base.copy_stream, batch->parts, &slot->transfer, err));
    for (int32_t i = 0; i < layout->count; i++)
        if (layout->outputs[i].is_cast) casts[count++] = layout->outputs[i].cast;
    if (count > 0) ops->set_casts(slot->transfer, casts, count);
    fl_transfer_slices slices;
    fl_layout_slice(layout, batch->rows.count, &slices);
    if (ops->set_slices != NULL) ops->set_slices(slot->transfer, &slices);
    return FL_OK;
}

int fl_py_array_destination_prepare(fl_py_array_destination *self, const fl_ring *ring,
                                    fl_batch *batch, fl_err *err)
{
    fl_py_upload_slot *slot = self->slots;
    /* Fewer than `depth` batches are submitted, so one slot is free. */
    while (slot->is_used) slot++;
    if (!is_within_budget(self, ring, batch->bytes))
        return fl_fail(err, FL_ENOMEM, "a batch of %lld bytes waits for memory_budget=%lld",
                       (long long)batch->bytes, (long long)self->budget);
    slot->buffer_bytes = batch->layout.delivered_bytes;
    if (has_copies(self)) FL_TRY(get_transfer(self, batch, slot, err));
    slot->bytes = batch->bytes;
    self->most_bytes = fl_max(self->most_bytes, slot->buffer_bytes);
    bool is_next = fl_ring_pending(ring) == 0;
    bool is_made = (is_next || !has_copies(self)) && try_buffer(self, slot) == 1;
    if (is_made) Py_CLEAR(self->alloc_error);
    if (!is_made && !has_copies(self)) {
        *slot = (fl_py_upload_slot){0};
        return fl_fail(err, FL_ENOMEM, "no pinned memory for a batch of %lld bytes",
                       (long long)batch->bytes);
    }
    slot->is_used = true;
    batch->transfer = slot->transfer;
    if (!has_copies(self)) batch->data = slot->buffer.target;
    return FL_OK;
}

/* Starts the copy of the submitted batch at this position; the batch was filled before it had its
 * buffer. If the slot is pinned, starting takes no time and happens here; otherwise a thread of the
 * ring starts the copy. */
static void start_copy(const fl_py_array_destination *self, fl_ring *ring, int64_t position,
                       const fl_batch *batch)
{
    if (!fl_slot_is_pinned(batch->slot, batch->bytes))
        fl_ring_add_part(ring, position);
    else /* the delivery tries again after a failure */
        (void)self->base.ops->start(batch->transfer, batch->slot, batch->bytes, NULL);
}

int fl_py_array_destination_run_ahead(fl_py_array_destination *self, fl_ring *ring)
{
    const fl_batch *batch;
    int32_t ahead = fl_copy_ahead(self->most_bytes);
    for (int32_t position = 0; has_copies(self) && position < ahead; position++) {
        if ((batch = fl_ring_submitted(ring, position)) == NULL) break;
        if (batch->transfer == NULL) continue;
        fl_py_upload_slot *slot = slot_of(self, batch);
        if (slot->buffer.owner != NULL) continue;
        int made = try_buffer(self, slot);
        if (made != 1) return made;
        if (slot->is_filled) start_copy(self, ring, position, batch);
    }
    return 0;
}

static void cancel_slot(const fl_py_array_destination *self, fl_py_upload_slot *slot)
{
    PyObject *owner = slot->buffer.owner;
    if (slot->transfer != NULL) {
        Py_BEGIN_ALLOW_THREADS
        self->base.ops->cancel(slot->transfer);
        Py_END_ALLOW_THREADS
    }
    *slot = (fl_py_upload_slot){0};
    Py_XDECREF(owner);
}

void fl_py_array_destination_cancel(fl_py_array_destination *self, const fl_batch *batch)
{
    fl_py_upload_slot *slot = slot_of(self, batch);
    if (slot != NULL) cancel_slot(self, slot);
}

void fl_py_array_destination_cancel_all(fl_py_array_destination *self)
{
    Py_CLEAR(self->alloc_error);
    self->most_bytes = 0;
    for (int64_t i = 0; self->slots != NULL && i < self->depth; i++)
        cancel_slot(self, &self->slots[i]);
}

/* Returns the place of an output in the buffer of its batch. New reference. */
static PyObject *place_of(const fl_output *output, bool is_single)
{
    int32_t skip = is_single && !output->is_whole ? 1 : 0;
    return fl_py_tensor_slot(fl_output_at(output), output->dtype, output->ndim - skip,
                             output->shape + skip,
                             output->is_contiguous ? NULL : output->stride + skip);
}

/* Appends the object, and takes its reference; NULL: an exception is set. */
static int append(PyObject *list, PyObject *object)
{
    int status = object != NULL ? PyList_Append(list, object) : -1;
    Py_XDECREF(object);
    return status;
}

/* Returns the places of a batch's tensors in its buffer, as a list. New reference. */
static PyObject *list_places(const fl_layout *layout, bool is_single)
{
    PyObject *places = PyList_New(0);
    for (int32_t i = 0; places != NULL && i < layout->count; i++) {
        const fl_output *output = &layout->outputs[i];
        if (!output->is_number && append(places, place_of(output, is_single)) != 0)
            Py_CLEAR(places);
    }
    return places;
}

/* Puts the numbers of a batch between its tensors: 0, or -1 and an exception. */
static int add_numbers(PyObject *tensors, const fl_layout *layout)
{
    for (int32_t i = 0; i < layout->count; i++) {
        if (!layout->outputs[i].is_number) continue;
        PyObject *number = PyLong_FromLongLong(layout->outputs[i].number);
        int status = number != NULL ? PyList_Insert(tensors, i, number) : -1;
        Py_XDECREF(number);
        if (status != 0) return -1;
    }
    return 0;
}

/* Returns the outputs: the tensors that `split` makes of the buffer, and the numbers. New
 * reference. */
static PyObject *split_outputs(const fl_py_array_destination *self, const fl_layout *layout,
                               PyObject *buffer, bool is_single, bool is_other_stream)
{
    PyObject *places = list_places(layout, is_single);
    if (places == NULL) return NULL;
    PyObject *tensors = fl_py_destination_split(&self->base, buffer, places, is_other_stream);
    Py_DECREF(places);
    if (tensors != NULL && add_numbers(tensors, layout) != 0) Py_CLEAR(tensors);
    return tensors;
}

/* Ends the transfer of a slot: 1 if the buffer's stream is not the current stream, 0 if it is or
 * there is no transfer; -1 exception. */
static int
finish_transfer(const fl_py_array_destination *self, fl_py_upload_slot *slot, const fl_batch *batch)
{
    if (slot->transfer == NULL) return 0;
    if (slot->buffer.owner == NULL && make_buffer(self, slot) != 0) return -1;
    return fl_py_destination_finish(&self->base, &slot->buffer, batch->slot, batch->bytes);
}

PyObject *
fl_py_array_destination_deliver(fl_py_array_destination *self, fl_py_table *table,
                                const fl_batch *batch, bool is_single, bool *is_undelivered)
{
    fl_py_upload_slot *slot = slot_of(self, batch);
    int is_other_stream = finish_transfer(self, slot, batch);
    *is_undelivered = is_other_stream < 0;
    if (*is_undelivered) return NULL;
    PyObject *buffer = slot->buffer.owner;
    *slot = (fl_py_upload_slot){0};
    /* Split first: splitting tells the allocator which stream waits for the copy. */
    PyObject *result = split_outputs(self, &batch->layout, buffer, is_single, is_other_stream == 1);
    if (result != NULL && fl_table_is_volatile(table->table) &&
        fl_py_table_check_files(table, &batch->rows) != 0)
        Py_CLEAR(result);
    Py_DECREF(buffer);
    return result;
}

int fl_py_array_destination_traverse(fl_py_array_destination *self, visitproc visit, void *arg)
{
    Py_VISIT(self->alloc_error);
    for (int64_t i = 0; self->slots != NULL && i < self->depth; i++) {
        PyObject *owner = self->slots[i].buffer.owner;
        Py_VISIT(owner);
    }
    return fl_py_destination_traverse(&self->base, visit, arg);
}

void fl_py_array_destination_close(fl_py_array_destination *self)
{
    fl_py_array_destination_cancel_all(self);
    fl_py_destination_close(&self->base);
    fl_free(self->slots);
    fl_free(self->casts);
    self->slots = NULL;
    self->casts = NULL;
}
