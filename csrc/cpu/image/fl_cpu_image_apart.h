/* fl_cpu_image_apart: blocks with fills at their sides, for tables that cast blocks without fills.
 *
 * Each table compiles this file for itself. */
#ifndef FL_CPU_IMAGE_APART_H
#define FL_CPU_IMAGE_APART_H

#include "fl_image_ops.h"

static inline bool has_fill(const fl_image_block *block)
{
    return (block->before | block->after) != 0;
}

/* Casts a block in up to three pieces, both fills and the columns between, with the functions of
 * `ops`. */
static void cast_apart(const fl_image_ops *ops, fl_image_type type, void *dst, int64_t pitch,
                       const fl_image_block *block, const fl_image_cast *cast)
{
    int32_t bytes = fl_image_type_bytes(type);
    const void *fill = &block->fill;
    if (type != FL_IMAGE_U8) fill = (const char *)cast->table + block->fill * bytes;
    fl_image_block columns = *block;
    columns.before = columns.after = 0;
    char *to = dst;
    if (block->before > 0) ops->fill(to, pitch, block->rows, block->before, fill, bytes);
    to += block->before * bytes;
    ops->cast[type](to, pitch, &columns, cast);
    to += block->columns * bytes;
    if (block->after > 0) ops->fill(to, pitch, block->rows, block->after, fill, bytes);
}

#endif
