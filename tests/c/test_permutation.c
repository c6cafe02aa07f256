/* Tests of fl_permutation: every order is a bijection, large ones too, spread evenly, and the same
 * for ever. */
#include "check.h"
#include "fl_permutation.h"

enum { MOST = 1 << 16 };

static void check_bijection(int64_t count, uint64_t seed, uint32_t epoch)
{
    static unsigned char seen[MOST];
    fl_permutation order = fl_permutation_make(count, seed, epoch);
    memset(seen, 0, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        int64_t image = fl_permutation_at(&order, i);
        CHECK(image >= 0 && image < count && !seen[image]);
        seen[image] = 1;
    }
}

static void test_every_index_comes_once(void)
{
    for (int64_t count = 0; count <= 300; count++) check_bijection(count, 7, (uint32_t)count);
    for (int64_t bits = 9; bits <= 15; bits++)
        for (int64_t more = -1; more <= 1; more++)
            check_bijection((INT64_C(1) << bits) + more, 11, 3);
    check_bijection(MOST, UINT64_MAX, UINT32_MAX);
}

/* Two places of a huge order have two images, all in range. */
static void test_large_orders(void)
{
    static const int64_t counts[] = {(INT64_C(1) << 33) + 1, (INT64_C(1) << 61) + 12345,
                                     FL_PERMUTATION_MAX - 1, FL_PERMUTATION_MAX};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        fl_permutation order = fl_permutation_make(counts[c], 5, 1);
        uint64_t state = 1, low_bits = 0, high_bits = 0;
        for (int i = 0; i < 2000; i++) {
            int64_t at = (int64_t)(next_random(&state) % (uint64_t)counts[c]);
            int64_t image = fl_permutation_at(&order, at);
            CHECK(image >= 0 && image < counts[c]);
            CHECK(image != fl_permutation_at(&order, at > 0 ? at - 1 : at + 1));
            low_bits |= (uint64_t)image & 0xFFFF;
            high_bits |= (uint64_t)image >> 17;
        }
        CHECK_INT(low_bits, 0xFFFF);
        CHECK(high_bits >= (uint64_t)counts[c] >> 18);
    }
}

static void test_a_block_is_its_places(void)
{
    enum { PLACES = 600 };
    int64_t out[PLACES];
    fl_permutation order = fl_permutation_make(5 + 25 * PLACES, 3, 9);
    for (int64_t count = 0; count <= PLACES; count += 40) {
        fl_permutation_block(&order, 5, count, 25, out);
        for (int64_t i = 0; i < count; i++)
            CHECK_INT(out[i], fl_permutation_at(&order, 5 + 25 * i));
    }
}

/* Counts the position of index i of 7 over epochs: chi-square with 6 degrees of freedom. */
static void test_small_orders_are_even(void)
{
    enum { COUNT = 7, EPOCHS = 7000 };
    for (int64_t index = 0; index < COUNT; index++) {
        double landed[COUNT] = {0}, chi = 0;
        for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
            fl_permutation order = fl_permutation_make(COUNT, 1, epoch);
            landed[fl_permutation_at(&order, index)]++;
        }
        for (int64_t i = 0; i < COUNT; i++) {
            double off = landed[i] - EPOCHS / (double)COUNT;
            chi += off * off / (EPOCHS / (double)COUNT);
        }
        CHECK(chi < 27.9); /* 1 in 10 000 */
    }
}

/* Orders of neighbouring epochs and seeds have no more in common than chance gives. */
static void test_epochs_and_seeds_differ(void)
{
    enum { COUNT = 1000 };
    fl_permutation orders[3] = {fl_permutation_make(COUNT, 1, 0), fl_permutation_make(COUNT, 1, 1),
                                fl_permutation_make(COUNT, 2, 0)};
    for (int other = 1; other < 3; other++) {
        int same = 0;
        for (int64_t i = 0; i < COUNT; i++)
            same += fl_permutation_at(&orders[0], i) == fl_permutation_at(&orders[other], i);
        CHECK(same < 10);
    }
}

/* Resumed epochs rely on these numbers. */
static void test_known_answers(void)
{
    static const struct {
        int64_t count, at, image;
    } known[] = {{10, 0, 5},
                 {10, 9, 4},
                 {4096, 4095, 68},
                 {4097, 0, 3685},
                 {1 << 19, 7, 217836},
                 {1000000007, 12345, 125674882},
                 {FL_PERMUTATION_MAX, 1, 3333884064149334562}};
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        fl_permutation order = fl_permutation_make(known[k].count, 42, 3);
        CHECK_INT(fl_permutation_at(&order, known[k].at), known[k].image);
    }
}

int main(void)
{
    start_tests();
    RUN(test_every_index_comes_once);
    RUN(test_large_orders);
    RUN(test_a_block_is_its_places);
    RUN(test_small_orders_are_even);
    RUN(test_epochs_and_seeds_differ);
    RUN(test_known_answers);
}
