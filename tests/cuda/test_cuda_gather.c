/* Rows that are gathered on the device: the kernel, compiled as C++, against copies of single
 * rows; what a launch that fails leaves. */
#include "cuda_fixture.h"

#include "fl_cuda_gather.h"
#include "shim_grid.h"

enum { GUARD = 0x5A, MOST = 40 };

/* The form of a table: rows of `bytes`, `gap` bytes apart, that begin `start` bytes from a multiple
 * of 64; the batch begins `offset` bytes from one. */
typedef struct form {
    int64_t bytes, gap, offset, start;
} form;

/* A column, and its expected batch. Both memories end at the end of the column, and the rows'
 * memory begins with the column: a kernel that reads beyond either is seen by ASan. */
typedef struct table {
    fl_row_column column;
    char *whole, *memory, *made, *expected; /* owned; memory: within `whole` */
    int64_t made_bytes;
} table;

static char *allocate(int64_t bytes)
{
    void *data;
    CHECK(posix_memalign(&data, 64, (size_t)fl_max(bytes, 1)) == 0);
    return data;
}

__attribute__((weak)) void __asan_poison_memory_region(const void *memory, size_t bytes);

/* Lets ASan, if it is there, report reads of these bytes; it counts them in eights. */
static void hide_bytes(const char *memory, int64_t bytes)
{
    if (__asan_poison_memory_region != NULL)
        __asan_poison_memory_region(memory, (size_t)(bytes / 8 * 8));
}

static table open_table(form of, int64_t rows, const int64_t *picked, int64_t count)
{
    uint64_t seed = (uint64_t)(of.bytes * 31 + of.gap * 7 + of.offset + 1);
    int64_t bytes = of.bytes, offset = of.offset;
    table t = {.made_bytes = offset + bytes * count};
    int64_t pitch = bytes + of.gap, all = rows > 0 ? (rows - 1) * pitch + bytes : 0;
    t.whole = allocate(all + of.start);
    t.memory = t.whole + of.start;
    hide_bytes(t.whole, of.start);
    t.made = allocate(t.made_bytes);
    t.expected = allocate(t.made_bytes);
    fill_random(&seed, t.memory, all);
    memset(t.made, GUARD, (size_t)t.made_bytes);
    memset(t.expected, GUARD, (size_t)t.made_bytes);
    for (int64_t i = 0; i < count; i++)
        memcpy(t.expected + offset + i * bytes, t.memory + picked[i] * pitch, (size_t)bytes);
    t.column = (fl_row_column){.from = t.memory,
                               .end = t.memory + all,
                               .to = t.made + offset,
                               .bytes = bytes,
                               .pitch = pitch};
    return t;
}

static void close_table(table *t, bool is_made)
{
    bool is_equal = memcmp(t->made, t->expected, (size_t)t->made_bytes) == 0;
    CHECK(is_equal == is_made || t->made_bytes == 0);
    free(t->whole);
    free(t->made);
    free(t->expected);
}

static int64_t *pick(int64_t rows, int64_t count)
{
    int64_t *picked = (int64_t *)allocate(count * (int64_t)sizeof *picked);
    uint64_t seed = (uint64_t)(rows + count);
    for (int64_t i = 0; i < count; i++) {
        uint32_t number;
        fill_random(&seed, (char *)&number, sizeof number);
        picked[i] = number % rows;
    }
    if (count > 1) picked[count - 1] = rows - 1, picked[0] = 0;
    return picked;
}

static fl_gather gather_of(const fl_row_column *columns, int32_t column_count, const int64_t *rows,
                           int64_t row_count, int32_t most_blocks)
{
    return (fl_gather){.columns = columns,
                       .column_count = column_count,
                       .rows = rows,
                       .row_count = row_count,
                       .most_blocks = most_blocks};
}

static void check_form(form of, int64_t rows, int64_t count, int32_t most_blocks)
{
    int64_t *picked = pick(rows, count);
    table t = open_table(of, rows, picked, count);
    fl_gather gather = gather_of(&t.column, 1, picked, count, most_blocks);
    CHECK_INT(fl_cuda_gather(0, NULL, &gather, NULL), FL_OK);
    fake_synchronize(NULL);
    close_table(&t, true);
    if (count > FL_GATHER_OWN_ROWS) return free(picked);
    t = open_table(of, rows, picked, count);
    gather = gather_of(&t.column, 1, NULL, count, most_blocks);
    gather.here = picked;
    CHECK_INT(fl_cuda_gather(0, NULL, &gather, NULL), FL_OK);
    memset(picked, GUARD, (size_t)count * sizeof *picked); /* has been read */
    fake_synchronize(NULL);
    close_table(&t, true);
    free(picked);
}

static void check_one(int64_t bytes, int64_t gap, int64_t offset, int64_t rows, int64_t count)
{
    check_form((form){bytes, gap, offset, 0}, rows, count, INT32_MAX);
}

/* Units are 1 to 16 bytes: by the size of rows, by their distance, by the batch's address. */
static void test_rows_of_every_size_and_place(void)
{
    for (int64_t bytes = 1; bytes <= 48; bytes += bytes < 18 ? ONE_IN : 6)
        for (int64_t gap = 0; gap <= 16; gap += gap < 2 ? 1 : 7)
            for (int64_t offset = 0; offset <= 16; offset += offset < 2 ? 1 : 7)
                check_one(bytes, gap, offset, 5, 7);
}

/* Blocks end in the middle of a row, and the last of a column is not full. */
static void test_batches_of_many_blocks(void)
{
    check_one(16 * 1024, 0, 0, 3, 4);
    check_one(16 * 1024 - 16, 0, 0, 3, 3);
    check_one(1, 0, 0, 9, 1024);
    check_one(1, 0, 0, 9, 1025);
    check_one(4, 0, 0, 100, 5000);
    check_one(1027, 1, 3, 4, 5);
    check_one(400, 0, 0, 300, 200);
}

/* Units of 16 bytes of the batch, of rows that a short word divides: a unit has one or two rows,
 * and its bytes lie anywhere. */
static void test_rows_that_begin_anywhere(void)
{
    for (int64_t bytes = 16; bytes <= 80; bytes += bytes < 36 ? 1 : 11)
        for (int64_t start = 0; start < 16; start += start < 3 ? 1 : 4)
            for (int64_t gap = 0; gap < 8; gap += 1 + gap)
                check_form((form){bytes, gap, 0, start}, 4, 5, INT32_MAX);
    check_form((form){3001, 0, 0, 5}, 3, 4, INT32_MAX);
    check_form((form){3001, 2, 0, 0}, 1, 1, INT32_MAX);
    check_form((form){17, 0, 0, 16}, 1, 1, INT32_MAX);
    check_form((form){31, 1, 0, 1}, 3, 0, INT32_MAX);
}

/* A block takes parts of all columns, in steps of the grid. */
static void test_few_blocks(void)
{
    shim_limits few = shim_usual_limits;
    shim_set_limits(&few);
    for (int32_t blocks = 1; blocks <= FL_CUDA_FETCH_BLOCKS; blocks += 7) {
        few.blocks.x = (unsigned)blocks;
        check_form((form){16 * 1024, 0, 0, 0}, 5, 11, blocks);
        check_form((form){10007, 0, 0, 3}, 5, 23, blocks);
        check_form((form){150529, 3, 0, 9}, 2, 3, blocks);
        check_form((form){1, 0, 0, 0}, 5, 9000, blocks);
        check_form((form){3, 0, 1, 2}, 5, 9000, blocks);
        check_form((form){7, 0, 0, 0}, 5, 1, blocks);
        check_form((form){7, 0, 0, 0}, 5, 0, blocks);
    }
    shim_set_limits(&shim_usual_limits);
}

/* Several kernels run if there are more columns than one kernel takes; columns without bytes need
 * no kernel. */
static void test_columns_of_one_batch(void)
{
    static const int64_t sizes[] = {4, 0, 3072, 1, 8, 24, 2, 0, 17};
    enum { ROWS = 11, COUNT = 6, SIZES = sizeof sizes / sizeof *sizes };
    int64_t *picked = pick(ROWS, COUNT);
    for (int32_t count = 1; count <= MOST; count += count < 31 ? 6 : 1) {
        table tables[MOST];
        fl_row_column columns[MOST];
        for (int32_t i = 0; i < count; i++) {
            tables[i] =
                open_table((form){sizes[i % SIZES], i % 3, i % 4, i % 5}, ROWS, picked, COUNT);
            columns[i] = tables[i].column;
        }
        int64_t before = fake_launches();
        const fl_gather gather = gather_of(columns, count, picked, COUNT, 3);
        CHECK_INT(fl_cuda_gather(0, NULL, &gather, NULL), FL_OK);
        CHECK_INT(fake_launches() - before, (count - 1) / 16 + 1);
        fake_synchronize(NULL);
        for (int32_t i = 0; i < count; i++) close_table(&tables[i], true);
    }
    free(picked);
}

/* Returns true if unit `byte` of an image has a byte of a line that is needed, or of two planes. */
static bool is_needed(const fl_row_column *of, int64_t byte, const int32_t *span)
{
    bool is_one = byte / of->plane != (byte + 15) / of->plane;
    for (int64_t i = byte; i < byte + 16; i++) {
        const int64_t line = i % of->plane / of->line;
        is_one |= line >= span[0] && line < span[1];
    }
    return is_one;
}

/* Only the lines that are needed travel; the others do not change. */
static void check_lines(uint64_t *seed, int64_t planes, int64_t lines, int64_t line, int32_t most)
{
    enum { IMAGES = 5, STEP = 4 };
    const int64_t bytes = planes * lines * line;
    int32_t *spans = (int32_t *)(void *)allocate(IMAGES * STEP * (int64_t)sizeof *spans);
    int64_t *picked = pick(7, IMAGES);
    for (int i = 0; i < IMAGES; i++) {
        spans[STEP * i] = (int32_t)random_below(seed, lines);
        spans[STEP * i + 1] = spans[STEP * i] + 1 + (int32_t)random_below(seed, lines);
    }
    spans[0] = INT32_MAX, spans[1] = 0; /* no line */
    table labels = open_table((form){3, 0, 0, 0}, 7, picked, IMAGES);
    table t = open_table((form){bytes, 0, 0, 0}, 7, picked, IMAGES);
    t.column.spans = spans;
    t.column.span_step = STEP;
    t.column.plane = lines * line;
    t.column.line = line;
    int64_t left = 0;
    for (int64_t at = 0; at < IMAGES * bytes; at += 16)
        if (!is_needed(&t.column, at % bytes, spans + at / bytes * STEP)) {
            memset(t.expected + at, GUARD, 16);
            left++;
        }
    CHECK(left > 0 || lines < 4);
    const fl_row_column columns[] = {labels.column, t.column};
    const int64_t before = fake_launches();
    fl_gather gather = gather_of(columns, 2, picked, IMAGES, most);
    CHECK_INT(fl_cuda_gather(0, NULL, &gather, NULL), FL_OK);
    CHECK_INT(fake_launches() - before, 1);
    fake_synchronize(NULL);
    close_table(&t, true);
    close_table(&labels, true);
    free(spans);
    free(picked);
}

static void test_lines_that_are_needed(void)
{
    uint64_t seed = 3;
    for (int32_t most = 1; most < 9; most += 7) {
        check_lines(&seed, 3, 12, 16, most);
        check_lines(&seed, 1, 40, 48, most);
        check_lines(&seed, 4, 36, 10, most);
        check_lines(&seed, 3, 224, 224, most);
        check_lines(&seed, 16, 7, 37, most);
        for (int n = 0; n < 20; n++) { /* a unit begins and ends in one line of two planes */
            check_lines(&seed, 4, 2, 10, most);
            check_lines(&seed, 4, 3, 4, most);
        }
    }
}

/* Each column has spans of its own, also in a second kernel; a fifth travels whole. */
static void check_lines_of_columns(int64_t most_bytes)
{
    enum { IMAGES = 5, COLUMNS = 5, CROPS = 4, LINE = 16, PLANES = 3 };
    static const int64_t lines[COLUMNS] = {12, 6, 24, 3, 7};
    int32_t spans[COLUMNS][IMAGES][2];
    int64_t *picked = pick(7, IMAGES);
    table tables[COLUMNS];
    fl_row_column columns[COLUMNS];
    for (int i = 0; i < COLUMNS; i++) {
        const int64_t bytes = PLANES * lines[i] * LINE;
        tables[i] = open_table((form){bytes, 0, 0, 0}, 7, picked, IMAGES);
        for (int n = 0; n < IMAGES; n++) spans[i][n][1] = 1 + (spans[i][n][0] = (i + n) % 3);
        for (int64_t at = 0; i < CROPS && at < IMAGES * bytes; at += LINE)
            if (at / LINE % lines[i] != spans[i][at / bytes][0])
                memset(tables[i].expected + at, GUARD, LINE);
        columns[i] = tables[i].column;
        columns[i].spans = spans[i][0];
        columns[i].span_step = 2;
        columns[i].plane = lines[i] * LINE;
        columns[i].line = LINE;
    }
    const fl_gather gather = gather_of(columns, COLUMNS, picked, IMAGES, 3);
    CHECK_INT(fl_cuda_queue_gather(NULL, &gather, most_bytes), cudaSuccess);
    fake_synchronize(NULL);
    for (int i = 0; i < COLUMNS; i++) close_table(&tables[i], true);
    free(picked);
}

static void test_lines_of_several_columns(void)
{
    check_lines_of_columns(INT32_MAX);
    check_lines_of_columns(2400); /* two images a kernel */
}

static void test_long_batches_take_several_kernels(void)
{
    int64_t picked[] = {3, 1, 0, 2, 3, 3, 1};
    for (int64_t most = 24; most <= 24 * 8; most += 12) {
        table t = open_table((form){24, 8, 8, 0}, 4, picked, 7);
        int64_t before = fake_launches(), step = most / 24;
        fl_gather gather = gather_of(&t.column, 1, picked, 7, 1);
        if (most % 24 == 0) gather.here = picked, gather.rows = NULL;
        CHECK_INT(fl_cuda_queue_gather(NULL, &gather, most), cudaSuccess);
        CHECK_INT(fake_launches() - before, (7 + step - 1) / step);
        fake_synchronize(NULL);
        close_table(&t, true);
    }
    table t = open_table((form){24, 8, 8, 0}, 4, picked, 7);
    const fl_gather gather = gather_of(&t.column, 1, picked, 7, 1);
    CHECK_INT(fl_cuda_queue_gather(NULL, &gather, 23), cudaErrorInvalidValue);
    close_table(&t, false);
}

static void test_more_rows_than_an_argument_holds(void)
{
    int64_t picked[FL_GATHER_OWN_ROWS + 1] = {0};
    const fl_gather gather = {
        .here = picked, .row_count = FL_GATHER_OWN_ROWS + 1, .most_blocks = INT32_MAX};
    CHECK_INT(fl_cuda_queue_gather(NULL, &gather, INT32_MAX), cudaErrorInvalidValue);
}

static void test_nothing_is_launched_for_no_rows(void)
{
    int64_t before = fake_launches();
    check_one(12, 0, 0, 5, 0);
    check_one(0, 0, 0, 5, 3);
    CHECK_INT(fake_launches(), before);
}

/* The error names the call, and leaves nothing with the thread. */
static void test_a_launch_that_fails(void)
{
    fl_err err;
    int64_t picked[] = {2, 0};
    table t = open_table((form){12, 0, 0, 0}, 3, picked, 2);
    const fl_gather gather = gather_of(&t.column, 1, picked, 2, INT32_MAX);
    for (int32_t device = 0; device < 2; device++)
        for (int64_t n = 1;; n++) {
            fake_fail_at(n, cudaErrorLaunchFailure, false);
            int status = fl_cuda_gather(device, NULL, &gather, &err);
            bool has_failed = fake_calls() >= n;
            fake_fail_at(0, cudaSuccess, false);
            CHECK_INT(cudaGetLastError(), cudaSuccess);
            choose_device_0(); /* if the device could not be restored */
            if (status == FL_OK && !has_failed) break;
            if (status == FL_OK) continue; /* only putting the device back failed */
            CHECK_INT(status, FL_EDEVICE);
            CHECK(strstr(err.text, "cudaErrorLaunchFailure") != NULL);
            CHECK(n < 10);
        }
    fake_synchronize(NULL);
    close_table(&t, true);
}

int main(void)
{
    start_tests();
    choose_device_0();
    CHECK_INT(fl_cuda_load_kernels(NULL), FL_OK);
    RUN(test_rows_of_every_size_and_place);
    RUN(test_batches_of_many_blocks);
    RUN(test_rows_that_begin_anywhere);
    RUN(test_few_blocks);
    RUN(test_columns_of_one_batch);
    RUN(test_lines_that_are_needed);
    RUN(test_lines_of_several_columns);
    RUN(test_long_batches_take_several_kernels);
    RUN(test_more_rows_than_an_argument_holds);
    RUN(test_nothing_is_launched_for_no_rows);
    RUN(test_a_launch_that_fails);
    return 0;
}
