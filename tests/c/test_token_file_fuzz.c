/* Tests of fl_token_file with files that nobody wrote: bytes flipped, cut, numbers huge. Whatever
 * the bytes are, nothing is read beyond them, and what is found lies in the file. Each buffer has
 * exactly the bytes that its reader is told of, for the sanitizers. */
#include "check.h"

#include "fl_token_file.h"

enum { CASES = 20000, MOST_BYTES = 2048 };

typedef struct bytes {
    char *data; /* owned */
    int64_t count;
} bytes;

static bytes make_bytes(int64_t count)
{
    bytes made = {malloc((size_t)fl_max(count, 1)), count};
    CHECK(made.data != NULL && count <= MOST_BYTES);
    memset(made.data, 0, (size_t)count);
    return made;
}

static void put_i32(bytes *file, int64_t at, int32_t value)
{
    memcpy(file->data + at, &value, sizeof value);
}

static void put_i64(bytes *file, int64_t at, int64_t value)
{
    memcpy(file->data + at, &value, sizeof value);
}

static int64_t wild_number(uint64_t *random)
{
    static const int64_t extremes[] = {0, 1, -1, INT64_MAX, INT64_MIN, INT32_MAX, UINT32_MAX};
    int64_t extreme = extremes[random_below(random, 7)];
    if (random_below(random, 2)) return extreme;
    return (int64_t)next_random(random) >> random_below(random, 63);
}

/* Does to `file` what damages files: a flipped bit, a wild number, its end cut or grown. */
static void damage(uint64_t *random, bytes *file)
{
    for (int64_t n = random_below(random, 4); n > 0; n--) {
        if (file->count >= 8 && random_below(random, 2))
            put_i64(file, random_below(random, file->count - 7), wild_number(random));
        else if (file->count > 0)
            file->data[random_below(random, file->count)] ^= (char)(1 << random_below(random, 8));
    }
    if (random_below(random, 3) > 0) return;
    bytes other = make_bytes(random_below(random, 2 * file->count + 1) % MOST_BYTES);
    memcpy(other.data, file->data, (size_t)fl_min(other.count, file->count));
    free(file->data);
    *file = other;
}

/* The size that belongs to the file, or one that does not. */
static int64_t wild_size(uint64_t *random, int64_t right)
{
    if (random_below(random, 2)) return right;
    return wild_number(random) & INT64_MAX;
}

static fl_token_type some_type(uint64_t *random)
{
    return random_below(random, 2) ? FL_TOKEN_TYPES
                                   : (fl_token_type)random_below(random, FL_TOKEN_TYPES);
}

/* Checks that the layout lies in a file of `size`, and reaches its last byte. */
static void check_layout(const fl_token_layout *found, int64_t size)
{
    CHECK(found->type < FL_TOKEN_TYPES && found->count >= 1 && found->first_byte >= 0);
    int64_t width = fl_token_bytes(found->type);
    CHECK(found->count <= size / width);
    CHECK_INT(found->first_byte + found->count * width, size);
}

static void check_ends(const int64_t *ends, int64_t count, const fl_token_layout *found)
{
    for (int64_t d = 0; d < count; d++) CHECK(ends[d] >= (d > 0 ? ends[d - 1] : 0));
    CHECK(count > 0);
    CHECK_INT(ends[count - 1], found->count);
}

/* A failure says FL_EINVAL and a sentence that fits the record. */
static bool check_status(int status, const fl_err *err)
{
    if (status == FL_OK) return true;
    CHECK_INT(status, FL_EINVAL);
    CHECK(strlen(err->text) > 0 && strlen(err->text) < sizeof err->text);
    return false;
}

static bool try_llmc(uint64_t *random)
{
    bool is_wide = random_below(random, 2);
    int32_t count = 1 + (int32_t)random_below(random, 1000);
    int64_t width = is_wide ? 4 : 1 << random_below(random, 3);
    bytes head = make_bytes(FL_LLMC_BYTES);
    put_i32(&head, 0, is_wide ? 20240801 : 20240520);
    put_i32(&head, 4, is_wide ? 7 : 1);
    put_i32(&head, 8, count);
    damage(random, &head);
    int64_t size = wild_size(random, FL_LLMC_BYTES + width * count);
    fl_token_layout found;
    fl_err err;
    fl_token_file_check(head.data, head.count, &err);
    int status =
        fl_token_file_read_llmc(head.data, head.count, size, some_type(random), &found, &err);
    bool is_read = check_status(status, &err);
    if (is_read) check_layout(&found, size);
    free(head.data);
    return is_read;
}

/* An index of few documents of few sequences each, and the size of its .bin file. */
static bytes make_index(uint64_t *random, int64_t *bin_bytes)
{
    static const int8_t widths[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};
    int code = 1 + (int)random_below(random, 8);
    int64_t sequences = random_below(random, 20), documents = random_below(random, 10);
    if (sequences > 0) documents++;
    bool has_modes = random_below(random, 4) == 0;
    bytes index =
        make_bytes(FL_MEGATRON_BYTES + sequences * (has_modes ? 13 : 12) + 8 * (documents + 1));
    memcpy(index.data, "MMIDIDX\0", 9);
    put_i64(&index, 9, 1);
    index.data[17] = (char)code;
    put_i64(&index, 18, sequences);
    put_i64(&index, 26, documents + 1);
    int64_t lengths = FL_MEGATRON_BYTES, pointers = lengths + 4 * sequences, begin = 0;
    for (int64_t s = 0; s < sequences; s++) {
        int32_t length = (int32_t)random_below(random, 50);
        put_i32(&index, lengths + 4 * s, length);
        put_i64(&index, pointers + 8 * s, begin);
        begin += length * widths[code];
    }
    int64_t stops = pointers + 8 * sequences;
    for (int64_t d = 1; d <= documents; d++)
        put_i64(&index, stops + 8 * d, d == documents ? sequences : sequences * d / documents);
    *bin_bytes = begin;
    return index;
}

static bool try_megatron(uint64_t *random)
{
    int64_t size;
    bytes index = make_index(random, &size);
    damage(random, &index);
    size = wild_size(random, size);
    fl_token_index head;
    fl_token_layout found;
    fl_err err;
    int status = fl_token_index_read(index.data, index.count, index.count, &head, &err);
    if (!check_status(status, &err)) {
        free(index.data);
        return false;
    }
    CHECK(head.documents >= 0 && head.documents <= index.count / 8);
    int64_t *ends = malloc((size_t)fl_max(head.documents * 8, 1));
    CHECK(ends != NULL);
    bool is_read =
        check_status(fl_token_index_ends(index.data, &head, size, ends, &found, &err), &err);
    if (is_read) check_layout(&found, size);
    if (is_read) check_ends(ends, head.documents, &found);
    free(ends);
    free(index.data);
    return is_read;
}

static bool try_datatrove(uint64_t *random)
{
    int64_t documents = random_below(random, 20), last = 0;
    bytes index = make_bytes(8 * documents);
    for (int64_t d = 0; d < documents; d++)
        put_i64(&index, 8 * d, last += random_below(random, 100));
    damage(random, &index);
    int64_t size = wild_size(random, last * (random_below(random, 2) ? 2 : 4));
    int64_t *ends = malloc((size_t)fl_max(index.count / 8 * 8, 1));
    CHECK(ends != NULL);
    fl_token_layout found;
    fl_err err;
    int status =
        fl_token_ends_read(index.data, index.count, size, some_type(random), ends, &found, &err);
    bool is_read = check_status(status, &err);
    if (is_read) check_layout(&found, size);
    if (is_read) check_ends(ends, index.count / 8, &found);
    free(ends);
    free(index.data);
    return is_read;
}

/* Some files must be read and some refused, or the trials try nothing. */
static void fuzz(bool (*try_one)(uint64_t *))
{
    int64_t were_read = 0;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        uint64_t random = seed;
        were_read += try_one(&random);
    }
    CHECK(were_read > CASES / 50 && were_read < CASES);
}

static void test_damaged_files_of_llmc(void) { fuzz(try_llmc); }
static void test_damaged_indices_of_megatron(void) { fuzz(try_megatron); }
static void test_damaged_indices_of_datatrove(void) { fuzz(try_datatrove); }

int main(void)
{
    start_tests();
    RUN(test_damaged_files_of_llmc);
    RUN(test_damaged_indices_of_megatron);
    RUN(test_damaged_indices_of_datatrove);
    return 0;
}
