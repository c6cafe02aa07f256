/* fl_cpu_convert: see fl_cpu_convert.h. */
#include "fl_cpu_convert.h"

#include "fl_cpu_sequences.h"

#include <string.h>

enum { SIGNED, UNSIGNED, FLOAT }; /* DLPack's codes */

static void widen(void *dst, const void *src, int64_t count, fl_dtype from)
{
    fl_cpu_sequence_ops.widen(dst, src, count, from);
}

static void round_to_float(void *dst, const void *src, int64_t count, fl_dtype from)
{
    (void)from;
    for (int64_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, (const char *)src + i * (int64_t)sizeof value, sizeof value);
        ((float *)dst)[i] = (float)value;
    }
}

static inline bool is_kind(fl_dtype dtype, uint8_t code, uint8_t bits)
{
    return dtype.code == code && dtype.bits == bits && dtype.lanes == 1;
}

fl_convert *fl_cpu_find_convert(fl_dtype from, fl_dtype to)
{
    bool is_integer = (from.code == SIGNED || from.code == UNSIGNED) && from.lanes == 1;
    if (is_kind(to, SIGNED, 64) && is_integer && from.bits <= 32) return widen;
    if (is_kind(to, FLOAT, 32) && is_kind(from, FLOAT, 64)) return round_to_float;
    return NULL;
}
