/* fl_py_array_loader: the engine of an iterator over array data, as its four files share it.
 *
 * fl_py_submit.c pulls indices and posts batches, fl_py_deliver.c takes them,
 * fl_py_array_destination.c sees them to a device, fl_py_array_loader.c is the type. */
#ifndef FL_PY_ARRAY_LOADER_H
#define FL_PY_ARRAY_LOADER_H

#include "fl_py.h"

#include "fl_cuda_transfer.h"

enum {
    FL_PY_RAISED = 1,  /* a status: a Python exception is set */
    FL_PY_WAIT_MS = 50 /* between two looks at signals */
};

typedef enum {
    FL_PY_BLOCKS,  /* the source yields int64 vectors and (first, count) ranges, to be cut into
                      batches */
    FL_PY_BATCHES, /* the source yields the indices of one batch */
    FL_PY_SINGLES  /* the source yields one index, or a list of them, as batch_size=None has it */
} fl_py_array_loader_kind;

/* What a batch in the ring is, modulo FL_PY_TAGS: rows, a row without batch dimension, or a mark,
 * whose tag is its key in feed.marks. The rest is the number of an upload's ticket. */
enum { FL_PY_TAG_BATCH, FL_PY_TAG_SINGLE, FL_PY_TAG_MARK, FL_PY_TAGS };

/* A posted batch that is to be in a block: copied to a device, or gathered there. */
typedef struct fl_py_ticket {
    bool is_used;
    bool is_filled;  /* before it was aimed: see fl_cuda_transfer_aim */
    int64_t bytes;   /* of the batch */
    void *upload;    /* owned; NULL unless for a device */
    PyObject *block; /* owned: a tensor; NULL, on a device: none yet */
    char *data;      /* the block, unless it is on a device */
    void *stream;    /* of a device: the current one when the block was made */
} fl_py_ticket;

typedef struct fl_py_array_loader {
    PyObject_HEAD
    /* Set by new, then read-only. */
    fl_py_batch_pool *slots; /* owned */
    PyObject *fetch;   /* owned: what the dataset and collate_fn make of an item of the source */
    PyObject *keys;    /* owned: tuple of dict keys, or None */
    PyObject *maps;    /* owned: tuple of arrays the plan borrows */
    PyObject *timeout; /* owned: seconds, as the user gave them; 0: none */
    int64_t timeout_ns;
    PyObject *new_block; /* owned, like split; None: batches stay in slots */
    PyObject *split;
    int64_t depth;  /* batches in flight: workers * prefetch, or 1 */
    int64_t budget; /* bytes that batches of feeds with tickets may take ahead */
    bool is_persistent, runs_ahead;
    uint32_t generation;
    PyThread_type_lock lock; /* owned: around next, restart, use and close */
    /* With the lock held. */
    unsigned long owner; /* thread in the lock, 0: none; read by anyone for its own id */
    fl_py_table *table;  /* owned; another one only while nothing is posted */
    fl_py_array_loader_kind kind;
    int64_t batch_size; /* of FL_PY_BLOCKS, and so is drop_last */
    bool drop_last;
    fl_plan *plan;           /* owned */
    fl_ring *ring;           /* owned; NULL: closed, or finished and not persistent */
    PyObject *batch_sampler; /* owned: of FL_PY_BLOCKS, whose batch_size may change */
    PyObject *source;        /* owned: iterator; NULL: used up */
    PyObject *block;         /* owned: what the plan's block borrows */
    PyObject *marks;         /* owned: {tag: exception or (item,)} */
    PyObject *held;          /* owned: a batch taken when an interrupt came, for the next call */
    int64_t next_mark;
    void *stage;           /* owned; NULL: batches stay on the CPU, or closed */
    fl_py_ticket *tickets; /* owned: `depth` of them; NULL: batches stay in slots */
    fl_batch *unposted; /* borrowed from the ring: a batch of resolved rows that could not be posted
                           yet, NULL if there is none */
    fl_err unposted_err;
    PyObject *refusal; /* owned: what new_block raised for it, in pinned memory; or NULL */
    fl_batch late;     /* taken from the ring and not delivered, its slot owned, if is_late */
    bool is_late;
    bool fills_itself;  /* the consumer may copy instead of waiting: no disk is behind the table */
    int64_t most_bytes; /* of a batch of this epoch */
    bool is_closed;     /* interpreter lock */
} fl_py_array_loader;

/* Posts the next batch of the source, or a mark in its place: 1 posted, 0 the source is used up or
 * there was no memory for the batch (unposted), -1 exception. The lock is held and the ring has
 * room. */
int fl_py_submit_next(fl_py_array_loader *self);

/* Looks at batch_sampler.batch_size; -1 exception. */
int fl_py_read_batch_size(fl_py_array_loader *self);

/* The next batch, or NULL at the end (without exception) or on one. The lock is held. */
PyObject *fl_py_deliver_next(fl_py_array_loader *self);

/* Drops what is posted. Lets go of the interpreter lock; SYNC for a device. */
void fl_py_array_loader_reset_ring(fl_py_array_loader *self);

/* Ends the threads, too; until then they read the table's sources. */
void fl_py_array_loader_close_ring(fl_py_array_loader *self);

/* ---- fl_py_array_destination.c: for feeds with tickets */

int fl_py_array_destination_open(fl_py_array_loader *self);

/* Gives the batch to be posted a ticket, which its tag then names, and its memory or transfer.
 * FL_ENOMEM: none, for want of memory or because others are to be taken first. An interrupt may
 * have come: an exception is set then, and after FL_OK the batch is to be posted all the same. */
int fl_py_array_destination_post(fl_py_array_loader *self, fl_batch *batch, fl_err *err);

/* The next batches get their blocks, as far as there is memory; on a device. -1: an interrupt has
 * come. */
int fl_py_array_destination_ahead(fl_py_array_loader *self);

/* Takes back the ticket of a batch that is not delivered and was not copied, if it has one; and all
 * tickets, once the stage is halted. */
void fl_py_array_destination_drop(fl_py_array_loader *self, int64_t tag);
void fl_py_array_destination_forget(fl_py_array_loader *self);

/* A filled batch as tensors over its block, for the current stream. NULL with self->is_late: the
 * exception is that of the upload, and the batch is still to come. */
PyObject *fl_py_array_destination_deliver(fl_py_array_loader *self, const fl_batch *batch);

#endif
