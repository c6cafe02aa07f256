/* fl_copier: see fl_copier.h. */
#include "fl_copier.h"

#include "fl_thread.h"

#include <assert.h>
#include <stdatomic.h>

/* If no event comes, the thread looks again this often, because a worker may die before it wakes
 * anyone. */
static const int64_t LOOK_NS = 1000000000;

enum { LEAST_BUFFER = 64 << 10 };

struct fl_copier {
    fl_sent *sent; /* borrowed; the first five fields are set at open, then read-only */
    fl_copy_fn *copy;
    pthread_mutex_t *mutex; /* borrowed: the mutex of sent */
    uint32_t generation;
    pthread_t thread;
    _Atomic bool is_stopped;
    /* Guarded by the mutex. */
    fl_dest_buffer spare[FL_COPY_AHEAD]; /* lent by the consumer, and not in use */
    int32_t spares;
    int64_t first; /* the next turn; -1: any turn */
};

static inline bool is_foreign(const fl_copier *copier)
{
    return copier->generation != fl_fork_generation();
}

static inline bool is_soon(const fl_copier *copier, const fl_request *request)
{
    return copier->first < 0 ||
           (request->turn >= copier->first && request->turn < copier->first + FL_COPY_AHEAD);
}

/* Returns true if the buffer fits a batch of this size. A user who keeps a batch also keeps its
 * buffer, so a much larger buffer does not suit. */
static inline bool suits(const fl_dest_buffer *buffer, int64_t bytes)
{
    return buffer->bytes >= bytes && buffer->bytes / 2 <= fl_max(bytes, LEAST_BUFFER);
}

/* ---- with the mutex held */

static int32_t find_spare_locked(const fl_copier *copier, int64_t bytes)
{
    int32_t i = 0;
    while (i < copier->spares && !suits(&copier->spare[i], bytes)) i++;
    return i;
}

static fl_dest_buffer remove_spare_locked(fl_copier *copier, int32_t i)
{
    fl_dest_buffer buffer = copier->spare[i];
    copier->spare[i] = copier->spare[--copier->spares];
    return buffer;
}

static inline bool is_before(const fl_copier *copier, const fl_request *a, const fl_request *b)
{
    return copier->first < 0 ? a->arrival < b->arrival : a->turn < b->turn;
}

/* Chooses the request to copy next, among requests that a buffer suits: the request with the lowest
 * turn or, if any turn will do, the request that arrived first. */
static fl_request *choose_locked(const fl_copier *copier)
{
    fl_request *chosen = NULL, *at = fl_sent_arrived_locked(copier->sent);
    for (; at != NULL; at = at->next_arrived) {
        if (!is_soon(copier, at)) continue;
        if (find_spare_locked(copier, at->copy_bytes) == copier->spares) continue;
        if (chosen == NULL || is_before(copier, at, chosen)) chosen = at;
    }
    return chosen;
}

/* Copies one batch, with the mutex released during the copy. Returns false if no batch can be
 * copied. */
static bool copy_next_locked(fl_copier *copier)
{
    fl_request *request = choose_locked(copier);
    if (request == NULL) return false;
    fl_dest_buffer buffer =
        remove_spare_locked(copier, find_spare_locked(copier, request->copy_bytes));
    fl_sent_begin_copy_locked(copier->sent, request, &buffer);
    pthread_mutex_unlock(copier->mutex);
    bool is_copied =
        copier->copy(&request->buffer, request->slot, request->copy_bytes, NULL) == FL_OK;
    pthread_mutex_lock(copier->mutex);
    fl_sent_end_copy_locked(copier->sent, request, is_copied);
    if (!is_copied) copier->spare[copier->spares++] = buffer;
    return true;
}

/* ---- the thread */

static void *watch_replies(void *arg)
{
    fl_copier *copier = arg;
    uint32_t seen = 0;
    while (!atomic_load(&copier->is_stopped)) {
        pthread_mutex_lock(copier->mutex);
        do fl_sent_look_locked(copier->sent);
        while (!atomic_load(&copier->is_stopped) && copy_next_locked(copier));
        pthread_mutex_unlock(copier->mutex);
        (void)fl_shm_queue_watch(fl_sent_queue(copier->sent), &seen, fl_now_ns() + LOOK_NS);
    }
    return NULL;
}

static void wake(fl_copier *copier) { fl_shm_queue_wake(fl_sent_queue(copier->sent)); }

/* ---- open and close */

int fl_copier_open(fl_inflight *table, fl_copy_fn *copy, fl_copier **out, fl_err *err)
{
    *out = NULL;
    fl_copier *copier = fl_alloc(sizeof *copier);
    if (copier == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a copier");
    copier->sent = fl_inflight_sent(table);
    copier->copy = copy;
    copier->mutex = fl_sent_mutex(copier->sent);
    copier->generation = fl_fork_generation();
    int status = fl_thread_start(&copier->thread, watch_replies, copier, err);
    if (status == FL_OK)
        *out = copier;
    else
        fl_free(copier);
    return status;
}

void fl_copier_stop(fl_copier *copier)
{
    if (is_foreign(copier) || atomic_exchange(&copier->is_stopped, true)) return;
    wake(copier);
    pthread_join(copier->thread, NULL);
}

void fl_copier_close(fl_copier *copier)
{
    if (copier == NULL || is_foreign(copier)) return;
    fl_copier_stop(copier);
    assert(copier->spares == 0);
    fl_free(copier);
}

/* ---- the consumer */

void fl_copier_set_window(fl_copier *copier, int64_t first)
{
    pthread_mutex_lock(copier->mutex);
    copier->first = first;
    bool has_work = choose_locked(copier) != NULL;
    pthread_mutex_unlock(copier->mutex);
    if (has_work) wake(copier);
}

int32_t fl_copier_buffers_needed(fl_copier *copier)
{
    pthread_mutex_lock(copier->mutex);
    int32_t used = copier->spares + fl_sent_copies_locked(copier->sent);
    pthread_mutex_unlock(copier->mutex);
    return (int32_t)fl_max(FL_COPY_AHEAD - used, 0);
}

void fl_copier_add_buffer(fl_copier *copier, const fl_dest_buffer *buffer)
{
    pthread_mutex_lock(copier->mutex);
    assert(copier->spares + fl_sent_copies_locked(copier->sent) < FL_COPY_AHEAD);
    copier->spare[copier->spares++] = *buffer;
    bool has_work = choose_locked(copier) != NULL;
    pthread_mutex_unlock(copier->mutex);
    if (has_work) wake(copier);
}

bool fl_copier_reclaim_buffer(fl_copier *copier, int64_t bytes, fl_dest_buffer *out)
{
    if (is_foreign(copier)) return false;
    pthread_mutex_lock(copier->mutex);
    int32_t i = 0;
    while (i < copier->spares && suits(&copier->spare[i], bytes)) i++;
    bool is_found = i < copier->spares;
    if (is_found) *out = remove_spare_locked(copier, i);
    pthread_mutex_unlock(copier->mutex);
    return is_found;
}
