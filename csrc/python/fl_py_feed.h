/* fl_py_feed: the engine of an iterator over array data, as its three files share it.
 *
 * fl_py_post.c pulls indices and posts batches, fl_py_take.c takes them, fl_py_feed.c is the
 * type. */
#ifndef FL_PY_FEED_H
#define FL_PY_FEED_H

#include "fl_py.h"

enum {
    FL_PY_RAISED = 1,  /* a status: a Python exception is set */
    FL_PY_WAIT_MS = 50 /* between two looks at signals */
};

typedef enum {
    FL_PY_BLOCKS,  /* the source yields int64 vectors and (first, count) ranges, to be cut into
                      batches */
    FL_PY_BATCHES, /* the source yields the indices of one batch */
    FL_PY_SINGLES  /* the source yields one index, or a list of them, as batch_size=None has it */
} fl_py_feed_kind;

/* What a batch in the ring is: rows, a row without batch dimension, or a key of feed.marks. */
enum { FL_PY_TAG_BATCH = 0, FL_PY_TAG_SINGLE = 1, FL_PY_TAG_MARK = 2 };

typedef struct fl_py_feed {
    PyObject_HEAD
    /* Set by new, then read-only. */
    fl_py_slots *slots; /* owned */
    PyObject *fetch;    /* owned: what the dataset and collate_fn make of an item of the source */
    PyObject *keys;     /* owned: tuple of dict keys, or None */
    PyObject *maps;     /* owned: tuple of arrays the plan borrows */
    PyObject *timeout;  /* owned: seconds, as the user gave them; 0: none */
    int64_t timeout_ns;
    int64_t depth; /* batches in flight: workers * prefetch, or 1 */
    bool is_persistent, runs_ahead;
    uint32_t generation;
    PyThread_type_lock lock; /* owned: around next, restart, use and close */
    /* With the lock held. */
    unsigned long owner; /* thread in the lock, 0: none; read by anyone for its own id */
    fl_py_table *table;  /* owned; another one only while nothing is posted */
    fl_py_feed_kind kind;
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
    bool fills_itself;  /* the consumer may copy instead of waiting: no disk is behind the table */
    int64_t most_bytes; /* of a batch of this epoch */
    bool is_closed;     /* interpreter lock */
} fl_py_feed;

/* Posts the next batch of the source, or a mark in its place: 1 posted, 0 the source is used up,
 * -1 exception and nothing posted. The lock is held and the ring has room. */
int fl_py_post_next(fl_py_feed *self);

/* Looks at batch_sampler.batch_size; -1 exception. */
int fl_py_read_batch_size(fl_py_feed *self);

/* The next batch, or NULL at the end (without exception) or on one. The lock is held. */
PyObject *fl_py_take_next(fl_py_feed *self);

/* Ends the threads; until then they read the table's sources. Lets go of the interpreter lock. */
void fl_py_feed_close_ring(fl_py_feed *self);

#endif
