/* fl_thread_pool: threads that share one job with its caller.
 *
 * Floor 0. A job is a number of parts that may be done in any order. The caller also does parts.
 * Helpers that the pool has started sleep between jobs. A job does not wait for helpers that wake
 * too late to find a part. If the pool is working on one caller's job, a second caller does its job
 * alone; so does every caller in a forked child. */
#ifndef FL_THREAD_POOL_H
#define FL_THREAD_POOL_H

#include "fl_base.h"

typedef struct fl_thread_pool fl_thread_pool;

/* Does parts first, ..., end - 1. The caller's thread and helpers call this function at once, all
 * with the caller's floating-point environment (rounding, denormals). */
typedef void fl_work(void *context, int64_t first, int64_t end);

/* Calls work(arg) on `threads` threads at once, including the caller's, and returns when all have
 * returned; flags are 0. For example, GOMP_parallel, with which OpenMP lends its threads. */
typedef void fl_parallel_fn(void (*work)(void *), void *arg, unsigned threads, unsigned flags);

/* Opens a pool of `threads` >= 1, including the caller. The helpers are the threads of `lend`; if
 * `lend` is NULL, the first job of several parts starts helpers for the pool. FL_OK or FL_ENOMEM;
 * the caller owns *out. */
int fl_thread_pool_open(int32_t threads, fl_parallel_fn *lend, fl_thread_pool **out, fl_err *err);

/* Joins the helpers and frees the pool; no job may be going on. In a forked child frees nothing.
 * NULL is fine. */
void fl_thread_pool_close(fl_thread_pool *pool);

/* Does all parts before returning; threads claim `grain` parts at a time. If there are no more than
 * `grain` parts, or no pool (NULL), the caller does everything in one call. Any thread; blocks only
 * while helpers finish what they have begun. */
void fl_thread_pool_run(fl_thread_pool *pool, fl_work *work, void *context, int64_t parts,
                        int64_t grain);

#endif
