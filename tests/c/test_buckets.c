/* Tests of fl_buckets: every sample comes once, steps are sorted and as long as the rule says. */
#include "check.h"
#include "fl_buckets.h"

enum { MOST = 400 };

static int64_t lengths[MOST], order[MOST + 8], spare[MOST + 8], ends[MOST + 1];

/* Cuts the order 0, 1, 2, ... of samples of lengths below `top`. */
static int64_t cut(fl_bucket_rule *rule, int64_t count, int64_t top, uint64_t *state)
{
    for (int64_t i = 0; i < count; i++) {
        lengths[i] = (int64_t)(next_random(state) % (uint64_t)top);
        order[i] = i;
    }
    rule->lengths = lengths;
    rule->count = count;
    CHECK_INT(fl_buckets_room(rule, count), count + rule->ranks);
    return fl_buckets_split(rule, count, order, spare, ends);
}

static void check_once(int64_t taken, int64_t count)
{
    unsigned char seen[MOST] = {0};
    for (int64_t i = 0; i < taken; i++) seen[order[i]]++;
    for (int64_t i = 0; i < count; i++) CHECK_INT(seen[i], 1);
}

static void test_every_sample_comes_once(void)
{
    uint64_t state = 1;
    for (int64_t count = 0; count <= MOST; count += 7) {
        fl_bucket_rule rule = {.ranks = 1, .batch_size = 8, .mega_steps = 3};
        int64_t steps = cut(&rule, count, 50, &state);
        CHECK_INT(steps, (count + 7) / 8);
        CHECK_INT(steps > 0 ? ends[steps - 1] : 0, count);
        check_once(count, count);
    }
}

static void test_steps_are_sorted_and_alike_stay_in_order(void)
{
    uint64_t state = 2;
    fl_bucket_rule rule = {.ranks = 2, .batch_size = 5};
    int64_t steps = cut(&rule, 333, 9, &state), all = ends[steps - 1];
    CHECK_INT(all, 334); /* the ranks share the last step, which has a sample twice */
    for (int64_t i = 1; i < 333; i++) {
        int64_t before = lengths[order[i - 1]], length = lengths[order[i]];
        CHECK(before > length || (before == length && order[i - 1] < order[i]));
    }
    CHECK_INT(order[333], order[ends[steps - 2]]);
}

static void test_tokens_limit_steps(void)
{
    uint64_t state = 3;
    fl_bucket_rule rule = {.ranks = 2, .max_tokens = 100, .mega_steps = 4, .drop_last = true};
    int64_t steps = cut(&rule, MOST, 60, &state), begin = 0;
    for (int64_t i = 0; i < steps; i++) {
        int64_t longest = lengths[order[begin]], size = ends[i] - begin;
        CHECK_INT(size, 2 * (100 / (longest > 0 ? longest : 1)));
        begin = ends[i];
    }
    CHECK(begin <= MOST);
}

/* Odd settings of users lead neither to an endless loop nor to a number that is too large. */
static void test_odd_rules(void)
{
    uint64_t state = 4;
    fl_bucket_rule rule = {.ranks = 3, .batch_size = INT64_MAX, .mega_steps = INT64_MAX};
    CHECK_INT(cut(&rule, 10, 5, &state), 1);
    CHECK_INT(ends[0], 12);
    rule = (fl_bucket_rule){.ranks = 1, .max_tokens = 1, .mega_steps = 2};
    CHECK_INT(cut(&rule, 10, 5, &state), 10);
}

int main(void)
{
    start_tests();
    RUN(test_every_sample_comes_once);
    RUN(test_steps_are_sorted_and_alike_stay_in_order);
    RUN(test_tokens_limit_steps);
    RUN(test_odd_rules);
}
