/* fl_image_cast: see fl_image_cast.h. */
#include "fl_image_cast.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint16_t round_to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Rounds half to even. Below 2^-14 a half float is a multiple of 2^-24. */
static uint16_t round_to_f16(float value)
{
    uint16_t sign = (uint16_t)(bits_of(value) >> 16 & 0x8000);
    float size = fabsf(value);
    if (size >= 65520) return sign | 0x7C00;
    if (size < 0x1p-14f) return sign | (uint16_t)rintf(size * 0x1p24f);
    uint32_t bits = bits_of(size) - (112u << 23);
    return sign | (uint16_t)((bits + 0xFFF + (bits >> 13 & 1)) >> 13);
}

static bool is_element(fl_image_type type, const void *table, int v, float value)
{
    uint16_t half;
    uint32_t word;
    if (!isfinite(value)) return false;
    if (type == FL_IMAGE_F32) {
        memcpy(&word, (const char *)table + v * 4, 4);
        return word == bits_of(value);
    }
    memcpy(&half, (const char *)table + v * 2, 2);
    return half == (type == FL_IMAGE_F16 ? round_to_f16(value) : round_to_bf16(value));
}

static bool gives_table(fl_image_type type, const fl_image_cast *cast)
{
    for (int v = 0; v < 256; v++) {
        float p0 = (float)v * cast->scale;
        float p = fmaf(fmaf(-p0, cast->divisor, (float)v), cast->rescale, p0);
        float a = p - cast->mean;
        float q0 = a * cast->inverse;
        float q = fmaf(fmaf(-q0, cast->std, a), cast->inverse, q0);
        if (!is_element(type, cast->table, v, a / cast->std) ||
            !is_element(type, cast->table, v, q))
            return false;
    }
    return true;
}

fl_image_cast fl_image_cast_make(fl_image_type type, const void *table, const float *linear)
{
    fl_image_cast cast = {.table = table};
    if (linear == NULL || type == FL_IMAGE_U8) return cast;
    cast.scale = linear[0];
    cast.mean = linear[1];
    cast.std = linear[2];
    cast.inverse = 1 / linear[2];
    cast.is_linear = gives_table(type, &cast);
    if (cast.is_linear) return cast;
    cast.divisor = rintf(1 / cast.scale);
    cast.rescale = cast.scale;
    cast.is_linear = gives_table(type, &cast);
    return cast;
}
