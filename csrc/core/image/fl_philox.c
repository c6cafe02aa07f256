/* fl_philox: see fl_philox.h. */
#include "fl_philox.h"

enum { ROUNDS = 10 };

/* The multipliers of the two halves of a counter, and what the key grows by in each round. */
static const uint32_t multiplier[2] = {0xD2511F53u, 0xCD9E8D57u};
static const uint32_t growth[2] = {0x9E3779B9u, 0xBB67AE85u};

fl_philox_block fl_philox(uint64_t key, const uint32_t counter[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t first = (uint64_t)multiplier[0] * c0, second = (uint64_t)multiplier[1] * c2;
        c0 = (uint32_t)(second >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(first >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)second;
        c3 = (uint32_t)first;
        k0 += growth[0];
        k1 += growth[1];
    }
    return (fl_philox_block){{c0, c1, c2, c3}};
}

fl_philox_block fl_philox_of_sample(const fl_sample_key *key, uint8_t slot, uint16_t block)
{
    uint64_t index = (uint64_t)key->index;
    uint32_t place = (uint32_t)key->view << 24 | (uint32_t)slot << 16 | block;
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), key->epoch, place};
    return fl_philox(key->seed, counter);
}
