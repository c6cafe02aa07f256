/* transfer_copier_fixture.h: a loop that trains on a device with batches of workers: slots in an
 * arena, a table of requests, a copier, and kernels that check what they read, when they run.
 *
 * Threads stand for the worker processes; a loop without them has the test answer for its workers.
 */
#ifndef TRANSFER_COPIER_FIXTURE_H
#define TRANSFER_COPIER_FIXTURE_H

#define WORDS_SCALE 8 /* some are larger than what requests get at first */

#include "arena_fixture.h"
#include "destination_fixture.h"
#include "fake_worker.h"

#include "fl_copier.h"

enum {
    MOST_WORKERS = 3,
    MOST_JOBS = 16,
    FIRST_BUFFER = 32 * KIB,
    /* Calls of the runtime: register; wait, copy, record; and a question about the thread's device
     * before and after. */
    PIN_CALLS = 3,
    COPY_CALLS = 5
};

/* ---- the loop */

typedef struct job {
    fl_request *request;   /* NULL: not submitted yet */
    fl_dest_buffer buffer; /* owner NULL: none yet */
    int64_t tag;
    int64_t arrival; /* > 0: its answer is there */
    int32_t worker;
    bool is_there; /* false: a free place */
} job;

typedef struct shape {
    int32_t workers, device;
    bool is_in_order;
    bool has_threads;
    cudaStream_t stream;
} shape;

typedef struct loop {
    shape shape;
    shm_fixture queue;
    fl_arena *arena;
    fl_pool *pool;
    void *copy_stream;
    fl_inflight *table;
    fl_copier *copier;
    _Atomic int64_t largest;
    buffer_heap heap;
    cudaStream_t stream; /* the consumer's current one */
    fake_worker fakes[MOST_WORKERS];
    pthread_t threads[MOST_WORKERS];
    job jobs[MOST_JOBS];
    int64_t pending, arrivals, damages;
    int64_t next;         /* turn, if they are delivered in order */
    int64_t buffer_bytes; /* the largest batch so far */
    look looks[MOST_LOOKS];
    int64_t launched;
    bool is_short; /* true: there is no device memory */
    fl_err err;    /* of the last failure */
} loop;

/* ---- what the copier's thread does */

static _Atomic int64_t copies; /* copies so far, by the threads of all couriers */

static inline int
copy_and_count(const fl_dest_buffer *buffer, fl_slot *slot, int64_t bytes, fl_err *err)
{
    CHECK(buffer->copied == bytes && bytes <= buffer->bytes);
    int status = ops->copy(buffer->target, slot, bytes, err);
    atomic_fetch_add(&copies, 1);
    return status;
}

/* ---- buffers */

/* Makes a buffer for a batch of `bytes`, set on a transfer. */
static inline int make_buffer(loop *l, int64_t bytes, fl_dest_buffer *out)
{
    void *transfer;
    bool is_filled;
    if (l->is_short) return fl_fail(&l->err, FL_ENOMEM, "no device memory");
    FL_TRY(ops->get(l->copy_stream, 1, &transfer, &l->err));
    device_buffer *found = get_buffer(&l->heap, bytes, l->stream);
    int status = ops->set_buffer(transfer, found->memory, l->stream, &is_filled, &l->err);
    if (status != FL_OK) {
        ops->cancel(transfer);
        drop_buffer(found);
        return status;
    }
    *out = (fl_dest_buffer){
        .target = transfer, .owner = found, .stream = l->stream, .bytes = found->bytes};
    return FL_OK;
}

static inline void reclaim_buffers(loop *l, int64_t bytes)
{
    fl_dest_buffer spare;
    while (fl_copier_reclaim_buffer(l->copier, bytes, &spare)) {
        ops->cancel(spare.target);
        drop_buffer(spare.owner);
    }
}

/* Lends buffers. If a buffer cannot be made, the batch that needs it meets the error. */
static inline void lend_buffers(loop *l)
{
    fl_dest_buffer spare;
    reclaim_buffers(l, l->buffer_bytes);
    while (fl_copier_buffers_needed(l->copier) > 0 &&
           make_buffer(l, l->buffer_bytes, &spare) == FL_OK)
        fl_copier_add_buffer(l->copier, &spare);
}

static inline void start_workers(loop *l)
{
    for (int32_t w = 0; w < l->shape.workers; w++) {
        l->fakes[w] = (fake_worker){l->queue.shm, fl_arena_base(l->arena), w, w % 2 == 0, {0}};
        if (l->shape.has_threads) /* not one of the resources that are refused */
            CHECK(pthread_create(&l->threads[w], NULL, serve_all, &l->fakes[w]) == 0);
    }
}

static inline void abandon_buffer(void *context, const fl_dest_buffer *buffer, fl_slot *slot)
{
    (void)context;
    ops->abandon(buffer->target, slot, buffer->stream);
    drop_buffer(buffer->owner);
}

static inline int64_t count_reading(void *context)
{
    return ops->collect(((loop *)context)->copy_stream);
}

static inline void drop_key(void *key) { ((job *)key)->request = NULL; }

static inline int open_table(loop *l)
{
    l->largest = 1; /* known: requests get the least at first */
    fl_inflight_config config = {.shm = l->queue.shm,
                                 .workers = l->shape.workers,
                                 .depth = DEPTH,
                                 .pool = l->pool,
                                 .base = fl_arena_base(l->arena),
                                 .largest = &l->largest,
                                 .budget = 1024 * MIB,
                                 .has_destination = true,
                                 .context = l,
                                 .abandon = abandon_buffer,
                                 .count_reading = count_reading,
                                 .drop_key = drop_key};
    return fl_inflight_open(&config, &l->table, &l->err);
}

/* Opens what `s` says; the status of what cannot be had. */
static inline int try_open_loop(loop *l, shape s)
{
    memset(l, 0, sizeof *l);
    if (s.device == 0) fake_choose_default(true);
    l->shape = s;
    l->stream = s.stream;
    l->heap.device = s.device;
    l->buffer_bytes = FIRST_BUFFER;
    CHECK(s.workers <= MOST_WORKERS && (s.device == 0 || s.stream != NULL));
    l->queue = open_shm_fixture(s.workers, DEPTH);
    FL_TRY(fl_arena_open(64 * MIB, &l->arena, &l->err));
    FL_TRY(fl_pool_open(0, l->arena, &l->pool, &l->err));
    fl_pool_reserve(l->pool, 4);
    fl_pool_pin(l->pool, (fl_pinner){ops->pin, ops->unpin, s.device});
    FL_TRY(ops->open(s.device, &l->copy_stream, &l->err));
    FL_TRY(open_table(l));
    FL_TRY(fl_copier_open(l->table, copy_and_count, &l->copier, &l->err));
    start_workers(l);
    fl_copier_set_window(l->copier, s.is_in_order ? 0 : -1);
    lend_buffers(l);
    return FL_OK;
}

static inline void open_loop(loop *l, shape s) { CHECK_INT(try_open_loop(l, s), FL_OK); }

/* ---- requests and replies */

static inline job *post(loop *l, int64_t tag)
{
    job *j = l->jobs;
    while (j->is_there) CHECK(++j < l->jobs + MOST_JOBS);
    *j = (job){.tag = tag, .is_there = true};
    j->worker = (int32_t)(tag % 1000 % l->shape.workers);
    l->pending++;
    return j;
}

static inline int submit_job(loop *l, job *j)
{
    return fl_inflight_submit(l->table, j->worker, (const char *)&j->tag, sizeof j->tag, j,
                              turn_of(j->tag), &j->request, &l->err);
}

static inline int submit_missing(loop *l)
{
    for (job *j = l->jobs; j < l->jobs + MOST_JOBS; j++)
        if (j->is_there && j->request == NULL) FL_TRY(submit_job(l, j));
    return FL_OK;
}

static inline void finish_job(loop *l, job *j)
{
    if (j->request == NULL || j->buffer.owner != NULL) return;
    if (!fl_inflight_finish(l->table, j->request, &j->buffer)) CHECK(j->buffer.owner == NULL);
}

/* Takes a reply: FL_ETIMEOUT if there is none. */
static inline int try_receive(loop *l)
{
    fl_request *request;
    fl_err err;
    int status = fl_inflight_receive(l->table, &request, &err);
    if (status == FL_EDAMAGE) { /* a damaged reply does not count as a batch */
        l->damages++;
        return FL_OK;
    }
    if (status != FL_OK && status != FL_ETIMEOUT) l->err = err;
    FL_TRY(status);
    job *j = request->key;
    CHECK(j->request == request && j->arrival == 0);
    j->arrival = ++l->arrivals;
    return FL_OK;
}

static inline bool receive(loop *l)
{
    int status = try_receive(l);
    CHECK(status == FL_OK || status == FL_ETIMEOUT);
    return status == FL_OK;
}

/* Returns the job whose turn it is, if its answer is there. */
static inline job *find_next(loop *l)
{
    job *found = NULL;
    for (job *j = l->jobs; j < l->jobs + MOST_JOBS; j++) {
        if (!j->is_there || j->arrival == 0) continue;
        if (l->shape.is_in_order && j->tag % 1000 != l->next) continue;
        if (found == NULL || j->arrival < found->arrival) found = j;
    }
    return found;
}

/* ---- batches are taken */

static inline void look_at_batch(void *arg)
{
    const look *l = arg;
    check_words(l->view, l->tag);
}

static inline void launch_look(loop *l, const void *memory, int64_t tag)
{
    look *next = &l->looks[l->launched++ % MOST_LOOKS];
    *next = (look){.view = fake_host_view(memory), .tag = tag};
    fake_launch(l->stream, look_at_batch, next);
}

/* The slot is gone. */
static inline void forget_job(loop *l, job *j)
{
    j->request->slot = NULL;
    fl_inflight_drop(l->table, j->request);
    *j = (job){0};
    l->pending--;
}

/* Does what the copier has not come to. */
static inline int upload_job(loop *l, job *j, int64_t bytes)
{
    if (j->buffer.owner != NULL) return FL_OK;
    FL_TRY(fl_slot_pin(j->request->slot, bytes, &l->err));
    FL_TRY(make_buffer(l, bytes, &j->buffer));
    j->buffer.copied = bytes;
    CHECK_INT(ops->copy(j->buffer.target, j->request->slot, bytes, NULL), FL_OK);
    return FL_OK;
}

/* Hands the batch to a kernel and lets go of the batch; after a failure the batch is still
 * there. */
static inline int hand_out(loop *l, job *j)
{
    finish_job(l, j);
    int64_t bytes = j->request->reply.upload;
    if (kind_of(j->tag) != BATCH) {
        CHECK(j->buffer.owner == NULL);
        check_words(fl_slot_data(j->request->slot), j->tag);
        fl_slot_return(j->request->slot);
        forget_job(l, j);
        return FL_OK;
    }
    FL_TRY(upload_job(l, j, bytes));
    CHECK(j->buffer.bytes >= bytes && j->buffer.copied == bytes);
    FL_TRY(ops->finish(j->buffer.target, j->request->slot, bytes, l->stream, &l->err));
    device_buffer *taken = j->buffer.owner;
    if (taken->stream != l->stream) taken->is_kept = true;
    launch_look(l, taken->memory, j->tag);
    drop_buffer(taken);
    l->buffer_bytes = fl_max(l->buffer_bytes, bytes);
    forget_job(l, j);
    return FL_OK;
}

/* Waits until the answer of the next one is there. */
static inline int await_next(loop *l, job **out)
{
    for (;;) {
        FL_TRY(submit_missing(l));
        int status;
        while ((status = try_receive(l)) == FL_OK) continue;
        if (status != FL_ETIMEOUT) return status;
        *out = find_next(l);
        if (*out != NULL) return FL_OK;
        FL_TRY(submit_missing(l));
        CHECK(fl_shm_queue_wait(l->queue.shm, fl_now_ns() + LONG_NS));
    }
}

static inline void pass_on(loop *l)
{
    l->next++;
    fl_copier_set_window(l->copier, l->shape.is_in_order ? l->next : -1);
    lend_buffers(l);
}

/* Takes the next batch; *tag names it, -1: not even its request could be sent. */
static inline int take_batch(loop *l, int64_t *tag)
{
    job *j;
    *tag = -1;
    FL_TRY(await_next(l, &j));
    *tag = j->tag;
    FL_TRY(hand_out(l, j));
    pass_on(l);
    return FL_OK;
}

/* ---- the end */

/* The batch is not wanted any more; its worker has answered. */
static inline void drop_job(loop *l, job *j)
{
    finish_job(l, j);
    if (j->buffer.owner != NULL) {
        ops->abandon(j->buffer.target, j->request->slot, j->buffer.stream);
        drop_buffer(j->buffer.owner);
    } else {
        fl_slot_return(j->request->slot);
    }
    forget_job(l, j);
}

/* Until all workers have answered. */
static inline void receive_rest(loop *l)
{
    for (;;) {
        for (int32_t w = 0; w < l->shape.workers && !l->shape.has_threads; w++)
            while (serve_request(&l->fakes[w], INT64_MIN) == FL_OK) continue;
        while (receive(l)) continue;
        if (fl_inflight_is_idle(l->table)) return;
        if (l->shape.has_threads) CHECK(fl_shm_queue_wait(l->queue.shm, fl_now_ns() + LONG_NS));
    }
}

/* Drops all batches, whatever their state. */
static inline void leave_loop(loop *l)
{
    for (job *j = l->jobs; j < l->jobs + MOST_JOBS; j++) finish_job(l, j);
    receive_rest(l);
    for (job *j = l->jobs; j < l->jobs + MOST_JOBS; j++)
        if (j->arrival > 0) drop_job(l, j);
    for (int32_t w = 0; w < l->shape.workers; w++) fl_inflight_cancel(l->table, w, true);
    for (job *j = l->jobs; j < l->jobs + MOST_JOBS; j++) {
        CHECK(j->request == NULL);
        l->pending -= j->is_there;
        *j = (job){0};
    }
    CHECK_INT(l->pending, 0);
}

/* The copier first: nothing is queued any more. */
static inline void close_engine(loop *l)
{
    if (l->copier != NULL) {
        leave_loop(l);
        reclaim_buffers(l, INT64_MAX);
        close_all(&l->queue);
        for (int32_t w = 0; w < l->shape.workers && l->shape.has_threads; w++)
            CHECK(pthread_join(l->threads[w], NULL) == 0);
    }
    fl_copier_close(l->copier);
    fl_inflight_close(l->table);
    ops->close(l->copy_stream);
    fl_pool_close(l->pool);
}

/* Kernels that read buffers must have been waited for. */
static inline void close_memory(loop *l)
{
    free_buffers(&l->heap);
    if (l->arena != NULL) CHECK_INT(held_bytes(l->arena), 0);
    fl_arena_close(l->arena);
    close_shm_fixture(&l->queue);
}

static inline void close_loop(loop *l)
{
    close_engine(l);
    fake_synchronize(l->stream);
    close_memory(l);
}

/* ---- what many tests do */

/* Makes the i-th shape; returns false if there are no more shapes. */
static inline bool next_shape(int i, shape *out)
{
    *out = (shape){.workers = 1 + i / 2, .is_in_order = i % 2 == 0, .has_threads = true};
    return out->workers <= MOST_WORKERS;
}

/* Takes batches of `from` to `to` - 1; later ones are submitted meanwhile. */
static inline void train(loop *l, int64_t from, int64_t to)
{
    int64_t submitted = from, tag;
    bool is_taken[MOST_JOBS * 4] = {false};
    l->next = from;
    fl_copier_set_window(l->copier, l->shape.is_in_order ? from : -1);
    for (int64_t n = from; n < to; n++) {
        for (; submitted < to && l->pending < 3 * l->shape.workers; submitted++) post(l, submitted);
        CHECK_INT(take_batch(l, &tag), FL_OK);
        CHECK(!is_taken[tag] && (tag == n || !l->shape.is_in_order));
        is_taken[tag] = true;
    }
}

/* ---- a loop without threads */

static const shape BY_HAND = {.workers = 3, .is_in_order = true};

static inline void send_tags(loop *l, const int64_t *tags, int count)
{
    for (int i = 0; i < count; i++) {
        post(l, tags[i]);
        CHECK_INT(submit_missing(l), FL_OK);
    }
}

static inline void serve(loop *l, int32_t worker, int times)
{
    for (int i = 0; i < times; i++) CHECK_INT(serve_request(&l->fakes[worker], INT64_MIN), FL_OK);
}

/* Waits until the thread has copied this many batches, or failed to. The thread's next choice is
 * settled once such a request is finished. */
static inline void await_copies(int64_t count)
{
    int64_t deadline_ns = fl_now_ns() + LONG_NS;
    while (atomic_load(&copies) < count && fl_now_ns() < deadline_ns) sleep_ms(1);
    CHECK_INT(atomic_load(&copies), count);
}

#endif
