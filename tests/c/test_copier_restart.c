/* A worker is replaced while batches of its predecessor are copied ahead of the consumer. */
#include "copier_fixture.h"

typedef struct restart_call {
    copier_fixture *f;
    int32_t worker;
    _Atomic int64_t ended;
} restart_call;

static void *restart(void *arg)
{
    restart_call *call = arg;
    fl_inflight_restart(call->f->table, call->worker);
    atomic_fetch_add(&call->ended, 1);
    return NULL;
}

/* Only the copier has seen the reply. The slot is not used again during the read. */
static void test_a_copy_that_runs_is_waited_for(void)
{
    copier_fixture f;
    pthread_t thread;
    open_fixture(&f);
    f.is_held = true;
    job *j = submit(&f, 0);
    serve(&f, j);
    await_begun(&f, 1);
    restart_call call = {&f, j->worker, 0};
    CHECK(pthread_create(&thread, NULL, restart, &call) == 0);
    sleep_ms(20);
    CHECK(atomic_load(&call.ended) == 0 && j->request->slot != NULL);
    release(&f);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(j->request->state == FL_DEFERRED && j->request->slot == NULL);
    CHECK_INT(fl_copier_buffers_needed(f.copier), 1); /* its buffer came back */
    lend_all(&f);
    CHECK(!receive(&f) && j->request->state == FL_SENT);
    serve(&f, j);
    await_ended(&f, 2);
    receive_all(&f);
    CHECK(j->is_answered && finish(&f, j));
    close_fixture(&f);
}

/* Replies of ended copies are forgotten, and so are replies of batches that wait for a buffer. */
static void test_replies_of_the_predecessor_are_forgotten(void)
{
    copier_fixture f;
    open_fixture(&f);
    fl_copier_set_window(f.copier, -1);
    job *first = submit(&f, 0), *others[] = {submit(&f, 3), submit(&f, 9)}; /* all worker 0's */
    serve(&f, first);
    await_ended(&f, 1);
    receive_all(&f);
    CHECK(first->is_answered);
    for (int i = 0; i < 2; i++) serve(&f, others[i]);
    await_ended(&f, FL_COPY_AHEAD);
    fl_inflight_restart(f.table, 0);
    for (int i = 0; i < 2; i++) CHECK_INT(others[i]->request->state, FL_DEFERRED);
    CHECK(finish(&f, first) && !receive(&f));
    lend_all(&f);
    for (int i = 0; i < 2; i++) serve(&f, others[i]);
    await_ended(&f, FL_COPY_AHEAD + 2);
    receive_all(&f);
    for (int i = 0; i < 2; i++) CHECK(others[i]->is_answered && finish(&f, others[i]));
    close_fixture(&f);
}

/* Restarts at random while batches come and are copied. */
static void test_every_batch_arrives_whole(void)
{
    for (uint64_t seed = 0; seed < 20 / (LANE_SLOWNESS > 1 ? 5 : 1); seed++) {
        copier_fixture f;
        uint64_t random = seed;
        CHECK_INT(try_open_fixture(&f, WORKERS, false), FL_OK);
        job *open[6] = {NULL};
        for (int64_t next = 0, posted = 0; next < 200; next++) {
            fl_copier_set_window(f.copier, next);
            lend_all(&f);
            for (; posted < 200 && posted < next + 6; posted++)
                open[posted % 6] = submit(&f, posted);
            job *j = open[next % 6];
            while (!j->is_answered) {
                int32_t w = (int32_t)random_below(&random, WORKERS);
                (void)serve_request(&f.fakes[w], INT64_MIN);
                if (random_below(&random, 8) == 0) {
                    fl_inflight_restart(f.table, w);
                    lend_all(&f);
                }
                (void)receive(&f);
            }
            if (!finish(&f, j)) check_words(fl_slot_data(j->request->slot), j->tag);
            drop(&f, j);
        }
        close_fixture(&f);
    }
}

int main(void)
{
    start_tests();
    RUN(test_a_copy_that_runs_is_waited_for);
    RUN(test_replies_of_the_predecessor_are_forgotten);
    RUN(test_every_batch_arrives_whole);
    return 0;
}
