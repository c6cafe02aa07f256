/* Tests of fl_base and fl_thread: sizes, errors, memory, threads, the fork generation. */
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

/* A result that no test case has, to show that an output was left alone. */
enum { UNTOUCHED = 0x5A5A };

typedef struct sum {
    int64_t a, b, result;
    bool fits;
} sum;

static void test_mul_at_the_edges(void)
{
    const sum cases[] = {
        {0, INT64_MIN, 0, true},
        {0, INT64_MAX, 0, true},
        {1, INT64_MAX, INT64_MAX, true},
        {-1, INT64_MAX, -INT64_MAX, true},
        {1, INT64_MIN, INT64_MIN, true},
        {-1, INT64_MIN, 0, false},
        {2, INT64_MAX / 2, INT64_MAX - 1, true},
        {2, INT64_MAX / 2 + 1, 0, false},
        {2, INT64_MIN / 2, INT64_MIN, true},
        {2, INT64_MIN / 2 - 1, 0, false},
        {3037000499, 3037000499, 3037000499 * 3037000499, true},
        {3037000500, 3037000500, 0, false},
        {INT64_MIN, INT64_MIN, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t out = UNTOUCHED, swapped = UNTOUCHED;
        CHECK(fl_mul(cases[i].a, cases[i].b, &out) == cases[i].fits);
        CHECK(fl_mul(cases[i].b, cases[i].a, &swapped) == cases[i].fits);
        CHECK_INT(out, cases[i].fits ? cases[i].result : UNTOUCHED);
        CHECK_INT(swapped, out);
    }
}

static void test_add_at_the_edges(void)
{
    const sum cases[] = {
        {0, INT64_MAX, INT64_MAX, true},      {1, INT64_MAX, 0, false},
        {0, INT64_MIN, INT64_MIN, true},      {-1, INT64_MIN, 0, false},
        {INT64_MIN, INT64_MAX, -1, true},     {INT64_MAX, INT64_MAX, 0, false},
        {INT64_MAX - 5, 5, INT64_MAX, true},  {INT64_MAX - 5, 6, 0, false},
        {INT64_MIN + 5, -5, INT64_MIN, true}, {INT64_MIN + 5, -6, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t out = UNTOUCHED;
        CHECK(fl_add(cases[i].a, cases[i].b, &out) == cases[i].fits);
        CHECK_INT(out, cases[i].fits ? cases[i].result : UNTOUCHED);
    }
}

static void test_min_and_max(void)
{
    CHECK_INT(fl_min(INT64_MIN, INT64_MAX), INT64_MIN);
    CHECK_INT(fl_min(3, -3), -3);
    CHECK_INT(fl_max(INT64_MIN, INT64_MAX), INT64_MAX);
    CHECK_INT(fl_max(3, -3), 3);
}

static void test_fail_fills_the_whole_record(void)
{
    fl_err err = {.code = 1, .field = 2, .position = 3, .value = 4, .length = 5, .text = "old"};
    CHECK_INT(fl_fail(&err, FL_EINVAL, "%d of %s", 7, "nine"), FL_EINVAL);
    CHECK_INT(err.code, FL_EINVAL);
    CHECK(err.field == 0 && err.position == 0 && err.value == 0 && err.length == 0);
    CHECK(strcmp(err.text, "7 of nine") == 0);
}

static void test_fail_cuts_a_long_text(void)
{
    fl_err err;
    memset(&err, 1, sizeof err);
    CHECK_INT(fl_fail(&err, FL_ENOMEM, "%0400d", 7), FL_ENOMEM);
    CHECK_INT(strlen(err.text), sizeof err.text - 1);
}

static void test_fail_without_a_record(void)
{
    CHECK_INT(fl_fail(NULL, FL_ECLOSED, "%d", 1), FL_ECLOSED);
}

static int count_and_fail(int *calls, int status)
{
    ++*calls;
    return status;
}

static int try_twice(int *calls, int first)
{
    FL_TRY(count_and_fail(calls, first));
    FL_TRY(count_and_fail(calls, FL_EEND));
    return FL_OK;
}

static void test_try_returns_the_first_failure(void)
{
    int calls = 0;
    CHECK_INT(try_twice(&calls, FL_ESOURCE), FL_ESOURCE);
    CHECK_INT(calls, 1);
    CHECK_INT(try_twice(&calls, FL_OK), FL_EEND);
    CHECK_INT(calls, 3);
}

static void test_alloc_is_zeroed_and_aligned(void)
{
    const int64_t sizes[] = {0, 1, 63, 64, 65, 4095, 4096, 1000000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int again = 0; again < 2; again++) {
            char *memory = fl_alloc(sizes[i]);
            CHECK(memory != NULL && is_aligned(memory, 64));
            for (int64_t b = 0; b < sizes[i]; b++) CHECK(memory[b] == 0);
            memset(memory, 0xEE, (size_t)sizes[i]); /* memory may come back the second time */
            fl_free(memory);
        }
    }
    fl_free(NULL);
}

static void test_alloc_of_no_size_is_null(void)
{
    CHECK(fl_alloc(-1) == NULL);
    CHECK(fl_alloc(INT64_MIN) == NULL);
    CHECK(fl_alloc(INT64_MAX) == NULL);
    CHECK(fl_alloc((int64_t)1 << 60) == NULL);
}

static void test_grow_keeps_the_contents(void)
{
    int64_t *items = NULL;
    int64_t capacity = 0, moves = 0;
    for (int64_t count = 1; count <= 5000; count++) {
        const int64_t *before = items;
        CHECK_INT(fl_grow((void **)&items, &capacity, count, sizeof *items, NULL), FL_OK);
        CHECK(capacity >= count);
        moves += items != before;
        items[count - 1] = count * 7;
    }
    for (int64_t i = 0; i < 5000; i++) CHECK_INT(items[i], (i + 1) * 7);
    CHECK(moves <= 14); /* it doubles: appending one by one is linear in all */
    fl_free(items);
}

static void test_grow_within_capacity_changes_nothing(void)
{
    char *items = NULL;
    int64_t capacity = 0;
    CHECK_INT(fl_grow((void **)&items, &capacity, 100, 3, NULL), FL_OK);
    char *before = items;
    int64_t had = capacity;
    for (int64_t count = -1; count <= had; count++)
        CHECK_INT(fl_grow((void **)&items, &capacity, count, 3, NULL), FL_OK);
    CHECK(items == before && capacity == had);
    items[3 * had - 1] = 1; /* all of it is ours */
    fl_free(items);
}

static void test_grow_failure_changes_nothing(void)
{
    int32_t *items = NULL;
    int64_t capacity = 0;
    CHECK_INT(fl_grow((void **)&items, &capacity, 4, sizeof *items, NULL), FL_OK);
    memcpy(items, (int32_t[]){1, 2, 3, 4}, 16);
    const int64_t impossible[] = {INT64_MAX, INT64_MAX / 4 + 1, INT64_MAX / 4, 5};
    for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++) {
        const int32_t *before = items;
        int64_t had = capacity;
        fl_err err = {0};
        fl_fault_arm(impossible[i] == 5 ? 1 : 0);
        CHECK_INT(fl_grow((void **)&items, &capacity, impossible[i], sizeof *items, &err),
                  FL_ENOMEM);
        fl_fault_arm(0);
        CHECK(items == before && capacity == had);
        CHECK(items[0] == 1 && items[1] == 2 && items[2] == 3 && items[3] == 4);
        CHECK(err.code == FL_ENOMEM && err.text[0] != '\0');
    }
    CHECK_INT(fl_grow((void **)&items, &capacity, INT64_MAX, sizeof *items, NULL), FL_ENOMEM);
    fl_free(items);
}

static void test_fault_refuses_just_the_nth(void)
{
    fl_fault_arm(3);
    for (int n = 1; n <= 5; n++) {
        CHECK(fl_fault_hit() == (n == 3));
        CHECK_INT(fl_fault_asked(), n);
    }
    fl_fault_arm(0);
    CHECK_INT(fl_fault_asked(), 0);
    for (int n = 1; n <= 5; n++) CHECK(!fl_fault_hit());
}

/* A condition, a flag under its mutex, and what a thread reports. */
typedef struct meeting {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool is_over;  /* mutex */
    sigset_t mask; /* written by the thread, read after the join */
} meeting;

static void open_meeting(meeting *m)
{
    *m = (meeting){0};
    CHECK_INT(fl_mutex_open(&m->mutex, NULL), FL_OK);
    CHECK_INT(fl_cond_open(&m->cond, NULL), FL_OK);
}

static void close_meeting(meeting *m)
{
    CHECK(pthread_cond_destroy(&m->cond) == 0);
    CHECK(pthread_mutex_destroy(&m->mutex) == 0);
}

static void *end_meeting(void *arg)
{
    meeting *m = arg;
    pthread_sigmask(SIG_SETMASK, NULL, &m->mask);
    pthread_mutex_lock(&m->mutex);
    m->is_over = true;
    pthread_cond_signal(&m->cond);
    pthread_mutex_unlock(&m->mutex);
    return NULL;
}

static void test_clock_goes_forward(void)
{
    int64_t before = fl_now_ns();
    sleep_ms(2);
    CHECK(fl_now_ns() - before >= 2000000);
}

static void test_wait_ends_at_the_deadline(void)
{
    meeting m;
    open_meeting(&m);
    pthread_mutex_lock(&m.mutex);
    CHECK(fl_cond_wait_until(&m.cond, &m.mutex, fl_now_ns() - 1));
    CHECK(fl_cond_wait_until(&m.cond, &m.mutex, 0));
    int64_t deadline = fl_now_ns() + 20 * 1000000;
    while (!fl_cond_wait_until(&m.cond, &m.mutex, deadline)) continue;
    CHECK(fl_now_ns() >= deadline);
    pthread_mutex_unlock(&m.mutex);
    close_meeting(&m);
}

static void test_wait_ends_when_signalled(void)
{
    meeting m;
    open_meeting(&m);
    pthread_t thread;
    int64_t deadline = fl_now_ns() + INT64_C(60000000000) * slowness();
    pthread_mutex_lock(&m.mutex); /* until the wait has begun */
    CHECK_INT(fl_thread_start(&thread, end_meeting, &m, NULL), FL_OK);
    while (!m.is_over) CHECK(!fl_cond_wait_until(&m.cond, &m.mutex, deadline));
    pthread_mutex_unlock(&m.mutex);
    CHECK(pthread_join(thread, NULL) == 0);
    close_meeting(&m);
}

static void test_threads_block_every_signal(void)
{
    meeting m;
    open_meeting(&m);
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    pthread_t thread;
    CHECK_INT(fl_thread_start(&thread, end_meeting, &m, NULL), FL_OK);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    CHECK(pthread_join(thread, NULL) == 0);
    const int signals[] = {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1, SIGHUP, SIGPROF};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        CHECK(sigismember(&m.mask, signals[i]) == 1);
        CHECK(sigismember(&after, signals[i]) == sigismember(&before, signals[i]));
    }
    close_meeting(&m);
}

static void test_refused_locks_and_threads_say_so(void)
{
    meeting m;
    pthread_t thread;
    fl_err err;
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    fl_fault_arm(1);
    CHECK_INT(fl_mutex_open(&m.mutex, &err), FL_ENOMEM);
    CHECK(err.code == FL_ENOMEM && err.text[0] != '\0');
    fl_fault_arm(1);
    CHECK_INT(fl_cond_open(&m.cond, &err), FL_ENOMEM);
    fl_fault_arm(1);
    CHECK_INT(fl_thread_start(&thread, end_meeting, &m, &err), FL_ETHREAD);
    fl_fault_arm(1);
    CHECK_INT(fl_thread_start(&thread, end_meeting, &m, NULL), FL_ETHREAD);
    fl_fault_arm(0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    CHECK(sigismember(&after, SIGINT) == sigismember(&before, SIGINT));
}

static int is_generation_known(void *arg)
{
    const uint32_t *known = arg;
    return fl_fork_generation() == *known;
}

static int compare_generations(void *arg)
{
    const uint32_t *parent = arg;
    uint32_t own = fl_fork_generation();
    return own == *parent || run_child(is_generation_known, &own) != 0;
}

static void test_generation_changes_in_every_child(void)
{
    fl_fork_install(); /* a second time: still one step a fork */
    uint32_t before = fl_fork_generation();
    CHECK_INT(run_child(compare_generations, &before), 0);
    CHECK_INT(fl_fork_generation(), before);
}

static void test_another_file_is_no_process(void)
{
    int self = fl_pidfd_open((int)getpid());
    if (self < 0) return; /* the kernel has no such descriptors */
    CHECK(fl_is_pidfd(self));
    int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK(other >= 0 && !fl_is_pidfd(other));
    CHECK(dup2(other, self) == self && !fl_is_pidfd(self));
    close(other);
    close(self);
    CHECK(!fl_is_pidfd(self));
}

int main(void)
{
    start_tests();
    RUN(test_mul_at_the_edges);
    RUN(test_add_at_the_edges);
    RUN(test_min_and_max);
    RUN(test_fail_fills_the_whole_record);
    RUN(test_fail_cuts_a_long_text);
    RUN(test_fail_without_a_record);
    RUN(test_try_returns_the_first_failure);
    RUN(test_alloc_is_zeroed_and_aligned);
    RUN(test_alloc_of_no_size_is_null);
    RUN(test_grow_keeps_the_contents);
    RUN(test_grow_within_capacity_changes_nothing);
    RUN(test_grow_failure_changes_nothing);
    RUN(test_fault_refuses_just_the_nth);
    RUN(test_clock_goes_forward);
    RUN(test_wait_ends_at_the_deadline);
    RUN(test_wait_ends_when_signalled);
    RUN(test_threads_block_every_signal);
    RUN(test_refused_locks_and_threads_say_so);
    RUN(test_another_file_is_no_process);
    RUN(test_generation_changes_in_every_child);
    return 0;
}
