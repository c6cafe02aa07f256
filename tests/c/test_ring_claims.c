/* Tests of what a batch costs many threads, counted because few cores cannot show it in time: how
 * often the ring's mutex and the gate are taken, who wakes whom, and which memory threads share. */
#include "ring_fixture.h"

#include <stddef.h>

static _Atomic int64_t seen_locks, seen_enters, seen_wakes;

static int counted_lock(pthread_mutex_t *mutex)
{
    atomic_fetch_add(&seen_locks, 1);
    return pthread_mutex_lock(mutex);
}

static void counted_enter(fl_gate *gate)
{
    atomic_fetch_add(&seen_enters, 1);
    fl_gate_enter(gate);
}

static int counted_signal(pthread_cond_t *cond)
{
    atomic_fetch_add(&seen_wakes, 1);
    return pthread_cond_signal(cond);
}

/* This program's own ring: its calls are counted, and its structs can be looked at. */
#define pthread_mutex_lock counted_lock
#define fl_gate_enter counted_enter
#define pthread_cond_signal counted_signal
#include "fl_ring.c"
#undef pthread_mutex_lock
#undef fl_gate_enter
#undef pthread_cond_signal

static int fill_nothing(const fl_batch *batch, int32_t part, fl_err *err)
{
    (void)batch, (void)part, (void)err;
    return FL_OK;
}

static void await_idle(fl_ring *ring, int32_t threads)
{
    for (bool is_idle = false; !is_idle;) {
        pthread_mutex_lock(&ring->mutex);
        is_idle = ring->idle_threads == threads;
        pthread_mutex_unlock(&ring->mutex);
        if (!is_idle) sleep_ms(1);
    }
}

static void forget_counts(void) { seen_locks = seen_enters = seen_wakes = 0; }

static void test_parts_are_claimed_many_at_a_time(void)
{
    enum { PARTS = 4000, THREADS = 3 };
    int64_t claims = 0;
    for (int64_t left = PARTS; left > 0; left -= fl_max(1, left / (4 * (THREADS + 1)))) claims++;
    CHECK(claims < 120);
    for (int waits_for_disk = 0; waits_for_disk < 2; waits_for_disk++) {
        ring_fixture r;
        fl_gate gate;
        CHECK_INT(fl_gate_init(&gate, NULL), FL_OK);
        open_fixture(&r,
                     (fl_ring_config){
                         .depth = 2, .threads = THREADS, .runs_ahead = true, .fill = fill_nothing});
        await_idle(r.ring, THREADS);
        forget_counts();
        fl_batch *batch = prepare_batch(&r, 9, PARTS, NULL);
        batch->gate = &gate;
        batch->layout.may_wait = waits_for_disk == 1;
        submit_prepared(&r);
        CHECK_INT(receive_status(&r, LONG_MS), FL_OK);
        await_idle(r.ring, THREADS);
        /* A thread takes the mutex when it starts, leaves the gate, spins and sleeps. */
        if (waits_for_disk == 0) CHECK(seen_locks <= claims + 6 * THREADS + 12);
        if (waits_for_disk == 1) CHECK(seen_locks >= PARTS);
        CHECK(seen_enters >= 1 && seen_enters <= THREADS);
        close_fixture(&r);
        fl_gate_destroy(&gate);
    }
}

static void test_a_thread_makes_way_between_the_parts_of_a_claim(void)
{
    ring_fixture r;
    fl_gate gate;
    CHECK_INT(fl_gate_init(&gate, NULL), FL_OK);
    open_fixture(&r, (fl_ring_config){.depth = 1, .threads = 1, .runs_ahead = true});
    r.stuck_tag = 9;
    prepare_batch(&r, 9, 16, NULL)->gate = &gate; /* the first claim is of two parts */
    submit_prepared(&r);
    sem_wait(&r.arrived);
    fl_gate_close(&gate);
    open_gate(&r, 1);
    fl_gate_wait(&gate);
    CHECK_INT(r.fills, 1);
    open_gate(&r, 15);
    fl_gate_open(&gate);
    receive_and_give(&r, 9);
    CHECK_INT(r.fills, 16);
    fl_ring_reset(r.ring);
    CHECK_INT(gate.readers, 0); /* it could be freed now */
    close_fixture(&r);
    fl_gate_destroy(&gate);
}

/* A submission may hold the interpreter lock, so it wakes nobody. */
static void test_each_woken_thread_wakes_the_next_two(void)
{
    enum { THREADS = 8 };
    for (int32_t parts = 1; parts <= 16; parts += 3) {
        ring_fixture r;
        open_fixture(&r, (fl_ring_config){.depth = 2, .threads = THREADS, .runs_ahead = true});
        r.stuck_tag = 9;
        await_idle(r.ring, THREADS);
        forget_counts();
        CHECK(prepare_batch(&r, 9, parts, NULL) != NULL);
        CHECK_INT(fl_ring_submit(r.ring, NULL), FL_OK);
        CHECK_INT(seen_wakes, 0);
        int32_t due = fl_ring_take_wakes(r.ring);
        CHECK_INT(due, fl_min(parts, 2));
        fl_ring_wake(r.ring, due);
        int64_t woken = fl_min(parts, THREADS);
        for (int64_t n = 0; n < woken; n++) sem_wait(&r.arrived); /* all at once */
        CHECK(seen_wakes <= woken);
        CHECK_INT(fl_ring_take_wakes(r.ring), 0);
        open_gate(&r, parts);
        receive_and_give(&r, 9);
        close_fixture(&r);
    }
}

static void test_what_is_polled_has_a_line_of_its_own(void)
{
    enum { LINE = 64 };
    const size_t groups[] = {offsetof(fl_ring, free), offsetof(fl_ring, mutex),
                             offsetof(fl_ring, finished), offsetof(fl_ring, submitted)};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) CHECK_INT(groups[i] % LINE, 0);
    CHECK(offsetof(fl_ring, thread_count) < groups[0]);
    CHECK(offsetof(fl_ring, next_number) < groups[1] && offsetof(fl_ring, is_stopped) < groups[2]);
    CHECK(groups[3] == groups[2] + LINE && sizeof(fl_ring) == groups[3] + LINE);
    CHECK(offsetof(fl_entry, next) % LINE == 0 && sizeof(fl_entry) % LINE == 0);
    ring_fixture r;
    open_fixture(&r, (fl_ring_config){.depth = 2});
    CHECK((uintptr_t)r.ring % LINE == 0 && (uintptr_t)r.ring->entries % LINE == 0);
    close_fixture(&r);
}

int main(void)
{
    start_tests();
    RUN(test_parts_are_claimed_many_at_a_time);
    RUN(test_a_thread_makes_way_between_the_parts_of_a_claim);
    RUN(test_each_woken_thread_wakes_the_next_two);
    RUN(test_what_is_polled_has_a_line_of_its_own);
    return 0;
}
