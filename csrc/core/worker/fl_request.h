/* fl_request: one request in flight, an entry of fl_inflight's table: what states it has, and which
 * thread may look at which field. docs/internals/processes.md draws the states. */
#ifndef FL_REQUEST_H
#define FL_REQUEST_H

#include "fl_pool.h"
#include "fl_shm_queue.h"
#include "fl_transfer_ops.h" /* fl_dest_buffer */

typedef enum fl_request_state {
    FL_DEFERRED,  /* waits for memory, for room in the worker's queue, or for a worker */
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

/* One batch that a worker is asked for. fl_inflight's until its receive has given it to the
 * consumer.
 */
typedef struct fl_request {
    /* The consumer's thread alone. */
    struct fl_request *next; /* among those that are not answered */
    void *key;               /* owned, by drop_key: what the consumer knows the batch by */
    fl_request_state state;
    int64_t counted;     /* bytes of it that are under way; SENT and 0: it was cancelled */
    int64_t needed;      /* TOO_LARGE: bytes to send it with */
    fl_slot *small_slot; /* owned: was too small; the worker reads it until it has answered */
    char *payload;       /* owned: the task, while DEFERRED; with keeps_tasks until the end */
    int64_t payload_bytes;
    fl_reply_message reply; /* ANSWERED */
    /* Set before the request is sent, then read-only until it is answered. */
    int32_t worker;
    int64_t turn;   /* place in the order of consumption; -1: no batch, and never copied */
    int64_t number; /* of the message last sent for it */
    int64_t limit;  /* bytes that the worker may use of the slot */
    fl_slot *slot;  /* owned; NULL: DEFERRED, TOO_LARGE, or the consumer has taken it */
    /* The mutex of fl_sent. */
    fl_copy_state copy;
    struct fl_request *next_arrived;
    int64_t copy_bytes, arrival; /* of the reply as the copier saw it */
    fl_dest_buffer buffer;       /* COPYING, COPIED */
} fl_request;

#endif
