/* Uploads when calls of the runtime fail or are left out, and pools of pinned slots. */
#include "transfer_fixture.h"

#include "arena_fixture.h"

enum { BATCHES = 10, SEEDS = 12, TRIES = 3 };

/* ---- calls that fail */

/* Trains through failures: each must be met once, in a sentence, either as its own batch or with
 * the batch still to come. Returns the first status. */
static int train_through(loop *l)
{
    int first = FL_OK;
    int64_t submitted = 0, expected = 0, tag;
    while (expected < BATCHES) {
        for (; submitted < BATCHES && fl_ring_pending(l->r.ring) < 3 && !l->is_undelivered;
             submitted++)
            submit_upload(l, submitted, 2);
        int status = deliver_next(l, &tag);
        CHECK_INT(tag, expected);
        expected += !l->is_undelivered;
        if (status == FL_OK) continue;
        CHECK_INT(l->err.code, status);
        CHECK(l->err.text[0] != '\0');
        if (first != FL_OK) return status; /* for good */
        first = status;
    }
    return first;
}

/* Trains with call n failing; returns false if there were fewer calls. */
static bool
fail_call(fl_ring_config shape, cudaStream_t stream, int64_t n, cudaError_t error, bool is_sticky)
{
    loop l;
    int device, status;
    fake_fail_at(n, error, is_sticky);
    status = try_open_loop(&l, shape, 1);
    l.has_slices = true;
    l.stream = stream;
    bool is_open = status == FL_OK;
    if (is_open) status = train_through(&l);
    bool has_failed = fake_calls() >= n;
    if (status == FL_OK && has_failed && is_sticky) {
        int64_t tag;
        submit_upload(&l, BATCHES, 1); /* this was the last call */
        status = deliver_next(&l, &tag);
    }
    int expected = error == cudaErrorMemoryAllocation ? FL_ENOMEM : FL_EDEVICE;
    CHECK(status == FL_OK || (has_failed && status == expected));
    if (status != FL_OK) CHECK(strstr(l.err.text, cudaGetErrorName(error)) != NULL);
    if (has_failed && is_sticky) CHECK_INT(status, FL_EDEVICE);
    if (!is_sticky || fake_calls() < n) fake_synchronize(stream);
    close_loop(&l);
    if (!is_sticky) CHECK_INT(cudaGetLastError(), cudaSuccess);
    bool is_over = fake_calls() < n;
    fake_fail_at(0, cudaSuccess, false);
    CHECK(cudaGetDevice(&device) == cudaSuccess);
    CHECK(device == 0 || !is_over || !fake_has_context(0));
    if (fake_has_context(0)) CHECK_INT(cudaSetDevice(0), cudaSuccess);
    return !is_over;
}

static void fail_each_call(cudaError_t error, bool is_sticky)
{
    fl_ring_config shape;
    cudaStream_t stream;
    stream = open_stream_of_device_1();
    fake_choose_default(false);
    for (int i = 0; next_shape(i, &shape); i += 3) {
        int64_t n = 1 + i / 3 % SAMPLE;
        fake_set_order(i == 0 ? FAKE_LAZY : FAKE_RANDOM, (uint64_t)i);
        while (fail_call(shape, stream, n, error, is_sticky)) n += SAMPLE;
        CHECK(n > 100);
    }
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK(fake_is_clean());
}

static void test_each_call_may_fail(void) { fail_each_call(cudaErrorLaunchFailure, false); }

static void *close_loop_there(void *l)
{
    close_loop(l);
    return NULL;
}

/* The n-th call fails of a thread that has not been on the device. */
static void close_from_another_thread(cudaStream_t stream, int64_t n)
{
    loop l;
    pthread_t thread;
    open_loop(&l, (fl_ring_config){.depth = 3, .is_in_order = true}, 1);
    l.stream = stream;
    submit_upload(&l, 0, 1);
    take_tag(&l, 0);
    fake_synchronize(stream);
    fake_fail_at(n, cudaErrorLaunchFailure, false);
    CHECK(pthread_create(&thread, NULL, close_loop_there, &l) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    fake_fail_at(0, cudaSuccess, false);
}

static int fail_each_call_elsewhere(void *arg)
{
    fl_ring_config shape;
    cudaStream_t stream = open_stream_from_another_thread();
    (void)arg;
    for (int i = 0; next_shape(i, &shape); i += 3) {
        int64_t n = 1;
        fake_set_order(FAKE_RANDOM, (uint64_t)i);
        while (fail_call(shape, stream, n, cudaErrorLaunchFailure, false)) n += SAMPLE;
    }
    for (int64_t n = 1; n < 6; n++) close_from_another_thread(stream, n);
    CHECK(!fake_has_context(0));
    return 0;
}

/* Also what is undone after a call has failed. */
static void test_no_failure_makes_a_context_elsewhere(void)
{
    CHECK_INT(run_child(fail_each_call_elsewhere, NULL), 0);
}

static void test_each_call_may_want_memory(void)
{
    fail_each_call(cudaErrorMemoryAllocation, false);
}

static void test_an_error_that_stays_is_met_by_every_take(void)
{
    fail_each_call(cudaErrorLaunchFailure, true);
}

static enum cudaStreamCaptureMode take_mode(void)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    CHECK_INT(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    return mode;
}

/* Trains with exchange n of the mode for captures failing; returns false if there were fewer
 * exchanges. */
static bool fail_exchange(fl_ring_config shape, cudaStream_t stream, int64_t n)
{
    loop l;
    fake_fail_exchange(n);
    int status = try_open_loop(&l, shape, 1);
    l.has_slices = true;
    l.stream = stream;
    if (status == FL_OK) status = train_through(&l);
    CHECK(status == FL_OK || status == FL_EDEVICE);
    if (status != FL_OK) CHECK(strstr(l.err.text, "cudaThreadExchangeStreamCaptureMode") != NULL);
    fake_synchronize(stream);
    close_loop(&l);
    bool was_met = fake_exchanges() >= n;
    fake_fail_exchange(0);
    (void)take_mode(); /* left over if the failed exchange was the one that restores the mode */
    return was_met;
}

static void test_each_exchange_of_the_mode_may_fail(void)
{
    fl_ring_config shape;
    cudaStream_t stream = open_stream_of_device_1();
    (void)take_mode();
    fake_fail_exchange(1);
    CHECK_INT(ops->pin(1, NULL, 0, NULL), FL_EDEVICE); /* memory that would be a violation */
    CHECK_INT(take_mode(), cudaStreamCaptureModeGlobal);
    for (int i = 0; next_shape(i, &shape); i += 3) {
        int64_t n = 1;
        fake_set_order(FAKE_RANDOM, (uint64_t)i);
        while (fail_exchange(shape, stream, n)) n += SAMPLE;
        CHECK(n > 50);
    }
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK(fake_is_clean());
}

/* A failed batch comes again, and nothing is lost or twice. */
static void test_a_batch_that_could_not_be_copied_comes_again(void)
{
    loop l;
    int64_t tag;
    fake_set_order(FAKE_RANDOM, 5);
    open_loop(&l, (fl_ring_config){.depth = 3, .is_in_order = true}, 0);
    for (int64_t n = 0; n < 2; n++) submit_upload(&l, n, 1);
    for (int i = 0; i < TRIES; i++) {
        fake_fail_at(1, cudaErrorLaunchFailure, true);
        CHECK_INT(deliver_next(&l, &tag), FL_EDEVICE);
        CHECK(tag == 0 && l.is_undelivered);
        fake_fail_at(0, cudaSuccess, false);
    }
    take_tag(&l, 0);
    take_tag(&l, 1);
    fake_synchronize(NULL);
    close_loop(&l);
    CHECK(fake_is_clean());
}

static int train_without(void *arg)
{
    loop l;
    int status = try_open_loop(&l, *(fl_ring_config *)arg, 0);
    l.has_slices = true;
    if (status == FL_OK) status = train_through(&l);
    fake_synchronize(NULL);
    if (l.r.pool != NULL) close_loop(&l);
    CHECK(fake_is_clean());
    return status;
}

static void test_every_refused_resource(void)
{
    fl_ring_config shape;
    fake_set_order(FAKE_RANDOM, 3);
    for (int i = 0; next_shape(i, &shape); i++) CHECK(refuse_each(train_without, &shape) >= 10);
}

/* ---- calls that are left out */

/* Everything that orders work is called here, from every place in the code. */
static void train_every_way(fl_ring_config shape, cudaStream_t stream, bool has_window)
{
    loop l;
    open_loop(&l, shape, 0);
    l.has_window = has_window;
    l.has_slices = !has_window;
    l.stream = stream;
    for (int64_t tag = 0, submitted = 0; tag < 2 * BATCHES; tag++) {
        for (; submitted < tag + 3; submitted++) {
            l.is_short = submitted % 5 == 1; /* to be copied at the delivery */
            submit_upload(&l, submitted, 2);
        }
        l.is_short = false;
        take_tag(&l, tag);
    }
    reset_loop(&l);
    for (int64_t tag = 0; tag < 3; tag++) submit_upload(&l, tag, 2);
    for (int64_t tag = 0; tag < 2; tag++) take_tag(&l, tag);
    fake_synchronize(stream);
    close_loop(&l);
}

static int run_without_a_site(void *arg)
{
    fake_ignore_site(*(int *)arg);
    if (*(int *)arg >= 0) CHECK(freopen("/dev/null", "w", stderr) != NULL);
    CHECK_INT(cudaSetDevice(0), cudaSuccess);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        fl_ring_config shape;
        cudaStream_t stream;
        CHECK(next_shape((int)seed % 8, &shape));
        fake_set_order(seed == 0 ? FAKE_LAZY : FAKE_RANDOM, seed);
        CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        train_every_way(shape, stream, seed % 3 == 0);
        CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    }
    return 0;
}

static void test_no_call_can_be_left_out(void)
{
    int none = -1, count = 0, waits = 0, records = 0, launches = 0;
    fake_forget_sites();
    CHECK_INT(run_without_a_site(&none), 0);
    for (const char *name; (name = fake_site(count)) != NULL; count++) {
        /* A run may miss a call by chance: the machine decides the turns of threads. */
        int status = 0;
        for (int run = 0; status == 0 && run < 5; run++)
            status = run_child(run_without_a_site, &count);
        if (status == 0) fprintf(stderr, "\nnobody misses call %d, %s\n", count, name);
        CHECK(status != 0);
        waits += strcmp(name, "cudaStreamWaitEvent") == 0;
        records += strcmp(name, "cudaEventRecord") == 0;
        launches += strcmp(name, "fake_try_launch") == 0;
    }
    CHECK(waits >= 2 && records >= 2 && launches >= 1);
    CHECK(count >= waits + records + launches + 3); /* query, copy, sync */
}

/* ---- pinned slots */

/* Slots are not pinned when they are made, because their pages exist only once they have been
 * filled. */
static void test_slots_are_pinned_until_they_go(void)
{
    fl_pool *pool = open_pool(2);
    fl_slot *slots[4];
    fl_pool_pin(pool, (fl_pinner){ops->pin, ops->unpin, 0});
    for (int i = 0; i < 4; i++) {
        slots[i] = get_slot(pool, 100);
        CHECK(is_aligned(fl_slot_data(slots[i]), 4096) && fl_slot_bytes(slots[i]) % 4096 == 0);
        CHECK(fake_is_clean() == (i == 0));
        CHECK_INT(fl_slot_pin(slots[i], 100, NULL), FL_OK);
        CHECK(fl_slot_is_pinned(slots[i], fl_slot_bytes(slots[i]))); /* all of it */
    }
    for (int i = 0; i < 4; i++) fl_slot_return(slots[i]);
    check_counts(pool, 0, 4, 2, 4); /* more than the reserve */
    slots[0] = get_slot(pool, 100);
    CHECK_INT(fl_slot_used(slots[0]), fl_slot_bytes(slots[0])); /* its pages are there */
    fl_slot_return(slots[0]);
    fl_pool_trim(pool);
    CHECK(fake_is_clean());
    slots[0] = get_slot(pool, 10);
    CHECK_INT(fl_slot_pin(slots[0], 10, NULL), FL_OK);
    fl_pool_close(pool);
    CHECK(!fake_is_clean());
    fl_slot_return(slots[0]); /* after the pool */
    CHECK(fake_is_clean());
}

/* Growing batches are pinned again only as often as they double, and outgrown slots stay pinned. */
static void test_a_slot_that_is_too_small(void)
{
    int64_t page = sysconf(_SC_PAGESIZE);
    for (int64_t step = 1; step < 4; step++) {
        fl_pool *pool = open_pool(2);
        fl_pool_pin(pool, (fl_pinner){ops->pin, ops->unpin, 0});
        fake_pin_costs begin = fake_count_pins();
        for (int64_t pages = 1; pages <= 64; pages += step) {
            fl_slot *slot = get_slot(pool, pages * page);
            if (pages == 33) fl_slot_return(slot); /* the slot was never pinned */
            if (pages == 33) slot = get_slot(pool, 100 * page);
            CHECK_INT(fl_slot_pin(slot, pages * page, NULL), FL_OK);
            CHECK_INT(fake_count_pins().unregistered, begin.unregistered);
            fl_slot_return(slot);
        }
        CHECK(fake_count_pins().registered - begin.registered <= 1 + 6);
        CHECK(fake_count_pins().registered - begin.registered >= 6);
        fl_pool_close(pool);
        CHECK(fake_is_clean());
    }
}

static void test_a_slot_that_cannot_be_pinned(void)
{
    fl_pool *pool = open_pool(2);
    fl_slot *slot;
    fl_err err;
    fl_pool_pin(pool, (fl_pinner){ops->pin, ops->unpin, FAKE_DEVICES});
    int64_t before = count_address_space();
    for (int i = 0; i < 20; i++) {
        CHECK_INT(fl_pool_get(pool, 8 * MIB, &slot, &err), FL_OK);
        CHECK_INT(fl_slot_pin(slot, 8 * MIB, &err), FL_EDEVICE);
        CHECK(strstr(err.text, "cudaSetDevice") != NULL && !fl_slot_is_pinned(slot, 1));
        fl_slot_return(slot);
    }
    CHECK(count_address_space() < before + 64 * MIB);
    CHECK_INT(cudaGetLastError(), cudaSuccess);
    fl_pool_close(pool);
    CHECK(fake_is_clean());
}

/* ---- pinned slots of an arena */

static fl_pool *open_arena_pool(fl_arena *arena, int32_t device)
{
    fl_pool *pool;
    CHECK_INT(fl_pool_open(0, arena, &pool, NULL), FL_OK);
    fl_pool_reserve(pool, 2);
    fl_pool_pin(pool, (fl_pinner){ops->pin, ops->unpin, device});
    return pool;
}

/* Whole pages are pinned, and none after them; if more is wanted, at least twice as many. */
static void test_a_slot_of_an_arena_is_pinned_as_far_as_it_is_used(void)
{
    fl_arena *arena = open_arena(MIB);
    fl_pool *pool = open_arena_pool(arena, 0);
    int64_t page = sysconf(_SC_PAGESIZE);
    static const int64_t sizes[] = {1, 100, 4096, 4097, 5000, 3, 100000, 90000};
    int64_t pinned = 0;
    for (int i = 0; i < 8; i++) {
        fl_slot *slot = get_slot(pool, 200000); /* the same each time */
        int64_t calls = fake_calls();
        bool is_larger = sizes[i] > pinned;
        CHECK_INT(fl_slot_pin(slot, sizes[i], NULL), FL_OK);
        int64_t whole = (sizes[i] + page - 1) / page * page;
        if (is_larger) pinned = fl_max(whole, 2 * pinned);
        CHECK_INT(held_bytes(arena), pinned);
        /* Pinned; before and after that, which device the thread is on. */
        CHECK_INT(fake_calls(), calls + 3 * is_larger);
        fl_slot_return(slot);
    }
    check_counts(pool, 0, 1, 0, 1);
    CHECK(!fake_is_clean());
    fl_pool_trim(pool);
    CHECK(fake_is_clean());
    CHECK_INT(held_bytes(arena), 0);
    fl_pool_close(pool);
    fl_arena_close(arena);
}

/* The pinned part is never larger than the shared block; outgrown slots together are no larger than
 * the last. */
static void test_a_slot_of_an_arena_grows(void)
{
    fl_arena *arena = open_arena(64 * MIB);
    fl_pool *pool = open_arena_pool(arena, 0);
    fake_pin_costs begin = fake_count_pins();
    for (int64_t bytes = 1000; bytes < 4 * MIB; bytes += bytes / 50) {
        fl_slot *slot = get_slot(pool, bytes + bytes / 4);
        CHECK_INT(fl_slot_pin(slot, bytes, NULL), FL_OK);
        CHECK(held_bytes(arena) <= 4 * bytes + 8192);
        fl_slot_return(slot);
    }
    fake_pin_costs end = fake_count_pins();
    /* Sizes go from a page to 4 MiB: one registration each time the size doubles, and one each time
     * the shared block does. */
    CHECK(end.registered - begin.registered <= 1 + 2 * 10);
    CHECK_INT(end.unregistered, begin.unregistered);
    fl_pool_close(pool);
    CHECK(fake_is_clean());
    fl_arena_close(arena);
}

/* A running collective waits for this host, so unpinning would wait for the collective. A batch of
 * every size arrives whole, also from a shared block that was pinned in several ranges. */
static void grow_beside_a_collective(fl_arena *arena)
{
    fl_pool *pool;
    void *copies, *transfer;
    cudaStream_t stream;
    char *memory = fake_alloc(0, 2 * MIB);
    bool is_filled;
    CHECK_INT(fl_pool_open(0, arena, &pool, NULL), FL_OK);
    fl_pool_pin(pool, (fl_pinner){ops->pin, ops->unpin, 0});
    CHECK_INT(ops->open(0, &copies, NULL), FL_OK);
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    fake_spin(stream);
    for (int64_t bytes = 1000; bytes < 2 * MIB; bytes += bytes / 3) {
        fl_slot *slot = get_slot(pool, bytes);
        for (int64_t i = 0; i < bytes; i++) fl_slot_data(slot)[i] = (char)(i * 7 + bytes);
        CHECK_INT(ops->get(copies, 1, &transfer, NULL), FL_OK);
        CHECK_INT(ops->set_buffer(transfer, memory, NULL, &is_filled, NULL), FL_OK);
        CHECK_INT(ops->copy(transfer, slot, bytes, NULL), FL_OK);
        CHECK_INT(ops->finish(transfer, slot, bytes, NULL, NULL), FL_OK);
        fake_synchronize(NULL);
        for (int64_t i = 0; i < bytes; i++)
            CHECK_INT(fake_host_view(memory)[i], (char)(i * 7 + bytes));
    }
    fake_end_spins();
    ops->close(copies);
    fl_pool_close(pool);
    fake_free(memory);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK(fake_is_clean());
}

static void test_nothing_is_unpinned_in_an_epoch(void)
{
    fl_arena *arena = open_arena(64 * MIB);
    fake_set_order(FAKE_RANDOM, 1);
    grow_beside_a_collective(NULL);
    grow_beside_a_collective(arena);
    CHECK_INT(held_bytes(arena), 0);
    fl_arena_close(arena);
}

static fl_arena *watched_arena;

static void unpin_while_held(int32_t device, char *data)
{
    CHECK(held_bytes(watched_arena) > 0);
    ops->unpin(device, data);
}

/* Either the pool or a slot that outlives the pool is the last to let go. */
static void test_a_slot_is_unpinned_before_its_memory_goes(void)
{
    for (int is_behind = 0; is_behind < 2; is_behind++) {
        watched_arena = open_arena(MIB);
        fl_pool *pool = open_arena_pool(watched_arena, 0);
        fl_pool_pin(pool, (fl_pinner){ops->pin, unpin_while_held, 0});
        fl_slot *slot = get_slot(pool, 5000), *plain = get_slot(pool, 5000);
        CHECK_INT(fl_slot_pin(slot, 5000, NULL), FL_OK);
        fl_slot_return(plain); /* never pinned, so never unpinned */
        if (is_behind == 0) fl_slot_return(slot);
        fl_pool_close(pool);
        CHECK(fake_is_clean() == (is_behind == 0));
        if (is_behind == 1) fl_slot_return(slot);
        CHECK(fake_is_clean());
        CHECK_INT(held_bytes(watched_arena), 0);
        fl_arena_close(watched_arena);
    }
}

/* Bytes that were pinned before stay pinned, and more can be pinned later. */
static void test_a_slot_of_an_arena_that_cannot_be_pinned(void)
{
    fl_arena *arena = open_arena(MIB);
    fl_pool *pool = open_arena_pool(arena, 0);
    fl_slot *slot = get_slot(pool, 100000);
    fl_err err;
    for (int i = 0; i < TRIES; i++) {
        fake_refuse_pins(true);
        CHECK_INT(fl_slot_pin(slot, 50000 + i * 20000, &err), FL_ENOMEM);
        CHECK(fake_is_clean() == (i == 0) && strstr(err.text, "cudaHostRegister") != NULL);
        CHECK(fl_slot_is_pinned(slot, 1) == (i > 0));
        fake_refuse_pins(false);
        CHECK_INT(fl_slot_pin(slot, 40000 + i * 20000, NULL), FL_OK);
        CHECK(!fake_is_clean());
    }
    CHECK_INT(cudaGetLastError(), cudaSuccess);
    fl_slot_return(slot);
    fl_pool_close(pool);
    CHECK(fake_is_clean());
    fl_arena_close(arena);
}

int main(void)
{
    start_tests();
    RUN(test_no_failure_makes_a_context_elsewhere); /* first: contexts stay */
    RUN(test_each_call_may_fail);
    RUN(test_each_call_may_want_memory);
    RUN(test_an_error_that_stays_is_met_by_every_take);
    RUN(test_each_exchange_of_the_mode_may_fail);
    RUN(test_a_batch_that_could_not_be_copied_comes_again);
    RUN(test_every_refused_resource);
    RUN(test_no_call_can_be_left_out);
    RUN(test_slots_are_pinned_until_they_go);
    RUN(test_a_slot_that_is_too_small);
    RUN(test_a_slot_that_cannot_be_pinned);
    RUN(test_a_slot_of_an_arena_is_pinned_as_far_as_it_is_used);
    RUN(test_a_slot_of_an_arena_grows);
    RUN(test_nothing_is_unpinned_in_an_epoch);
    RUN(test_a_slot_is_unpinned_before_its_memory_goes);
    RUN(test_a_slot_of_an_arena_that_cannot_be_pinned);
    return 0;
}
