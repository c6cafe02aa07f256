/* Tests of fl_philox: the known answers of Random123, and the counter of a sample's numbers. */
#include "check.h"

#include "fl_philox.h"

static void check_block(uint64_t key, const uint32_t counter[4], const uint32_t expected[4])
{
    fl_philox_block block = fl_philox(key, counter);
    for (int i = 0; i < 4; i++) CHECK_INT(block.word[i], expected[i]);
}

static void test_known_answers(void)
{
    check_block(0, (uint32_t[]){0, 0, 0, 0},
                (uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    check_block(UINT64_MAX, (uint32_t[]){UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX},
                (uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    check_block(UINT64_C(0x299f31d0a4093822),
                (uint32_t[]){0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                (uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

/* Users can reproduce these numbers, so they must never change. */
static void test_the_counter_of_a_sample(void)
{
    fl_sample_key key = {.seed = 42, .index = INT64_C(0x123456789a), .epoch = 7, .view = 3};
    fl_philox_block block = fl_philox_of_sample(&key, 0x2a, 0x0105);
    fl_philox_block same = fl_philox(42, (uint32_t[]){0x3456789a, 0x12, 7, 0x032a0105});
    CHECK(memcmp(&block, &same, sizeof block) == 0);
}

static void test_limits_of_numbers(void)
{
    CHECK(fl_philox_unit(0) == 0 && fl_philox_unit(255) == 0);
    CHECK(fl_philox_unit(256) == 0x1p-24);
    CHECK(fl_philox_unit(UINT32_MAX) == 1 - 0x1p-24);
    CHECK_INT(fl_philox_below(UINT32_MAX, 1), 0);
    CHECK_INT(fl_philox_below(0, 10), 0);
    CHECK_INT(fl_philox_below(UINT32_MAX, 10), 9);
    CHECK_INT(fl_philox_below(UINT32_MAX, UINT32_MAX), UINT32_MAX - 1);
    CHECK_INT(fl_philox_below(0x80000000, 10), 5);
}

int main(void)
{
    start_tests();
    RUN(test_known_answers);
    RUN(test_the_counter_of_a_sample);
    RUN(test_limits_of_numbers);
    return 0;
}
