/* ragged_fixture: sequences of random lengths and values, in memory or in a mapped file, and a
 * table of columns over them. */
#ifndef RAGGED_FIXTURE_H
#define RAGGED_FIXTURE_H

#include "check.h"

#include "fl_column_pack.h"
#include "fl_column_pad.h"
#include "fl_cpu_sequences.h"
#include "fl_table.h"

enum { SEQUENCES = 40, FENCE = 64, FENCE_BYTE = 0x3C };

typedef struct ragged_fixture {
    char *values; /* owned */
    int64_t wide[SEQUENCES + 1];
    int32_t narrow[SEQUENCES + 1];
    fl_ragged ragged;
} ragged_fixture;

static const fl_dtype widenable[] = {{0, 8, 1}, {0, 16, 1}, {0, 32, 1}, {0, 64, 1},
                                     {1, 8, 1}, {1, 16, 1}, {1, 32, 1}, {1, 64, 1}};
enum { WIDENABLE = sizeof widenable / sizeof *widenable };

/* Lengths are below `longest`, and every fifth is 0. */
static inline void
open_ragged(ragged_fixture *fix, uint64_t *seed, fl_dtype dtype, int64_t longest, bool is_wide)
{
    int64_t end = 3, bytes = fl_dtype_bytes(dtype);
    for (int64_t i = 0; i <= SEQUENCES; i++) {
        fix->wide[i] = end;
        fix->narrow[i] = (int32_t)end;
        end += i % 5 == 0 || i == SEQUENCES ? 0 : random_below(seed, longest);
    }
    end = fix->wide[SEQUENCES] + 2;
    fix->values = malloc((size_t)(end * bytes));
    CHECK(fix->values != NULL);
    fill_random(seed, fix->values, end * bytes);
    fix->ragged = (fl_ragged){.values = fix->values,
                              .dtype = dtype,
                              .count = end,
                              .offsets = is_wide ? (void *)fix->wide : (void *)fix->narrow,
                              .is_wide = is_wide,
                              .length = SEQUENCES};
}

static inline void close_ragged(ragged_fixture *fix) { free(fix->values); }

/* Writes the expected output for value i of sequence `row`. */
static inline void
put_value(const ragged_fixture *fix, int64_t row, int64_t i, bool is_widened, char *dst)
{
    fl_dtype dtype = fix->ragged.dtype;
    int64_t bytes = fl_dtype_bytes(dtype);
    const char *src = fix->values + (fix->wide[row] + i) * bytes;
    if (!is_widened) {
        memcpy(dst, src, (size_t)bytes);
        return;
    }
    bool is_negative = dtype.code == 0 && (signed char)src[bytes - 1] < 0;
    memset(dst, is_negative ? 0xFF : 0, 8);
    memcpy(dst, src, (size_t)bytes);
}

static inline int64_t length_of(const ragged_fixture *fix, int64_t row)
{
    return fix->wide[row + 1] - fix->wide[row];
}

static inline fl_table *open_one(fl_column *column)
{
    fl_table *table;
    CHECK_INT(fl_table_open(&column, 1, &table, NULL), FL_OK);
    return table;
}

/* Gathers in parts, the last part first, into a fenced block. The caller frees the block. */
static inline char *
gather_all(const fl_table *table, const fl_rows *rows, const fl_layout *layout, int32_t parts)
{
    char *block = malloc((size_t)layout->bytes + FENCE);
    CHECK(block != NULL);
    memset(block, FENCE_BYTE, (size_t)layout->bytes + FENCE);
    for (int32_t part = parts - 1; part >= 0; part--)
        CHECK_INT(fl_table_gather(table, rows, 0, layout, part, parts, block, NULL), FL_OK);
    return block;
}

/* Checks that only the fence follows output i. */
static inline void check_fence(const fl_layout *layout, const char *block, int32_t i)
{
    const fl_output *output = &layout->outputs[i];
    int64_t end = i + 1 < layout->count ? output[1].offset : layout->bytes + FENCE;
    for (int64_t at = output->offset + output->bytes; at < end; at++)
        CHECK_INT(block[at], FENCE_BYTE);
}

static inline fl_rows random_rows(uint64_t *seed, int64_t count)
{
    fl_rows rows = {0};
    for (int64_t i = 0; i < count; i++) {
        int64_t row = random_below(seed, SEQUENCES);
        CHECK_INT(fl_rows_add(&rows, &row, 1, NULL), FL_OK);
    }
    return rows;
}

#endif
