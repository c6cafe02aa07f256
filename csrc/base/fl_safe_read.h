/* fl_safe_read: copies from memory that may vanish during the copy.
 *
 * Floor 0. A process that reads a mapped file gets SIGBUS if another process has truncated the
 * file. Here the kernel does the reading (process_vm_readv/writev on ourselves; if a sandbox
 * forbids both calls, pwrite into a scratch memfd), so a missing page comes back as a short count.
 * No signal handler is involved. docs/results/benchmarks.md gives the cost. */
#ifndef FL_SAFE_READ_H
#define FL_SAFE_READ_H

#include "fl_base.h"

#include <sys/uio.h>

enum { FL_SAFE_READ_MAX = 256 }; /* most pieces of one call */

/* Returns how this machine copies, for build reports: "process_vm" or "memfd". The answer is
 * cached. */
const char *fl_safe_read_method(void);

/* Copies `count` (<= FL_SAFE_READ_MAX) pieces one after another to dst. Returns the bytes copied
 * before the first unreadable byte: the sum of all pieces if every piece could be read. Negative:
 * FL_ENOMEM. Blocks for the disk as any read of a mapped file does. Any thread. */
int64_t fl_safe_read_copy(char *dst, const struct iovec *pieces, int count);

/* Copies by the memfd alone, for tests of that method: same contract. */
int64_t fl_safe_read_copy_memfd(char *dst, const struct iovec *pieces, int count);

#endif
