/* fl_inflight: see fl_inflight.h.
 *
 * Requests that are not answered are in one list, in the order of submission; requests that workers
 * have are also in fl_sent. Dropping a key may run code of the consumer that calls back, so entries
 * are taken out of the table first. */
#include "fl_inflight.h"

#include "fl_fork.h"
#include "fl_hash.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

enum { LEAST_LIMIT = 64 << 10, MOST_FIRST = 80 << 20 };

/* Only for the consumer's thread. */
struct fl_inflight {
    fl_inflight_config config; /* the first two fields are set at open, then read-only */
    uint32_t generation;
    fl_sent *sent;                           /* owned: the requests that are SENT */
    fl_request *requests;                    /* owned: the requests that are not answered */
    int32_t deferred, too_large, unanswered; /* unanswered: SENT, not cancelled */
    bool is_between_epochs;
    fl_inflight_counts counts; /* the array of workers is owned */
};

static inline bool is_foreign(const fl_inflight *table)
{
    return table->generation != fl_fork_generation();
}

/* ---- the list, and the counts */

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

/* Stops counting the request, because nobody waits for its answer any more. */
static void settle(fl_inflight *table, fl_request *request)
{
    if (request->state != FL_SENT || request->counted == 0) return;
    table->unanswered--;
    set_counted(table, request, 0);
}

/* Ends the request's copy. Returns true if the batch had been copied: slot and buffer are then
 * given back. */
static bool abandon_copy(fl_inflight *table, fl_request *request)
{
    fl_dest_buffer buffer;
    if (request->slot == NULL || !fl_inflight_finish(table, request, &buffer)) return false;
    table->config.abandon(table->config.context, &buffer, request->slot);
    request->slot = NULL;
    return true;
}

/* Frees an entry that is in no list any more. */
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

/* Takes the request's state out of the table's counts and out of fl_sent. */
static void leave_state(fl_inflight *table, fl_request *request)
{
    table->deferred -= request->state == FL_DEFERRED;
    table->too_large -= request->state == FL_TOO_LARGE;
    settle(table, request);
    if (request->state == FL_SENT && !is_foreign(table)) fl_sent_remove(table->sent, request);
}

enum { ALL_WORKERS = -1 };

/* Takes out of the table a worker's sent requests with numbers below `sent_before` and, if
 * `with_unsent`, its requests that are not sent. Returns the first of the list. */
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

/* Returns the limit for the next request: what recent batches needed, and a quarter more; as long
 * as no batch has come, a share of the budget. */
static int64_t next_limit(const fl_inflight *table)
{
    const fl_inflight_config *config = &table->config;
    int64_t largest = atomic_load_explicit(config->largest, memory_order_relaxed);
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

/* Sends: DEFERRED or TOO_LARGE -> SENT. FL_ETIMEOUT: there is no room now. */
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
    if (!fl_sent_send(table->sent, request, slot, &message)) {
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

/* Returns the request to send next: batches that were too large, by turn, before deferred requests,
 * in order. */
static fl_request *find_next(const fl_inflight *table)
{
    fl_request *deferred = NULL, *repeat = NULL;
    for (fl_request *at = table->requests; at != NULL; at = at->next) {
        if (at->state == FL_DEFERRED && deferred == NULL) deferred = at;
        if (at->state == FL_TOO_LARGE && (repeat == NULL || at->turn < repeat->turn)) repeat = at;
    }
    return repeat != NULL ? repeat : deferred;
}

static int keep_task(fl_request *request, const char *payload, int64_t bytes, fl_err *err)
{
    request->payload = fl_alloc(fl_max(bytes, 1));
    if (request->payload == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a request");
    memcpy(request->payload, payload, (size_t)bytes);
    request->payload_bytes = bytes;
    return FL_OK;
}

static void forget_task(fl_request *request)
{
    fl_free(request->payload);
    request->payload = NULL;
    request->payload_bytes = 0;
}

/* Sends requests as long as there is room; if is_forced, the first request in any case. */
static int send_fitting(fl_inflight *table, bool is_forced, fl_err *err)
{
    while (table->deferred + table->too_large > 0) {
        fl_request *request = find_next(table);
        /* The worker still has the task of a batch that was too large. */
        int64_t bytes = request->state == FL_TOO_LARGE ? 0 : request->payload_bytes;
        int status = send(table, request, request->payload, bytes, is_forced, err);
        if (status == FL_ETIMEOUT) break;
        FL_TRY(status);
        if (!table->config.keeps_tasks) forget_task(request);
        is_forced = false;
    }
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
    int status = table->config.keeps_tasks ? keep_task(request, payload, bytes, err) : FL_OK;
    if (status == FL_OK)
        status = is_next ? send(table, request, payload, bytes, false, err) : FL_ETIMEOUT;
    if (status == FL_ETIMEOUT)
        status = request->payload != NULL ? FL_OK : keep_task(request, payload, bytes, err);
    if (status == FL_OK) {
        append(table, request);
        if (out != NULL) *out = request;
        return FL_OK;
    }
    table->deferred--;
    fl_free(request->payload);
    fl_free(request);
    return status;
}

/* ---- receiving */

static int fail_damaged(int32_t worker, fl_err *err)
{
    (void)fl_fail(err, FL_EDAMAGE, "worker %d has overwritten the shared memory", (int)worker);
    if (err != NULL) err->value = worker;
    return FL_EDAMAGE;
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
    if (reply->kind == 0) return; /* no batch, or a part of one */
    /* The estimate decays, so that one outlier does not make all later requests wait for as much
     * memory. Relaxed, and two tables may overwrite each other's value, because an estimate is
     * enough. */
    int64_t largest = atomic_load_explicit(table->config.largest, memory_order_relaxed);
    largest = fl_max(largest - largest / 64, reply->used);
    atomic_store_explicit(table->config.largest, largest, memory_order_relaxed);
}

/* Takes the request out of the table: SENT -> ANSWERED. */
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

/* Asks again for a batch that was too large: SENT -> TOO_LARGE; if nobody wants the batch any more,
 * drops the request. The worker keeps the batch; tensors of the batch lie in the slot of the first
 * attempt. */
static int ask_again(fl_inflight *table, fl_request *request, int64_t used, fl_err *err)
{
    settle(table, request);
    /* A copy means that the reply was a whole batch when the copier saw the reply. */
    bool is_copied = abandon_copy(table, request);
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
    request->needed = used + used / 8 + 4096; /* a second pickling may take a little more */
    request->state = FL_TOO_LARGE;
    table->too_large++;
    return FL_OK;
}

/* Takes one reply. FL_OK: *out is a request for the consumer, or NULL. */
static int receive_one(fl_inflight *table, fl_request **out, fl_err *err)
{
    fl_reply_message reply;
    fl_request *request;
    int status = fl_sent_receive(table->sent, &reply, &request);
    if (status == FL_EDAMAGE) return fail_damaged(reply.worker, err);
    if (status != FL_OK) return status;
    /* A worker answers in order, so the worker has passed over its earlier requests. */
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
        /* No reply is expected that could make room. */
        if (table->unanswered == 0) FL_TRY(send_fitting(table, true, err));
        status = receive_one(table, out, err);
    }
    return status;
}

bool fl_inflight_finish(fl_inflight *table, fl_request *request, fl_dest_buffer *out)
{
    return !is_foreign(table) && fl_sent_finish(table->sent, request, out);
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

static inline bool is_wanted(const fl_inflight *table, const fl_request *request)
{
    bool is_cancelled = request->state == FL_SENT && request->counted == 0;
    bool is_of_last_epoch = table->is_between_epochs && request->turn >= 0;
    return !is_cancelled && !is_of_last_epoch;
}

/* Makes the request DEFERRED again, because its worker has ended. */
static void defer_again(fl_inflight *table, fl_request *request)
{
    assert(request->payload != NULL);
    if (!abandon_copy(table, request)) fl_slot_return(request->slot);
    fl_slot_return(request->small_slot);
    leave_state(table, request);
    request->slot = request->small_slot = NULL;
    request->state = FL_DEFERRED;
    table->deferred++;
}

void fl_inflight_restart(fl_inflight *table, int32_t worker)
{
    fl_request *unwanted = NULL, *request, **at = &table->requests;
    while ((request = *at) != NULL) {
        bool is_its = request->worker == worker;
        if (is_its && !is_wanted(table, request)) {
            *at = request->next;
            leave_state(table, request);
            request->next = unwanted;
            unwanted = request;
            continue;
        }
        if (is_its) defer_again(table, request);
        at = &request->next;
    }
    fl_sent_restart(table->sent, worker);
    free_requests(table, unwanted);
}

void *fl_inflight_begun_key(const fl_inflight *table, int32_t worker, int64_t *begun)
{
    *begun = fl_shm_queue_begun(table->config.shm, worker);
    const fl_request *at = table->requests;
    while (at != NULL &&
           !(at->worker == worker && at->state == FL_SENT && at->number + 1 == *begun))
        at = at->next;
    return at != NULL ? at->key : NULL;
}

int64_t fl_inflight_first_sent(const fl_inflight *table, int32_t worker)
{
    int64_t first = -1;
    for (const fl_request *at = table->requests; at != NULL; at = at->next)
        if (at->worker == worker && at->state == FL_SENT && at->counted > 0 &&
            (first < 0 || at->number < first))
            first = at->number;
    return first;
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

static void free_table(fl_inflight *table)
{
    fl_free(table->counts.workers);
    fl_free(table);
}

int fl_inflight_open(const fl_inflight_config *config, fl_inflight **out, fl_err *err)
{
    *out = NULL;
    fl_inflight *table = fl_alloc(sizeof *table);
    if (table == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a table of requests");
    table->config = *config;
    table->generation = fl_fork_generation();
    table->counts.workers = fl_alloc(config->workers * (int64_t)sizeof *table->counts.workers);
    int status =
        table->counts.workers != NULL
            ? fl_sent_open(config->shm, config->workers, config->depth, config->has_destination,
                           &table->sent, err)
            : fl_fail(err, FL_ENOMEM, "out of memory for %d workers", (int)config->workers);
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
    fl_sent_close(table->sent);
    free_table(table);
}

fl_sent *fl_inflight_sent(fl_inflight *table) { return table->sent; }
