/* What is carried, when, in which order, and who waits for that. The test answers for the workers,
 * so it knows what is where. */
#include "copier_fixture.h"

static void check_log(const yard *y, const int64_t *tags, int64_t count)
{
    CHECK_INT(y->begun, count);
    for (int64_t i = 0; i < count; i++) CHECK_INT(y->log[i], tags[i]);
}

static void test_a_batch_is_carried_while_the_consumer_does_nothing(void)
{
    yard y;
    open_yard(&y);
    job *jobs[2] = {send(&y, 0), send(&y, 1)};
    for (int i = 0; i < 2; i++) {
        serve(&y, jobs[i]);
        await_ended(&y, i + 1);
    }
    CHECK_INT(fl_copier_buffers_needed(y.courier), 0);
    receive_all(&y);
    for (int i = 0; i < 2; i++) {
        CHECK(jobs[i]->is_answered && claim(&y, jobs[i]));
        CHECK_INT(fl_copier_buffers_needed(y.courier), i + 1);
    }
    close_yard(&y);
}

/* ---- while one is being carried */

typedef struct claimer {
    yard *y;
    job *job;
    bool is_carried;
    _Atomic bool is_over;
} claimer;

static void *claim_one(void *arg)
{
    claimer *c = arg;
    c->is_carried = claim(c->y, c->job);
    atomic_store(&c->is_over, true);
    return NULL;
}

static void test_its_claim_waits_for_a_carry_and_nobody_else_does(void)
{
    yard y;
    pthread_t thread;
    open_yard(&y);
    y.is_held = true;
    job *held = send(&y, 0), *other = send(&y, 1);
    serve(&y, held);
    await_begun(&y, 1);
    CHECK_INT(take_back_all(&y), 1);
    (void)send(&y, 2);
    serve(&y, other);
    receive_all(&y);
    CHECK(held->is_answered && other->is_answered);
    fl_copier_set_window(y.courier, 0);
    CHECK_INT(fl_copier_buffers_needed(y.courier), 1);
    lend_all(&y);
    CHECK(!claim(&y, other));
    CHECK_INT(y.ended, 0);
    claimer c = {.y = &y, .job = held};
    CHECK_INT(fl_thread_start(&thread, claim_one, &c, NULL), FL_OK);
    sleep_ms(5);
    CHECK(!atomic_load(&c.is_over));
    release(&y);
    CHECK(pthread_join(thread, NULL) == 0 && c.is_carried);
    CHECK_INT(y.begun, 1);
    close_yard(&y);
}

static void *release_at_news(void *arg)
{
    yard *y = arg;
    CHECK(fl_shm_queue_watch(y->ring.shm, &y->seen, fl_now_ns() + LONG_NS));
    release(y);
    return NULL;
}

/* What is carried then is claimed as before; the rest is left to the consumer. */
static void test_a_stop_waits_for_the_carry_and_there_is_no_other(void)
{
    yard y;
    pthread_t thread;
    open_yard(&y);
    y.is_held = true;
    job *jobs[] = {send(&y, 0), send(&y, 1), send(&y, 2)};
    serve(&y, jobs[0]);
    await_begun(&y, 1);
    serve(&y, jobs[1]);
    receive_all(&y);
    (void)has_news(&y);
    CHECK_INT(fl_thread_start(&thread, release_at_news, &y, NULL), FL_OK);
    fl_copier_stop(y.courier); /* is news itself */
    CHECK_INT(y.ended, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    fl_copier_stop(y.courier);
    serve(&y, jobs[2]);
    receive_all(&y);
    CHECK(claim(&y, jobs[0]) && !claim(&y, jobs[1]));
    fl_copier_set_window(y.courier, 2);
    lend_all(&y);
    CHECK(!claim(&y, jobs[2]));
    CHECK_INT(y.begun, 1);
    CHECK_INT(take_back_all(&y), FL_COPY_AHEAD);
    close_yard(&y);
}

/* ---- which, and in which order */

/* Two have arrived, the later first; a berth comes, and another. */
static void test_the_next_turn_goes_first_or_else_who_came_first(void)
{
    for (int in_order = 0; in_order < 2; in_order++) {
        yard y;
        CHECK_INT(try_open_yard(&y, WORKERS, false), FL_OK);
        fl_copier_set_window(y.courier, in_order == 1 ? 2 : -1);
        job *jobs[] = {send(&y, 2), send(&y, 3)};
        for (int i = 1; i >= 0; i--) serve(&y, jobs[i]);
        receive_all(&y);
        for (int i = 0; i < 2; i++) {
            lend(&y, LEND_BYTES);
            await_ended(&y, i + 1);
        }
        const int64_t tags[] = {in_order == 1 ? 2 : 3, in_order == 1 ? 3 : 2};
        check_log(&y, tags, 2);
        for (int i = 0; i < 2; i++) CHECK(claim(&y, jobs[i]));
        close_yard(&y);
    }
}

/* They are there before those of the window, and pass the time until these come. */
static void test_only_what_is_in_the_window_is_carried(void)
{
    yard y;
    const int64_t tags[] = {8, 9, 10, 11};
    open_yard(&y);
    fl_copier_set_window(y.courier, 8);
    job *past = send(&y, 3);
    job *jobs[] = {send(&y, 8), send(&y, 9), send(&y, 10), send(&y, 11)};
    y.is_held = true;
    serve(&y, jobs[0]);
    await_begun(&y, 1);
    serve(&y, past);
    for (int i = 2; i < 4; i++) serve(&y, jobs[i]);
    receive_all(&y);
    release(&y);
    CHECK(claim(&y, jobs[0]));
    CHECK_INT(take_back_all(&y), 1);
    lend_all(&y);
    serve(&y, jobs[1]);
    await_ended(&y, 2);
    CHECK(claim(&y, jobs[1]));
    lend_all(&y);
    fl_copier_set_window(y.courier, 10);
    await_ended(&y, 4);
    check_log(&y, tags, 4);
    CHECK(claim(&y, jobs[2]) && claim(&y, jobs[3]) && !claim(&y, past));
    close_yard(&y);
}

/* With a berth for a good batch, and one that suits another of whatever size. */
static void lend_for(yard *y, int64_t bytes)
{
    lend(y, LEND_BYTES);
    lend(y, fl_min(fl_max(bytes, LEND_BYTES), INT64_MAX - 1));
}

static void open_empty_yard(yard *y)
{
    CHECK_INT(try_open_yard(y, WORKERS, false), FL_OK);
    fl_copier_set_window(y->courier, 0);
}

/* Of two that have arrived the first is looked at while the thread is held. */
static void leave_alone(int64_t tag, bool is_in_order)
{
    yard y;
    const int64_t tags[] = {0};
    open_empty_yard(&y);
    lend_for(&y, TOO_MUCH);
    fl_copier_set_window(y.courier, is_in_order ? 0 : -1);
    job *left = send(&y, tag), *good = send(&y, 0);
    y.is_held = true;
    serve(&y, left);
    serve(&y, good);
    await_begun(&y, 1);
    receive_all(&y);
    CHECK(left->is_answered);
    release(&y);
    CHECK(claim(&y, good));
    CHECK_INT(take_back_all(&y), 1);
    CHECK(!claim(&y, left));
    check_log(&y, tags, 1);
    close_yard(&y);
}

static void test_what_is_not_to_be_carried_is_left_alone(void)
{
    static const sort sorts[] = {OTHER, NOTHING, AT_HOME, TOO_LONG};
    for (int i = 0; i < 4; i++)
        for (int in_order = 0; in_order < 2; in_order++)
            leave_alone(1000 * sorts[i] + 1, in_order == 1);
}

/* What a worker may claim to have built, or by how much more than its slot; whether it is carried.
 */
static bool carry_reply(int32_t kind, int64_t upload, int64_t beyond)
{
    yard y;
    fl_request_message request;
    fl_dest_buffer berth;
    open_empty_yard(&y);
    job *j = send(&y, 0), *good = send(&y, 1);
    if (beyond != INT64_MIN) upload = fl_slot_bytes(j->slot) + beyond;
    lend_for(&y, upload);
    y.is_held = true;
    serve(&y, good);
    await_begun(&y, 1);
    CHECK_INT(fl_shm_queue_receive_request(y.ring.shm, 0, &request, INT64_MIN), FL_OK);
    fl_reply_message reply = {.number = request.number, .kind = kind, .upload = upload};
    fl_shm_queue_send_reply(y.ring.shm, 0, &reply);
    receive_all(&y);
    release(&y);
    CHECK(claim(&y, good));
    bool is_carried = fl_copier_finish(y.courier, j->errand, &berth);
    j->errand = NULL;
    if (is_carried) drop_berth(&y, &berth);
    CHECK(!is_carried || berth.carried == upload);
    CHECK_INT(y.begun, 1 + is_carried);
    close_yard(&y);
    return is_carried;
}

static void test_a_reply_is_believed_within_the_limits_of_its_slot(void)
{
    CHECK(carry_reply(1, 1, INT64_MIN) && carry_reply(INT32_MAX, 8, INT64_MIN));
    CHECK(carry_reply(1, 0, 0) && carry_reply(1, 0, -1));
    CHECK(!carry_reply(1, 0, 1) && !carry_reply(1, INT64_MAX, INT64_MIN));
    CHECK(!carry_reply(1, -1, INT64_MIN) && !carry_reply(1, INT64_MIN, INT64_MIN));
    CHECK(!carry_reply(0, 8, INT64_MIN) && !carry_reply(-1, 8, INT64_MIN));
}

/* The small one lies first. */
static void test_a_berth_that_is_too_small_is_passed_over_and_recalled(void)
{
    yard y;
    fl_dest_buffer berth;
    CHECK_INT(try_open_yard(&y, WORKERS, false), FL_OK);
    fl_copier_set_window(y.courier, 3);
    const int64_t needed = 8 * count_words(3);
    job *j = send(&y, 3);
    lend(&y, needed - 1);
    CHECK(!fl_copier_reclaim_buffer(y.courier, needed - 1, &berth));
    serve(&y, j);
    receive_all(&y);
    lend(&y, needed);
    await_ended(&y, 1);
    CHECK_INT(fl_copier_buffers_needed(y.courier), 0);
    CHECK(claim(&y, j));
    CHECK(fl_copier_reclaim_buffer(y.courier, needed, &berth));
    CHECK_INT(berth.bytes, needed - 1);
    drop_berth(&y, &berth);
    CHECK_INT(fl_copier_buffers_needed(y.courier), FL_COPY_AHEAD);
    close_yard(&y);
}

/* ---- what is refused */

/* Each is tried once, and the only berth serves the next. */
static void test_what_is_refused_is_left_to_the_consumer(void)
{
    yard y;
    const int64_t tags[] = {0, 1, 2};
    CHECK_INT(try_open_yard(&y, WORKERS, false), FL_OK);
    fl_copier_set_window(y.courier, -1);
    job *jobs[] = {send(&y, 0), send(&y, 1), send(&y, 2)};
    lend(&y, LEND_BYTES);
    y.refuses = true;
    for (int i = 0; i < 2; i++) {
        serve(&y, jobs[i]);
        await_ended(&y, i + 1);
    }
    CHECK_INT(fl_copier_buffers_needed(y.courier), FL_COPY_AHEAD - 1);
    CHECK(!claim(&y, jobs[0]));
    y.refuses = false;
    fl_copier_set_window(y.courier, 0); /* any news */
    serve(&y, jobs[2]);
    fl_copier_set_window(y.courier, 1);
    await_ended(&y, 3);
    check_log(&y, tags, 3);
    CHECK_INT(fl_copier_buffers_needed(y.courier), FL_COPY_AHEAD - 1);
    CHECK(!claim(&y, jobs[1]) && claim(&y, jobs[2]));
    CHECK_INT(fl_copier_buffers_needed(y.courier), FL_COPY_AHEAD);
    close_yard(&y);
}

/* The claim of an errand that is refused at last. */
static void test_a_claim_waits_for_a_refusal_too(void)
{
    yard y;
    pthread_t thread;
    open_yard(&y);
    y.is_held = y.refuses = true;
    job *held = send(&y, 0);
    serve(&y, held);
    await_begun(&y, 1);
    receive_all(&y);
    claimer c = {.y = &y, .job = held, .is_carried = true};
    CHECK_INT(fl_thread_start(&thread, claim_one, &c, NULL), FL_OK);
    sleep_ms(5);
    CHECK(!atomic_load(&c.is_over));
    release(&y);
    CHECK(pthread_join(thread, NULL) == 0 && !c.is_carried);
    CHECK_INT(take_back_all(&y), FL_COPY_AHEAD);
    close_yard(&y);
}

/* ---- a worker that writes where it has no business any more */

/* The reply where it lies in the shared memory. */
static fl_reply_message *find_reply(const yard *y, const job *j)
{
    char *start = y->ring.memory, *end = start + y->ring.bytes;
    fl_reply_message reply, *found = NULL;
    for (char *at = start; at + sizeof reply <= end; at += 8) {
        memcpy(&reply, at, sizeof reply);
        if (reply.number != j->number || reply.worker != j->worker || reply.kind != 1) continue;
        if (reply.upload != 8 * count_words(j->tag) || reply.used != reply.upload) continue;
        CHECK(found == NULL);
        found = (fl_reply_message *)(void *)at;
    }
    CHECK(found != NULL);
    return found;
}

static void test_a_reply_that_changes_after_its_batch_was_carried_is_damage(void)
{
    static const int64_t lies[] = {8, SLOT_BYTES, INT64_MAX, 0, -1};
    for (int i = 0; i < 5; i++) {
        yard y;
        fl_reply_message reply;
        open_yard(&y);
        job *j = send(&y, 1);
        serve(&y, j);
        await_ended(&y, 1);
        int64_t *upload = &find_reply(&y, j)->upload, truth = *upload;
        *upload = lies[i];
        CHECK_INT(fl_copier_receive(y.courier, &reply), FL_EDAMAGE);
        CHECK_INT(reply.worker, j->worker);
        CHECK(claim(&y, j)); /* what was carried was right */
        *upload = truth;
        close_yard(&y);
    }
}

/* ---- batches that are dropped */

/* One in each state; whatever is claimed is not looked at again. */
static void drop_each_state(bool is_refused)
{
    yard y;
    open_yard(&y);
    fl_copier_set_window(y.courier, -1);
    job *carried = send(&y, 0), *running = send(&y, 1), *arrived = send(&y, 2);
    job *sent = send(&y, 3), *kept = send(&y, 5);
    y.refuses = is_refused;
    serve(&y, carried);
    await_ended(&y, 1);
    y.is_held = true;
    serve(&y, running);
    await_begun(&y, 2);
    serve(&y, arrived);
    receive_all(&y);
    CHECK(!claim(&y, arrived) && !claim(&y, sent));
    CHECK(claim(&y, carried) == !is_refused);
    serve(&y, sent); /* to nobody */
    release(&y);
    CHECK(claim(&y, running) == !is_refused);
    y.refuses = false;
    lend_all(&y);
    serve(&y, kept);
    await_ended(&y, 3);
    const int64_t tags[] = {0, 1, 5};
    check_log(&y, tags, 3);
    receive_all(&y);
    CHECK(claim(&y, kept));
    check_log(&y, tags, 3);
    close_yard(&y);
}

static void test_a_batch_is_dropped_in_each_state(void)
{
    drop_each_state(false);
    drop_each_state(true);
}

/* ---- children */

static int use_the_parents_courier(void *arg)
{
    yard *y = arg;
    fl_dest_buffer berth;
    alarm(30); /* a wait for a thread that is not there */
    CHECK(!fl_copier_reclaim_buffer(y->courier, INT64_MAX, &berth));
    for (job *j = y->jobs; j < y->jobs + MOST_JOBS; j++)
        if (j->errand != NULL) CHECK(!fl_copier_finish(y->courier, j->errand, &berth));
    fl_copier_stop(y->courier);
    fl_copier_close(y->courier);
    return 0;
}

static void test_a_forked_child_is_inert(void)
{
    yard y;
    open_yard(&y);
    job *carried = send(&y, 0), *running = send(&y, 1);
    (void)send(&y, 2);
    serve(&y, carried);
    await_ended(&y, 1);
    CHECK_INT(run_child(use_the_parents_courier, &y), 0); /* with a spare */
    y.is_held = true;
    serve(&y, running);
    await_begun(&y, 2);
    CHECK_INT(run_child(use_the_parents_courier, &y), 0);
    release(&y);
    CHECK(claim(&y, carried) && claim(&y, running));
    close_yard(&y);
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
    RUN(test_a_batch_is_carried_while_the_consumer_does_nothing);
    RUN(test_its_claim_waits_for_a_carry_and_nobody_else_does);
    RUN(test_a_stop_waits_for_the_carry_and_there_is_no_other);
    RUN(test_the_next_turn_goes_first_or_else_who_came_first);
    RUN(test_only_what_is_in_the_window_is_carried);
    RUN(test_what_is_not_to_be_carried_is_left_alone);
    RUN(test_a_reply_is_believed_within_the_limits_of_its_slot);
    RUN(test_a_berth_that_is_too_small_is_passed_over_and_recalled);
    RUN(test_what_is_refused_is_left_to_the_consumer);
    RUN(test_a_claim_waits_for_a_refusal_too);
    RUN(test_a_reply_that_changes_after_its_batch_was_carried_is_damage);
    RUN(test_a_batch_is_dropped_in_each_state);
    RUN(test_a_forked_child_is_inert);
    return 0;
}
