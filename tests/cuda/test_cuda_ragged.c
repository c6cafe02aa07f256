/* Sequences that are padded and packed on the device: the kernel, compiled as C++, against single
 * elements; how many launches there are, and what one that fails leaves. */
#include "cuda_fixture.h"

#include "fl_cuda_ragged.h"

enum { GUARD = 0x5A, MOST = 40, VALUES = 5000 };

static uint64_t seed = 11;

/* Returns a number in [0, limit). */
static int64_t draw(int64_t limit)
{
    uint32_t number;
    fill_random(&seed, (char *)&number, sizeof number);
    return number % limit;
}

/* Allocates owned memory that ends at the end of its contents. */
static char *allocate(int64_t bytes)
{
    void *data;
    CHECK(posix_memalign(&data, 64, (size_t)fl_max(bytes, 1)) == 0);
    memset(data, GUARD, (size_t)fl_max(bytes, 1));
    return data;
}

/* Makes pieces of this width or, if it is negative, of any width up to -width, with sequences that
 * are no longer. */
static fl_piece *open_pieces(int64_t count, int64_t width)
{
    fl_piece *pieces = (fl_piece *)allocate((count + 1) * (int64_t)sizeof *pieces);
    int64_t start = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t each = width >= 0 ? width : draw(1 - width);
        int64_t length = draw(3) == 0 ? each : draw(each + 1);
        pieces[i] = (fl_piece){start, draw(VALUES - length + 1), length};
        start += each;
    }
    pieces[count] = (fl_piece){.start = start};
    return pieces;
}

/* An element as int64; of values, their bits. */
static int64_t expect(const fl_piece_batch *of, const char *values, int64_t element)
{
    int64_t i = 0;
    if (of->output == FL_PIECE_STARTS) return of->pieces[element].start;
    if (of->output == FL_PIECE_LENGTHS) return of->pieces[element].length;
    while (of->pieces[i + 1].start <= element) i++;
    const fl_piece *piece = &of->pieces[i];
    int64_t place = element - piece->start;
    if (of->output == FL_PIECE_POSITIONS) return place;
    if (of->pad_left) place -= of->pieces[i + 1].start - piece->start - piece->length;
    bool is_inside = place >= 0 && place < piece->length;
    if (of->output == FL_PIECE_MASK) return is_inside;
    if (!is_inside || (of->is_label && place == 0)) return (int64_t)of->padding;
    const char *at = values + (piece->begin + place) * of->from_bytes;
    int64_t value = of->is_signed && at[of->from_bytes - 1] < 0 ? -1 : 0;
    memcpy(&value, at, (size_t)of->from_bytes);
    return value;
}

static void check_output(const fl_piece_batch *of, const char *values)
{
    for (int64_t i = 0; i < of->count; i++) {
        int64_t element = expect(of, values, i);
        CHECK(memcmp((char *)of->to + i * of->bytes, &element, (size_t)of->bytes) == 0);
    }
}

/* Outputs of every kind and of every size, up to `most`, over pieces of one table. */
static int32_t
list_outputs(fl_piece_batch *outputs, int32_t most, fl_piece_batch like, const char *values)
{
    int32_t count = 0;
    int64_t elements = like.pieces[like.piece_count].start;
    for (int32_t from = 1; from <= 8; from *= 2)
        for (int32_t bytes = from; bytes <= 8 && count < most; bytes *= 2) {
            fl_piece_batch of = like;
            of.count = elements;
            of.from = values;
            of.from_bytes = from;
            of.bytes = bytes;
            of.padding = (uint64_t)draw(1 << 30) * 0x10001;
            of.is_signed = draw(2) == 1;
            of.is_label = draw(2) == 1;
            outputs[count++] = of;
        }
    for (int32_t kind = FL_PIECE_MASK; kind <= FL_PIECE_LENGTHS && count < most; kind++) {
        fl_piece_batch of = like;
        bool is_vector = kind == FL_PIECE_STARTS || kind == FL_PIECE_LENGTHS;
        of.output = (fl_piece_output)kind;
        of.count = is_vector ? like.piece_count + (kind == FL_PIECE_STARTS) : elements;
        of.bytes = kind == FL_PIECE_STARTS ? 4 : 8;
        outputs[count++] = of;
    }
    for (int32_t i = 0; i < count; i++)
        outputs[i].to = allocate(outputs[i].count * outputs[i].bytes);
    return count;
}

/* Checks one kernel. Pieces of different widths have their padding at the end. */
static void check_one(int64_t pieces, int64_t width, bool pad_left, bool says_width)
{
    fl_piece_batch outputs[MOST], like = {.piece_count = pieces, .pad_left = pad_left};
    char *values = allocate(VALUES * 8);
    fill_random(&seed, values, VALUES * 8);
    like.pieces = open_pieces(pieces, width);
    like.width = says_width ? width : 0;
    int32_t count = list_outputs(outputs, MOST, like, values);
    const int64_t before = fake_launches();
    CHECK_INT(fl_cuda_gather_pieces(0, NULL, outputs, count, NULL), FL_OK);
    CHECK_INT(fake_launches() - before, 1);
    fake_synchronize(NULL);
    for (int32_t i = 0; i < count; i++) {
        check_output(&outputs[i], values);
        free(outputs[i].to);
    }
    free((void *)(uintptr_t)like.pieces);
    free(values);
}

/* Blocks make 1024 elements, and begin and end anywhere in a piece. */
static void test_pieces_of_every_width(void)
{
    static const int64_t widths[] = {0, 1, 2, 7, 63, 1023, 1024, 1025, 3000};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i += ONE_IN)
        for (int pad_left = 0; pad_left < 2; pad_left++)
            for (int says_width = 0; says_width < 2; says_width++)
                check_one(1 + draw(6), widths[i], pad_left == 1, says_width == 1);
}

static void test_pieces_of_several_widths(void)
{
    static const int64_t most[] = {1, 2, 9, 100, 2000};
    for (size_t i = 0; i < sizeof most / sizeof *most; i += ONE_IN)
        for (int64_t count = 1; count < 1500; count *= 6) {
            if (count * most[i] > 100000) continue;
            check_one(count, -most[i], false, false);
            check_one(count, -most[i], true, false);
        }
}

static void close_outputs(fl_piece_batch *outputs, int32_t count)
{
    for (int32_t i = 0; i < count; i++) free(outputs[i].to);
}

/* One for 32 outputs that have elements. */
static void test_many_outputs(void)
{
    fl_piece_batch outputs[MOST], like = {.piece_count = 3};
    like.pieces = open_pieces(3, 5);
    for (int32_t i = 0; i < MOST; i++) {
        outputs[i] = like;
        outputs[i].output = FL_PIECE_POSITIONS;
        outputs[i].bytes = 8;
        outputs[i].count = i % 3 == 0 ? 0 : 15;
        outputs[i].to = allocate(outputs[i].count * 8);
    }
    const int64_t before = fake_launches();
    CHECK_INT(fl_cuda_gather_pieces(0, NULL, outputs, MOST, NULL), FL_OK);
    CHECK_INT(fake_launches() - before, 2);
    CHECK_INT(fl_cuda_gather_pieces(0, NULL, outputs, 1, NULL), FL_OK);
    CHECK_INT(fake_launches() - before, 2);
    fake_synchronize(NULL);
    for (int32_t i = 0; i < MOST; i++) check_output(&outputs[i], NULL);
    close_outputs(outputs, MOST);
    free((void *)(uintptr_t)like.pieces);
}

/* The error names the call, and nothing is written. */
static void test_a_launch_that_fails(void)
{
    fl_err err;
    fl_piece_batch outputs[1], like = {.piece_count = 2, .output = FL_PIECE_MASK};
    like.pieces = open_pieces(2, 3);
    outputs[0] = like;
    outputs[0].bytes = 8;
    outputs[0].count = 6;
    outputs[0].to = allocate(48);
    fake_fail_at(1, cudaErrorLaunchFailure, false);
    CHECK_INT(fl_cuda_gather_pieces(0, NULL, outputs, 1, &err), FL_EDEVICE);
    fake_fail_at(0, cudaSuccess, false);
    CHECK(strstr(err.text, "cudaErrorLaunchFailure") != NULL);
    CHECK_INT(cudaGetLastError(), cudaSuccess);
    fake_synchronize(NULL);
    for (int i = 0; i < 48; i++) CHECK_INT(((char *)outputs[0].to)[i], GUARD);
    close_outputs(outputs, 1);
    free((void *)(uintptr_t)like.pieces);
}

int main(void)
{
    start_tests();
    choose_device_0();
    CHECK_INT(fl_cuda_load_kernels(NULL), FL_OK);
    RUN(test_pieces_of_every_width);
    RUN(test_pieces_of_several_widths);
    RUN(test_many_outputs);
    RUN(test_a_launch_that_fails);
    return 0;
}
