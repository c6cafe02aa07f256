/* Tests of fl_shm_queue that step through a process (ptrace) and look at each instant: what the
 * process leaves if it dies there, and what it misses if everything happens just there. Under
 * ThreadSanitizer most instructions belong to the sanitizer, so nothing is stepped through. */
#include "check.h"

#include "shm_queue_fixture.h"
#include "traced.h"

#include <sched.h>

/* Every second instruction is looked at, because the checks of AddressSanitizer are also
 * instructions. */
enum { WORKERS = 3, DEPTH = 4, STRIDE = LANE_SLOWNESS == 1 ? 2 : 61 };

/* ---- a death at every instruction: each time a new child plays the survivors */

typedef struct scene {
    shm_fixture r;
    progress b[WORKERS];
    int64_t served[WORKERS];
    int64_t until_ns; /* the deadline of waits that a different process must end */
} scene;

/* Worker 0 has passed some messages and has a request, workers 1 and 2 have one each. */
static scene set_scene(bool are_others_asleep)
{
    scene s = {.r = open_shm_fixture(WORKERS, DEPTH), .until_ns = fl_now_ns() + LONG_NS};
    for (int i = 0; i < DEPTH + 1; i++) {
        CHECK(send_next(s.r.shm, 0, &s.b[0]));
        CHECK_INT(serve_one(s.r.shm, 0, &s.served[0], 0), FL_OK);
        CHECK_INT(take_next(s.r.shm, s.b), 0);
    }
    int64_t until_ns = fl_now_ns() + 2000000; /* long enough to go to sleep */
    if (are_others_asleep) CHECK(!fl_shm_queue_wait(s.r.shm, until_ns));
    for (int32_t w = 0; w < WORKERS; w++) CHECK(send_next(s.r.shm, w, &s.b[w]));
    return s;
}

/* What a child does. */
typedef struct deed {
    void (*act)(scene *);
    scene *s;
} deed;

static int act_once(void *arg)
{
    const deed *what = arg;
    what->act(what->s);
    return 0;
}

/* Looks in a child, because looking changes the scene; here everything stays unchanged. */
static void look_apart(void (*look)(scene *), scene *s)
{
    char *before = malloc((size_t)s->r.bytes);
    CHECK(before != NULL);
    memcpy(before, s->r.memory, (size_t)s->r.bytes);
    CHECK_INT(run_child(act_once, &(deed){look, s}), 0);
    memcpy(s->r.memory, before, (size_t)s->r.bytes);
    free(before);
}

/* Runs `act` in a child, and `look` here after each of its instructions. */
static void step_through(void (*act)(scene *), void (*look)(scene *), scene *s)
{
    int64_t steps = 0;
    pid_t child = start_traced(act_once, &(deed){act, s});
    int status = 0x7f; /* stopped */
    while (WIFSTOPPED(status)) {
        if (LANE_SLOWNESS == 1 || steps % STRIDE == 0) look_apart(look, s);
        CHECK(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0);
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(++steps < 1000000);
    }
    CHECK_INT(status, 0);
    CHECK(steps > 50);
    look(s);
}

static void act_as_worker(scene *s)
{
    CHECK_INT(serve_one(s->r.shm, 0, &s->served[0], INT64_MAX), FL_OK);
}

/* The parent goes on with workers 1 and 2 and finds all or nothing of worker 0. */
static void look_as_parent(scene *s)
{
    int64_t of_dead = 0, of_others = 0;
    for (int round = 0; round < 2 * DEPTH; round++) {
        for (int32_t w = 1; w < WORKERS; w++) {
            CHECK_INT(serve_one(s->r.shm, w, &s->served[w], 0), FL_OK);
            CHECK(fl_shm_queue_wait(s->r.shm, INT64_MIN));
            for (int32_t from; (from = take_next(s->r.shm, s->b)) >= 0;)
                from == 0 ? of_dead++ : of_others++;
            CHECK(send_next(s->r.shm, w, &s->b[w]));
        }
    }
    CHECK_INT(of_others, 2 * DEPTH * (WORKERS - 1));
    CHECK(of_dead <= 1);
    while (send_next(s->r.shm, 0, &s->b[0])) continue; /* and does not wait for the parent either */
    CHECK_INT(s->b[0].sent - s->b[0].answered, DEPTH);
    fl_shm_queue_end(s->r.shm, 0);
    close_all(&s->r);
}

/* The parent replaces worker 0: the next process gets the dead worker's requests, each once. */
static void look_as_parent_with_a_successor(scene *s)
{
    int64_t begun = fl_shm_queue_begun(s->r.shm, 0);
    while (take_next(s->r.shm, s->b) >= 0) continue;
    CHECK(!fl_shm_queue_has_replies(s->r.shm, 0));
    CHECK(begun == s->b[0].sent || begun == s->b[0].sent - 1);
    CHECK(begun >= s->b[0].answered); /* what was answered had been taken */
    fl_shm_queue_restart(s->r.shm, 0);
    s->b[0] = (progress){0};
    int64_t served = 0;
    CHECK_INT(fl_shm_queue_begun(s->r.shm, 0), 0);
    CHECK_INT(serve_one(s->r.shm, 0, &served, INT64_MIN), FL_ETIMEOUT);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < DEPTH; i++) CHECK(send_next(s->r.shm, 0, &s->b[0]));
        CHECK(!send_next(s->r.shm, 0, &s->b[0]));
        for (int i = 0; i < DEPTH; i++) CHECK_INT(serve_one(s->r.shm, 0, &served, 0), FL_OK);
        CHECK_INT(fl_shm_queue_begun(s->r.shm, 0), s->b[0].sent);
        for (int i = 0; i < DEPTH; i++) CHECK_INT(take_next(s->r.shm, s->b), 0);
    }
    CHECK_INT(take_next(s->r.shm, s->b), -1);
}

static void act_as_parent(scene *s)
{
    CHECK_INT(take_next(s->r.shm, s->b), 2);
    for (int i = 0; i < 2; i++) CHECK(send_next(s->r.shm, 0, &s->b[0]));
    fl_shm_queue_end(s->r.shm, 0);
    close_all(&s->r);
}

/* Worker 0 finds all or nothing of each request, and always returns. */
static void look_as_worker(scene *s)
{
    int status, count = 0;
    while ((status = serve_one(s->r.shm, 0, &s->served[0], INT64_MIN)) == FL_OK) count++;
    CHECK(status == FL_ETIMEOUT || status == FL_EEND);
    CHECK(count <= 3 && (count >= 1 || fl_shm_queue_is_closed(s->r.shm, 0)));
}

static void test_a_worker_dies_at_every_instruction(void)
{
    for (int i = 0; i < 2; i++) {
        scene s = set_scene(i == 1);
        step_through(act_as_worker, look_as_parent, &s);
        close_shm_fixture(&s.r);
    }
}

static void test_a_worker_is_replaced_after_a_death_at_every_instruction(void)
{
    scene s = set_scene(false);
    step_through(act_as_worker, look_as_parent_with_a_successor, &s);
    close_shm_fixture(&s.r);
}

static void test_the_parent_dies_at_every_instruction(void)
{
    scene s = set_scene(false);
    CHECK_INT(serve_one(s.r.shm, 2, &s.served[2], 0), FL_OK);
    step_through(act_as_parent, look_as_worker, &s);
    close_shm_fixture(&s.r);
}

/* ---- something happens at every instruction of one who looks, announces himself and sleeps */

static bool is_sleeping(pid_t process)
{
    char path[64], text[256] = {0};
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    const char *state = strrchr(text, ')');
    return state != NULL && state[2] == 'S';
}

/* Lets a stopped child go on until it has stopped again (true), or sleeps or has ended (false). */
static bool go_on_to_stop(pid_t child, int how, int *status)
{
    CHECK(ptrace((enum __ptrace_request)how, child, NULL, NULL) == 0);
    for (int64_t tries = 1;; tries++) {
        bool may_sleep =
            tries % 64 == 0 && is_sleeping(child); /* asked before the child may have stopped */
        pid_t changed = waitpid(child, status, WNOHANG);
        CHECK(changed >= 0);
        if (changed == child) return WIFSTOPPED(*status);
        if (may_sleep) return false;
        sched_yield();
    }
}

/* Lets a child that sleeps or has stopped come to its end, which must be a good one. */
static void go_on_to_end(pid_t child, bool is_stopped)
{
    int status;
    do {
        if (is_stopped) CHECK(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
        CHECK(waitpid(child, &status, 0) == child);
        is_stopped = WIFSTOPPED(status);
    } while (is_stopped);
    CHECK_INT(status, 0);
}

/* Runs `sleeper` in a child, which `happen` must wake: before the first instruction, after the
 * first, after the second, ..., and when the child sleeps. */
static void happen_at_every_instruction(void (*sleeper)(scene *), void (*happen)(scene *))
{
    bool is_stopped = true;
    for (int64_t at = 0; is_stopped; at += STRIDE) {
        scene s = set_scene(false);
        for (int32_t w = 0; w < WORKERS; w++)
            CHECK_INT(serve_one(s.r.shm, w, &s.served[w], 0), FL_OK);
        for (int32_t w = 0; w < WORKERS; w++) CHECK(take_next(s.r.shm, s.b) >= 0);
        pid_t child = start_traced(act_once, &(deed){sleeper, &s});
        int status;
        for (int64_t i = 0; i < at && is_stopped; i++)
            is_stopped = go_on_to_stop(child, PTRACE_SINGLESTEP, &status);
        happen(&s);
        go_on_to_end(child, is_stopped);
        close_shm_fixture(&s.r);
        CHECK(at < 100000 && (is_stopped || at > 50));
    }
}

static void serve_in_time(scene *s)
{
    CHECK_INT(serve_one(s->r.shm, 0, &s->served[0], s->until_ns), FL_OK);
    CHECK(fl_now_ns() < s->until_ns);
}

static void end_in_time(scene *s)
{
    CHECK_INT(serve_one(s->r.shm, 0, &s->served[0], s->until_ns), FL_EEND);
    CHECK(fl_now_ns() < s->until_ns);
}

static void serve_and_end_in_time(scene *s)
{
    serve_in_time(s);
    end_in_time(s);
}

static void send_one(scene *s) { CHECK(send_next(s->r.shm, 0, &s->b[0])); }

static void send_and_end(scene *s)
{
    send_one(s);
    fl_shm_queue_end(s->r.shm, 0);
}

static void close_ring(scene *s) { close_all(&s->r); }

static void answer_as_another(scene *s)
{
    fl_reply_message reply = make_reply(1, s->served[1] - 1);
    s->b[1].answered = reply.number;
    fl_shm_queue_send_reply(s->r.shm, 1, &reply);
}

static void test_a_request_comes_at_every_instruction(void)
{
    happen_at_every_instruction(serve_in_time, send_one);
}

static void test_the_end_comes_at_every_instruction(void)
{
    happen_at_every_instruction(end_in_time, close_ring);
    happen_at_every_instruction(serve_and_end_in_time, send_and_end);
}

static void wait_in_time(scene *s)
{
    CHECK(fl_shm_queue_wait(s->r.shm, s->until_ns));
    CHECK(fl_now_ns() < s->until_ns);
}

static void test_a_reply_comes_at_every_instruction(void)
{
    happen_at_every_instruction(wait_in_time, answer_as_another);
}

/* ---- one who tells is late, and the other is about to sleep again */

static void send_stop_send(scene *s)
{
    send_one(s);
    raise(SIGSTOP);
    send_one(s);
}

static void serve_twice(scene *s)
{
    serve_in_time(s);
    serve_in_time(s);
}

/* Returns true if the teller got as far as `at` instructions before it had told. */
static bool tell_late(int64_t at)
{
    scene s = set_scene(false);
    CHECK_INT(serve_one(s.r.shm, 0, &s.served[0], 0), FL_OK);
    CHECK(take_next(s.r.shm, s.b) >= 0);
    pid_t teller = start_traced(act_once, &(deed){send_stop_send, &s});
    pid_t sleeper = start_traced(act_once, &(deed){serve_twice, &s});
    int status = 0;
    for (int64_t i = 0; i < at; i++) {
        CHECK(go_on_to_stop(teller, PTRACE_SINGLESTEP, &status));
        if (WSTOPSIG(status) == SIGSTOP) break; /* the teller has told */
    }
    bool is_late = at == 0 || WSTOPSIG(status) != SIGSTOP;
    /* The sleeper runs to its first system call: it has announced itself and is about to sleep. */
    CHECK(go_on_to_stop(sleeper, PTRACE_SYSCALL, &status));
    if (is_late) CHECK(go_on_to_stop(teller, PTRACE_CONT, &status));
    bool is_stopped = true;
    while (is_stopped) is_stopped = go_on_to_stop(sleeper, PTRACE_SYSCALL, &status);
    go_on_to_end(teller, true);
    go_on_to_end(sleeper, false);
    close_shm_fixture(&s.r);
    return is_late;
}

static void test_a_late_wake_up_does_not_hide_a_sleeper(void)
{
    int64_t at = 0;
    while (tell_late(at)) at += STRIDE;
    CHECK(at > 50);
}

static bool is_under_tsan(void)
{
#if defined(__SANITIZE_THREAD__)
    return true;
#else
    return false;
#endif
}

int main(void)
{
    start_tests();
    if (is_under_tsan()) return 0;
    RUN(test_a_worker_dies_at_every_instruction);
    RUN(test_a_worker_is_replaced_after_a_death_at_every_instruction);
    RUN(test_the_parent_dies_at_every_instruction);
    RUN(test_a_request_comes_at_every_instruction);
    RUN(test_a_reply_comes_at_every_instruction);
    RUN(test_the_end_comes_at_every_instruction);
    RUN(test_a_late_wake_up_does_not_hide_a_sleeper);
    return 0;
}
