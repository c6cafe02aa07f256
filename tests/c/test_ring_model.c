/* Long random runs of fl_ring against a model: every submitted batch must come, filled rightly, in
 * its order, once, whatever happens around it: submitting, receiving, keeping, giving back,
 * timeouts and resets. */
#include "ring_fixture.h"

enum { DEPTH = 5, MOST_HELD = DEPTH + 3, STEPS = 1500 };

/* The meaning of a tag: one in eight fails; one in sixteen is a sentinel, one in sixteen a failed
 * sentinel. */
static bool is_sentinel(int64_t tag) { return tag % 16 == 5 || tag % 16 == 6; }
static bool is_failing(int64_t tag) { return tag % 16 == 6 || tag % 8 == 3; }

typedef struct model {
    ring_fixture r;
    uint64_t seed;
    bool is_in_order, has_threads;
    int64_t next_tag, next_number;
    int64_t tags[DEPTH], numbers[DEPTH], submitted; /* oldest first */
    fl_slot *held[MOST_HELD];                       /* lent to us */
    int64_t held_tags[MOST_HELD], held_count;
} model;

static int fill_or_fail(const fl_batch *batch, int32_t part, fl_err *err)
{
    FL_TRY(fill_part(batch, part, err));
    bool fails = is_failing(batch->tag) && part == batch->tag % batch->parts;
    return fails ? fl_fail(err, FL_ESOURCE, "%lld", (long long)batch->tag) : FL_OK;
}

static void submit_some(model *m)
{
    if (m->submitted == DEPTH) {
        CHECK(fl_ring_prepare(m->r.ring) == NULL);
        return;
    }
    int64_t tag = MAX_TAGS + m->next_tag++ % 900;
    fl_err err;
    (void)fl_fail(&err, FL_ESOURCE, "%lld", (long long)tag);
    if (is_sentinel(tag))
        fl_ring_submit_sentinel(m->r.ring, is_failing(tag) ? FL_ESOURCE : FL_OK, &err, tag);
    else
        submit_batch(&m->r, tag, 1 + (int32_t)random_below(&m->seed, 5));
    m->tags[m->submitted] = tag;
    m->numbers[m->submitted++] = m->next_number++;
}

static void give_one(model *m, int64_t place)
{
    check_words(m->held[place], m->held_tags[place]);
    fl_slot_give(m->held[place]);
    m->held_count--;
    m->held[place] = m->held[m->held_count];
    m->held_tags[place] = m->held_tags[m->held_count];
}

static void keep(model *m, fl_slot *slot, int64_t tag)
{
    if (m->held_count == MOST_HELD) give_one(m, random_below(&m->seed, MOST_HELD));
    fl_slot_lend(slot, 1);
    m->held[m->held_count] = slot;
    m->held_tags[m->held_count++] = tag;
}

/* Removes the batch with this tag from the model and returns its position. */
static int64_t strike(model *m, int64_t tag)
{
    int64_t place = 0;
    while (place < m->submitted && m->tags[place] != tag) place++;
    CHECK(place < m->submitted);
    if (m->is_in_order) CHECK_INT(place, 0);
    m->submitted--;
    for (int64_t i = place; i < m->submitted; i++) {
        m->tags[i] = m->tags[i + 1];
        m->numbers[i] = m->numbers[i + 1];
    }
    return place;
}

static void take_some(model *m)
{
    fl_batch batch;
    fl_err err = {0};
    int64_t waits[] = {0, 0, 1, LONG_MS}, wait_ms = waits[random_below(&m->seed, 4)];
    int64_t numbers[DEPTH];
    memcpy(numbers, m->numbers, sizeof numbers);
    int status = fl_ring_receive(m->r.ring, wait_ms, &batch, &err);
    if (m->submitted == 0) {
        CHECK_INT(status, FL_EEND);
    } else if (status == FL_ETIMEOUT) {
        CHECK(wait_ms < LONG_MS && (wait_ms > 0 || m->has_threads));
    } else if (status != FL_OK) {
        CHECK_INT(status, FL_ESOURCE);
        int64_t tag = strtoll(err.text, NULL, 10);
        CHECK(is_failing(tag));
        fl_slot_return(batch.slot);
        (void)strike(m, tag);
    } else {
        CHECK_INT(batch.number, numbers[strike(m, batch.tag)]);
        CHECK(!is_failing(batch.tag) && (batch.slot == NULL) == is_sentinel(batch.tag));
        if (batch.slot != NULL) check_words(batch.slot, batch.tag);
        if (batch.slot != NULL) keep(m, batch.slot, batch.tag);
    }
    CHECK_INT(fl_ring_pending(m->r.ring), m->submitted);
}

static void take_a_step(model *m)
{
    int64_t action = random_below(&m->seed, 100);
    if (action < 45)
        submit_some(m);
    else if (action < 90)
        take_some(m);
    else if (action < 98 && m->held_count > 0)
        give_one(m, random_below(&m->seed, m->held_count));
    else if (action == 99) {
        fl_ring_reset(m->r.ring);
        m->submitted = m->next_number = 0;
        if (random_below(&m->seed, 4) == 0) fl_pool_trim(m->r.pool);
    }
}

static void run_model(fl_ring_config shape, uint64_t seed)
{
    static model m;
    m = (model){.seed = seed, .is_in_order = shape.is_in_order, .has_threads = shape.threads > 0};
    shape.depth = DEPTH;
    shape.fill = fill_or_fail;
    open_fixture(&m.r, shape);
    for (int step = 0; step < STEPS; step++) take_a_step(&m);
    fl_pool_stats stats;
    fl_pool_count(m.r.pool, &stats);
    CHECK_INT(stats.lent, m.held_count);
    while (m.held_count > 0) give_one(&m, 0);
    close_fixture(&m.r);
}

static void test_random_runs_in_order(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) run_model(shape, (uint64_t)i);
}

static void test_random_runs_out_of_order(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        shape.is_in_order = false;
        run_model(shape, 100 + (uint64_t)i);
    }
}

/* The consumer fills too, and threads are woken late. */
static void test_random_runs_of_lazy_rings(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        shape.consumer_fills = true;
        shape.lazy_bytes = i % 2 == 0 ? INT64_MAX : 64;
        run_model(shape, 200 + (uint64_t)i);
    }
}

int main(void)
{
    start_tests();
    RUN(test_random_runs_in_order);
    RUN(test_random_runs_out_of_order);
    RUN(test_random_runs_of_lazy_rings);
    return 0;
}
