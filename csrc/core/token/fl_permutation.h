/* fl_permutation: a random order of count indices in 8 KiB, whatever count is.
 *
 * Floor 1. Up to FL_PERMUTATION_LISTED indices are shuffled by Fisher and Yates's algorithm and
 * listed. More are permuted by a Feistel network over the smallest power of two that holds them
 * all, walked along its cycles until the value is an index: an exact bijection of [0, count) for
 * every key, which stores nothing. Its rounds are more where its halves are narrow. Any image is
 * had without the others, so an epoch can begin anywhere. Pure; any thread. The order that a key
 * gives never changes, because resumed epochs rely on it. */
#ifndef FL_PERMUTATION_H
#define FL_PERMUTATION_H

#include "fl_base.h"

enum { FL_PERMUTATION_ROUNDS = 8 };           /* at most */
enum { FL_PERMUTATION_LISTED = 1 << 12 };     /* most indices that are listed */
#define FL_PERMUTATION_MAX ((int64_t)1 << 62) /* most indices */

/* A plain value: copied by assignment, owns nothing. */
typedef struct fl_permutation {
    int64_t count;
    int32_t low_bits, high_bits; /* of the two halves of a value */
    int32_t rounds;
    uint64_t swap; /* 1: places 0 and 1 change theirs, because networks are even permutations */
    uint64_t key[FL_PERMUTATION_ROUNDS];
    uint16_t listed[FL_PERMUTATION_LISTED]; /* the order, where count <= FL_PERMUTATION_LISTED */
} fl_permutation;

/* The order of `count` indices, 0 <= count <= FL_PERMUTATION_MAX, in this epoch. */
fl_permutation fl_permutation_make(int64_t count, uint64_t seed, uint32_t epoch);

/* The index at position `at`, 0 <= at < count. */
int64_t fl_permutation_at(const fl_permutation *permutation, int64_t at);

/* Those at positions first, first + step, ..., first + (count - 1) * step, which must exist. */
void fl_permutation_block(const fl_permutation *permutation, int64_t first, int64_t count,
                          int64_t step, int64_t *out);

#endif
