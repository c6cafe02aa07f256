/* fl_copier: see fl_copier.h.
 *
 * One mutex guards all, what the ring's replies are taken by included. Nothing is carried and
 * nobody waits for a worker with it. */
#include "fl_copier.h"

#include "fl_thread.h"

#include <assert.h>
#include <stdatomic.h>

/* Without news the thread looks again this often: a worker may die before it wakes anyone. */
static const int64_t LOOK_NS = 1000000000;

enum { LEAST_BERTH = 64 << 10 };

typedef enum errand_state {
    SENT,    /* a worker has it */
    ARRIVED, /* in courier.arrived: may be run */
    RUNNING, /* the thread is carrying it */
    CARRIED, /* to its berth */
    REFUSED  /* it cannot be carried, or there is nothing to carry */
} errand_state;

struct fl_transfer {
    fl_transfer *next; /* in courier.arrived */
    fl_slot *slot;     /* borrowed */
    int64_t number, turn;
    int64_t bytes;   /* of the batch, once it has arrived */
    int64_t arrival; /* and when, as its reply has it */
    int32_t worker;
    errand_state state;
    fl_dest_buffer berth; /* RUNNING, CARRIED */
};

struct fl_copier {
    fl_shm_queue *shm; /* borrowed; like the next five set at open */
    int32_t workers, depth;
    fl_copy_fn *carry;
    uint32_t generation;
    pthread_t thread;
    _Atomic bool is_stopped;
    pthread_mutex_t mutex;
    pthread_cond_t is_run; /* with the mutex: no errand is RUNNING */
    /* With the mutex. */
    fl_transfer **sent; /* owned; the errands are the consumer's: of each worker's requests that are
                         not answered, at number % depth */
    int64_t *cursors;   /* owned: in each worker's replies */
    fl_transfer *arrived; /* the consumer's, in the order of arrival */
    fl_dest_buffer spare[FL_COPY_AHEAD];
    int32_t spares, used; /* used: RUNNING and CARRIED */
    int64_t first;        /* the turn that is next; -1: any */
};

static inline bool is_foreign(const fl_copier *courier)
{
    return courier->generation != fl_fork_generation();
}

static inline fl_transfer **place_of(const fl_copier *courier, int32_t worker, int64_t number)
{
    return &courier->sent[(int64_t)worker * courier->depth + (number & (courier->depth - 1))];
}

static inline bool is_soon(const fl_copier *courier, const fl_transfer *errand)
{
    return courier->first < 0 ||
           (errand->turn >= courier->first && errand->turn < courier->first + FL_COPY_AHEAD);
}

/* ---- with the mutex */

static void append_locked(fl_copier *courier, fl_transfer *errand)
{
    fl_transfer **at = &courier->arrived;
    while (*at != NULL) at = &(*at)->next;
    *at = errand;
    errand->next = NULL;
    errand->state = ARRIVED;
}

static void remove_locked(fl_copier *courier, const fl_transfer *errand)
{
    fl_transfer **at = &courier->arrived;
    while (*at != NULL && *at != errand) at = &(*at)->next;
    if (*at != NULL) *at = errand->next;
}

/* A worker may have written anything into its reply. */
static void note_locked(fl_copier *courier, const fl_reply_message *reply)
{
    fl_transfer **place = place_of(courier, reply->worker, reply->number);
    fl_transfer *errand = *place;
    if (errand == NULL || errand->number != reply->number) return;
    *place = NULL;
    errand->state = REFUSED;
    bool is_batch = reply->kind > 0 && reply->upload > 0 && errand->turn >= 0;
    if (!is_batch || reply->upload > fl_slot_bytes(errand->slot)) return;
    errand->bytes = reply->upload;
    errand->arrival = reply->arrival;
    append_locked(courier, errand);
}

/* Whoever keeps a batch keeps its block: one much larger is not for it. */
static inline bool suits(const fl_dest_buffer *berth, int64_t bytes)
{
    return berth->bytes >= bytes && berth->bytes / 2 <= fl_max(bytes, LEAST_BERTH);
}

static int32_t find_spare_locked(const fl_copier *courier, int64_t bytes)
{
    int32_t i = 0;
    while (i < courier->spares && !suits(&courier->spare[i], bytes)) i++;
    return i;
}

static inline bool is_before(const fl_copier *courier, const fl_transfer *a, const fl_transfer *b)
{
    return courier->first < 0 ? a->arrival < b->arrival : a->turn < b->turn;
}

/* The errand to be run first, of those that there is a berth for: that of the next turn, or the
 * first that arrived. */
static fl_transfer *choose_locked(const fl_copier *courier)
{
    fl_transfer *chosen = NULL;
    for (fl_transfer *errand = courier->arrived; errand != NULL; errand = errand->next) {
        if (!is_soon(courier, errand)) continue;
        if (find_spare_locked(courier, errand->bytes) == courier->spares) continue;
        if (chosen == NULL || is_before(courier, errand, chosen)) chosen = errand;
    }
    return chosen;
}

static fl_dest_buffer remove_spare_locked(fl_copier *courier, int32_t i)
{
    fl_dest_buffer berth = courier->spare[i];
    courier->spare[i] = courier->spare[--courier->spares];
    return berth;
}

/* Runs one errand, letting go of the mutex meanwhile; false: there is none that can be. */
static bool run_next_locked(fl_copier *courier)
{
    fl_transfer *errand = choose_locked(courier);
    if (errand == NULL) return false;
    remove_locked(courier, errand);
    errand->berth = remove_spare_locked(courier, find_spare_locked(courier, errand->bytes));
    errand->berth.carried = errand->bytes;
    errand->state = RUNNING;
    courier->used++;
    pthread_mutex_unlock(&courier->mutex);
    bool is_carried = courier->carry(&errand->berth, errand->slot, errand->bytes, NULL) == FL_OK;
    pthread_mutex_lock(&courier->mutex);
    errand->state = is_carried ? CARRIED : REFUSED;
    if (!is_carried) {
        courier->spare[courier->spares++] = errand->berth;
        courier->used--;
    }
    pthread_cond_broadcast(&courier->is_run);
    return true;
}

static void look_locked(fl_copier *courier)
{
    fl_reply_message reply;
    for (int32_t w = 0; w < courier->workers; w++)
        while (fl_shm_queue_peek(courier->shm, w, &courier->cursors[w], &reply))
            note_locked(courier, &reply);
}

/* ---- the thread */

static void *watch_replies(void *arg)
{
    fl_copier *courier = arg;
    uint32_t seen = 0;
    while (!atomic_load(&courier->is_stopped)) {
        pthread_mutex_lock(&courier->mutex);
        do look_locked(courier);
        while (!atomic_load(&courier->is_stopped) && run_next_locked(courier));
        pthread_mutex_unlock(&courier->mutex);
        (void)fl_shm_queue_watch(courier->shm, &seen, fl_now_ns() + LOOK_NS);
    }
    return NULL;
}

/* ---- open and close */

static void free_courier(fl_copier *courier)
{
    fl_free(courier->sent);
    fl_free(courier->cursors);
    fl_free(courier);
}

static int open_locks(fl_copier *courier, fl_err *err)
{
    FL_TRY(fl_mutex_open(&courier->mutex, err));
    int status = fl_cond_open(&courier->is_run, err);
    if (status != FL_OK) pthread_mutex_destroy(&courier->mutex);
    return status;
}

static void close_locks(fl_copier *courier)
{
    pthread_cond_destroy(&courier->is_run);
    pthread_mutex_destroy(&courier->mutex);
}

static int start(fl_copier *courier, fl_err *err)
{
    int64_t requests = (int64_t)courier->workers * courier->depth;
    courier->sent = fl_alloc(requests * (int64_t)sizeof *courier->sent);
    courier->cursors = fl_alloc(courier->workers * (int64_t)sizeof *courier->cursors);
    if (courier->sent == NULL || courier->cursors == NULL)
        return fl_fail(err, FL_ENOMEM, "out of memory for a courier");
    FL_TRY(open_locks(courier, err));
    int status = fl_thread_start(&courier->thread, watch_replies, courier, err);
    if (status != FL_OK) close_locks(courier);
    return status;
}

int fl_copier_open(fl_shm_queue *shm, int32_t workers, int32_t depth, fl_copy_fn *carry,
                   fl_copier **out, fl_err *err)
{
    *out = NULL;
    fl_copier *courier = fl_alloc(sizeof *courier);
    if (courier == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a courier");
    courier->shm = shm;
    courier->workers = workers;
    courier->depth = depth;
    courier->carry = carry;
    courier->generation = fl_fork_generation();
    int status = start(courier, err);
    if (status == FL_OK)
        *out = courier;
    else
        free_courier(courier);
    return status;
}

void fl_copier_stop(fl_copier *courier)
{
    if (is_foreign(courier) || atomic_exchange(&courier->is_stopped, true)) return;
    fl_shm_queue_wake(courier->shm);
    pthread_join(courier->thread, NULL);
}

void fl_copier_close(fl_copier *courier)
{
    if (courier == NULL || is_foreign(courier)) return;
    fl_copier_stop(courier);
    assert(courier->arrived == NULL && courier->spares == 0 && courier->used == 0);
    close_locks(courier);
    free_courier(courier);
}

/* ---- the consumer */

int fl_copier_submit(fl_copier *courier, int32_t worker, fl_request_message *request, fl_slot *slot,
                     int64_t turn, fl_transfer **out, fl_err *err)
{
    *out = NULL;
    fl_transfer *errand = fl_alloc(sizeof *errand);
    if (errand == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for an errand");
    *errand = (fl_transfer){.slot = slot, .turn = turn, .worker = worker};
    pthread_mutex_lock(&courier->mutex);
    bool is_sent = fl_shm_queue_send_request(courier->shm, worker, request);
    errand->number = request->number;
    if (is_sent) *place_of(courier, worker, request->number) = errand;
    pthread_mutex_unlock(&courier->mutex);
    if (is_sent)
        *out = errand;
    else
        fl_free(errand);
    return is_sent ? FL_OK : fl_fail(err, FL_ETIMEOUT, "the worker's queue is full");
}

int fl_copier_receive(fl_copier *courier, fl_reply_message *out)
{
    pthread_mutex_lock(&courier->mutex);
    int status = fl_shm_queue_receive_reply(courier->shm, out);
    if (status == FL_OK) note_locked(courier, out);
    pthread_mutex_unlock(&courier->mutex);
    return status;
}

void fl_copier_set_window(fl_copier *courier, int64_t first)
{
    pthread_mutex_lock(&courier->mutex);
    courier->first = first;
    bool has_work = choose_locked(courier) != NULL;
    pthread_mutex_unlock(&courier->mutex);
    if (has_work) fl_shm_queue_wake(courier->shm);
}

int32_t fl_copier_buffers_needed(fl_copier *courier)
{
    pthread_mutex_lock(&courier->mutex);
    int32_t wants = FL_COPY_AHEAD - courier->spares - courier->used;
    pthread_mutex_unlock(&courier->mutex);
    return wants > 0 ? wants : 0;
}

void fl_copier_add_buffer(fl_copier *courier, const fl_dest_buffer *berth)
{
    pthread_mutex_lock(&courier->mutex);
    assert(courier->spares + courier->used < FL_COPY_AHEAD);
    courier->spare[courier->spares++] = *berth;
    bool has_work = choose_locked(courier) != NULL;
    pthread_mutex_unlock(&courier->mutex);
    if (has_work) fl_shm_queue_wake(courier->shm);
}

bool fl_copier_reclaim_buffer(fl_copier *courier, int64_t bytes, fl_dest_buffer *out)
{
    if (is_foreign(courier)) return false;
    pthread_mutex_lock(&courier->mutex);
    int32_t i = 0;
    while (i < courier->spares && suits(&courier->spare[i], bytes)) i++;
    bool is_found = i < courier->spares;
    if (is_found) *out = remove_spare_locked(courier, i);
    pthread_mutex_unlock(&courier->mutex);
    return is_found;
}

bool fl_copier_finish(fl_copier *courier, fl_transfer *errand, fl_dest_buffer *out)
{
    if (is_foreign(courier)) return false;
    pthread_mutex_lock(&courier->mutex);
    while (errand->state == RUNNING) pthread_cond_wait(&courier->is_run, &courier->mutex);
    fl_transfer **place = place_of(courier, errand->worker, errand->number);
    if (*place == errand) *place = NULL;
    remove_locked(courier, errand);
    bool is_carried = errand->state == CARRIED;
    if (is_carried) {
        *out = errand->berth;
        courier->used--;
    }
    pthread_mutex_unlock(&courier->mutex);
    fl_free(errand);
    return is_carried;
}
