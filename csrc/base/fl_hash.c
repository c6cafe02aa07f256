/* fl_hash: see fl_hash.h.
 *
 * There are four sums, each over every fourth word, because a multiplication takes as long as
 * reading several words. The sums are not an array: compilers would turn an array into vectors,
 * which lack a 64-bit multiplication. */
#include "fl_hash.h"

#include <string.h>

enum { WORD = 8, BLOCK = 4 * WORD };

static inline uint64_t word_at(const char *at)
{
    uint64_t word;
    memcpy(&word, at, WORD);
    return word;
}

/* Mixes a word into a sum. If either argument is fixed, the result is one-to-one in the other
 * argument. */
static inline uint64_t stir(uint64_t sum, uint64_t word)
{
    uint64_t product = (sum ^ word) * 0x9E3779B97F4A7C15u;
    return product ^ (product >> 32);
}

/* Mixes in the last words and bytes, less than a block. */
static uint64_t stir_rest(uint64_t sum, const char *at, int64_t bytes)
{
    uint64_t word = 0;
    for (; bytes >= WORD; bytes -= WORD, at += WORD) sum = stir(sum, word_at(at));
    if (bytes > 0) memcpy(&word, at, (size_t)bytes);
    return stir(sum, word);
}

uint64_t fl_hash(const void *memory, int64_t bytes)
{
    uint64_t a = 1, b = 2, c = 3, d = 4;
    const char *at = memory;
    int64_t left = bytes;
    for (; left >= BLOCK; left -= BLOCK, at += BLOCK) {
        a = stir(a, word_at(at));
        b = stir(b, word_at(at + WORD));
        c = stir(c, word_at(at + 2 * WORD));
        d = stir(d, word_at(at + 3 * WORD));
    }
    uint64_t sum = stir(stir(stir(stir((uint64_t)bytes, a), b), c), d);
    return stir_rest(sum, at, left);
}
