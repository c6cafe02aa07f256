/* fl_inflight: see fl_inflight.h.
 *
 * Requests that are not answered are in one list, in the order of submission; those that workers
 * have can also be found by worker and number, as a copier looks for them. Dropping a key may run
 * code of the consumer's that calls back: entries are taken out of the table first. */
#include "fl_inflight.h"

#include "fl_hash.h"
#include "fl_thread.h"

#include <assert.h>
#include <string.h>

enum { LEAST_LIMIT = 64 << 10, MOST_FIRST = 64 << 20 };

struct fl_inflight {
    fl_inflight_config config; /* like the next, set at open, then read-only */
    uint32_t generation;
    /* The consumer's thread alone. */
    fl_request *requests;                    /* owned: those that are not answered */
    int32_t deferred, too_large, unanswered; /* of these; unanswered: SENT and not cancelled */
    bool is_between_epochs;
    fl_inflight_counts counts; /* its workers: owned */
    /* The mutex; replies are taken with it, too, as a worker may use their place again then. */
    pthread_mutex_t mutex;
    pthread_cond_t copy_ended;
    fl_request **sent; /* owned: of each worker those that are SENT, at number % depth */
    int64_t *cursors;  /* owned: in each worker's replies */
    fl_request *arrived;
    int32_t copies;
};

static inline bool is_foreign(const fl_inflight *table)
{
    return table->generation != fl_fork_generation();
}

static inline fl_request **place_of(const fl_inflight *table, int32_t worker, int64_t number)
{
    int32_t depth = table->config.depth;
    return &table->sent[(int64_t)worker * depth + (number & (depth - 1))];
}

/* ---- with the mutex */

static void append_arrived_locked(fl_inflight *table, fl_request *request)
{
    fl_request **at = &table->arrived;
    while (*at != NULL) at = &(*at)->next_arrived;
    *at = request;
    request->next_arrived = NULL;
    request->copy = FL_COPY_WAITING;
}

static void remove_arrived_locked(fl_inflight *table, const fl_request *request)
{
    fl_request **at = &table->arrived;
    while (*at != NULL && *at != request) at = &(*at)->next_arrived;
    if (*at != NULL) *at = request->next_arrived;
}

/* The request that a reply answers, or NULL. */
static fl_request *find_sent_locked(const fl_inflight *table, const fl_reply_message *reply)
{
    fl_request *request = *place_of(table, reply->worker, reply->number);
    return request != NULL && request->number == reply->number ? request : NULL;
}

/* Once for each reply. A worker may have written anything into it. */
static void note_reply_locked(fl_inflight *table, const fl_reply_message *reply)
{
    fl_request *request = find_sent_locked(table, reply);
    if (request == NULL || request->copy != FL_COPY_UNKNOWN) return;
    request->copy = FL_COPY_NONE;
    bool is_batch = reply->kind > 0 && reply->upload > 0 && request->turn >= 0;
    if (!table->config.has_destination || !is_batch) return;
    if (reply->upload > fl_slot_bytes(request->slot)) return;
    request->copy_bytes = reply->upload;
    request->arrival = reply->arrival;
    append_arrived_locked(table, request);
}

/* ---- the list, and what it counts */

static void append(fl_inflight *table, fl_request *request)
{
    fl_request **at = &table->requests;
    while (*at != NULL) at = &(*at)->next;
    *at = request;
}

static void unlink_request(fl_inflight *table, const fl_request *request)
{
    fl_request **at = &table->requests;
    while (*at != request) at = &(*at)->next;
    *at = request->next;
}

static void set_counted(fl_inflight *table, fl_request *request, int64_t bytes)
{
    table->counts.under_way += bytes - request->counted;
    request->counted = bytes;
}

/* Nobody waits for its answer any more. */
static void settle(fl_inflight *table, fl_request *request)
{
    if (request->state != FL_SENT || request->counted == 0) return;
    table->unanswered--;
    set_counted(table, request, 0);
}

/* Ends its copy. True: it had been copied, and is given back with its buffer. */
static bool abandon_copy(fl_inflight *table, fl_request *request)
{
    fl_dest_buffer buffer;
    if (request->slot == NULL || !fl_inflight_finish(table, request, &buffer)) return false;
    table->config.abandon(table->config.context, &buffer, request->slot);
    request->slot = NULL;
    return true;
}

/* The entry is in no list any more. */
static void free_request(fl_inflight *table, fl_request *request)
{
    void *key = request->key;
    if (!abandon_copy(table, request)) fl_slot_return(request->slot);
    fl_slot_return(request->small_slot);
    fl_free(request->payload);
    fl_free(request);
    if (key != NULL) table->config.drop_key(key);
}

static void free_requests(fl_inflight *table, fl_request *first)
{
    while (first != NULL) {
        fl_request *next = first->next;
        free_request(table, first);
        first = next;
    }
}

/* Its state has no part in the table's counts and places any more. */
static void leave_state(fl_inflight *table, fl_request *request)
{
    table->deferred -= request->state == FL_DEFERRED;
    table->too_large -= request->state == FL_TOO_LARGE;
    settle(table, request);
    if (request->state != FL_SENT || is_foreign(table)) return;
    pthread_mutex_lock(&table->mutex);
    fl_request **place = place_of(table, request->worker, request->number);
    if (*place == request) *place = NULL;
    pthread_mutex_unlock(&table->mutex);
}

enum { ALL_WORKERS = -1 };

/* Takes out of the table a worker's requests with numbers below `sent_before`, and those that are
 * not sent, if `with_unsent`: the first of them. */
static fl_request *
take_out(fl_inflight *table, int32_t worker, int64_t sent_before, bool with_unsent)
{
    fl_request *taken = NULL, **end = &taken, **at = &table->requests;
    while (*at != NULL) {
        fl_request *request = *at;
        bool is_its = worker == ALL_WORKERS || request->worker == worker;
        bool is_meant = request->state == FL_SENT ? request->number < sent_before : with_unsent;
        if (!is_its || !is_meant) {
            at = &request->next;
            continue;
        }
        *at = request->next;
        leave_state(table, request);
        request->next = NULL;
        *end = request;
        end = &request->next;
    }
    return taken;
}

/* ---- sending */

/* What batches of late needed, and a quarter more; a share of the budget while none has come. */
static int64_t next_limit(const fl_inflight *table)
{
    const fl_inflight_config *config = &table->config;
    int64_t largest = *config->largest;
    int64_t share = config->budget / config->workers / config->depth * 4;
    if (largest == 0) return fl_max(LEAST_LIMIT, fl_min(MOST_FIRST, share));
    return fl_max(LEAST_LIMIT, largest + largest / 4);
}

static bool fits_budget(const fl_inflight *table, int64_t bytes)
{
    const fl_inflight_config *config = &table->config;
    int64_t left = config->budget - table->counts.under_way;
    if (bytes > left || !config->has_destination) return bytes <= left;
    return bytes <= left - config->count_reading(config->context);
}

/* From the moment the message is published the copier may look at the entry. */
static bool
publish(fl_inflight *table, fl_request *request, fl_slot *slot, fl_request_message *message)
{
    pthread_mutex_lock(&table->mutex);
    bool is_sent = fl_shm_queue_send_request(table->config.shm, request->worker, message);
    if (is_sent) {
        request->slot = slot;
        request->number = message->number;
        request->limit = message->limit;
        request->copy = FL_COPY_UNKNOWN;
        assert(*place_of(table, request->worker, request->number) == NULL);
        *place_of(table, request->worker, request->number) = request;
    }
    pthread_mutex_unlock(&table->mutex);
    return is_sent;
}

/* DEFERRED or TOO_LARGE -> SENT; FL_ETIMEOUT: there is no room now. */
static int send(fl_inflight *table, fl_request *request, const char *payload, int64_t bytes,
                bool is_forced, fl_err *err)
{
    bool is_repeat = request->state == FL_TOO_LARGE;
    int64_t limit = is_repeat ? request->needed : fl_max(next_limit(table), bytes);
    if (!is_forced && !fits_budget(table, limit)) return FL_ETIMEOUT;
    fl_slot *slot;
    FL_TRY(fl_pool_get(table->config.pool, limit, &slot, err));
    if (bytes > 0) memcpy(fl_slot_data(slot), payload, (size_t)bytes);
    fl_request_message message = {.offset = fl_slot_data(slot) - table->config.base,
                                  .limit = limit,
                                  .bytes = bytes,
                                  .repeat_of = is_repeat ? request->number : -1,
                                  .task_check = fl_hash(payload, bytes)};
    if (!publish(table, request, slot, &message)) {
        fl_slot_return(slot);
        return FL_ETIMEOUT;
    }
    table->deferred -= request->state == FL_DEFERRED;
    table->too_large -= is_repeat;
    table->unanswered++;
    request->state = FL_SENT;
    set_counted(table, request, limit);
    return FL_OK;
}

/* What is sent next: batches that were too large, by turn, then what was deferred, in order. */
static fl_request *find_next(const fl_inflight *table)
{
    fl_request *deferred = NULL, *repeat = NULL;
    for (fl_request *at = table->requests; at != NULL; at = at->next) {
        if (at->state == FL_DEFERRED && deferred == NULL) deferred = at;
        if (at->state == FL_TOO_LARGE && (repeat == NULL || at->turn < repeat->turn)) repeat = at;
    }
    return repeat != NULL ? repeat : deferred;
}

/* Sends what there is room for. Forced: the first in any case. */
static int send_fitting(fl_inflight *table, bool is_forced, fl_err *err)
{
    while (table->deferred + table->too_large > 0) {
        fl_request *request = find_next(table);
        int status = send(table, request, request->payload, request->payload_bytes, is_forced, err);
        if (status == FL_ETIMEOUT) break;
        FL_TRY(status);
        fl_free(request->payload);
        request->payload = NULL;
        request->payload_bytes = 0;
        is_forced = false;
    }
    return FL_OK;
}

static int defer(fl_request *request, const char *payload, int64_t bytes, fl_err *err)
{
    request->payload = fl_alloc(fl_max(bytes, 1));
    if (request->payload == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a request");
    memcpy(request->payload, payload, (size_t)bytes);
    request->payload_bytes = bytes;
    return FL_OK;
}

int fl_inflight_submit(fl_inflight *table, int32_t worker, const char *payload, int64_t bytes,
                       void *key, int64_t turn, fl_request **out, fl_err *err)
{
    fl_request *request = fl_alloc(sizeof *request);
    if (request == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a request");
    *request = (fl_request){.key = key, .turn = turn, .worker = worker, .state = FL_DEFERRED};
    bool is_next = table->deferred + table->too_large == 0;
    table->is_between_epochs = table->is_between_epochs && turn < 0;
    table->deferred++;
    int status = FL_ETIMEOUT;
    if (is_next) status = send(table, request, payload, bytes, false, err);
    if (status == FL_ETIMEOUT) status = defer(request, payload, bytes, err);
    if (status == FL_OK) {
        append(table, request);
        if (out != NULL) *out = request;
        return FL_OK;
    }
    table->deferred--;
    fl_free(request);
    return status;
}

/* ---- receiving */

static int fail_damaged(int32_t worker, fl_err *err)
{
    (void)fl_fail(err, FL_EDAMAGE, "worker %d has overwritten what it shares", (int)worker);
    if (err != NULL) err->value = worker;
    return FL_EDAMAGE;
}

/* FL_OK; *out: the request that it answers, or NULL. */
static int take_reply(fl_inflight *table, fl_reply_message *reply, fl_request **out)
{
    *out = NULL;
    pthread_mutex_lock(&table->mutex);
    int status = fl_shm_queue_receive_reply(table->config.shm, reply);
    if (status == FL_OK) {
        note_reply_locked(table, reply);
        *out = find_sent_locked(table, reply);
        if (*out != NULL) *place_of(table, reply->worker, reply->number) = NULL;
    }
    pthread_mutex_unlock(&table->mutex);
    return status;
}

static bool is_sane(const fl_reply_message *reply, const fl_request *request)
{
    if (reply->busy_ns < 0 || reply->wait_ns < 0) return false;
    for (int i = 0; i < FL_FALLBACK_REASONS; i++)
        if (reply->fallbacks[i] < 0) return false;
    if (reply->kind < 0) return reply->used > request->limit && reply->used < INT64_MAX / 2;
    return reply->used >= 0 && reply->used <= request->limit && reply->head >= 0 &&
           reply->head_bytes >= 0 && reply->head <= reply->used - reply->head_bytes &&
           reply->upload >= 0 && reply->upload <= reply->head;
}

static void count_reply(fl_inflight *table, const fl_reply_message *reply)
{
    fl_worker_counts *counts = &table->counts.workers[reply->worker];
    counts->batches += reply->kind > 0;
    counts->busy_ns += reply->busy_ns;
    counts->wait_ns += reply->wait_ns;
    for (int i = 0; i < FL_FALLBACK_REASONS; i++) table->counts.fallbacks[i] += reply->fallbacks[i];
    /* One outlier must not make all that follow wait for as much memory. */
    int64_t *largest = table->config.largest;
    *largest = fl_max(*largest - *largest / 64, reply->used);
}

/* SENT -> ANSWERED, and out of the table. */
static void answer(fl_inflight *table, fl_request *request, const fl_reply_message *reply)
{
    bool is_counted = request->counted > 0;
    settle(table, request);
    unlink_request(table, request);
    request->state = FL_ANSWERED;
    request->reply = *reply;
    fl_slot_return(request->small_slot);
    request->small_slot = NULL;
    if (is_counted) set_counted(table, request, reply->used);
}

/* SENT -> TOO_LARGE, or dropped where nobody wants it any more. The worker keeps the batch; tensors
 * of it lie in the slot of the first attempt. */
static int ask_again(fl_inflight *table, fl_request *request, int64_t used, fl_err *err)
{
    settle(table, request);
    bool is_copied =
        abandon_copy(table, request); /* as a whole batch: the reply has changed since */
    if (is_copied || table->is_between_epochs) {
        int32_t worker = request->worker;
        unlink_request(table, request);
        free_request(table, request);
        return is_copied ? fail_damaged(worker, err) : FL_OK;
    }
    if (request->small_slot == NULL)
        request->small_slot = request->slot;
    else
        fl_slot_return(request->slot);
    request->slot = NULL;
    request->needed = used + used / 8 + 4096; /* pickled once more, it may take a little more */
    request->state = FL_TOO_LARGE;
    table->too_large++;
    return FL_OK;
}

/* Takes one reply. FL_OK: *out is what the consumer gets, or NULL. */
static int receive_one(fl_inflight *table, fl_request **out, fl_err *err)
{
    fl_reply_message reply;
    fl_request *request;
    int status = take_reply(table, &reply, &request);
    if (status == FL_EDAMAGE) return fail_damaged(reply.worker, err);
    if (status != FL_OK) return status;
    /* A worker answers in order: it has passed over those before. */
    fl_request *skipped = take_out(table, reply.worker, reply.number, false);
    if (request != NULL && !is_sane(&reply, request)) {
        settle(table, request);
        status = fail_damaged(reply.worker, err);
    } else if (request != NULL) {
        count_reply(table, &reply);
        if (reply.kind < 0) {
            status = ask_again(table, request, reply.used, err);
        } else {
            answer(table, request, &reply);
            *out = request;
        }
    }
    free_requests(table, skipped);
    return status;
}

int fl_inflight_receive(fl_inflight *table, fl_request **out, fl_err *err)
{
    int status = FL_OK;
    *out = NULL;
    while (status == FL_OK && *out == NULL) {
        FL_TRY(send_fitting(table, false, err));
        /* Nothing comes back that could make room. */
        if (table->unanswered == 0) FL_TRY(send_fitting(table, true, err));
        status = receive_one(table, out, err);
    }
    return status;
}

bool fl_inflight_finish(fl_inflight *table, fl_request *request, fl_dest_buffer *out)
{
    if (!table->config.has_destination || is_foreign(table)) return false;
    pthread_mutex_lock(&table->mutex);
    while (request->copy == FL_COPYING) pthread_cond_wait(&table->copy_ended, &table->mutex);
    bool is_copied = request->copy == FL_COPIED;
    remove_arrived_locked(table, request);
    request->copy = FL_COPY_NONE;
    if (is_copied) {
        *out = request->buffer;
        table->copies--;
    }
    pthread_mutex_unlock(&table->mutex);
    return is_copied;
}

void fl_inflight_release(fl_inflight *table, fl_request *request)
{
    set_counted(table, request, 0);
}

void fl_inflight_drop(fl_inflight *table, fl_request *request)
{
    assert(request->state == FL_ANSWERED);
    fl_inflight_release(table, request);
    free_request(table, request);
}

/* ---- ends and beginnings */

void fl_inflight_start_epoch(fl_inflight *table)
{
    table->is_between_epochs = true;
    free_requests(table, take_out(table, ALL_WORKERS, 0, true));
}

void fl_inflight_cancel(fl_inflight *table, int32_t worker, bool is_gone)
{
    fl_request *taken = take_out(table, worker, is_gone ? INT64_MAX : 0, true);
    for (fl_request *at = table->requests; at != NULL; at = at->next)
        if (at->worker == worker) settle(table, at);
    free_requests(table, taken);
}

bool fl_inflight_owes(const fl_inflight *table, int32_t worker)
{
    for (const fl_request *at = table->requests; at != NULL; at = at->next)
        if (at->worker == worker && at->small_slot != NULL &&
            (at->state == FL_TOO_LARGE || at->counted > 0))
            return true;
    return false;
}

bool fl_inflight_is_idle(const fl_inflight *table)
{
    return table->unanswered + table->deferred + table->too_large == 0;
}

void *fl_inflight_first_key(const fl_inflight *table, int32_t worker)
{
    const fl_request *first = NULL;
    for (const fl_request *at = table->requests; at != NULL; at = at->next)
        if (at->worker == worker && at->turn >= 0 && (first == NULL || at->turn < first->turn))
            first = at;
    return first != NULL ? first->key : NULL;
}

int fl_inflight_each_key(fl_inflight *table, int (*visit)(void **key, void *arg), void *arg)
{
    int status = 0;
    for (fl_request *at = table->requests; at != NULL && status == 0; at = at->next)
        if (at->key != NULL) status = visit(&at->key, arg);
    return status;
}

const fl_inflight_counts *fl_inflight_count(const fl_inflight *table) { return &table->counts; }

/* ---- open and close */

static int open_locks(fl_inflight *table, fl_err *err)
{
    FL_TRY(fl_mutex_open(&table->mutex, err));
    int status = fl_cond_open(&table->copy_ended, err);
    if (status != FL_OK) pthread_mutex_destroy(&table->mutex);
    return status;
}

static void free_table(fl_inflight *table)
{
    fl_free(table->sent);
    fl_free(table->cursors);
    fl_free(table->counts.workers);
    fl_free(table);
}

static int open_table(fl_inflight *table, fl_err *err)
{
    int64_t workers = table->config.workers, requests = workers * table->config.depth;
    table->sent = fl_alloc(requests * (int64_t)sizeof *table->sent);
    table->cursors = fl_alloc(workers * (int64_t)sizeof *table->cursors);
    table->counts.workers = fl_alloc(workers * (int64_t)sizeof *table->counts.workers);
    if (table->sent == NULL || table->cursors == NULL || table->counts.workers == NULL)
        return fl_fail(err, FL_ENOMEM, "out of memory for %d workers", (int)workers);
    return open_locks(table, err);
}

int fl_inflight_open(const fl_inflight_config *config, fl_inflight **out, fl_err *err)
{
    *out = NULL;
    fl_inflight *table = fl_alloc(sizeof *table);
    if (table == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a table of requests");
    table->config = *config;
    table->generation = fl_fork_generation();
    int status = open_table(table, err);
    if (status == FL_OK)
        *out = table;
    else
        free_table(table);
    return status;
}

void fl_inflight_close(fl_inflight *table)
{
    if (table == NULL) return;
    fl_request *left = take_out(table, ALL_WORKERS, INT64_MAX, true);
    for (fl_request *at = left; at != NULL; at = at->next) {
        (void)abandon_copy(table, at);
        at->slot = at->small_slot = NULL;
    }
    free_requests(table, left);
    if (!is_foreign(table)) {
        assert(table->arrived == NULL && table->copies == 0);
        pthread_cond_destroy(&table->copy_ended);
        pthread_mutex_destroy(&table->mutex);
    }
    free_table(table);
}

/* ---- for the copier */

pthread_mutex_t *fl_inflight_mutex(fl_inflight *table) { return &table->mutex; }

fl_shm_queue *fl_inflight_queue(const fl_inflight *table) { return table->config.shm; }

void fl_inflight_look_locked(fl_inflight *table)
{
    fl_reply_message reply;
    for (int32_t w = 0; w < table->config.workers; w++)
        while (fl_shm_queue_peek(table->config.shm, w, &table->cursors[w], &reply))
            note_reply_locked(table, &reply);
}

fl_request *fl_inflight_arrived_locked(const fl_inflight *table) { return table->arrived; }

void fl_inflight_begin_copy_locked(fl_inflight *table, fl_request *request,
                                   const fl_dest_buffer *buffer)
{
    assert(request->copy == FL_COPY_WAITING);
    remove_arrived_locked(table, request);
    request->buffer = *buffer;
    request->buffer.copied = request->copy_bytes;
    request->copy = FL_COPYING;
    table->copies++;
}

void fl_inflight_end_copy_locked(fl_inflight *table, fl_request *request, bool is_copied)
{
    request->copy = is_copied ? FL_COPIED : FL_COPY_NONE;
    table->copies -= !is_copied;
    pthread_cond_broadcast(&table->copy_ended);
}

int32_t fl_inflight_copies_locked(const fl_inflight *table) { return table->copies; }
