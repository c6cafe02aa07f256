/* fl_permutation: see fl_permutation.h. */
#include "fl_permutation.h"

#include "fl_philox.h"

enum { KEY_SLOT = 0x59 };                   /* of fl_philox_of_sample */
enum { AT_A_TIME = 256 };                   /* positions that are computed together */
enum { NARROW_BITS = 20, WIDE_ROUNDS = 6 }; /* halves of fewer than 10 bits need more rounds */

static inline bool is_listed(const fl_permutation *permutation)
{
    return permutation->count <= FL_PERMUTATION_LISTED;
}

/* The random words of one order, one after another. */
typedef struct word_stream {
    fl_sample_key key;
    fl_philox_block block;
    int32_t taken; /* words taken so far, from all blocks */
} word_stream;

static uint32_t next_word(word_stream *stream)
{
    int32_t at = stream->taken++;
    if (at % 4 == 0)
        stream->block = fl_philox_of_sample(&stream->key, KEY_SLOT, (uint16_t)(at / 4));
    return stream->block.word[at % 4];
}

/* Draws a uniform number in [0, bound): a number that would come once too often is drawn again
 * (Lemire, "Fast Random Integer Generation in an Interval", 2019). */
static uint32_t next_below(word_stream *stream, uint32_t bound)
{
    uint64_t product = (uint64_t)next_word(stream) * bound;
    uint32_t surplus = (0u - bound) % bound;
    while ((uint32_t)product < surplus) product = (uint64_t)next_word(stream) * bound;
    return (uint32_t)(product >> 32);
}

/* Shuffles by Fisher and Yates's algorithm, from the first position on. */
static void list_order(fl_permutation *permutation, word_stream *stream)
{
    for (int64_t i = 0; i < permutation->count; i++) {
        uint32_t from = next_below(stream, (uint32_t)i + 1);
        permutation->listed[i] = permutation->listed[from];
        permutation->listed[from] = (uint16_t)i;
    }
}

static void make_network(fl_permutation *permutation, word_stream *stream)
{
    int32_t bits = 64 - __builtin_clzll((uint64_t)permutation->count - 1);
    permutation->low_bits = (bits + 1) / 2;
    permutation->high_bits = bits / 2;
    permutation->rounds = bits < NARROW_BITS ? FL_PERMUTATION_ROUNDS : WIDE_ROUNDS;
    for (int32_t i = 0; i < permutation->rounds; i++) {
        uint64_t low = next_word(stream);
        permutation->key[i] = low | (uint64_t)next_word(stream) << 32;
    }
    permutation->swap = next_word(stream) & 1;
}

fl_permutation fl_permutation_make(int64_t count, uint64_t seed, uint32_t epoch)
{
    fl_permutation made = {.count = count};
    word_stream stream = {.key = {.seed = seed, .index = count, .epoch = epoch}};
    if (is_listed(&made))
        list_order(&made, &stream);
    else
        make_network(&made, &stream);
    return made;
}

/* Returns the lowest `bits` (< 32) of a well mixed number: two multiplications, with the constants
 * of MurmurHash3's finalizer. */
static inline uint64_t mix(uint64_t half, uint64_t key, int32_t bits)
{
    uint64_t x = (half ^ key) * UINT64_C(0xFF51AFD7ED558CCD);
    x ^= x >> 32;
    x *= UINT64_C(0xC4CEB9FE1A85EC53);
    return x >> 32 & ((UINT64_C(1) << bits) - 1);
}

/* Maps the values of low_bits + high_bits bits one-to-one. */
static inline uint64_t encrypt(const fl_permutation *permutation, uint64_t value)
{
    const uint64_t *key = permutation->key;
    uint64_t low = value & ((UINT64_C(1) << permutation->low_bits) - 1);
    uint64_t high = value >> permutation->low_bits;
    for (int round = 0; round < permutation->rounds; round += 2) {
        low ^= mix(high, key[round], permutation->low_bits);
        high ^= mix(low, key[round + 1], permutation->high_bits);
    }
    return high << permutation->low_bits | low;
}

/* Returns the value that starts the walk for a position. If both halves of a network have two bits
 * or more, the network is an even permutation; without the swap half of the orders of 2^n indices
 * would never come. */
static inline uint64_t begin_of(const fl_permutation *permutation, int64_t at)
{
    return (uint64_t)at ^ (permutation->swap & (at < 2));
}

/* The network permutes fewer than 2 * count values. The cycle through an index returns to that
 * index, so the walk ends; on average the walk takes at most 2 steps. */
int64_t fl_permutation_at(const fl_permutation *permutation, int64_t at)
{
    if (is_listed(permutation)) return permutation->listed[at];
    uint64_t value = encrypt(permutation, begin_of(permutation, at));
    while (value >= (uint64_t)permutation->count) value = encrypt(permutation, value);
    return (int64_t)value;
}

/* Walks all values at once. The list of values that are still walking is kept without a branch,
 * because no processor could predict the branch. */
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
    if (is_listed(permutation)) {
        for (int64_t i = 0; i < count; i++) out[i] = permutation->listed[first + i * step];
        return;
    }
    for (int64_t at = 0, to; at < count; at = to) {
        to = fl_min(at + AT_A_TIME, count);
        for (int64_t i = at; i < to; i++) out[i] = (int64_t)begin_of(permutation, first + i * step);
        walk_all(permutation, out + at, (int32_t)(to - at));
    }
}
