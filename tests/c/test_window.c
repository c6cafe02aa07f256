/* Tests of fl_window: which tokens a window is, against counting by hand. */
#include "check.h"
#include "fl_philox.h"
#include "fl_window.h"

static const int64_t lengths[] = {10, 0, 3, 4, 100, 1, 7, 29};
enum { FILES = sizeof lengths / sizeof *lengths };

static fl_windows *open_windows(const int64_t *tokens, int64_t files, int64_t length,
                                int64_t stride, fl_window_mode mode)
{
    fl_window_config config = {tokens, files, length, stride, mode, .seed = 9};
    fl_windows *windows;
    fl_err err;
    CHECK_INT(fl_windows_open(&config, &windows, &err), FL_OK);
    return windows;
}

/* Counts the windows of all files one after the other; each window must fit for every jitter. */
static void check_against_counting(int64_t length, int64_t stride, fl_window_mode mode)
{
    fl_windows *windows = open_windows(lengths, FILES, length, stride, mode);
    int64_t slack = mode == FL_WINDOW_JITTERED ? stride - 1 : 0, index = 0;
    for (uint32_t epoch = 0; epoch < 4; epoch++, index = 0) {
        int64_t jitter = fl_windows_find(windows, 0, epoch).first % stride;
        CHECK(mode == FL_WINDOW_JITTERED || jitter == 0);
        for (int64_t f = 0, begin = 0; f < FILES; begin += lengths[f++]) {
            int64_t before = index;
            for (int64_t first = 0; first + slack + length <= lengths[f]; first += stride) {
                fl_window window = fl_windows_find(windows, index++, epoch);
                CHECK_INT(window.file, f);
                CHECK_INT(window.first, first + jitter);
                CHECK(window.first + length <= lengths[f]);
                CHECK_INT(fl_windows_position(windows, window), begin + window.first);
            }
            CHECK_INT(fl_windows_of_file(windows, f), index - before);
        }
        CHECK_INT(fl_windows_count(windows), index);
        CHECK_INT(fl_windows_position(windows, (fl_window){.file = FILES}), 154);
    }
    fl_windows_close(windows);
}

static void test_strided_and_jittered(void)
{
    for (int64_t length = 1; length <= 30; length++)
        for (int64_t stride = 1; stride <= 12; stride++) {
            check_against_counting(length, stride, FL_WINDOW_STRIDED);
            check_against_counting(length, stride, FL_WINDOW_JITTERED);
        }
}

static void test_jitter_takes_every_offset(void)
{
    fl_windows *windows = open_windows(lengths, FILES, 8, 5, FL_WINDOW_JITTERED);
    int seen[5] = {0};
    for (uint32_t epoch = 0; epoch < 500; epoch++)
        seen[fl_windows_find(windows, 0, epoch).first % 5]++;
    for (int i = 0; i < 5; i++) CHECK(seen[i] > 60 && seen[i] < 140);
    fl_windows_close(windows);
}

/* Each position of each file at which a window fits comes equally often. */
static void test_random_is_uniform(void)
{
    enum { LENGTH = 4, DRAWS = 40000, PLACES = 7 + 1 + 97 + 4 + 26 };
    fl_windows *windows = open_windows(lengths, FILES, LENGTH, 3, FL_WINDOW_RANDOM);
    CHECK_INT(fl_windows_count(windows), 154 / 3);
    double seen[FILES][100] = {{0}};
    for (int64_t i = 0; i < DRAWS; i++) {
        fl_window window = fl_windows_find(windows, i % 51, (uint32_t)(i / 51));
        CHECK(window.first >= 0 && window.first + LENGTH <= lengths[window.file]);
        seen[window.file][window.first]++;
    }
    double chi = 0, expected = DRAWS / (double)PLACES;
    int64_t places = 0;
    for (int64_t f = 0; f < FILES; f++)
        for (int64_t at = 0; at + LENGTH <= lengths[f]; at++, places++)
            chi += (seen[f][at] - expected) * (seen[f][at] - expected) / expected;
    CHECK_INT(places, PLACES);
    CHECK(chi < 203); /* 134 degrees of freedom: 1 in 10 000 */
    fl_windows_close(windows);
}

static void test_large_files(void)
{
    const int64_t tokens[] = {INT64_C(1) << 60, INT64_C(1) << 61, 5};
    fl_windows *windows = open_windows(tokens, 3, 1025, 1, FL_WINDOW_RANDOM);
    int64_t high = 0;
    for (int64_t i = 0; i < 100; i++) {
        fl_window window = fl_windows_find(windows, i, 0);
        CHECK(window.file < 2 && window.first + 1025 <= tokens[window.file]);
        high |= window.first;
    }
    CHECK(high >> 58 != 0 && (high & 0xFF) == 0xFF);
    fl_windows_close(windows);
    windows = open_windows(tokens, 3, 1024, 1, FL_WINDOW_STRIDED);
    fl_window last = fl_windows_find(windows, fl_windows_count(windows) - 1, 0);
    CHECK_INT(last.file, 1);
    CHECK_INT(last.first, tokens[1] - 1024);
    fl_windows_close(windows);
}

static void test_refusals(void)
{
    const int64_t tokens[] = {INT64_C(1) << 62, 1, 20};
    fl_windows *windows;
    fl_err err;
    fl_window_config config = {tokens, 2, 4, 1, FL_WINDOW_STRIDED, 0};
    CHECK_INT(fl_windows_open(&config, &windows, &err), FL_EINVAL);
    CHECK(windows == NULL && strstr(err.text, "2^62") != NULL);
    config = (fl_window_config){tokens + 1, 2, 21, 1, FL_WINDOW_STRIDED, 0};
    CHECK_INT(fl_windows_open(&config, &windows, &err), FL_EINVAL);
    CHECK(windows == NULL && strstr(err.text, "one of the 2 files must have") != NULL);
    config = (fl_window_config){tokens, 0, 1, 1, FL_WINDOW_RANDOM, 0};
    CHECK_INT(fl_windows_open(&config, &windows, &err), FL_EINVAL);
    config = (fl_window_config){tokens, INT64_MAX / 4, 1, 1, FL_WINDOW_RANDOM, 0};
    CHECK_INT(fl_windows_open(&config, &windows, &err), FL_ENOMEM);
}

static int open_once(void *arg)
{
    fl_windows *windows;
    (void)arg;
    fl_window_config config = {lengths, FILES, 4, 1, FL_WINDOW_STRIDED, 0};
    int status = fl_windows_open(&config, &windows, NULL);
    fl_windows_close(windows);
    return status;
}

static void test_without_memory(void) { CHECK_INT(refuse_each(open_once, NULL), 1); }

/* The meaning of a seed never changes. */
static void test_known_answers(void)
{
    const int64_t tokens[] = {1000, 100000};
    fl_windows *windows = open_windows(tokens, 2, 65, 64, FL_WINDOW_RANDOM);
    fl_window window = fl_windows_find(windows, 3, 2);
    CHECK_INT(window.file, 1);
    CHECK_INT(window.first, 15207);
    fl_windows_close(windows);
    windows = open_windows(tokens, 2, 65, 64, FL_WINDOW_JITTERED);
    CHECK_INT(fl_windows_find(windows, 0, 1).first, 37);
    CHECK_INT(fl_windows_find(windows, 0, 2).first, 17);
    fl_windows_close(windows);
}

int main(void)
{
    start_tests();
    RUN(test_strided_and_jittered);
    RUN(test_jitter_takes_every_offset);
    RUN(test_random_is_uniform);
    RUN(test_large_files);
    RUN(test_refusals);
    RUN(test_without_memory);
    RUN(test_known_answers);
}
