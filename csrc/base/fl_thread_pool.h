/* fl_thread_pool: threads that share one job with its caller.
 *
 * Floor 0. A job is a number of parts that may be done in any order; the caller does parts, too.
 * Helpers of a team's own sleep in between and never hold a job up: those that wake late find
 * nothing left and are not waited for, and while one caller's job is being done, another's is done
 * by its caller alone, as in a forked child. */
#ifndef FL_THREAD_POOL_H
#define FL_THREAD_POOL_H

#include "fl_base.h"

typedef struct fl_thread_pool fl_thread_pool;

/* Does parts first, ..., end - 1. Called from the caller's thread and helpers, at once, all under
 * the caller's rules for floats (rounding, denormals). */
typedef void fl_work(void *context, int64_t first, int64_t end);

/* Calls work(arg) on `threads` threads at once, the caller's among them, and returns when all have
 * returned; flags are 0. GOMP_parallel, with which OpenMP lends its threads, is one. */
typedef void fl_parallel_fn(void (*work)(void *), void *arg, unsigned threads, unsigned flags);

/* A team of `threads` >= 1, the caller counted. Its helpers are those that `lend` lends; if that is
 * NULL, the team's own, started by the first job that has something for them. FL_OK or FL_ENOMEM;
 * the caller owns *out. */
int fl_thread_pool_open(int32_t threads, fl_parallel_fn *lend, fl_thread_pool **out, fl_err *err);

/* Joins the helpers; no job may be going on. In a forked child frees nothing. NULL is fine. */
void fl_thread_pool_close(fl_thread_pool *team);

/* Returns when all parts are done, handed out `grain` at a time. Where there are no more than that,
 * or `team` is NULL, the caller does them in one go. Any thread; blocks only while helpers finish
 * what they have begun. */
void fl_thread_pool_run(fl_thread_pool *team, fl_work *work, void *context, int64_t parts,
                        int64_t grain);

#endif
