/* fl_read_ahead: whether files should be asked for ahead, because reads wait for the disk.
 *
 * Floor 0. Asking the system to read ahead costs a call for each part of a file, and helps only
 * while the system has not cached the file. So a reader notes how long its reads take. Any thread;
 * never blocks. The count is approximate, so its order is relaxed. */
#ifndef FL_READ_AHEAD_H
#define FL_READ_AHEAD_H

#include "fl_thread.h"

enum {
    FL_SLOW_READ_NS = 200 * 1000,   /* a read that takes longer has waited for the disk */
    FL_BATCHES_AFTER_SLOW_READ = 64 /* batches that are read ahead after a slow read */
};

typedef struct fl_read_ahead {
    _Atomic int32_t batches; /* still to be read ahead */
} fl_read_ahead;

/* Begins to read ahead, because reads will show whether files are cached. */
static inline void fl_read_ahead_begin(fl_read_ahead *ahead)
{
    atomic_store_explicit(&ahead->batches, FL_BATCHES_AFTER_SLOW_READ, memory_order_relaxed);
}

/* Notes a read that began at began_ns (fl_now_ns clock) and has ended now. */
static inline void fl_read_ahead_note(fl_read_ahead *ahead, int64_t began_ns)
{
    if (fl_now_ns() - began_ns >= FL_SLOW_READ_NS) fl_read_ahead_begin(ahead);
}

/* Returns true if a batch should be read ahead. Ask once for each batch, because each call counts
 * as a batch. */
static inline bool fl_read_ahead_take(fl_read_ahead *ahead)
{
    if (atomic_load_explicit(&ahead->batches, memory_order_relaxed) <= 0) return false;
    atomic_fetch_sub_explicit(&ahead->batches, 1, memory_order_relaxed);
    return true;
}

#endif
