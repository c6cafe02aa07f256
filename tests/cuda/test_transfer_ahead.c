/* Tests of workers' batches that are copied while their consumer does nothing, and of batches that
 * are not. The test plays the workers, so it knows which memory holds what. */
#include "transfer_copier_fixture.h"

enum { SEEDS = 40 };

/* The batch is in a buffer that the copier had. */
static void check_copied(const loop *l, int64_t tag)
{
    int device, found = 0;
    CHECK_INT(cudaGetDeviceCount(&device), cudaSuccess); /* any call lets work run */
    for (const device_buffer *b = l->heap.buffers; b->memory != NULL; b++) {
        int64_t first;
        memcpy(&first, fake_host_view(b->memory), sizeof first);
        if (first != batch_word(tag, 0)) continue;
        check_words(fake_host_view(b->memory), tag);
        found++;
    }
    CHECK_INT(found, 1);
}

static void test_a_batch_is_copied_while_the_consumer_does_nothing(void)
{
    for (int in_order = 0; in_order < 2; in_order++) {
        loop l;
        job *j;
        fake_set_order(FAKE_EAGER, 0);
        open_loop(&l, (shape){.workers = 1, .is_in_order = in_order == 1});
        send_tags(&l, (const int64_t[]){0, 1}, 2);
        int64_t calls = fake_calls(), before = copies;
        serve(&l, 0, 1);
        await_copies(before + 1);
        CHECK_INT(fake_calls(), calls + PIN_CALLS + COPY_CALLS);
        check_copied(&l, 0);
        serve(&l, 0, 1);
        await_copies(before + 2);
        CHECK_INT(fake_calls(), calls + 2 * (PIN_CALLS + COPY_CALLS) + 1);
        check_copied(&l, 1);
        CHECK_INT(await_next(&l, &j), FL_OK);
        calls = fake_calls();
        CHECK_INT(hand_out(&l, j), FL_OK);
        /* Only a wait is left to do, and a question about the thread's device before and after
         * it. */
        CHECK_INT(fake_calls(), calls + 3);
        close_loop(&l);
    }
    CHECK(fake_is_clean());
}

/* Later batches are there first, and do not get the buffers of those that are next. */
static void test_no_more_than_the_window_is_copied_ahead(void)
{
    loop l;
    int64_t tag;
    fake_set_order(FAKE_EAGER, 0);
    open_loop(&l, BY_HAND);
    l.buffer_bytes = 64 * KIB;
    lend_buffers(&l);
    send_tags(&l, (const int64_t[]){0, 1, 2, 3, 5, 8}, 6);
    int64_t before = copies;
    serve(&l, 2, 3); /* 2, 5 and 8 */
    while (receive(&l)) continue;
    serve(&l, 1, 1);
    await_copies(before + 1);
    check_copied(&l, 1);
    serve(&l, 0, 2); /* 0 and 3 */
    await_copies(before + 2);
    check_copied(&l, 0);
    for (int64_t n = 0; n < 4; n++) {
        CHECK_INT(take_batch(&l, &tag), FL_OK);
        CHECK_INT(tag, n);
        if (n < 2) await_copies(before + 3 + n); /* the batch has long been there */
        if (n < 2) check_copied(&l, n + 2);
    }
    CHECK_INT(copies, before + 4);
    CHECK_INT(l.pending, 2);
    close_loop(&l);
    CHECK(fake_is_clean());
}

/* The batch has arrived, and there are buffers. */
static void test_a_batch_is_copied_once_it_is_expected(void)
{
    loop l;
    fake_set_order(FAKE_EAGER, 0);
    open_loop(&l, BY_HAND);
    send_tags(&l, (const int64_t[]){0, 1, 2}, 3);
    serve(&l, 2, 1);
    while (receive(&l)) continue;
    int64_t before = copies;
    fl_copier_set_window(l.copier, 1);
    await_copies(before + 1);
    check_copied(&l, 2);
    l.next = 1;
    close_loop(&l);
    CHECK(fake_is_clean());
}

/* Or to the batch that was there first. */
static void test_the_only_block_is_for_the_next_turn(void)
{
    for (int in_order = 0; in_order < 2; in_order++) {
        loop l;
        fl_dest_buffer spare;
        shape s = BY_HAND;
        s.is_in_order = in_order == 1;
        fake_set_order(FAKE_EAGER, 0);
        open_loop(&l, s);
        reclaim_buffers(&l, INT64_MAX);
        CHECK_INT(fl_copier_buffers_needed(l.copier), FL_COPY_AHEAD);
        send_tags(&l, (const int64_t[]){0, 1}, 2);
        serve(&l, 1, 1);
        serve(&l, 0, 1);
        while (receive(&l)) continue;
        CHECK_INT(make_buffer(&l, FIRST_BUFFER, &spare), FL_OK);
        int64_t before = copies;
        fl_copier_add_buffer(l.copier, &spare);
        await_copies(before + 1);
        check_copied(&l, in_order == 1 ? 0 : 1);
        close_loop(&l);
    }
    CHECK(fake_is_clean());
}

/* A batch that must not be copied is answered and looked at before a batch that the thread is seen
 * to copy. There is room for both. */
static void leave_alone(int64_t tag, bool is_in_order)
{
    loop l;
    shape s = BY_HAND;
    s.is_in_order = is_in_order;
    open_loop(&l, s);
    l.buffer_bytes = 64 * KIB;
    lend_buffers(&l);
    send_tags(&l, (const int64_t[]){0, tag}, 2);
    int64_t calls = fake_calls(), before = copies;
    serve(&l, 1, 1);
    serve(&l, 0, 1);
    await_copies(before + 1);
    check_copied(&l, 0);
    while (receive(&l)) continue;
    for (int i = 0; i < 2; i++) finish_job(&l, &l.jobs[i]);
    CHECK(l.jobs[0].buffer.owner != NULL && l.jobs[1].buffer.owner == NULL);
    CHECK_INT(copies, before + 1);
    CHECK_INT(fake_calls(), calls + PIN_CALLS + COPY_CALLS + 1);
    close_loop(&l);
}

static void test_what_is_not_for_the_device_is_left_alone(void)
{
    static const batch_kind kinds[] = {OTHER, NOTHING, NO_TURN, TOO_LONG};
    fake_set_order(FAKE_EAGER, 0);
    for (int i = 0; i < 4; i++)
        for (int in_order = 0; in_order < 2; in_order++)
            leave_alone(1000 * kinds[i] + 1, in_order == 1);
    CHECK(fake_is_clean());
}

static void test_a_block_that_is_too_small_is_passed_over_and_recalled(void)
{
    loop l;
    int64_t tag, before = copies;
    fl_dest_buffer spare;
    fake_set_order(FAKE_EAGER, 0);
    open_loop(&l, BY_HAND);
    CHECK(8 * count_words(3) > FIRST_BUFFER && !fl_copier_reclaim_buffer(l.copier, 1, &spare));
    send_tags(&l, (const int64_t[]){0, 3, 1}, 3);
    l.next = 1;
    fl_copier_set_window(l.copier, 3);
    serve(&l, 0, 2);
    l.next = 3;
    CHECK_INT(take_batch(&l, &tag), FL_OK);
    CHECK_INT(copies, before);
    CHECK_INT(l.buffer_bytes, 8 * count_words(3));
    CHECK(!fl_copier_reclaim_buffer(l.copier, l.buffer_bytes, &spare));
    CHECK_INT(fl_copier_buffers_needed(l.copier), 0);
    CHECK(fl_copier_reclaim_buffer(l.copier, INT64_MAX, &spare));
    CHECK_INT(fl_copier_buffers_needed(l.copier), 1);
    CHECK(spare.bytes >= l.buffer_bytes);
    fl_copier_add_buffer(l.copier, &spare);
    close_loop(&l);
    CHECK(fake_is_clean());
}

/* ---- batches that are dropped */

/* Drops one batch in each state, seen to be in that state. */
static void drop_each_state(fake_order order, uint64_t seed)
{
    static filling fills[MOST_BUFFERS], checks[MOST_BUFFERS];
    loop l;
    int64_t tag;
    fake_set_order(order, seed);
    open_loop(&l, BY_HAND);
    send_tags(&l, (const int64_t[]){0, 1, 2, 3}, 4);
    serve(&l, 0, 1);
    CHECK_INT(take_batch(&l, &tag), FL_OK); /* its kernel may not have run yet */
    int64_t before = copies;
    serve(&l, 1, 1);
    await_copies(before + 1); /* 1 is queued */
    l.is_short = true;
    reclaim_buffers(&l, INT64_MAX);
    serve(&l, 2, 1); /* 2 has arrived; 3 is sent */
    while (receive(&l)) continue;
    leave_loop(&l);
    CHECK(use_free_buffers(&l.heap, NULL, fills, false) >= FL_COPY_AHEAD);
    fake_synchronize(NULL);
    ops->halt(l.copy_stream); /* from here on no copy can be late */
    (void)use_free_buffers(&l.heap, NULL, checks, true);
    l.is_short = false;
    lend_buffers(&l);
    close_loop(&l);
}

static void test_a_batch_is_dropped_in_each_state(void)
{
    drop_each_state(FAKE_LAZY, 0);
    for (uint64_t seed = 0; seed < SEEDS; seed++) drop_each_state(FAKE_RANDOM, seed);
    CHECK(fake_is_clean());
}

/* ---- graphs, and children */

/* Neither by the copier, which pins slots, nor by the consumer. */
static void test_no_capture_is_spoiled(void)
{
    loop l;
    cudaStream_t captured;
    cudaGraph_t graph;
    int64_t tag;
    fake_set_order(FAKE_EAGER, 0);
    open_loop(&l, BY_HAND);
    CHECK_INT(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking), cudaSuccess);
    send_tags(&l, (const int64_t[]){0, 1, 2}, 3);
    int64_t before = copies;
    CHECK_INT(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), cudaSuccess);
    for (int32_t w = 0; w < 2; w++) serve(&l, w, 1);
    await_copies(before + 2);
    CHECK_INT(take_batch(&l, &tag), FL_OK);
    close_loop(&l);
    CHECK_INT(cudaStreamEndCapture(captured, &graph), cudaSuccess);
    CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(captured), cudaSuccess);
    CHECK(fake_is_clean());
}

static int use_the_parents_loop(void *arg)
{
    loop *l = arg;
    fl_dest_buffer spare;
    int64_t before = fake_calls();
    CHECK(!fl_copier_reclaim_buffer(l->copier, INT64_MAX, &spare));
    for (job *j = l->jobs; j < l->jobs + 3; j++)
        CHECK(!fl_inflight_finish(l->table, j->request, &spare));
    ops->abandon(l->jobs[3].buffer.target, NULL, NULL);
    fl_copier_close(l->copier);
    fl_inflight_close(l->table);
    ops->close(l->copy_stream);
    fl_pool_close(l->pool);
    CHECK_INT(fake_calls(), before);
    return 0;
}

static void test_a_forked_child_is_inert(void)
{
    loop l;
    int64_t tag;
    fake_set_order(FAKE_LAZY, 0);
    open_loop(&l, BY_HAND);
    send_tags(&l, (const int64_t[]){0, 1, 2}, 3); /* queued, arrived, sent */
    int64_t before = copies;
    serve(&l, 0, 1);
    await_copies(before + 1);
    reclaim_buffers(&l, INT64_MAX);
    CHECK_INT(make_buffer(&l, FIRST_BUFFER, &l.jobs[3].buffer), FL_OK);
    serve(&l, 1, 1);
    CHECK_INT(run_child(use_the_parents_loop, &l), 0);
    ops->cancel(l.jobs[3].buffer.target);
    drop_buffer(l.jobs[3].buffer.owner);
    l.jobs[3] = (job){0};
    serve(&l, 2, 1);
    for (int64_t n = 0; n < 3; n++) {
        CHECK_INT(take_batch(&l, &tag), FL_OK);
        CHECK_INT(tag, n);
    }
    close_loop(&l);
    CHECK(fake_is_clean());
}

int main(void)
{
    start_tests();
    RUN(test_a_batch_is_copied_while_the_consumer_does_nothing);
    RUN(test_no_more_than_the_window_is_copied_ahead);
    RUN(test_a_batch_is_copied_once_it_is_expected);
    RUN(test_the_only_block_is_for_the_next_turn);
    RUN(test_what_is_not_for_the_device_is_left_alone);
    RUN(test_a_block_that_is_too_small_is_passed_over_and_recalled);
    RUN(test_a_batch_is_dropped_in_each_state);
    RUN(test_no_capture_is_spoiled);
    RUN(test_a_forked_child_is_inert);
    return 0;
}
