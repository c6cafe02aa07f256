/* Tests of fl_cpu_transfer_ops: a batch is in its buffer when the call that starts the copy
 * returns, slots go back once, and halt waits for threads that copy. */
#include "check.h"

#include "pool_fixture.h"

#include "fl_cpu_transfer.h"
#include "fl_cpus.h"

#include <dirent.h>
#include <semaphore.h>
#include <sys/mman.h>

enum { BYTES = 64 * 1024 + 24, PARTS = 3, THREADS = 3, ROUNDS = 200 };

static const fl_transfer_ops *const ops = &fl_cpu_transfer_ops;

typedef struct fixture {
    fl_pool *pool;
    void *copies;
} fixture;

static fixture open_fixture(void)
{
    fixture f = {.pool = open_pool(THREADS)};
    CHECK_INT(ops->open(-1, &f.copies, NULL), FL_OK);
    return f;
}

static void close_fixture(fixture *f)
{
    ops->close(f->copies);
    fl_pool_close(f->pool);
}

static fl_slot *get_filled(fixture *f, int value)
{
    fl_slot *slot = get_slot(f->pool, BYTES);
    memset(fl_slot_data(slot), value, BYTES);
    return slot;
}

static void *get_transfer(fixture *f, int32_t parts)
{
    void *transfer;
    CHECK_INT(ops->get(f->copies, parts, &transfer, NULL), FL_OK);
    CHECK(!ops->is_started(transfer));
    return transfer;
}

static void set_buffer(void *transfer, char *buffer, bool is_filled)
{
    bool was_filled;
    CHECK_INT(ops->set_buffer(transfer, buffer, NULL, &was_filled, NULL), FL_OK);
    CHECK_INT(was_filled, is_filled);
}

static bool holds(const char *buffer, int value)
{
    for (int64_t i = 0; i < BYTES; i++)
        if (buffer[i] != (char)value) return false;
    return true;
}

static int64_t count_empty(const fixture *f)
{
    fl_pool_stats stats;
    fl_pool_count(f->pool, &stats);
    return stats.empty;
}

static char buffer[BYTES];

/* The last step starts the copy: the thread that fills the last part or, if the buffer comes last,
 * the caller that set the buffer. */
static void test_the_last_part_or_the_buffer_starts_the_copy(void)
{
    fixture f = open_fixture();
    for (int at = 0; at <= PARTS; at++) {
        void *transfer = get_transfer(&f, PARTS);
        fl_slot *slot = get_filled(&f, 1 + at);
        memset(buffer, 0, BYTES);
        for (int part = 0; part < PARTS; part++) {
            if (part == at) set_buffer(transfer, buffer, false);
            CHECK(!ops->is_started(transfer) && holds(buffer, 0));
            ops->part_filled(transfer, 0, slot, BYTES);
        }
        if (at == PARTS) {
            set_buffer(transfer, buffer, true);
            CHECK_INT(ops->start(transfer, slot, BYTES, NULL), FL_OK);
        }
        CHECK(ops->is_started(transfer) && holds(buffer, 1 + at));
        CHECK_INT(ops->finish(transfer, slot, BYTES, NULL, NULL), FL_OK);
        CHECK_INT(count_empty(&f), 1);
    }
    close_fixture(&f);
}

static void test_a_whole_batch_is_copied_at_once(void)
{
    fixture f = open_fixture();
    void *transfer = get_transfer(&f, 1);
    fl_slot *slot = get_filled(&f, 7);
    set_buffer(transfer, buffer, false);
    CHECK_INT(ops->copy(transfer, slot, BYTES, NULL), FL_OK);
    memset(fl_slot_data(slot), 8, BYTES);
    CHECK(holds(buffer, 7));
    CHECK_INT(ops->finish(transfer, slot, BYTES, NULL, NULL), FL_OK);
    close_fixture(&f);
}

static void test_finish_starts_what_was_not_started(void)
{
    fixture f = open_fixture();
    void *transfer = get_transfer(&f, 1);
    fl_slot *slot = get_filled(&f, 9);
    ops->part_filled(transfer, 0, slot, BYTES);
    set_buffer(transfer, buffer, true);
    CHECK_INT(ops->finish(transfer, slot, BYTES, NULL, NULL), FL_OK);
    CHECK(holds(buffer, 9));
    close_fixture(&f);
}

static void test_what_nobody_wants_goes_back(void)
{
    fixture f = open_fixture();
    void *copied = get_transfer(&f, 1), *filled = get_transfer(&f, 1), *bare = get_transfer(&f, 1);
    fl_slot *slots[] = {get_filled(&f, 1), get_filled(&f, 2)};
    set_buffer(copied, buffer, false);
    CHECK_INT(ops->copy(copied, slots[0], BYTES, NULL), FL_OK);
    ops->part_filled(filled, 0, slots[1], BYTES);
    ops->abandon(copied, slots[0], NULL);
    ops->abandon(filled, slots[1], NULL);
    ops->cancel(bare);
    CHECK_INT(count_empty(&f), 2);
    close_fixture(&f);
}

/* A filled batch whose copy came too late is still the caller's. */
static void test_nothing_is_copied_once_it_is_halted(void)
{
    fixture f = open_fixture();
    fl_err err;
    void *transfer = get_transfer(&f, 1);
    fl_slot *slot = get_filled(&f, 3);
    memset(buffer, 0, BYTES);
    set_buffer(transfer, buffer, false);
    ops->halt(f.copies);
    ops->part_filled(transfer, 0, slot, BYTES);
    CHECK(!ops->is_started(transfer));
    CHECK_INT(ops->start(transfer, slot, BYTES, &err), FL_ECLOSED);
    CHECK_INT(ops->finish(transfer, slot, BYTES, NULL, &err), FL_ECLOSED);
    CHECK(err.text[0] != '\0' && holds(buffer, 0));
    void *next = get_transfer(&f, 1); /* and copies are started again */
    CHECK_INT(ops->finish(transfer, slot, BYTES, NULL, &err), FL_OK);
    CHECK(holds(buffer, 3));
    ops->cancel(next);
    close_fixture(&f);
}

/* ---- threads */

typedef struct thread_job {
    fixture *f;
    fl_slot *slot;
    void *transfer;
    char *buffer;
    sem_t *begin;
} thread_job;

static void *copy_one(void *arg)
{
    thread_job *job = arg;
    CHECK(sem_wait(job->begin) == 0);
    CHECK_INT(ops->copy(job->transfer, job->slot, BYTES, NULL), FL_OK);
    return NULL;
}

/* Once halt has returned nobody reads a slot or writes a buffer: whoever owns them uses them at
 * once, which a sanitizer of threads would see. */
static void test_halt_waits_for_threads_that_copy(void)
{
    static char buffers[THREADS][BYTES];
    fixture f = open_fixture();
    sem_t begin;
    CHECK(sem_init(&begin, 0, 0) == 0);
    int64_t copied = 0;
    for (int round = 0; round < ROUNDS; round++) {
        thread_job jobs[THREADS];
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) {
            jobs[i] = (thread_job){&f, get_filled(&f, 1 + round % 100), get_transfer(&f, 1),
                                   buffers[i], &begin};
            set_buffer(jobs[i].transfer, buffers[i], false);
            CHECK_INT(fl_thread_start(&threads[i], copy_one, &jobs[i], NULL), FL_OK);
        }
        for (int i = 0; i < THREADS; i++) CHECK(sem_post(&begin) == 0);
        for (int64_t spins = round % 10 * 2000; spins > 0; spins--) fl_relax(); /* some get on */
        ops->halt(f.copies);
        for (int i = 0; i < THREADS; i++) {
            memset(fl_slot_data(jobs[i].slot), 0, BYTES);
            memset(buffers[i], 0, BYTES);
        }
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        for (int i = 0; i < THREADS; i++) {
            copied += ops->is_started(jobs[i].transfer);
            CHECK(holds(buffers[i], 0));
            ops->abandon(jobs[i].transfer, jobs[i].slot, NULL);
        }
    }
    printf(" (%lld of %d)", (long long)copied, ROUNDS * THREADS);
    CHECK(sem_destroy(&begin) == 0);
    close_fixture(&f);
}

/* ---- large batches */

static int64_t count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int64_t count = 0;
    CHECK(tasks != NULL);
    for (const struct dirent *task; (task = readdir(tasks)) != NULL;)
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* Small batches start no threads. */
static void test_threads_share_the_copy_of_a_large_batch(void)
{
    static const int64_t sizes[] = {100, 1 << 20, (12 << 20) + 5};
    fixture f = open_fixture();
    int64_t before = count_threads();
    for (int i = 0; i < 3; i++) {
        fl_slot *slot = get_slot(f.pool, sizes[i]);
        char *into = malloc((size_t)sizes[i] + 1);
        void *transfer = get_transfer(&f, 1);
        CHECK(into != NULL);
        for (int64_t k = 0; k < sizes[i]; k++) fl_slot_data(slot)[k] = (char)(k * 31 >> 4);
        into[sizes[i]] = 77;
        set_buffer(transfer, into, false);
        CHECK_INT(ops->copy(transfer, slot, sizes[i], NULL), FL_OK);
        CHECK(ops->is_started(transfer));
        CHECK(memcmp(into, fl_slot_data(slot), (size_t)sizes[i]) == 0 && into[sizes[i]] == 77);
        CHECK((count_threads() > before) == (i == 2 && fl_cpu_count() > 1));
        CHECK_INT(ops->finish(transfer, slot, sizes[i], NULL, NULL), FL_OK);
        free(into);
    }
    close_fixture(&f);
    CHECK_INT(count_threads(), before);
}

/* Pages of fresh memory that threads other than this one were the first to write to. */
static int64_t count_faults_of_others(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int64_t count = 0;
    CHECK(tasks != NULL);
    for (const struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[64];
        long faults;
        if (task->d_name[0] == '.' || atoi(task->d_name) == getpid()) continue;
        snprintf(path, sizeof path, "/proc/self/task/%.16s/stat", task->d_name);
        FILE *stat = fopen(path, "r");
        CHECK(stat != NULL);
        CHECK_INT(fscanf(stat, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %ld", &faults), 1);
        fclose(stat);
        count += faults;
    }
    closedir(tasks);
    return count;
}

/* A helper may come too late for one batch, on a busy machine. */
static void test_helpers_copy_a_part_of_it(void)
{
    const int64_t bytes = 64 << 20;
    fixture f = open_fixture();
    int64_t before = -1, round = 0;
    for (; fl_cpu_count() > 1 && (before < 0 || count_faults_of_others() < before + 16); round++) {
        fl_slot *slot = get_slot(f.pool, bytes);
        void *transfer = get_transfer(&f, 1);
        CHECK(round < 1000);
        char *into =
            mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(into != MAP_FAILED);
        memset(fl_slot_data(slot), 1, (size_t)bytes);
        set_buffer(transfer, into, false);
        CHECK_INT(ops->copy(transfer, slot, bytes, NULL), FL_OK);
        if (before < 0) before = count_faults_of_others(); /* from here on no thread is new */
        CHECK_INT(ops->finish(transfer, slot, bytes, NULL, NULL), FL_OK);
        CHECK_INT(munmap(into, (size_t)bytes), 0);
    }
    close_fixture(&f);
}

/* ---- resources, forks */

static void test_each_resource_may_be_refused(void)
{
    for (int64_t n = 1;; n++) {
        void *copies, *transfer = NULL;
        fl_err err = {0};
        fl_fault_arm(n);
        int status = ops->open(-1, &copies, &err);
        if (status == FL_OK) status = ops->get(copies, 1, &transfer, &err);
        fl_fault_arm(0);
        CHECK_INT(err.code, status);
        CHECK((status == FL_OK) == (transfer != NULL));
        if (transfer != NULL) ops->cancel(transfer);
        ops->close(copies);
        if (status == FL_OK) break;
        CHECK_INT(status, FL_ENOMEM);
    }
}

typedef struct parents {
    fixture *f;
    void *transfer;
    fl_slot *slot;
} parents;

static int use_the_parents(void *arg)
{
    parents *p = arg;
    void *transfer;
    bool is_filled;
    CHECK_INT(ops->get(p->f->copies, 1, &transfer, NULL), FL_EFORK);
    CHECK_INT(ops->set_buffer(p->transfer, buffer, NULL, &is_filled, NULL), FL_EFORK);
    CHECK_INT(ops->finish(p->transfer, p->slot, BYTES, NULL, NULL), FL_EFORK);
    ops->await(p->f->copies);
    ops->halt(p->f->copies);
    ops->abandon(p->transfer, p->slot, NULL);
    ops->cancel(p->transfer);
    ops->close(p->f->copies);
    return 0;
}

static void test_a_forked_child_is_inert(void)
{
    fixture f = open_fixture();
    parents p = {&f, get_transfer(&f, 1), get_filled(&f, 5)};
    CHECK_INT(run_child(use_the_parents, &p), 0);
    ops->part_filled(p.transfer, 0, p.slot, BYTES);
    set_buffer(p.transfer, buffer, true);
    CHECK_INT(ops->finish(p.transfer, p.slot, BYTES, NULL, NULL), FL_OK);
    CHECK(holds(buffer, 5));
    close_fixture(&f);
}

int main(void)
{
    start_tests();
    RUN(test_the_last_part_or_the_buffer_starts_the_copy);
    RUN(test_a_whole_batch_is_copied_at_once);
    RUN(test_finish_starts_what_was_not_started);
    RUN(test_what_nobody_wants_goes_back);
    RUN(test_nothing_is_copied_once_it_is_halted);
    RUN(test_halt_waits_for_threads_that_copy);
    RUN(test_threads_share_the_copy_of_a_large_batch);
    RUN(test_helpers_copy_a_part_of_it);
    RUN(test_each_resource_may_be_refused);
    RUN(test_a_forked_child_is_inert);
    return 0;
}
