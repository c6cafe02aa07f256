/* ring_fixture.h: a ring over a pool, with a fill that can be slow, held up at a gate, or fail. The
 * tag of a batch determines its rows, and so the expected contents of its slot. */
#ifndef RING_FIXTURE_H
#define RING_FIXTURE_H

#include "check.h"
#include "fl_ring.h"
#include "pool_fixture.h"

#include <semaphore.h>
#include <stdatomic.h>

enum { MAX_TAGS = 64, MAX_PARTS = 16, NONE = -1, ALL = -2 };

/* Longer than any wait that works. */
#define LONG_MS (60000 * slowness())

typedef struct ring_fixture {
    fl_pool *pool; /* owned */
    fl_ring *ring; /* owned */
    /* Set before the submission that they are meant for: */
    int64_t stuck_tag;                          /* parts of this batch wait at the gate */
    int64_t failing_tag;                        /* this batch fails ... */
    int32_t failing_part;                       /* ... in this part, or in ALL */
    int64_t slow_ms;                            /* how long every part takes at least */
    sem_t arrived;                              /* posted by each part that comes to the gate */
    sem_t gate;                                 /* each post lets one part through */
    _Atomic int64_t fills;                      /* calls begun */
    _Atomic int64_t done;                       /* calls about to return */
    _Atomic int32_t calls[MAX_TAGS][MAX_PARTS]; /* of batches with small tags */
} ring_fixture;

/* Tags from 1000 on are their own number of rows. */
static inline int64_t rows_of(int64_t tag) { return tag >= 1000 ? tag : 1 + tag * 7 % 40; }

/* Even tags are ranges, odd ones lists. */
static inline int64_t row_of(int64_t tag, int64_t i)
{
    return tag % 2 == 0 ? tag + i : tag + i * i % 31;
}

static inline int64_t word_of(int64_t tag, int64_t row) { return tag * 1000003 + row; }

static inline int64_t row_in(const fl_rows *rows, int64_t i)
{
    return rows->is_range ? rows->first + i : rows->index[i];
}

static inline int64_t *words_at(char *data) { return (int64_t *)(void *)data; }

static inline int fill_part(const fl_batch *batch, int32_t part, fl_err *err)
{
    ring_fixture *r = (ring_fixture *)(uintptr_t)batch->source;
    CHECK(part >= 0 && part < batch->parts);
    CHECK(batch->slot == NULL || batch->data == fl_slot_data(batch->slot));
    CHECK_INT(batch->rows.count, rows_of(batch->tag));
    CHECK_INT(batch->bytes, 8 * batch->rows.count);
    atomic_fetch_add(&r->fills, 1);
    if (batch->tag < MAX_TAGS) atomic_fetch_add(&r->calls[batch->tag][part], 1);
    if (batch->tag == r->stuck_tag) {
        sem_post(&r->arrived);
        sem_wait(&r->gate);
    }
    if (r->slow_ms > 0) sleep_ms(r->slow_ms);
    int64_t from = batch->rows.count * part / batch->parts;
    int64_t to = batch->rows.count * (part + 1) / batch->parts;
    for (int64_t i = from; i < to; i++)
        words_at(batch->data)[i] = word_of(batch->tag, row_in(&batch->rows, i));
    atomic_fetch_add(&r->done, 1);
    bool fails = batch->tag == r->failing_tag;
    if (!fails || (r->failing_part != ALL && r->failing_part != part)) return FL_OK;
    *err = (fl_err){.code = FL_ESOURCE, .field = part, .value = batch->tag};
    return FL_ESOURCE;
}

/* Opens a ring; `shape` gives threads, depth, order, and a fill if it is not fill_part. */
static inline void open_fixture(ring_fixture *r, fl_ring_config shape)
{
    memset(r, 0, sizeof *r);
    r->stuck_tag = r->failing_tag = NONE;
    CHECK(sem_init(&r->arrived, 0, 0) == 0 && sem_init(&r->gate, 0, 0) == 0);
    r->pool = open_pool(shape.depth);
    if (shape.fill == NULL) shape.fill = fill_part;
    shape.pool = r->pool;
    CHECK_INT(fl_ring_open(&shape, &r->ring, NULL), FL_OK);
}

/* Every slot must be back by now, or with the pool soon. */
static inline void close_fixture(ring_fixture *r)
{
    fl_ring_close(r->ring);
    fl_pool_stats stats;
    fl_pool_count(r->pool, &stats);
    CHECK_INT(stats.lent, 0);
    fl_pool_close(r->pool);
    sem_destroy(&r->arrived);
    sem_destroy(&r->gate);
}

static inline int add_rows(fl_rows *rows, int64_t tag, fl_err *err)
{
    CHECK_INT(rows->count, 0);
    if (tag % 2 == 0) return fl_rows_add_range(rows, tag, rows_of(tag), err);
    for (int64_t i = 0; i < rows_of(tag); i++) {
        int64_t row = row_of(tag, i);
        FL_TRY(fl_rows_add(rows, &row, 1, err));
    }
    return FL_OK;
}

/* Prepares the batch with this tag as the next to submit; NULL: there is no memory for its rows. */
static inline fl_batch *prepare_batch(ring_fixture *r, int64_t tag, int32_t parts, fl_err *err)
{
    fl_batch *batch = fl_ring_prepare(r->ring);
    CHECK(batch->data == NULL && batch->transfer == NULL && batch->slot == NULL);
    batch->source = r;
    batch->bytes = batch->work_bytes = 8 * rows_of(tag);
    batch->parts = parts;
    batch->tag = tag;
    return add_rows(&batch->rows, tag, err) == FL_OK ? batch : NULL;
}

static inline void wake_threads(ring_fixture *r)
{
    fl_ring_wake(r->ring, fl_ring_take_wakes(r->ring));
}

static inline void submit_prepared(ring_fixture *r)
{
    int64_t pending = fl_ring_pending(r->ring);
    CHECK_INT(fl_ring_submit(r->ring, NULL), FL_OK);
    wake_threads(r);
    CHECK_INT(fl_ring_pending(r->ring), pending + 1);
}

static inline void submit_batch(ring_fixture *r, int64_t tag, int32_t parts)
{
    CHECK(prepare_batch(r, tag, parts, NULL) != NULL);
    submit_prepared(r);
}

static inline void check_memory(char *data, int64_t tag)
{
    for (int64_t i = 0; i < rows_of(tag); i++)
        CHECK_INT(words_at(data)[i], word_of(tag, row_of(tag, i)));
}

static inline void check_words(const fl_slot *slot, int64_t tag)
{
    check_memory(fl_slot_data(slot), tag);
}

/* Takes the next batch, which must be this one, and leaves its slot READY with the caller. */
static inline fl_slot *receive_batch(ring_fixture *r, int64_t tag)
{
    fl_batch batch;
    fl_err err;
    int64_t pending = fl_ring_pending(r->ring);
    CHECK_INT(fl_ring_receive(r->ring, LONG_MS, &batch, &err), FL_OK);
    CHECK_INT(batch.tag, tag);
    CHECK(batch.slot != NULL);
    check_words(batch.slot, tag);
    CHECK_INT(fl_ring_pending(r->ring), pending - 1);
    return batch.slot;
}

static inline void receive_and_give(ring_fixture *r, int64_t tag)
{
    fl_slot *slot = receive_batch(r, tag);
    fl_slot_lend(slot, 1);
    fl_slot_give(slot);
}

/* The status of a receive; the batch's slot goes back to the pool. */
static inline int receive_status(ring_fixture *r, int64_t wait_ms)
{
    fl_batch batch = {0};
    int status = fl_ring_receive(r->ring, wait_ms, &batch, NULL);
    fl_slot_return(batch.slot);
    return status;
}

static inline void open_gate(ring_fixture *r, int parts)
{
    for (int i = 0; i < parts; i++) sem_post(&r->gate);
}

/* Returns once `count` fills are as good as over; a hang is ended by the alarm. */
static inline void await_done(ring_fixture *r, int64_t count)
{
    while (atomic_load(&r->done) < count) sleep_ms(1);
}

/* Rings of every kind: i = 0, 1, ... until false. */
static inline bool next_shape(int i, fl_ring_config *shape)
{
    *shape = (fl_ring_config){.depth = 3, .is_in_order = true};
    shape->runs_ahead = i < 4;
    shape->threads = i < 4 ? i + 1 : i - 4; /* 1..4 ahead; 0..3 helpers */
    return i < 8;
}

#endif
