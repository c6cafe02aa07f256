/* Batches of workers on their way to a device when calls of the runtime fail or are left out, and
 * memory cannot be had or pinned. */
#include "transfer_copier_fixture.h"

enum { BATCHES = 9, SEEDS = 12, TRIES = 3 };

/* ---- calls that fail */

/* Trains through failures: each must be met once, in a sentence, and its batch must still come.
 * Returns the first status. */
static int train_through(loop *l)
{
    int first = FL_OK;
    int64_t submitted = 0, taken = 0, late = -1, tag;
    while (taken < BATCHES) {
        for (; submitted < BATCHES && l->pending < 3 * l->shape.workers; submitted++)
            post(l, submitted);
        int status = take_batch(l, &tag);
        CHECK(late < 0 || tag < 0 || tag == late);
        late = status == FL_OK ? -1 : tag;
        taken += status == FL_OK;
        if (status == FL_OK) continue;
        CHECK_INT(l->err.code, status);
        CHECK(l->err.text[0] != '\0');
        if (first != FL_OK) return status; /* for good */
        first = status;
    }
    CHECK_INT(l->pending, 0);
    return first;
}

/* Leaves with batches in every state. */
static int leave_through(loop *l)
{
    static filling fills[MOST_BUFFERS], checks[MOST_BUFFERS];
    int64_t tag;
    int first = FL_OK;
    for (int64_t n = 0; n < 3 * l->shape.workers; n++) post(l, n);
    for (int i = 0; i < 2 && first == FL_OK; i++) first = take_batch(l, &tag);
    l->is_short = true;
    int second = take_batch(l, &tag);
    leave_loop(l);
    (void)use_free_buffers(&l->heap, l->stream, fills, false);
    (void)use_free_buffers(&l->heap, l->stream, checks, true);
    l->is_short = false;
    bool is_planned = second == FL_OK || l->err.value == 0;
    return first != FL_OK || is_planned ? first : second;
}

typedef struct failure {
    shape shape;
    int (*work)(loop *);
    cudaError_t error;
    bool is_sticky;
} failure;

/* Trains with call n failing; returns false if there were fewer calls. */
static bool fail_call(const failure *f, int64_t n)
{
    loop l;
    int device;
    fake_fail_at(n, f->error, f->is_sticky);
    int status = try_open_loop(&l, f->shape);
    if (status == FL_OK) status = f->work(&l);
    bool has_failed = fake_calls() >= n;
    if (status == FL_OK && has_failed && f->is_sticky && f->work == train_through) {
        int64_t tag;
        post(&l, BATCHES); /* this was the last call */
        status = take_batch(&l, &tag);
    }
    int expected = f->error == cudaErrorMemoryAllocation ? FL_ENOMEM : FL_EDEVICE;
    CHECK(status == FL_OK || (has_failed && status == expected));
    if (status != FL_OK && f->work == train_through)
        CHECK(strstr(l.err.text, cudaGetErrorName(f->error)) != NULL);
    if (has_failed && f->is_sticky && f->work == train_through) CHECK_INT(status, FL_EDEVICE);
    close_loop(&l);
    if (!f->is_sticky) CHECK_INT(cudaGetLastError(), cudaSuccess);
    bool is_over = fake_calls() < n;
    fake_fail_at(0, cudaSuccess, false);
    CHECK(cudaGetDevice(&device) == cudaSuccess);
    CHECK(device == 0 || !is_over);
    CHECK_INT(cudaSetDevice(0), cudaSuccess);
    return !is_over;
}

static void fail_each_call(cudaError_t error, bool is_sticky)
{
    cudaStream_t stream;
    stream = open_stream_of_device_1();
    fake_choose_default(false);
    for (int i = 0; i < 4; i++) {
        failure f = {
            .work = i < 2 ? train_through : leave_through, .error = error, .is_sticky = is_sticky};
        CHECK(next_shape(i % 2 == 0 ? 4 : 3, &f.shape));
        f.shape.device = 1;
        f.shape.stream = stream;
        fake_set_order(i % 2 == 0 ? FAKE_LAZY : FAKE_RANDOM, (uint64_t)i);
        int64_t n = 1 + i % SAMPLE;
        while (fail_call(&f, n)) n += SAMPLE;
        CHECK(n > 50);
    }
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK(fake_is_clean());
}

static void test_each_call_may_fail(void) { fail_each_call(cudaErrorLaunchFailure, false); }

static void test_each_call_may_want_memory(void)
{
    fail_each_call(cudaErrorMemoryAllocation, false);
}

static void test_an_error_that_stays_is_met_by_every_take(void)
{
    fail_each_call(cudaErrorLaunchFailure, true);
}

/* ---- one step of a copy fails, on the copier's thread */

/* Makes one step fail after any queued work; `then` takes the batch or drops it. */
static void fail_step(int64_t n, void (*then)(loop *))
{
    static filling fills[MOST_BUFFERS], checks[MOST_BUFFERS];
    loop l;
    open_loop(&l, BY_HAND);
    send_tags(&l, (const int64_t[]){0, 1}, 2);
    int64_t before = copies;
    fake_fail_at(n, cudaErrorLaunchFailure, false);
    serve(&l, 0, 1);
    await_copies(before + 1);
    CHECK(fake_calls() >= n);
    fake_fail_at(0, cudaSuccess, false);
    then(&l);
    leave_loop(&l);
    reclaim_buffers(&l, INT64_MAX);
    CHECK(use_free_buffers(&l.heap, NULL, fills, false) >= FL_COPY_AHEAD);
    fake_synchronize(NULL);
    ops->halt(l.copy_stream); /* from here on no copy can be late */
    (void)use_free_buffers(&l.heap, NULL, checks, true);
    close_loop(&l);
}

static void take_first(loop *l)
{
    int64_t tag;
    CHECK_INT(take_batch(l, &tag), FL_OK);
    CHECK_INT(tag, 0);
}

/* Taking the batch also fails, and then the batch is dropped. */
static void fail_to_take(loop *l)
{
    int64_t tag;
    fake_fail_at(1, cudaErrorLaunchFailure, false);
    CHECK_INT(take_batch(l, &tag), FL_EDEVICE);
    CHECK_INT(tag, 0);
    fake_fail_at(0, cudaSuccess, false);
}

static void do_nothing(loop *l) { (void)l; }

static void test_each_step_of_a_copy_may_fail(void)
{
    fake_set_order(FAKE_LAZY, 0);
    for (int64_t n = 1; n <= PIN_CALLS + COPY_CALLS; n++) {
        fail_step(n, take_first);
        fail_step(n, fail_to_take);
        fail_step(n, do_nothing);
    }
    CHECK(fake_is_clean());
}

/* A failed batch comes again, and nothing is lost or twice. */
static void test_a_batch_that_could_not_be_copied_comes_again(void)
{
    loop l;
    int64_t tag;
    fake_set_order(FAKE_RANDOM, 5);
    open_loop(&l, BY_HAND);
    send_tags(&l, (const int64_t[]){0, 1}, 2);
    reclaim_buffers(&l, INT64_MAX); /* an error that stays would end what is queued */
    for (int32_t w = 0; w < 2; w++) serve(&l, w, 1);
    for (int i = 0; i < TRIES; i++) {
        fake_fail_at(1, cudaErrorLaunchFailure, true);
        CHECK_INT(take_batch(&l, &tag), FL_EDEVICE);
        CHECK_INT(tag, 0);
        fake_fail_at(0, cudaSuccess, false);
    }
    for (int64_t n = 0; n < 2; n++) {
        CHECK_INT(take_batch(&l, &tag), FL_OK);
        CHECK_INT(tag, n);
    }
    close_loop(&l);
    CHECK(fake_is_clean());
}

/* ---- what is refused */

static void test_memory_that_cannot_be_pinned_for_a_while(void)
{
    for (int i = 0; i < 6; i++) {
        loop l;
        shape s;
        int64_t tag;
        CHECK(next_shape(i, &s));
        fake_set_order(FAKE_RANDOM, (uint64_t)i);
        open_loop(&l, s);
        fake_refuse_pins(true);
        for (int64_t n = 0; n < 3; n++) post(&l, n);
        for (int n = 0; n < TRIES; n++) {
            CHECK_INT(take_batch(&l, &tag), FL_ENOMEM);
            CHECK(tag >= 0 && strstr(l.err.text, "cudaHostRegister") != NULL);
            CHECK_INT(l.pending, 3);
        }
        fake_refuse_pins(false);
        CHECK_INT(cudaGetLastError(), cudaSuccess);
        for (int n = 0; n < 3; n++) CHECK_INT(take_batch(&l, &tag), FL_OK);
        train(&l, 3, BATCHES);
        close_loop(&l);
    }
    CHECK(fake_is_clean());
}

static int train_without(void *arg)
{
    loop l;
    int status = try_open_loop(&l, *(shape *)arg);
    if (status == FL_OK) status = train_through(&l);
    close_loop(&l);
    CHECK(fake_is_clean());
    return status;
}

static void test_every_refused_resource(void)
{
    shape s;
    fake_set_order(FAKE_RANDOM, 3);
    for (int i = 0; next_shape(i, &s); i++) CHECK(refuse_each(train_without, &s) >= 10);
}

static void test_a_full_queue_is_no_failure(void)
{
    loop l;
    fl_pool_stats before, after;
    fake_set_order(FAKE_EAGER, 0);
    open_loop(&l, (shape){.workers = 1, .is_in_order = true});
    for (int64_t n = 0; n < DEPTH; n++) send_tags(&l, &n, 1);
    job *j = post(&l, DEPTH);
    fl_pool_count(l.pool, &before);
    CHECK_INT(submit_missing(&l), FL_OK);
    for (int i = 0; i < TRIES; i++) CHECK(!receive(&l) && j->request->state == FL_DEFERRED);
    fl_pool_count(l.pool, &after);
    CHECK_INT(after.made, before.made + 1);
    for (int64_t n = 0, tag; n <= DEPTH; n++) {
        CHECK_INT(serve_request(&l.fakes[0], INT64_MIN), FL_OK);
        CHECK_INT(take_batch(&l, &tag), FL_OK);
        CHECK_INT(tag, n);
        CHECK_INT(submit_missing(&l), FL_OK);
    }
    close_loop(&l);
    CHECK(fake_is_clean());
}

/* ---- calls that are left out */

/* Everything that orders work is called here, from every place in the code. */
static void train_every_way(shape s)
{
    static filling fills[MOST_BUFFERS], checks[MOST_BUFFERS];
    loop l;
    open_loop(&l, s);
    train(&l, 0, BATCHES);
    fake_synchronize(s.stream);     /* runs no copy that nobody waits for */
    reclaim_buffers(&l, INT64_MAX); /* the consumer does this himself */
    train(&l, BATCHES, 2 * BATCHES);
    for (int64_t n = 0; n < 3 * s.workers; n++) post(&l, 2 * BATCHES + n);
    CHECK_INT(submit_missing(&l), FL_OK);
    sleep_ms(2);
    leave_loop(&l);
    reclaim_buffers(&l, INT64_MAX);
    (void)use_free_buffers(&l.heap, s.stream, fills, false);
    (void)use_free_buffers(&l.heap, s.stream, checks, true);
    lend_buffers(&l);
    train(&l, 3, 6);
    close_loop(&l);
}

static int run_without_a_site(void *arg)
{
    fake_ignore_site(*(int *)arg);
    if (*(int *)arg >= 0) CHECK(freopen("/dev/null", "w", stderr) != NULL);
    CHECK_INT(cudaSetDevice(0), cudaSuccess);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        shape s;
        CHECK(next_shape((int)seed % 6, &s));
        fake_set_order(seed < 2 ? FAKE_LAZY : FAKE_RANDOM, seed);
        CHECK_INT(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking), cudaSuccess);
        train_every_way(s);
        CHECK_INT(cudaStreamDestroy(s.stream), cudaSuccess);
    }
    return 0;
}

static void test_no_call_can_be_left_out(void)
{
    int none = -1, count = 0, waits = 0, records = 0;
    fake_forget_sites();
    CHECK_INT(run_without_a_site(&none), 0);
    for (const char *name; (name = fake_site(count)) != NULL; count++) {
        int status = run_child(run_without_a_site, &count);
        if (status == 0) fprintf(stderr, "\nnobody misses call %d, %s\n", count, name);
        CHECK(status != 0);
        waits += strcmp(name, "cudaStreamWaitEvent") == 0;
        records += strcmp(name, "cudaEventRecord") == 0;
    }
    CHECK(waits >= 2 && records >= 2 && count >= waits + records + 3); /* query, copy, sync */
}

int main(void)
{
    start_tests();
    RUN(test_no_call_can_be_left_out);
    RUN(test_each_call_may_fail);
    RUN(test_each_call_may_want_memory);
    RUN(test_an_error_that_stays_is_met_by_every_take);
    RUN(test_each_step_of_a_copy_may_fail);
    RUN(test_a_batch_that_could_not_be_copied_comes_again);
    RUN(test_memory_that_cannot_be_pinned_for_a_while);
    RUN(test_every_refused_resource);
    RUN(test_a_full_queue_is_no_failure);
    return 0;
}
