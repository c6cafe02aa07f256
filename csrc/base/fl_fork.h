/* fl_fork: the forks of this process, and which of the children may still look at memory that they
 * share with it.
 *
 * Floor 0. Forks are numbered from 1. A child that the program has made may look for ever at what
 * was lent when it was forked; a worker process of ours until its end is told here. Forks count in
 * the thread that makes them: those between fl_fork_expect and fl_fork_expected are a worker's. */
#ifndef FL_FORK_H
#define FL_FORK_H

#include "fl_base.h"

/* Installs the pthread_atfork handlers; call once per process before anything else here. */
void fl_fork_install(void);

/* Changes in every child of a fork. Whatever holds threads, locks or lent memory stores it
 * when made and does nothing when it differs: in a child its threads do not exist and its
 * locks may be held for ever. Never blocks. */
uint32_t fl_fork_generation(void);

/* The number of the latest fork. Never blocks. It is counted before the child is made: what is
 * lent at the same time must be kept from that by a lock of the caller's, such as Python's. */
int64_t fl_fork_count(void);

/* From now on forks of this thread are a worker's, known by *out. FL_OK, FL_ENOMEM; then none is
 * expected. Not to be nested. */
int fl_fork_expect(int64_t *out, fl_err *err);
void fl_fork_expected(void);

/* The worker has ended, if there ever was one. If it has forked in turn, its children count as it
 * did, for ever. Any thread; inert in a forked child. */
void fl_fork_end(int64_t worker);

/* How many ends were told: while it stays the same, so does the answer of fl_fork_is_seen. */
int64_t fl_fork_ends(void);

/* Whether a child that the program has made after fork number `since` may look. Never blocks. */
bool fl_fork_is_seen_for_good(int64_t since);

/* Whether a worker that was forked after fork number `since`, and not after `until`, may look. */
bool fl_fork_is_seen(int64_t since, int64_t until);

#endif
