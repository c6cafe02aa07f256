/* Tests of fl_image_cast: when arithmetic stands for a table. */
#include "check.h"

#include "fl_image_cast.h"

#include <math.h>

enum { VALUES = 256 };

/* Scale, mean and std of what users normalise with. */
static const float linears[][3] = {
    {1 / 255.0f, 0, 1},
    {1 / 255.0f, 0.485f, 0.229f},
    {1 / 255.0f, 0.456f, 0.224f},
    {1 / 255.0f, 0.406f, 0.225f},
    {1 / 255.0f, 0.4914f, 0.247f},
    {1 / 255.0f, 0.1307f, 0.3081f},
    {1 / 255.0f, 0.5f, 0.5f},
    {1, 0, 1},
    {1 / 255.0f, -0.1f, 3000},
};
enum { LINEARS = sizeof linears / sizeof *linears };

static double half_value(uint32_t bits)
{
    uint32_t exponent = bits >> 10 & 31, part = bits & 1023;
    double size = exponent == 0 ? ldexp(part, -24) : ldexp(1024 + part, (int)exponent - 25);
    return bits & 0x8000 ? -size : size;
}

static double bf16_value(uint32_t bits)
{
    float value;
    bits <<= 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Returns the 16-bit element nearest to the value; between two, the element whose last bit is 0. */
static uint16_t nearest(double (*value_of)(uint32_t), uint32_t infinity, double value)
{
    uint32_t best = 0, sign = signbit(value) ? 0x8000 : 0;
    for (uint32_t bits = 0; bits < infinity; bits++) {
        double distance = fabs(value_of(bits) - fabs(value));
        double least = fabs(value_of(best) - fabs(value));
        if (distance > least) break;
        if (distance < least || (distance == least && bits % 2 == 0)) best = bits;
    }
    return (uint16_t)(best | sign);
}

static int32_t make_table(fl_image_type type, bool divides, const float *linear, char *table)
{
    int32_t bytes = type == FL_IMAGE_F32 ? 4 : 2;
    for (int v = 0; v < VALUES; v++) {
        float product = divides ? (float)v / rintf(1 / linear[0]) : (float)v * linear[0];
        float value = (product - linear[1]) / linear[2];
        uint16_t half = type == FL_IMAGE_F16 ? nearest(half_value, 0x7C00, value)
                                             : nearest(bf16_value, 0x7F80, value);
        memcpy(table + v * bytes, bytes == 4 ? (void *)&value : (void *)&half, (size_t)bytes);
    }
    return bytes;
}

static void check_table(fl_image_type type, bool divides, const float *linear)
{
    char table[VALUES * 4];
    int32_t bytes = make_table(type, divides, linear, table);
    fl_image_cast cast = fl_image_cast_make(type, table, linear);
    CHECK(cast.is_linear && cast.table == table && cast.inverse == 1 / linear[2]);
    CHECK(cast.scale == linear[0] && cast.mean == linear[1] && cast.std == linear[2]);
    for (int v = 0; v < VALUES; v++) {
        table[v * bytes] ^= 1;                                       /* the last bit */
        fl_image_cast odd = fl_image_cast_make(type, table, linear); /* or the other way's table */
        CHECK(!odd.is_linear || odd.rescale != cast.rescale);
        table[v * bytes] ^= 1;
    }
    CHECK(!fl_image_cast_make(type, table, NULL).is_linear);
}

static void test_a_table_is_linear_if_all_of_it_is(void)
{
    for (int n = 0; n < LINEARS; n++)
        for (fl_image_type type = FL_IMAGE_F16; type < FL_IMAGE_TYPES; type++)
            for (int divides = 0; divides < 2; divides++) check_table(type, divides, linears[n]);
}

/* A step may overflow, or a quotient may be NaN. */
static void test_values_that_are_not_finite_are_looked_up(void)
{
    static const float odd[][3] = {{1, 0, 0}, {1, INFINITY, 1}, {NAN, 0, 1}, {1, 0, 1e-44f}};
    for (size_t n = 0; n < sizeof odd / sizeof *odd; n++) {
        float table[VALUES];
        for (int v = 0; v < VALUES; v++) table[v] = ((float)v * odd[n][0] - odd[n][1]) / odd[n][2];
        CHECK(!fl_image_cast_make(FL_IMAGE_F32, table, odd[n]).is_linear);
    }
}

/* Halves end at 65504: a value that rounds to more is infinite, and lookups give the same. */
static void test_halves_that_overflow(void)
{
    float linear[3] = {1, 0, 0.0038f};
    uint16_t table[VALUES];
    for (int v = 0; v < VALUES; v++) {
        float value = (float)v / linear[2];
        table[v] = value < 65520 ? nearest(half_value, 0x7C00, value) : 0x7C00;
    }
    CHECK(table[255] == 0x7C00 && table[200] < 0x7C00);
    CHECK(fl_image_cast_make(FL_IMAGE_F16, table, linear).is_linear);
}

int main(void)
{
    start_tests();
    RUN(test_a_table_is_linear_if_all_of_it_is);
    RUN(test_values_that_are_not_finite_are_looked_up);
    RUN(test_halves_that_overflow);
    return 0;
}
