/* Tests of the kernels on colours: each table that this machine can run against the plain table,
 * for all lengths, with memory that ends at the end of the planes. The tests of plans check the
 * plain table against formulas. */
#include "cpu_image_fixture.h"

#include "fl_blur.h"

#include <math.h>

enum { PLANES = 3 };

typedef enum call {
    LOOK_UP,
    RANGE,
    COUNT,
    SUM,
    GREY,
    SATURATE,
    TURN_HUE,
    SHARPEN,
    NOISE,
    CALLS
} call;

/* The bytes of an operation in place, and the numbers that an operation returns. */
typedef struct result {
    int64_t numbers[256];
    uint8_t grey[FENCED / PLANES];
} result;

static void run(const fl_image_ops *ops, call which, fl_image_arithmetic how,
                const fl_image_planes *planes, const uint8_t *table, result *out)
{
    const fl_image_tone_ops *tone = &ops->tone;
    memset(out, 0, sizeof *out);
    uint8_t least = 0, largest = 0;
    float factor = (float)table[0] / 100;
    if (which == LOOK_UP) tone->look_up(planes, table);
    if (which == RANGE) tone->range(planes, &least, &largest);
    if (which == COUNT) tone->count(planes, out->numbers);
    if (which == SUM) tone->sum(planes->data, planes->columns, out->numbers);
    if (which == GREY) tone->grey[how](out->grey, planes);
    if (which == SATURATE) tone->saturate[how](planes, (double)factor);
    if (which == TURN_HUE) tone->turn_hue[how](planes, (float)table[0] / 255 - 0.5f);
    const fl_image_noise noise = {*table * UINT64_C(0x9E3779B97F4A7C15), 3.5f, 30, table[1] % 2};
    if (which == NOISE) tone->add_noise(planes, table[2], &noise);
    if (which == SHARPEN) tone->sharpen[how](out->grey, planes->columns, planes, (double)factor);
    if (which == RANGE) out->numbers[0] = least, out->numbers[1] = largest;
}

static void
check_call(call which, int64_t rows, int64_t columns, int64_t gap, bool is_at_end, uint64_t *state)
{
    static result expected, got;
    int64_t pitch = columns + gap, plane = rows * pitch, bytes = PLANES * plane - gap;
    buffers b = make_buffers(bytes, bytes, is_at_end, state);
    uint8_t table[256];
    fill_random(state, (char *)table, sizeof table);
    const fl_image_arithmetic how = (fl_image_arithmetic)random_below(state, FL_IMAGE_ARITHMETICS);
    if (columns % 5 == 0) memset(b.src, 77, (size_t)bytes); /* grey, and one value */
    fl_image_planes planes = {b.expected, pitch, plane, rows, columns};
    memcpy(b.expected, b.src, (size_t)bytes);
    run(&fl_cpu_image_plain, which, how, &planes, table, &expected);
    planes.data = b.dst;
    EACH_VARIANT(ops)
    {
        memcpy(b.dst, b.src, (size_t)bytes);
        run(ops, which, how, &planes, table, &got);
        check_result(&b, ops, "tone", columns);
        CHECK(memcmp(&got, &expected, sizeof got) == 0);
    }
}

static void test_all_tables_have_the_bits_of_the_plain_one(void)
{
    uint64_t state = 1;
    for (int which = 0; which < CALLS; which++)
        for (int64_t columns = 1; columns < LENGTHS; columns++)
            for (int is_at_end = 0; is_at_end < 2; is_at_end++) {
                check_call((call)which, 1, columns, 0, is_at_end, &state);
                check_call((call)which, 1 + columns % 5, columns, columns % 3, is_at_end, &state);
            }
}

/* Blurs planes that end at the end of their memory, into a result that also does. */
static void check_blur(int64_t columns, bool is_at_end, uint64_t *state)
{
    int32_t width = 1 + 2 * (int32_t)random_below(state, 8);
    int32_t height = 1 + 2 * (int32_t)random_below(state, 8);
    float weights[15 + 15 + 15 * 15], memory[17 * (LENGTHS + 14)];
    int64_t rows = 1 + columns % 7, gap = columns % 3;
    fl_image_planes planes = {.pitch = columns + width - 1 + gap,
                              .rows = rows + height - 1,
                              .columns = columns + width - 1};
    buffers b = make_buffers(planes.rows * planes.pitch - gap, rows * columns, is_at_end, state);
    if (columns % 4 == 0) memset(b.src, 1, (size_t)(b.src_bytes / 2));
    fl_image_blur blur;
    fl_blur_make(&blur, width, height, (float)(1 + columns % 90) / 10, NULL, weights);
    if (columns % 5 == 0) blur.error = 1; /* all pixels are in doubt */
    planes.data = b.src;
    for (int64_t y = 0; y < rows; y++)
        for (int64_t x = 0; x < columns; x++) {
            float sum = 0;
            for (int32_t i = 0; i < height; i++)
                for (int32_t j = 0; j < width; j++)
                    sum =
                        fmaf(b.src[(y + i) * planes.pitch + x + j], blur.taps[i * width + j], sum);
            b.expected[y * columns + x] = (uint8_t)rintf(sum);
        }
    EACH_VARIANT(ops)
    {
        clear_result(&b);
        ops->tone.blur(b.dst, columns, &planes, &blur, memory);
        check_result(&b, ops, "blur", columns);
    }
}

static void test_a_blur_is_the_sum_in_order(void)
{
    uint64_t state = 3;
    for (int64_t columns = 1; columns < LENGTHS; columns++)
        for (int is_at_end = 0; is_at_end < 2; is_at_end++) check_blur(columns, is_at_end, &state);
}

static void test_a_plane_is_counted_and_summed(void)
{
    enum { BYTES = 1000 };
    uint8_t bytes[BYTES];
    int64_t sums[32] = {0}, count[256] = {0}, total = 0;
    for (int i = 0; i < BYTES; i++) total += bytes[i] = (uint8_t)(i * 7);
    fl_image_planes plane = {bytes, BYTES, 0, 1, BYTES};
    fl_cpu_image_plain.tone.count(&plane, count);
    fl_cpu_image_plain.tone.sum(bytes, BYTES, sums);
    for (int k = 0; k < 32; k++) {
        int64_t expected = 0;
        for (int i = k; i < BYTES; i += 32) expected += bytes[i];
        CHECK_INT(sums[k], expected);
    }
    for (int v = 0; v < 256; v++) total -= v * count[v];
    CHECK_INT(total, 0);
}

int main(void)
{
    start_tests();
    find_variants();
    make_fences();
    RUN(test_all_tables_have_the_bits_of_the_plain_one);
    RUN(test_a_blur_is_the_sum_in_order);
    RUN(test_a_plane_is_counted_and_summed);
    return 0;
}
