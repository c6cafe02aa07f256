/* Tests of fl_stage: each row is claimed once, by threads and by processes; the successor of a
 * process that was killed gets its rows again; marks that a worker has overwritten do no harm. */
#include "check.h"
#include "fl_stage.h"
#include "traced.h"

enum { ROWS = 32, ROW_BYTES = 40, WORKERS = 4, SHARES = 2 * WORKERS };

/* A stage at the end of its memory: a page that nobody may touch follows. */
typedef struct fixture {
    char *mapping; /* owned, shared with forked children */
    int64_t bytes;
    fl_stage stage;
} fixture;

static fixture open_fixture(int64_t rows, int64_t row_bytes)
{
    int64_t page = sysconf(_SC_PAGESIZE), bytes = fl_stage_bytes(rows, row_bytes);
    int64_t whole = (bytes + page - 1) / page * page;
    fixture f = {.bytes = whole + page, .stage = {NULL, rows, row_bytes}};
    f.mapping =
        mmap(NULL, (size_t)f.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(f.mapping != MAP_FAILED && mprotect(f.mapping + whole, (size_t)page, PROT_NONE) == 0);
    memset(f.mapping, 0xEE, (size_t)whole); /* what open finds is not zero */
    f.stage.rows = f.mapping + (whole - bytes) / 64 * 64;
    fl_stage_open(&f.stage);
    return f;
}

static void close_fixture(fixture *f) { CHECK(munmap(f->mapping, (size_t)f->bytes) == 0); }

static char *row_at(const fl_stage *stage, int64_t row)
{
    return stage->rows + row * stage->row_bytes;
}

/* Writes rows, which nobody else may have. */
static void write_rows(const fl_stage *stage, int64_t first, int64_t count, int32_t worker)
{
    CHECK(first >= 0 && count > 0 && count <= stage->count - first);
    for (int64_t row = first; row < first + count; row++) {
        CHECK_INT(__atomic_load_n(&fl_stage_marks(stage)[row], __ATOMIC_RELAXED), worker + 1);
        memset(row_at(stage, row), worker, (size_t)stage->row_bytes);
    }
}

/* Makes rows until none is open. Returns how many. */
static int64_t make_rows(const fl_stage *stage, int32_t worker, int64_t shares)
{
    int64_t first, count, cursor = 0, made = 0;
    while ((count = fl_stage_claim(stage, worker, shares, &cursor, &first)) > 0) {
        write_rows(stage, first, count, worker);
        made += count;
    }
    return made;
}

/* Each row carries the mark of the worker that has written it. */
static void check_rows(const fl_stage *stage)
{
    for (int64_t row = 0; row < stage->count; row++) {
        int32_t worker = fl_stage_marks(stage)[row] - 1;
        CHECK(worker >= 0 && worker < WORKERS);
        for (int64_t i = 0; i < stage->row_bytes; i++) CHECK_INT(row_at(stage, row)[i], worker);
    }
}

/* ---- one worker */

static void test_bytes(void)
{
    CHECK_INT(fl_stage_bytes(1, 1), 64 + 4);
    CHECK_INT(fl_stage_bytes(3, 64), 192 + 12);
    CHECK_INT(fl_stage_bytes(3, 65), 256 + 12);
    CHECK_INT(fl_stage_bytes(0, 4), -1);
    CHECK_INT(fl_stage_bytes(-1, -4), -1);
    CHECK_INT(fl_stage_bytes(4, 0), -1);
    CHECK_INT(fl_stage_bytes(4, -1), -1); /* the product of a shape that overflows */
    CHECK_INT(fl_stage_bytes(INT64_MAX / 2, 4), -1);
    CHECK_INT(fl_stage_bytes(INT64_MAX, 1), -1);
    CHECK(fl_stage_bytes(INT64_MAX / 8, 1) > INT64_MAX / 8);
}

static void test_claims_are_shares_of_what_is_open(void)
{
    static const int64_t sizes[] = {8, 6, 4, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1};
    fixture f = open_fixture(ROWS, ROW_BYTES);
    int64_t first, cursor = 0, begin = 0;
    fl_fault_arm(1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK_INT(fl_stage_claim(&f.stage, 0, 4, &cursor, &first), sizes[i]);
        CHECK_INT(first, begin);
        begin += sizes[i];
    }
    CHECK_INT(begin, ROWS);
    CHECK_INT(fl_stage_claim(&f.stage, 0, 4, &cursor, &first), 0);
    CHECK_INT(fl_fault_asked(), 0);
    fl_fault_arm(0);
    close_fixture(&f);
}

static void test_a_claim_ends_before_a_row_of_another_worker(void)
{
    fixture f = open_fixture(ROWS, ROW_BYTES);
    int64_t first, cursor = 0;
    fl_stage_marks(&f.stage)[0] = fl_stage_marks(&f.stage)[3] = 2;
    CHECK_INT(fl_stage_claim(&f.stage, 0, 1, &cursor, &first), 2);
    CHECK_INT(first, 1);
    CHECK_INT(fl_stage_claim(&f.stage, 0, 1, &cursor, &first), ROWS - 4);
    CHECK_INT(first, 4);
    CHECK_INT(fl_stage_claim(&f.stage, 0, 1, &cursor, &first), 0);
    close_fixture(&f);
}

/* ---- several workers */

typedef struct helper {
    const fl_stage *stage;
    int32_t worker;
    pthread_barrier_t *start; /* borrowed */
    pthread_t thread;
    int64_t made;
} helper;

static void *help(void *arg)
{
    helper *self = arg;
    pthread_barrier_wait(self->start);
    self->made = make_rows(self->stage, self->worker, SHARES);
    return NULL;
}

static void test_threads_make_each_row_once(void)
{
    pthread_barrier_t start;
    CHECK_INT(pthread_barrier_init(&start, NULL, WORKERS), 0);
    for (int turn = 0; turn < 200; turn++) {
        fixture f = open_fixture(ROWS + turn, ROW_BYTES);
        helper helpers[WORKERS];
        int64_t made = 0;
        for (int32_t w = 0; w < WORKERS; w++) {
            helpers[w] = (helper){.stage = &f.stage, .worker = w, .start = &start};
            CHECK_INT(pthread_create(&helpers[w].thread, NULL, help, &helpers[w]), 0);
        }
        for (int32_t w = 0; w < WORKERS; w++) {
            CHECK_INT(pthread_join(helpers[w].thread, NULL), 0);
            made += helpers[w].made;
        }
        CHECK_INT(made, f.stage.count);
        check_rows(&f.stage);
        close_fixture(&f);
    }
    pthread_barrier_destroy(&start);
}

static void test_processes_make_each_row_once(void)
{
    for (int turn = 0; turn < 20; turn++) {
        fixture f = open_fixture(ROWS + turn, ROW_BYTES);
        pid_t children[WORKERS];
        for (int32_t w = 0; w < WORKERS; w++) {
            children[w] = fork();
            CHECK(children[w] >= 0);
            if (children[w] > 0) continue;
            alarm(HANG_SECONDS);
            make_rows(&f.stage, w, SHARES);
            _exit(0);
        }
        for (int32_t w = 0; w < WORKERS; w++) {
            int status;
            CHECK(waitpid(children[w], &status, 0) == children[w] && status == 0);
        }
        check_rows(&f.stage);
        close_fixture(&f);
    }
}

/* ---- deaths */

static void test_a_successor_gets_the_rows_of_the_dead(void)
{
    fixture f = open_fixture(12, ROW_BYTES);
    int32_t *marks = fl_stage_marks(&f.stage);
    int64_t first, cursor = 0;
    marks[1] = marks[2] = marks[7] = 3; /* by workers that have died before they wrote a byte */
    marks[0] = marks[8] = 1;
    CHECK_INT(fl_stage_claim(&f.stage, 2, 1, &cursor, &first), 2);
    CHECK_INT(first, 1);
    CHECK_INT(fl_stage_claim(&f.stage, 2, 1, &cursor, &first), 1);
    CHECK_INT(first, 7);
    CHECK_INT(fl_stage_claim(&f.stage, 2, 1, &cursor, &first), 4);
    CHECK_INT(first, 3);
    CHECK_INT(fl_stage_claim(&f.stage, 2, 1, &cursor, &first), 3);
    CHECK_INT(first, 9);
    CHECK_INT(fl_stage_claim(&f.stage, 2, 1, &cursor, &first), 0);
    CHECK(marks[0] == 1 && marks[8] == 1); /* the first worker may live */
    close_fixture(&f);
}

/* ---- at every instruction: under ThreadSanitizer most belong to the sanitizer */

#if !defined(__SANITIZE_THREAD__)
#if defined(__SANITIZE_ADDRESS__)
enum { STRIDE = 13 }; /* because its checks are instructions too */
#else
enum { STRIDE = 1 };
#endif

typedef struct claim {
    fl_stage stage;
    int64_t first, count;
} claim;

static void claim_rows(claim *own, int32_t worker, int64_t shares)
{
    int64_t cursor = own->stage.count;
    own->count = fl_stage_claim(&own->stage, worker, shares, &cursor, &own->first);
}

static int claim_all(void *own)
{
    claim_rows(own, 0, 1);
    return 0;
}

static int make_own(void *own)
{
    make_rows(&((claim *)own)->stage, 0, 2);
    return 0;
}

/* Lets a child go on, by one instruction or to its end. Returns true if it has stopped again. */
static bool go_on(pid_t child, int request)
{
    int status;
    CHECK(ptrace(request, child, NULL, NULL) == 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFSTOPPED(status) || status == 0);
    return WIFSTOPPED(status);
}

/* Memory for the claim of a child. */
static claim *open_claim(const fl_stage *stage)
{
    claim *own = mmap(NULL, sizeof *own, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    own->stage = *stage;
    return own;
}

static void test_others_claim_at_every_instruction(void)
{
    bool is_over = false; /* the child's claim */
    for (int64_t at = 0; !is_over; at += STRIDE) {
        fixture f = open_fixture(16, 4);
        claim *own = open_claim(&f.stage), other = {.stage = f.stage};
        pid_t child = start_traced(claim_all, own);
        for (int64_t i = 0; i < at && !is_over; i++) {
            CHECK(go_on(child, PTRACE_SINGLESTEP));
            is_over = own->count > 0;
        }
        claim_rows(&other, 1, 3); /* beginning at the first open row, so in the child's way */
        CHECK(!go_on(child, PTRACE_CONT));
        CHECK(own->first + own->count <= 16 && other.first + other.count <= 16);
        int64_t end = fl_min(own->first + own->count, other.first + other.count);
        CHECK(end <= fl_max(own->first, other.first) || own->count == 0 || other.count == 0);
        for (int64_t row = 0; row < 16; row++) {
            bool is_own = row >= own->first && row < own->first + own->count;
            bool is_others = row >= other.first && row < other.first + other.count;
            CHECK_INT(fl_stage_marks(&f.stage)[row], is_own ? 1 : is_others ? 2 : 0);
        }
        CHECK(munmap(own, sizeof *own) == 0);
        close_fixture(&f);
    }
}

/* Wherever a worker dies, its successor makes every row that the others have not claimed. */
static void test_a_worker_dies_at_every_instruction(void)
{
    fixture f = open_fixture(6, 24), copy = open_fixture(6, 24);
    claim *own = open_claim(&f.stage), other = {.stage = f.stage};
    claim_rows(&other, 1, 3);
    write_rows(&f.stage, other.first, other.count, 1);
    pid_t child = start_traced(make_own, own);
    do {
        memcpy(copy.mapping, f.mapping,
               (size_t)(f.stage.rows - f.mapping) + (size_t)fl_stage_bytes(6, 24));
        CHECK_INT(make_rows(&copy.stage, 0, 2), 4);
        check_rows(&copy.stage);
    } while (go_on(child, PTRACE_SINGLESTEP));
    check_rows(&f.stage);
    CHECK(munmap(own, sizeof *own) == 0);
    close_fixture(&copy);
    close_fixture(&f);
}
#endif

/* ---- damage */

static void test_wrong_marks_leave_rows_to_nobody(void)
{
    uint64_t seed = 3;
    for (int turn = 0; turn < 2000; turn++) {
        fixture f = open_fixture(ROWS, ROW_BYTES);
        int32_t *marks = fl_stage_marks(&f.stage), before[ROWS];
        for (int64_t i = random_below(&seed, ROWS); i >= 0; i--)
            marks[random_below(&seed, ROWS)] =
                i % 2 ? (int32_t)next_random(&seed) : (int32_t)random_below(&seed, 3) - 1;
        memcpy(before, marks, sizeof before);
        int64_t first, count, cursor = 0, made[ROWS] = {0};
        while ((count = fl_stage_claim(&f.stage, 0, SHARES, &cursor, &first)) > 0)
            for (int64_t row = first; row < first + count; row++) made[row]++;
        for (int64_t row = 0; row < ROWS; row++) {
            CHECK_INT(made[row], before[row] == 0 || before[row] == 1);
            CHECK_INT(marks[row], made[row] ? 1 : before[row]);
        }
        close_fixture(&f);
    }
}

int main(void)
{
    start_tests();
    RUN(test_bytes);
    RUN(test_claims_are_shares_of_what_is_open);
    RUN(test_a_claim_ends_before_a_row_of_another_worker);
    RUN(test_threads_make_each_row_once);
    RUN(test_processes_make_each_row_once);
    RUN(test_a_successor_gets_the_rows_of_the_dead);
#if !defined(__SANITIZE_THREAD__)
    RUN(test_others_claim_at_every_instruction);
    RUN(test_a_worker_dies_at_every_instruction);
#endif
    RUN(test_wrong_marks_leave_rows_to_nobody);
    return 0;
}
