/* fl_philox: see fl_philox.h. */
#include "fl_philox.h"

fl_philox_block fl_philox(uint64_t key, const uint32_t counter[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (uint32_t round = 0; round < FL_PHILOX_ROUNDS; round++)
        fl_philox_round(key, round, &c0, &c1, &c2, &c3);
    return (fl_philox_block){{c0, c1, c2, c3}};
}

fl_philox_block fl_philox_of_sample(const fl_sample_key *key, uint8_t slot, uint16_t block)
{
    uint64_t index = (uint64_t)key->index;
    uint32_t place = (uint32_t)key->view << 24 | (uint32_t)slot << 16 | block;
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), key->epoch, place};
    return fl_philox(key->seed, counter);
}
