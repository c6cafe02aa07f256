/* fl_py_parent_end: what the three parts of a hub share: the type, the books, and where batches
 * land. */
#ifndef FL_PY_PARENT_END_H
#define FL_PY_PARENT_END_H

#include "fl_py.h"

#include "fl_cuda_transfer.h"

typedef struct fl_py_request {
    fl_slot *slot;       /* owned, FILLING; NULL when the request is answered */
    fl_slot *before;     /* owned: the slot that was too small and may still be read */
    fl_transfer *errand; /* owned; NULL unless batches land */
    PyObject *key;       /* owned; NULL when nothing is booked */
    int64_t number;      /* of the request */
    int64_t limit;
    bool is_counted; /* in under_way and unanswered */
} fl_py_request;

typedef struct fl_py_worker {
    int64_t batches, busy_ns, wait_ns;
} fl_py_worker;

typedef struct fl_py_parent_end {
    PyObject_HEAD
    fl_py_dlpack door;
    fl_py_batch_pool *slots; /* owned */
    fl_region *control;      /* owned: where shm lies */
    fl_shm_queue *shm;       /* owned, over control */
    uint32_t generation;     /* of the process that made it */
    int32_t workers, depth;
    fl_py_request *bookings; /* owned: depth for each worker, at number % depth */
    fl_py_worker *counts;    /* owned: one for each worker */
    int64_t fallbacks[FL_FALLBACK_REASONS];
    int64_t budget;      /* bytes that may be under way */
    int64_t under_way;   /* bytes of requests and of replies not opened */
    int64_t unanswered;  /* requests that workers have */
    bool is_closed;      /* workers were told to stop */
    bool is_overwritten; /* fl_py_parent_end_blame was called */
    bool is_released;    /* all workers have ended */
    bool has_waited;     /* since the last reply */
    void *stage;         /* owned; NULL unless they land on a device */
    fl_copier *courier;  /* owned; NULL unless they land */
    int64_t room;        /* bytes that batches of late need where they land */
} fl_py_parent_end;

/* The booking of a request, or of one `depth` before or after it. */
static inline fl_py_request *
fl_py_request_of(fl_py_parent_end *self, int32_t worker, int64_t number)
{
    return &self->bookings[(int64_t)worker * self->depth + (number & (self->depth - 1))];
}

/* The request is answered, or never will be; `freed` bytes are no longer under way. */
void fl_py_request_settle(fl_py_parent_end *self, fl_py_request *booked, int64_t freed);

/* Settles it and lets go of its memory, to which no worker may write any more. */
void fl_py_request_forget(fl_py_parent_end *self, fl_py_request *booked);

/* Sends and books a request: 1 sent, 0 no room in the budget (unless forced) or the queue now, -1
 * exception. With `again` >= 0, the number of the request whose batch was too large, for `limit`
 * bytes and with its slot `before`, which is the new booking's once it is sent. */
int fl_py_parent_end_send(fl_py_parent_end *self, int worker, PyObject *key, int64_t limit,
                          bool is_forced, const Py_buffer *payload, int64_t again, fl_slot *before);

/* What came: (key, parcel), or (key, worker, number, bytes needed); None for what nobody wants any
 * more. New reference. */
PyObject *fl_py_parent_end_deliver(fl_py_parent_end *self, const fl_reply_message *reply);

/* RuntimeError for a worker with which memory is shared that holds what it cannot; NULL. */
PyObject *fl_py_parent_end_blame(fl_py_parent_end *self, int32_t worker);

/* ---- fl_py_reply_destination.c: for hubs with a courier */

int fl_py_reply_destination_open(fl_py_parent_end *self, fl_err *err);

/* No copy begins any more, and slots that were copied are given back; then, with the hub itself,
 * the rest. SYNC, without the interpreter lock. */
void fl_py_reply_destination_stop(fl_py_parent_end *self);
void fl_py_reply_destination_close(fl_py_parent_end *self);

/* How many blocks of `room` bytes are wanted for what comes from the `first` batch on; -1: for
 * whatever comes first. */
int32_t fl_py_reply_destination_expect(fl_py_parent_end *self, int64_t first);

/* Whether the budget has room for so many bytes more: what copies still read is counted, too. */
bool fl_py_reply_destination_fits(fl_py_parent_end *self, int64_t bytes);

/* Takes back those that are not in use. */
void fl_py_reply_destination_rest(fl_py_parent_end *self);

/* Lends it one of them, a tensor: 0, or -1 with an exception. */
int fl_py_reply_destination_supply(fl_py_parent_end *self, PyObject *block, int64_t bytes);

/* Ends the errand of a batch that nobody wants, if there is one: true if the slot is given back.
 * Waits while it is being carried. */
bool fl_py_reply_destination_end(fl_py_parent_end *self, fl_transfer *errand, fl_slot *slot);

/* The same for a batch that has been carried to the berth. */
void fl_py_reply_destination_abandon(fl_py_parent_end *self, const fl_dest_buffer *berth,
                                     fl_slot *slot);

/* The batch is in parcel->berth, where the current stream will find it: 1 if that block is another
 * stream's, 0 if not, and the slot is given back. -1: exception, to be tried again. */
int fl_py_reply_destination_land(fl_py_reply *parcel, PyObject *new_block);

#endif
