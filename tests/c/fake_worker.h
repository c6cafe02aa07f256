/* fake_worker.h: workers that answer requests over fl_shm_queue with batches whose tags say all
 * about them.
 *
 * The task that the parent leaves in the slot is the tag. Whoever includes this says how large
 * batches are: up to WORDS_SCALE * 12 000 bytes. */
#ifndef FAKE_WORKER_H
#define FAKE_WORKER_H

#include "shm_queue_fixture.h"

enum { DEPTH = 4, /* of a worker's queue */ TOO_MUCH = 1 << 20 };

typedef enum batch_kind {
    BATCH,   /* to be copied */
    OTHER,   /* something else */
    NOTHING, /* a batch without anything to copy */
    NO_TURN, /* one without a turn */
    TOO_LONG /* a batch that claims to be longer than its slot */
} batch_kind;

/* Tags from 1000 on say their kind outright: 1000 * kind + turn. */
static inline batch_kind kind_of(int64_t tag)
{
    if (tag >= 1000) return (batch_kind)(tag / 1000);
    if (tag % 9 == 4) return OTHER;
    if (tag % 11 == 7) return NOTHING;
    return tag % 13 == 6 ? NO_TURN : BATCH;
}

static inline int64_t turn_of(int64_t tag) { return kind_of(tag) == NO_TURN ? -1 : tag % 1000; }

static inline int64_t count_words(int64_t tag)
{
    return 1 + WORDS_SCALE * (tag % 1000 * 211 % 1500);
}

static inline int64_t batch_word(int64_t tag, int64_t i) { return (tag + 1) * 1000003 + i; }

static inline void check_words(const char *view, int64_t tag)
{
    const int64_t *words = (const int64_t *)(const void *)view;
    for (int64_t i = 0; i < count_words(tag); i++) CHECK_INT(words[i], batch_word(tag, i));
}

/* ---- workers */

typedef struct fake_worker {
    fl_shm_queue *shm;
    char *base; /* of the arena */
    int32_t worker;
    bool is_slow;
    int64_t too_large[DEPTH]; /* tags of batches that needed more memory, by request % DEPTH */
} fake_worker;

static inline int64_t read_tag(const fake_worker *w, const fl_request_message *request)
{
    int64_t tag;
    if (request->repeat_of >= 0) return w->too_large[request->repeat_of % DEPTH];
    CHECK_INT(request->bytes, sizeof tag);
    memcpy(&tag, w->base + request->offset, sizeof tag);
    return tag;
}

/* Receives one request and answers it; otherwise returns the status of
 * fl_shm_queue_receive_request. */
static inline int serve_request(fake_worker *w, int64_t deadline_ns)
{
    fl_request_message request;
    FL_TRY(fl_shm_queue_receive_request(w->shm, w->worker, &request, deadline_ns));
    int64_t *words = (int64_t *)(void *)(w->base + request.offset), tag = read_tag(w, &request);
    batch_kind kind = kind_of(tag);
    int64_t bytes = 8 * count_words(tag);
    if (w->is_slow && tag % 3 == 0) sleep_ms(1);
    fl_reply_message reply = {
        .number = request.number, .used = bytes, .head = bytes, .upload = bytes, .kind = 1};
    if (bytes > request.limit) {
        w->too_large[request.number % DEPTH] = tag;
        reply.kind = -1;
        fl_shm_queue_send_reply(w->shm, w->worker, &reply);
        return FL_OK;
    }
    for (int64_t i = 0; i < count_words(tag); i++) words[i] = batch_word(tag, i);
    if (kind == OTHER) reply.kind = 0;
    if (kind == NOTHING) reply.upload = 0;
    if (kind == TOO_LONG) reply.upload = TOO_MUCH;
    fl_shm_queue_send_reply(w->shm, w->worker, &reply);
    return FL_OK;
}

static inline void *serve_all(void *arg)
{
    while (serve_request(arg, fl_now_ns() + LONG_NS) == FL_OK) continue;
    return NULL;
}

#endif
