/* fl_py_array_ring: the batches of an array loader on their way: the ring, where their indices come
 * from, and where they go. fl_py_submit fills it, fl_py_deliver empties it.
 *
 * All functions but stop need the interpreter lock, if there is one, and the loader's own lock: one
 * thread at a time. */
#ifndef FL_PY_ARRAY_RING_H
#define FL_PY_ARRAY_RING_H

#include "fl_py_array_destination.h"
#include "fl_py_batch_pool.h"
#include "fl_py_index_source.h"

#include <stdatomic.h>

/* What a batch of the ring is: rows, one row without the batch dimension, or a sentinel, whose tag
 * is FL_PY_TAG_SENTINEL or a key of fl_py_array_ring.sentinels, which are larger. */
enum { FL_PY_TAG_BATCH, FL_PY_TAG_SINGLE, FL_PY_TAG_SENTINEL };

typedef struct fl_py_array_ring {
    /* Set by new, then read-only. */
    fl_py_batch_pool *pool; /* owned */
    PyObject *fetch;     /* owned: what the dataset and collate_fn make of an item of the sampler */
    PyObject *structure; /* owned: of a batch, see fl_py_structure */
    PyObject *wrap;      /* owned: called with each batch, and gives what is handed out; or None */
    PyObject *timeout;   /* owned: seconds, as the user gave them; 0: none */
    int64_t timeout_ns;
    int64_t depth; /* batches in flight: workers * prefetch, or 1 */
    bool is_persistent, runs_ahead;
    fl_py_table *table; /* owned */
    bool reads_files;   /* the table is volatile */

    fl_py_index_source indices;
    fl_py_array_destination destination;
    fl_ring *ring;       /* borrowed from opened; NULL: closed, or finished and not persistent */
    fl_ring *opened;     /* owned: set by new, freed with the loader or left to the pool. So close()
                            of any thread may stop it while another thread ends it */
    PyObject *sentinels; /* owned: {tag: exception, (item,) to be fetched, or (item, exception) with
                            an index out of bounds} */
    int64_t next_sentinel; /* the tag of the next one */
    PyObject
        *pending_result;  /* owned: a batch delivered when an interrupt came, for the next call */
    fl_batch *deferred;   /* borrowed from the ring: the prepared batch, resolved, which waits for
                             memory; NULL: there is none */
    fl_err deferred_err;  /* why it waits */
    fl_batch undelivered; /* received from the ring and not delivered, if is_undelivered; its slot
                             is owned */
    bool is_undelivered;
    uint32_t epoch;          /* for the plans of the table */
    int64_t most_bytes;      /* of a batch of this epoch; */
    int64_t most_work_bytes; /* likewise */
    atomic_bool is_closed;   /* SHARED(is_closed): set by close() of any thread, then stays */
} fl_py_array_ring;

/* Opens the ring with so many threads: 0, or -1 and an exception. */
int fl_py_array_ring_open(fl_py_array_ring *self, int32_t threads, bool is_in_order);

/* Drops what is submitted. Lets go of the interpreter lock; SYNC for a device. */
void fl_py_array_ring_reset(fl_py_array_ring *self);

/* Wakes the thread that waits for a batch. Any thread, without the loader's lock. */
void fl_py_array_ring_stop(fl_py_array_ring *self);

/* Forgets the epoch: sampler, sentinels, the pending result. */
void fl_py_array_ring_drop_epoch(fl_py_array_ring *self);

/* Drops what is submitted and ends the threads, or leaves them to the next iterator of the pool;
 * until then they read the table's sources. Twice is fine. Lets go of the interpreter lock; SYNC
 * for a device. */
void fl_py_array_ring_close(fl_py_array_ring *self);

/* Frees what stop needs, of a closed one: nobody can call any more. */
void fl_py_array_ring_free(fl_py_array_ring *self);

#endif
