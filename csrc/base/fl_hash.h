/* fl_hash: 64 bits by which a reader tells whether memory is as its writer left it.
 *
 * Floor 0. Against writes that go astray, not against malice: no change of a single word leaves the
 * sum as it was, and any other change does with probability 2^-64. The sum depends on the order of
 * bytes in words, so both sides are processes of one machine. Any thread; never blocks. */
#ifndef FL_HASH_H
#define FL_HASH_H

#include <stdint.h>

/* bytes >= 0; with 0 `memory` may be NULL. It needs no alignment. */
uint64_t fl_hash(const void *memory, int64_t bytes);

#endif
