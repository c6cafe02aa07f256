/* fl_cuda_stub: the names of the headers of csrc/cuda in a build without nvcc. Nothing is
 * available, so no stage and no courier exists that the rest could be called with. */
#include "fl_cuda.h"
#include "fl_cuda_courier.h"
#include "fl_cuda_upload.h"

const char *const fl_cuda_archs = "";
const int fl_cuda_version = 0;

int fl_cuda_check(int32_t device, fl_err *err)
{
    (void)device;
    return fl_fail(err, FL_EDEVICE,
                   "this fastloop was built without CUDA; install nvcc and build it anew");
}

const fl_backend fl_cuda_backend = {0};

int64_t fl_cuda_scratch_bytes(const fl_list *list)
{
    (void)list;
    return 0;
}

int fl_cuda_is_capturing(const fl_cuda_queue *queue, bool *out, fl_err *err)
{
    *out = false;
    return fl_cuda_check(queue->device, err);
}

int fl_cuda_pin(int32_t device, char *data, int64_t bytes, fl_err *err)
{
    (void)data;
    (void)bytes;
    return fl_cuda_check(device, err);
}

void fl_cuda_unpin(int32_t device, char *data)
{
    (void)device;
    (void)data;
}

int fl_cuda_stage_open(int32_t device, fl_cuda_stage **out, fl_err *err)
{
    *out = NULL;
    return fl_cuda_check(device, err);
}

void fl_cuda_stage_halt(fl_cuda_stage *stage) { (void)stage; }

void fl_cuda_stage_close(fl_cuda_stage *stage) { (void)stage; }

int fl_cuda_upload_get(fl_cuda_stage *stage, int32_t parts, fl_cuda_upload **out, fl_err *err)
{
    (void)stage;
    (void)parts;
    *out = NULL;
    return fl_cuda_check(0, err);
}

int fl_cuda_upload_aim(fl_cuda_upload *upload, void *block, void *stream, fl_err *err)
{
    (void)upload;
    (void)block;
    (void)stream;
    return fl_cuda_check(0, err);
}

bool fl_cuda_upload_is_aimed(const fl_cuda_upload *upload)
{
    (void)upload;
    return false;
}

void fl_cuda_upload_part(fl_cuda_upload *upload, const fl_batch *batch)
{
    (void)upload;
    (void)batch;
}

int fl_cuda_upload_take(fl_cuda_upload *upload, const fl_batch *batch, void *stream, fl_err *err)
{
    (void)upload;
    (void)batch;
    (void)stream;
    return fl_cuda_check(0, err);
}

void fl_cuda_upload_abandon(fl_cuda_upload *upload, const fl_batch *batch, void *stream)
{
    (void)upload;
    (void)batch;
    (void)stream;
}

void fl_cuda_upload_drop(fl_cuda_upload *upload) { (void)upload; }

int fl_cuda_courier_open(fl_shm *shm, int32_t workers, int32_t depth, fl_cuda_courier **out,
                         fl_err *err)
{
    (void)shm;
    (void)workers;
    (void)depth;
    *out = NULL;
    return fl_cuda_check(0, err);
}

void fl_cuda_courier_stop(fl_cuda_courier *courier) { (void)courier; }

void fl_cuda_courier_close(fl_cuda_courier *courier) { (void)courier; }

int fl_cuda_courier_send(fl_cuda_courier *courier, int32_t worker, fl_shm_request *request,
                         fl_slot *slot, int64_t turn, fl_cuda_errand **out, fl_err *err)
{
    (void)courier;
    (void)worker;
    (void)request;
    (void)slot;
    (void)turn;
    *out = NULL;
    return fl_cuda_check(0, err);
}

bool fl_cuda_courier_take(fl_cuda_courier *courier, fl_shm_reply *out)
{
    (void)courier;
    (void)out;
    return false;
}

void fl_cuda_courier_expect(fl_cuda_courier *courier, int64_t first)
{
    (void)courier;
    (void)first;
}

int32_t fl_cuda_courier_wants(fl_cuda_courier *courier)
{
    (void)courier;
    return 0;
}

void fl_cuda_courier_supply(fl_cuda_courier *courier, const fl_cuda_block *block)
{
    (void)courier;
    (void)block;
}

bool fl_cuda_courier_recall(fl_cuda_courier *courier, int64_t bytes, fl_cuda_block *out)
{
    (void)courier;
    (void)bytes;
    (void)out;
    return false;
}

bool fl_cuda_courier_claim(fl_cuda_courier *courier, fl_cuda_errand *errand, fl_cuda_block *out)
{
    (void)courier;
    (void)errand;
    (void)out;
    return false;
}
