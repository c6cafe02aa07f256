/* Tests of fl_ring: order, waiting, running ahead, parts, errors, sentinels, lending. */
#include "ring_fixture.h"

#include "fl_pages.h"

static void test_an_empty_ring(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        open_fixture(&r, shape);
        CHECK_INT(fl_ring_pending(r.ring), 0);
        CHECK_INT(receive_status(&r, 0), FL_EEND);
        CHECK_INT(receive_status(&r, LONG_MS), FL_EEND); /* nothing to wait for */
        close_fixture(&r);
        open_fixture(&r, shape);
        close_fixture(&r);
    }
    fl_ring_close(NULL);
}

static void test_batches_come_in_order(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        open_fixture(&r, shape);
        for (int64_t tag = 0; tag < 60; tag++) {
            if (fl_ring_pending(r.ring) == shape.depth) receive_and_give(&r, tag - shape.depth);
            submit_batch(&r, tag, 1 + (int32_t)tag % 5);
        }
        for (int64_t tag = 60 - shape.depth; tag < 60; tag++) receive_and_give(&r, tag);
        CHECK_INT(receive_status(&r, 0), FL_EEND);
        for (int64_t tag = 0; tag < 60; tag++)
            for (int32_t part = 0; part < MAX_PARTS; part++)
                CHECK_INT(r.calls[tag][part], part < 1 + (int32_t)tag % 5);
        close_fixture(&r);
    }
}

static void test_numbers_count_from_zero(void)
{
    ring_fixture r;
    open_fixture(&r, (fl_ring_config){.depth = 2, .threads = 1, .runs_ahead = true});
    for (int64_t n = 0; n < 5; n++) {
        fl_batch batch;
        if (n == 2)
            fl_ring_submit_sentinel(r.ring, FL_OK, NULL, 40); /* sentinels count too */
        else
            submit_batch(&r, 10 + n, 2);
        CHECK_INT(fl_ring_receive(r.ring, LONG_MS, &batch, NULL), FL_OK);
        CHECK_INT(batch.number, n);
        CHECK_INT(batch.parts, n == 2 ? 0 : 2);
        fl_slot_return(batch.slot);
    }
    close_fixture(&r);
}

static void test_no_batch_to_prepare_when_depth_are_submitted(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        open_fixture(&r, shape);
        for (int64_t tag = 0; tag < shape.depth; tag++) {
            CHECK(fl_ring_prepare(r.ring) != NULL);
            submit_batch(&r, tag, 1);
        }
        CHECK(fl_ring_prepare(r.ring) == NULL);
        receive_and_give(&r, 0);
        CHECK(fl_ring_prepare(r.ring) != NULL);
        close_fixture(&r);
    }
}

static void test_a_prepared_batch_stands_while_another_is_received(void)
{
    ring_fixture r;
    open_fixture(&r, (fl_ring_config){.depth = 3, .threads = 1, .runs_ahead = true});
    submit_batch(&r, 5, 1);
    CHECK(prepare_batch(&r, 7, 1, NULL) != NULL);
    receive_and_give(&r, 5);
    submit_prepared(&r);
    receive_and_give(&r, 7);
    close_fixture(&r);
}

static void test_receive_waits_for_a_slow_fill(void)
{
    ring_fixture r;
    open_fixture(
        &r, (fl_ring_config){.depth = 2, .threads = 2, .runs_ahead = true, .is_in_order = true});
    r.slow_ms = 20;
    int64_t before = fl_now_ns();
    submit_batch(&r, 1, 2);
    submit_batch(&r, 2, 1);
    receive_and_give(&r, 1);
    CHECK(fl_now_ns() - before >= 20 * 1000000);
    receive_and_give(&r, 2);
    close_fixture(&r);
}

static void test_receive_times_out_and_later_succeeds(void)
{
    fl_ring_config shape = {.depth = 2, .threads = 1, .runs_ahead = true, .is_in_order = true};
    for (int in_order = 0; in_order < 2; in_order++) {
        ring_fixture r;
        shape.is_in_order = in_order;
        open_fixture(&r, shape);
        r.stuck_tag = 3;
        submit_batch(&r, 3, 1);
        CHECK_INT(receive_status(&r, 0), FL_ETIMEOUT);
        int64_t before = fl_now_ns();
        CHECK_INT(receive_status(&r, 15), FL_ETIMEOUT);
        CHECK(fl_now_ns() - before >= 15 * 1000000);
        CHECK_INT(fl_ring_pending(r.ring), 1);
        open_gate(&r, 1);
        receive_and_give(&r, 3);
        CHECK_INT(receive_status(&r, 0), FL_EEND);
        close_fixture(&r);
    }
}

static void test_a_ring_runs_ahead(void)
{
    for (int32_t threads = 1; threads <= 4; threads++) {
        ring_fixture r;
        open_fixture(&r,
                     (fl_ring_config){
                         .depth = 5, .threads = threads, .runs_ahead = true, .is_in_order = true});
        for (int round = 0; round < 3; round++) {
            atomic_store(&r.done, 0);
            for (int64_t tag = 0; tag < 5; tag++) submit_batch(&r, tag, 1 + (int32_t)tag % 3);
            await_done(&r, 1 + 2 + 3 + 1 + 2); /* without receiving */
            for (int64_t tag = 0; tag < 5; tag++) receive_and_give(&r, tag);
        }
        close_fixture(&r);
    }
}

static void test_all_threads_fill_at_once(void)
{
    for (int32_t threads = 1; threads <= 4; threads++) {
        for (int32_t parts = 1; parts <= threads; parts += threads > 1 ? threads - 1 : 1) {
            ring_fixture r;
            int64_t batches = threads / parts; /* as many parts as threads, in one or in many */
            open_fixture(&r, (fl_ring_config){.depth = 4, .threads = threads, .runs_ahead = true});
            r.stuck_tag = 6;
            for (int64_t n = 0; n < batches; n++) submit_batch(&r, 6, parts);
            for (int32_t n = 0; n < threads; n++) sem_wait(&r.arrived);
            CHECK_INT(receive_status(&r, 0), FL_ETIMEOUT);
            open_gate(&r, threads);
            for (int64_t n = 0; n < batches; n++) receive_and_give(&r, 6);
            close_fixture(&r);
        }
    }
}

static void test_a_ring_that_does_not_run_ahead(void)
{
    for (int32_t threads = 0; threads <= 3; threads++) {
        ring_fixture r;
        open_fixture(&r, (fl_ring_config){.depth = 3, .threads = threads, .is_in_order = true});
        for (int64_t tag = 0; tag < 3; tag++) submit_batch(&r, tag, 1);
        sleep_ms(10);
        for (int64_t tag = 0; tag < 3; tag++) {
            CHECK_INT(r.fills, tag); /* read when the batch is received, not before */
            fl_batch batch;
            CHECK_INT(fl_ring_receive(r.ring, 0, &batch, NULL), FL_OK); /* no need to wait */
            check_words(batch.slot, tag);
            fl_slot_return(batch.slot);
        }
        close_fixture(&r);
    }
}

static void test_helpers_copy_parts(void)
{
    ring_fixture r;
    open_fixture(&r, (fl_ring_config){.depth = 1, .threads = 3, .is_in_order = true});
    r.stuck_tag = 9;
    for (int round = 0; round < 5; round++) {
        submit_batch(&r, 9, 8);
        for (int helper = 0; helper < 3; helper++) sem_wait(&r.arrived); /* the consumer is here */
        open_gate(&r, 8);
        receive_and_give(&r, 9);
        while (sem_trywait(&r.arrived) == 0) continue;
    }
    CHECK_INT(r.fills, 5 * 8);
    close_fixture(&r);
}

/* A consumer that fills parts comes back to look for signals, and loses nothing. */
static void test_receive_fills_no_longer_than_it_may_wait(void)
{
    ring_fixture r;
    open_fixture(&r, (fl_ring_config){.depth = 2, .is_in_order = true});
    r.slow_ms = 10;
    submit_batch(&r, 9, 8);
    submit_batch(&r, 10, 1);
    CHECK_INT(receive_status(&r, 5), FL_ETIMEOUT);
    CHECK_INT(r.fills, 1);
    CHECK_INT(receive_status(&r, 15), FL_ETIMEOUT);
    CHECK(r.fills >= 2 && r.fills <= 3);
    CHECK_INT(receive_status(&r, 0), FL_OK); /* receive does not wait, so it fills to the end */
    CHECK_INT(r.fills, 8);
    receive_and_give(&r, 10);
    CHECK_INT(r.fills, 9);
    close_fixture(&r);
}

/* Returns true if the consumer fills the second batch while the only thread is stuck in the
 * first. */
static bool consumer_fills_second(bool consumer_fills, bool may_wait)
{
    ring_fixture r;
    open_fixture(&r, (fl_ring_config){.depth = 2,
                                      .threads = 1,
                                      .runs_ahead = true,
                                      .consumer_fills = consumer_fills,
                                      .is_in_order = true});
    r.stuck_tag = 4;
    submit_batch(&r, 4, 1);
    sem_wait(&r.arrived);
    prepare_batch(&r, 5, 1, NULL)->layout.may_wait = may_wait;
    submit_prepared(&r);
    CHECK_INT(receive_status(&r, 5), FL_ETIMEOUT);
    bool is_filled = r.fills == 2;
    open_gate(&r, 1);
    receive_and_give(&r, 4);
    receive_and_give(&r, 5);
    CHECK_INT(r.fills, 2);
    close_fixture(&r);
    return is_filled;
}

static void test_the_consumer_fills_what_does_not_wait_for_a_disk(void)
{
    CHECK(consumer_fills_second(true, false));
    CHECK(!consumer_fills_second(true, true));
    CHECK(!consumer_fills_second(false, false));
}

static void test_a_batch_may_be_larger_than_any_before(void)
{
    const int64_t tags[] = {3, 1000, 20, 5000, 200000, 7, 400001, 1000, 524288, 0};
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        open_fixture(&r, shape);
        for (int n = 0; n < 10; n++) {
            if (fl_ring_pending(r.ring) == 3) receive_and_give(&r, tags[n - 3]);
            submit_batch(&r, tags[n], 1 + n % 4);
        }
        for (int n = 7; n < 10; n++) receive_and_give(&r, tags[n]);
        close_fixture(&r);
        i++; /* every other shape will do */
    }
}

static void check_taken_error(ring_fixture *r, int64_t tag, int32_t part)
{
    fl_batch batch;
    fl_err err = {0};
    int64_t pending = fl_ring_pending(r->ring);
    CHECK_INT(fl_ring_receive(r->ring, LONG_MS, &batch, &err), FL_ESOURCE);
    CHECK_INT(err.code, FL_ESOURCE);
    CHECK_INT(err.value, tag);
    if (part != ALL) CHECK_INT(err.field, part);
    CHECK_INT(fl_ring_pending(r->ring), pending - 1); /* the batch is used up */
    fl_slot_return(batch.slot);
}

static void test_receive_after_error_goes_on(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        for (int64_t k = 0; k < 5; k++) {
            ring_fixture r;
            open_fixture(&r, shape);
            r.failing_tag = k;
            for (int64_t tag = 0; tag < 8; tag++) {
                if (tag < 5) submit_batch(&r, tag, 1);
                if (tag < 2) continue;
                if (tag - 2 == k)
                    check_taken_error(&r, k, 0);
                else if (tag - 2 < 5)
                    receive_and_give(&r, tag - 2);
            }
            CHECK_INT(receive_status(&r, 0), FL_EEND);
            close_fixture(&r);
        }
    }
}

static void test_an_error_in_one_of_many_parts(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        open_fixture(&r, shape);
        r.failing_tag = 21;
        for (int32_t part = ALL; part < 8; part++) {
            r.failing_part = part;
            if (part == NONE) continue;
            submit_batch(&r, 20, 8);
            submit_batch(&r, 21, 8);
            submit_batch(&r, 22, 8);
            receive_and_give(&r, 20);
            check_taken_error(&r, 21, part);
            receive_and_give(&r, 22);
        }
        close_fixture(&r);
    }
}

static void test_a_failed_batch_returns_its_slot(void)
{
    ring_fixture r;
    open_fixture(&r, (fl_ring_config){.depth = 1, .threads = 2, .runs_ahead = true});
    r.failing_tag = 4;
    for (int round = 0; round < 20; round++) {
        submit_batch(&r, 4, 2);
        CHECK_INT(receive_status(&r, LONG_MS), FL_ESOURCE); /* without an err to fill */
    }
    check_counts(r.pool, 0, 1, 0, 1);
    close_fixture(&r);
}

static void test_sentinels_are_received_in_their_place(void)
{
    const fl_err cause = {.code = FL_EINDEX, .position = 3, .value = 11, .length = 10};
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        fl_batch batch;
        fl_err err;
        shape.depth = 5;
        open_fixture(&r, shape);
        submit_batch(&r, 1, 2);
        fl_ring_submit_sentinel(r.ring, FL_OK, NULL, 50);
        submit_batch(&r, 2, 1);
        fl_ring_submit_sentinel(r.ring, FL_EINDEX, &cause, 51);
        fl_ring_submit_sentinel(r.ring, FL_ECLOSED, NULL, 52);
        CHECK(fl_ring_prepare(r.ring) == NULL && fl_ring_pending(r.ring) == 5);
        receive_and_give(&r, 1);
        CHECK_INT(fl_ring_receive(r.ring, 0, &batch, &err), FL_OK);
        CHECK(batch.slot == NULL && batch.tag == 50 && batch.parts == 0);
        receive_and_give(&r, 2);
        CHECK_INT(fl_ring_receive(r.ring, 0, &batch, &err), FL_EINDEX);
        CHECK(err.code == FL_EINDEX && err.position == 3 && err.value == 11 && err.length == 10);
        CHECK_INT(fl_ring_receive(r.ring, 0, &batch, &err), FL_ECLOSED);
        CHECK_INT(err.code, FL_ECLOSED);
        CHECK_INT(fl_ring_receive(r.ring, 0, &batch, &err), FL_EEND);
        close_fixture(&r);
    }
}

static void test_a_sentinel_waits_for_the_batch_before_it(void)
{
    ring_fixture r;
    open_fixture(
        &r, (fl_ring_config){.depth = 3, .threads = 2, .runs_ahead = true, .is_in_order = true});
    r.stuck_tag = 8;
    submit_batch(&r, 8, 1);
    fl_ring_submit_sentinel(r.ring, FL_OK, NULL, 50);
    submit_batch(&r, 9, 1);
    await_done(&r, 1);
    CHECK_INT(receive_status(&r, 10), FL_ETIMEOUT);
    open_gate(&r, 1);
    receive_and_give(&r, 8);
    CHECK_INT(receive_status(&r, 0), FL_OK);
    receive_and_give(&r, 9);
    close_fixture(&r);
}

static void test_out_of_order_lets_others_pass(void)
{
    ring_fixture r;
    open_fixture(&r, (fl_ring_config){.depth = 4, .threads = 2, .runs_ahead = true});
    r.stuck_tag = 1;
    submit_batch(&r, 1, 1);
    sem_wait(&r.arrived);
    for (int64_t tag = 2; tag < 12; tag++) {
        submit_batch(&r, tag, 2);
        receive_and_give(&r, tag);
    }
    for (int64_t tag = 12; tag < 15; tag++) submit_batch(&r, tag, 1);
    for (int64_t tag = 12; tag < 15; tag++) receive_and_give(&r, tag); /* oldest first */
    CHECK_INT(receive_status(&r, 0), FL_ETIMEOUT);
    CHECK_INT(fl_ring_pending(r.ring), 1);
    submit_batch(&r, 20, 1);
    fl_ring_submit_sentinel(r.ring, FL_OK, NULL, 50);
    await_done(&r, 10 * 2 + 3 + 1);
    open_gate(&r, 1);
    int64_t sum = 0;
    for (int n = 0; n < 3; n++) {
        fl_batch batch;
        CHECK_INT(fl_ring_receive(r.ring, LONG_MS, &batch, NULL), FL_OK);
        if (batch.slot != NULL) check_words(batch.slot, batch.tag);
        fl_slot_return(batch.slot);
        sum += batch.tag;
    }
    CHECK_INT(sum, 1 + 20 + 50);
    close_fixture(&r);
}

/* Any number of batches may stay with the user, far more than the ring has places for. */
static void test_hold_batches(void)
{
    enum { BATCHES = 20, MOST = 6 };
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        for (int64_t hold = 0; hold <= shape.depth + 3; hold++) {
            ring_fixture r;
            fl_slot *held[BATCHES + MOST] = {NULL};
            open_fixture(&r, shape);
            for (int64_t tag = 0; tag < BATCHES; tag++) {
                submit_batch(&r, tag, 1 + (int32_t)tag % 2);
                held[tag] = receive_batch(&r, tag);
                fl_slot_lend(held[tag], 1);
                if (tag < hold) continue;
                check_words(held[tag - hold], tag - hold); /* still unchanged */
                fl_slot_give(held[tag - hold]);
            }
            fl_pool_stats stats;
            fl_pool_count(r.pool, &stats);
            CHECK_INT(stats.lent, hold);
            for (int64_t tag = BATCHES - hold; tag < BATCHES; tag++) {
                check_words(held[tag], tag);
                fl_slot_give(held[tag]);
            }
            close_fixture(&r);
        }
    }
}

/* The layout's memory belongs to the ring, like the memory of the rows. */
static void test_a_batch_is_laid_out_in_the_memory_of_the_one_before(void)
{
    ring_fixture r;
    open_fixture(&r, (fl_ring_config){.depth = 1, .threads = 0});
    fl_batch received;
    fl_output *outputs = NULL;
    for (int64_t tag = 1; tag < 4; tag++) {
        fl_batch *batch = fl_ring_prepare(r.ring);
        CHECK(batch->layout.outputs == outputs);
        CHECK_INT(fl_layout_reserve(&batch->layout, 1, 2, NULL), FL_OK);
        outputs = batch->layout.outputs;
        outputs[1].bytes = tag;
        fl_ring_submit_sentinel(r.ring, FL_OK, NULL, tag);
        CHECK_INT(fl_ring_receive(r.ring, 0, &received, NULL), FL_OK);
        CHECK(received.layout.outputs[1].bytes == tag && received.layout.count == 2);
    }
    close_fixture(&r);
}

int main(void)
{
    start_tests();
    RUN(test_an_empty_ring);
    RUN(test_batches_come_in_order);
    RUN(test_numbers_count_from_zero);
    RUN(test_no_batch_to_prepare_when_depth_are_submitted);
    RUN(test_a_prepared_batch_stands_while_another_is_received);
    RUN(test_receive_waits_for_a_slow_fill);
    RUN(test_receive_times_out_and_later_succeeds);
    RUN(test_a_ring_runs_ahead);
    RUN(test_all_threads_fill_at_once);
    RUN(test_a_ring_that_does_not_run_ahead);
    RUN(test_helpers_copy_parts);
    RUN(test_receive_fills_no_longer_than_it_may_wait);
    RUN(test_the_consumer_fills_what_does_not_wait_for_a_disk);
    RUN(test_a_batch_may_be_larger_than_any_before);
    RUN(test_receive_after_error_goes_on);
    RUN(test_an_error_in_one_of_many_parts);
    RUN(test_a_failed_batch_returns_its_slot);
    RUN(test_sentinels_are_received_in_their_place);
    RUN(test_a_sentinel_waits_for_the_batch_before_it);
    RUN(test_out_of_order_lets_others_pass);
    RUN(test_hold_batches);
    RUN(test_a_batch_is_laid_out_in_the_memory_of_the_one_before);
    return 0;
}
