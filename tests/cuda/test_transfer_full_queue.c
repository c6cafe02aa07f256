/* Tests with streams that take only so much work: then the host blocks in the call until the
 * device has run some. The tests count what uploads need, and find who may be held up by a
 * blocked thread. */
#include "transfer_fixture.h"

/* Counts the launches on the stream for copies, up to this batch: wait, copy, casts and record for
 * each. */
static int64_t count_launches(int64_t tags)
{
    int64_t count = 0;
    for (int64_t tag = 0; tag < tags; tag++) count += 3 + count_casts(tag);
    return count;
}

static void do_nothing(void *arg) { (void)arg; }

static int launch_too_many(void *arg)
{
    CHECK(freopen("/dev/null", "w", stderr) != NULL);
    for (int64_t n = 0; n < *(int64_t *)arg; n++) fake_launch(NULL, do_nothing, NULL);
    return 0;
}

static void test_the_fake_says_that_the_host_blocks(void)
{
    int64_t most = FAKE_MOST_QUEUED, more = most + 1;
    fake_set_order(FAKE_LAZY, 0);
    CHECK_INT(run_child(launch_too_many, &most), 0);
    CHECK(run_child(launch_too_many, &more) != 0);
    fake_set_order(FAKE_RANDOM, 0); /* the device gets on */
    CHECK_INT(run_child(launch_too_many, &more), 0);
}

static void run_round(loop *l, int64_t depth)
{
    fl_batch batches[MOST_SUBMITTED];
    for (int64_t tag = 0; tag < depth; tag++) submit_upload(l, tag, 2);
    for (int64_t tag = 0; tag < depth; tag++) {
        CHECK_INT(fl_ring_receive(l->r.ring, LONG_MS, &batches[tag], NULL), FL_OK);
        upload_slot *t = slot_of(l, batches[tag].tag);
        CHECK_INT(ops->finish(t->transfer, batches[tag].slot, batches[tag].bytes, NULL, NULL),
                  FL_OK);
        drop_buffer(t->buffer);
        *t = (upload_slot){0};
    }
}

/* Under the copy stream's mutex a batch takes three launches, and one for each cast, on the stream
 * for copies, whatever the device does. On the consumer's stream it takes one launch when the
 * buffer is set, and one in finish. */
static void test_a_batch_needs_so_much_room(void)
{
    fl_ring_config shape;
    fake_set_order(FAKE_LAZY, 0);
    for (int i = 0; next_shape(i, &shape); i++) {
        loop l;
        open_loop(&l, shape, 0);
        fake_bound_queues(count_launches(shape.depth), false);
        run_round(&l, shape.depth);
        ops->await(l.copy_stream);
        run_round(&l, shape.depth); /* transfers that are used again cast what the new batch has */
        fake_bound_queues(FAKE_MOST_QUEUED, false);
        close_loop(&l);
        fake_synchronize(NULL);
    }
    CHECK(fake_is_clean());
}

static void await_blocked(int64_t count)
{
    int64_t deadline_ns = fl_now_ns() + (int64_t)LONG_MS * 1000000;
    while (fake_count_blocked() != count && fl_now_ns() < deadline_ns) sleep_ms(1);
    CHECK_INT(fake_count_blocked(), count);
}

/* A thread of the ring is in the middle of the copy of batch 2, with the copy stream's mutex. */
static void test_a_thread_that_is_blocked_holds_up_no_post_and_no_take(void)
{
    loop l;
    cudaStream_t stream;
    fake_set_order(FAKE_LAZY, 0);
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    open_loop(
        &l, (fl_ring_config){.depth = 5, .threads = 1, .is_in_order = true, .runs_ahead = true}, 0);
    l.stream = stream;
    fake_bound_queues(count_launches(2) + 1, true);
    for (int64_t tag = 0; tag < 3; tag++) submit_upload(&l, tag, 1);
    await_blocked(1);
    submit_upload(&l, 3, 1);
    take_tag(&l, 0);
    fake_bound_queues(FAKE_MOST_QUEUED, true);
    for (int64_t tag = 1; tag < 4; tag++) take_tag(&l, tag);
    fake_bound_queues(FAKE_MOST_QUEUED, false);
    fake_synchronize(stream);
    close_loop(&l);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK(fake_is_clean());
}

int main(void)
{
    start_tests();
    CHECK_INT(cudaSetDevice(0), cudaSuccess);
    RUN(test_the_fake_says_that_the_host_blocks);
    RUN(test_a_batch_needs_so_much_room);
    RUN(test_a_thread_that_is_blocked_holds_up_no_post_and_no_take);
    return 0;
}
