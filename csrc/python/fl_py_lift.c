/* fl_py_lift: the part of a hub whose batches go to a device.
 *
 * The courier copies what arrives; here its blocks are made of torch tensors, and what it has not
 * come to is done when the batch is opened. With the interpreter lock. */
#include "fl_py_hub.h"

int fl_py_lift_open(fl_py_hub *self, fl_err *err)
{
    FL_TRY(fl_cuda_stage_open(self->slots->device, &self->stage, err));
    return fl_cuda_courier_open(self->shm, self->workers, self->depth, &self->courier, err);
}

static void drop_block(const fl_cuda_block *block)
{
    PyObject *owner = block->owner;
    Py_DECREF(owner);
}

void fl_py_lift_abandon(const fl_cuda_block *block, fl_slot *slot)
{
    fl_batch batch = {.slot = slot};
    fl_cuda_upload_abandon(block->upload, &batch, block->stream);
    drop_block(block);
}

bool fl_py_lift_end(fl_py_hub *self, fl_cuda_errand *errand, fl_slot *slot)
{
    fl_cuda_block block;
    if (errand == NULL || !fl_cuda_courier_claim(self->courier, errand, &block)) return false;
    fl_py_lift_abandon(&block, slot);
    return true;
}

static void recall(fl_py_hub *self, int64_t bytes)
{
    fl_cuda_block block;
    while (fl_cuda_courier_recall(self->courier, bytes, &block)) {
        fl_cuda_upload_drop(block.upload);
        drop_block(&block);
    }
}

void fl_py_lift_stop(fl_py_hub *self)
{
    if (self->courier == NULL) return;
    Py_BEGIN_ALLOW_THREADS
    fl_cuda_courier_stop(self->courier);
    fl_cuda_stage_halt(self->stage);
    Py_END_ALLOW_THREADS
    recall(self, INT64_MAX);
}

void fl_py_lift_close(fl_py_hub *self)
{
    fl_py_lift_stop(self);
    for (int64_t i = 0; self->courier != NULL && i < (int64_t)self->workers * self->depth; i++) {
        fl_py_booking *booked = &self->bookings[i];
        if (fl_py_lift_end(self, booked->errand, booked->slot)) booked->slot = NULL;
        booked->errand = NULL;
    }
    fl_cuda_courier_close(self->courier);
    fl_cuda_stage_close(self->stage); /* halted: only what was dropped since is waited for */
}

/* The tensor `block` of `bytes` as a block that an upload is aimed at, on the current stream. */
static int aim(fl_py_hub *self, PyObject *block, int64_t bytes, fl_cuda_block *out)
{
    fl_err err;
    void *stream;
    fl_cuda_upload *upload;
    int32_t device = self->slots->device;
    void *data = fl_py_device_block(&self->door, block, device, bytes);
    if (data == NULL || fl_py_stream(&self->door, device, &stream) != 0) return -1;
    int status = fl_cuda_upload_get(self->stage, 1, &upload, &err);
    if (status == FL_OK) {
        status = fl_cuda_upload_aim(upload, data, stream, &err);
        if (status != FL_OK) fl_cuda_upload_drop(upload);
    }
    if (status != FL_OK) {
        fl_py_raise(&err, NULL);
        return -1;
    }
    *out = (fl_cuda_block){
        .upload = upload, .owner = Py_NewRef(block), .stream = stream, .bytes = bytes};
    return 0;
}

int fl_py_lift_supply(fl_py_hub *self, PyObject *block, int64_t bytes)
{
    fl_cuda_block spare;
    if (fl_cuda_courier_wants(self->courier) == 0) {
        PyErr_SetString(PyExc_ValueError, "no block is wanted");
        return -1;
    }
    if (aim(self, block, bytes, &spare) != 0) return -1;
    fl_cuda_courier_supply(self->courier, &spare);
    return 0;
}

int32_t fl_py_lift_expect(fl_py_hub *self, int64_t first)
{
    recall(self, self->room);
    fl_cuda_courier_expect(self->courier, first);
    return self->room > 0 ? fl_cuda_courier_wants(self->courier) : 0;
}

static int
make_block(fl_py_hub *self, PyObject *new_block, fl_slot *slot, int64_t bytes, fl_cuda_block *out)
{
    fl_err err;
    fl_batch batch = {.slot = slot, .bytes = bytes};
    if (fl_slot_pin(slot, bytes, &err) != FL_OK) {
        fl_py_raise(&err, NULL);
        return -1;
    }
    PyObject *block = PyObject_CallFunction(new_block, "L", (long long)bytes);
    if (block == NULL) return -1;
    int status = aim(self, block, bytes, out);
    Py_DECREF(block);
    if (status == 0) fl_cuda_upload_part(out->upload, &batch);
    return status;
}

int fl_py_lift_land(fl_py_parcel *parcel, PyObject *new_block)
{
    fl_err err;
    void *stream;
    fl_py_hub *self = (fl_py_hub *)parcel->hub;
    fl_cuda_block *target = &parcel->target;
    fl_batch batch = {.slot = parcel->slot, .bytes = parcel->reply.upload};
    if (parcel->errand != NULL) (void)fl_cuda_courier_claim(self->courier, parcel->errand, target);
    parcel->errand = NULL;
    if (target->upload == NULL &&
        make_block(self, new_block, parcel->slot, batch.bytes, target) != 0)
        return -1;
    if (fl_py_stream(&self->door, self->slots->device, &stream) != 0) return -1;
    if (fl_cuda_upload_take(target->upload, &batch, stream, &err) != FL_OK) {
        fl_py_raise(&err, NULL);
        return -1;
    }
    target->upload = NULL;
    return stream != target->stream;
}
