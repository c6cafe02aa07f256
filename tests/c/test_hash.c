/* Tests of fl_hash: the changes that it must show. */
#include "check.h"

#include "fl_hash.h"

enum { MOST = 200 };

static void test_every_changed_word_shows(void)
{
    uint64_t seed = 1;
    char memory[MOST + 8], changed[MOST + 8];
    for (int64_t bytes = 1; bytes <= MOST; bytes++) {
        fill_random(&seed, memory, sizeof memory);
        uint64_t sum = fl_hash(memory, bytes);
        for (int64_t at = 0; at < bytes; at++) {
            int64_t width = fl_min(8 - at % 8, bytes - at);
            memcpy(changed, memory, sizeof memory);
            for (int64_t i = 0; i < width; i++) changed[at + i] = (char)~changed[at + i];
            CHECK(fl_hash(changed, bytes) != sum);
            memset(changed + at, 0, (size_t)width);
            if (memcmp(changed, memory, (size_t)bytes) != 0) CHECK(fl_hash(changed, bytes) != sum);
        }
    }
}

/* Every two of these inputs have different bytes. */
static void test_lengths_and_places_show(void)
{
    uint64_t sums[2 * MOST];
    char memory[MOST] = {0};
    int count = 0;
    for (int64_t bytes = 0; bytes <= MOST; bytes++) sums[count++] = fl_hash(memory, bytes);
    for (int64_t at = 0; at < MOST - 1; at++) {
        memory[at] = 1;
        sums[count++] = fl_hash(memory, MOST);
        memory[at] = 0;
    }
    for (int i = 0; i < count; i++)
        for (int k = 0; k < i; k++) CHECK(sums[i] != sums[k]);
    CHECK(fl_hash(NULL, 0) == sums[0]);
}

static void test_the_address_does_not_matter(void)
{
    uint64_t seed = 2;
    char memory[MOST], moved[MOST + 16];
    fill_random(&seed, memory, sizeof memory);
    for (int64_t bytes = 0; bytes <= MOST; bytes++)
        for (int64_t away = 0; away < 16; away++) {
            memset(moved, (int)away, sizeof moved);
            memcpy(moved + away, memory, (size_t)bytes);
            CHECK(fl_hash(moved + away, bytes) == fl_hash(memory, bytes));
        }
}

int main(void)
{
    start_tests();
    RUN(test_every_changed_word_shows);
    RUN(test_lengths_and_places_show);
    RUN(test_the_address_does_not_matter);
    return 0;
}
