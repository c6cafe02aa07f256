/* Tests of fl_torch_random: the known numbers of MT19937, what each draw makes of words, and states
 * that go in and out. tests/data/test_torch_random.py compares with torch itself. */
#include "check.h"

#include "fl_torch_random.h"

static void test_known_words(void)
{
    fl_torch_random random;
    fl_torch_random_seed(&random, 5489);
    uint32_t word = fl_torch_random_word(&random);
    CHECK_INT(word, 3499211612u);
    for (int i = 1; i < 10000; i++) word = fl_torch_random_word(&random);
    CHECK_INT(word, 4123659995u); /* from the C++ standard */
}

static void test_the_low_half_of_a_seed_makes_the_words(void)
{
    fl_torch_random a, b;
    fl_torch_random_seed(&a, 77);
    fl_torch_random_seed(&b, 77 + (UINT64_C(5) << 32));
    CHECK(a.seed != b.seed);
    for (int i = 0; i < 2000; i++) CHECK_INT(fl_torch_random_word(&a), fl_torch_random_word(&b));
}

static void test_draws_of_words(void)
{
    fl_torch_random words, random;
    fl_torch_random_seed(&words, 3);
    for (int i = 0; i < 3000; i++) {
        random = words;
        uint64_t first = fl_torch_random_word(&words);
        CHECK(fl_torch_random_unit(&random) == (float)(first & 0xFFFFFF) / 16777216.0f);
        CHECK_INT(fl_torch_random_int(&random, -7, 5),
                  -7 + (int64_t)(fl_torch_random_word(&words) % 12));
        first = fl_torch_random_word(&words);
        uint64_t both = first << 32 | fl_torch_random_word(&words);
        fl_torch_random copy = random;
        CHECK_INT(fl_torch_random_int63(&copy), (int64_t)(both % (UINT64_C(1) << 63)));
        copy = random;
        CHECK_INT(fl_torch_random_int(&copy, 0, INT64_C(1) << 28), (int64_t)(both % (1u << 28)));
        copy = random;
        CHECK_INT(fl_torch_random_int(&copy, INT64_MIN, INT64_MAX),
                  (int64_t)((UINT64_C(1) << 63) + both % UINT64_MAX));
        copy = random;
        CHECK_INT(fl_torch_random_int(&copy, 3, 2 + (INT64_C(1) << 28)),
                  3 + (int64_t)(first % ((1u << 28) - 1)));
        random = words;
    }
}

static void test_uniform_numbers_are_below_their_end(void)
{
    fl_torch_random random;
    fl_torch_random_seed(&random, 9);
    float one_above = 1.0f + 0x1p-23f;
    for (int i = 0; i < 10000; i++) {
        bool is_fused = i % 2 == 0;
        CHECK(fl_torch_random_uniform(&random, 1.0f, one_above, is_fused) == 1.0f);
        float number = fl_torch_random_uniform(&random, -0.25f, 0.5f, is_fused);
        CHECK(number >= -0.25f && number < 0.5f);
        CHECK(fl_torch_random_uniform(&random, 2.0f, 2.0f, is_fused) == 2.0f);
    }
}

static void test_permutations(void)
{
    enum { MOST = 700 };
    int64_t order[MOST];
    fl_torch_random random, words;
    fl_torch_random_seed(&random, 1);
    for (int64_t count = 0; count <= MOST; count += count < 5 ? 1 : 139) {
        bool is_there[MOST] = {false};
        words = random;
        fl_torch_random_permutation(&random, count, order);
        for (int64_t i = 0; i < count; i++) {
            CHECK(order[i] >= 0 && order[i] < count && !is_there[order[i]]);
            is_there[order[i]] = true;
        }
        for (int64_t i = 0; i + 1 < count; i++) fl_torch_random_word(&words);
        CHECK(memcmp(&words, &random, sizeof words) == 0);
    }
}

static void test_states_go_out_and_in(void)
{
    fl_torch_random random, loaded;
    char state[FL_TORCH_STATE_BYTES], again[FL_TORCH_STATE_BYTES];
    fl_torch_random_seed(&random, UINT64_MAX);
    fill_random(&(uint64_t){4}, (char *)random.normals, sizeof random.normals);
    for (int i = 0; i < 1300; i++) {
        memset(&loaded, 0xAA, sizeof loaded);
        fl_torch_random_save(&random, state);
        CHECK_INT(fl_torch_random_load(&loaded, state, NULL), FL_OK);
        fl_torch_random_save(&loaded, again);
        CHECK(memcmp(state, again, sizeof state) == 0);
        CHECK_INT(fl_torch_random_word(&loaded), fl_torch_random_word(&random));
    }
}

static void check_refused(int64_t at, int64_t value, int64_t bytes)
{
    fl_torch_random random, before;
    char state[FL_TORCH_STATE_BYTES];
    fl_err err;
    fl_torch_random_seed(&random, 2);
    fl_torch_random_save(&random, state);
    memcpy(state + at, &value, (size_t)bytes);
    before = random;
    CHECK_INT(fl_torch_random_load(&random, state, &err), FL_EINVAL);
    CHECK(memcmp(&random, &before, sizeof random) == 0);
}

/* After a seed, left is 1 and next 0. */
static void test_states_that_torch_cannot_make(void)
{
    check_refused(8, 0, 4);
    check_refused(8, -1, 4);
    check_refused(8, FL_TWISTER_WORDS + 1, 4);
    check_refused(12, 0, 4);
    check_refused(12, 2, 4);
    check_refused(16, FL_TWISTER_WORDS + 1, 8);
    check_refused(16, -1, 8);
}

int main(void)
{
    start_tests();
    RUN(test_known_words);
    RUN(test_the_low_half_of_a_seed_makes_the_words);
    RUN(test_draws_of_words);
    RUN(test_uniform_numbers_are_below_their_end);
    RUN(test_permutations);
    RUN(test_states_go_out_and_in);
    RUN(test_states_that_torch_cannot_make);
    return 0;
}
