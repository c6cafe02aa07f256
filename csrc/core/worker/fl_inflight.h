/* fl_inflight: the table of requests in flight, one entry for each batch that workers are asked
 * for.
 *
 * Floor 1. The table stands between the consumer, who wants batches, and fl_shm_queue, which
 * carries messages. An entry exists from the moment the consumer submits a task until the consumer
 * drops the batch. The table decides when a request is sent (memory budget, room in the queue), in
 * which order, and with how much memory; if a batch was too large, the table asks again with more
 * memory. docs/internals/processes.md draws the states and says what happens when a process dies.
 *
 * All calls belong to one consumer thread at a time. Only fl_inflight_finish, and functions that
 * call it, may block. A copier (fl_copier) may work on the same entries in its own thread, through
 * fl_sent, which guards the shared fields. In a forked child submit and receive must not be called,
 * and the remaining calls leave slots, copies and the mutex alone. */
#ifndef FL_INFLIGHT_H
#define FL_INFLIGHT_H

#include "fl_sent.h"

/* Sums over the replies of one worker. */
typedef struct fl_worker_counts {
    int64_t batches, busy_ns, wait_ns;
} fl_worker_counts;

typedef struct fl_inflight_counts {
    int64_t under_way;                      /* bytes, now */
    int64_t fallbacks[FL_FALLBACK_REASONS]; /* of all workers, so far */
    fl_worker_counts *workers;              /* one for each worker */
} fl_inflight_counts;

typedef struct fl_inflight_config {
    fl_shm_queue *shm; /* borrowed until close; nothing has been sent yet */
    int32_t workers, depth;
    fl_pool *pool;            /* borrowed until close: slots of an arena */
    char *base;               /* the address of that arena in this process */
    _Atomic int64_t *largest; /* borrowed until close: bytes that recent batches needed; several
                                 tables may share the number, each on its own thread */
    int64_t budget;           /* most bytes under way: limits of requests, unreleased replies */
    bool keeps_tasks;         /* needed by fl_inflight_restart */
    bool has_destination;     /* batches may be copied from their slots; otherwise abandon and
                                 count_reading are not called */
    void *context;            /* passed to abandon and count_reading */
    /* Gives back a slot and its buffer, to which the slot has been or is being copied: nobody wants
     * the batch. */
    void (*abandon)(void *context, const fl_dest_buffer *buffer, fl_slot *slot);
    /* Returns the bytes of slots that copies still read, for batches that the consumer has
     * dropped. */
    int64_t (*count_reading)(void *context);
    void (*drop_key)(void *key); /* called without a lock, and with every structure in order */
} fl_inflight_config;

typedef struct fl_inflight fl_inflight;

/* Opens a table; the config is copied. The caller closes *out. FL_OK, FL_ENOMEM. */
int fl_inflight_open(const fl_inflight_config *config, fl_inflight **out, fl_err *err);

/* Closes the table. The copier must be closed, and every answered request dropped. Slots of
 * unanswered requests that are not cancelled stay out of use for good, because a worker may still
 * write to them. NULL is fine. */
void fl_inflight_close(fl_inflight *table);

/* ---- requests and replies */

/* Asks a worker for the batch of the task `payload`, which is copied: at once, or as soon as there
 * is room. After FL_OK the table owns the key. *out, unless NULL: the entry. On failure, FL_ENOMEM
 * or an error of fl_pool_get, nothing was submitted. */
int fl_inflight_submit(fl_inflight *table, int32_t worker, const char *payload, int64_t bytes,
                       void *key, int64_t turn, fl_request **out, fl_err *err);

/* Receives the reply that arrived first; the request is then ANSWERED and the caller's. Before
 * receiving, sends requests that now have room. FL_OK; FL_ETIMEOUT: no reply has come; FL_EDAMAGE:
 * worker err->value has overwritten shared memory. An error of fl_pool_get: a request could not be
 * sent, and the next call tries again. */
int fl_inflight_receive(fl_inflight *table, fl_request **out, fl_err *err);

/* Ends the copy of a batch, waiting if the copy runs: from now on the copier does not look at the
 * slot, except for work that its copy function has begun. Returns true if *out holds out->copied
 * bytes of the batch. The copier took that size from the reply it saw; the caller compares the size
 * with its own reply, because a worker may have changed the reply since. Returns false if nothing
 * was copied. Needs only the entry, so the consumer may release a lock that keeps other threads of
 * its process out. */
bool fl_inflight_finish(fl_inflight *table, fl_request *request, fl_dest_buffer *out);

/* Ends the count of an answered request's bytes: they are no longer under way. */
void fl_inflight_release(fl_inflight *table, fl_request *request);

/* Gives back everything that an answered request has, and frees the request. */
void fl_inflight_drop(fl_inflight *table, fl_request *request);

/* ---- ends and beginnings */

/* Begins a new epoch: requests that were not sent are dropped. Until the next batch is submitted, a
 * batch that proves too large is not asked for again. */
void fl_inflight_start_epoch(fl_inflight *table);

/* Cancels all requests of the worker: the worker answers no request submitted so far, and their
 * bytes are no longer under way. is_gone: the process has ended, so the memory is given back at
 * once. Otherwise the memory of sent requests is given back when the worker answers a later
 * request, because the worker reads the tasks of requests that it passes over. */
void fl_inflight_cancel(fl_inflight *table, int32_t worker, bool is_gone);

/* Prepares for the successor of a worker whose process has ended. Every unanswered request is
 * DEFERRED again, and sent from the next receive on, in the order of submission. Cancelled requests
 * and, between epochs, batches are dropped. The worker's queues become empty: replies that were not
 * received are forgotten. Needs keeps_tasks. */
void fl_inflight_restart(fl_inflight *table, int32_t worker);

/* Returns the key of the request that the worker's process works on, or worked on when the process
 * ended; borrowed. NULL: no request. *begun: how many requests the process has taken. Both come
 * from the process itself, and may be wrong. */
void *fl_inflight_begun_key(const fl_inflight *table, int32_t worker, int64_t *begun);

/* Returns the number of the first request that was sent to the worker, is not answered and not
 * cancelled; -1: there is none, so the worker has nothing to do. */
int64_t fl_inflight_first_sent(const fl_inflight *table, int32_t worker);

/* Returns true if a batch of the worker still has to be sent again. */
bool fl_inflight_owes(const fl_inflight *table, int32_t worker);

/* Returns true if no reply is expected from any worker. */
bool fl_inflight_is_idle(const fl_inflight *table);

/* Returns the key of the worker's unanswered batch with the lowest turn, borrowed; or NULL. */
void *fl_inflight_first_key(const fl_inflight *table, int32_t worker);

/* Calls visit for the key of each unanswered request, until visit returns a number other than 0,
 * and returns that number. visit may take the key away and leave NULL. */
int fl_inflight_each_key(fl_inflight *table, int (*visit)(void **key, void *arg), void *arg);

/* Returns the counts, borrowed from the table, which goes on counting. Only for the consumer's
 * thread. */
const fl_inflight_counts *fl_inflight_count(const fl_inflight *table);

/* Returns the part that a copier works on, borrowed until close. */
fl_sent *fl_inflight_sent(fl_inflight *table);

#endif
