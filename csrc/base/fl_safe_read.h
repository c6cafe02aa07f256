/* fl_safe_read: copies from memory that may vanish while it is read.
 *
 * Floor 0. Reading a mapped file that another process has truncated raises SIGBUS. Here the kernel
 * does the reading (process_vm_readv/writev on ourselves; where a sandbox
 * forbids those, pwrite into a scratch memfd), so a missing page comes back as a short count.
 * No signal handler is involved. What it costs is in docs/internals/design.md. */
#ifndef FL_SAFE_READ_H
#define FL_SAFE_READ_H

#include "fl_base.h"

#include <sys/uio.h>

enum { FL_SAFE_READ_MAX = 256 }; /* most pieces of one call */

/* How this machine copies, for build reports: "process_vm" or "memfd". Asks once, then cached. */
const char *fl_safe_read_method(void);

/* Copies `count` (<= FL_SAFE_READ_MAX) pieces one after another to dst and returns the bytes copied
 * before the first unreadable one: all of them when every piece could be read. Negative:
 * FL_ENOMEM. Blocks for the disk as any read of a mapped file does. Any thread. */
int64_t fl_safe_read_copy(char *dst, const struct iovec *pieces, int count);

/* The second method alone, for its tests: same contract. */
int64_t fl_safe_read_copy_memfd(char *dst, const struct iovec *pieces, int count);

#endif
