/* fl_py_array_ring: the batches of an array loader between the sampler and the user: the ring, the
 * source of indices, and the destination. fl_py_submit fills the ring, and fl_py_deliver empties
 * it.
 *
 * All functions except stop need the interpreter lock (if the interpreter has one) and the loader's
 * own lock: one thread at a time. */
#ifndef FL_PY_ARRAY_RING_H
#define FL_PY_ARRAY_RING_H

#include "fl_py_array_destination.h"
#include "fl_py_batch_pool.h"
#include "fl_py_index_source.h"

#include <stdatomic.h>

/* The kinds of batches in the ring: rows, one row without the batch dimension, the end of an epoch
 * that the next epoch follows, or a sentinel. A sentinel's tag is FL_PY_TAG_SENTINEL, or a larger
 * number that is a key of fl_py_array_ring.sentinels. */
enum { FL_PY_TAG_BATCH, FL_PY_TAG_SINGLE, FL_PY_TAG_END, FL_PY_TAG_SENTINEL };

typedef struct fl_py_array_ring {
    /* new sets these fields; afterwards they are read-only. */
    fl_py_batch_pool *pool; /* owned */
    PyObject *fetch;     /* owned: function that makes a batch from an item of the sampler, with the
                            dataset and collate_fn */
    PyObject *structure; /* owned: the structure of a batch, see fl_py_structure */
    PyObject *wrap;      /* owned: called with each batch, and returns the user's batch; or None */
    PyObject *timeout;   /* owned: the user's timeout in seconds; 0: none */
    int64_t timeout_ns;
    int64_t depth; /* most batches in flight: workers * prefetch, or 1 */
    bool is_persistent, runs_ahead;
    fl_py_table *table; /* owned */
    bool reads_files;   /* the table is volatile */

    fl_py_index_source indices;
    fl_py_array_destination destination;
    fl_ring *ring;   /* borrowed from opened; NULL: closed, or finished and not persistent */
    fl_ring *opened; /* owned: set by new, freed with the loader or left to the pool; so close() may
                        stop the ring from any thread while a different thread ends the ring */
    PyObject *sentinels;   /* owned: {tag: exception, (item,) for an item to be fetched, or (item,
                              exception) for an index out of bounds} */
    int64_t next_sentinel; /* the tag of the next sentinel */
    PyObject *pending_result; /* owned: a batch that was ready when an interrupt came; the next call
                                 returns it */
    fl_batch *deferred;   /* borrowed from the ring: the prepared and resolved batch that waits for
                             memory; NULL: no batch waits */
    fl_err deferred_err;  /* why the batch waits */
    fl_batch undelivered; /* if is_undelivered: received from the ring and not delivered; the slot
                             is owned */
    bool is_undelivered;
    bool is_over;    /* next() has come to FL_PY_TAG_END, and the rest of the ring is read ahead */
    bool has_raised; /* reading the sampler ahead has raised, so indices may be missing */
    uint32_t epoch;  /* of the batches submitted next, for the plans of the table */
    int64_t most_bytes;      /* of the largest batch of this epoch */
    int64_t most_work_bytes; /* of the batch with the most work in this epoch */
    atomic_bool is_closed;   /* SHARED(is_closed): set by any thread's close(), never cleared */
} fl_py_array_ring;

/* Opens the ring with this many threads: 0, or -1 and an exception. */
int fl_py_array_ring_open(fl_py_array_ring *self, int32_t threads, bool is_in_order);

/* Submits the end of the epoch. Batches that are submitted later belong to the next epoch: next()
 * gives them only after fl_py_array_ring_enter. */
void fl_py_array_ring_submit_end(fl_py_array_ring *self);

/* Returns true if next() would give no batch: it has come to the end of the epoch, or would receive
 * the end, or nothing is submitted. */
bool fl_py_array_ring_is_at_end(const fl_py_array_ring *self);

/* Enters the next epoch, with the batches that were read ahead. Returns false, and does nothing, if
 * none were, if a batch of the present epoch has not been handed out, or if meanwhile the sampler
 * has raised or batch_size has changed. */
bool fl_py_array_ring_enter(fl_py_array_ring *self);

/* Drops the submitted batches. Releases the interpreter lock; SYNC for a device. */
void fl_py_array_ring_reset(fl_py_array_ring *self);

/* Marks the ring as closed, and wakes the thread that waits for a batch. Any thread, without the
 * loader's lock. */
void fl_py_array_ring_stop(fl_py_array_ring *self);

/* Wakes threads for what has been submitted. Releases the interpreter lock if threads sleep. */
void fl_py_array_ring_wake(fl_py_array_ring *self);

/* Forgets the epoch: the sampler, the sentinels and the pending result. */
void fl_py_array_ring_drop_epoch(fl_py_array_ring *self);

/* Drops the submitted batches, and ends the threads or leaves the ring to the pool's next iterator;
 * until then the threads read the table's sources. Closing twice is fine. Releases the interpreter
 * lock; SYNC for a device. */
void fl_py_array_ring_close(fl_py_array_ring *self);

/* Frees the ring that stop uses. The ring must be closed, and nobody can call stop any more. */
void fl_py_array_ring_free(fl_py_array_ring *self);

#endif
