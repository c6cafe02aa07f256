/* transfer_fixture.h: a loop that trains on a device: a ring over pinned slots, uploads, and
 * kernels that check what they read, when they run. */
#ifndef TRANSFER_FIXTURE_H
#define TRANSFER_FIXTURE_H

#include "ring_fixture.h"

#include "destination_fixture.h"
#include "fl_copier.h"

enum { MOST_SUBMITTED = 8, BUFFER_BYTES = 8192, MOST_CASTS = 3 };

typedef struct upload_slot {
    fl_transfer_cast casts[MOST_CASTS];
    void *transfer;        /* NULL: free */
    device_buffer *buffer; /* NULL: memory was short */
    bool is_filled;        /* before its buffer was set */
} upload_slot;

typedef struct loop {
    ring_fixture r;
    void *copy_stream;
    cudaStream_t stream; /* the consumer's current one */
    upload_slot slots[MOST_SUBMITTED];
    buffer_heap heap;
    look looks[MOST_LOOKS];
    int64_t launched;
    bool has_window;     /* batches after the next have no buffer at first: see look_ahead */
    bool has_slices;     /* batches are copied in up to three slices, as they are filled */
    bool is_short;       /* true: there is no device memory */
    bool is_undelivered; /* `undelivered` was received, and could not be delivered */
    fl_batch undelivered;
    fl_err err; /* of the last failure */
} loop;

static inline upload_slot *slot_of(loop *l, int64_t tag) { return &l->slots[tag % MOST_SUBMITTED]; }

/* Opens what `shape` says; the status of what cannot be had. */
static inline int try_open_loop(loop *l, fl_ring_config shape, int32_t device)
{
    memset(l, 0, sizeof *l);
    if (device == 0) fake_choose_default(true);
    l->r.stuck_tag = l->r.failing_tag = NONE;
    l->heap.device = device;
    CHECK(sem_init(&l->r.arrived, 0, 0) == 0 && sem_init(&l->r.gate, 0, 0) == 0);
    CHECK(shape.depth < MOST_SUBMITTED);
    FL_TRY(fl_pool_open(0, NULL, &l->r.pool, &l->err));
    fl_pool_reserve(l->r.pool, shape.depth);
    fl_pool_pin(l->r.pool, (fl_pinner){ops->pin, ops->unpin, device});
    FL_TRY(ops->open(device, &l->copy_stream, &l->err));
    shape.fill = fill_part;
    shape.transfers = ops;
    shape.pool = l->r.pool;
    return fl_ring_open(&shape, &l->r.ring, &l->err);
}

static inline void open_loop(loop *l, fl_ring_config shape, int32_t device)
{
    CHECK_INT(try_open_loop(l, shape, device), FL_OK);
}

static inline void cancel_slot(upload_slot *t)
{
    if (t->transfer != NULL) ops->cancel(t->transfer);
    drop_buffer(t->buffer);
    *t = (upload_slot){0};
}

static inline void cancel_slots(loop *l)
{
    if (l->is_undelivered) fl_slot_return(l->undelivered.slot);
    l->is_undelivered = false;
    for (int i = 0; i < MOST_SUBMITTED; i++) cancel_slot(&l->slots[i]);
}

static inline void reset_loop(loop *l)
{
    ops->halt(l->copy_stream);
    fl_ring_reset(l->r.ring);
    cancel_slots(l);
}

static inline void close_engine(loop *l)
{
    if (l->copy_stream != NULL) ops->halt(l->copy_stream);
    fl_ring_close(l->r.ring);
    cancel_slots(l);
    ops->close(l->copy_stream);
    fl_pool_close(l->r.pool);
}

/* Kernels that read buffers must have been waited for. */
static inline void close_loop(loop *l)
{
    close_engine(l);
    free_buffers(&l->heap);
    sem_destroy(&l->r.arrived);
    sem_destroy(&l->r.gate);
}

static inline int set_buffer(loop *l, upload_slot *t)
{
    fl_err err;
    if (l->is_short) return fl_fail(&l->err, FL_ENOMEM, "no device memory");
    device_buffer *found = get_buffer(&l->heap, BUFFER_BYTES, l->stream);
    int status = ops->set_buffer(t->transfer, found->memory, l->stream, &t->is_filled, &err);
    if (status == FL_OK)
        t->buffer = found;
    else
        drop_buffer(found);
    if (status != FL_OK) l->err = err;
    return status;
}

/* ---- casts of a batch after its copy: its bytes, to elements of 2 and of 4 bytes by tables; its
 * halves, the last three of every four, to integers of 8 bytes */

static inline int32_t count_casts(int64_t tag) { return (int32_t)(tag % (MOST_CASTS + 1)); }

/* The tables of three channels, for either size. */
static uint32_t cast_tables[3 * 256];

__attribute__((constructor)) static void fill_cast_tables(void)
{
    for (uint32_t i = 0; i < 3 * 256; i++) cast_tables[i] = (i + 1) * 2654435761u;
}

static inline fl_transfer_cast cast_at(int64_t tag, int32_t i)
{
    if (i == 2)
        return (fl_transfer_cast){.kind = FL_CAST_WIDEN,
                                  .bytes = 8,
                                  .from = 2,
                                  .to = BUFFER_BYTES / 4 * 3,
                                  .count = 3 * rows_of(tag),
                                  .from_bytes = 2,
                                  .is_signed = tag / 4 % 2 == 1,
                                  .row = 3,
                                  .pitch = 4};
    return (fl_transfer_cast){.to = BUFFER_BYTES / 4 * (i + 1),
                              .count = 8 * rows_of(tag),
                              .plane = i == 0 ? 1 : 5,
                              .channels = 3,
                              .bytes = 2 + 2 * i,
                              .tables = cast_tables};
}

static inline void set_casts(upload_slot *t, int64_t tag)
{
    for (int32_t i = 0; i < count_casts(tag); i++) t->casts[i] = cast_at(tag, i);
    if (count_casts(tag) > 0) ops->set_casts(t->transfer, t->casts, count_casts(tag));
}

static inline void set_slices(upload_slot *t, int64_t tag, int32_t parts)
{
    int32_t count = (int32_t)fl_min(parts, tag % 4);
    ops->set_slices(t->transfer, &(fl_transfer_slices){count, rows_of(tag), 8, 0});
}

static inline void check_widened(const char *view, int64_t tag)
{
    const int64_t *wide = (const int64_t *)(const void *)(view + cast_at(tag, 2).to);
    for (int64_t row = 0; row < rows_of(tag); row++)
        for (int64_t i = 0; i < 3; i++) {
            int16_t half;
            memcpy(&half, view + 8 * row + 2 * (i + 1), 2);
            CHECK_INT(wide[3 * row + i], tag / 4 % 2 == 1 ? half : (uint16_t)half);
        }
}

static inline void check_casts(const char *view, int64_t tag)
{
    if (count_casts(tag) == 3) check_widened(view, tag);
    for (int32_t i = 0; i < fl_min(count_casts(tag), 2); i++) {
        fl_transfer_cast cast = cast_at(tag, i);
        for (int64_t at = 0; at < cast.count; at++) {
            int64_t entry = at / cast.plane % cast.channels * 256 + (uint8_t)view[at];
            CHECK(memcmp(view + cast.to + at * cast.bytes,
                         (const char *)cast_tables + entry * cast.bytes, (size_t)cast.bytes) == 0);
        }
    }
}

static inline void submit_upload(loop *l, int64_t tag, int32_t parts)
{
    upload_slot *t = slot_of(l, tag);
    CHECK(t->transfer == NULL && BUFFER_BYTES >= 8 * rows_of(tag));
    fl_err err = {0};
    int status = ops->get(l->copy_stream, parts, &t->transfer, &err);
    if (status == FL_OK) set_casts(t, tag);
    if (status == FL_OK && l->has_slices) set_slices(t, tag, parts);
    bool is_next = fl_ring_pending(l->r.ring) == 0;
    if (status == FL_OK && (is_next || !l->has_window)) (void)set_buffer(l, t);
    if (status == FL_OK) {
        fl_batch *batch = prepare_batch(&l->r, tag, parts, &err);
        if (batch != NULL) batch->transfer = t->transfer;
        status = batch != NULL ? fl_ring_submit(l->r.ring, &err) : err.code;
    }
    if (status == FL_OK) {
        wake_threads(&l->r);
        return;
    }
    CHECK_INT(err.code, status);
    cancel_slot(t);
    fl_ring_submit_sentinel(l->r.ring, status, &err, tag);
}

static inline void check_device_words(const char *view, int64_t tag)
{
    const int64_t *words = (const int64_t *)(const void *)view;
    for (int64_t i = 0; i < rows_of(tag); i++) CHECK_INT(words[i], word_of(tag, row_of(tag, i)));
    check_casts(view, tag);
}

static inline void look_at_batch(void *arg)
{
    const look *l = arg;
    check_device_words(l->view, l->tag);
}

static inline void launch_look(loop *l, const void *memory, int64_t tag)
{
    look *next = &l->looks[l->launched++ % MOST_LOOKS];
    *next = (look){.view = fake_host_view(memory), .tag = tag};
    fake_launch(l->stream, look_at_batch, next);
}

/* The next batches get their buffers. The copy of what was filled before is started: by the ring,
 * if its slot is still to be pinned. */
static inline void look_ahead(loop *l)
{
    const fl_batch *batch;
    for (int64_t place = 0; place < FL_COPY_AHEAD; place++) {
        if ((batch = fl_ring_submitted(l->r.ring, place)) == NULL) return;
        upload_slot *t = slot_of(l, batch->tag);
        if (t->transfer == NULL || t->buffer != NULL) continue;
        if (set_buffer(l, t) != FL_OK) return;
        if (!t->is_filled) continue;
        if (fl_slot_is_pinned(batch->slot, batch->bytes)) {
            (void)ops->start(t->transfer, batch->slot, batch->bytes, NULL);
        } else {
            fl_ring_add_part(l->r.ring, place);
            wake_threads(&l->r);
        }
    }
}

/* Takes the next batch, queues a kernel that reads it, and lets go of it. A batch that could not be
 * handed out comes again. *tag names the batch. */
static inline int deliver_next(loop *l, int64_t *tag)
{
    int status = FL_OK;
    fl_batch batch = l->undelivered;
    if (!l->is_undelivered) status = fl_ring_receive(l->r.ring, LONG_MS, &batch, &l->err);
    if (status == FL_EEND) return status;
    *tag = batch.tag;
    upload_slot *t = slot_of(l, batch.tag);
    if (status != FL_OK) {
        cancel_slot(t);
        fl_slot_return(batch.slot);
        return status;
    }
    if (t->buffer == NULL) status = set_buffer(l, t);
    if (status == FL_OK)
        status = ops->finish(t->transfer, batch.slot, batch.bytes, l->stream, &l->err);
    l->is_undelivered = status != FL_OK;
    l->undelivered = batch;
    if (l->is_undelivered) return status;
    if (t->buffer->stream != l->stream) t->buffer->is_kept = true;
    launch_look(l, t->buffer->memory, batch.tag);
    drop_buffer(t->buffer);
    *t = (upload_slot){0};
    if (l->has_window) look_ahead(l);
    return FL_OK;
}

static inline void take_tag(loop *l, int64_t tag)
{
    int64_t taken;
    CHECK_INT(deliver_next(l, &taken), FL_OK);
    CHECK_INT(taken, tag);
}

#endif
