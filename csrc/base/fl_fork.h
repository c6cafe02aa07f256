/* fl_fork: the forks of this process, and which children may still read memory that they share with
 * it.
 *
 * Floor 0. Forks are numbered from 1. Memory that was lent at a fork may be read by the child: by a
 * child that the program itself has forked, for ever; by a worker process of fastloop, until
 * fl_fork_end. A fork between fl_fork_expect and fl_fork_expected, in the same thread, makes a
 * worker. */
#ifndef FL_FORK_H
#define FL_FORK_H

#include "fl_base.h"

/* Installs the pthread_atfork handlers; call once per process before anything else here. */
void fl_fork_install(void);

/* A number that changes in every forked child. What holds threads, locks or lent memory stores it
 * when it is made, and does nothing once it differs: in a child its threads do not exist and its
 * locks may be held for ever. Never blocks. */
uint32_t fl_fork_generation(void);

/* The number of the latest fork. Never blocks. The number rises before the child is made; a lock of
 * the caller's, such as Python's, must keep it from lending between the two. */
int64_t fl_fork_count(void);

/* Forks of this thread make worker *out, until fl_fork_expected. FL_OK; FL_ENOMEM: they do not. Not
 * nested. */
int fl_fork_expect(int64_t *out, fl_err *err);
void fl_fork_expected(void);

/* The worker has ended, if it was ever forked. If it has forked in turn, its children may go on
 * reading for ever. Any thread; does nothing in a forked child. */
void fl_fork_end(int64_t worker);

/* How often fl_fork_end was called. While that stays the same, so does the answer of
 * fl_fork_is_seen. */
int64_t fl_fork_ends(void);

/* Whether a child that the program itself has forked after fork number `since` may read. Never
 * blocks. */
bool fl_fork_is_seen_for_good(int64_t since);

/* Whether a worker that was forked after fork number `since`, and not after `until`, may read. */
bool fl_fork_is_seen(int64_t since, int64_t until);

#endif
