/* fl_shm_queue: the ring across processes: requests to workers, replies from them.
 *
 * Floor 1. A parent and its worker processes map the same block of memory. Each worker has two
 * queues in it, one writer and one reader each, and there is no lock: whoever dies at whatever
 * instruction leaves the others a queue that is either with his last message or without it. A
 * request names the slot that its batch is to be built in, so memory is handed out by the parent
 * alone. A worker answers its requests in order, each at most once; docs/processes.md draws the
 * states.
 *
 * A worker may write anywhere in that memory by mistake. Each process therefore keeps what it knows
 * itself in memory of its own, an fl_shm_queue; the block holds copies for the others. What is read
 * there is copied once and then checked, and what cannot be is FL_EDAMAGE. */
#ifndef FL_SHM_QUEUE_H
#define FL_SHM_QUEUE_H

#include "fl_base.h"

typedef struct fl_shm_queue fl_shm_queue; /* one process's end */

enum { FL_FALLBACK_REASONS = 8 }; /* kinds of fallbacks that are counted */

typedef struct fl_request {
    int64_t number; /* of this worker's requests; set by fl_shm_queue_send_request */
    int64_t offset; /* of the slot, from the arena's base */
    int64_t limit;  /* bytes of it that may be used */
    int64_t bytes;  /* of the pickled task at its start */
    int64_t again;  /* -1, or the number of the request whose batch needed more than its limit */
    uint64_t task;  /* fl_hash of the pickled task */
    uint64_t check; /* of all the above; set by fl_shm_queue_send_request, looked at by
                       fl_shm_queue_receive_request */
} fl_request;

typedef struct fl_reply {
    int64_t number; /* of the request answered */
    int32_t worker; /* set by fl_shm_queue_send_reply */
    int32_t kind; /* > 0 a batch, 0 something else, < 0 the batch needs `used` bytes: send again */
    int64_t arrival; /* set by fl_shm_queue_send_reply: order among all workers' replies */
    int64_t used;    /* bytes from the start of the slot that hold the answer */
    int64_t head;    /* where, from the slot's start, its pickled part begins */
    int64_t head_bytes;
    uint64_t head_check;      /* fl_hash of the pickled part */
    int64_t upload;           /* bytes from the slot's start that a device may have */
    int64_t busy_ns, wait_ns; /* since the reply before: at work, waiting for requests */
    int32_t fallbacks[FL_FALLBACK_REASONS]; /* since the reply before */
    uint64_t
        check; /* of all the above; set by fl_shm_queue_send_reply, looked at by take and peek */
} fl_reply;

/* Bytes of shared memory, aligned to 64, for so many workers with `depth` (a power of two)
 * unanswered requests each. */
int64_t fl_shm_queue_bytes(int32_t workers, int32_t depth);

/* The parent's end of a new ring, before any other process knows of it; a worker's end of that ring
 * in its own process. FL_OK, FL_ENOMEM. The memory stays mapped until the end is freed. */
int fl_shm_queue_open(void *memory, int32_t workers, int32_t depth, fl_shm_queue **out,
                      fl_err *err);
int fl_shm_queue_attach(void *memory, int32_t workers, int32_t depth, fl_shm_queue **out,
                        fl_err *err);

/* The ring stays as it is for the others. NULL is fine. */
void fl_shm_queue_free(fl_shm_queue *shm);

/* ---- the parent, one thread at a time */

/* Queues a request and sets its number; false when `depth` are unanswered. Never blocks. */
bool fl_shm_queue_send_request(fl_shm_queue *shm, int32_t worker, fl_request *request);

/* The reply that arrived first. Never blocks. FL_OK; FL_ETIMEOUT: there is none; FL_EDAMAGE: what
 * is shared with out->worker has been overwritten, and will be found so again. */
int fl_shm_queue_receive_reply(fl_shm_queue *shm, fl_reply *out);

/* Blocks until a reply may be there (true), or until the deadline or a signal handler (false). */
bool fl_shm_queue_wait(fl_shm_queue *shm, int64_t deadline_ns);

/* No more requests for this worker: fl_shm_queue_receive_request says so once it has them all. */
void fl_shm_queue_end(fl_shm_queue *shm, int32_t worker);

/* No more work for this worker, at once. Its own process may say so as well, from any thread, once
 * the parent is dead: a parent that lives would take it for damage. */
void fl_shm_queue_close(fl_shm_queue *shm, int32_t worker);

/* ---- another thread of the parent, one at a time */

/* The reply at the worker's *cursor (0 at first), which moves on; false when none is there, or none
 * that can be. Those taken meanwhile are passed over. Not at the same time as
 * fl_shm_queue_send_request and fl_shm_queue_receive_reply, and never blocks. */
bool fl_shm_queue_peek(fl_shm_queue *shm, int32_t worker, int64_t *cursor, fl_reply *out);

/* Blocks until there is news since *seen (0 at first), which it moves on: true; or until the
 * deadline or a signal handler: false. */
bool fl_shm_queue_watch(fl_shm_queue *shm, uint32_t *seen, int64_t deadline_ns);

/* Makes news for fl_shm_queue_watch. Any thread of the parent. */
void fl_shm_queue_wake(fl_shm_queue *shm);

/* ---- a worker, one thread at a time */

bool fl_shm_queue_is_closed(const fl_shm_queue *shm, int32_t worker);

/* FL_OK; FL_EEND after fl_shm_queue_end or fl_shm_queue_close; FL_ETIMEOUT at the deadline or after
 * a signal handler ran; FL_EDAMAGE: what is shared has been overwritten, as the parent is told. */
int fl_shm_queue_receive_request(fl_shm_queue *shm, int32_t worker, fl_request *out,
                                 int64_t deadline_ns);

/* What a request names has been overwritten: the parent's fl_shm_queue_receive_reply says
 * FL_EDAMAGE. */
void fl_shm_queue_report_damage(fl_shm_queue *shm, int32_t worker);

/* Answers a request received; never blocks. */
void fl_shm_queue_send_reply(fl_shm_queue *shm, int32_t worker, fl_reply *reply);

#endif
