/* fl_row_runs: see fl_row_runs.h. */
#include "fl_row_runs.h"

#include "fl_safe_read.h"

/* Starts from the innermost dimension. A dimension becomes part of the run as long as its elements
 * follow each other in memory. */
int fl_row_runs_set(fl_row_runs *runs, const fl_tensor *view, fl_err *err)
{
    int64_t bytes = fl_dtype_bytes(view->dtype), total = bytes;
    for (int32_t d = 1; d < view->ndim; d++)
        if (!fl_mul(total, view->shape[d], &total))
            return fl_fail(err, FL_EINVAL, "has rows larger than 2^63 bytes");
    *runs = (fl_row_runs){
        .data = view->data, .row_bytes = total, .row_stride = view->stride[0], .run_bytes = bytes};
    if (total == 0) return FL_OK;
    runs->reach = bytes;
    for (int32_t d = 1; d < view->ndim; d++)
        runs->reach += fl_max(0, (view->shape[d] - 1) * view->stride[d]);
    for (int32_t d = view->ndim - 1; d >= 1; d--) {
        if (view->shape[d] == 1) continue;
        if (runs->loops == 0 && view->stride[d] == runs->run_bytes) {
            runs->run_bytes *= view->shape[d];
            continue;
        }
        runs->loop_count[runs->loops] = view->shape[d];
        runs->loop_stride[runs->loops++] = view->stride[d];
    }
    return FL_OK;
}

/* Iterates over the pieces of a batch in the source: the state of nested loops. The caller runs the
 * loops below `inner`. */
typedef struct piece_iter {
    const fl_row_runs *runs;
    const fl_rows *rows;
    int64_t next, end; /* rows of the batch */
    int32_t inner;
    int64_t digit[FL_MAX_NDIM]; /* position of each loop in the current row */
} piece_iter;

/* Returns the address of the current piece, and moves on to the next. */
static const char *next_piece(piece_iter *iter)
{
    const fl_row_runs *runs = iter->runs;
    const char *piece = runs->data + fl_row_at(iter->rows, iter->next) * runs->row_stride;
    for (int32_t k = iter->inner; k < runs->loops; k++)
        piece += iter->digit[k] * runs->loop_stride[k];
    int32_t k = iter->inner;
    while (k < runs->loops && ++iter->digit[k] == runs->loop_count[k]) iter->digit[k++] = 0;
    if (k == runs->loops) iter->next++;
    return piece;
}

/* Copies the elements of the two inner loops, each of `size` bytes, a constant of the caller's. */
static inline __attribute__((always_inline)) char *
copy_grid(char *dst, const char *src, size_t size, const fl_row_runs *runs)
{
    const int64_t *count = runs->loop_count, *stride = runs->loop_stride;
    for (int64_t i = 0; i < count[1]; i++)
        for (int64_t k = 0; k < count[0]; k++, dst += size)
            memcpy(dst, src + i * stride[1] + k * stride[0], size);
    return dst;
}

/* Copies rows of single elements that lie apart, as windows of an array in Fortran order do. */
static void copy_elements(const fl_row_runs *runs, piece_iter *iter, char *dst)
{
    iter->inner = 2;
    while (iter->next < iter->end) {
        const char *src = next_piece(iter);
        if (runs->run_bytes == 8)
            dst = copy_grid(dst, src, 8, runs);
        else if (runs->run_bytes == 4)
            dst = copy_grid(dst, src, 4, runs);
        else if (runs->run_bytes == 2)
            dst = copy_grid(dst, src, 2, runs);
        else
            dst = copy_grid(dst, src, 1, runs);
    }
}

static void copy_strided(const fl_row_runs *runs, const fl_row_ops *row_ops, const fl_rows *rows,
                         int64_t from, int64_t to, char *dst)
{
    piece_iter iter = {.runs = runs, .rows = rows, .next = from, .end = to, .inner = 1};
    const int64_t size = runs->run_bytes;
    if (runs->loops > 1 && (size == 8 || size == 4 || size == 2 || size == 1)) {
        copy_elements(runs, &iter, dst);
        return;
    }
    while (iter.next < iter.end) {
        row_ops->copy_rows(dst, next_piece(&iter), runs->loop_stride[0], runs->run_bytes, 0,
                           runs->loop_count[0], false);
        dst += runs->run_bytes * runs->loop_count[0];
    }
}

void fl_row_runs_copy(const fl_row_runs *runs, const fl_row_ops *row_ops, const fl_rows *rows,
                      int64_t from, int64_t to, char *dst, bool is_large)
{
    if (runs->row_bytes == 0) return;
    if (runs->loops > 0)
        copy_strided(runs, row_ops, rows, from, to, dst);
    else if (rows->is_range)
        row_ops->copy_rows(dst, runs->data, runs->row_stride, runs->row_bytes, rows->first + from,
                           to - from, is_large);
    else
        row_ops->gather_rows(dst, runs->data, runs->row_stride, runs->row_bytes, rows->index + from,
                             to - from, is_large);
}

int64_t
fl_row_runs_read(const fl_row_runs *runs, const fl_rows *rows, int64_t from, int64_t to, char *dst)
{
    piece_iter iter = {.runs = runs, .rows = rows, .next = from, .end = to};
    struct iovec pieces[FL_SAFE_READ_MAX];
    int64_t done = 0;
    if (runs->row_bytes == 0) return 0;
    while (iter.next < iter.end) {
        int count = 0;
        while (count < FL_SAFE_READ_MAX && iter.next < iter.end)
            pieces[count++] = (struct iovec){.iov_base = (void *)(uintptr_t)next_piece(&iter),
                                             .iov_len = (size_t)runs->run_bytes};
        int64_t got = fl_safe_read_copy(dst + done, pieces, count);
        if (got < 0) return got;
        done += got;
        if (got < count * runs->run_bytes) break;
    }
    return done;
}

int64_t
fl_row_runs_beyond(const fl_row_runs *runs, int64_t length, const fl_rows *rows, const char *limit)
{
    int64_t last = fl_max(0, (length - 1) * runs->row_stride);
    if (runs->row_bytes == 0 || runs->data + last + runs->reach <= limit) return -1;
    for (int64_t i = 0; i < rows->count; i++) {
        int64_t row = fl_row_at(rows, i);
        if (runs->data + row * runs->row_stride + runs->reach > limit) return row;
    }
    return -1;
}
