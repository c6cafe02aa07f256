/* Tests of fl_box_blur: images of both kinds of pixels against sums that visit every byte of a box,
 * by all tables of kernels, in memory that ends at the end of the image. */
#include "cpu_image_fixture.h"

#include "fl_box_blur.h"

enum { CASES = 300, MOST = 70 };

/* Blurs `count` bytes, `step` bytes apart. */
static void blur_line(uint8_t *line, int64_t count, int64_t step, const fl_box *box)
{
    uint8_t before[MOST];
    for (int pass = 0; pass < 3; pass++) {
        for (int64_t i = 0; i < count; i++) before[i] = line[i * step];
        for (int64_t i = 0; i < count; i++) {
            uint64_t sum = 1 << 23;
            for (int64_t k = i - box->radius - 1; k <= i + box->radius + 1; k++) {
                bool is_end = k == i - box->radius - 1 || k == i + box->radius + 1;
                uint64_t byte = before[fl_max(0, fl_min(k, count - 1))];
                sum += byte * (is_end ? box->part : box->whole);
            }
            line[i * step] = (uint8_t)(sum >> 24);
        }
    }
}

static void blur_slowly(const fl_box_image *image, const fl_box *box)
{
    const int64_t bytes = image->pixel_bytes, pitch = image->columns * bytes;
    for (int64_t y = 0; y < image->rows; y++)
        for (int64_t c = 0; c < bytes; c++)
            blur_line(image->data + y * pitch + c, image->columns, bytes, box);
    for (int64_t x = 0; x < pitch; x++) blur_line(image->data + x, image->rows, pitch, box);
}

static void check_image(int64_t rows, int64_t columns, int64_t pixel_bytes, uint64_t *state)
{
    fl_err err;
    const int64_t bytes = rows * columns * pixel_bytes, limit = random_below(state, 2) ? 4 : 90;
    const float radius = (float)(1 + random_below(state, 1000)) * (float)limit / 1000;
    const fl_box box = fl_box_of(radius);
    uint8_t *before = part_of(&fences[0], bytes, true);
    fl_box_image image = {part_of(&fences[1], bytes, true), rows, columns, pixel_bytes};
    uint8_t *expected = image.data;
    for (int64_t i = 0; i < bytes; i++) expected[i] = before[i] = (uint8_t)random_below(state, 256);
    blur_slowly(&image, &box);
    image.data = part_of(&fences[2], bytes, true);
    EACH_VARIANT(ops)
    {
        memcpy(image.data, before, (size_t)bytes);
        CHECK(fl_box_blur(ops, &image, radius, &err) == FL_OK);
        CHECK(memcmp(image.data, expected, (size_t)bytes) == 0);
    }
}

static void test_a_blur_is_three_means_in_each_direction(void)
{
    uint64_t state = 5;
    for (int n = 0; n < CASES; n++) {
        int64_t rows = 1 + (int64_t)random_below(&state, MOST - 1);
        int64_t columns = 1 + (int64_t)random_below(&state, MOST - 1);
        check_image(rows, columns, n % 2 == 0 ? 4 : 1, &state);
    }
}

/* Numbers that Pillow 13 prints. */
static void test_a_spike_is_spread_as_by_pillow(void)
{
    static const uint8_t expected[][12] = {{0, 0, 0, 1, 21, 155, 21, 1, 0, 0, 0, 0},
                                           {0, 0, 1, 11, 47, 81, 47, 11, 1, 0, 0, 0},
                                           {2, 6, 14, 25, 34, 38, 34, 25, 14, 6, 2, 0}};
    static const float radius[] = {0.5f, 1, 2};
    fl_err err;
    for (int k = 0; k < 3; k++) {
        uint8_t spike[12] = {[5] = 200};
        const fl_box_image image = {spike, 1, sizeof spike, 1};
        CHECK(fl_box_blur(&fl_cpu_image_plain, &image, radius[k], &err) == FL_OK);
        CHECK(memcmp(spike, expected[k], sizeof spike) == 0);
    }
}

static void test_no_memory_changes_nothing(void)
{
    fl_err err;
    uint8_t spike[4] = {[1] = 200};
    const fl_box_image image = {spike, 1, sizeof spike, 1};
    fl_fault_arm(1);
    CHECK(fl_box_blur(&fl_cpu_image_plain, &image, 1, &err) == FL_ENOMEM);
    fl_fault_arm(0);
    CHECK(spike[1] == 200 && spike[0] == 0);
}

int main(void)
{
    start_tests();
    find_variants();
    make_fences();
    RUN(test_a_blur_is_three_means_in_each_direction);
    RUN(test_a_spike_is_spread_as_by_pillow);
    RUN(test_no_memory_changes_nothing);
    return 0;
}
