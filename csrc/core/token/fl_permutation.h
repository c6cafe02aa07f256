/* fl_permutation: a random order of count indices in 8 KiB, whatever count is.
 *
 * Floor 1. Up to FL_PERMUTATION_LISTED indices are shuffled by Fisher and Yates's algorithm and
 * listed. More indices are permuted by a Feistel network over the smallest power of two that holds
 * all indices. The network is applied again until the value is an index: an exact bijection of [0,
 * count) for every key, which stores nothing. Narrow halves get more rounds. Any position can be
 * computed without the positions before it, so an epoch can begin anywhere. Results depend on the
 * arguments only; any thread. The order of a key never changes, because resumed epochs rely on the
 * order. */
#ifndef FL_PERMUTATION_H
#define FL_PERMUTATION_H

#include "fl_base.h"

enum { FL_PERMUTATION_ROUNDS = 8 };           /* the most rounds */
enum { FL_PERMUTATION_LISTED = 1 << 12 };     /* most indices that are listed */
#define FL_PERMUTATION_MAX ((int64_t)1 << 62) /* most indices */

/* A plain value: copied by assignment, owns nothing. */
typedef struct fl_permutation {
    int64_t count;
    int32_t low_bits, high_bits; /* of the two halves of a value */
    int32_t rounds;
    uint64_t swap; /* 1: positions 0 and 1 swap values, because networks are even permutations */
    uint64_t key[FL_PERMUTATION_ROUNDS];
    uint16_t listed[FL_PERMUTATION_LISTED]; /* the order, if count <= FL_PERMUTATION_LISTED */
} fl_permutation;

/* Makes the order of `count` indices, 0 <= count <= FL_PERMUTATION_MAX, in this epoch. */
fl_permutation fl_permutation_make(int64_t count, uint64_t seed, uint32_t epoch);

/* Returns the index at position `at`, 0 <= at < count. */
int64_t fl_permutation_at(const fl_permutation *permutation, int64_t at);

/* Writes the indices at positions first, first + step, ..., first + (count - 1) * step, which must
 * exist. */
void fl_permutation_block(const fl_permutation *permutation, int64_t first, int64_t count,
                          int64_t step, int64_t *out);

#endif
