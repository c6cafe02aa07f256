/* fl_cpu_mix: see fl_cpu_mix.h. Columns are mixed from the last row up, so that the row before is
 * still unmixed, and is in the caches when its turn comes. */
#include "fl_cpu_mix.h"

#include <string.h>

enum { PART = 2048 }; /* columns in a part */

int64_t fl_mix_parts(const fl_mix *mix) { return (mix->columns + PART - 1) / PART; }

static void
mix_row(float *restrict row, const float *restrict before, int64_t width, float share, float rest)
{
    for (int64_t i = 0; i < width; i++) {
        float a = before[i] * rest, b = row[i] * share;
        row[i] = a + b;
    }
}

static void mix_columns(const fl_mix *mix, float *column, int64_t width)
{
    float last[PART];
    memcpy(last, column + (mix->count - 1) * mix->columns, (size_t)width * sizeof *last);
    for (int64_t i = mix->count - 1; i > 0; i--) {
        float *row = column + i * mix->columns;
        mix_row(row, row - mix->columns, width, mix->share, mix->rest);
    }
    mix_row(column, last, width, mix->share, mix->rest);
}

void fl_mix_do(void *context, int64_t first, int64_t end)
{
    const fl_mix *mix = context;
    for (int64_t at = first * PART; at < mix->columns && at < end * PART; at += PART)
        mix_columns(mix, mix->rows + at, fl_min(PART, mix->columns - at));
}
