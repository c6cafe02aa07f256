/* fl_permutation: see fl_permutation.h. */
#include "fl_permutation.h"

#include "fl_philox.h"

enum { KEY_SLOT = 0x59 }; /* of fl_philox_of_sample */
enum { AT_A_TIME = 256 }; /* places of a block */

fl_permutation fl_permutation_make(int64_t count, uint64_t seed, uint32_t epoch)
{
    fl_permutation made = {.count = count};
    int32_t bits = count > 1 ? 64 - __builtin_clzll((uint64_t)count - 1) : 0;
    made.low_bits = (bits + 1) / 2;
    made.high_bits = bits / 2;
    fl_sample_key key = {.seed = seed, .epoch = epoch};
    for (uint16_t i = 0; i < FL_PERMUTATION_ROUNDS / 2; i++) {
        fl_philox_block block = fl_philox_of_sample(&key, KEY_SLOT, i);
        made.key[2 * i] = block.word[0] | (uint64_t)block.word[1] << 32;
        made.key[2 * i + 1] = block.word[2] | (uint64_t)block.word[3] << 32;
    }
    return made;
}

/* The lowest `bits` (< 32) of a well mixed number: two multiplications, the constants of
 * MurmurHash3's finalizer. */
static inline uint64_t mix(uint64_t half, uint64_t key, int32_t bits)
{
    uint64_t x = (half ^ key) * UINT64_C(0xFF51AFD7ED558CCD);
    x ^= x >> 32;
    x *= UINT64_C(0xC4CEB9FE1A85EC53);
    return x >> 32 & ((UINT64_C(1) << bits) - 1);
}

/* A bijection of the values of low_bits + high_bits bits. */
static inline uint64_t encrypt(const fl_permutation *permutation, uint64_t value)
{
    const uint64_t *key = permutation->key;
    uint64_t low = value & ((UINT64_C(1) << permutation->low_bits) - 1);
    uint64_t high = value >> permutation->low_bits;
    for (int round = 0; round < FL_PERMUTATION_ROUNDS; round += 2) {
        low ^= mix(high, key[round], permutation->low_bits);
        high ^= mix(low, key[round + 1], permutation->high_bits);
    }
    return high << permutation->low_bits | low;
}

/* The network permutes fewer than 2 * count values. The cycle of an index comes back to it, so the
 * walk ends; it takes 2 steps in the mean at most. */
int64_t fl_permutation_at(const fl_permutation *permutation, int64_t at)
{
    uint64_t value = encrypt(permutation, (uint64_t)at);
    while (value >= (uint64_t)permutation->count) value = encrypt(permutation, value);
    return (int64_t)value;
}

/* Values still on their walk are listed without a branch, which could not be foreseen. */
static void walk_all(const fl_permutation *permutation, int64_t *values, int32_t count)
{
    int32_t walking[AT_A_TIME];
    for (int32_t i = 0; i < count; i++) walking[i] = i;
    for (int32_t left = count, next; left > 0; left = next) {
        next = 0;
        for (int32_t k = 0; k < left; k++) {
            int32_t i = walking[k];
            uint64_t value = encrypt(permutation, (uint64_t)values[i]);
            values[i] = (int64_t)value;
            walking[next] = i;
            next += value >= (uint64_t)permutation->count;
        }
    }
}

void fl_permutation_block(const fl_permutation *permutation, int64_t first, int64_t count,
                          int64_t step, int64_t *out)
{
    for (int64_t at = 0, to; at < count; at = to) {
        to = fl_min(at + AT_A_TIME, count);
        for (int64_t i = at; i < to; i++) out[i] = first + i * step;
        walk_all(permutation, out + at, (int32_t)(to - at));
    }
}
