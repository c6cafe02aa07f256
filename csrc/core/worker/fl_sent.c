/* fl_sent: see fl_sent.h. */
#include "fl_sent.h"

#include "fl_fork.h"
#include "fl_thread.h"

#include <assert.h>

struct fl_sent {
    fl_shm_queue *shm; /* borrowed; the first five fields are set at open, then read-only */
    int32_t workers, depth;
    bool has_destination;
    uint32_t generation;
    /* Guarded by the mutex. Replies are also received with the mutex held, because a worker may
     * then reuse the place of a reply. */
    pthread_mutex_t mutex;
    pthread_cond_t copy_ended;
    fl_request **requests; /* owned, but not the requests: request `number` of a worker is at number
                              % depth */
    int64_t *cursors;      /* owned: the position in each worker's replies */
    fl_request *arrived;
    int32_t copies;
};

/* ---- with the mutex held */

static inline fl_request **place_of(const fl_sent *sent, int32_t worker, int64_t number)
{
    return &sent->requests[(int64_t)worker * sent->depth + (number & (sent->depth - 1))];
}

/* Returns the request that a reply answers, or NULL. */
static fl_request *find_locked(const fl_sent *sent, const fl_reply_message *reply)
{
    fl_request *request = *place_of(sent, reply->worker, reply->number);
    return request != NULL && request->number == reply->number ? request : NULL;
}

static void append_arrived_locked(fl_sent *sent, fl_request *request)
{
    fl_request **at = &sent->arrived;
    while (*at != NULL) at = &(*at)->next_arrived;
    *at = request;
    request->next_arrived = NULL;
    request->copy = FL_COPY_WAITING;
}

static void remove_arrived_locked(fl_sent *sent, const fl_request *request)
{
    fl_request **at = &sent->arrived;
    while (*at != NULL && *at != request) at = &(*at)->next_arrived;
    if (*at != NULL) *at = request->next_arrived;
}

/* Notes each reply once. A worker may have written anything into the reply. */
static void note_reply_locked(fl_sent *sent, const fl_reply_message *reply)
{
    fl_request *request = find_locked(sent, reply);
    if (request == NULL || request->copy != FL_COPY_UNKNOWN) return;
    request->copy = FL_COPY_NONE;
    bool is_batch = reply->kind > 0 && reply->upload > 0 && request->turn >= 0;
    if (!sent->has_destination || !is_batch) return;
    if (reply->upload > fl_slot_bytes(request->slot)) return;
    request->copy_bytes = reply->upload;
    request->arrival = reply->arrival;
    append_arrived_locked(sent, request);
}

/* ---- the consumer */

bool fl_sent_send(fl_sent *sent, fl_request *request, fl_slot *slot, fl_request_message *message)
{
    pthread_mutex_lock(&sent->mutex);
    bool is_sent = fl_shm_queue_send_request(sent->shm, request->worker, message);
    if (is_sent) {
        request->slot = slot;
        request->number = message->number;
        request->limit = message->limit;
        request->copy = FL_COPY_UNKNOWN;
        fl_request **place = place_of(sent, request->worker, request->number);
        assert(*place == NULL);
        *place = request;
    }
    pthread_mutex_unlock(&sent->mutex);
    return is_sent;
}

int fl_sent_receive(fl_sent *sent, fl_reply_message *reply, fl_request **out)
{
    *out = NULL;
    pthread_mutex_lock(&sent->mutex);
    int status = fl_shm_queue_receive_reply(sent->shm, reply);
    if (status == FL_OK) {
        note_reply_locked(sent, reply);
        *out = find_locked(sent, reply);
        if (*out != NULL) *place_of(sent, reply->worker, reply->number) = NULL;
    }
    pthread_mutex_unlock(&sent->mutex);
    return status;
}

void fl_sent_remove(fl_sent *sent, const fl_request *request)
{
    pthread_mutex_lock(&sent->mutex);
    fl_request **place = place_of(sent, request->worker, request->number);
    if (*place == request) *place = NULL;
    pthread_mutex_unlock(&sent->mutex);
}

void fl_sent_restart(fl_sent *sent, int32_t worker)
{
    pthread_mutex_lock(&sent->mutex);
    for (int64_t i = 0; i < sent->depth; i++) assert(*place_of(sent, worker, i) == NULL);
    fl_shm_queue_restart(sent->shm, worker);
    sent->cursors[worker] = 0;
    pthread_mutex_unlock(&sent->mutex);
}

bool fl_sent_finish(fl_sent *sent, fl_request *request, fl_dest_buffer *out)
{
    if (!sent->has_destination) return false;
    pthread_mutex_lock(&sent->mutex);
    while (request->copy == FL_COPYING) pthread_cond_wait(&sent->copy_ended, &sent->mutex);
    bool is_copied = request->copy == FL_COPIED;
    remove_arrived_locked(sent, request);
    request->copy = FL_COPY_NONE;
    if (is_copied) {
        *out = request->buffer;
        sent->copies--;
    }
    pthread_mutex_unlock(&sent->mutex);
    return is_copied;
}

/* ---- the copier */

pthread_mutex_t *fl_sent_mutex(fl_sent *sent) { return &sent->mutex; }

fl_shm_queue *fl_sent_queue(const fl_sent *sent) { return sent->shm; }

void fl_sent_look_locked(fl_sent *sent)
{
    fl_reply_message reply;
    for (int32_t w = 0; w < sent->workers; w++)
        while (fl_shm_queue_peek(sent->shm, w, &sent->cursors[w], &reply))
            note_reply_locked(sent, &reply);
}

fl_request *fl_sent_arrived_locked(const fl_sent *sent) { return sent->arrived; }

void fl_sent_begin_copy_locked(fl_sent *sent, fl_request *request, const fl_dest_buffer *buffer)
{
    assert(request->copy == FL_COPY_WAITING);
    remove_arrived_locked(sent, request);
    request->buffer = *buffer;
    request->buffer.copied = request->copy_bytes;
    request->copy = FL_COPYING;
    sent->copies++;
}

void fl_sent_end_copy_locked(fl_sent *sent, fl_request *request, bool is_copied)
{
    request->copy = is_copied ? FL_COPIED : FL_COPY_NONE;
    sent->copies -= !is_copied;
    pthread_cond_broadcast(&sent->copy_ended);
}

int32_t fl_sent_copies_locked(const fl_sent *sent) { return sent->copies; }

/* ---- open and close */

static int open_locks(fl_sent *sent, fl_err *err)
{
    FL_TRY(fl_mutex_open(&sent->mutex, err));
    int status = fl_cond_open(&sent->copy_ended, err);
    if (status != FL_OK) pthread_mutex_destroy(&sent->mutex);
    return status;
}

static void free_sent(fl_sent *sent)
{
    fl_free(sent->requests);
    fl_free(sent->cursors);
    fl_free(sent);
}

int fl_sent_open(fl_shm_queue *shm, int32_t workers, int32_t depth, bool has_destination,
                 fl_sent **out, fl_err *err)
{
    *out = NULL;
    fl_sent *sent = fl_alloc(sizeof *sent);
    if (sent == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for requests");
    *sent = (fl_sent){.shm = shm,
                      .workers = workers,
                      .depth = depth,
                      .has_destination = has_destination,
                      .generation = fl_fork_generation()};
    sent->requests = fl_alloc((int64_t)workers * depth * (int64_t)sizeof *sent->requests);
    sent->cursors = fl_alloc(workers * (int64_t)sizeof *sent->cursors);
    int status = sent->requests != NULL && sent->cursors != NULL
                     ? open_locks(sent, err)
                     : fl_fail(err, FL_ENOMEM, "out of memory for %d workers", (int)workers);
    if (status == FL_OK)
        *out = sent;
    else
        free_sent(sent);
    return status;
}

void fl_sent_close(fl_sent *sent)
{
    if (sent == NULL) return;
    if (sent->generation == fl_fork_generation()) {
        assert(sent->arrived == NULL && sent->copies == 0);
        pthread_cond_destroy(&sent->copy_ended);
        pthread_mutex_destroy(&sent->mutex);
    }
    free_sent(sent);
}
