/* Tests of fl_plan: row lists, cutting blocks into batches, nested subsets, bounds. */
#include "check.h"

#include "fl_plan.h"

enum { MAX_STREAM = 400 };

static int64_t row_at(const fl_rows *rows, int64_t i)
{
    return rows->is_range ? rows->first + i : rows->index[i];
}

static void check_rows(const fl_rows *rows, const int64_t *expected, int64_t count)
{
    CHECK_INT(rows->count, count);
    for (int64_t i = 0; i < count; i++) CHECK_INT(row_at(rows, i), expected[i]);
}

/* ---- row lists */

static void test_rows_join_ranges_that_follow(void)
{
    fl_rows rows = {0};
    CHECK_INT(fl_rows_add_range(&rows, 5, 3, NULL), FL_OK);
    CHECK_INT(fl_rows_add_range(&rows, 8, 2, NULL), FL_OK);
    CHECK_INT(fl_rows_add_range(&rows, 99, 0, NULL), FL_OK);
    CHECK_INT(fl_rows_add(&rows, NULL, 0, NULL), FL_OK);
    CHECK(rows.is_range && rows.first == 5 && rows.count == 5);
    CHECK_INT(rows.capacity, 0);
    fl_rows_close(&rows);
}

static void test_rows_mix_ranges_and_indices(void)
{
    fl_rows rows = {0};
    const int64_t some[] = {7, -1, 7};
    const int64_t expected[] = {2, 3, 7, -1, 7, 4, 5, 9, 7, -1};
    CHECK_INT(fl_rows_add_range(&rows, 2, 2, NULL), FL_OK);
    CHECK_INT(fl_rows_add(&rows, some, 3, NULL), FL_OK);
    CHECK_INT(fl_rows_add_range(&rows, 4, 2, NULL), FL_OK);
    CHECK_INT(fl_rows_add_range(&rows, 9, 1, NULL), FL_OK);
    CHECK_INT(fl_rows_add(&rows, some, 2, NULL), FL_OK);
    check_rows(&rows, expected, 10);
    fl_rows_clear(&rows);
    CHECK_INT(rows.count, 0);
    CHECK(rows.capacity >= 10);
    CHECK_INT(fl_rows_add_range(&rows, 6, 1, NULL), FL_OK);
    CHECK_INT(fl_rows_add_range(&rows, 3, 2, NULL), FL_OK); /* a gap: backwards */
    check_rows(&rows, (int64_t[]){6, 3, 4}, 3);
    fl_rows_close(&rows);
    CHECK(rows.count == 0 && rows.index == NULL && rows.capacity == 0);
    fl_rows_close(&rows);
}

static void test_rows_refused_stay_as_they_are(void)
{
    const int64_t many[100] = {1, 2, 3};
    fl_rows rows = {0};
    fl_err err = {0};
    CHECK_INT(fl_rows_add_range(&rows, 10, 3, NULL), FL_OK);
    for (int round = 0; round < 2; round++) { /* first a range, then a list */
        fl_fault_arm(1);
        CHECK_INT(fl_rows_add(&rows, many, 100, &err), FL_ENOMEM);
        fl_fault_arm(1);
        CHECK_INT(fl_rows_add_range(&rows, 90, 100, &err), FL_ENOMEM);
        fl_fault_arm(0);
        CHECK_INT(err.code, FL_ENOMEM);
        check_rows(&rows, (int64_t[]){10, 11, 12, 1, 2}, 3 + 2 * round);
        if (round == 0) CHECK_INT(fl_rows_add(&rows, many, 2, NULL), FL_OK);
    }
    fl_rows_close(&rows);
}

static void test_rows_have_views(void)
{
    const int64_t some[] = {4, -1, 4};
    const uint8_t views[] = {0, 255, 3}, expected[] = {0, 255, 3, 0, 255};
    fl_rows rows = {0};
    fl_plan *plan;
    CHECK_INT(fl_plan_open(10, &plan, NULL), FL_OK);
    for (int round = 0; round < 2; round++) { /* the second time in the memory of the first */
        CHECK_INT(fl_rows_add_views(&rows, some, views, 0, NULL), FL_OK);
        CHECK(!rows.has_views);
        CHECK_INT(fl_rows_add_views(&rows, some, views, 3, NULL), FL_OK);
        CHECK_INT(fl_rows_add_views(&rows, some, views, 2, NULL), FL_OK);
        CHECK_INT(fl_plan_resolve(plan, &rows, NULL), FL_OK);
        check_rows(&rows, (int64_t[]){4, 9, 4, 4, 9}, 5);
        CHECK(rows.has_views && memcmp(rows.view, expected, 5) == 0);
        fl_rows_clear(&rows);
        CHECK(!rows.has_views);
        CHECK_INT(fl_rows_add_range(&rows, 2, 2, NULL), FL_OK);
        CHECK(rows.is_range && !rows.has_views);
        fl_rows_clear(&rows);
    }
    fl_plan_close(plan);
    fl_rows_close(&rows);
    CHECK(rows.view == NULL && rows.view_capacity == 0);
}

static void test_views_refused_stay_as_they_are(void)
{
    const int64_t many[100] = {1, 2, 3};
    const uint8_t views[100] = {7, 8};
    fl_rows rows = {0};
    CHECK_INT(fl_rows_add_views(&rows, many, views, 2, NULL), FL_OK);
    for (int64_t n = 1; n <= 2; n++) { /* memory for indices, then for views */
        fl_fault_arm(n);
        CHECK_INT(fl_rows_add_views(&rows, many, views, 100, NULL), FL_ENOMEM);
        fl_fault_arm(0);
        check_rows(&rows, many, 2);
        CHECK(rows.has_views && memcmp(rows.view, views, 2) == 0);
    }
    CHECK_INT(fl_rows_add_views(&rows, many, views, 100, NULL), FL_OK);
    CHECK_INT(rows.count, 102);
    fl_rows_close(&rows);
}

static void test_rows_of_an_absurd_count_fail(void)
{
    const int64_t one = 1;
    fl_rows rows = {0};
    fl_err err = {0};
    CHECK_INT(fl_rows_add(&rows, &one, 1, NULL), FL_OK);
    CHECK(fl_rows_add_range(&rows, 0, INT64_MAX, &err) < 0 && err.code < 0);
    CHECK(fl_rows_add_range(&rows, 0, INT64_MAX / 4, &err) < 0);
    check_rows(&rows, &one, 1);
    fl_rows_close(&rows);
}

/* ---- blocks to batches */

/* Feeds `stream` in blocks of changing size; every second block is a range if the indices allow. */
typedef struct block_source {
    const int64_t *stream;
    int64_t count, next, step;
} block_source;

static bool set_next_block(block_source *f, fl_plan *plan)
{
    if (f->next == f->count) return false;
    f->step = f->step * 7 % 11; /* 7, 5, 2, 3, 10, 4, 6, 9, 8, 1 */
    int64_t block = fl_min(f->step, f->count - f->next), first = f->stream[f->next];
    bool is_range = true;
    for (int64_t i = 0; i < block; i++) is_range &= f->stream[f->next + i] == first + i;
    if (is_range && f->step % 2 == 0)
        fl_plan_set_range(plan, first, block);
    else
        fl_plan_set_block(plan, f->stream + f->next, block);
    f->next += block;
    return true;
}

/* Cuts the stream into batches of `size` and compares each with its place in the stream. */
static void check_batches(const int64_t *stream, int64_t count, int64_t size)
{
    fl_plan *plan;
    fl_rows rows = {0};
    block_source f = {.stream = stream, .count = count, .step = 1};
    CHECK_INT(fl_plan_open(MAX_STREAM, &plan, NULL), FL_OK);
    CHECK(fl_plan_needs_block(plan));
    for (int64_t at = 0; at < count; at += size) {
        fl_rows_clear(&rows);
        while (rows.count < size) {
            if (fl_plan_needs_block(plan) && !set_next_block(&f, plan)) break;
            CHECK_INT(fl_plan_fill(plan, &rows, size, NULL), FL_OK);
            CHECK(rows.count == size || fl_plan_needs_block(plan));
        }
        CHECK_INT(fl_plan_resolve(plan, &rows, NULL), FL_OK);
        check_rows(&rows, stream + at, fl_min(size, count - at));
    }
    CHECK(fl_plan_needs_block(plan) && f.next == count);
    fl_rows_close(&rows);
    fl_plan_close(plan);
}

static void test_batches_of_every_size(void)
{
    int64_t shuffled[97], counted[97];
    uint64_t seed = 4;
    for (int64_t i = 0; i < 97; i++) {
        shuffled[i] = random_below(&seed, MAX_STREAM);
        counted[i] = i + 100 * (i / 40); /* ranges with gaps */
    }
    for (int64_t size = 1; size <= 99; size++) {
        check_batches(shuffled, 97, size);
        check_batches(counted, 97, size);
    }
}

static void test_a_range_stays_a_range(void)
{
    fl_plan *plan;
    fl_rows rows = {0};
    CHECK_INT(fl_plan_open(1000, &plan, NULL), FL_OK);
    fl_plan_set_range(plan, 0, 1000);
    for (int64_t at = 0; at < 1000; at += 64) {
        fl_rows_clear(&rows);
        CHECK_INT(fl_plan_fill(plan, &rows, 64, NULL), FL_OK);
        CHECK_INT(fl_plan_resolve(plan, &rows, NULL), FL_OK);
        CHECK(rows.is_range && rows.first == at && rows.count == fl_min(64, 1000 - at));
    }
    CHECK(fl_plan_needs_block(plan) && rows.capacity == 0); /* no list was ever made */
    fl_plan_close(plan);
}

static void test_restart_forgets_the_block(void)
{
    const int64_t block[] = {1, 2, 3, 4}, next[] = {9, 8};
    fl_plan *plan;
    fl_rows rows = {0};
    CHECK_INT(fl_plan_open(10, &plan, NULL), FL_OK);
    fl_plan_restart(plan);
    CHECK(fl_plan_needs_block(plan));
    for (int round = 0; round < 2; round++) {
        if (round == 0)
            fl_plan_set_block(plan, block, 4);
        else
            fl_plan_set_range(plan, 1, 4);
        fl_rows_clear(&rows);
        CHECK_INT(fl_plan_fill(plan, &rows, 3, NULL), FL_OK);
        check_rows(&rows, block, 3);
        CHECK(!fl_plan_needs_block(plan));
        CHECK_INT(fl_plan_remaining(plan), 1);
        fl_plan_restart(plan);
        CHECK(fl_plan_needs_block(plan));
        fl_rows_clear(&rows);
        CHECK_INT(fl_plan_fill(plan, &rows, 3, NULL), FL_OK);
        CHECK_INT(rows.count, 0);
        fl_plan_set_block(plan, next, 2);
        CHECK_INT(fl_plan_fill(plan, &rows, 3, NULL), FL_OK);
        check_rows(&rows, next, 2);
    }
    fl_rows_close(&rows);
    fl_plan_close(plan);
}

static void test_empty_blocks_and_batches(void)
{
    fl_plan *plan;
    fl_rows rows = {0};
    CHECK_INT(fl_plan_open(0, &plan, NULL), FL_OK);
    fl_plan_set_range(plan, 0, 0);
    CHECK(fl_plan_needs_block(plan));
    fl_plan_set_block(plan, NULL, 0);
    CHECK(fl_plan_needs_block(plan));
    CHECK_INT(fl_plan_fill(plan, &rows, 5, NULL), FL_OK);
    CHECK_INT(fl_plan_resolve(plan, &rows, NULL), FL_OK);
    CHECK_INT(fl_plan_map(plan, NULL, 0, NULL), FL_OK);
    CHECK_INT(fl_plan_resolve(plan, &rows, NULL), FL_OK);
    CHECK_INT(rows.count, 0);
    fl_plan_close(plan);
    fl_plan_close(NULL);
}

/* ---- down to rows */

/* Resolves one list of indices, or a range, and returns the status. */
static int resolve(fl_plan *plan, const int64_t *index, int64_t count, fl_rows *rows, fl_err *err)
{
    fl_rows_clear(rows);
    fl_plan_set_block(plan, index, count);
    CHECK_INT(fl_plan_fill(plan, rows, count, NULL), FL_OK);
    return fl_plan_resolve(plan, rows, err);
}

static int resolve_range(fl_plan *plan, int64_t first, int64_t count, fl_rows *rows, fl_err *err)
{
    fl_rows_clear(rows);
    fl_plan_set_range(plan, first, count);
    CHECK_INT(fl_plan_fill(plan, rows, count, NULL), FL_OK);
    return fl_plan_resolve(plan, rows, err);
}

/* Does what Python's list indexing does at one level. */
static int64_t wrap(int64_t index, int64_t length) { return index < 0 ? index + length : index; }

enum { ROWS = 50, INNER = 20, OUTER = 30 };

/* A table of ROWS under a subset of INNER under a subset of OUTER, with negative entries. */
typedef struct nest {
    fl_plan *plan;
    int64_t inner[INNER], outer[OUTER];
} nest;

static void open_nest(nest *n)
{
    uint64_t seed = 5;
    for (int i = 0; i < INNER; i++) n->inner[i] = random_below(&seed, 2 * ROWS) - ROWS;
    for (int i = 0; i < OUTER; i++) n->outer[i] = random_below(&seed, 2 * INNER) - INNER;
    n->inner[3] = -ROWS;
    n->inner[4] = ROWS - 1;
    n->outer[7] = -INNER;
    n->outer[8] = INNER - 1;
    CHECK_INT(fl_plan_open(ROWS, &n->plan, NULL), FL_OK);
    CHECK_INT(fl_plan_map(n->plan, n->inner, INNER, NULL), FL_OK);
    CHECK_INT(fl_plan_map(n->plan, n->outer, OUTER, NULL), FL_OK);
}

static int64_t look_up(const nest *n, int64_t index)
{
    return wrap(n->inner[wrap(n->outer[wrap(index, OUTER)], INNER)], ROWS);
}

static void test_nested_subsets_wrap_at_every_level(void)
{
    nest n;
    fl_rows rows = {0};
    open_nest(&n);
    int64_t all[2 * OUTER], expected[2 * OUTER];
    for (int64_t i = 0; i < 2 * OUTER; i++) {
        all[i] = i - OUTER;
        expected[i] = look_up(&n, all[i]);
    }
    CHECK_INT(resolve(n.plan, all, 2 * OUTER, &rows, NULL), FL_OK);
    check_rows(&rows, expected, 2 * OUTER);
    for (int64_t first = -OUTER; first <= OUTER; first++) {
        for (int64_t count = 1; count <= OUTER - first; count++) {
            CHECK_INT(resolve_range(n.plan, first, count, &rows, NULL), FL_OK);
            check_rows(&rows, expected + OUTER + first, count);
        }
    }
    fl_rows_close(&rows);
    fl_plan_close(n.plan);
}

static void check_index_error(const fl_err *err, int64_t position, int64_t value, int64_t length)
{
    CHECK_INT(err->code, FL_EINDEX);
    CHECK_INT(err->position, position);
    CHECK_INT(err->value, value);
    CHECK_INT(err->length, length);
}

static void test_out_of_bounds_names_the_level(void)
{
    nest n;
    fl_rows rows = {0};
    fl_err err;
    open_nest(&n);
    CHECK_INT(resolve(n.plan, (int64_t[]){0, 1, OUTER, -99}, 4, &rows, &err), FL_EINDEX);
    check_index_error(&err, 2, OUTER, OUTER);
    CHECK_INT(resolve(n.plan, (int64_t[]){0, -OUTER - 1}, 2, &rows, &err), FL_EINDEX);
    check_index_error(&err, 1, -OUTER - 1, OUTER);
    n.outer[9] = INNER; /* the outer subset points beyond the inner one */
    CHECK_INT(resolve(n.plan, (int64_t[]){5, 6, 7, 9}, 4, &rows, &err), FL_EINDEX);
    check_index_error(&err, 3, INNER, INNER);
    CHECK_INT(resolve_range(n.plan, 4, 8, &rows, &err), FL_EINDEX);
    check_index_error(&err, 5, INNER, INNER);
    n.outer[9] = 2;
    n.inner[2] = -ROWS - 1; /* the inner subset points beyond the table */
    n.outer[0] = n.outer[1] = 3;
    CHECK_INT(resolve(n.plan, (int64_t[]){0, 1, 9}, 3, &rows, &err), FL_EINDEX);
    check_index_error(&err, 2, -ROWS - 1, ROWS);
    CHECK_INT(resolve(n.plan, (int64_t[]){9}, 1, &rows, NULL), FL_EINDEX);
    fl_rows_close(&rows);
    fl_plan_close(n.plan);
}

/* Whoever fetches a batch that failed asks the dataset for what the sampler gave. */
static void check_failed_at(nest *n, const int64_t *index, int64_t count, int64_t position)
{
    fl_rows rows = {0};
    fl_err err;
    bool is_counted = true;
    for (int64_t i = 1; i < count; i++) is_counted &= index[i] == index[0] + i;
    for (int round = is_counted ? 0 : 1; round < 2; round++) {
        int status = round == 0 ? resolve_range(n->plan, index[0], count, &rows, &err)
                                : resolve(n->plan, index, count, &rows, &err);
        CHECK_INT(status, FL_EINDEX);
        CHECK_INT(err.position, position);
        check_rows(&rows, index, count);
    }
    fl_rows_close(&rows);
}

static void test_after_a_failure_rows_are_the_samplers_indices(void)
{
    nest n;
    open_nest(&n);
    check_failed_at(&n, (int64_t[]){0, -1, OUTER, 3, -99}, 5, 2);
    check_failed_at(&n, (int64_t[]){OUTER - 2, OUTER - 1, OUTER}, 3, 2);
    check_failed_at(&n, (int64_t[]){-OUTER - 1, -OUTER, -OUTER + 1}, 3, 0);
    n.outer[9] = INNER;
    n.inner[2] = ROWS;
    n.outer[11] = 2;
    check_failed_at(&n, (int64_t[]){7, 8, 9, 10}, 4, 2);
    check_failed_at(&n, (int64_t[]){11, 9, OUTER}, 3, 2);
    check_failed_at(&n, (int64_t[]){0, 11, 9}, 3, 2);
    check_failed_at(&n, (int64_t[]){0, 11, 3}, 3, 1);
    fl_plan_close(n.plan);
}

static void test_ranges_are_checked_like_lists(void)
{
    fl_plan *plan;
    fl_rows rows = {0};
    fl_err err;
    CHECK_INT(fl_plan_open(10, &plan, NULL), FL_OK);
    CHECK_INT(resolve_range(plan, 7, 4, &rows, &err), FL_EINDEX);
    check_index_error(&err, 3, 10, 10);
    CHECK_INT(resolve_range(plan, 10, 1, &rows, &err), FL_EINDEX);
    check_index_error(&err, 0, 10, 10);
    CHECK_INT(resolve_range(plan, -11, 3, &rows, &err), FL_EINDEX);
    check_index_error(&err, 0, -11, 10);
    CHECK_INT(resolve_range(plan, -2, 4, &rows, &err), FL_OK);
    check_rows(&rows, (int64_t[]){8, 9, 0, 1}, 4);
    CHECK_INT(resolve_range(plan, 0, 10, &rows, &err), FL_OK);
    CHECK(rows.is_range && rows.count == 10);
    fl_rows_close(&rows);
    fl_plan_close(plan);
}

static void test_extreme_indices(void)
{
    const int64_t extremes[] = {INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1};
    fl_plan *plan;
    fl_rows rows = {0};
    fl_err err;
    CHECK_INT(fl_plan_open(10, &plan, NULL), FL_OK);
    for (int i = 0; i < 4; i++) {
        CHECK_INT(resolve(plan, &extremes[i], 1, &rows, &err), FL_EINDEX);
        check_index_error(&err, 0, extremes[i], 10);
    }
    CHECK_INT(resolve_range(plan, INT64_MAX - 3, 3, &rows, &err), FL_EINDEX);
    check_index_error(&err, 0, INT64_MAX - 3, 10);
    CHECK_INT(resolve_range(plan, INT64_MIN, 3, &rows, &err), FL_EINDEX);
    check_index_error(&err, 0, INT64_MIN, 10);
    fl_plan_set_length(plan, INT64_MAX);
    CHECK_INT(resolve(plan, (int64_t[]){INT64_MAX - 1, -INT64_MAX}, 2, &rows, &err), FL_OK);
    check_rows(&rows, (int64_t[]){INT64_MAX - 1, 0}, 2);
    CHECK_INT(resolve(plan, extremes, 1, &rows, &err), FL_EINDEX);
    CHECK_INT(resolve_range(plan, INT64_MAX - 3, 3, &rows, &err), FL_OK);
    CHECK_INT(row_at(&rows, 2), INT64_MAX - 1);
    fl_rows_close(&rows);
    fl_plan_close(plan);
}

static void test_the_table_may_change_its_length(void)
{
    const int64_t last = 9, back = -1;
    fl_plan *plan;
    fl_rows rows = {0};
    fl_err err;
    CHECK_INT(fl_plan_open(10, &plan, NULL), FL_OK);
    CHECK_INT(resolve(plan, &last, 1, &rows, &err), FL_OK);
    fl_plan_set_length(plan, 9);
    CHECK_INT(resolve(plan, &last, 1, &rows, &err), FL_EINDEX);
    check_index_error(&err, 0, 9, 9);
    CHECK_INT(resolve_range(plan, 5, 5, &rows, &err), FL_EINDEX);
    check_index_error(&err, 4, 9, 9);
    fl_plan_set_length(plan, 12);
    CHECK_INT(resolve(plan, &back, 1, &rows, &err), FL_OK);
    CHECK_INT(row_at(&rows, 0), 11);
    fl_plan_set_length(plan, 0);
    CHECK_INT(resolve(plan, &back, 1, &rows, &err), FL_EINDEX);
    check_index_error(&err, 0, -1, 0);
    fl_rows_close(&rows);
    fl_plan_close(plan);
}

/* ---- refused resources */

/* One epoch through a subset; every step may be refused and must then be repeatable. */
static int run_epoch(void *arg)
{
    (void)arg;
    static const int64_t subset[] = {4, -1, 2, 0}, block[] = {3, 2, 1, 0, -1, -2};
    fl_plan *plan;
    fl_rows rows = {0};
    FL_TRY(fl_plan_open(5, &plan, NULL));
    int status = fl_plan_map(plan, subset, 4, NULL);
    if (status != FL_OK) goto done;
    fl_plan_set_range(plan, 1, 2);
    if ((status = fl_plan_fill(plan, &rows, 8, NULL)) != FL_OK) goto done;
    fl_plan_set_block(plan, block, 6);
    status = fl_plan_fill(plan, &rows, 8, NULL);
    if (status != FL_OK) CHECK_INT(fl_plan_fill(plan, &rows, 8, NULL), FL_OK);
    CHECK(fl_plan_needs_block(plan));
    int resolved = fl_plan_resolve(plan, &rows, NULL);
    if (resolved != FL_OK) {
        check_rows(&rows, (int64_t[]){1, 2, 3, 2, 1, 0, -1, -2}, 8);
        CHECK_INT(fl_plan_resolve(plan, &rows, NULL), FL_OK);
        status = resolved;
    }
    check_rows(&rows, (int64_t[]){4, 2, 0, 2, 4, 4, 0, 2}, 8);
    fl_rows_close(&rows);
    fl_plan_set_range(plan, 0, 4);
    CHECK_INT(fl_plan_fill(plan, &rows, 4, NULL), FL_OK);
    if (status == FL_OK) status = fl_plan_resolve(plan, &rows, NULL);
done:
    fl_rows_close(&rows);
    fl_plan_close(plan);
    return status;
}

/* Finds index i of an epoch e at row i * e, and has no row for index 9. */
static int find_multiple(void *context, uint32_t epoch, const int64_t *index, int64_t count,
                         int64_t *row, fl_err *err)
{
    int *calls = context;
    (*calls)++;
    for (int64_t i = 0; i < count; i++) {
        if (index[i] == 9) return fl_fail(err, FL_EINVAL, "there is no 9");
        row[i] = index[i] * epoch;
    }
    return FL_OK;
}

static void test_a_function_finds_rows_below_a_subset(void)
{
    static const int64_t subset[] = {4, -1, 2, 0}, block[] = {3, -1, 0, 1};
    fl_plan *plan;
    fl_rows rows = {0};
    fl_err err;
    int calls = 0;
    CHECK_INT(fl_plan_open(100, &plan, NULL), FL_OK);
    CHECK_INT(fl_plan_map_by(plan, find_multiple, &calls, 10, NULL), FL_OK);
    fl_plan_set_epoch(plan, 3);
    CHECK_INT(resolve_range(plan, 2, 4, &rows, NULL), FL_OK);
    check_rows(&rows, (int64_t[]){6, 9, 12, 15}, 4);
    CHECK_INT(resolve_range(plan, 8, 3, &rows, &err), FL_EINDEX);
    CHECK_INT(err.value, 10);
    CHECK_INT(fl_plan_map(plan, subset, 4, NULL), FL_OK);
    CHECK_INT(resolve(plan, block, 4, &rows, &err), FL_EINVAL);
    CHECK(strcmp(err.text, "there is no 9") == 0);
    check_rows(&rows, block, 4);
    CHECK_INT(resolve(plan, block, 3, &rows, NULL), FL_OK);
    check_rows(&rows, (int64_t[]){0, 0, 12}, 3);
    CHECK_INT(calls, 3);
    fl_rows_close(&rows);
    fl_plan_close(plan);
}

static void test_every_refused_resource(void) { CHECK(refuse_each(run_epoch, NULL) >= 5); }

int main(void)
{
    start_tests();
    RUN(test_rows_join_ranges_that_follow);
    RUN(test_rows_mix_ranges_and_indices);
    RUN(test_rows_refused_stay_as_they_are);
    RUN(test_rows_have_views);
    RUN(test_views_refused_stay_as_they_are);
    RUN(test_rows_of_an_absurd_count_fail);
    RUN(test_batches_of_every_size);
    RUN(test_a_range_stays_a_range);
    RUN(test_restart_forgets_the_block);
    RUN(test_empty_blocks_and_batches);
    RUN(test_nested_subsets_wrap_at_every_level);
    RUN(test_out_of_bounds_names_the_level);
    RUN(test_after_a_failure_rows_are_the_samplers_indices);
    RUN(test_ranges_are_checked_like_lists);
    RUN(test_extreme_indices);
    RUN(test_the_table_may_change_its_length);
    RUN(test_a_function_finds_rows_below_a_subset);
    RUN(test_every_refused_resource);
    return 0;
}
