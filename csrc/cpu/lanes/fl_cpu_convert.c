/* fl_cpu_convert: see fl_cpu_convert.h. */
#include "fl_cpu_convert.h"

#include "fl_cpu_sequences.h"

#include <string.h>

enum { SIGNED, UNSIGNED, FLOAT }; /* DLPack's codes */

static void widen(void *dst, const void *src, int64_t count, fl_dtype from)
{
    fl_cpu_sequence_ops.widen(dst, src, count, from);
}

/* Sources may lie at any address. Each element is rounded once, as torch and NumPy do. */
#define DEFINE_CONVERT(name, from_type, to_type)                                         \
    static void name(void *dst, const void *src, int64_t count, fl_dtype from)           \
    {                                                                                    \
        (void)from;                                                                      \
        for (int64_t i = 0; i < count; i++) {                                            \
            from_type value;                                                             \
            memcpy(&value, (const char *)src + i * (int64_t)sizeof value, sizeof value); \
            ((to_type *)dst)[i] = (to_type)value;                                        \
        }                                                                                \
    }
#define DEFINE_CONVERTS(kind, type)              \
    DEFINE_CONVERT(kind##_to_float, type, float) \
    DEFINE_CONVERT(kind##_to_double, type, double)
DEFINE_CONVERTS(i8, int8_t)
DEFINE_CONVERTS(i16, int16_t)
DEFINE_CONVERTS(i32, int32_t)
DEFINE_CONVERTS(i64, int64_t)
DEFINE_CONVERTS(u8, uint8_t)
DEFINE_CONVERTS(u16, uint16_t)
DEFINE_CONVERTS(u32, uint32_t)
DEFINE_CONVERT(float_to_double, float, double)
DEFINE_CONVERT(double_to_float, double, float)

void fl_cpu_round_twice(void *dst, const void *src, int64_t count, fl_dtype from)
{
    (void)from;
    for (int64_t i = 0; i < count; i++) {
        int64_t value;
        memcpy(&value, (const char *)src + i * (int64_t)sizeof value, sizeof value);
        ((float *)dst)[i] = (float)(double)value;
    }
}

static const struct float_kind {
    uint8_t code, bits;
    fl_convert *to_float, *to_double; /* NULL: there is nothing to convert */
} kinds[] = {
    {SIGNED, 8, i8_to_float, i8_to_double},      {SIGNED, 16, i16_to_float, i16_to_double},
    {SIGNED, 32, i32_to_float, i32_to_double},   {SIGNED, 64, i64_to_float, i64_to_double},
    {UNSIGNED, 8, u8_to_float, u8_to_double},    {UNSIGNED, 16, u16_to_float, u16_to_double},
    {UNSIGNED, 32, u32_to_float, u32_to_double}, {FLOAT, 32, NULL, float_to_double},
    {FLOAT, 64, double_to_float, NULL}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static inline bool is_kind(fl_dtype dtype, uint8_t code, uint8_t bits)
{
    return dtype.code == code && dtype.bits == bits && dtype.lanes == 1;
}

fl_convert *fl_cpu_find_convert(fl_dtype from, fl_dtype to)
{
    bool is_integer = (from.code == SIGNED || from.code == UNSIGNED) && from.lanes == 1;
    if (is_kind(to, SIGNED, 64) && is_integer && from.bits <= 32) return widen;
    for (int i = 0; i < KINDS; i++) {
        if (!is_kind(from, kinds[i].code, kinds[i].bits)) continue;
        if (is_kind(to, FLOAT, 32)) return kinds[i].to_float;
        if (is_kind(to, FLOAT, 64)) return kinds[i].to_double;
    }
    return NULL;
}
