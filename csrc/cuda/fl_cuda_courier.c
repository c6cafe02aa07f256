/* fl_cuda_courier: see fl_cuda_courier.h.
 *
 * One mutex guards all, what the ring's replies are taken by included. It is held while memory is
 * pinned and copies are queued, never while anyone waits for a worker or the device. */
#include "fl_cuda_courier.h"

#include "fl_cuda_runtime.h"
#include "fl_thread.h"

#include <assert.h>
#include <stdatomic.h>

/* Without news the thread looks again this often: a worker may die before it wakes anyone. */
static const int64_t LOOK_NS = 1000000000;

struct fl_cuda_errand {
    fl_cuda_errand *next; /* in courier.arrived */
    fl_slot *slot;        /* borrowed */
    int64_t number, turn;
    int64_t bytes; /* of the batch, once it has arrived */
    int32_t worker;
    bool is_queued;
    fl_cuda_block block; /* if it is queued */
};

struct fl_cuda_courier {
    fl_shm *shm; /* borrowed; like the next four set at open */
    int32_t workers, depth;
    uint32_t generation;
    pthread_t thread;
    _Atomic bool is_stopped;
    pthread_mutex_t mutex;
    /* With the mutex. */
    fl_cuda_errand **sent; /* owned; the errands are the consumer's: of each worker's requests that
                              are not answered, at number % depth */
    uint32_t *cursors;     /* owned: in each worker's replies */
    fl_cuda_errand *arrived; /* the consumer's: not copied yet, in the order of arrival */
    fl_cuda_block spare[FL_CUDA_AHEAD];
    int32_t spares, queued;
    int64_t first; /* the turn that is next; -1: any */
};

static inline bool is_foreign(const fl_cuda_courier *courier)
{
    return courier->generation != fl_fork_generation();
}

static inline fl_cuda_errand **
place_of(const fl_cuda_courier *courier, int32_t worker, int64_t number)
{
    return &courier->sent[(int64_t)worker * courier->depth + (number & (courier->depth - 1))];
}

static inline bool is_soon(const fl_cuda_courier *courier, const fl_cuda_errand *errand)
{
    return courier->first < 0 ||
           (errand->turn >= courier->first && errand->turn < courier->first + FL_CUDA_AHEAD);
}

/* ---- with the mutex */

static void append_locked(fl_cuda_courier *courier, fl_cuda_errand *errand)
{
    fl_cuda_errand **at = &courier->arrived;
    while (*at != NULL) at = &(*at)->next;
    *at = errand;
    errand->next = NULL;
}

static void remove_locked(fl_cuda_courier *courier, const fl_cuda_errand *errand)
{
    fl_cuda_errand **at = &courier->arrived;
    while (*at != NULL && *at != errand) at = &(*at)->next;
    if (*at != NULL) *at = errand->next;
}

/* A worker may have written anything into its reply. */
static void note_locked(fl_cuda_courier *courier, const fl_shm_reply *reply)
{
    fl_cuda_errand **place = place_of(courier, reply->worker, reply->number);
    fl_cuda_errand *errand = *place;
    if (errand == NULL || errand->number != reply->number) return;
    *place = NULL;
    bool is_batch = reply->kind > 0 && reply->upload > 0 && errand->turn >= 0;
    if (!is_batch || reply->upload > fl_slot_bytes(errand->slot)) return;
    errand->bytes = reply->upload;
    append_locked(courier, errand);
}

/* The errand to be run first: that of the next turn, or the first that arrived. */
static fl_cuda_errand *choose_locked(const fl_cuda_courier *courier)
{
    fl_cuda_errand *chosen = NULL;
    for (fl_cuda_errand *errand = courier->arrived; errand != NULL; errand = errand->next) {
        if (!is_soon(courier, errand)) continue;
        if (courier->first < 0) return errand;
        if (chosen == NULL || errand->turn < chosen->turn) chosen = errand;
    }
    return chosen;
}

static int32_t find_spare_locked(const fl_cuda_courier *courier, int64_t bytes)
{
    int32_t i = 0;
    while (i < courier->spares && courier->spare[i].bytes < bytes) i++;
    return i;
}

static fl_cuda_block remove_spare_locked(fl_cuda_courier *courier, int32_t i)
{
    fl_cuda_block block = courier->spare[i];
    courier->spare[i] = courier->spare[--courier->spares];
    return block;
}

/* False if nothing can be done for it now: the consumer meets the reason when it is his turn. */
static bool run_locked(fl_cuda_courier *courier, fl_cuda_errand *errand)
{
    int32_t i = find_spare_locked(courier, errand->bytes);
    if (i == courier->spares || fl_slot_pin(errand->slot, errand->bytes, NULL) != FL_OK)
        return false;
    fl_batch batch = {.slot = errand->slot, .bytes = errand->bytes};
    errand->block = remove_spare_locked(courier, i);
    errand->is_queued = true;
    courier->queued++;
    remove_locked(courier, errand);
    fl_cuda_upload_part(errand->block.upload, &batch);
    return true;
}

static void run_all_locked(fl_cuda_courier *courier)
{
    fl_cuda_errand *errand;
    while (courier->spares > 0 && (errand = choose_locked(courier)) != NULL)
        if (!run_locked(courier, errand)) return;
}

static void look_locked(fl_cuda_courier *courier)
{
    fl_shm_reply reply;
    for (int32_t w = 0; w < courier->workers; w++)
        while (fl_shm_peek(courier->shm, w, &courier->cursors[w], &reply))
            note_locked(courier, &reply);
    run_all_locked(courier);
}

/* ---- the thread */

static void *watch_replies(void *arg)
{
    fl_cuda_courier *courier = arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    uint32_t seen = 0;
    /* Pinning would otherwise spoil a graph that the consumer is capturing. */
    (void)FL_CUDA_STATUS(cudaThreadExchangeStreamCaptureMode(&mode), NULL);
    while (!atomic_load(&courier->is_stopped)) {
        pthread_mutex_lock(&courier->mutex);
        look_locked(courier);
        pthread_mutex_unlock(&courier->mutex);
        (void)fl_shm_watch(courier->shm, &seen, fl_now_ns() + LOOK_NS);
    }
    return NULL;
}

/* ---- open and close */

static void free_courier(fl_cuda_courier *courier)
{
    fl_free(courier->sent);
    fl_free(courier->cursors);
    fl_free(courier);
}

static int start(fl_cuda_courier *courier, fl_err *err)
{
    int64_t requests = (int64_t)courier->workers * courier->depth;
    courier->sent = fl_alloc(requests * (int64_t)sizeof *courier->sent);
    courier->cursors = fl_alloc(courier->workers * (int64_t)sizeof *courier->cursors);
    if (courier->sent == NULL || courier->cursors == NULL)
        return fl_fail(err, FL_ENOMEM, "out of memory for uploads");
    FL_TRY(fl_mutex_open(&courier->mutex, err));
    int status = fl_thread_start(&courier->thread, watch_replies, courier, err);
    if (status != FL_OK) pthread_mutex_destroy(&courier->mutex);
    return status;
}

int fl_cuda_courier_open(fl_shm *shm, int32_t workers, int32_t depth, fl_cuda_courier **out,
                         fl_err *err)
{
    *out = NULL;
    fl_cuda_courier *courier = fl_alloc(sizeof *courier);
    if (courier == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for uploads");
    courier->shm = shm;
    courier->workers = workers;
    courier->depth = depth;
    courier->generation = fl_fork_generation();
    int status = start(courier, err);
    if (status == FL_OK)
        *out = courier;
    else
        free_courier(courier);
    return status;
}

void fl_cuda_courier_stop(fl_cuda_courier *courier)
{
    if (is_foreign(courier) || atomic_exchange(&courier->is_stopped, true)) return;
    fl_shm_nudge(courier->shm);
    pthread_join(courier->thread, NULL);
}

void fl_cuda_courier_close(fl_cuda_courier *courier)
{
    if (courier == NULL || is_foreign(courier)) return;
    fl_cuda_courier_stop(courier);
    assert(courier->arrived == NULL && courier->spares == 0 && courier->queued == 0);
    pthread_mutex_destroy(&courier->mutex);
    free_courier(courier);
}

/* ---- the consumer */

int fl_cuda_courier_send(fl_cuda_courier *courier, int32_t worker, fl_shm_request *request,
                         fl_slot *slot, int64_t turn, fl_cuda_errand **out, fl_err *err)
{
    *out = NULL;
    fl_cuda_errand *errand = fl_alloc(sizeof *errand);
    if (errand == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for an upload");
    *errand = (fl_cuda_errand){.slot = slot, .turn = turn, .worker = worker};
    pthread_mutex_lock(&courier->mutex);
    bool is_sent = fl_shm_send(courier->shm, worker, request);
    errand->number = request->number;
    if (is_sent) *place_of(courier, worker, request->number) = errand;
    pthread_mutex_unlock(&courier->mutex);
    if (is_sent)
        *out = errand;
    else
        fl_free(errand);
    return is_sent ? FL_OK : fl_fail(err, FL_ETIMEOUT, "the worker's queue is full");
}

bool fl_cuda_courier_take(fl_cuda_courier *courier, fl_shm_reply *out)
{
    pthread_mutex_lock(&courier->mutex);
    bool is_there = fl_shm_take(courier->shm, out);
    if (is_there) note_locked(courier, out);
    run_all_locked(courier);
    pthread_mutex_unlock(&courier->mutex);
    return is_there;
}

void fl_cuda_courier_expect(fl_cuda_courier *courier, int64_t first)
{
    pthread_mutex_lock(&courier->mutex);
    courier->first = first;
    run_all_locked(courier);
    pthread_mutex_unlock(&courier->mutex);
}

int32_t fl_cuda_courier_wants(fl_cuda_courier *courier)
{
    pthread_mutex_lock(&courier->mutex);
    int32_t wants = FL_CUDA_AHEAD - courier->spares - courier->queued;
    pthread_mutex_unlock(&courier->mutex);
    return wants > 0 ? wants : 0;
}

void fl_cuda_courier_supply(fl_cuda_courier *courier, const fl_cuda_block *block)
{
    pthread_mutex_lock(&courier->mutex);
    assert(courier->spares < FL_CUDA_AHEAD);
    courier->spare[courier->spares++] = *block;
    run_all_locked(courier);
    pthread_mutex_unlock(&courier->mutex);
}

bool fl_cuda_courier_recall(fl_cuda_courier *courier, int64_t bytes, fl_cuda_block *out)
{
    if (is_foreign(courier)) return false;
    pthread_mutex_lock(&courier->mutex);
    int32_t i = 0;
    while (i < courier->spares && courier->spare[i].bytes >= bytes) i++;
    bool is_found = i < courier->spares;
    if (is_found) *out = remove_spare_locked(courier, i);
    pthread_mutex_unlock(&courier->mutex);
    return is_found;
}

bool fl_cuda_courier_claim(fl_cuda_courier *courier, fl_cuda_errand *errand, fl_cuda_block *out)
{
    if (is_foreign(courier)) return false;
    pthread_mutex_lock(&courier->mutex);
    fl_cuda_errand **place = place_of(courier, errand->worker, errand->number);
    if (*place == errand) *place = NULL;
    remove_locked(courier, errand);
    bool is_queued = errand->is_queued;
    if (is_queued) {
        *out = errand->block;
        courier->queued--;
    }
    pthread_mutex_unlock(&courier->mutex);
    fl_free(errand);
    return is_queued;
}
