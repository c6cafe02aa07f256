/* Tests of fl_balance: every sample comes once, no batch is empty or has too many tokens, and
 * batches of a step cost about the same. */
#include "check.h"
#include "fl_balance.h"

enum { MOST = 3000, RANKS = 40 };

static int64_t lengths[MOST], order[MOST + RANKS], ends[MOST + RANKS];
static double costs[MOST];

typedef enum cost_kind { SQUARE, EQUAL, ZERO, ANY, FEW_ZEROS } cost_kind;

/* Fills the window with samples of up to `longest` tokens, few of which are long. */
static void draw(fl_balance_rule *rule, int64_t longest, cost_kind kind, uint64_t *state)
{
    for (int64_t i = 0; i < rule->count; i++) {
        int64_t length = random_below(state, longest + 1);
        lengths[i] = random_below(state, 20) == 0 ? length : length / 8;
        double any = (double)random_below(state, 1000);
        double values[] = {(double)(lengths[i] + lengths[i] * lengths[i]), 1, 0, any,
                           any > 900 ? any : 0};
        costs[i] = values[kind];
    }
    rule->lengths = lengths;
    rule->costs = costs;
}

/* Plans the window and checks what holds for any window. Returns the number of batches. */
static int64_t plan(const fl_balance_rule *rule)
{
    int64_t batches = -1, begin = 0, twice = 0, missing = 0;
    unsigned char seen[MOST] = {0};
    CHECK_INT(fl_balance_room(rule), rule->count + rule->ranks);
    CHECK_INT(fl_balance_plan(rule, order, ends, &batches, NULL), FL_OK);
    CHECK_INT(batches % rule->ranks, 0);
    for (int64_t i = 0; i < batches; begin = ends[i++]) {
        int64_t tokens = 0;
        CHECK(begin < ends[i]);
        for (int64_t j = begin; j < ends[i]; j++) {
            tokens += lengths[order[j]];
            if (seen[order[j]]++ > 0) twice++;
            CHECK(j == begin || costs[order[j]] <= costs[order[j - 1]]);
        }
        CHECK(tokens <= rule->max_tokens);
    }
    for (int64_t i = 0; i < rule->count; i++) missing += seen[i] == 0;
    int64_t step = rule->ranks * rule->accumulate;
    CHECK(rule->drop_last ? twice == 0 && missing < step : missing == 0 && twice < rule->ranks);
    CHECK(!rule->drop_last || batches % step == 0);
    CHECK(twice == 0 || batches == rule->count + twice); /* each sample was alone in its batch */
    return batches;
}

static void test_windows_of_any_shape(void)
{
    uint64_t state = 1;
    for (int i = 0; i < 3000; i++) {
        int64_t longest = 1 + random_below(&state, 300);
        fl_balance_rule rule = {.count = random_below(&state, i % 50 == 0 ? MOST : 80),
                                .ranks = 1 + random_below(&state, i % 5 == 0 ? RANKS : 4),
                                .accumulate = 1 + random_below(&state, 3),
                                .max_tokens = longest * (1 + random_below(&state, 9)),
                                .drop_last = i % 3 == 0};
        draw(&rule, longest, (cost_kind)(i % 5), &state);
        plan(&rule);
    }
}

static void test_steps_cost_the_same_on_all_ranks(void)
{
    uint64_t state = 2;
    fl_balance_rule rule = {.count = MOST, .ranks = 4, .accumulate = 2, .max_tokens = 4000};
    draw(&rule, 1000, SQUARE, &state);
    int64_t batches = plan(&rule), begin = 0;
    double most = 0, slowest = 0, all = 0;
    for (int64_t i = 0; i < batches; i++) {
        double cost = 0;
        for (; begin < ends[i]; begin++) cost += costs[order[begin]];
        most = cost > most ? cost : most;
        all += cost;
        if (i % 8 < 7) continue;
        slowest += most * 8;
        most = 0;
    }
    CHECK(slowest < all * 1.005);
}

/* Costs that have nothing to do with the tokens: batches are moved between the heaps again and
 * again, but not without end. */
static void test_long_samples_of_low_cost(void)
{
    fl_balance_rule rule = {.lengths = lengths,
                            .costs = costs,
                            .count = MOST,
                            .ranks = 3,
                            .accumulate = 1,
                            .max_tokens = 100};
    for (int64_t i = 0; i < MOST; i++) {
        lengths[i] = i % 2 == 0 ? 100 - i % 7 : 1 + i % 11;
        costs[i] = (double)(MOST - i);
    }
    CHECK(plan(&rule) >= MOST / 2);
}

static void test_the_largest_numbers(void)
{
    fl_balance_rule rule = {.lengths = lengths,
                            .costs = costs,
                            .count = 2,
                            .ranks = 1,
                            .accumulate = 1,
                            .max_tokens = FL_BALANCE_MAX_TOKENS};
    lengths[0] = lengths[1] = FL_BALANCE_MAX_TOKENS;
    costs[0] = costs[1] = 1e300;
    CHECK_INT(plan(&rule), 2);
    rule.accumulate = (int64_t)1 << 31;
    CHECK_INT(plan(&rule), 2);
    rule.ranks = 2;
    CHECK_INT(plan(&rule), 2);
    rule.drop_last = true;
    CHECK_INT(plan(&rule), 0);
}

static int plan_once(void *rule)
{
    int64_t batches;
    return fl_balance_plan(rule, order, ends, &batches, NULL);
}

static void test_missing_memory(void)
{
    uint64_t state = 3;
    fl_balance_rule rule = {.count = 100, .ranks = 2, .accumulate = 1, .max_tokens = 500};
    draw(&rule, 100, SQUARE, &state);
    CHECK_INT(refuse_each(plan_once, &rule), 1);
}

int main(void)
{
    start_tests();
    RUN(test_windows_of_any_shape);
    RUN(test_steps_cost_the_same_on_all_ranks);
    RUN(test_long_samples_of_low_cost);
    RUN(test_the_largest_numbers);
    RUN(test_missing_memory);
}
