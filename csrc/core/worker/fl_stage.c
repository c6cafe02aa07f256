/* fl_stage: see fl_stage.h. */
#include "fl_stage.h"

#include <stdatomic.h>
#include <string.h>

enum { ALIGNMENT = 64 };

/* Where the marks begin. */
static int64_t marks_offset(int64_t count, int64_t row_bytes)
{
    return (count * row_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

int64_t fl_stage_bytes(int64_t count, int64_t row_bytes)
{
    int64_t bytes;
    if (count < 1 || row_bytes < 1 || !fl_mul(count, row_bytes, &bytes) || bytes > INT64_MAX / 8)
        return -1;
    return marks_offset(count, row_bytes) + count * (int64_t)sizeof(int32_t);
}

int32_t *fl_stage_marks(const fl_stage *stage)
{
    return (int32_t *)(void *)(stage->rows + marks_offset(stage->count, stage->row_bytes));
}

void fl_stage_open(const fl_stage *stage)
{
    memset(fl_stage_marks(stage), 0, (size_t)stage->count * sizeof(int32_t));
}

/* Claims up to `most` rows in a row whose marks are `from`. Returns how many. */
static int64_t claim_run(_Atomic int32_t *marks, int64_t most, int32_t from, int32_t mine)
{
    int64_t count = 0;
    for (; count < most; count++) {
        int32_t expected = from;
        /* Relaxed: rows are read after the replies of the workers that wrote them. */
        if (!atomic_compare_exchange_strong_explicit(&marks[count], &expected, mine,
                                                     memory_order_relaxed, memory_order_relaxed))
            break;
    }
    return count;
}

int64_t fl_stage_claim(const fl_stage *stage, int32_t worker, int64_t shares, int64_t *cursor,
                       int64_t *first)
{
    _Atomic int32_t *marks = (_Atomic int32_t *)(void *)fl_stage_marks(stage);
    int32_t mine = worker + 1;
    int64_t rows = stage->count, count = 0, open = 0;
    for (*first = *cursor; *first < rows && count == 0; *first += count == 0)
        count = claim_run(marks + *first, rows - *first, mine, mine);
    *cursor = *first + count;
    if (count > 0) return count;
    for (int64_t i = 0; i < rows; i++)
        open += atomic_load_explicit(&marks[i], memory_order_relaxed) == 0;
    int64_t most = fl_max(1, open / shares);
    for (*first = 0; *first < rows && count == 0; *first += count == 0)
        count = claim_run(marks + *first, fl_min(most, rows - *first), 0, mine);
    return count;
}
