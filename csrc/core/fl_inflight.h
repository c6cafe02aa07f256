/* fl_inflight: the table of requests in flight, one entry for each batch that workers are asked
 * for.
 *
 * Floor 1. Between the consumer, who wants batches, and fl_shm_queue, which carries messages. An
 * entry exists from the moment the consumer submits a task until he drops the batch. The table
 * decides when a request is sent (memory budget, room in the queue), in which order, and with how
 * much memory; it asks again, with more memory, for a batch that was too large. docs/processes.md
 * draws the states and says what happens when somebody dies.
 *
 * All calls belong to one consumer thread at a time and never block, but for fl_inflight_finish and
 * what calls it. A copier (fl_copier), if there is one, works on the same entries in a thread of
 * its own: what both touch is guarded by the table's mutex. In a forked child submit and receive
 * are not to be called, and the other calls leave slots, copies and the mutex alone. */
#ifndef FL_INFLIGHT_H
#define FL_INFLIGHT_H

#include "fl_pool.h"
#include "fl_shm_queue.h"
#include "fl_transfer_ops.h" /* fl_dest_buffer */

#include <pthread.h>

typedef enum fl_request_state {
    FL_DEFERRED,  /* waits for memory or for room in the worker's queue */
    FL_SENT,      /* its worker has it */
    FL_TOO_LARGE, /* its worker keeps the batch until it is asked again, with more memory */
    FL_ANSWERED   /* the consumer has the reply */
} fl_request_state;

typedef enum fl_copy_state {
    FL_COPY_UNKNOWN, /* the reply has not been looked at */
    FL_COPY_NONE,    /* there is nothing to copy, or the copier failed */
    FL_COPY_WAITING, /* among the arrived: the copier may begin */
    FL_COPYING,      /* the copier's thread copies it */
    FL_COPIED        /* to its buffer */
} fl_copy_state;

/* One entry. The table's until fl_inflight_receive has given it to the consumer. */
typedef struct fl_request {
    /* The consumer's thread alone. */
    struct fl_request *next; /* among those that are not answered */
    void *key;               /* owned, by drop_key: what the consumer knows the batch by */
    fl_request_state state;
    int64_t counted;     /* bytes of it that are under way; SENT and 0: it was cancelled */
    int64_t needed;      /* TOO_LARGE: bytes to send it with */
    fl_slot *small_slot; /* owned: was too small; the worker reads it until it has answered */
    char *payload;       /* owned: the task, while DEFERRED */
    int64_t payload_bytes;
    fl_reply_message reply; /* ANSWERED */
    /* Set before the request is sent, then read-only until it is answered. */
    int32_t worker;
    int64_t turn;   /* place in the order of consumption; -1: no batch, and never copied */
    int64_t number; /* of the message last sent for it */
    int64_t limit;  /* bytes that the worker may use of the slot */
    fl_slot *slot;  /* owned; NULL: DEFERRED, TOO_LARGE, or the consumer has taken it */
    /* The table's mutex. */
    fl_copy_state copy;
    struct fl_request *next_arrived;
    int64_t copy_bytes, arrival; /* of the reply as the copier saw it */
    fl_dest_buffer buffer;       /* COPYING, COPIED */
} fl_request;

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
    fl_pool *pool;    /* borrowed until close: slots of an arena, */
    char *base;       /* which is mapped here */
    int64_t *largest; /* borrowed until close: bytes that batches needed of late */
    int64_t budget;   /* bytes that may be under way: limits of requests, replies not released */
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
 * what keeps other threads of his out. */
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

/* ---- for the copier; _locked: with the mutex held */

pthread_mutex_t *fl_inflight_mutex(fl_inflight *table);
fl_shm_queue *fl_inflight_queue(const fl_inflight *table);

/* Looks at the replies that have come and are not received yet. */
void fl_inflight_look_locked(fl_inflight *table);

/* Those with FL_COPY_WAITING, linked by next_arrived in the order of arrival; NULL: none. */
fl_request *fl_inflight_arrived_locked(const fl_inflight *table);

/* WAITING -> COPYING to the buffer -> COPIED, or NONE when it failed: then the buffer is free. */
void fl_inflight_begin_copy_locked(fl_inflight *table, fl_request *request,
                                   const fl_dest_buffer *buffer);
void fl_inflight_end_copy_locked(fl_inflight *table, fl_request *request, bool is_copied);

/* How many are COPYING or COPIED, so have a buffer. */
int32_t fl_inflight_copies_locked(const fl_inflight *table);

#endif
