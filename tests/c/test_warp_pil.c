/* Tests of Pillow's warps: matrices against numbers that Python and torchvision print, and pixels
 * of each table that this machine can run against formulas that visit the image in Pillow's order,
 * with memory that ends 3 bytes behind the pixels. */
#include "cpu_image_fixture.h"

#include "fl_warp_pil.h"

#include <math.h>

enum { CHANNELS = 3, CASES = 4000, MOST = 70, BEHIND = 3 };

static void check_matrix(const fl_warp_pil *warp, const double expected[6])
{
    for (int k = 0; k < 6; k++) CHECK(warp->m[k] == expected[k]);
}

static void test_versions_multiply_in_different_orders(void)
{
    const fl_affine affine = {
        .angle = 33, .scale = 1.3, .translate = {2, -1}, .shear = {12, -7}, .center = {7.5, 3}};
    double expected[6] = {0x1.1417a5a118b15p-1,  0x1.171d5ba3d9075p-1, 0x1.4972519ef1ae8p+0,
                          -0x1.fe1f08655e372p-2, 0x1.2ff82a8f3b9adp-1, 0x1.a2e46258610a1p+2};
    fl_warp_pil warp = {.how = FL_NEAREST};
    fl_affine_matrix(warp.m, &affine, true);
    check_matrix(&warp, expected);
    fl_affine_matrix(warp.m, &affine, false);
    expected[2] = 0x1.4972519ef1ae7p+0;
    check_matrix(&warp, expected);
}

static void check_angle(double degrees, double cosine, double sine)
{
    const double center[2] = {0, 0};
    fl_warp_pil warp = {.how = FL_NEAREST};
    fl_warp_pil_rotate(&warp, degrees, center);
    check_matrix(&warp, (double[]){cosine, sine, 0, -sine, cosine, 0});
}

static void test_sines_have_15_decimals(void)
{
    check_angle(30, 0x1.bb67ae8584caep-1, -0x1p-1);
    check_angle(33, 0x1.ad663a8ae2fdcp-1, -0x1.16daed770771cp-1);
    check_angle(359.5, 0x1.fffb02599c9cap-1, 0x1.1df37c4954c47p-7);
    check_angle(1.2, 0x1.ffe340f564db7p-1, -0x1.571ee01fe12c3p-6);
    check_angle(90, 0, -1);
    check_angle(180, -1, 0);
    check_angle(0, 1, 0);
}

/* ---- pixels */

typedef struct image {
    const uint8_t *data; /* the first byte of a channel */
    int width, height, channels;
} image;

static int byte_at(image from, int x, int y)
{
    x = x < 0 ? 0 : x >= from.width ? from.width - 1 : x;
    y = y < 0 ? 0 : y >= from.height ? from.height - 1 : y;
    return from.data[(y * from.width + x) * from.channels];
}

static double cubic_at(double a, double b, double c, double d, double t)
{
    return b + t * ((-a + c) + t * ((2 * (a - b) + c - d) + t * (-a + b - c + d)));
}

/* Returns the byte at a position, and `fill` outside. */
static uint8_t mix_byte(image from, double x, double y, fl_interpolation how, uint8_t fill)
{
    double rows[4];
    if (x < 0 || x >= from.width || y < 0 || y >= from.height) return fill;
    if (isnan(x) || isnan(y)) return 0;
    int left = (int)floor(x - 0.5), top = (int)floor(y - 0.5);
    double dx = x - 0.5 - left, dy = y - 0.5 - top;
    for (int k = 0; k < 4; k++) {
        int v[4];
        for (int i = 0; i < 4; i++) v[i] = byte_at(from, left + i - 1, top + k - 1);
        rows[k] =
            how == FL_BILINEAR ? v[1] + (v[2] - v[1]) * dx : cubic_at(v[0], v[1], v[2], v[3], dx);
    }
    double mixed = how == FL_BILINEAR ? rows[1] + (rows[2] - rows[1]) * dy
                                      : cubic_at(rows[0], rows[1], rows[2], rows[3], dy);
    return (uint8_t)(mixed <= 0 ? 0 : mixed >= 255 ? 255 : mixed);
}

static uint8_t nearest_byte(image from, double x, double y, uint8_t fill)
{
    bool is_in = x >= 0 && x < from.width && y >= 0 && y < from.height;
    return is_in ? (uint8_t)byte_at(from, (int)x, (int)y) : fill;
}

static bool is_small(const double *m, int x, int y)
{
    return fabs(x * m[0] + y * m[1] + m[2]) < 32768 && fabs(x * m[3] + y * m[4] + m[5]) < 32768;
}

static int64_t parts_of(double x) { return (int64_t)floor(x * 65536 + 0.5); }

/* Warps a channel with nearest pixels and positions that are summed up. */
static void sum_up(const fl_warp_pil *warp, image from, uint8_t fill, uint8_t *out)
{
    const double *m = warp->m;
    int w = from.width, h = from.height;
    bool is_fixed = (m[1] != 0 || m[3] != 0) && is_small(m, 0, 0) && is_small(m, w, 0) &&
                    is_small(m, 0, h) && is_small(m, w, h);
    double row_x = m[2] + m[1] * 0.5 + m[0] * 0.5, row_y = m[5] + m[4] * 0.5 + m[3] * 0.5;
    int64_t fixed_x = parts_of(m[2] + m[0] * 0.5 + m[1] * 0.5);
    int64_t fixed_y = parts_of(m[5] + m[3] * 0.5 + m[4] * 0.5);
    for (int row = 0; row < h; row++) {
        double x = row_x, y = row_y;
        int64_t part_x = fixed_x, part_y = fixed_y;
        for (int column = 0; column < w; column++) {
            double at_x = is_fixed ? floor((double)part_x / 65536) : x;
            double at_y = is_fixed ? floor((double)part_y / 65536) : y;
            *out = nearest_byte(from, at_x, at_y, fill);
            out += from.channels;
            x += m[0], y += m[3], part_x += parts_of(m[0]), part_y += parts_of(m[3]);
        }
        row_x += m[1], row_y += m[4], fixed_x += parts_of(m[1]), fixed_y += parts_of(m[4]);
    }
}

static void warp_channel(const fl_warp_pil *warp, image from, uint8_t fill, uint8_t *out)
{
    const double *m = warp->m;
    if (warp->how == FL_NEAREST && !warp->is_perspective) {
        sum_up(warp, from, fill, out);
        return;
    }
    for (int row = 0; row < from.height; row++)
        for (int column = 0; column < from.width; column++) {
            double x = column + 0.5, y = row + 0.5;
            double z = warp->is_perspective ? m[6] * x + m[7] * y + 1 : 1;
            double to_x = (m[0] * x + m[1] * y + m[2]) / z, to_y = (m[3] * x + m[4] * y + m[5]) / z;
            *out = warp->how == FL_NEAREST ? nearest_byte(from, to_x, to_y, fill)
                                           : mix_byte(from, to_x, to_y, warp->how, fill);
            out += from.channels;
        }
}

static void
check_warp(const fl_warp_pil *warp, int channels, int width, int height, uint64_t *state)
{
    int64_t bytes = (int64_t)channels * width * height;
    buffers b = make_buffers(bytes + BEHIND, bytes + BEHIND, true, state);
    for (int c = 0; c < channels; c++)
        warp_channel(warp, (image){b.src + c, width, height, channels}, warp->fill[c],
                     b.expected + c);
    EACH_VARIANT(ops)
    {
        clear_result(&b);
        ops->tone.warp_pil(b.dst, b.src, width, height, channels, warp);
        memset(b.dst + bytes, PATTERN, BEHIND);
        check_result(&b, ops, "warp", width);
    }
}

static double between(uint64_t *state, double low, double high)
{
    return low + (high - low) * (double)(next_random(state) >> 11) * 0x1p-53;
}

static void test_pixels_are_found_in_pillows_order(void)
{
    static const fl_interpolation modes[] = {FL_NEAREST, FL_BILINEAR, FL_BICUBIC};
    static const double angles[] = {0, 90, 180, 45, 1e-9}, scales[] = {1, 0.001, 100, 0.5};
    uint64_t state = 5;
    for (int n = 0; n < CASES; n++) {
        bool is_long = n % 20 == 0; /* more than one piece */
        int w = 1 + (int)random_below(&state, is_long ? 300 : MOST);
        int h = 1 + (int)random_below(&state, MOST);
        fl_warp_pil warp = {.how = modes[n % 3], .is_perspective = n % 7 == 0};
        fl_affine affine = {.angle = between(&state, -180, 180),
                            .scale = between(&state, 0.3, 3),
                            .translate = {between(&state, -w, w), between(&state, -h, h)},
                            .shear = {between(&state, -60, 60), 0},
                            .center = {w * 0.5, between(&state, -5, h)}};
        if (n % 4 == 0) affine.angle = angles[n / 4 % 5];
        if (n % 5 == 0) affine.scale = scales[n / 5 % 4];
        if (n % 6 == 0) affine.shear[0] = 0;
        if (n % 8 == 1) /* positions are whole numbers, among them the edges of the image */
            affine = (fl_affine){.scale = 0.5, .center = {(double)(w / 2), (double)(h / 2)}};
        fill_random(&state, (char *)warp.fill, sizeof warp.fill);
        fl_affine_matrix(warp.m, &affine, n % 2 == 0);
        warp.m[6] = between(&state, -2.0 / w, 1.0 / w);
        warp.m[7] = between(&state, -1.0 / h, 1.0 / h);
        check_warp(&warp, n % 5 == 3 ? 1 : CHANNELS, w, h, &state);
    }
}

/* Pixels are then mixed along one axis. Positions next to whole numbers are rounded to them in some
 * columns, and not in others. */
static void test_shears_and_translations_mix_along_one_axis(void)
{
    static const int channels[] = {CHANNELS, CHANNELS, FL_MAX_CHANNELS, 1};
    uint64_t state = 6;
    for (int n = 0; n < CASES; n++) {
        int w = 1 + (int)random_below(&state, n % 3 ? 300 : MOST);
        int h = 1 + (int)random_below(&state, n % 3 ? 9 : 60);
        fl_warp_pil warp = {.how = n % 2 ? FL_BICUBIC : FL_BILINEAR, .m = {1, 0, 0, 0, 1, 0}};
        double *shear = warp.m + (n % 4 < 2 ? 1 : 3), *by = warp.m + (n % 4 < 2 ? 2 : 5);
        const double least = ldexp((double)random_below(&state, 5) - 2, -45);
        if (n % 5 != 0) *shear = between(&state, -0.5, 0.5);
        if (n % 5 == 1) *shear = ldexp(least, (int)random_below(&state, 9));
        if (n % 5 != 2) *by = between(&state, -1.2, 1.2) * (n % 4 < 2 ? w : h);
        if (n % 7 < 2) *by = floor(*by) + least + (n % 7 == 0 ? 0.5 : 0);
        if (n % 9 == 4) warp.m[n % 2 ? 0 : 4] = 0.75; /* then along both axes */
        if (n % 40 == 7) *by = 1e300 * *shear;
        fill_random(&state, (char *)warp.fill, sizeof warp.fill);
        check_warp(&warp, channels[n / 4 % 4], w, h, &state);
    }
}

/* A perspective divides by 0 at its horizon. */
static void test_a_position_that_is_no_number_is_0_unless_it_is_nearest(void)
{
    uint64_t state = 7;
    fl_warp_pil warp = {.how = FL_BILINEAR, .is_perspective = true, .fill = {7, 8, 9}};
    const double m[8] = {0, 0, 0, 0, 0, 0, -2, 0}; /* 0 / 0 in the first column */
    memcpy(warp.m, m, sizeof m);
    uint8_t dst[CHANNELS + BEHIND], src[CHANNELS + BEHIND] = {50, 50, 50};
    EACH_VARIANT(ops)
    {
        warp.how = FL_BILINEAR;
        ops->tone.warp_pil(dst, src, 1, 1, CHANNELS, &warp);
        CHECK(dst[0] == 0 && dst[1] == 0 && dst[2] == 0);
        warp.how = FL_BICUBIC;
        ops->tone.warp_pil(dst, src, 1, 1, CHANNELS, &warp);
        CHECK(dst[0] == 0 && dst[1] == 0 && dst[2] == 0);
        warp.how = FL_NEAREST;
        ops->tone.warp_pil(dst, src, 1, 1, CHANNELS, &warp);
        CHECK(dst[0] == 7 && dst[1] == 8 && dst[2] == 9);
    }
    warp.how = FL_BILINEAR;
    check_warp(&warp, CHANNELS, 9, 5, &state);
}

int main(void)
{
    start_tests();
    find_variants();
    make_fences();
    RUN(test_versions_multiply_in_different_orders);
    RUN(test_sines_have_15_decimals);
    RUN(test_pixels_are_found_in_pillows_order);
    RUN(test_shears_and_translations_mix_along_one_axis);
    RUN(test_a_position_that_is_no_number_is_0_unless_it_is_nearest);
    return 0;
}
