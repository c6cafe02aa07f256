/* fl_shm_queue: queues between processes: requests to workers, replies from them.
 *
 * Floor 1. A parent and its worker processes map the same memory. Each worker has two queues in it,
 * with one writer and one reader each. There is no lock: a process that dies at any instruction
 * leaves a queue with or without its last message, never with half of one. A request names the slot
 * in which its batch is built, so the parent alone hands out memory. A worker answers its
 * requests in order, each at most once. docs/internals/processes.md has the rules.
 *
 * A worker may write anywhere in the shared memory by mistake. Each process therefore keeps its own
 * state in private memory, an fl_shm_queue; the shared memory holds copies for the others. A
 * message is copied once and then checked. What cannot be true is FL_EDAMAGE. */
#ifndef FL_SHM_QUEUE_H
#define FL_SHM_QUEUE_H

#include "fl_base.h"

typedef struct fl_shm_queue fl_shm_queue; /* one process's end of all queues */

enum { FL_FALLBACK_REASONS = 8 }; /* reasons for fallbacks to torch's collate that are counted */

typedef struct fl_request_message {
    int64_t number;    /* of this worker's requests; set by fl_shm_queue_send_request */
    int64_t offset;    /* of the slot, from the arena's base */
    int64_t limit;     /* bytes of it that may be used */
    int64_t bytes;     /* of the pickled task at its start */
    int64_t repeat_of; /* -1, or the number of the request whose batch needed more than its limit */
    uint64_t task_check; /* fl_hash of the pickled task */
    uint64_t check;      /* of all the above; set by fl_shm_queue_send_request, looked at by
                            fl_shm_queue_receive_request */
} fl_request_message;

typedef struct fl_reply_message {
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
    uint64_t check; /* of all the above; set by fl_shm_queue_send_reply, looked at by
                       fl_shm_queue_receive_reply and fl_shm_queue_peek */
} fl_reply_message;

/* Bytes of shared memory, aligned to 64, for so many workers with `depth` (a power of two)
 * unanswered requests each. */
int64_t fl_shm_queue_bytes(int32_t workers, int32_t depth);

/* The parent's end of new queues, before any other process knows of them; a worker's end of those
 * queues, in its own process. FL_OK, FL_ENOMEM. The memory stays mapped until the end is freed. */
int fl_shm_queue_open(void *memory, int32_t workers, int32_t depth, fl_shm_queue **out,
                      fl_err *err);
int fl_shm_queue_attach(void *memory, int32_t workers, int32_t depth, fl_shm_queue **out,
                        fl_err *err);

/* The shared memory stays for the others. NULL is fine. */
void fl_shm_queue_free(fl_shm_queue *shm);

/* ---- the parent, one thread at a time */

/* Queues a request and sets its number; false when `depth` requests are unanswered. Never blocks.
 */
bool fl_shm_queue_send_request(fl_shm_queue *shm, int32_t worker, fl_request_message *request);

/* The reply that arrived first. Never blocks. FL_OK; FL_ETIMEOUT: there is none; FL_EDAMAGE: what
 * is shared with out->worker has been overwritten, and will be found so again. */
int fl_shm_queue_receive_reply(fl_shm_queue *shm, fl_reply_message *out);

/* Blocks until a reply may be there (true), or until the deadline or a signal handler (false). */
bool fl_shm_queue_wait(fl_shm_queue *shm, int64_t deadline_ns);

/* No more requests for this worker: fl_shm_queue_receive_request says so once it has them all. */
void fl_shm_queue_end(fl_shm_queue *shm, int32_t worker);

/* No more work for this worker, at once. Its own process may say so as well, from any thread, once
 * the parent is dead: a parent that lives would take it for damage. */
void fl_shm_queue_close(fl_shm_queue *shm, int32_t worker);

/* How many requests the worker's process has taken, as it says: it was at the last of these when it
 * died, if that is not answered. Whether replies of it wait. */
int64_t fl_shm_queue_begun(const fl_shm_queue *shm, int32_t worker);
bool fl_shm_queue_has_replies(const fl_shm_queue *shm, int32_t worker);

/* Both queues are empty, as at first: for the next process, which has yet to attach. The one before
 * has ended. Requests and replies that were in them are forgotten, and numbers begin at 0 again.
 * Not at the same time as fl_shm_queue_peek. */
void fl_shm_queue_restart(fl_shm_queue *shm, int32_t worker);

/* ---- another thread of the parent, one at a time */

/* The reply at the worker's *cursor (0 at first), which moves on; false when none is there, or none
 * that can be. Those taken meanwhile are passed over. Not at the same time as
 * fl_shm_queue_send_request and fl_shm_queue_receive_reply, and never blocks. */
bool fl_shm_queue_peek(fl_shm_queue *shm, int32_t worker, int64_t *cursor, fl_reply_message *out);

/* Blocks until an event since *seen (0 at first), which it moves on: true; or until the deadline or
 * a signal handler: false. */
bool fl_shm_queue_watch(fl_shm_queue *shm, uint32_t *seen, int64_t deadline_ns);

/* An event that fl_shm_queue_watch returns for. Any thread of the parent. */
void fl_shm_queue_wake(fl_shm_queue *shm);

/* ---- a worker, one thread at a time */

bool fl_shm_queue_is_closed(const fl_shm_queue *shm, int32_t worker);

/* FL_OK; FL_EEND after fl_shm_queue_end or fl_shm_queue_close; FL_ETIMEOUT at the deadline or after
 * a signal handler ran; FL_EDAMAGE: what is shared has been overwritten, as the parent is told. */
int fl_shm_queue_receive_request(fl_shm_queue *shm, int32_t worker, fl_request_message *out,
                                 int64_t deadline_ns);

/* What a request names has been overwritten: the parent's fl_shm_queue_receive_reply says
 * FL_EDAMAGE. */
void fl_shm_queue_report_damage(fl_shm_queue *shm, int32_t worker);

/* Answers a request received; never blocks. */
void fl_shm_queue_send_reply(fl_shm_queue *shm, int32_t worker, fl_reply_message *reply);

#endif
