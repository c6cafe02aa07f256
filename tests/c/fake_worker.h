/* fake_worker.h: workers that answer requests over fl_shm_queue with batches whose tags say all
 * about them.
 *
 * The task that the parent leaves in the slot is the tag. */
#ifndef SERVANT_RIG_H
#define SERVANT_RIG_H

#include "shm_queue_fixture.h"

enum { DEPTH = 4, /* of a worker's queue */ TOO_MUCH = 1 << 20 };

typedef enum sort {
    BATCH,   /* to be carried */
    OTHER,   /* something else */
    NOTHING, /* a batch of which nothing is to be carried */
    AT_HOME, /* one without a turn */
    TOO_LONG /* its worker says it is longer than its slot */
} sort;

/* Tags from 1000 on say their sort outright: 1000 * sort + turn. */
static inline sort sort_of(int64_t tag)
{
    if (tag >= 1000) return (sort)(tag / 1000);
    if (tag % 9 == 4) return OTHER;
    if (tag % 11 == 7) return NOTHING;
    return tag % 13 == 6 ? AT_HOME : BATCH;
}

static inline int64_t turn_of(int64_t tag) { return sort_of(tag) == AT_HOME ? -1 : tag % 1000; }

static inline int64_t count_words(int64_t tag) { return 1 + tag % 1000 * 211 % 1500; }

static inline int64_t batch_word(int64_t tag, int64_t i) { return (tag + 1) * 1000003 + i; }

static inline void check_words(const char *view, int64_t tag)
{
    const int64_t *words = (const int64_t *)(const void *)view;
    for (int64_t i = 0; i < count_words(tag); i++) CHECK_INT(words[i], batch_word(tag, i));
}

/* ---- workers */

typedef struct servant {
    fl_shm_queue *shm;
    char *base; /* of the arena */
    int32_t worker;
    bool is_slow;
} servant;

/* Receives one request and answers it, or what fl_shm_queue_receive_request says. */
static inline int serve_request(const servant *s, int64_t deadline_ns)
{
    fl_request_message request;
    int64_t tag;
    FL_TRY(fl_shm_queue_receive_request(s->shm, s->worker, &request, deadline_ns));
    int64_t *words = (int64_t *)(void *)(s->base + request.offset);
    memcpy(&tag, words, sizeof tag);
    sort kind = sort_of(tag);
    int64_t bytes = 8 * count_words(tag);
    if (s->is_slow && tag % 3 == 0) sleep_ms(1);
    fl_reply_message reply = {.number = request.number, .used = bytes, .upload = bytes, .kind = 1};
    if (bytes > request.limit) {
        reply.kind = -1;
        fl_shm_queue_send_reply(s->shm, s->worker, &reply);
        return FL_OK;
    }
    for (int64_t i = 0; i < count_words(tag); i++) words[i] = batch_word(tag, i);
    if (kind == OTHER) reply.kind = 0;
    if (kind == NOTHING) reply.upload = 0;
    if (kind == TOO_LONG) reply.upload = TOO_MUCH;
    fl_shm_queue_send_reply(s->shm, s->worker, &reply);
    return FL_OK;
}

static inline void *serve_all(void *arg)
{
    while (serve_request(arg, fl_now_ns() + LONG_NS) == FL_OK) continue;
    return NULL;
}

#endif
