/* Batches on their way to a device, under a runtime that runs work as late and as oddly as CUDA
 * may: every kernel sees its batch, and memory is never used too early. */
#include "transfer_fixture.h"

enum { BATCHES = 24, SEEDS = 6 };

/* Runs `work` for every kind of ring under every order. */
static void each_way(void (*work)(fl_ring_config))
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++) {
        fake_set_order(FAKE_EAGER, 0);
        work(shape);
        fake_set_order(FAKE_LAZY, 0);
        work(shape);
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            fake_set_order(FAKE_RANDOM, seed);
            work(shape);
        }
    }
    CHECK(fake_is_clean());
}

static void train(loop *l, int64_t from, int64_t to)
{
    int64_t submitted = from;
    for (int64_t tag = from; tag < to; tag++) {
        for (; submitted < to && submitted < tag + 3; submitted++) submit_upload(l, submitted, 3);
        take_tag(l, tag);
    }
}

static void train_once(fl_ring_config shape)
{
    for (int kind = 0; kind < 4; kind++) {
        loop l;
        open_loop(&l, shape, 0);
        l.has_window = kind % 2 == 1;
        l.has_slices = kind / 2 == 1;
        train(&l, 0, BATCHES);
        int64_t tag;
        CHECK_INT(deliver_next(&l, &tag), FL_EEND);
        fake_synchronize(NULL);
        close_loop(&l);
    }
}

static void test_every_kernel_sees_its_batch(void) { each_way(train_once); }

/* Kernels still wait to run while batches are dropped; the next epoch uses the same memory. */
static void leave_early(fl_ring_config shape)
{
    for (int64_t taken = 0; taken < 8; taken++) {
        loop l;
        open_loop(&l, shape, 0);
        l.has_window = taken >= 4;
        l.has_slices = taken % 2 == 1;
        train(&l, 0, taken);
        for (int64_t tag = taken; tag < taken + 3; tag++) submit_upload(&l, tag, 2);
        reset_loop(&l);
        train(&l, 20, 28);
        for (int64_t tag = 28; tag < 31; tag++) submit_upload(&l, tag, 2);
        fake_synchronize(NULL);
        close_loop(&l);
    }
}

static void test_leaving_early(void) { each_way(leave_early); }

/* Kernels are loaded before a thread of the ring launches them beside a collective. */
static void cast_beside_a_collective(fl_ring_config shape)
{
    loop l;
    cudaStream_t stream;
    fake_unload();
    open_loop(&l, shape, 0);
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    fake_spin(stream);
    train(&l, 0, 8);
    fake_synchronize(NULL);
    fake_end_spins();
    fake_synchronize(stream);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    close_loop(&l);
}

static void test_no_kernel_is_loaded_beside_a_collective(void)
{
    each_way(cast_beside_a_collective);
}

/* The copy does not wait for the take. */
static void test_a_batch_is_copied_as_soon_as_it_is_filled(void)
{
    fl_ring_config shape;
    fake_set_order(FAKE_EAGER, 0);
    for (int i = 0; next_shape(i, &shape) && shape.runs_ahead; i++) {
        loop l;
        open_loop(&l, shape, 0);
        submit_upload(&l, 7, 3);
        while (!fl_ring_is_ready(l.r.ring)) sleep_ms(1);
        int device;
        CHECK_INT(cudaGetDeviceCount(&device), cudaSuccess); /* any call lets work run */
        check_device_words(fake_host_view(slot_of(&l, 7)->buffer->memory), 7);
        int64_t calls = fake_calls();
        take_tag(&l, 7);
        /* Only a wait is left to do, and a question about the thread's device before and after
         * it. */
        CHECK_INT(fake_calls(), calls + 3);
        fake_synchronize(NULL);
        close_loop(&l);
    }
    CHECK(fake_is_clean());
}

static void await_ready(loop *l, int64_t place)
{
    while (atomic_load(&l->r.done) < 2 * (place + 1)) sleep_ms(1);
}

/* The batch is filled without a buffer, and then gets one: the copy does not wait for the delivery,
 * and only then does the ring's thread pin the slot, once. */
static void test_a_batch_that_waited_for_its_block_is_copied_at_once(void)
{
    for (int threads = 1; threads < 4; threads++) {
        loop l;
        int device;
        fake_set_order(FAKE_EAGER, 0);
        open_loop(&l,
                  (fl_ring_config){
                      .depth = 3, .is_in_order = true, .runs_ahead = true, .threads = threads},
                  0);
        l.has_window = true;
        int64_t pins = fake_count_pins().registered;
        for (int round = 0; round < 2; round++) {
            fake_forget_copies();
            int64_t casts = fake_launches() + count_casts(1) + count_casts(2);
            for (int64_t tag = 0; tag < 3; tag++) submit_upload(&l, tag, 2);
            await_ready(&l, 3 * round + 2);
            while (fake_copies() < 1) sleep_ms(1);
            CHECK_INT(fake_copies(), 1);
            if (round == 0) CHECK_INT(fake_count_pins().registered, pins + 1);
            take_tag(&l, 0);
            while (fake_copies() < 3 || fake_launches() < casts) sleep_ms(1);
            CHECK_INT(cudaGetDeviceCount(&device), cudaSuccess); /* any call lets work run */
            for (int64_t tag = 1; tag < 3; tag++) {
                CHECK(slot_of(&l, tag)->is_filled);
                check_device_words(fake_host_view(slot_of(&l, tag)->buffer->memory), tag);
                take_tag(&l, tag);
            }
            CHECK_INT(fake_copies(), 3);
            CHECK_INT(fake_count_pins().registered, pins + 3);
        }
        fake_synchronize(NULL);
        close_loop(&l);
    }
    CHECK(fake_is_clean());
}

static void await_copies_of(int64_t count)
{
    while (fake_copies() < count) sleep_ms(1);
    sleep_ms(2);
    CHECK_INT(fake_copies(), count);
}

/* Lets one part through the gate, of a batch whose parts all wait there. */
static void fill_a_part(loop *l, int64_t done)
{
    sem_post(&l->r.gate);
    while (atomic_load(&l->r.done) < done) sleep_ms(1);
}

/* The first bytes do not wait for the last, once the slot is pinned: three slices, the last of two
 * parts. The thread fills the last part first. */
static void test_a_slice_is_copied_as_soon_as_it_is_filled(void)
{
    loop l;
    int device;
    fl_ring_config shape = {.depth = 3, .is_in_order = true, .runs_ahead = true, .threads = 1};
    fake_set_order(FAKE_EAGER, 0);
    open_loop(&l, shape, 0);
    l.has_slices = true;
    l.r.stuck_tag = 7;
    for (int64_t round = 0; round < 2; round++) {
        fake_forget_copies();
        submit_upload(&l, 7, 4);
        for (int64_t part = 0; part < 4; part++) {
            fill_a_part(&l, 4 * round + part + 1);
            await_copies_of(round == 1 ? part : part == 3);
        }
        CHECK_INT(cudaGetDeviceCount(&device), cudaSuccess);
        check_device_words(fake_host_view(slot_of(&l, 7)->buffer->memory), 7);
        take_tag(&l, 7);
    }
    fake_synchronize(NULL);
    close_loop(&l);
    CHECK(fake_is_clean());
}

/* The host goes on although nothing has been copied, and no slot is used twice. */
static void test_nobody_waits_for_a_copy(void)
{
    loop l;
    fl_pool_stats stats;
    fake_set_order(FAKE_LAZY, 0);
    open_loop(&l, (fl_ring_config){.depth = 3, .is_in_order = true}, 0);
    train(&l, 0, BATCHES);
    fl_pool_count(l.r.pool, &stats);
    CHECK(stats.made == BATCHES && stats.empty == 0);
    fake_synchronize(NULL);
    submit_upload(&l, BATCHES, 1);
    fl_pool_count(l.r.pool, &stats);
    /* One slot is in use, and all are kept, because an unpinned slot would have to be pinned
     * again. */
    CHECK(stats.made == BATCHES && stats.empty == BATCHES - 1);
    close_loop(&l);
    CHECK(fake_is_clean());
}

static void take_elsewhere(fl_ring_config shape)
{
    loop l;
    cudaStream_t streams[3] = {NULL};
    for (int i = 1; i < 3; i++)
        CHECK_INT(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
    open_loop(&l, shape, 0);
    for (int64_t tag = 0; tag < BATCHES; tag++) {
        l.stream = streams[tag % 3];
        submit_upload(&l, tag, 2);
        l.stream = streams[tag / 3 % 3];
        take_tag(&l, tag);
    }
    for (int i = 0; i < 3; i++) fake_synchronize(streams[i]);
    close_loop(&l);
    for (int i = 1; i < 3; i++) CHECK_INT(cudaStreamDestroy(streams[i]), cudaSuccess);
}

static void test_the_current_stream_may_change(void) { each_way(take_elsewhere); }

/* There was no buffer when the batch was submitted, but there was one when it was delivered, or
 * later. */
static void run_short(fl_ring_config shape)
{
    loop l;
    int64_t tag;
    open_loop(&l, shape, 0);
    l.has_window = shape.threads % 2 == 1;
    l.is_short = true;
    for (int64_t n = 0; n < 3; n++) submit_upload(&l, n, 2);
    CHECK_INT(deliver_next(&l, &tag), FL_ENOMEM);
    CHECK_INT(deliver_next(&l, &tag), FL_ENOMEM);
    CHECK_INT(tag, 0);
    l.is_short = false;
    for (int64_t n = 0; n < 3; n++) take_tag(&l, n);
    train(&l, 3, 12);
    l.is_short = true;
    submit_upload(&l, 12, 2);
    CHECK_INT(deliver_next(&l, &tag), FL_ENOMEM);
    reset_loop(&l); /* with a batch that was to come again */
    l.is_short = false;
    train(&l, 3, 12);
    fake_synchronize(NULL);
    close_loop(&l);
}

static void test_a_batch_waits_for_memory(void) { each_way(run_short); }

enum { STAMP = 0x5a, STAMPED = 320 }; /* no batch has more bytes */

static void stamp(void *view) { memset(view, STAMP, STAMPED); }

static void check_stamp(void *view)
{
    for (int i = 0; i < STAMPED; i++) CHECK_INT(((char *)view)[i], STAMP);
}

static void fail_a_part(fl_ring_config shape)
{
    loop l;
    int64_t taken;
    open_loop(&l, shape, 0);
    l.has_slices = true;
    l.r.failing_part = 1;
    for (int64_t tag = 0; tag < BATCHES; tag++) {
        fake_synchronize(NULL); /* so that the slot is one that is pinned */
        l.r.failing_tag = tag % 7 == 3 ? tag : NONE;
        submit_upload(&l, tag, 3);
        char *view = fake_host_view(slot_of(&l, tag)->buffer->memory);
        CHECK_INT(deliver_next(&l, &taken), tag % 7 == 3 ? FL_ESOURCE : FL_OK);
        CHECK_INT(taken, tag);
        if (tag % 7 != 3) continue;
        fake_launch(l.stream, stamp, view);
        for (int i = 0; i < 16; i++) fake_launch(l.stream, check_stamp, view);
    }
    fake_synchronize(NULL);
    close_loop(&l);
}

/* Slices of the batch may have been queued; then the buffer is used for a different batch. */
static void test_a_batch_that_cannot_be_filled(void) { each_way(fail_a_part); }

/* Slices of the batch are queued and not copied yet, and a second thread trims the pool. */
static void test_a_slot_is_kept_until_its_slices_are_copied(void)
{
    loop l;
    fl_batch batch;
    fl_ring_config shape = {.depth = 3, .is_in_order = true, .runs_ahead = true, .threads = 1};
    fake_set_order(FAKE_EAGER, 0);
    open_loop(&l, shape, 0);
    l.has_slices = true;
    submit_upload(&l, 7, 4); /* pins the slot */
    take_tag(&l, 7);
    fake_synchronize(NULL);
    fake_set_order(FAKE_LAZY, 0);
    fake_forget_copies();
    l.r.failing_tag = 7;
    l.r.failing_part = 0; /* the last to be filled */
    submit_upload(&l, 7, 4);
    while (fake_copies() < 2) sleep_ms(1);
    CHECK_INT(fl_ring_receive(l.r.ring, LONG_MS, &batch, &l.err), FL_ESOURCE);
    fl_pool_trim(l.r.pool);
    cancel_slot(slot_of(&l, 7));
    fl_slot_return(batch.slot);
    close_loop(&l);
    CHECK(fake_is_clean());
}

static void *train_on_device_1(void *arg)
{
    loop l;
    int device;
    cudaStream_t stream;
    stream = open_stream_of_device_1();
    open_loop(&l, *(fl_ring_config *)arg, 1);
    l.stream = stream;
    train(&l, 0, BATCHES);
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0);
    fake_synchronize(stream);
    close_loop(&l);
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    return NULL;
}

/* The second device's own stream is current there, and a second loop runs beside it. */
static void use_two_devices(fl_ring_config shape)
{
    pthread_t thread;
    int device;
    loop l;
    CHECK_INT(cudaSetDevice(0), cudaSuccess);
    open_loop(&l, shape, 0);
    CHECK_INT(fl_thread_start(&thread, train_on_device_1, &shape, NULL), FL_OK);
    train(&l, 0, BATCHES);
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0);
    fake_synchronize(NULL);
    close_loop(&l);
    pthread_join(thread, NULL);
}

static void test_two_devices(void) { each_way(use_two_devices); }

static int train_on_device_1_alone(void *arg)
{
    fl_ring_config shape;
    cudaStream_t stream = open_stream_from_another_thread();
    (void)arg;
    for (int i = 0; next_shape(i, &shape); i++) {
        loop l;
        fake_set_order(FAKE_RANDOM, (uint64_t)i);
        open_loop(&l, shape, 1);
        l.stream = stream;
        train(&l, 0, BATCHES);
        for (int64_t tag = BATCHES; tag < BATCHES + 3; tag++) submit_upload(&l, tag, 2);
        reset_loop(&l);
        train(&l, 0, BATCHES);
        fake_synchronize(stream);
        close_loop(&l);
    }
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK(fake_has_context(1) && !fake_has_context(0));
    return 0;
}

/* An event of a green context cannot be recorded on a stream of the primary context. The error
 * comes before any event is made, and outside the green context the loop goes on. */
static void test_a_green_context_is_named(void)
{
    loop l;
    void *copies;
    fl_err err = {0};
    fake_set_order(FAKE_EAGER, 0);
    open_loop(&l, (fl_ring_config){.depth = 3, .is_in_order = true}, 0);
    fake_enter_green(true);
    CHECK_INT(ops->open(0, &copies, &err), FL_EDEVICE);
    CHECK(copies == NULL && strstr(err.text, "green context") != NULL);
    submit_upload(&l, 1, 1);
    CHECK_INT(l.err.code, FL_EDEVICE);
    CHECK(slot_of(&l, 1)->buffer == NULL && strstr(l.err.text, "green context") != NULL);
    fake_enter_green(false);
    take_tag(&l, 1);
    train(&l, 2, 8);
    fake_synchronize(NULL);
    close_loop(&l);
}

/* No thread has chosen device 0, on which every thread begins. */
static void test_no_context_on_a_device_that_nobody_chose(void)
{
    CHECK_INT(run_child(train_on_device_1_alone, NULL), 0);
}

/* NULL is the stream of the transfer's device, whatever the thread's current one is. */
static void test_the_null_stream_is_the_devices(void)
{
    loop l;
    int device;
    fake_set_order(FAKE_LAZY, 0);
    open_loop(&l, (fl_ring_config){.depth = 3, .is_in_order = true}, 1);
    CHECK_INT(cudaSetDevice(0), cudaSuccess);
    submit_upload(&l, 1, 2);
    fl_batch batch;
    CHECK_INT(fl_ring_receive(l.r.ring, LONG_MS, &batch, NULL), FL_OK);
    upload_slot *t = slot_of(&l, 1);
    CHECK_INT(ops->finish(t->transfer, batch.slot, batch.bytes, NULL, NULL), FL_OK);
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0);
    CHECK_INT(cudaSetDevice(1), cudaSuccess);
    launch_look(&l, t->buffer->memory, 1);
    fake_synchronize(NULL);
    CHECK_INT(cudaSetDevice(0), cudaSuccess);
    *t = (upload_slot){0};
    close_loop(&l);
    CHECK(fake_is_clean());
}

static int use_the_parents_loop(void *arg)
{
    loop *l = arg;
    fl_batch batch = {0};
    fl_err err = {0};
    void *transfer;
    bool is_filled;
    int64_t before = fake_calls();
    CHECK_INT(ops->get(l->copy_stream, 1, &transfer, &err), FL_EFORK);
    CHECK(err.text[0] != '\0');
    transfer = slot_of(l, 5)->transfer;
    CHECK_INT(ops->set_buffer(transfer, NULL, NULL, &is_filled, NULL), FL_EFORK);
    CHECK_INT(ops->finish(transfer, batch.slot, batch.bytes, NULL, NULL), FL_EFORK);
    close_engine(l);
    CHECK_INT(fake_calls(), before);
    return 0;
}

static void test_a_forked_child_is_inert(void)
{
    fl_ring_config shape;
    fake_set_order(FAKE_LAZY, 0);
    for (int i = 0; next_shape(i, &shape); i++) {
        loop l;
        open_loop(&l, shape, 0);
        train(&l, 0, 5);
        submit_upload(&l, 5, 2);
        CHECK_INT(run_child(use_the_parents_loop, &l), 0);
        take_tag(&l, 5);
        fake_synchronize(NULL);
        close_loop(&l);
    }
    CHECK(fake_is_clean());
}

int main(void)
{
    start_tests();
    RUN(test_no_context_on_a_device_that_nobody_chose); /* first: contexts stay */
    RUN(test_every_kernel_sees_its_batch);
    RUN(test_leaving_early);
    RUN(test_no_kernel_is_loaded_beside_a_collective);
    RUN(test_a_batch_is_copied_as_soon_as_it_is_filled);
    RUN(test_a_batch_that_waited_for_its_block_is_copied_at_once);
    RUN(test_a_slice_is_copied_as_soon_as_it_is_filled);
    RUN(test_nobody_waits_for_a_copy);
    RUN(test_the_current_stream_may_change);
    RUN(test_a_batch_waits_for_memory);
    RUN(test_a_batch_that_cannot_be_filled);
    RUN(test_a_slot_is_kept_until_its_slices_are_copied);
    RUN(test_two_devices);
    RUN(test_a_green_context_is_named);
    RUN(test_the_null_stream_is_the_devices);
    RUN(test_a_forked_child_is_inert);
    return 0;
}
