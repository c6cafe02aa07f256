/* Tests of fl_ring: stop, reset, close in every state, forks, refused resources. */
#include "ring_fixture.h"

static void start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    CHECK_INT(fl_thread_start(thread, run, arg, NULL), FL_OK);
}

static void *stop_soon(void *ring)
{
    sleep_ms(10);
    fl_ring_stop(ring);
    return NULL;
}

static void *open_gate_soon(void *arg)
{
    sleep_ms(10);
    open_gate(arg, 8);
    return NULL;
}

/* ---- stop */

static void test_stop_ends_a_receive_that_waits(void)
{
    for (int in_order = 0; in_order < 2; in_order++) {
        ring_fixture r;
        pthread_t thread;
        open_fixture(&r,
                     (fl_ring_config){
                         .depth = 2, .threads = 1, .runs_ahead = true, .is_in_order = in_order});
        r.stuck_tag = 1;
        submit_batch(&r, 1, 1);
        start(&thread, stop_soon, r.ring);
        CHECK_INT(receive_status(&r, LONG_MS), FL_ECLOSED);
        pthread_join(thread, NULL);
        open_gate(&r, 1);
        await_done(&r, 1);
        CHECK_INT(receive_status(&r, LONG_MS), FL_ECLOSED); /* from now on */
        CHECK_INT(receive_status(&r, 0), FL_ECLOSED);
        close_fixture(&r);
    }
}

static void test_stop_before_receive(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        open_fixture(&r, shape);
        if (i % 2) submit_batch(&r, 1, 2);
        fl_ring_stop(r.ring);
        fl_ring_stop(r.ring);
        CHECK_INT(receive_status(&r, LONG_MS), FL_ECLOSED);
        submit_batch(&r, 2, 1); /* harmless */
        CHECK_INT(receive_status(&r, 0), FL_ECLOSED);
        close_fixture(&r);
    }
}

static int stop_while_filling(const fl_batch *batch, int32_t part, fl_err *err)
{
    fl_ring *const *ring = batch->source;
    (void)part;
    (void)err;
    fl_ring_stop(*ring);
    return FL_OK;
}

static void test_stop_while_the_consumer_fills(void)
{
    fl_ring *ring;
    fl_pool *pool = open_pool(1);
    fl_ring_config config = {.fill = stop_while_filling, .pool = pool, .depth = 1};
    fl_batch batch;
    CHECK_INT(fl_ring_open(&config, &ring, NULL), FL_OK);
    fl_batch *next = fl_ring_prepare(ring);
    CHECK_INT(fl_rows_add_range(&next->rows, 0, 1, NULL), FL_OK);
    next->source = &ring;
    next->bytes = 8;
    next->parts = 1;
    CHECK_INT(fl_ring_submit(ring, NULL), FL_OK);
    CHECK_INT(fl_ring_receive(ring, 0, &batch, NULL), FL_ECLOSED);
    fl_ring_close(ring);
    fl_pool_close(pool);
}

/* ---- reset */

static void test_reset_starts_again_at_zero(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        open_fixture(&r, shape);
        for (int64_t epoch = 0; epoch < 12; epoch++) {
            for (int64_t tag = 0; tag < 3; tag++) submit_batch(&r, 3 * epoch + tag, 1 + i % 3);
            for (int64_t tag = 0; tag < epoch % 4; tag++) receive_and_give(&r, 3 * epoch + tag);
            fl_ring_reset(r.ring);
            CHECK_INT(fl_ring_pending(r.ring), 0);
            CHECK_INT(receive_status(&r, 0), FL_EEND);
            fl_batch batch;
            submit_batch(&r, 7, 1);
            CHECK_INT(fl_ring_receive(r.ring, LONG_MS, &batch, NULL), FL_OK);
            CHECK(batch.number == 0 && batch.tag == 7);
            fl_slot_return(batch.slot);
        }
        close_fixture(&r);
    }
}

/* There are batches stuck in a fill, filled, failed and a sentinel: none of them may come
 * afterwards. */
static void test_reset_waits_for_parts_in_flight(void)
{
    for (int in_order = 0; in_order < 2; in_order++) {
        ring_fixture r;
        pthread_t thread;
        open_fixture(&r,
                     (fl_ring_config){
                         .depth = 6, .threads = 2, .runs_ahead = true, .is_in_order = in_order});
        r.stuck_tag = 1;
        r.failing_tag = 3;
        submit_batch(&r, 1, 4);
        sem_wait(&r.arrived);
        sem_wait(&r.arrived);
        for (int64_t tag = 2; tag < 5; tag++) submit_batch(&r, tag, 1);
        fl_ring_submit_sentinel(r.ring, FL_ECLOSED, NULL, 50);
        start(&thread, open_gate_soon, &r);
        fl_ring_reset(r.ring);
        CHECK(r.done >= 2); /* both parts that were being copied are over */
        CHECK_INT(r.done, r.fills);
        CHECK_INT(receive_status(&r, 0), FL_EEND);
        pthread_join(thread, NULL);
        r.stuck_tag = r.failing_tag = NONE;
        for (int64_t tag = 10; tag < 16; tag++) submit_batch(&r, tag, 2);
        for (int64_t tag = 10; in_order && tag < 16; tag++) receive_and_give(&r, tag);
        close_fixture(&r);
    }
}

/* ---- close */

static void test_close_with_submitted_and_filled_batches(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        for (int64_t submitted = 0; submitted <= 3; submitted++) {
            for (int64_t received = 0; received <= submitted; received++) {
                ring_fixture r;
                open_fixture(&r, shape);
                r.failing_tag = 2;
                for (int64_t tag = 0; tag < submitted; tag++) submit_batch(&r, tag, 2);
                if (shape.runs_ahead && received == 0)
                    await_done(&r, submitted); /* some are filled */
                for (int64_t n = 0; n < received; n++) {
                    fl_batch batch = {0};
                    int status = fl_ring_receive(r.ring, LONG_MS, &batch, NULL);
                    CHECK_INT(status, n == 2 ? FL_ESOURCE : FL_OK);
                    fl_slot_return(batch.slot);
                }
                close_fixture(&r);
            }
        }
    }
}

static void test_close_while_parts_are_copied(void)
{
    for (int32_t threads = 1; threads <= 3; threads++) {
        ring_fixture r;
        pthread_t thread;
        open_fixture(&r, (fl_ring_config){.depth = 3, .threads = threads, .runs_ahead = true});
        r.stuck_tag = 1;
        submit_batch(&r, 1, 3);
        submit_batch(&r, 2, 1);
        for (int32_t n = 0; n < threads; n++) sem_wait(&r.arrived);
        fl_ring_submit_sentinel(r.ring, FL_OK, NULL, 50);
        if (threads == 2) fl_ring_stop(r.ring);
        start(&thread, open_gate_soon, &r);
        fl_ring_close(r.ring);
        r.ring = NULL;
        CHECK_INT(r.done, r.fills); /* nobody fills any more */
        CHECK(r.fills >= threads && r.fills <= 4);
        pthread_join(thread, NULL);
        close_fixture(&r);
    }
}

static void test_close_while_batches_are_lent(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        fl_slot *lent[3];
        open_fixture(&r, shape);
        for (int64_t tag = 0; tag < 3; tag++) submit_batch(&r, tag, 2);
        for (int64_t tag = 0; tag < 3; tag++) fl_slot_lend(lent[tag] = receive_batch(&r, tag), 2);
        for (int64_t tag = 5; tag < 8; tag++) submit_batch(&r, tag, 1);
        fl_slot_give(lent[1]);
        fl_ring_close(r.ring);
        fl_slot_give(lent[1]);
        fl_pool_close(r.pool);
        check_words(lent[0], 0); /* a batch outlives ring and pool */
        check_words(lent[2], 2);
        for (int tag = 0; tag < 3; tag += 2) {
            fl_slot_give(lent[tag]);
            fl_slot_give(lent[tag]);
        }
    }
}

/* ---- forks */

static int use_the_parents_ring(void *arg)
{
    ring_fixture *r = arg;
    fl_batch batch;
    fl_err err = {0};
    CHECK_INT(fl_ring_receive(r->ring, LONG_MS, &batch, &err), FL_EFORK);
    CHECK(err.code == FL_EFORK && err.text[0] != '\0');
    CHECK_INT(receive_status(r, 0), FL_EFORK);
    CHECK_INT(fl_ring_submit(r->ring, &err), FL_EFORK);
    CHECK(fl_ring_prepare(r->ring) == NULL);
    fl_ring_submit_sentinel(r->ring, FL_OK, NULL, 0);
    fl_ring_reset(r->ring);
    fl_ring_stop(r->ring);
    fl_ring_close(r->ring);
    fl_pool_close(r->pool);
    return 0;
}

static void test_fork_with_an_open_ring(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        open_fixture(&r, shape);
        CHECK_INT(run_child(use_the_parents_ring, &r), 0);
        r.stuck_tag = shape.runs_ahead ? 2 : NONE;
        submit_batch(&r, 1, 2);
        submit_batch(&r, 2, 1);
        fl_slot *lent = receive_batch(&r, 1);
        fl_slot_lend(lent, 1);
        if (shape.runs_ahead) sem_wait(&r.arrived); /* one thread is in the middle of a fill */
        CHECK_INT(run_child(use_the_parents_ring, &r), 0);
        CHECK_INT(fl_ring_pending(r.ring), 1);
        open_gate(&r, 1);
        receive_and_give(&r, 2); /* the parent goes on */
        submit_batch(&r, 3, 2);
        receive_and_give(&r, 3);
        check_words(lent, 1);
        fl_slot_give(lent);
        close_fixture(&r);
    }
}

/* Threads lock and unlock the ring's mutex all the time, so some child inherits a locked mutex. */
static void test_fork_at_any_moment(void)
{
    ring_fixture r;
    open_fixture(
        &r, (fl_ring_config){.depth = 3, .threads = 2, .runs_ahead = true, .is_in_order = true});
    for (int64_t tag = 0; tag < 30; tag++) {
        for (int64_t n = 0; n < 3; n++) submit_batch(&r, tag + n, 16);
        CHECK_INT(run_child(use_the_parents_ring, &r), 0);
        for (int64_t n = 0; n < 3; n++) receive_and_give(&r, tag + n);
    }
    close_fixture(&r);
}

/* ---- refused resources */

/* Submits three batches, or sentinels if there was no memory, and receives them all. */
static int submit_and_receive(ring_fixture *r)
{
    int first = FL_OK;
    for (int64_t tag = 41; tag < 44; tag++) {
        fl_err err = {0};
        bool has_rows = prepare_batch(r, tag, 4, &err) != NULL;
        int status = has_rows ? fl_ring_submit(r->ring, &err) : err.code;
        CHECK_INT(err.code, status);
        if (status != FL_OK) fl_ring_submit_sentinel(r->ring, status, &err, tag);
    }
    for (int n = 0; n < 3; n++) {
        fl_batch batch;
        fl_err err;
        int status = fl_ring_receive(r->ring, LONG_MS, &batch, &err);
        if (status == FL_OK) check_words(batch.slot, 41 + n);
        fl_slot_return(batch.slot);
        if (status != FL_OK && first == FL_OK) {
            CHECK_INT(err.code, status);
            first = status;
        }
    }
    CHECK_INT(receive_status(r, 0), FL_EEND);
    return first;
}

static int open_submit_and_receive(void *arg)
{
    fl_ring_config shape = *(fl_ring_config *)arg;
    ring_fixture r;
    memset(&r, 0, sizeof r);
    r.stuck_tag = r.failing_tag = NONE;
    FL_TRY(fl_pool_open(0, NULL, &r.pool, NULL));
    shape.fill = fill_part;
    shape.pool = r.pool;
    fl_err err = {0};
    int status = fl_ring_open(&shape, &r.ring, &err);
    if (status == FL_OK) {
        status = submit_and_receive(&r);
        if (status != FL_OK) CHECK_INT(submit_and_receive(&r), FL_OK); /* the ring goes on */
    } else {
        CHECK(r.ring == NULL && err.code == status && err.text[0] != '\0');
    }
    fl_ring_close(r.ring);
    fl_pool_close(r.pool);
    return status;
}

static void test_every_refused_resource(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++)
        CHECK(refuse_each(open_submit_and_receive, &shape) >= 10 + shape.threads);
}

static void test_a_submission_that_failed_can_be_repeated(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        ring_fixture r;
        fl_err err = {0};
        open_fixture(&r, shape);
        submit_batch(&r, 1, 1);
        CHECK(prepare_batch(&r, 33, 2, NULL) != NULL);
        fl_fault_arm(1);
        CHECK_INT(fl_ring_submit(r.ring, &err), FL_ENOMEM);
        fl_fault_arm(0);
        CHECK(err.code == FL_ENOMEM && fl_ring_pending(r.ring) == 1);
        CHECK_INT(fl_ring_submit(r.ring, &err), FL_OK);
        receive_and_give(&r, 1);
        receive_and_give(&r, 33);
        close_fixture(&r);
    }
}

/* ---- a ring that is used again */

static int fill_nothing(const fl_batch *batch, int32_t part, fl_err *err)
{
    (void)batch, (void)part, (void)err;
    return FL_OK;
}

static int is_foreign_ring_fit(void *arg)
{
    ring_fixture *r = arg;
    fl_ring_config same = {.fill = fill_part, .pool = r->pool, .depth = 3, .threads = 2};
    same.runs_ahead = same.is_in_order = true;
    return fl_ring_fits(r->ring, &same);
}

static void test_a_ring_fits_what_it_was_opened_with(void)
{
    ring_fixture r;
    fl_ring_config shape = {.depth = 3, .threads = 2, .runs_ahead = true, .is_in_order = true};
    open_fixture(&r, shape);
    shape.fill = fill_part;
    shape.pool = r.pool;
    CHECK(fl_ring_fits(r.ring, &shape));
    fl_ring_config others[9];
    for (int i = 0; i < 9; i++) others[i] = shape;
    others[0].fill = fill_nothing;
    others[1].transfers = (const fl_transfer_ops *)(const void *)&shape;
    others[2].pool = NULL;
    others[3].depth = 4;
    others[4].threads = 3;
    others[5].runs_ahead = false;
    others[6].consumer_fills = true;
    others[7].lazy_bytes = 1;
    others[8].is_in_order = false;
    for (int i = 0; i < 9; i++) CHECK(!fl_ring_fits(r.ring, &others[i]));
    CHECK_INT(run_child(is_foreign_ring_fit, &r), 0);
    fl_ring_stop(r.ring);
    CHECK(!fl_ring_fits(r.ring, &shape));
    close_fixture(&r);
}

int main(void)
{
    start_tests();
    RUN(test_stop_ends_a_receive_that_waits);
    RUN(test_stop_before_receive);
    RUN(test_stop_while_the_consumer_fills);
    RUN(test_reset_starts_again_at_zero);
    RUN(test_reset_waits_for_parts_in_flight);
    RUN(test_close_with_submitted_and_filled_batches);
    RUN(test_close_while_parts_are_copied);
    RUN(test_close_while_batches_are_lent);
    RUN(test_a_ring_fits_what_it_was_opened_with);
    RUN(test_fork_with_an_open_ring);
    RUN(test_fork_at_any_moment);
    RUN(test_every_refused_resource);
    RUN(test_a_submission_that_failed_can_be_repeated);
    return 0;
}
