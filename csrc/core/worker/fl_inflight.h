/* fl_inflight: the table of requests in flight, one entry for each batch that workers are asked
 * for.
 *
 * Floor 1. Between the consumer, who wants batches, and fl_shm_queue, which carries messages. An
 * entry exists from the moment the consumer submits a task until it drops the batch. The table
 * decides when a request is sent (memory budget, room in the queue), in which order, and with how
 * much memory; it asks again, with more memory, for a batch that was too large.
 * docs/internals/processes.md draws the states and says what happens when somebody dies.
 *
 * All calls belong to one consumer thread at a time and never block, but for fl_inflight_finish and
 * what calls it. A copier (fl_copier), if there is one, works on the same entries in a thread of
 * its own, by way of fl_sent, which guards what both touch. In a forked child submit and receive
 * are not to be called, and the other calls leave slots, copies and the mutex alone. */
#ifndef FL_INFLIGHT_H
#define FL_INFLIGHT_H

#include "fl_sent.h"

/* What one worker has told with its replies. */
typedef struct fl_worker_counts {
    int64_t batches, busy_ns, wait_ns;
} fl_worker_counts;

typedef struct fl_inflight_counts {
    int64_t under_way;                      /* bytes, now */
    int64_t fallbacks[FL_FALLBACK_REASONS]; /* of all workers, so far */
    fl_worker_counts *workers;              /* one for each */
} fl_inflight_counts;

typedef struct fl_inflight_config {
    fl_shm_queue *shm; /* borrowed until close; nothing has been sent */
    int32_t workers, depth;
    fl_pool *pool;            /* borrowed until close: slots of an arena, */
    char *base;               /* which is mapped here */
    _Atomic int64_t *largest; /* borrowed until close: bytes that batches needed of late; several
                                 tables may share it, each on a thread of its own */
    int64_t budget;   /* bytes that may be under way: limits of requests, replies not released */
    bool keeps_tasks; /* for fl_inflight_restart */
    bool has_destination; /* batches may be copied from their slots; else the next two are not
                             called */
    void *context;        /* of the functions */
    /* Gives back a slot and the buffer that it was copied to, or is being: nobody wants the batch.
     */
    void (*abandon)(void *context, const fl_dest_buffer *buffer, fl_slot *slot);
    /* Bytes of slots that copies still read, of batches that the consumer has dropped. */
    int64_t (*count_reading)(void *context);
    void (*drop_key)(void *key); /* called with no lock and no structure half-changed */
} fl_inflight_config;

typedef struct fl_inflight fl_inflight;

/* FL_OK, FL_ENOMEM. The config is copied. */
int fl_inflight_open(const fl_inflight_config *config, fl_inflight **out, fl_err *err);

/* The copier is closed, and every answered request dropped. Slots of requests that are not
 * cancelled stay out of use for good: a worker may still write to them. NULL is fine. */
void fl_inflight_close(fl_inflight *table);

/* ---- requests and replies */

/* Asks a worker for the batch of the task `payload`, which is copied: now, or as soon as there is
 * room. The key is the table's after FL_OK. *out, unless NULL: the entry. FL_ENOMEM, and what
 * fl_pool_get says: nothing was submitted. */
int fl_inflight_submit(fl_inflight *table, int32_t worker, const char *payload, int64_t bytes,
                       void *key, int64_t turn, fl_request **out, fl_err *err);

/* The reply that arrived first, ANSWERED and the caller's; first sends what there is room for now.
 * FL_OK; FL_ETIMEOUT: there is none; FL_EDAMAGE: the worker err->value has overwritten what it
 * shares; what fl_pool_get says: a request could not be sent, and is tried again at the next call.
 */
int fl_inflight_receive(fl_inflight *table, fl_request **out, fl_err *err);

/* Ends the copy of a batch, waiting if it runs: from now on the copier does not look at the slot,
 * but for what its copy function has begun. True: *out holds out->copied bytes of it, which is
 * what the reply asked for when the copier saw it: the caller compares, as a worker may have
 * changed it since. False: nothing was copied. Needs the entry alone, so the consumer may let go of
 * what keeps its process's other threads out. */
bool fl_inflight_finish(fl_inflight *table, fl_request *request, fl_dest_buffer *out);

/* The bytes of an answered request are no longer under way. */
void fl_inflight_release(fl_inflight *table, fl_request *request);

/* Gives back all that an answered request has, and frees it. */
void fl_inflight_drop(fl_inflight *table, fl_request *request);

/* ---- ends and beginnings */

/* A new epoch begins: what was not sent is dropped, and until a batch is submitted none that proves
 * too large is asked for again. */
void fl_inflight_start_epoch(fl_inflight *table);

/* The worker answers no request submitted so far; their bytes are no longer under way. is_gone: the
 * process has ended, and their memory is given back, too. Otherwise that waits, for
 * those that are sent, until the worker answers a later request: it reads the tasks of those that
 * it passes over. */
void fl_inflight_cancel(fl_inflight *table, int32_t worker, bool is_gone);

/* The worker's process has ended, and another is going to take its place. All that it has not
 * answered is DEFERRED again, and sent, from the next receive on, in the order of submission; but
 * cancelled requests and, between epochs, batches are dropped. Its queues are empty: replies that
 * were not received are forgotten. Needs keeps_tasks. */
void fl_inflight_restart(fl_inflight *table, int32_t worker);

/* The key of the request that the worker's process is at, or was when it ended, borrowed; NULL: of
 * none. *begun: how many it has taken. What the process itself says: it may be wrong. */
void *fl_inflight_begun_key(const fl_inflight *table, int32_t worker, int64_t *begun);

/* Whether a batch of the worker is still to be sent again. */
bool fl_inflight_owes(const fl_inflight *table, int32_t worker);

/* Whether no reply is expected from anybody. */
bool fl_inflight_is_idle(const fl_inflight *table);

/* The key of the batch with the lowest turn that the worker has not answered, borrowed; or NULL. */
void *fl_inflight_first_key(const fl_inflight *table, int32_t worker);

/* Calls visit for the key of each request that is not answered, until it says other than 0; returns
 * that. visit may take the key away and leave NULL. */
int fl_inflight_each_key(fl_inflight *table, int (*visit)(void **key, void *arg), void *arg);

/* Borrowed from the table, which goes on counting. The consumer's thread. */
const fl_inflight_counts *fl_inflight_count(const fl_inflight *table);

/* Borrowed until close: what a copier works on. */
fl_sent *fl_inflight_sent(fl_inflight *table);

#endif
