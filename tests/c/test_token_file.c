/* Tests of fl_token_file: numbers at the limits of their types, and sentences that say what is
 * wrong. What whole files mean is tested through Python, with files as their tools write them. */
#include "check.h"

#include "fl_token_file.h"

static void check_refused(int status, const fl_err *err, const char *text)
{
    CHECK_INT(status, FL_EINVAL);
    if (strstr(err->text, text) == NULL) fprintf(stderr, "\n%s\n", err->text);
    CHECK(strstr(err->text, text) != NULL);
}

static void test_raw_files(void)
{
    fl_token_layout found;
    fl_err err;
    CHECK_INT(fl_token_file_read_raw(14, FL_TOKEN_U16, &found, &err), FL_OK);
    CHECK(found.type == FL_TOKEN_U16 && found.first_byte == 0 && found.count == 7);
    CHECK_INT(fl_token_file_read_raw(INT64_MAX, FL_TOKEN_U8, &found, &err), FL_OK);
    CHECK_INT(found.count, INT64_MAX);
    check_refused(fl_token_file_read_raw(15, FL_TOKEN_U16, &found, &err), &err,
                  "must have a multiple of 2 bytes of tokens, got 15 (is the file cut");
    check_refused(fl_token_file_read_raw(0, FL_TOKEN_U16, &found, &err), &err,
                  "must hold at least one token");
    check_refused(fl_token_file_read_raw(14, FL_TOKEN_TYPES, &found, &err), &err, "pass dtype=");
}

static int read_llmc(const int32_t words[3], int64_t file_bytes, fl_token_type type,
                     fl_token_layout *found, fl_err *err)
{
    char head[FL_LLMC_BYTES] = {0};
    memcpy(head, words, 12);
    CHECK(fl_token_file_is_llmc(head, sizeof head));
    return fl_token_file_read_llmc(head, sizeof head, file_bytes, type, found, err);
}

static void test_files_of_llmc(void)
{
    static const fl_token_type widths[] = {FL_TOKEN_U8, FL_TOKEN_U16, FL_TOKEN_U32};
    const int32_t narrow[] = {20240520, 1, 10}, wide[] = {20240801, 7, 10};
    fl_token_layout found;
    fl_err err;
    for (int i = 0; i < 3; i++) {
        CHECK_INT(read_llmc(narrow, 1024 + (10 << i), widths[i], &found, &err), FL_OK);
        CHECK(found.type == widths[i] && found.first_byte == 1024 && found.count == 10);
    }
    CHECK_INT(read_llmc(narrow, 1024 + 20, FL_TOKEN_TYPES, &found, &err), FL_OK);
    CHECK(found.type == FL_TOKEN_U16);
    check_refused(read_llmc(narrow, 1024 + 10, FL_TOKEN_TYPES, &found, &err), &err,
                  "the file is cut; or pass dtype='uint8' if its tokens are");
    check_refused(read_llmc(narrow, 1024 + 40, FL_TOKEN_TYPES, &found, &err), &err,
                  "the file is too long; or pass dtype='uint32' if its tokens are");
    CHECK_INT(read_llmc(wide, 1024 + 40, FL_TOKEN_I32, &found, &err), FL_OK);
    CHECK(found.type == FL_TOKEN_I32);
    check_refused(read_llmc(wide, 1024 + 20, FL_TOKEN_TYPES, &found, &err), &err,
                  "the file is cut");
    check_refused(read_llmc(narrow, 1024 + 19, FL_TOKEN_TYPES, &found, &err), &err,
                  "must have 10 tokens of 2 bytes, as its header says, got 19 bytes");
    check_refused(read_llmc(narrow, 1024 + 20, FL_TOKEN_U32, &found, &err), &err,
                  "must have tokens of 4 bytes, as dtype= says, got 2 by its header");
    check_refused(read_llmc((int32_t[]){20240520, 2, 10}, 1044, FL_TOKEN_TYPES, &found, &err), &err,
                  "version 1, got 2");
    check_refused(read_llmc((int32_t[]){20240520, 1, -10}, 1004, FL_TOKEN_TYPES, &found, &err),
                  &err, "the file is cut");
    check_refused(read_llmc((int32_t[]){20240520, 1, -10}, 1034, FL_TOKEN_TYPES, &found, &err),
                  &err, "must have -10 tokens");
    check_refused(read_llmc((int32_t[]){20240520, 1, 0}, 1024, FL_TOKEN_TYPES, &found, &err), &err,
                  "must hold at least one token");
}

/* The head of an index with these counts. */
static int read_index(int64_t sequences, int64_t ends, int64_t index_bytes, int code, fl_err *err)
{
    char head[FL_MEGATRON_BYTES] = "MMIDIDX\0";
    fl_token_index found;
    int64_t version = 1;
    memcpy(head + 9, &version, 8);
    head[17] = (char)code;
    memcpy(head + 18, &sequences, 8);
    memcpy(head + 26, &ends, 8);
    return fl_token_index_read(head, sizeof head, index_bytes, &found, err);
}

/* Nobody may allocate by a count that the file is too short for. */
static void test_counts_that_no_index_has(void)
{
    static const int64_t counts[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX / 12, INT64_MAX / 8, 1000};
    fl_err err;
    CHECK_INT(read_index(1, 2, 34 + 12 + 16, 8, &err), FL_OK);
    CHECK_INT(read_index(1, 2, 34 + 12 + 16 + 1, 8, &err), FL_OK); /* with modes */
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        check_refused(read_index(counts[i], 2, 62, 8, &err), &err, "the file is cut");
        check_refused(read_index(1, counts[i], 62, 8, &err), &err, "the file is cut");
        check_refused(read_index(counts[i], counts[i], 62, 8, &err), &err, "the file is cut");
    }
    check_refused(read_index(INT64_MAX / 12, 2, INT64_MAX, 8, &err), &err, "the file is cut");
    check_refused(read_index(1, 0, 34 + 12, 8, &err), &err, "must have ends of documents");
    check_refused(read_index(1, 2, 62, 7, &err), &err,
                  "must have the dtype code of an integer type, got 7");
    check_refused(read_index(1, 2, 62, 255, &err), &err, "integer type, got 255");
    check_refused(read_index(1, 2, 33, 8, &err), &err, "the file is cut");
}

static void test_ends_that_overflow_bytes(void)
{
    const int64_t ends[] = {INT64_MAX / 2 + 1};
    int64_t out[1];
    fl_token_layout found;
    fl_err err;
    int status =
        fl_token_ends_read((const char *)ends, 8, INT64_MAX, FL_TOKEN_I64, out, &found, &err);
    check_refused(status, &err, "must end with the last token");
}

int main(void)
{
    start_tests();
    RUN(test_raw_files);
    RUN(test_files_of_llmc);
    RUN(test_counts_that_no_index_has);
    RUN(test_ends_that_overflow_bytes);
    return 0;
}
