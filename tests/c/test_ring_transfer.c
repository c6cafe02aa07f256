/* Tests of fl_ring: memory that the submitter names, several sources, and what the transfer of a
 * batch is told of its parts. */
#include "ring_fixture.h"

/* A transfer that counts its calls. */
typedef struct transfer {
    int64_t tag; /* of its batch */
    int32_t parts;
    sem_t *gate; /* a start waits here; NULL: start does not wait */
    _Atomic int32_t filled, starts;
} transfer;

static void check_batch(const transfer *t, const fl_slot *slot, int64_t bytes)
{
    CHECK(slot != NULL);
    CHECK_INT(bytes, 8 * rows_of(t->tag));
}

static void part_filled(void *context, int32_t part, fl_slot *slot, int64_t bytes)
{
    transfer *t = context;
    CHECK(part >= 0 && part < t->parts);
    check_batch(t, slot, bytes);
    CHECK_INT(t->starts, 0);
    if (atomic_fetch_add(&t->filled, 1) + 1 == t->parts) check_words(slot, t->tag);
}

static int start_transfer(void *context, fl_slot *slot, int64_t bytes, fl_err *err)
{
    transfer *t = context;
    check_batch(t, slot, bytes);
    CHECK_INT(t->filled, t->parts); /* all other parts have been filled */
    check_words(slot, t->tag);
    if (t->gate != NULL) sem_wait(t->gate);
    atomic_fetch_add(&t->starts, 1);
    return fl_fail(err, FL_EDEVICE, "whoever receives the batch tries again");
}

static const fl_transfer_ops ops = {.part_filled = part_filled, .start = start_transfer};

static void open_transfer_fixture(ring_fixture *r, fl_ring_config shape)
{
    shape.transfers = &ops;
    open_fixture(r, shape);
}

static void submit_with(ring_fixture *r, transfer *t)
{
    fl_batch *batch = prepare_batch(r, t->tag, t->parts, NULL);
    batch->transfer = t;
    submit_prepared(r);
}

static void test_every_filled_part_is_told(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        open_transfer_fixture(&r, shape);
        for (int64_t tag = 1; tag < 20; tag++) {
            transfer t = {.tag = tag, .parts = 1 + (int32_t)tag % 6};
            submit_with(&r, &t);
            submit_batch(&r, 30, 3); /* one without a transfer between them */
            receive_and_give(&r, tag);
            CHECK_INT(t.filled, t.parts);
            CHECK_INT(t.starts, 0);
            receive_and_give(&r, 30);
        }
        close_fixture(&r);
    }
}

static void test_a_part_that_failed_is_not_told(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        transfer t = {.tag = 7, .parts = 4};
        open_transfer_fixture(&r, shape);
        r.failing_tag = 7;
        r.failing_part = 2;
        submit_with(&r, &t);
        CHECK_INT(receive_status(&r, LONG_MS), FL_ESOURCE);
        CHECK(t.filled < t.parts && t.starts == 0);
        close_fixture(&r);
    }
}

/* The batch is ready until then, and again when the part is over. */
static void test_a_part_can_be_added(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape) && shape.runs_ahead; i++) {
        ring_fixture r;
        transfer t[4];
        open_transfer_fixture(&r, shape);
        for (int64_t tag = 1; tag < 4; tag++) {
            t[tag] = (transfer){.tag = tag, .parts = 2};
            submit_with(&r, &t[tag]);
        }
        t[1].gate = &r.gate;
        await_done(&r, 6);
        CHECK_INT(fl_ring_submitted(r.ring, 0)->tag, 1);
        CHECK_INT(fl_ring_submitted(r.ring, 2)->tag, 3);
        CHECK(fl_ring_submitted(r.ring, 3) == NULL);
        while (!fl_ring_is_ready(r.ring)) sleep_ms(1);
        while (t[3].filled < 2) sleep_ms(1);
        fl_ring_add_part(r.ring, 2);
        fl_ring_wake(r.ring, fl_ring_take_wakes(r.ring));
        while (t[3].starts < 1) sleep_ms(1); /* nobody asks for the batch */
        fl_ring_add_part(r.ring, 0);
        CHECK(!fl_ring_is_ready(r.ring));
        CHECK_INT(receive_status(&r, 0), FL_ETIMEOUT);
        open_gate(&r, 1);
        for (int64_t tag = 1; tag < 4; tag++)
            receive_and_give(&r, tag); /* its failure is not theirs */
        CHECK(t[1].starts == 1 && t[2].starts == 0 && t[3].starts == 1);
        CHECK_INT(receive_status(&r, 0), FL_EEND);
        close_fixture(&r);
    }
}

/* Nor is a part run of a batch that cannot be filled, or that is dropped. */
static void test_a_part_that_was_added_is_not_wanted(void)
{
    for (int is_failing = 0; is_failing < 2; is_failing++) {
        ring_fixture r;
        transfer t = {.tag = 2, .parts = 1};
        open_transfer_fixture(
            &r,
            (fl_ring_config){.depth = 2, .threads = 1, .runs_ahead = true, .is_in_order = true});
        r.failing_tag = is_failing == 1 ? 2 : NONE;
        r.failing_part = ALL;
        submit_with(&r, &t);
        await_done(&r, 1);
        r.stuck_tag = 5; /* keeps the thread busy */
        submit_batch(&r, 5, 1);
        sem_wait(&r.arrived);
        fl_ring_add_part(r.ring, 0);
        open_gate(&r, 1);
        if (is_failing == 1) CHECK_INT(receive_status(&r, LONG_MS), FL_ESOURCE);
        fl_ring_reset(r.ring);
        CHECK(is_failing == 0 || t.starts == 0);
        CHECK_INT(fl_ring_pending(r.ring), 0);
        close_fixture(&r);
    }
}

/* A batch with its own memory takes no slot of the pool. */
static void test_memory_that_the_submitter_names(void)
{
    enum { BYTES = 4096 };
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        fl_pool_stats before, after;
        char *memory[3];
        open_fixture(&r, shape);
        fl_pool_count(r.pool, &before);
        for (int64_t n = 0; n < 3; n++) {
            int64_t tag = 10 + n;
            memory[n] = fl_alloc(BYTES);
            memset(memory[n], 0x5A, BYTES);
            fl_batch *batch = prepare_batch(&r, tag, 3, NULL);
            CHECK(batch->bytes < BYTES);
            batch->data = memory[n];
            submit_prepared(&r);
        }
        for (int64_t n = 0; n < 3; n++) {
            fl_batch batch;
            CHECK_INT(fl_ring_receive(r.ring, LONG_MS, &batch, NULL), FL_OK);
            CHECK(batch.tag == 10 + n && batch.slot == NULL && batch.data == memory[n]);
            check_memory(memory[n], batch.tag);
            for (int64_t at = batch.bytes; at < BYTES; at++) CHECK_INT(memory[n][at], 0x5A);
            fl_free(memory[n]);
        }
        fl_pool_count(r.pool, &after);
        CHECK_INT(after.made, before.made);
        submit_batch(&r, 13, 2); /* the next one is in a slot again */
        receive_and_give(&r, 13);
        close_fixture(&r);
    }
}

static int fill_with_source(const fl_batch *batch, int32_t part, fl_err *err)
{
    (void)err;
    batch->data[part] = *(const char *)batch->source;
    return FL_OK;
}

static void test_each_batch_has_its_own_source(void)
{
    const char sources[] = "abc";
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        shape.fill = fill_with_source;
        open_fixture(&r, shape);
        for (int64_t n = 0; n < 3; n++) {
            fl_batch *batch = fl_ring_prepare(r.ring);
            batch->source = &sources[n];
            batch->bytes = batch->parts = 5;
            submit_prepared(&r);
        }
        for (int64_t n = 0; n < 3; n++) {
            fl_batch batch;
            CHECK_INT(fl_ring_receive(r.ring, LONG_MS, &batch, NULL), FL_OK);
            for (int at = 0; at < 5; at++) CHECK_INT(batch.data[at], sources[n]);
            fl_slot_return(batch.slot);
        }
        close_fixture(&r);
    }
}

int main(void)
{
    start_tests();
    RUN(test_every_filled_part_is_told);
    RUN(test_a_part_that_failed_is_not_told);
    RUN(test_a_part_can_be_added);
    RUN(test_a_part_that_was_added_is_not_wanted);
    RUN(test_memory_that_the_submitter_names);
    RUN(test_each_batch_has_its_own_source);
    return 0;
}
