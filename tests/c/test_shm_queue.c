/* Tests of fl_shm_queue by one thread, which plays parent and workers: nothing here may block. */
#include "check.h"

#include "shm_queue_fixture.h"

/* ---- a model: what every call must say, in long random runs */

enum { MOST_WORKERS = 5, MOST_DEPTH = 16 };

typedef struct model {
    shm_fixture r;
    uint64_t seed;
    struct {
        progress b;
        int64_t received;
        int64_t replies[MOST_DEPTH];  /* numbers, published, oldest first */
        int64_t arrivals[MOST_DEPTH]; /* arrivals of the replies */
        int64_t published, answered;  /* how many; number of the next that may be answered */
        bool is_ended;
    } workers[MOST_WORKERS];
    int64_t arrivals;
    bool is_closed;
} model;

static void send_some(model *m, int32_t w)
{
    if (m->workers[w].is_ended) return;
    progress *b = &m->workers[w].b;
    bool has_room = b->sent - b->answered < m->r.depth;
    CHECK_INT(send_next(m->r.shm, w, b), has_room);
}

static void receive_some(model *m, int32_t w)
{
    fl_request_message request = {0};
    int status = fl_shm_queue_receive_request(m->r.shm, w, &request, 0);
    if (m->is_closed)
        CHECK_INT(status, FL_EEND);
    else if (m->workers[w].received < m->workers[w].b.sent) {
        CHECK_INT(status, FL_OK);
        CHECK_INT(request.number, m->workers[w].received++);
        check_request(&request, w);
    } else
        CHECK_INT(status, m->workers[w].is_ended ? FL_EEND : FL_ETIMEOUT);
}

/* Answers the oldest request received, or leaves some out. */
static void answer_some(model *m, int32_t w)
{
    if (m->workers[w].answered >= m->workers[w].received) return;
    int64_t number = m->workers[w].answered;
    if (random_below(&m->seed, 8) == 0)
        number += random_below(&m->seed, m->workers[w].received - number);
    fl_reply_message reply = make_reply(w, number);
    fl_shm_queue_send_reply(m->r.shm, w, &reply);
    CHECK_INT(reply.worker, w);
    int64_t place = m->workers[w].published++;
    m->workers[w].replies[place] = number;
    m->workers[w].arrivals[place] = m->arrivals++;
    m->workers[w].answered = number + 1;
}

static int32_t find_first(const model *m)
{
    int32_t first = -1;
    for (int32_t w = 0; w < m->r.workers; w++)
        if (m->workers[w].published > 0 &&
            (first < 0 || m->workers[w].arrivals[0] < m->workers[first].arrivals[0]))
            first = w;
    return first;
}

static void take_some(model *m)
{
    int32_t first = find_first(m);
    fl_reply_message reply;
    CHECK_INT(fl_shm_queue_wait(m->r.shm, 0), first >= 0);
    CHECK_INT(fl_shm_queue_receive_reply(m->r.shm, &reply), first >= 0 ? FL_OK : FL_ETIMEOUT);
    if (first < 0) return;
    CHECK_INT(reply.worker, first);
    CHECK_INT(reply.number, m->workers[first].replies[0]);
    check_reply(&reply);
    m->workers[first].b.answered = reply.number + 1;
    int64_t left = --m->workers[first].published;
    for (int64_t i = 0; i < left; i++) {
        m->workers[first].replies[i] = m->workers[first].replies[i + 1];
        m->workers[first].arrivals[i] = m->workers[first].arrivals[i + 1];
    }
}

static void take_a_step(model *m)
{
    int32_t w = (int32_t)random_below(&m->seed, m->r.workers);
    int64_t action = random_below(&m->seed, 1000);
    if (action < 300)
        send_some(m, w);
    else if (action < 550)
        receive_some(m, w);
    else if (action < 800)
        answer_some(m, w);
    else if (action < 998)
        take_some(m);
    else if (action == 998 && !m->workers[w].is_ended && random_below(&m->seed, 4) == 0) {
        fl_shm_queue_end(m->r.shm, w);
        m->workers[w].is_ended = true;
    }
}

static void run_model(int32_t workers, int32_t depth, uint64_t seed)
{
    static model m;
    m = (model){.seed = seed, .r = open_shm_fixture(workers, depth)};
    for (int step = 0; step < 5000; step++) take_a_step(&m);
    for (int32_t w = 0; w < workers; w++) CHECK(!fl_shm_queue_is_closed(m.r.shm, w));
    close_all(&m.r);
    m.is_closed = true;
    for (int32_t w = 0; w < workers; w++) CHECK(fl_shm_queue_is_closed(m.r.shm, w));
    for (int step = 0; step < 500; step++) take_a_step(&m);
    close_shm_fixture(&m.r);
}

static void test_random_runs(void)
{
    for (int32_t depth = 1; depth <= MOST_DEPTH; depth *= 2)
        for (int32_t workers = 1; workers <= MOST_WORKERS; workers++)
            for (int run = 0; run < 3; run++)
                run_model(workers, depth, (uint64_t)(depth * 100 + workers * 10 + run));
}

/* ---- one rule each */

static void serve(fl_shm_queue *shm, int32_t worker, int64_t *expected)
{
    CHECK_INT(serve_one(shm, worker, expected, 0), FL_OK);
}

static void test_no_more_than_depth_unanswered(void)
{
    for (int32_t depth = 1; depth <= 64; depth *= 2) {
        shm_fixture r = open_shm_fixture(2, depth);
        progress b[2] = {{0}};
        int64_t served = 0;
        for (int round = 0; round < 3; round++) {
            while (send_next(r.shm, 0, &b[0])) continue;
            CHECK_INT(b[0].sent - b[0].answered, depth);
            CHECK(send_next(r.shm, 1, &b[1]) == (round < depth)); /* its own, not the other's */
            serve(r.shm, 0, &served);
            CHECK(!send_next(r.shm, 0, &b[0])); /* answered, but not taken */
            CHECK_INT(take_next(r.shm, b), 0);
        }
        while (served < b[0].sent) serve(r.shm, 0, &served);
        for (int64_t i = b[0].answered; i < b[0].sent; i++) CHECK_INT(take_next(r.shm, b), 0);
        CHECK_INT(take_next(r.shm, b), -1);
        close_shm_fixture(&r);
    }
}

static void test_replies_come_in_the_order_of_their_arrival(void)
{
    enum { WORKERS = 7, DEPTH = 32 };
    shm_fixture r = open_shm_fixture(WORKERS, DEPTH);
    progress b[WORKERS] = {{0}};
    int64_t served[WORKERS] = {0};
    int32_t order[WORKERS * DEPTH];
    uint64_t seed = 5;
    for (int round = 0; round < 100; round++) {
        for (int32_t w = 0; w < WORKERS; w++)
            while (send_next(r.shm, w, &b[w])) continue;
        int64_t count = 0, most = 1 + random_below(&seed, WORKERS * DEPTH);
        while (count < most) {
            int32_t w = (int32_t)random_below(&seed, WORKERS);
            if (served[w] == b[w].sent) continue;
            serve(r.shm, w, &served[w]);
            order[count++] = w;
        }
        for (int64_t i = 0; i < count; i++) CHECK_INT(take_next(r.shm, b), order[i]);
        CHECK_INT(take_next(r.shm, b), -1);
    }
    close_shm_fixture(&r);
}

static void test_end_lets_a_worker_have_what_was_sent(void)
{
    shm_fixture r = open_shm_fixture(2, 4);
    progress b[2] = {{0}};
    int64_t served[2] = {0};
    for (int i = 0; i < 3; i++) CHECK(send_next(r.shm, 0, &b[0]) && send_next(r.shm, 1, &b[1]));
    fl_shm_queue_end(r.shm, 0);
    CHECK(!fl_shm_queue_is_closed(r.shm, 0));
    for (int i = 0; i < 3; i++) serve(r.shm, 0, &served[0]);
    for (int i = 0; i < 3; i++) CHECK_INT(serve_one(r.shm, 0, &served[0], LONG_NS), FL_EEND);
    for (int i = 0; i < 3; i++) serve(r.shm, 1, &served[1]); /* the other goes on */
    CHECK_INT(serve_one(r.shm, 1, &served[1], 0), FL_ETIMEOUT);
    for (int i = 0; i < 6; i++) CHECK_INT(take_next(r.shm, b), i / 3);
    close_shm_fixture(&r);
}

static void test_close_is_for_all_at_once(void)
{
    shm_fixture r = open_shm_fixture(3, 4);
    progress b[3] = {{0}};
    int64_t served[3] = {0};
    for (int32_t w = 0; w < 3; w++) CHECK(send_next(r.shm, w, &b[w]) && send_next(r.shm, w, &b[w]));
    serve(r.shm, 1, &served[1]);
    close_all(&r);
    for (int32_t w = 0; w < 3; w++) {
        CHECK(fl_shm_queue_is_closed(r.shm, w));
        fl_shm_queue_end(r.shm, w); /* is too late */
        CHECK_INT(serve_one(r.shm, w, &served[w], INT64_MAX), FL_EEND);
    }
    CHECK(fl_shm_queue_wait(r.shm, INT64_MAX)); /* what was answered can be taken */
    CHECK_INT(take_next(r.shm, b), 1);
    close_shm_fixture(&r);
}

/* ---- what is refused */

static int open_and_free(void *memory)
{
    fl_shm_queue *shm;
    fl_err err = {0};
    int status = fl_shm_queue_open(memory, 2, 4, &shm, &err);
    CHECK((status == FL_OK) == (shm != NULL) && (status == FL_OK) == (err.text[0] == '\0'));
    fl_shm_queue_free(shm);
    return status;
}

static void test_an_end_needs_memory_of_its_own(void)
{
    void *memory = fl_alloc(fl_shm_queue_bytes(2, 4));
    CHECK(memory != NULL);
    CHECK_INT(refuse_each(open_and_free, memory), 1);
    fl_free(memory);
}

/* ---- deadlines */

static void test_waits_end_at_their_deadline(void)
{
    const int64_t waits_ns[] = {-SECONDS, -1, 0, 1, 5000, 30000, 2000000, 30000000};
    shm_fixture r = open_shm_fixture(2, 4);
    int64_t served = 0;
    for (size_t i = 0; i < sizeof waits_ns / sizeof *waits_ns; i++) {
        int64_t until_ns = fl_now_ns() + waits_ns[i];
        CHECK(!fl_shm_queue_wait(r.shm, until_ns));
        CHECK(fl_now_ns() >= until_ns);
        until_ns = fl_now_ns() + waits_ns[i];
        CHECK_INT(serve_one(r.shm, 1, &served, until_ns), FL_ETIMEOUT);
        CHECK(fl_now_ns() >= until_ns);
    }
    CHECK(!fl_shm_queue_wait(r.shm, INT64_MIN));
    CHECK_INT(serve_one(r.shm, 0, &served, INT64_MIN), FL_ETIMEOUT);
    progress b = {0};
    CHECK(send_next(r.shm, 0, &b)); /* what is there is there, however late */
    CHECK_INT(serve_one(r.shm, 0, &served, INT64_MIN), FL_OK);
    CHECK(fl_shm_queue_wait(r.shm, INT64_MIN));
    close_shm_fixture(&r);
}

int main(void)
{
    start_tests();
    RUN(test_random_runs);
    RUN(test_no_more_than_depth_unanswered);
    RUN(test_replies_come_in_the_order_of_their_arrival);
    RUN(test_end_lets_a_worker_have_what_was_sent);
    RUN(test_close_is_for_all_at_once);
    RUN(test_an_end_needs_memory_of_its_own);
    RUN(test_waits_end_at_their_deadline);
    return 0;
}
