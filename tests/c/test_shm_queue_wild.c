/* Tests of fl_shm_queue whose memory is overwritten, word by word: no false reply or request is
 * believed, no call goes on for ever, and damage that is not found does no harm. */
#include "shm_queue_fixture.h"

enum { WORKERS = 2, DEPTH = 2, VALUES = 9, MORE = 6, ROUNDS = 2 * MORE };

/* The distance between the values that a word gets. */
enum { STRIDE = LANE_SLOWNESS == 1 ? 1 : 5 };

typedef struct scene {
    shm_fixture r;
    progress b[WORKERS];
    int64_t served[WORKERS];
    int64_t cursors[WORKERS];
    bool is_gone[WORKERS];   /* the worker has been told the end */
    bool has_found[WORKERS]; /* the worker has found damage */
    bool is_found;           /* the parent has */
    int32_t culprit;         /* the worker that the error named */
} scene;

/* Sets a scene: messages have passed; `asked` requests are unanswered, and `answered` replies
 * wait. */
static scene set_scene(int asked, int answered)
{
    scene s = {.r = open_shm_fixture(WORKERS, DEPTH), .culprit = -1};
    for (int32_t w = 0; w < WORKERS; w++)
        for (int i = 0; i < DEPTH + 1; i++) {
            CHECK(send_next(s.r.shm, w, &s.b[w]));
            CHECK_INT(serve_one(s.r.shm, w, &s.served[w], 0), FL_OK);
            CHECK_INT(take_next(s.r.shm, s.b), w);
        }
    for (int32_t w = 0; w < WORKERS; w++) {
        for (int i = 0; i < asked; i++) CHECK(send_next(s.r.shm, w, &s.b[w]));
        for (int i = 0; i < answered; i++) CHECK_INT(serve_one(s.r.shm, w, &s.served[w], 0), FL_OK);
    }
    return s;
}

/* Does everything that the worker is asked for. */
static void act_as_worker(scene *s, int32_t w)
{
    int status = FL_OK;
    for (int i = 0; status == FL_OK && !s->is_gone[w] && !s->has_found[w]; i++) {
        status = serve_one(s->r.shm, w, &s->served[w], INT64_MIN); /* checks the request */
        CHECK(i <= DEPTH && s->served[w] <= s->b[w].sent);
    }
    s->is_gone[w] |= status == FL_EEND;
    s->has_found[w] |= status == FL_EDAMAGE;
}

static void peek_all(scene *s, int32_t w)
{
    fl_reply_message reply;
    for (int i = 0; fl_shm_queue_peek(s->r.shm, w, &s->cursors[w], &reply); i++) {
        CHECK(i < 2 * DEPTH && reply.worker == w);
        CHECK(reply.number >= s->b[w].answered && reply.number < s->b[w].sent);
        check_reply(&reply);
    }
}

/* Sends what is left to be sent, and takes what is there. */
static void act_as_parent(scene *s, const int64_t *aims)
{
    fl_reply_message reply;
    int status = FL_OK;
    for (int32_t w = 0; w < WORKERS; w++) {
        while (s->b[w].sent < aims[w] && send_next(s->r.shm, w, &s->b[w])) continue;
        peek_all(s, w);
    }
    bool is_there = fl_shm_queue_wait(s->r.shm, INT64_MIN);
    for (int i = 0; status == FL_OK; i++) {
        status = fl_shm_queue_receive_reply(s->r.shm, &reply);
        CHECK(reply.worker >= 0 && reply.worker < WORKERS && i <= WORKERS * DEPTH);
        CHECK(is_there || status != FL_OK);
        if (status != FL_OK) break;
        progress *b = &s->b[reply.worker];
        check_reply(&reply); /* the message for this request, and no other */
        CHECK(reply.number == b->answered && b->answered < b->sent);
        b->answered++;
    }
    CHECK(status == FL_ETIMEOUT || status == FL_EDAMAGE);
    if (status != FL_EDAMAGE) return;
    s->is_found = true;
    s->culprit = reply.worker;
    CHECK_INT(fl_shm_queue_receive_reply(s->r.shm, &reply), FL_EDAMAGE); /* again */
    CHECK_INT(reply.worker, s->culprit);
}

/* Goes on with `more` requests after words were overwritten. Returns true if the parent finds out.
 * Damage that neither the parent nor a worker finds must have done no harm. */
static bool go_on(scene *s, int more)
{
    int64_t aims[WORKERS];
    for (int32_t w = 0; w < WORKERS; w++) aims[w] = s->b[w].sent + more;
    for (int round = 0; round < ROUNDS && !s->is_found; round++) {
        for (int32_t w = 0; w < WORKERS; w++) act_as_worker(s, w);
        act_as_parent(s, aims);
    }
    for (int32_t w = 0; w < WORKERS && !s->is_found; w++) {
        CHECK(!s->is_gone[w] && !s->has_found[w]); /* or the parent would know */
        CHECK_INT(s->b[w].answered, aims[w]);
    }
    for (int32_t w = 0; w < WORKERS; w++) { /* a worker hears of the end whatever there was */
        fl_shm_queue_close(s->r.shm, w);
        CHECK(fl_shm_queue_is_closed(s->r.shm, w));
        CHECK_INT(serve_one(s->r.shm, w, &s->served[w], LONG_NS), FL_EEND);
    }
    return s->is_found;
}

static uint32_t choose_value(int which, uint32_t before, uint64_t *seed)
{
    const uint32_t values[] = {0, 1, UINT32_MAX, INT32_MAX, before + 1, before - 1, DEPTH};
    return which < 7 ? values[which] : (uint32_t)next_random(seed);
}

/* Counts how often the parent finds out about a write to each word. */
static void overwrite_each_word(int asked, int answered, int64_t *found, int64_t *written)
{
    uint64_t seed = (uint64_t)(asked * 10 + answered);
    int64_t words = fl_shm_queue_bytes(WORKERS, DEPTH) / 4;
    for (int64_t at = 0; at < words; at++)
        for (int which = (int)(at % STRIDE); which < VALUES; which += STRIDE) {
            uint64_t same = seed;
            for (int more = 0; more <= MORE; more += MORE) {
                scene s = set_scene(asked, answered);
                uint32_t *word = (uint32_t *)(void *)s.r.memory + at;
                seed = same;
                *word = choose_value(which, *word, &seed);
                *found += go_on(&s, more);
                ++*written;
                close_shm_fixture(&s.r);
            }
        }
}

static void test_each_word_is_overwritten_with_each_value(void)
{
    int64_t found = 0, written = 0;
    for (int asked = 0; asked <= DEPTH; asked++)
        for (int answered = 0; answered <= asked; answered++)
            overwrite_each_word(asked, answered, &found, &written);
    CHECK(found > written / 20 && found < written);
}

/* Overwrites some words at a time, or a whole run of words. */
static void test_many_words_are_overwritten(void)
{
    uint64_t seed = 4;
    int64_t found = 0, runs = 20000 / LANE_SLOWNESS;
    for (int64_t run = 0; run < runs; run++) {
        int asked = (int)random_below(&seed, DEPTH + 1);
        scene s = set_scene(asked, (int)random_below(&seed, asked + 1));
        uint32_t *words = (uint32_t *)(void *)s.r.memory;
        int64_t most = s.r.bytes / 4, begin = random_below(&seed, most);
        bool is_run = run % 2 == 0;
        for (int64_t left = 1 + random_below(&seed, is_run ? most - begin : 4); left > 0; left--) {
            int64_t at = is_run ? begin++ : random_below(&seed, most);
            words[at] = choose_value((int)random_below(&seed, VALUES), words[at], &seed);
        }
        found += go_on(&s, run % 3 == 0 ? 0 : MORE);
        close_shm_fixture(&s.r);
    }
    CHECK(found > runs / 4);
}

/* The parent finds out whether or not the worker minds the words. */
static void test_the_words_that_the_parent_writes_are_compared(void)
{
    const int64_t messages = sizeof(fl_request_message) + sizeof(fl_reply_message);
    for (int32_t w = 0; w < WORKERS; w++) {
        scene s = set_scene(1, 0);
        fl_reply_message reply;
        uint32_t before[1024], *words = (uint32_t *)(void *)s.r.memory;
        int64_t compared = 0, most = (s.r.bytes - WORKERS * DEPTH * messages) / 4;
        CHECK(most <= 1024);
        memcpy(before, words, (size_t)most * 4);
        CHECK(send_next(s.r.shm, w, &s.b[w]));
        fl_shm_queue_end(s.r.shm, w);
        CHECK_INT(fl_shm_queue_receive_reply(s.r.shm, &reply), FL_ETIMEOUT);
        for (int64_t at = 0; at < most; at++) {
            if (words[at] == before[at]) continue;
            words[at] ^= 1u << (at % 32);
            CHECK_INT(fl_shm_queue_receive_reply(s.r.shm, &reply), FL_EDAMAGE);
            CHECK_INT(reply.worker, w);
            words[at] ^= 1u << (at % 32);
            compared++;
        }
        CHECK_INT(compared, 3); /* its events, its requests, its state */
        CHECK_INT(fl_shm_queue_receive_reply(s.r.shm, &reply), FL_ETIMEOUT);
        close_shm_fixture(&s.r);
    }
}

/* A worker that ends for no reason is gone before the parent looks. */
static void test_a_false_end_is_found(void)
{
    uint32_t no_state = 7;
    for (uint32_t state = 1; state <= no_state; state++) {
        scene s = set_scene(1, 1);
        uint32_t *words = (uint32_t *)(void *)s.r.memory;
        fl_shm_queue_end(s.r.shm, 1); /* shows which word is the state */
        int64_t at = 0;
        scene untold = set_scene(1, 1);
        while (words[at] != 1 || ((uint32_t *)(void *)untold.r.memory)[at] != 0) at++;
        ((uint32_t *)(void *)untold.r.memory)[at] = state;
        act_as_worker(&untold, 1);
        CHECK(untold.is_gone[1] != untold.has_found[1]);
        CHECK(go_on(&untold, 0));
        CHECK_INT(untold.culprit, 1);
        close_shm_fixture(&untold.r);
        close_shm_fixture(&s.r);
    }
}

int main(void)
{
    start_tests();
    RUN(test_each_word_is_overwritten_with_each_value);
    RUN(test_many_words_are_overwritten);
    RUN(test_the_words_that_the_parent_writes_are_compared);
    RUN(test_a_false_end_is_found);
    return 0;
}
