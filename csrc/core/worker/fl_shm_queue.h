/* fl_shm_queue: queues between processes: requests to workers, replies from workers.
 *
 * Floor 1. A parent and its worker processes map the same memory. Each worker has two queues in
 * that memory, with one writer and one reader each. There is no lock: a process that dies at any
 * instruction leaves a queue with or without its last message, never with half a message. A request
 * names the slot for its batch, so only the parent hands out memory. A worker answers its requests
 * in order, each at most once. docs/internals/processes.md has the rules.
 *
 * A worker may write anywhere in the shared memory by mistake. Each process therefore keeps its own
 * state in private memory, an fl_shm_queue; the shared memory holds copies for the other side. A
 * message is copied once and then checked. If a value is impossible, the call fails with
 * FL_EDAMAGE. */
#ifndef FL_SHM_QUEUE_H
#define FL_SHM_QUEUE_H

#include "fl_base.h"

typedef struct fl_shm_queue fl_shm_queue; /* one process's end of all queues */

enum { FL_FALLBACK_REASONS = 8 }; /* counted reasons for fallbacks to torch's collate */

typedef struct fl_request_message {
    int64_t number;    /* among this worker's requests; set by fl_shm_queue_send_request */
    int64_t offset;    /* of the slot, from the arena's base */
    int64_t limit;     /* bytes of the slot that may be used */
    int64_t bytes;     /* of the pickled task at the slot's start */
    int64_t repeat_of; /* -1, or the number of the request whose batch needed more than its limit */
    uint64_t task_check; /* fl_hash of the pickled task */
    uint64_t check;      /* of all fields above; set by fl_shm_queue_send_request, checked by
                            fl_shm_queue_receive_request */
} fl_request_message;

typedef struct fl_reply_message {
    int64_t number;  /* of the answered request */
    int32_t worker;  /* set by fl_shm_queue_send_reply */
    int32_t kind;    /* > 0: a batch; 0: no batch; < 0: the batch needs `used` bytes, send again */
    int64_t arrival; /* set by fl_shm_queue_send_reply: order among all workers' replies */
    int64_t used;    /* bytes of the answer, from the slot's start */
    int64_t head;    /* begin of the pickled part, from the slot's start */
    int64_t head_bytes;
    uint64_t head_check;      /* fl_hash of the pickled part */
    int64_t upload;           /* bytes from the slot's start that may be copied to a device */
    int64_t busy_ns, wait_ns; /* since the last reply: at work, waiting for requests */
    int32_t fallbacks[FL_FALLBACK_REASONS]; /* since the last reply */
    uint64_t check; /* of all fields above; set by fl_shm_queue_send_reply, checked by
                       fl_shm_queue_receive_reply and fl_shm_queue_peek */
} fl_reply_message;

/* Returns the bytes of shared memory, aligned to 64, for `workers` workers with `depth` (a power of
 * two) unanswered requests each. */
int64_t fl_shm_queue_bytes(int32_t workers, int32_t depth);

/* Open the parent's end of new queues, before any other process knows the memory, and a worker's
 * end of these queues, in the worker's process. FL_OK, FL_ENOMEM. The caller frees *out, and keeps
 * the memory mapped until then. */
int fl_shm_queue_open(void *memory, int32_t workers, int32_t depth, fl_shm_queue **out,
                      fl_err *err);
int fl_shm_queue_attach(void *memory, int32_t workers, int32_t depth, fl_shm_queue **out,
                        fl_err *err);

/* Frees this process's end; the shared memory stays. NULL is fine. */
void fl_shm_queue_free(fl_shm_queue *shm);

/* ---- for the parent, one thread at a time */

/* Queues a request and sets its number; returns false if `depth` requests are unanswered. Never
 * blocks. */
bool fl_shm_queue_send_request(fl_shm_queue *shm, int32_t worker, fl_request_message *request);

/* Receives the reply that arrived first. Never blocks. FL_OK; FL_ETIMEOUT: no reply has come;
 * FL_EDAMAGE: memory shared with out->worker has been overwritten, and later calls will fail
 * again. */
int fl_shm_queue_receive_reply(fl_shm_queue *shm, fl_reply_message *out);

/* Blocks until a reply may be there (true), or until the deadline or a signal handler (false). */
bool fl_shm_queue_wait(fl_shm_queue *shm, int64_t deadline_ns);

/* Ends the requests for this worker: once the worker has received every request,
 * fl_shm_queue_receive_request returns FL_EEND. */
void fl_shm_queue_end(fl_shm_queue *shm, int32_t worker);

/* Ends the work of this worker at once. If the parent is dead, any thread of the worker's own
 * process may also call this function; a living parent would take the call for damage. */
void fl_shm_queue_close(fl_shm_queue *shm, int32_t worker);

/* The first returns how many requests the worker's process has taken, in the process's own words:
 * if the last of them is not answered, the process worked on it when it died. The second returns
 * true if replies of the worker wait. */
int64_t fl_shm_queue_begun(const fl_shm_queue *shm, int32_t worker);
bool fl_shm_queue_has_replies(const fl_shm_queue *shm, int32_t worker);

/* Empties both queues for the worker's next process, which has not attached yet; the last process
 * has ended. Requests and replies in the queues are forgotten, and numbers begin at 0 again. Not at
 * the same time as fl_shm_queue_peek. */
void fl_shm_queue_restart(fl_shm_queue *shm, int32_t worker);

/* ---- for a second thread of the parent, one at a time */

/* Copies the reply at the worker's *cursor (0 at first), and moves the cursor on. Returns false if
 * there is no reply, or an impossible one. Replies that were taken meanwhile are passed over. Not
 * at the same time as fl_shm_queue_send_request and fl_shm_queue_receive_reply; never blocks. */
bool fl_shm_queue_peek(fl_shm_queue *shm, int32_t worker, int64_t *cursor, fl_reply_message *out);

/* Blocks until an event that is newer than *seen (0 at first), and updates *seen: true; or until
 * the deadline or a signal handler: false. */
bool fl_shm_queue_watch(fl_shm_queue *shm, uint32_t *seen, int64_t deadline_ns);

/* Makes fl_shm_queue_watch return. Any thread of the parent. */
void fl_shm_queue_wake(fl_shm_queue *shm);

/* ---- for a worker, one thread at a time */

bool fl_shm_queue_is_closed(const fl_shm_queue *shm, int32_t worker);

/* Receives a request. FL_OK; FL_EEND after fl_shm_queue_end or fl_shm_queue_close; FL_ETIMEOUT at
 * the deadline or after a signal handler; FL_EDAMAGE: shared memory has been overwritten, and the
 * parent is told. */
int fl_shm_queue_receive_request(fl_shm_queue *shm, int32_t worker, fl_request_message *out,
                                 int64_t deadline_ns);

/* Reports that the memory a request names has been overwritten: the parent's
 * fl_shm_queue_receive_reply fails with FL_EDAMAGE. */
void fl_shm_queue_report_damage(fl_shm_queue *shm, int32_t worker);

/* Answers a received request; never blocks. */
void fl_shm_queue_send_reply(fl_shm_queue *shm, int32_t worker, fl_reply_message *reply);

#endif
