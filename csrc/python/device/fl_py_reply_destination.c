/* fl_py_reply_destination: the part of a hub whose batches land elsewhere: on a device, or in
 * memory that is pinned for one.
 *
 * The courier carries what arrives; here its berths are made of torch tensors, and what it has not
 * come to is done when the batch is wanted. With the interpreter lock. */
#include "fl_py_parent_end.h"

#include "fl_cpu_rows.h"

static int carry_on_host(const fl_dest_buffer *berth, fl_slot *slot, int64_t bytes, fl_err *err)
{
    (void)err;
    fl_cpu_row_ops.copy_rows(berth->target, fl_slot_data(slot), bytes, bytes, 0, 1, true);
    return FL_OK;
}

static int carry_on_device(const fl_dest_buffer *berth, fl_slot *slot, int64_t bytes, fl_err *err)
{
    return fl_cuda_transfer_ops.copy(berth->target, slot, bytes, err);
}

static inline fl_copy_fn *carry_of(const fl_py_parent_end *self)
{
    return self->stage != NULL ? carry_on_device : carry_on_host;
}

int fl_py_reply_destination_open(fl_py_parent_end *self, fl_err *err)
{
    int32_t device = self->slots->device;
    if (device >= 0) FL_TRY(fl_cuda_transfer_ops.open(device, &self->stage, err));
    return fl_copier_open(self->shm, self->workers, self->depth, carry_of(self), &self->courier,
                          err);
}

static void drop_owner(const fl_dest_buffer *berth)
{
    PyObject *owner = berth->owner;
    Py_DECREF(owner);
}

/* One that nothing was carried to. */
static void drop_berth(fl_py_parent_end *self, const fl_dest_buffer *berth)
{
    if (self->stage != NULL) fl_cuda_transfer_ops.cancel(berth->target);
    drop_owner(berth);
}

void fl_py_reply_destination_abandon(fl_py_parent_end *self, const fl_dest_buffer *berth,
                                     fl_slot *slot)
{
    if (self->stage != NULL)
        fl_cuda_transfer_ops.abandon(berth->target, slot, berth->stream);
    else
        fl_slot_return(slot);
    drop_owner(berth);
}

bool fl_py_reply_destination_end(fl_py_parent_end *self, fl_transfer *errand, fl_slot *slot)
{
    fl_dest_buffer berth;
    if (errand == NULL || !fl_copier_finish(self->courier, errand, &berth)) return false;
    fl_py_reply_destination_abandon(self, &berth, slot);
    return true;
}

static void recall(fl_py_parent_end *self, int64_t bytes)
{
    fl_dest_buffer berth;
    while (fl_copier_reclaim_buffer(self->courier, bytes, &berth)) drop_berth(self, &berth);
}

void fl_py_reply_destination_rest(fl_py_parent_end *self) { recall(self, INT64_MAX); }

void fl_py_reply_destination_stop(fl_py_parent_end *self)
{
    if (self->courier == NULL) return;
    Py_BEGIN_ALLOW_THREADS
    fl_copier_stop(self->courier);
    if (self->stage != NULL) fl_cuda_transfer_ops.await(self->stage);
    Py_END_ALLOW_THREADS
    if (self->stage != NULL)
        fl_cuda_transfer_ops.halt(self->stage); /* nothing is left to wait for */
    fl_py_reply_destination_rest(self);
}

void fl_py_reply_destination_close(fl_py_parent_end *self)
{
    fl_py_reply_destination_stop(self);
    for (int64_t i = 0; self->courier != NULL && i < (int64_t)self->workers * self->depth; i++) {
        fl_py_request *booked = &self->bookings[i];
        if (fl_py_reply_destination_end(self, booked->errand, booked->slot)) booked->slot = NULL;
        booked->errand = NULL;
    }
    fl_copier_close(self->courier);
    if (self->stage != NULL)
        fl_cuda_transfer_ops.close(
            self->stage); /* halted: only what was dropped since is waited for */
}

static int aim_on_device(fl_py_parent_end *self, PyObject *block, fl_dest_buffer *berth)
{
    fl_err err;
    void *upload;
    bool is_filled; /* not yet */
    int32_t device = self->slots->device;
    void *data = fl_py_buffer_address(&self->door, block, device, berth->bytes);
    if (data == NULL || fl_py_stream(&self->door, device, &berth->stream) != 0) return -1;
    int status = fl_cuda_transfer_ops.get(self->stage, 1, &upload, &err);
    if (status == FL_OK) {
        status = fl_cuda_transfer_ops.set_buffer(upload, data, berth->stream, &is_filled, &err);
        if (status != FL_OK) fl_cuda_transfer_ops.cancel(upload);
    }
    berth->target = upload;
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

static int aim_on_host(fl_py_parent_end *self, PyObject *block, fl_dest_buffer *berth)
{
    berth->target = fl_py_buffer_address(&self->door, block, FL_PY_CPU, berth->bytes);
    return berth->target != NULL ? 0 : -1;
}

/* The tensor `block` of `bytes` as a berth; on a device, for its current stream. */
static int make_berth(fl_py_parent_end *self, PyObject *block, int64_t bytes, fl_dest_buffer *out)
{
    fl_dest_buffer berth = {.bytes = bytes, .carried = bytes};
    int status =
        self->stage != NULL ? aim_on_device(self, block, &berth) : aim_on_host(self, block, &berth);
    if (status != 0) return -1;
    *out = berth;
    out->owner = Py_NewRef(block);
    return 0;
}

int fl_py_reply_destination_supply(fl_py_parent_end *self, PyObject *block, int64_t bytes)
{
    fl_dest_buffer berth;
    if (fl_copier_buffers_needed(self->courier) == 0) {
        PyErr_SetString(PyExc_ValueError, "no block is wanted");
        return -1;
    }
    if (make_berth(self, block, bytes, &berth) != 0) return -1;
    fl_copier_add_buffer(self->courier, &berth);
    return 0;
}

int32_t fl_py_reply_destination_expect(fl_py_parent_end *self, int64_t first)
{
    recall(self, self->room);
    fl_copier_set_window(self->courier, first);
    int32_t lent = FL_COPY_AHEAD - fl_copier_buffers_needed(self->courier);
    return self->room > 0 ? (int32_t)fl_max(fl_copy_ahead(self->room) - lent, 0) : 0;
}

bool fl_py_reply_destination_fits(fl_py_parent_end *self, int64_t bytes)
{
    int64_t left = self->budget - self->under_way;
    if (bytes > left || self->stage == NULL) return bytes <= left;
    return bytes <= left - fl_cuda_transfer_ops.collect(self->stage);
}

/* What the courier has not come to. */
static int carry_now(fl_py_parent_end *self, PyObject *new_block, fl_slot *slot, int64_t bytes,
                     fl_dest_buffer *out)
{
    fl_err err;
    PyObject *block = PyObject_CallFunction(new_block, "L", (long long)bytes);
    if (block == NULL) return -1;
    fl_dest_buffer berth;
    int status = make_berth(self, block, bytes, &berth);
    Py_DECREF(block);
    if (status != 0) return -1;
    Py_BEGIN_ALLOW_THREADS
    status = carry_of(self)(&berth, slot, bytes, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK) {
        *out = berth;
        return 0;
    }
    drop_berth(self, &berth);
    fl_py_raise(&err, NULL);
    return -1;
}

/* The current stream waits for the batch: 1 if its block is another stream's. */
static int await_on_device(fl_py_parent_end *self, const fl_py_reply *parcel)
{
    fl_err err;
    void *stream;
    const fl_dest_buffer *berth = &parcel->berth;
    if (fl_py_stream(&self->door, self->slots->device, &stream) != 0) return -1;
    if (fl_cuda_transfer_ops.finish(berth->target, parcel->slot, parcel->reply.upload, stream,
                                    &err) == FL_OK)
        return stream != berth->stream;
    fl_py_raise(&err, NULL);
    return -1;
}

int fl_py_reply_destination_land(fl_py_reply *parcel, PyObject *new_block)
{
    fl_py_parent_end *self = (fl_py_parent_end *)parcel->hub;
    fl_transfer *errand = parcel->errand;
    parcel->errand = NULL;
    Py_BEGIN_ALLOW_THREADS
    if (errand != NULL) (void)fl_copier_finish(self->courier, errand, &parcel->berth);
    Py_END_ALLOW_THREADS
    if (parcel->berth.owner != NULL && parcel->berth.carried != parcel->reply.upload) {
        (void)fl_py_parent_end_blame(self, parcel->reply.worker);
        return -1;
    }
    if (parcel->berth.owner == NULL &&
        carry_now(self, new_block, parcel->slot, parcel->reply.upload, &parcel->berth) != 0)
        return -1;
    if (self->stage != NULL) return await_on_device(self, parcel);
    fl_slot_return(parcel->slot);
    return 0;
}
