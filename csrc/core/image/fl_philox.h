/* fl_philox: random numbers that are a function of a key and a counter.
 *
 * Floor 1. Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1,
 * 2, 3" (2011). No state, any thread, on the CPU and in kernels. The meaning of a counter never
 * changes, because users reproduce results by it: see fl_sample_key. */
#ifndef FL_PHILOX_H
#define FL_PHILOX_H

#include "fl_base.h"

typedef struct fl_philox_block {
    uint32_t word[4];
} fl_philox_block;

enum { FL_PHILOX_ROUNDS = 10 };

/* Does one round: both halves of a counter are multiplied, and the key has grown `round` times. */
FL_HOST_DEVICE void fl_philox_round(uint64_t key, uint32_t round, uint32_t *c0, uint32_t *c1,
                                    uint32_t *c2, uint32_t *c3)
{
    uint32_t k0 = (uint32_t)key + round * 0x9E3779B9u;
    uint32_t k1 = (uint32_t)(key >> 32) + round * 0xBB67AE85u;
    uint64_t first = UINT64_C(0xD2511F53) * *c0, second = UINT64_C(0xCD9E8D57) * *c2;
    *c0 = (uint32_t)(second >> 32) ^ *c1 ^ k0;
    *c2 = (uint32_t)(first >> 32) ^ *c3 ^ k1;
    *c1 = (uint32_t)second;
    *c3 = (uint32_t)first;
}

FL_HOST_DEVICE fl_philox_block fl_philox(uint64_t key, const uint32_t counter[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (uint32_t round = 0; round < FL_PHILOX_ROUNDS; round++)
        fl_philox_round(key, round, &c0, &c1, &c2, &c3);
    fl_philox_block block = {{c0, c1, c2, c3}};
    return block;
}

/* Names a stream of random numbers: one sample, in one epoch, in one of its views. Block b of slot
 * s of an operation has key `seed` and counter {low half of index, high half of index, epoch, view
 * << 24 | s << 16 | b}. */
typedef struct fl_sample_key {
    uint64_t seed;
    int64_t index; /* of the sample in the innermost dataset, >= 0 */
    uint32_t epoch;
    uint8_t view;
} fl_sample_key;

FL_HOST_DEVICE_ONCE fl_philox_block fl_philox_of_sample(const fl_sample_key *key, uint8_t slot,
                                                        uint16_t block)
{
    uint64_t index = (uint64_t)key->index;
    uint32_t place = (uint32_t)key->view << 24 | (uint32_t)slot << 16 | block;
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), key->epoch, place};
    return fl_philox(key->seed, counter);
}

/* Returns a random number for a seed, an index and a slot, as a key of further numbers. */
static inline uint64_t fl_philox_key(uint64_t seed, int64_t index, uint8_t slot)
{
    const fl_sample_key key = {seed, index, 0, 0};
    fl_philox_block block = fl_philox_of_sample(&key, slot, 0);
    return (uint64_t)block.word[0] << 32 | block.word[1];
}

/* Returns a number in [0, 1), a multiple of 2^-24. */
FL_HOST_DEVICE double fl_philox_unit(uint32_t word) { return (word >> 8) * 0x1p-24; }

/* Returns a number in [0, bound), bound >= 1; probabilities differ from uniform by at most bound /
 * 2^32. */
FL_HOST_DEVICE int64_t fl_philox_below(uint32_t word, uint32_t bound)
{
    return (int64_t)((uint64_t)word * bound >> 32);
}

#endif
