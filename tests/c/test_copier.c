/* Tests of what is copied, when, in which order, and who waits. The test plays the workers, so it
 * knows which memory holds what. */
#include "copier_fixture.h"

static void check_log(const copier_fixture *f, const int64_t *tags, int64_t count)
{
    CHECK_INT(f->begun, count);
    for (int64_t i = 0; i < count; i++) CHECK_INT(f->log[i], tags[i]);
}

static void test_a_batch_is_copied_while_the_consumer_does_nothing(void)
{
    copier_fixture f;
    open_fixture(&f);
    job *jobs[2] = {submit(&f, 0), submit(&f, 1)};
    for (int i = 0; i < 2; i++) {
        serve(&f, jobs[i]);
        await_ended(&f, i + 1);
    }
    CHECK_INT(fl_copier_buffers_needed(f.copier), 0);
    receive_all(&f);
    for (int i = 0; i < 2; i++) {
        CHECK(jobs[i]->is_answered && finish(&f, jobs[i]));
        CHECK_INT(fl_copier_buffers_needed(f.copier), i + 1);
    }
    close_fixture(&f);
}

/* ---- while one is being copied */

typedef struct finisher {
    copier_fixture *fixture;
    job *job;
    bool is_copied;
    _Atomic bool is_over;
} finisher;

static void *finish_one(void *arg)
{
    finisher *c = arg;
    c->is_copied = finish(c->fixture, c->job);
    atomic_store(&c->is_over, true);
    return NULL;
}

static void test_its_finish_waits_for_a_copy_and_nobody_else_does(void)
{
    copier_fixture f;
    pthread_t thread;
    open_fixture(&f);
    f.is_held = true;
    job *held = submit(&f, 0), *other = submit(&f, 1);
    serve(&f, held);
    await_begun(&f, 1);
    CHECK_INT(reclaim_all(&f), 1);
    (void)submit(&f, 2);
    serve(&f, other);
    receive_all(&f);
    CHECK(held->is_answered && other->is_answered);
    fl_copier_set_window(f.copier, 0);
    CHECK_INT(fl_copier_buffers_needed(f.copier), 1);
    lend_all(&f);
    CHECK(!finish(&f, other));
    CHECK_INT(f.ended, 0);
    finisher c = {.fixture = &f, .job = held};
    CHECK_INT(fl_thread_start(&thread, finish_one, &c, NULL), FL_OK);
    sleep_ms(5);
    CHECK(!atomic_load(&c.is_over));
    release(&f);
    CHECK(pthread_join(thread, NULL) == 0 && c.is_copied);
    CHECK_INT(f.begun, 1);
    close_fixture(&f);
}

static void *release_at_event(void *arg)
{
    copier_fixture *f = arg;
    CHECK(fl_shm_queue_watch(f->queue.shm, &f->seen, fl_now_ns() + LONG_NS));
    release(f);
    return NULL;
}

/* A copy that has begun is finished as before; the rest is left to the consumer. */
static void test_a_stop_waits_for_the_copy_and_there_is_no_other(void)
{
    copier_fixture f;
    pthread_t thread;
    open_fixture(&f);
    f.is_held = true;
    job *jobs[] = {submit(&f, 0), submit(&f, 1), submit(&f, 2)};
    serve(&f, jobs[0]);
    await_begun(&f, 1);
    serve(&f, jobs[1]);
    receive_all(&f);
    (void)has_event(&f);
    CHECK_INT(fl_thread_start(&thread, release_at_event, &f, NULL), FL_OK);
    fl_copier_stop(f.copier); /* is an event itself */
    CHECK_INT(f.ended, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    fl_copier_stop(f.copier);
    serve(&f, jobs[2]);
    receive_all(&f);
    CHECK(finish(&f, jobs[0]) && !finish(&f, jobs[1]));
    fl_copier_set_window(f.copier, 2);
    lend_all(&f);
    CHECK(!finish(&f, jobs[2]));
    CHECK_INT(f.begun, 1);
    CHECK_INT(reclaim_all(&f), FL_COPY_AHEAD);
    close_fixture(&f);
}

/* ---- which, and in which order */

/* Two batches have arrived, the later first; then two buffers come. */
static void test_the_next_turn_goes_first_or_else_who_came_first(void)
{
    for (int in_order = 0; in_order < 2; in_order++) {
        copier_fixture f;
        CHECK_INT(try_open_fixture(&f, WORKERS, false), FL_OK);
        fl_copier_set_window(f.copier, in_order == 1 ? 2 : -1);
        job *jobs[] = {submit(&f, 2), submit(&f, 3)};
        for (int i = 1; i >= 0; i--) serve(&f, jobs[i]);
        receive_all(&f);
        for (int i = 0; i < 2; i++) {
            lend(&f, LEND_BYTES);
            await_ended(&f, i + 1);
        }
        const int64_t tags[] = {in_order == 1 ? 2 : 3, in_order == 1 ? 3 : 2};
        check_log(&f, tags, 2);
        for (int i = 0; i < 2; i++) CHECK(finish(&f, jobs[i]));
        close_fixture(&f);
    }
}

/* Batches outside the window arrive first, and pass the time until the batches of the window
 * come. */
static void test_only_what_is_in_the_window_is_copied(void)
{
    copier_fixture f;
    const int64_t tags[] = {8, 9, 10, 11};
    open_fixture(&f);
    fl_copier_set_window(f.copier, 8);
    job *past = submit(&f, 3);
    job *jobs[] = {submit(&f, 8), submit(&f, 9), submit(&f, 10), submit(&f, 11)};
    f.is_held = true;
    serve(&f, jobs[0]);
    await_begun(&f, 1);
    serve(&f, past);
    for (int i = 2; i < 4; i++) serve(&f, jobs[i]);
    receive_all(&f);
    release(&f);
    CHECK(finish(&f, jobs[0]));
    CHECK_INT(reclaim_all(&f), 1);
    lend_all(&f);
    serve(&f, jobs[1]);
    await_ended(&f, 2);
    CHECK(finish(&f, jobs[1]));
    lend_all(&f);
    fl_copier_set_window(f.copier, 10);
    await_ended(&f, 4);
    check_log(&f, tags, 4);
    CHECK(finish(&f, jobs[2]) && finish(&f, jobs[3]) && !finish(&f, past));
    close_fixture(&f);
}

/* Lends a buffer that suits a good batch, and a buffer that suits the batch under test. */
static void lend_for(copier_fixture *f, int64_t bytes)
{
    lend(f, LEND_BYTES);
    lend(f, fl_min(fl_max(bytes, LEND_BYTES), INT64_MAX - 1));
}

static void open_empty_fixture(copier_fixture *f)
{
    CHECK_INT(try_open_fixture(f, WORKERS, false), FL_OK);
    fl_copier_set_window(f->copier, 0);
}

/* Two batches have arrived. The copier looks at the first while its thread is held. */
static void leave_alone(int64_t tag, bool is_in_order)
{
    copier_fixture f;
    const int64_t tags[] = {0};
    open_empty_fixture(&f);
    lend_for(&f, TOO_MUCH);
    fl_copier_set_window(f.copier, is_in_order ? 0 : -1);
    job *left = submit(&f, tag), *good = submit(&f, 0);
    f.is_held = true;
    serve(&f, left);
    serve(&f, good);
    await_begun(&f, 1);
    receive_all(&f);
    CHECK(left->is_answered || kind_of(tag) == TOO_LONG);
    CHECK_INT(f.damages, kind_of(tag) == TOO_LONG);
    release(&f);
    CHECK(finish(&f, good));
    CHECK_INT(reclaim_all(&f), 1);
    CHECK(!finish(&f, left));
    check_log(&f, tags, 1);
    close_fixture(&f);
}

static void test_what_is_not_to_be_copied_is_left_alone(void)
{
    static const batch_kind kinds[] = {OTHER, NOTHING, NO_TURN, TOO_LONG};
    for (int i = 0; i < 4; i++)
        for (int in_order = 0; in_order < 2; in_order++)
            leave_alone(1000 * kinds[i] + 1, in_order == 1);
}

/* Sends a reply of this kind that claims `upload` bytes, or `beyond` more than its slot; returns
 * true if the batch is copied. */
static bool copy_reply(int32_t kind, int64_t upload, int64_t beyond)
{
    copier_fixture f;
    fl_request_message request;
    fl_dest_buffer buffer;
    open_empty_fixture(&f);
    job *j = submit(&f, 0), *good = submit(&f, 1);
    if (beyond != INT64_MIN) upload = fl_slot_bytes(j->request->slot) + beyond;
    lend_for(&f, upload);
    f.is_held = true;
    serve(&f, good);
    await_begun(&f, 1);
    CHECK_INT(fl_shm_queue_receive_request(f.queue.shm, 0, &request, INT64_MIN), FL_OK);
    fl_reply_message reply = {.number = request.number, .kind = kind, .upload = upload};
    fl_shm_queue_send_reply(f.queue.shm, 0, &reply);
    receive_all(&f);
    release(&f);
    CHECK(finish(&f, good));
    bool is_copied = fl_inflight_finish(f.table, j->request, &buffer);
    j->is_finished = true;
    if (is_copied) drop_buffer(&f, &buffer);
    CHECK(!is_copied || buffer.copied == upload);
    CHECK_INT(f.begun, 1 + is_copied);
    close_fixture(&f);
    return is_copied;
}

static void test_a_reply_is_believed_within_the_limits_of_its_slot(void)
{
    CHECK(copy_reply(1, 1, INT64_MIN) && copy_reply(INT32_MAX, 8, INT64_MIN));
    CHECK(copy_reply(1, 0, 0) && copy_reply(1, 0, -1));
    CHECK(!copy_reply(1, 0, 1) && !copy_reply(1, INT64_MAX, INT64_MIN));
    CHECK(!copy_reply(1, -1, INT64_MIN) && !copy_reply(1, INT64_MIN, INT64_MIN));
    CHECK(!copy_reply(0, 8, INT64_MIN) && !copy_reply(-1, 8, INT64_MIN));
}

/* The small one lies first. */
static void test_a_buffer_that_is_too_small_is_passed_over_and_reclaimed(void)
{
    copier_fixture f;
    fl_dest_buffer buffer;
    CHECK_INT(try_open_fixture(&f, WORKERS, false), FL_OK);
    fl_copier_set_window(f.copier, 3);
    const int64_t needed = 8 * count_words(3);
    job *j = submit(&f, 3);
    lend(&f, needed - 1);
    CHECK(!fl_copier_reclaim_buffer(f.copier, needed - 1, &buffer));
    serve(&f, j);
    receive_all(&f);
    lend(&f, needed);
    await_ended(&f, 1);
    CHECK_INT(fl_copier_buffers_needed(f.copier), 0);
    CHECK(finish(&f, j));
    CHECK(fl_copier_reclaim_buffer(f.copier, needed, &buffer));
    CHECK_INT(buffer.bytes, needed - 1);
    drop_buffer(&f, &buffer);
    CHECK_INT(fl_copier_buffers_needed(f.copier), FL_COPY_AHEAD);
    close_fixture(&f);
}

/* ---- what is refused */

/* Each is tried once, and the only buffer serves the next. */
static void test_a_copy_that_fails_is_left_to_the_consumer(void)
{
    copier_fixture f;
    const int64_t tags[] = {0, 1, 2};
    CHECK_INT(try_open_fixture(&f, WORKERS, false), FL_OK);
    fl_copier_set_window(f.copier, -1);
    job *jobs[] = {submit(&f, 0), submit(&f, 1), submit(&f, 2)};
    lend(&f, LEND_BYTES);
    f.fails = true;
    for (int i = 0; i < 2; i++) {
        serve(&f, jobs[i]);
        await_ended(&f, i + 1);
    }
    CHECK_INT(fl_copier_buffers_needed(f.copier), FL_COPY_AHEAD - 1);
    CHECK(!finish(&f, jobs[0]));
    f.fails = false;
    fl_copier_set_window(f.copier, 0); /* any event */
    serve(&f, jobs[2]);
    fl_copier_set_window(f.copier, 1);
    await_ended(&f, 3);
    check_log(&f, tags, 3);
    CHECK_INT(fl_copier_buffers_needed(f.copier), FL_COPY_AHEAD - 1);
    CHECK(!finish(&f, jobs[1]) && finish(&f, jobs[2]));
    CHECK_INT(fl_copier_buffers_needed(f.copier), FL_COPY_AHEAD);
    close_fixture(&f);
}

/* The end of a copy that fails at last. */
static void test_a_finish_waits_for_a_copy_that_fails_too(void)
{
    copier_fixture f;
    pthread_t thread;
    open_fixture(&f);
    f.is_held = f.fails = true;
    job *held = submit(&f, 0);
    serve(&f, held);
    await_begun(&f, 1);
    receive_all(&f);
    finisher c = {.fixture = &f, .job = held, .is_copied = true};
    CHECK_INT(fl_thread_start(&thread, finish_one, &c, NULL), FL_OK);
    sleep_ms(5);
    CHECK(!atomic_load(&c.is_over));
    release(&f);
    CHECK(pthread_join(thread, NULL) == 0 && !c.is_copied);
    CHECK_INT(reclaim_all(&f), FL_COPY_AHEAD);
    close_fixture(&f);
}

/* ---- a worker that writes to memory after its time */

/* Returns the reply in the shared memory. */
static fl_reply_message *find_reply(const copier_fixture *f, const job *j)
{
    char *start = f->queue.memory, *end = start + f->queue.bytes;
    fl_reply_message reply, *found = NULL;
    for (char *at = start; at + sizeof reply <= end; at += 8) {
        memcpy(&reply, at, sizeof reply);
        if (reply.number != j->request->number || reply.worker != j->worker || reply.kind != 1)
            continue;
        if (reply.upload != 8 * count_words(j->tag) || reply.used != reply.upload) continue;
        CHECK(found == NULL);
        found = (fl_reply_message *)(void *)at;
    }
    CHECK(found != NULL);
    return found;
}

static void test_a_reply_that_changes_after_its_batch_was_copied_is_damage(void)
{
    static const int64_t lies[] = {8, SLOT_BYTES, INT64_MAX, 0, -1};
    for (int i = 0; i < 5; i++) {
        copier_fixture f;
        fl_request *request;
        open_fixture(&f);
        job *j = submit(&f, 1);
        serve(&f, j);
        await_ended(&f, 1);
        int64_t *upload = &find_reply(&f, j)->upload, truth = *upload;
        *upload = lies[i];
        CHECK_INT(fl_inflight_receive(f.table, &request, &f.err), FL_EDAMAGE);
        CHECK_INT(f.err.value, j->worker);
        CHECK(finish(&f, j)); /* what was copied was right */
        *upload = truth;
        close_fixture(&f);
    }
}

/* ---- batches that are dropped */

/* One in each state; whatever is finished is not looked at again. */
static void drop_each_state(bool does_fail)
{
    copier_fixture f;
    open_fixture(&f);
    fl_copier_set_window(f.copier, -1);
    job *copied = submit(&f, 0), *running = submit(&f, 1), *arrived = submit(&f, 2);
    job *sent = submit(&f, 3), *kept = submit(&f, 5);
    f.fails = does_fail;
    serve(&f, copied);
    await_ended(&f, 1);
    f.is_held = true;
    serve(&f, running);
    await_begun(&f, 2);
    serve(&f, arrived);
    receive_all(&f);
    CHECK(!finish(&f, arrived) && !finish(&f, sent));
    CHECK(finish(&f, copied) == !does_fail);
    serve(&f, sent); /* to nobody */
    release(&f);
    CHECK(finish(&f, running) == !does_fail);
    f.fails = false;
    lend_all(&f);
    serve(&f, kept);
    await_ended(&f, 3);
    const int64_t tags[] = {0, 1, 5};
    check_log(&f, tags, 3);
    receive_all(&f);
    CHECK(finish(&f, kept));
    check_log(&f, tags, 3);
    close_fixture(&f);
}

static void test_a_batch_is_dropped_in_each_state(void)
{
    drop_each_state(false);
    drop_each_state(true);
}

/* ---- children */

static int use_the_parents_copier(void *arg)
{
    copier_fixture *f = arg;
    fl_dest_buffer buffer;
    alarm(HANG_SECONDS / 4); /* a wait for a thread that is not there */
    CHECK(!fl_copier_reclaim_buffer(f->copier, INT64_MAX, &buffer));
    for (job *j = f->jobs; j < f->jobs + MOST_JOBS; j++)
        if (j->request != NULL) CHECK(!fl_inflight_finish(f->table, j->request, &buffer));
    for (job *j = f->jobs; j < f->jobs + MOST_JOBS; j++)
        if (j->is_answered) fl_inflight_drop(f->table, j->request);
    fl_copier_stop(f->copier);
    fl_copier_close(f->copier);
    return 0;
}

static void test_a_forked_child_is_inert(void)
{
    copier_fixture f;
    open_fixture(&f);
    job *copied = submit(&f, 0), *running = submit(&f, 1);
    (void)submit(&f, 2);
    serve(&f, copied);
    await_ended(&f, 1);
    CHECK_INT(run_child(use_the_parents_copier, &f), 0); /* with a spare */
    f.is_held = true;
    serve(&f, running);
    await_begun(&f, 2);
    CHECK_INT(run_child(use_the_parents_copier, &f), 0);
    release(&f);
    CHECK(finish(&f, copied) && finish(&f, running));
    close_fixture(&f);
}

static void test_fewer_large_batches_are_ahead(void)
{
    CHECK_INT(fl_copy_ahead(0), FL_COPY_AHEAD);
    CHECK_INT(fl_copy_ahead(FL_COPY_AHEAD_BYTES / FL_COPY_AHEAD), FL_COPY_AHEAD);
    CHECK_INT(fl_copy_ahead(FL_COPY_AHEAD_BYTES / FL_COPY_AHEAD + 1), 1);
    CHECK_INT(fl_copy_ahead(INT64_MAX), 1);
}

int main(void)
{
    start_tests();
    RUN(test_fewer_large_batches_are_ahead);
    RUN(test_a_batch_is_copied_while_the_consumer_does_nothing);
    RUN(test_its_finish_waits_for_a_copy_and_nobody_else_does);
    RUN(test_a_stop_waits_for_the_copy_and_there_is_no_other);
    RUN(test_the_next_turn_goes_first_or_else_who_came_first);
    RUN(test_only_what_is_in_the_window_is_copied);
    RUN(test_what_is_not_to_be_copied_is_left_alone);
    RUN(test_a_reply_is_believed_within_the_limits_of_its_slot);
    RUN(test_a_buffer_that_is_too_small_is_passed_over_and_reclaimed);
    RUN(test_a_copy_that_fails_is_left_to_the_consumer);
    RUN(test_a_finish_waits_for_a_copy_that_fails_too);
    RUN(test_a_reply_that_changes_after_its_batch_was_copied_is_damage);
    RUN(test_a_batch_is_dropped_in_each_state);
    RUN(test_a_forked_child_is_inert);
    return 0;
}
