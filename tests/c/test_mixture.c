/* Tests of fl_mixture and fl_mixed_rows: every position against a list of all positions, which
 * follows from the rule of each node alone; bounds; far positions; turns and segments. */
#include "check.h"

#include "fl_mixed_rows.h"
#include "fl_permutation.h"
#include "fl_philox.h"

enum { MOST = 12, POSITIONS = 400 };

static const int64_t itself[MOST] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static int64_t make_weights(int64_t *weights, int32_t count, int64_t top, uint64_t *state)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < count; i++) {
        weights[i] = 1 + (int64_t)(next_random(state) % (uint64_t)top);
        sum += weights[i];
    }
    return sum;
}

/* Samples come in order, none twice, within the bound, and counts and positions agree. */
static void check_mixture(const int64_t *weights, int32_t count, int64_t sum, bool is_even)
{
    fl_mixture *mixture;
    int64_t had[MOST] = {0};
    CHECK_INT(fl_mixture_open(weights, count, is_even, 7, &mixture, NULL), FL_OK);
    double bound = fl_mixture_bound(mixture);
    CHECK(count > 5 || bound <= (is_even ? 1.001 : 2.002));
    for (int64_t n = 0; n < POSITIONS; n++) {
        int64_t sample, counts[MOST] = {0};
        if (n == sum)
            for (int32_t i = 0; i < count; i++) CHECK_INT(had[i], weights[i]);
        int32_t source = fl_mixture_find(mixture, n, &sample);
        CHECK_INT(sample, had[source]);
        had[source]++;
        fl_mixture_count(mixture, n + 1, itself, counts);
        for (int32_t i = 0; i < count; i++) {
            double share = (double)weights[i] * (double)(n + 1) / (double)sum;
            CHECK_INT(counts[i], had[i]);
            CHECK((double)had[i] - share <= bound + 1e-9 && share - (double)had[i] <= bound + 1e-9);
        }
    }
    fl_mixture_close(mixture);
}

static void test_every_position_of_small_weights(void)
{
    uint64_t state = 1;
    for (int64_t a = 1; a <= 5; a++)
        for (int64_t b = 1; b <= 5; b++)
            for (int64_t c = 1; c <= 5; c++) {
                const int64_t weights[] = {a, b, c};
                check_mixture(weights, 3, a + b + c, c % 2 == 0);
                check_mixture(weights, 2, a + b, c % 2 == 0);
            }
    for (int i = 0; i < 40; i++) {
        int64_t weights[MOST];
        int32_t count = 1 + (int32_t)(next_random(&state) % MOST);
        int64_t sum = make_weights(weights, count, i % 4 == 0 ? 1000000 : 20, &state);
        check_mixture(weights, count, sum, i % 2 == 0);
    }
}

/* Far positions agree with counts, up to the largest numbers. */
static void test_far_positions(void)
{
    uint64_t state = 2;
    for (int i = 0; i < 300; i++) {
        int64_t weights[MOST];
        int32_t count = 2 + (int32_t)(next_random(&state) % (MOST - 1));
        (void)make_weights(weights, count, i % 3 == 0 ? FL_MIXTURE_MAX / MOST : 1000, &state);
        fl_mixture *mixture;
        CHECK_INT(fl_mixture_open(weights, count, i % 2 == 0, 5, &mixture, NULL), FL_OK);
        for (int k = 0; k < 20; k++) {
            int64_t n = (int64_t)(next_random(&state) >> (3 + k)), sample;
            int64_t before[MOST] = {0}, after[MOST] = {0}, all = 0;
            n = fl_min(n, FL_MIXTURE_MAX - 2);
            int32_t source = fl_mixture_find(mixture, n, &sample);
            fl_mixture_count(mixture, n, itself, before);
            fl_mixture_count(mixture, n + 1, itself, after);
            for (int32_t s = 0; s < count; s++) {
                CHECK_INT(after[s] - before[s], s == source);
                all += before[s];
            }
            CHECK_INT(all, n);
            CHECK_INT(before[source], sample);
        }
        fl_mixture_close(mixture);
    }
}

/* The rule of a node with two sources, as fl_mixture.h has it, listed period by period. */
static void test_two_sources_against_a_list(void)
{
    for (int64_t a = 1; a <= 6; a++) {
        const int64_t weights[] = {13 - a, a};
        int64_t sum = 13;
        int32_t even[POSITIONS] = {0}, jittered[POSITIONS + 64] = {0};
        for (int64_t n = 0; n < POSITIONS; n++)
            even[n] = (2 * (n + 1) * a + sum) / (2 * sum) > (2 * n * a + sum) / (2 * sum);
        for (int64_t j = 0, last = -1; j * sum / a < POSITIONS; j++) {
            fl_sample_key key = {.seed = 7, .index = j};
            fl_philox_block block = fl_philox_of_sample(&key, 0x5A, 0);
            double point = (double)block.word[0] / 4294967296.0 +
                           (double)block.word[1] / 18446744073709551616.0;
            int64_t at = (int64_t)(((double)j + point) * (double)sum / (double)a);
            at += at == last;
            jittered[at] = 1;
            last = at;
        }
        for (int is_even = 0; is_even < 2; is_even++) {
            fl_mixture *mixture;
            CHECK_INT(fl_mixture_open(weights, 2, is_even == 1, 7, &mixture, NULL), FL_OK);
            for (int64_t n = 0; n < POSITIONS; n++) {
                int64_t sample;
                int32_t expected = is_even ? even[n] : jittered[n];
                CHECK_INT(fl_mixture_find(mixture, n, &sample), expected);
            }
            fl_mixture_close(mixture);
        }
    }
}

static void test_many_sources(void)
{
    enum { MANY = 3000 };
    static int64_t weights[MANY], counts[MANY], places[MANY];
    uint64_t state = 3;
    int64_t sum = 0;
    for (int i = 0; i < MANY; i++) {
        weights[i] = 1 + (int64_t)(next_random(&state) >> (16 + i % 40));
        places[i] = i;
        sum += weights[i];
    }
    for (int i = 0; i < 50; i++) weights[i] = 1LL << i; /* a deep tree */
    fl_mixture *mixture;
    CHECK_INT(fl_mixture_open(weights, MANY, false, 0, &mixture, NULL), FL_OK);
    fl_mixture_count(mixture, 123456789, places, counts);
    int64_t all = 0;
    for (int i = 0; i < MANY; i++) all += counts[i];
    CHECK_INT(all, 123456789);
    fl_mixture_close(mixture);
}

static void test_impossible_weights(void)
{
    fl_mixture *mixture;
    fl_err err;
    const int64_t zero[] = {1, 0}, large[] = {FL_MIXTURE_MAX - 1, 1};
    CHECK_INT(fl_mixture_open(zero, 2, true, 0, &mixture, &err), FL_EINVAL);
    CHECK(mixture == NULL && strstr(err.text, "weights must be at least 1") != NULL);
    CHECK_INT(fl_mixture_open(large, 2, true, 0, &mixture, &err), FL_EINVAL);
    CHECK_INT(fl_mixture_open(zero, 0, true, 0, &mixture, &err), FL_EINVAL);
    for (int64_t refused = 1; refused <= 4; refused++) {
        const int64_t weights[] = {3, 2, 1};
        fl_fault_arm(refused);
        CHECK_INT(fl_mixture_open(weights, 3, true, 0, &mixture, &err), FL_ENOMEM);
        fl_fault_arm(0);
    }
}

/* ---- rows */

static const int64_t lengths[] = {50, 20, 30};
static const uint32_t names[] = {11, 22, 33};

static fl_mixed_rows *open_rows(bool is_shuffled)
{
    fl_mixed_rows *rows;
    const fl_mixed_config config = {
        .lengths = lengths, .names = names, .count = 3, .seed = 9, .is_shuffled = is_shuffled};
    CHECK_INT(fl_mixed_rows_open(&config, &rows, NULL), FL_OK);
    return rows;
}

static int64_t row_at(fl_mixed_rows *rows, uint32_t epoch, int64_t position)
{
    int64_t row = -1;
    CHECK_INT(fl_mixed_rows_find(rows, epoch, &position, 1, &row, NULL), FL_OK);
    return row;
}

/* The lengths as weights: each row once, in every epoch. */
static void test_a_union_has_each_row_once(void)
{
    for (int is_shuffled = 0; is_shuffled < 2; is_shuffled++) {
        fl_mixed_rows *rows = open_rows(is_shuffled == 1);
        CHECK_INT(fl_mixed_rows_add(rows, 0, itself, lengths, 3, NULL), FL_OK);
        fl_mixed_rows_set_epochs(rows, 100, false);
        for (uint32_t epoch = 0; epoch < 3; epoch++) {
            int seen[100] = {0};
            for (int64_t i = 0; i < 100; i++) seen[row_at(rows, epoch, i)]++;
            for (int i = 0; i < 100; i++) CHECK_INT(seen[i], 1);
        }
        CHECK_INT(row_at(rows, 2, 7), row_at(rows, 0, 207));
        fl_mixed_rows_close(rows);
    }
}

/* A source has its own order in each turn, and goes on after a segment without it. */
static void test_segments_against_a_model(void)
{
    fl_mixed_rows *rows = open_rows(true);
    static const int64_t first[] = {0, 1}, second[] = {2}, third[] = {1, 0};
    static const int64_t weights[] = {3, 2};
    const int64_t begins[] = {0, 40, 55};
    CHECK_INT(fl_mixed_rows_add(rows, begins[0], first, weights, 2, NULL), FL_OK);
    CHECK_INT(fl_mixed_rows_add(rows, begins[1], second, weights, 1, NULL), FL_OK);
    CHECK_INT(fl_mixed_rows_add(rows, begins[2], third, weights, 2, NULL), FL_OK);
    CHECK_INT(fl_mixed_rows_segments(rows), 3);
    fl_mixed_rows_set_epochs(rows, 1000, false);
    int64_t had[3] = {0};
    const int64_t starts[] = {0, 50, 70};
    for (int64_t n = 0; n < 1000; n++) {
        int64_t seen[3], row = row_at(rows, 0, n);
        int source = row < 50 ? 0 : row < 70 ? 1 : 2;
        CHECK((n >= 40 && n < 55) == (source == 2));
        fl_sample_key key = {.seed = 9, .index = names[source]};
        fl_philox_block block = fl_philox_of_sample(&key, 0x5B, 0);
        fl_permutation order =
            fl_permutation_make(lengths[source], (uint64_t)block.word[0] << 32 | block.word[1],
                                (uint32_t)(had[source] / lengths[source]));
        CHECK_INT(row, starts[source] + fl_permutation_at(&order, had[source] % lengths[source]));
        had[source]++;
        fl_mixed_rows_seen(rows, n + 1, seen);
        for (int i = 0; i < 3; i++) CHECK_INT(seen[i], had[i]);
    }
    fl_mixed_rows_close(rows);
}

static void test_epochs_that_are_alike(void)
{
    fl_mixed_rows *rows = open_rows(true);
    CHECK_INT(fl_mixed_rows_add(rows, 0, itself, lengths, 3, NULL), FL_OK);
    CHECK_INT(fl_mixed_rows_add(rows, 60, itself, lengths, 3, NULL), FL_OK);
    fl_mixed_rows_set_epochs(rows, 100, true);
    int64_t seen[3];
    fl_mixed_rows_seen(rows, 700, seen);
    CHECK_INT(seen[1], 140);
    int changed = 0;
    for (int64_t i = 0; i < 100; i++) changed += row_at(rows, 0, i) != row_at(rows, 5, i);
    CHECK(changed > 80);
    CHECK_INT(row_at(rows, 0, 507), row_at(rows, 5, 7));
    fl_mixed_rows_close(rows);
}

static void test_impossible_rows(void)
{
    fl_mixed_rows *rows = open_rows(true);
    fl_err err;
    int64_t row, position = -1;
    const int64_t none[] = {3};
    CHECK_INT(fl_mixed_rows_add(rows, 5, itself, lengths, 3, &err), FL_EINVAL);
    CHECK_INT(fl_mixed_rows_add(rows, 0, none, lengths, 1, &err), FL_EINVAL);
    for (int64_t refused = 1; refused <= 5; refused++) {
        fl_fault_arm(refused);
        CHECK_INT(fl_mixed_rows_add(rows, 0, itself, lengths, 3, &err), FL_ENOMEM);
        fl_fault_arm(0);
    }
    CHECK_INT(fl_mixed_rows_add(rows, 0, itself, lengths, 3, &err), FL_OK);
    CHECK_INT(fl_mixed_rows_add(rows, 0, itself, lengths, 3, &err), FL_EINVAL);
    fl_mixed_rows_set_epochs(rows, FL_MIXTURE_MAX / 2, false);
    CHECK_INT(fl_mixed_rows_find(rows, 0, &position, 1, &row, &err), FL_EINVAL);
    position = 0;
    CHECK_INT(fl_mixed_rows_find(rows, 2, &position, 1, &row, &err), FL_EINVAL);
    CHECK_INT(fl_mixed_rows_find(rows, UINT32_MAX, &position, 1, &row, &err), FL_EINVAL);
    fl_mixed_rows_close(rows);
    rows = open_rows(true);
    CHECK_INT(fl_mixed_rows_add(rows, 0, itself, lengths, 3, &err), FL_OK);
    fl_fault_arm(1);
    CHECK_INT(fl_mixed_rows_find(rows, 0, &position, 1, &row, &err), FL_ENOMEM);
    fl_fault_arm(0);
    fl_mixed_rows_close(rows);
    const int64_t wrong[] = {5, 0, 3};
    const fl_mixed_config config = {.lengths = wrong, .names = names, .count = 3};
    CHECK_INT(fl_mixed_rows_open(&config, &rows, &err), FL_EINVAL);
    fl_mixed_rows_close(NULL);
}

/* ---- threads */

enum { THREADS = 3 };

static void *read_rows(void *arg)
{
    for (int64_t i = 0; i < 2000; i++) CHECK(row_at(arg, (uint32_t)(i % 7), i % 100) < 100);
    return NULL;
}

static void test_threads_read_at_once(void)
{
    fl_mixed_rows *rows = open_rows(true);
    CHECK_INT(fl_mixed_rows_add(rows, 0, itself, lengths, 3, NULL), FL_OK);
    fl_mixed_rows_set_epochs(rows, 100, false);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, read_rows, rows), 0);
    for (int i = 0; i < THREADS; i++) CHECK_INT(pthread_join(threads[i], NULL), 0);
    fl_mixed_rows_close(rows);
}

/* Rows of such a source come in order, and turns follow one another. */
static void test_a_source_with_orders_of_its_own(void)
{
    const int64_t sizes[] = {7, 50}, sources[] = {0, 1}, weights[] = {1, 1};
    const char endless[] = {1, 0};
    fl_mixed_config config = {sizes, names, endless, .count = 2, .is_shuffled = true};
    fl_mixed_rows *rows;
    CHECK_INT(fl_mixed_rows_open(&config, &rows, NULL), FL_OK);
    CHECK_INT(fl_mixed_rows_add(rows, 0, sources, weights, 2, NULL), FL_OK);
    fl_mixed_rows_set_epochs(rows, 60, false);
    int64_t had[2] = {0}, first = (int64_t)7 * FL_MIXED_TURNS;
    for (int64_t at = 0; at < 90; at++) {
        int64_t row, place = at % 60;
        CHECK_INT(fl_mixed_rows_find(rows, (uint32_t)(at / 60), &place, 1, &row, NULL), FL_OK);
        CHECK(row < first ? row == had[0] : row < first + 50);
        had[row >= first]++;
    }
    CHECK(had[0] > 14 && had[1] > 14);
    fl_mixed_rows_close(rows);
    const int64_t long_one[] = {INT64_MAX / 2};
    config = (fl_mixed_config){long_one, names, endless, .count = 1};
    CHECK_INT(fl_mixed_rows_open(&config, &rows, NULL), FL_EINVAL);
}

int main(void)
{
    start_tests();
    RUN(test_every_position_of_small_weights);
    RUN(test_far_positions);
    RUN(test_two_sources_against_a_list);
    RUN(test_many_sources);
    RUN(test_impossible_weights);
    RUN(test_a_union_has_each_row_once);
    RUN(test_segments_against_a_model);
    RUN(test_epochs_that_are_alike);
    RUN(test_impossible_rows);
    RUN(test_a_source_with_orders_of_its_own);
    RUN(test_threads_read_at_once);
}
