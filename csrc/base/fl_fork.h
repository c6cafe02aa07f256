/* fl_fork: the forks of this process, and which children may still read shared memory.
 *
 * Floor 0. Forks are numbered from 1. If memory was lent during a fork, the child may read the
 * memory: a child forked by the program itself may read for ever, a worker process of fastloop
 * until fl_fork_end. A fork between fl_fork_expect and fl_fork_expected, in the same thread, makes
 * a worker. */
#ifndef FL_FORK_H
#define FL_FORK_H

#include "fl_base.h"

/* Installs the pthread_atfork handlers. Call this once per process, before every other function
 * here. */
void fl_fork_install(void);

/* Returns a number that changes in every forked child. An object that holds threads, locks or lent
 * memory stores the number when it is made, and does nothing once the number differs: in a child
 * the object's threads do not exist, and its locks may be held for ever. Never blocks. */
uint32_t fl_fork_generation(void);

/* Returns the number of the latest fork. Never blocks. The number rises before the child is made; a
 * lock of the caller, such as Python's, must keep the caller from lending between the two. */
int64_t fl_fork_count(void);

/* Starts counting forks of this thread as worker *out, until fl_fork_expected. Not nested. FL_OK;
 * FL_ENOMEM: forks of this thread stay the program's own. */
int fl_fork_expect(int64_t *out, fl_err *err);
void fl_fork_expected(void);

/* Tells that the worker has ended, if it was ever forked. If the worker has forked in turn, its
 * children may go on reading for ever. Any thread; does nothing in a forked child. */
void fl_fork_end(int64_t worker);

/* Counts the calls of fl_fork_end. While the count stays the same, fl_fork_is_seen gives the same
 * answers. */
int64_t fl_fork_ends(void);

/* Returns true if a child that the program itself has forked after fork number `since` may still
 * read. Never blocks. */
bool fl_fork_is_seen_for_good(int64_t since);

/* Returns true if a worker forked after fork number `since`, and no later than `until`, may still
 * read. */
bool fl_fork_is_seen(int64_t since, int64_t until);

#endif
