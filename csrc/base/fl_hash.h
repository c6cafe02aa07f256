/* fl_hash: a checksum of 64 bits, by which a reader finds out whether memory was overwritten.
 *
 * Floor 0. It finds stray writes, not malice: a change of a single word always changes the sum, any
 * other change leaves it as it was with probability 2^-64. The sum depends on the order of
 * bytes in words, so both sides are processes of one machine. Any thread; never blocks. */
#ifndef FL_HASH_H
#define FL_HASH_H

#include <stdint.h>

/* bytes >= 0; with 0 `memory` may be NULL. It needs no alignment. */
uint64_t fl_hash(const void *memory, int64_t bytes);

#endif
