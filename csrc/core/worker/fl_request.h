/* fl_request: one request in flight, an entry of fl_inflight's table: the states of a request, and
 * which thread may look at which field. docs/internals/processes.md draws the states. */
#ifndef FL_REQUEST_H
#define FL_REQUEST_H

#include "fl_pool.h"
#include "fl_shm_queue.h"
#include "fl_transfer_ops.h" /* for fl_dest_buffer */

typedef enum fl_request_state {
    FL_DEFERRED,  /* waits for memory, for room in the worker's queue, or for a worker */
    FL_SENT,      /* the worker has the request */
    FL_TOO_LARGE, /* the worker keeps the batch until it is asked again, with more memory */
    FL_ANSWERED   /* the consumer has the reply */
} fl_request_state;

typedef enum fl_copy_state {
    FL_COPY_UNKNOWN, /* nobody has looked at the reply */
    FL_COPY_NONE,    /* there is nothing to copy, or the copier failed */
    FL_COPY_WAITING, /* in the list of arrived requests: the copier may begin */
    FL_COPYING,      /* the copier's thread is copying */
    FL_COPIED        /* the batch is in its buffer */
} fl_copy_state;

/* One batch that a worker is asked for. Belongs to fl_inflight until its receive has given the
 * request to the consumer. */
typedef struct fl_request {
    /* Only for the consumer's thread. */
    struct fl_request *next; /* in the list of unanswered requests */
    void *key;               /* owned, by drop_key: the consumer's name for the batch */
    fl_request_state state;
    int64_t counted;     /* bytes under way; SENT and 0: the request was cancelled */
    int64_t needed;      /* TOO_LARGE: the limit to send the request with */
    fl_slot *small_slot; /* owned: the slot that was too small; the worker reads this slot until it
                            has answered */
    char *payload;       /* owned: the task, as long as DEFERRED; with keeps_tasks until the end */
    int64_t payload_bytes;
    fl_reply_message reply; /* ANSWERED */
    /* Set before the request is sent, then read-only until it is answered. */
    int32_t worker;
    int64_t turn;   /* position in the order of consumption; -1: no batch, and never copied */
    int64_t number; /* of the message that was sent last */
    int64_t limit;  /* bytes of the slot that the worker may use */
    fl_slot *slot;  /* owned; NULL: DEFERRED, TOO_LARGE, or the consumer has taken the slot */
    /* Guarded by the mutex of fl_sent. */
    fl_copy_state copy;
    struct fl_request *next_arrived;
    int64_t copy_bytes, arrival; /* from the reply as the copier saw it */
    fl_dest_buffer buffer;       /* COPYING, COPIED */
} fl_request;

#endif
