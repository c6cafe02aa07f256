/* fl_py_array_destination: the part of the feed that batches pass through which are not to stay in
 * slots.
 *
 * Runs on the consumer's thread with the feed's lock and the interpreter lock held. Blocks are
 * torch tensors: in pinned memory, where batches are gathered to them, or on a device; each posted
 * batch has a ticket for its block and its upload. On a device the next batches alone have blocks;
 * the others wait in their slots. What fails ahead of the take is done there, and what fails there
 * leaves the batch with the feed, for the next call. */
#include "fl_copier.h"
#include "fl_py_array_loader.h"

int fl_py_array_destination_open(fl_py_array_loader *self)
{
    fl_err err;
    int64_t bytes;
    int status = FL_OK;
    if (fl_mul(self->depth, sizeof *self->tickets, &bytes)) self->tickets = fl_alloc(bytes);
    if (self->tickets == NULL) status = fl_fail(&err, FL_ENOMEM, "out of memory for uploads");
    if (status == FL_OK && self->slots->device >= 0)
        status = fl_cuda_transfer_ops.open(self->slots->device, &self->stage, &err);
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

static inline fl_py_ticket *ticket_of(const fl_py_array_loader *self, int64_t tag)
{
    return &self->tickets[tag / FL_PY_TAGS];
}

static int aim(fl_py_array_loader *self, fl_py_ticket *ticket, PyObject *block, int64_t bytes)
{
    fl_err err;
    int32_t device = self->slots->device;
    void *data = fl_py_buffer_address(&self->table->door, block, device, bytes);
    if (data == NULL || fl_py_stream(&self->table->door, device, &ticket->stream) != 0) return -1;
    int status = fl_cuda_transfer_ops.set_buffer(ticket->upload, data, ticket->stream,
                                                 &ticket->is_filled, &err);
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

/* Finds where to gather to. */
static int find_data(fl_py_array_loader *self, fl_py_ticket *ticket, PyObject *block, int64_t bytes)
{
    ticket->data = fl_py_buffer_address(&self->table->door, block, FL_PY_CPU, bytes);
    return ticket->data != NULL ? 0 : -1;
}

/* Allocates the block and aims the upload at it; -1 exception, and there is no block. */
static int make_block(fl_py_array_loader *self, fl_py_ticket *ticket, int64_t bytes)
{
    int64_t room = fl_max(bytes, 1); /* so that it has an address */
    PyObject *block = PyObject_CallFunction(self->new_block, "L", (long long)room);
    if (block == NULL) return -1;
    if ((ticket->upload != NULL ? aim : find_data)(self, ticket, block, room) == 0) {
        ticket->block = block;
        return 0;
    }
    Py_DECREF(block);
    return -1;
}

/* The exception is to be raised when nothing is left to take before the batch. */
static void keep_refusal(fl_py_array_loader *self)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    Py_XSETREF(self->refusal, value);
}

/* Makes the block of a batch that is not wanted yet: 1, or 0 where that is left to the take, and -1
 * where an interrupt has come. */
static int try_block(fl_py_array_loader *self, fl_py_ticket *ticket)
{
    if (make_block(self, ticket, ticket->bytes) == 0) return 1;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    if (self->stage == NULL) keep_refusal(self);
    PyErr_Clear();
    return 0;
}

/* Whether another batch may wait in pinned memory. One always may. */
static bool is_within_budget(fl_py_array_loader *self, int64_t bytes)
{
    int64_t left = self->budget;
    if (fl_ring_pending(self->ring) == 0) return true;
    if (self->stage != NULL) left -= fl_cuda_transfer_ops.collect(self->stage);
    for (int64_t number = 0; number < self->depth; number++) left -= self->tickets[number].bytes;
    return bytes <= left;
}

int fl_py_array_destination_post(fl_py_array_loader *self, fl_batch *batch, fl_err *err)
{
    int64_t bytes = batch->bytes;
    int64_t number = 0;
    while (self->tickets[number].is_used) number++; /* the ring has room, so there is one */
    fl_py_ticket *ticket = &self->tickets[number];
    if (!is_within_budget(self, bytes))
        return fl_fail(err, FL_ENOMEM, "a batch of %lld bytes waits for memory_budget=%lld",
                       (long long)bytes, (long long)self->budget);
    if (self->stage != NULL)
        FL_TRY(fl_cuda_transfer_ops.get(self->stage, batch->parts, &ticket->upload, err));
    ticket->bytes = bytes;
    bool is_next = fl_ring_pending(self->ring) == 0;
    bool is_made = (is_next || self->stage == NULL) && try_block(self, ticket) == 1;
    if (is_made) Py_CLEAR(self->refusal);
    if (!is_made && self->stage == NULL) {
        *ticket = (fl_py_ticket){0};
        return fl_fail(err, FL_ENOMEM, "no pinned memory for a batch of %lld bytes",
                       (long long)bytes);
    }
    ticket->is_used = true;
    batch->tag += number * FL_PY_TAGS;
    batch->data = ticket->data;
    batch->transfer = ticket->upload;
    return FL_OK;
}

/* Sends the batch in this place of those posted, which was filled before it had its block: here if
 * that takes no time, else by a thread of the ring. */
static void send(fl_py_array_loader *self, int64_t place, const fl_batch *batch)
{
    if (!fl_slot_is_pinned(batch->slot, batch->bytes))
        fl_ring_add_part(self->ring, place);
    else /* what fails is left to the take */
        (void)fl_cuda_transfer_ops.start(batch->transfer, batch->slot, batch->bytes, NULL);
}

int fl_py_array_destination_ahead(fl_py_array_loader *self)
{
    const fl_batch *batch;
    int32_t ahead = fl_copy_ahead(self->most_bytes);
    for (int32_t place = 0; self->stage != NULL && place < ahead; place++) {
        if ((batch = fl_ring_submitted(self->ring, place)) == NULL) break;
        if (batch->tag % FL_PY_TAGS == FL_PY_TAG_MARK) continue;
        fl_py_ticket *ticket = ticket_of(self, batch->tag);
        if (ticket->block != NULL) continue;
        int made = try_block(self, ticket);
        if (made != 1) return made;
        if (ticket->is_filled) send(self, place, batch);
    }
    return 0;
}

static void drop_ticket(fl_py_ticket *ticket)
{
    PyObject *block = ticket->block;
    if (ticket->upload != NULL) fl_cuda_transfer_ops.cancel(ticket->upload);
    *ticket = (fl_py_ticket){0};
    Py_XDECREF(block);
}

void fl_py_array_destination_drop(fl_py_array_loader *self, int64_t tag)
{
    if (self->tickets != NULL && tag % FL_PY_TAGS != FL_PY_TAG_MARK)
        drop_ticket(ticket_of(self, tag));
}

void fl_py_array_destination_forget(fl_py_array_loader *self)
{
    if (self->is_late) fl_slot_return(self->late.slot);
    self->is_late = false;
    self->unposted = NULL;
    Py_CLEAR(self->refusal);
    for (int64_t number = 0; self->tickets != NULL && number < self->depth; number++)
        drop_ticket(&self->tickets[number]);
}

/* Where the fields begin in the block. New reference. */
static PyObject *list_offsets(const fl_py_array_loader *self, int64_t rows)
{
    int64_t offset = 0;
    PyObject *offsets = PyTuple_New(self->table->count);
    for (int32_t f = 0; offsets != NULL && f < self->table->count; f++) {
        PyObject *number = PyLong_FromLongLong(offset);
        if (number == NULL) {
            Py_DECREF(offsets);
            return NULL;
        }
        PyTuple_SET_ITEM(offsets, f, number);
        offset += fl_table_field_bytes(self->table->table, f, rows);
    }
    return offsets;
}

/* What `split` makes of the block, as the loader's container. New reference. */
static PyObject *
make_fields(fl_py_array_loader *self, PyObject *block, const fl_batch *batch, bool is_elsewhere)
{
    bool is_single = batch->tag % FL_PY_TAGS == FL_PY_TAG_SINGLE;
    PyObject *offsets = list_offsets(self, batch->rows.count);
    PyObject *lead =
        is_single ? PyTuple_New(0) : Py_BuildValue("(L)", (long long)batch->rows.count);
    PyObject *fields = NULL, *named = NULL;
    if (offsets != NULL && lead != NULL)
        fields = PyObject_CallFunctionObjArgs(self->split, block, offsets, lead,
                                              is_elsewhere ? Py_True : Py_False, NULL);
    Py_XDECREF(lead);
    Py_XDECREF(offsets);
    if (fields == NULL || self->keys == Py_None) return fields;
    if (!PyList_CheckExact(fields) || PyList_GET_SIZE(fields) != self->table->count)
        PyErr_SetString(PyExc_TypeError, "split must return a list of one tensor a field");
    else
        named = PyDict_New();
    for (int32_t f = 0; named != NULL && f < self->table->count; f++)
        if (PyDict_SetItem(named, PyTuple_GET_ITEM(self->keys, f), PyList_GET_ITEM(fields, f)) != 0)
            Py_CLEAR(named);
    Py_DECREF(fields);
    return named;
}

/* What was not done ahead. To pin the slot may take long. */
static int send_now(void *upload, const fl_batch *batch)
{
    fl_err err;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = fl_cuda_transfer_ops.start(upload, batch->slot, batch->bytes, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

/* Makes the current stream wait for the copy; the slot is then the stage's. */
static int take_upload(fl_py_array_loader *self, const fl_batch *batch, void **stream)
{
    fl_err err;
    fl_py_ticket *ticket = ticket_of(self, batch->tag);
    void *upload = ticket->upload;
    if (ticket->block == NULL && make_block(self, ticket, batch->bytes) != 0) return -1;
    if (!fl_cuda_transfer_ops.is_started(upload) && send_now(upload, batch) != 0) return -1;
    if (fl_py_stream(&self->table->door, self->slots->device, stream) != 0) return -1;
    if (fl_cuda_transfer_ops.finish(upload, batch->slot, batch->bytes, *stream, &err) == FL_OK)
        return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

PyObject *fl_py_array_destination_deliver(fl_py_array_loader *self, const fl_batch *batch)
{
    void *stream = NULL;
    self->is_late = self->stage != NULL && take_upload(self, batch, &stream) != 0;
    self->late = *batch;
    if (self->is_late) return NULL;
    fl_py_ticket *ticket = ticket_of(self, batch->tag);
    PyObject *block = ticket->block;
    bool is_elsewhere = stream != ticket->stream;
    *ticket = (fl_py_ticket){0};
    /* First, because it lets the allocator know of the stream that waits for the copy. */
    PyObject *result = make_fields(self, block, batch, is_elsewhere);
    if (result != NULL && fl_table_is_volatile(self->table->table) &&
        fl_py_table_check_files(self->table, &batch->rows) != 0)
        Py_CLEAR(result);
    Py_DECREF(block);
    return result;
}
