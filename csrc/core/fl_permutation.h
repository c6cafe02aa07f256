/* fl_permutation: a random order of count indices that takes no memory.
 *
 * Floor 1. A Feistel network over the smallest power of two that holds all indices, walked along
 * its cycles until the value is an index: an exact bijection of [0, count) for every key. Each
 * image is computed on its own, so an epoch can begin anywhere. Pure; any thread. The order that a
 * key gives never changes, because resumed epochs rely on it. */
#ifndef FL_PERMUTATION_H
#define FL_PERMUTATION_H

#include "fl_base.h"

enum { FL_PERMUTATION_ROUNDS = 6 };
#define FL_PERMUTATION_MAX ((int64_t)1 << 62) /* most indices */

/* A plain value: copied by assignment, owns nothing. */
typedef struct fl_permutation {
    int64_t count;
    int32_t low_bits, high_bits; /* of the two halves of a value */
    uint64_t key[FL_PERMUTATION_ROUNDS];
} fl_permutation;

/* The order of `count` indices, 0 <= count <= FL_PERMUTATION_MAX, in this epoch. */
fl_permutation fl_permutation_make(int64_t count, uint64_t seed, uint32_t epoch);

/* The index at position `at`, 0 <= at < count. */
int64_t fl_permutation_at(const fl_permutation *permutation, int64_t at);

/* Those at positions first, first + step, ..., first + (count - 1) * step, which must exist. */
void fl_permutation_block(const fl_permutation *permutation, int64_t first, int64_t count,
                          int64_t step, int64_t *out);

#endif
