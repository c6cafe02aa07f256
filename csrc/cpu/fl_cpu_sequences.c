/* fl_cpu_sequences: see fl_cpu_sequences.h. The loops are plain, because the compiler vectorises
 * them. */
#include "fl_cpu_sequences.h"

#include <string.h>

enum { IS_UNSIGNED = 1 }; /* DLPack's code */

/* memcpy, because values may lie at any address: a tensor may begin anywhere in its buffer. */
#define WIDEN(name, type)                                                            \
    static void name(int64_t *restrict dst, const char *restrict src, int64_t count) \
    {                                                                                \
        for (int64_t i = 0; i < count; i++) {                                        \
            type value;                                                              \
            memcpy(&value, src + i * (int64_t)sizeof value, sizeof value);           \
            dst[i] = (int64_t)value;                                                 \
        }                                                                            \
    }

WIDEN(widen_i8, int8_t)
WIDEN(widen_i16, int16_t)
WIDEN(widen_i32, int32_t)
WIDEN(widen_u8, uint8_t)
WIDEN(widen_u16, uint16_t)
WIDEN(widen_u32, uint32_t)

static void widen(int64_t *dst, const void *src, int64_t count, fl_dtype from)
{
    bool is_unsigned = from.code == IS_UNSIGNED;
    if (from.bits == 8)
        is_unsigned ? widen_u8(dst, src, count) : widen_i8(dst, src, count);
    else if (from.bits == 16)
        is_unsigned ? widen_u16(dst, src, count) : widen_i16(dst, src, count);
    else if (from.bits == 32)
        is_unsigned ? widen_u32(dst, src, count) : widen_i32(dst, src, count);
    else if (count > 0)
        memcpy(dst, src, (size_t)count * sizeof *dst);
}

#define FILL(name, type)                                            \
    static void name(type *dst, const void *element, int64_t count) \
    {                                                               \
        type value;                                                 \
        memcpy(&value, element, sizeof value);                      \
        for (int64_t i = 0; i < count; i++) dst[i] = value;         \
    }

FILL(fill_2, uint16_t)
FILL(fill_4, uint32_t)
FILL(fill_8, uint64_t)

static void fill(void *dst, const void *element, int64_t bytes, int64_t count)
{
    if (bytes == 1 && count > 0)
        memset(dst, *(const unsigned char *)element, (size_t)count);
    else if (bytes == 2)
        fill_2(dst, element, count);
    else if (bytes == 4)
        fill_4(dst, element, count);
    else if (bytes == 8)
        fill_8(dst, element, count);
    else if (bytes == 16)
        for (int64_t i = 0; i < count; i++) memcpy((char *)dst + i * 16, element, 16);
}

static void count_up(int64_t *dst, int64_t count)
{
    for (int64_t i = 0; i < count; i++) dst[i] = i;
}

const fl_sequence_ops fl_cpu_sequence_ops = {.widen = widen, .fill = fill, .count_up = count_up};
