/* When requests are sent, in which order and with how much memory; what replies, cancels, epochs,
 * forks and damage do to them. The test answers for the workers. */
#include "inflight_fixture.h"

/* ---- one request */

static void test_a_task_is_sent_at_once_with_its_payload(void)
{
    inflight_fixture f;
    open_table(&f, 1, BIG);
    CHECK(fl_inflight_is_idle(f.table));
    task *t = submit(&f, 0, 7);
    CHECK(t->request->state == FL_SENT && !fl_inflight_is_idle(f.table));
    CHECK_INT(under_way(&f), LEAST);
    fl_request_message message = next_message(&f, 0);
    CHECK_INT(message.limit, LEAST);
    CHECK(message.repeat_of == -1 && message.bytes == 8 && turn_in(&f, &message) == 7);
    CHECK(receive(&f) == NULL);
    close_table(&f);
}

static void test_a_reply_counts_until_it_is_released(void)
{
    inflight_fixture f;
    open_table(&f, 1, BIG);
    task *t = submit(&f, 0, 0);
    answer_next(&f, 0, 1000);
    CHECK(receive(&f) == t && receive(&f) == NULL && fl_inflight_is_idle(f.table));
    CHECK(t->request->reply.used == 1000 && t->request->slot != NULL);
    CHECK_INT(under_way(&f), 1000);
    fl_inflight_release(f.table, t->request);
    CHECK_INT(under_way(&f), 0);
    drop(&f, t);
    CHECK_INT(under_way(&f), 0);
    close_table(&f);
}

static void test_replies_come_in_the_order_of_arrival(void)
{
    inflight_fixture f;
    open_table(&f, 3, BIG);
    task *tasks[] = {submit(&f, 0, 0), submit(&f, 1, 1), submit(&f, 2, 2)};
    for (int32_t w = 2; w >= 0; w--) answer_next(&f, w, 8);
    for (int i = 2; i >= 0; i--) CHECK(receive(&f) == tasks[i]);
    close_table(&f);
}

/* ---- memory */

static void test_what_the_budget_does_not_hold_waits_in_order(void)
{
    inflight_fixture f;
    task *t[5], *first;
    open_table(&f, 1, 3 * LEAST);
    for (int i = 0; i < 5; i++) t[i] = submit(&f, 0, i);
    for (int i = 0; i < 5; i++) CHECK_INT(t[i]->request->state, i < 3 ? FL_SENT : FL_DEFERRED);
    answer_next(&f, 0, 100);
    first = receive(&f);
    CHECK(first == t[0] && receive(&f) == NULL);
    CHECK_INT(t[3]->request->state, FL_DEFERRED); /* the reply still counts */
    fl_inflight_release(f.table, first->request);
    CHECK(receive(&f) == NULL);
    CHECK(t[3]->request->state == FL_SENT && t[4]->request->state == FL_DEFERRED);
    for (int i = 1; i < 4; i++) {
        fl_request_message message = next_message(&f, 0);
        CHECK_INT(turn_in(&f, &message), i); /* the payload of what was deferred was kept */
    }
    CHECK_INT(under_way(&f), 3 * LEAST);
    close_table(&f);
}

static void test_one_is_sent_in_any_case_when_nothing_else_comes_back(void)
{
    inflight_fixture f;
    open_table(&f, 2, 1);
    task *t[] = {submit(&f, 0, 0), submit(&f, 1, 1), submit(&f, 0, 2)};
    for (int i = 0; i < 3; i++) {
        CHECK_INT(t[i]->request->state, FL_DEFERRED);
        CHECK(receive(&f) == NULL);
        CHECK_INT(t[i]->request->state, FL_SENT);
        CHECK(receive(&f) == NULL && (i == 2 || t[i + 1]->request->state == FL_DEFERRED));
        answer_next(&f, t[i]->worker, 8);
        CHECK(receive(&f) == t[i]);
    }
    close_table(&f);
}

static void test_what_copies_still_read_counts(void)
{
    inflight_fixture f;
    open_table(&f, 1, 2 * LEAST);
    (void)submit(&f, 0, 0);
    f.reading = 1;
    task *t = submit(&f, 0, 1);
    CHECK(t->request->state == FL_DEFERRED && receive(&f) == NULL);
    f.reading = 0;
    CHECK(receive(&f) == NULL && t->request->state == FL_SENT);
    close_table(&f);
}

static void test_requests_get_a_quarter_more_than_batches_of_late_needed(void)
{
    inflight_fixture f;
    open_table(&f, 1, BIG);
    f.largest = 400000;
    task *t = submit(&f, 0, 0);
    CHECK_INT(t->request->limit, 500000);
    answer_next(&f, 0, 450000);
    CHECK(receive(&f) == t);
    CHECK_INT(f.largest, 450000);
    t = submit(&f, 0, 1);
    answer_next(&f, 0, 10);
    CHECK(receive(&f) == t);
    CHECK_INT(f.largest, 450000 - 450000 / 64);
    t = submit(&f, 0, 2);
    fl_reply_message part = {.number = next_message(&f, 0).number, .used = 20};
    fl_shm_queue_send_reply(f.queue.shm, 0, &part); /* says nothing of whole batches */
    CHECK(receive(&f) == t);
    CHECK_INT(f.largest, 450000 - 450000 / 64);
    f.largest = 0; /* none has come: a share of the budget */
    CHECK_INT(submit(&f, 0, 3)->request->limit, 80 * MIB);
    close_table(&f);
    open_table(&f, 2, 8 * 1000000);
    f.largest = 0;
    CHECK_INT(submit(&f, 0, 0)->request->limit, 4000000);
    close_table(&f);
}

/* ---- the queue's room */

static void test_what_a_full_queue_does_not_take_waits_and_all_behind_it(void)
{
    inflight_fixture f;
    open_table(&f, 2, BIG);
    for (int i = 0; i < DEPTH; i++) (void)submit(&f, 0, i);
    task *blocked = submit(&f, 0, DEPTH), *behind = submit(&f, 1, DEPTH + 1);
    CHECK(blocked->request->state == FL_DEFERRED && behind->request->state == FL_DEFERRED);
    CHECK(receive(&f) == NULL && behind->request->state == FL_DEFERRED);
    answer_next(&f, 0, 8);
    CHECK(receive(&f) != NULL && receive(&f) == NULL);
    CHECK(blocked->request->state == FL_SENT && behind->request->state == FL_SENT);
    close_table(&f);
}

/* ---- batches that are too large */

static void test_a_batch_that_is_too_large_is_asked_for_again(void)
{
    inflight_fixture f;
    open_table(&f, 2, BIG);
    task *t = submit(&f, 1, 3);
    CHECK(!fl_inflight_owes(f.table, 1));
    refuse_next(&f, 1, 100000);
    CHECK(receive(&f) == NULL); /* sent again at once */
    CHECK(t->request->state == FL_SENT && t->request->small_slot != NULL);
    CHECK(fl_inflight_owes(f.table, 1) && !fl_inflight_owes(f.table, 0));
    fl_request_message message = next_message(&f, 1);
    CHECK(message.repeat_of == 0 && message.bytes == 0);
    CHECK_INT(message.limit, 100000 + 100000 / 8 + 4096);
    CHECK_INT(under_way(&f), message.limit);
    answer(&f, 1, message.number, 100001);
    CHECK(receive(&f) == t && !fl_inflight_owes(f.table, 1));
    CHECK(t->request->small_slot == NULL);
    close_table(&f);
}

/* The worker's batch lies in the slot of its first attempt. */
static void test_a_batch_may_be_too_large_twice(void)
{
    inflight_fixture f;
    open_table(&f, 1, BIG);
    task *t = submit(&f, 0, 0);
    const fl_slot *first = t->request->slot;
    refuse_next(&f, 0, 100000);
    CHECK(receive(&f) == NULL && t->request->small_slot == first);
    refuse_next(&f, 0, 300000);
    CHECK(receive(&f) == NULL && t->request->small_slot == first);
    fl_request_message message = next_message(&f, 0);
    CHECK(message.repeat_of == 1 && message.limit > 300000);
    answer(&f, 0, message.number, 300000);
    CHECK(receive(&f) == t);
    close_table(&f);
}

/* They have room for one at a time. */
static void test_repeats_go_before_what_waits_and_by_turn(void)
{
    inflight_fixture f;
    open_table(&f, 2, 2 * LEAST);
    task *late = submit(&f, 0, 5), *early = submit(&f, 1, 3), *waits = submit(&f, 1, 6);
    refuse_next(&f, 0, 100000);
    CHECK(receive(&f) == NULL && late->request->state == FL_TOO_LARGE);
    refuse_next(&f, 1, 100000);
    CHECK(receive(&f) == NULL);
    CHECK(early->request->state == FL_SENT && late->request->state == FL_TOO_LARGE);
    CHECK_INT(waits->request->state, FL_DEFERRED);
    answer_next(&f, 1, 100000);
    CHECK(receive(&f) == early && receive(&f) == NULL);
    CHECK(late->request->state == FL_SENT); /* forced: nothing else comes back */
    CHECK_INT(waits->request->state, FL_DEFERRED);
    drop(&f, early);
    answer_next(&f, 0, 100000);
    CHECK(receive(&f) == late);
    drop(&f, late);
    CHECK(receive(&f) == NULL && waits->request->state == FL_SENT);
    close_table(&f);
}

/* ---- epochs */

static void test_a_new_epoch_drops_what_was_not_sent(void)
{
    inflight_fixture f;
    open_table(&f, 1, LEAST);
    task *sent = submit(&f, 0, 0);
    (void)submit(&f, 0, 1);
    (void)submit(&f, 0, 2);
    fl_inflight_start_epoch(f.table);
    CHECK(count_tasks(&f) == 1 && sent->request->state == FL_SENT);
    refuse_next(&f, 0, 100000); /* of the epoch before: nobody wants it */
    CHECK(receive(&f) == NULL && count_tasks(&f) == 0 && fl_inflight_is_idle(f.table));
    task *resume = submit(&f, 0, -1);
    CHECK(receive(&f) == NULL); /* requests are larger than the budget now */
    answer_next(&f, 0, 8);
    CHECK(receive(&f) == resume);
    drop(&f, resume);
    task *wanted = submit(&f, 0, 0);
    CHECK(receive(&f) == NULL);
    refuse_next(&f, 0, 4 * LEAST);
    CHECK(receive(&f) == NULL && wanted->request->state == FL_SENT);
    CHECK(wanted->request->small_slot != NULL);
    close_table(&f);
}

static void test_what_waits_to_be_repeated_ends_with_its_epoch(void)
{
    inflight_fixture f;
    open_table(&f, 2, 2 * LEAST);
    (void)submit(&f, 0, 0);
    task *other = submit(&f, 1, 1);
    refuse_next(&f, 0, 100000);
    CHECK(receive(&f) == NULL && fl_inflight_owes(f.table, 0));
    fl_inflight_start_epoch(f.table);
    CHECK(!fl_inflight_owes(f.table, 0) && count_tasks(&f) == 1);
    answer_next(&f, 1, 8);
    CHECK(receive(&f) == other);
    close_table(&f);
}

/* ---- workers that end */

/* One request in each state. */
static void open_each_state(inflight_fixture *f, task *t[4])
{
    open_table(f, 2, 3 * LEAST);
    for (int i = 0; i < 3; i++) t[i] = submit(f, 0, i);
    t[3] = submit(f, 0, 3);
    answer_next(f, 0, LEAST);
    CHECK(receive(f) == t[0]);
    refuse_next(f, 0, 3 * LEAST);
    CHECK(receive(f) == NULL);
    f->largest = 1;
    CHECK(t[0]->request->state == FL_ANSWERED && t[1]->request->state == FL_TOO_LARGE);
    CHECK(t[2]->request->state == FL_SENT && t[3]->request->state == FL_DEFERRED);
}

static void test_a_worker_with_nothing_but_unsent_requests_owes_no_answer(void)
{
    inflight_fixture f;
    task *t[4];
    open_each_state(&f, t);
    CHECK_INT(fl_inflight_first_sent(f.table, 0), t[2]->request->number);
    CHECK_INT(fl_inflight_first_sent(f.table, 1), -1);
    answer_next(&f, 0, 8);
    CHECK_INT(fl_inflight_first_sent(f.table, 0), 2); /* nobody has looked at the answer */
    CHECK(receive(&f) == t[2]);
    CHECK_INT(fl_inflight_first_sent(f.table, 0), -1); /* memory is missing, not the worker */
    close_table(&f);
    open_table(&f, 1, BIG);
    for (int i = 0; i < 3; i++) (void)submit(&f, 0, i);
    CHECK_INT(fl_inflight_first_sent(f.table, 0), 0);
    answer_next(&f, 0, 8);
    CHECK(receive(&f) != NULL);
    CHECK_INT(fl_inflight_first_sent(f.table, 0), 1);
    fl_inflight_cancel(f.table, 0, false);
    CHECK_INT(fl_inflight_first_sent(f.table, 0), -1);
    close_table(&f);
}

static void test_of_a_worker_that_is_gone_the_replies_remain(void)
{
    inflight_fixture f;
    task *t[4];
    open_each_state(&f, t);
    CHECK(fl_inflight_first_key(f.table, 0) == t[1]);
    fl_inflight_cancel(f.table, 1, true); /* a different worker */
    CHECK_INT(count_tasks(&f), 4);
    fl_inflight_cancel(f.table, 0, true);
    CHECK(count_tasks(&f) == 1 && t[0]->is_answered && fl_inflight_is_idle(f.table));
    CHECK(fl_inflight_first_key(f.table, 0) == NULL && !fl_inflight_owes(f.table, 0));
    CHECK_INT(under_way(&f), LEAST);
    answer(&f, 0, 2, 8); /* sent before its death, and looked for too late */
    CHECK(receive(&f) == NULL);
    close_table(&f);
}

/* The worker reads the tasks that it passes over: their slots are not used again before that. */
static void test_of_a_worker_that_answers_no_more_the_slots_remain(void)
{
    inflight_fixture f;
    task *t[4];
    open_each_state(&f, t);
    fl_inflight_cancel(f.table, 0, false);
    CHECK(count_tasks(&f) == 2 && fl_inflight_is_idle(f.table));
    CHECK(t[2]->request->state == FL_SENT && !fl_inflight_owes(f.table, 0));
    CHECK_INT(under_way(&f), LEAST);
    drop(&f, t[0]);
    task *other = submit(&f, 1, 4), *resume = submit(&f, 0, -1);
    answer_next(&f, 1, LEAST);
    CHECK(receive(&f) == other);
    fl_request_message message = next_message(&f, 0); /* looks at its sum */
    CHECK_INT(turn_in(&f, &message), 2);
    answer_next(&f, 0, 8);
    CHECK(receive(&f) == resume && count_tasks(&f) == 2);
    close_table(&f);
}

static void test_a_reply_settles_all_requests_before_it(void)
{
    inflight_fixture f;
    open_table(&f, 1, BIG);
    (void)submit(&f, 0, 0);
    (void)submit(&f, 0, 1);
    task *last = submit(&f, 0, 2), *after = submit(&f, 0, 3);
    answer(&f, 0, 2, 8);
    CHECK(receive(&f) == last && count_tasks(&f) == 2);
    CHECK(after->request->state == FL_SENT && under_way(&f) == LEAST + 8);
    close_table(&f);
}

/* ---- keys */

static int count_key(void **key, void *arg)
{
    const task *t = *key;
    *(int64_t *)arg += 1 + 100 * t->turn;
    return 0;
}

static int take_key(void **key, void *arg)
{
    *(void **)arg = *key;
    *key = NULL;
    return 1;
}

static void test_keys_of_what_is_not_answered_are_visited(void)
{
    inflight_fixture f;
    task *t[4];
    int64_t sum = 0;
    void *key;
    open_each_state(&f, t);
    CHECK_INT(fl_inflight_each_key(f.table, count_key, &sum), 0);
    CHECK_INT(sum, 3 + 100 * (1 + 2 + 3));
    CHECK_INT(fl_inflight_each_key(f.table, take_key, &key), 1);
    CHECK(key == t[1]);
    drop_task(key); /* the taker's, whom the table does not tell any more */
    for (int i = 2; i < 4; i++) CHECK_INT(fl_inflight_each_key(f.table, take_key, &key), 1);
    CHECK_INT(fl_inflight_each_key(f.table, take_key, &key), 0);
    for (int i = 2; i < 4; i++) drop_task(t[i]);
    close_table(&f);
}

static void test_replies_are_counted(void)
{
    inflight_fixture f;
    open_table(&f, 2, BIG);
    for (int i = 0; i < 3; i++) {
        task *t = submit(&f, 1, i);
        fl_reply_message reply = {.number = next_message(&f, 1).number,
                                  .kind = i - 1,
                                  .used = i == 0 ? 2 * LEAST : 8,
                                  .busy_ns = 10,
                                  .wait_ns = 7,
                                  .fallbacks = {[2] = 4}};
        fl_shm_queue_send_reply(f.queue.shm, 1, &reply);
        CHECK(receive(&f) == (i == 0 ? NULL : t));
        if (i == 0) (void)next_message(&f, 1);
    }
    const fl_inflight_counts *counts = fl_inflight_count(f.table);
    CHECK(counts->workers[1].batches == 1 && counts->workers[1].busy_ns == 30);
    CHECK(counts->workers[1].wait_ns == 21 && counts->workers[0].busy_ns == 0);
    CHECK(counts->fallbacks[2] == 12 && counts->fallbacks[1] == 0);
    close_table(&f);
}

/* ---- damage */

static void receive_damage(const fl_reply_message *lie)
{
    inflight_fixture f;
    task *t;
    open_table(&f, 2, BIG);
    task *kept = submit(&f, 1, 0);
    fl_reply_message reply = *lie;
    reply.number = next_message(&f, 1).number;
    fl_shm_queue_send_reply(f.queue.shm, 1, &reply);
    CHECK_INT(try_receive(&f, &t), FL_EDAMAGE);
    CHECK(f.err.code == FL_EDAMAGE && f.err.value == 1);
    CHECK(kept->request->state == FL_SENT && under_way(&f) == 0); /* it may still be written to */
    close_table(&f);
}

static void test_a_reply_that_cannot_be_is_damage(void)
{
    static const fl_reply_message lies[] = {
        {.kind = 1, .used = LEAST + 1, .head = 8},
        {.kind = 0, .used = -1},
        {.kind = 1, .used = 100, .head = -1},
        {.kind = 1, .used = 100, .head = 50, .head_bytes = 51},
        {.kind = 1, .used = 100, .head = 50, .head_bytes = -1},
        {.kind = 1, .used = 100, .head = 50, .upload = 51},
        {.kind = 1, .used = 100, .head = 50, .upload = -1},
        {.kind = 1, .used = 100, .head = INT64_MAX, .head_bytes = INT64_MAX},
        {.kind = -1, .used = LEAST},
        {.kind = -1, .used = INT64_MAX / 2},
        {.kind = 1, .used = 8, .busy_ns = -1},
        {.kind = 1, .used = 8, .wait_ns = -1},
        {.kind = 1, .used = 8, .fallbacks = {[7] = -1}},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) receive_damage(&lies[i]);
}

static void test_a_queue_that_was_overwritten_names_its_worker(void)
{
    inflight_fixture f;
    task *t;
    open_table(&f, 2, BIG);
    (void)submit(&f, 1, 0);
    (void)next_message(&f, 1);
    fl_shm_queue_report_damage(f.queue.shm, 1);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(try_receive(&f, &t), FL_EDAMAGE);
        CHECK_INT(f.err.value, 1);
    }
    close_table(&f);
}

/* ---- children, and the end */

static int use_the_parents_table(void *arg)
{
    inflight_fixture *f = arg;
    fl_dest_buffer buffer;
    int64_t sum = 0;
    alarm(HANG_SECONDS / 4);
    for (task *t = f->tasks; t < f->tasks + MOST_TASKS; t++)
        if (t->request != NULL) CHECK(!fl_inflight_finish(f->table, t->request, &buffer));
    CHECK_INT(fl_inflight_each_key(f->table, count_key, &sum), 0);
    for (task *t = f->tasks; t < f->tasks + MOST_TASKS; t++)
        if (t->is_answered) fl_inflight_drop(f->table, t->request);
    fl_inflight_close(f->table);
    CHECK_INT(count_tasks(f), 0); /* keys are the child's own */
    return 0;
}

static void test_a_forked_child_leaves_all_to_its_parent(void)
{
    inflight_fixture f;
    task *t[4];
    open_each_state(&f, t);
    CHECK_INT(run_child(use_the_parents_table, &f), 0);
    answer_next(&f, 0, 8);
    CHECK(receive(&f) == t[2]);
    CHECK_INT(count_tasks(&f), 4);
    close_table(&f);
}

/* Runs in a child, which ends without looking for lost memory. */
static int close_with_workers(void *arg)
{
    inflight_fixture f;
    task *t[4];
    (void)arg;
    open_each_state(&f, t);
    const char *data = fl_slot_data(t[2]->request->slot);
    int64_t turn;
    drop(&f, t[0]);
    fl_inflight_close(f.table);
    CHECK_INT(count_tasks(&f), 0);
    fl_pool_trim(f.pool);
    memcpy(&turn, data, sizeof turn);
    CHECK_INT(turn, 2); /* memory that a worker may write to is neither emptied nor used again */
    CHECK(held_bytes(f.arena) > 0);
    return 0;
}

static void test_slots_of_workers_that_may_live_stay_out_of_use(void)
{
    CHECK_INT(run_child(close_with_workers, NULL), 0);
}

/* ---- what cannot be had */

static int go_through_all(void *arg)
{
    inflight_fixture f;
    task *t, *other;
    (void)arg;
    int status = try_open_table(&f, 1, 2 * LEAST);
    for (int i = 0; status == FL_OK && i < 4; i++) status = try_submit(&f, 0, i, &t);
    for (int step = 0; status == FL_OK && step < 16; step++) {
        fl_request_message message;
        if (take_message(&f, 0, &message)) {
            if (message.number % 2 == 0 && message.repeat_of < 0)
                refuse(&f, 0, message.number, message.limit + 100);
            else
                answer(&f, 0, message.number, message.limit);
        }
        status = try_receive(&f, &other);
        if (status == FL_OK) drop(&f, other);
        if (status == FL_ETIMEOUT) status = FL_OK;
    }
    if (status == FL_OK) CHECK_INT(count_tasks(&f), 0);
    if (status != FL_OK) CHECK(f.err.code == status && f.err.text[0] != '\0');
    close_table(&f); /* nothing was lost */
    return status;
}

static void test_every_refused_resource(void) { CHECK(refuse_each(go_through_all, NULL) >= 12); }

int main(void)
{
    start_tests();
    RUN(test_a_task_is_sent_at_once_with_its_payload);
    RUN(test_a_reply_counts_until_it_is_released);
    RUN(test_replies_come_in_the_order_of_arrival);
    RUN(test_what_the_budget_does_not_hold_waits_in_order);
    RUN(test_one_is_sent_in_any_case_when_nothing_else_comes_back);
    RUN(test_what_copies_still_read_counts);
    RUN(test_requests_get_a_quarter_more_than_batches_of_late_needed);
    RUN(test_what_a_full_queue_does_not_take_waits_and_all_behind_it);
    RUN(test_a_batch_that_is_too_large_is_asked_for_again);
    RUN(test_a_batch_may_be_too_large_twice);
    RUN(test_repeats_go_before_what_waits_and_by_turn);
    RUN(test_a_new_epoch_drops_what_was_not_sent);
    RUN(test_what_waits_to_be_repeated_ends_with_its_epoch);
    RUN(test_a_worker_with_nothing_but_unsent_requests_owes_no_answer);
    RUN(test_of_a_worker_that_is_gone_the_replies_remain);
    RUN(test_of_a_worker_that_answers_no_more_the_slots_remain);
    RUN(test_a_reply_settles_all_requests_before_it);
    RUN(test_keys_of_what_is_not_answered_are_visited);
    RUN(test_replies_are_counted);
    RUN(test_a_reply_that_cannot_be_is_damage);
    RUN(test_a_queue_that_was_overwritten_names_its_worker);
    RUN(test_a_forked_child_leaves_all_to_its_parent);
    RUN(test_slots_of_workers_that_may_live_stay_out_of_use);
    RUN(test_every_refused_resource);
    return 0;
}
