/* Tests of a table of requests with workers that are threads: batches of all sizes arrive whole,
 * each once, within budgets that hold one batch, some, or all; now and then a worker stops
 * answering. */
#include "inflight_fixture.h"

enum { BATCHES = 2000 / LANE_SLOWNESS, AHEAD = 12 };

typedef struct trial {
    inflight_fixture f;
    int32_t workers;
    fake_worker fakes[WORKERS];
    pthread_t threads[WORKERS];
    bool is_taken[BATCHES + AHEAD];
} trial;

static void open_trial(trial *t, int32_t workers, int64_t budget)
{
    memset(t->is_taken, 0, sizeof t->is_taken);
    open_table(&t->f, workers, budget);
    t->workers = workers;
    for (int32_t w = 0; w < workers; w++) {
        t->fakes[w] = (fake_worker){t->f.queue.shm, fl_arena_base(t->f.arena), w, w % 2 == 1, {0}};
        CHECK(pthread_create(&t->threads[w], NULL, serve_all, &t->fakes[w]) == 0);
    }
}

static void close_trial(trial *t)
{
    close_all(&t->f.queue);
    for (int32_t w = 0; w < t->workers; w++) CHECK(pthread_join(t->threads[w], NULL) == 0);
    close_table(&t->f);
}

/* Waits for one. */
static task *await_task(trial *t)
{
    task *received;
    while ((received = receive(&t->f)) == NULL)
        CHECK(fl_shm_queue_wait(t->f.queue.shm, fl_now_ns() + LONG_NS));
    CHECK(!t->is_taken[received->turn]);
    t->is_taken[received->turn] = true;
    check_words(fl_slot_data(received->request->slot), received->turn);
    return received;
}

/* Runs as loops do: tags below 1000 are the turns. */
static void run(trial *t, uint64_t seed)
{
    int64_t submitted = 0, held = 0;
    task *open[AHEAD];
    for (int64_t taken = 0; taken < BATCHES; taken++) {
        for (; submitted < BATCHES && submitted < taken + AHEAD - held; submitted++) {
            task *s = submit(&t->f, (int32_t)random_below(&seed, t->workers), submitted);
            CHECK(s->request->turn == submitted);
        }
        task *received = await_task(t);
        if (random_below(&seed, 2) == 0) fl_inflight_release(t->f.table, received->request);
        if (held < AHEAD / 3 && random_below(&seed, 3) == 0)
            open[held++] = received;
        else
            drop(&t->f, received);
        while (held > 0 && random_below(&seed, 4) == 0) drop(&t->f, open[--held]);
    }
    while (held > 0) drop(&t->f, open[--held]);
    CHECK(fl_inflight_is_idle(t->f.table));
}

static void test_batches_arrive_whole_within_any_budget(void)
{
    static const int64_t budgets[] = {1, 3 * LEAST, 8 * LEAST, BIG};
    static trial t;
    for (int i = 0; i < 4 * WORKERS; i++) {
        open_trial(&t, 1 + i % WORKERS, budgets[i / WORKERS]);
        run(&t, (uint64_t)i);
        close_trial(&t);
    }
}

int main(void)
{
    start_tests();
    RUN(test_batches_arrive_whole_within_any_budget);
    return 0;
}
