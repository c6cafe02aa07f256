/* Tests of fl_shm_queue with processes that are killed or stopped at random instants: the remaining
 * processes go on, and the dead one's messages are there whole or not at all.
 * test_shm_queue_steps.c looks at every instant. */
#include "check.h"

#include "shm_queue_fixture.h"

#include <signal.h>

enum { WORKERS = 3, DEPTH = 4 };

/* ---- at random instants */

enum { MORE = 30 }; /* replies from each remaining worker that prove that the workers go on */

typedef struct crew {
    shm_fixture r;
    pid_t pids[WORKERS];
    progress b[WORKERS];
    bool is_gone[WORKERS]; /* killed, or stopped */
    uint64_t seed;
} crew;

/* Works until the work or its giver ends. */
static void work(fl_shm_queue *shm, int32_t worker, pid_t parent)
{
    int64_t served = 0;
    for (;;) {
        int64_t until_ns = fl_now_ns() + SECONDS / 50;
        int status = serve_one(shm, worker, &served, until_ns);
        CHECK(status != FL_ETIMEOUT || fl_now_ns() >= until_ns);
        if (status == FL_EEND || getppid() != parent) return;
        CHECK(status == FL_OK || status == FL_ETIMEOUT);
    }
}

static void start_worker(crew *c, int32_t worker)
{
    pid_t parent = getpid();
    c->pids[worker] = fork();
    CHECK(c->pids[worker] >= 0);
    if (c->pids[worker] > 0) return;
    alarm(HANG_SECONDS);
    work(c->r.shm, worker, parent);
    _exit(0);
}

static void start_crew(crew *c, uint64_t seed)
{
    *c = (crew){.r = open_shm_fixture(WORKERS, DEPTH), .seed = seed};
    for (int32_t w = 0; w < WORKERS; w++) start_worker(c, w);
}

/* One reply, or a wait in vain. Workers who are not gone must be well. */
static void go_on(crew *c)
{
    int status;
    for (int32_t w = 0; w < WORKERS; w++)
        while (send_next(c->r.shm, w, &c->b[w])) continue;
    if (take_next(c->r.shm, c->b) >= 0 || fl_shm_queue_wait(c->r.shm, fl_now_ns() + SECONDS / 50))
        return;
    for (int32_t w = 0; w < WORKERS; w++)
        if (!c->is_gone[w]) CHECK_INT(waitpid(c->pids[w], &status, WNOHANG), 0);
}

static void go_on_without(crew *c)
{
    for (int32_t w = 0; w < WORKERS; w++) {
        int64_t aim = c->b[w].answered + MORE;
        while (!c->is_gone[w] && c->b[w].answered < aim) go_on(c);
    }
}

static void go_on_at_random(crew *c)
{
    for (int64_t left = random_below(&c->seed, 200); left > 0; left--) go_on(c);
    int64_t until_ns = fl_now_ns() + random_below(&c->seed, 50000);
    while (fl_now_ns() < until_ns) continue;
}

/* Sends the signal: on return the worker is stopped by SIGSTOP, dead by SIGKILL. */
static void strike(crew *c, int32_t worker, int signal_number)
{
    int status;
    CHECK(kill(c->pids[worker], signal_number) == 0);
    CHECK(waitpid(c->pids[worker], &status, WUNTRACED) == c->pids[worker]);
    CHECK(WIFSTOPPED(status) || WIFSIGNALED(status));
    c->is_gone[worker] = true;
}

/* Takes the dead worker's replies: no more of them can come. */
static void check_dead(crew *c, int32_t worker)
{
    int64_t answered = c->b[worker].answered;
    CHECK_INT(c->b[worker].sent - answered, DEPTH);
    go_on_without(c);
    CHECK_INT(c->b[worker].answered, answered);
}

static void dismiss_crew(crew *c)
{
    int status;
    close_all(&c->r);
    for (int32_t w = 0; w < WORKERS; w++) {
        if (c->is_gone[w]) continue;
        CHECK(waitpid(c->pids[w], &status, 0) == c->pids[w]);
        CHECK_INT(status, 0);
    }
    close_shm_fixture(&c->r);
}

static void test_a_worker_is_killed_at_a_random_instant(void)
{
    for (int round = 0; round < 200 / LANE_SLOWNESS; round++) {
        crew c;
        start_crew(&c, (uint64_t)round);
        go_on_at_random(&c);
        int32_t victim = (int32_t)random_below(&c.seed, WORKERS);
        strike(&c, victim, SIGKILL);
        go_on_without(&c);
        check_dead(&c, victim);
        dismiss_crew(&c);
    }
}

static void test_all_workers_are_killed(void)
{
    for (int round = 0; round < 60 / LANE_SLOWNESS; round++) {
        crew c;
        start_crew(&c, (uint64_t)round + 1000);
        go_on_at_random(&c);
        for (int32_t w = 0; w < WORKERS; w++) strike(&c, w, SIGKILL);
        while (take_next(c.r.shm, c.b) >= 0) continue;
        for (int i = 0; i < 3; i++) {
            int64_t until_ns = fl_now_ns() + SECONDS / 1000;
            if (!fl_shm_queue_wait(c.r.shm, until_ns)) CHECK(fl_now_ns() >= until_ns);
            CHECK_INT(take_next(c.r.shm, c.b), -1);
        }
        dismiss_crew(&c);
    }
}

/* Stopped in the middle of anything, and going on long after. */
static void test_a_worker_is_stopped_at_random_instants(void)
{
    crew c;
    start_crew(&c, 2000);
    for (int round = 0; round < 400 / LANE_SLOWNESS; round++) {
        go_on_at_random(&c);
        int32_t victim = (int32_t)random_below(&c.seed, WORKERS);
        strike(&c, victim, SIGSTOP);
        go_on_without(&c);
        check_dead(&c, victim);
        CHECK(kill(c.pids[victim], SIGCONT) == 0);
        c.is_gone[victim] = false;
    }
    go_on_without(&c);
    strike(&c, 1, SIGSTOP);
    strike(&c, 1, SIGKILL); /* a stopped worker may die in any state */
    go_on_without(&c);
    dismiss_crew(&c);
}

/* Replaces a worker: the successor gets the remaining requests, before it runs or while it runs. */
static void replace(crew *c, int32_t worker)
{
    while (take_next(c->r.shm, c->b) >= 0) continue;
    fl_shm_queue_restart(c->r.shm, worker);
    c->b[worker] = (progress){0};
    while (random_below(&c->seed, 2) == 0) (void)send_next(c->r.shm, worker, &c->b[worker]);
    start_worker(c, worker);
    c->is_gone[worker] = false;
}

static void test_workers_are_killed_and_replaced(void)
{
    crew c;
    start_crew(&c, 3000);
    for (int round = 0; round < 300 / LANE_SLOWNESS; round++) {
        go_on_at_random(&c);
        int32_t victim = (int32_t)random_below(&c.seed, WORKERS);
        strike(&c, victim, SIGKILL);
        if (random_below(&c.seed, 2) == 0) go_on_at_random(&c);
        replace(&c, victim);
        if (round % 10 == 0) go_on_without(&c);
    }
    go_on_without(&c);
    dismiss_crew(&c);
}

/* ---- the parent is killed */

/* Runs as the parent's process: gives work until it dies. */
static void give_work(fl_shm_queue *shm, int exits, bool is_idle)
{
    progress b[WORKERS] = {{0}};
    pid_t parent = getpid();
    for (int32_t w = 0; w < WORKERS; w++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child > 0) continue;
        alarm(HANG_SECONDS);
        CHECK(write(exits, "+", 1) == 1); /* works */
        work(shm, w, parent);
        _exit(write(exits, "-", 1) == 1 ? 0 : 1); /* is done, unlike one who fails a CHECK */
    }
    for (;;) {
        if (is_idle) pause();
        for (int32_t w = 0; w < WORKERS; w++)
            while (send_next(shm, w, &b[w])) continue;
        if (take_next(shm, b) < 0) (void)fl_shm_queue_wait(shm, fl_now_ns() + SECONDS);
    }
}

static void test_the_parent_is_killed(void)
{
    uint64_t seed = 9;
    for (int round = 0; round < 40 / LANE_SLOWNESS + 2; round++) {
        shm_fixture r = open_shm_fixture(WORKERS, DEPTH);
        int pipes[2], status;
        char note;
        CHECK(pipe(pipes) == 0);
        pid_t parent = fork();
        CHECK(parent >= 0);
        if (parent == 0) give_work(r.shm, pipes[1], round % 2 == 0);
        close(pipes[1]);
        for (int32_t w = 0; w < WORKERS; w++) CHECK(read(pipes[0], &note, 1) == 1 && note == '+');
        sleep_ms(random_below(&seed, 10));
        CHECK(kill(parent, SIGKILL) == 0 && waitpid(parent, &status, 0) == parent);
        for (int32_t w = 0; w < WORKERS; w++) CHECK(read(pipes[0], &note, 1) == 1 && note == '-');
        CHECK(read(pipes[0], &note, 1) == 0);
        close(pipes[0]);
        close_shm_fixture(&r);
    }
}

int main(void)
{
    start_tests();
    RUN(test_a_worker_is_killed_at_a_random_instant);
    RUN(test_all_workers_are_killed);
    RUN(test_a_worker_is_stopped_at_random_instants);
    RUN(test_workers_are_killed_and_replaced);
    RUN(test_the_parent_is_killed);
    return 0;
}
