/* fl_hash: a checksum of 64 bits, by which a reader finds out whether memory was overwritten.
 *
 * Floor 0. The checksum finds stray writes, not malice: a change of a single word always changes
 * the sum; any other change goes unnoticed with probability 2^-64. The sum depends on the order of
 * bytes in words, so both sides must be processes of one machine. Any thread; never blocks. */
#ifndef FL_HASH_H
#define FL_HASH_H

#include <stdint.h>

/* Returns the checksum of `bytes` >= 0 bytes; if `bytes` is 0, `memory` may be NULL. `memory` needs
 * no alignment. */
uint64_t fl_hash(const void *memory, int64_t bytes);

#endif
