/* fl_cuda_gather: rows of several columns become a batch, and random parameters of images become
 * maps, by one kernel. The rows lie in a device's memory, or in memory of the host that the device
 * reads over the link.
 *
 * A part of a column is the same number of units for each block; a block takes parts in steps of
 * the grid. A unit is a word of up to 16 bytes that divides the column's rows, and units of a warp
 * lie side by side in the batch, and in a row. If only a short word divides the rows, a unit is 16
 * bytes of the batch all the same: a thread loads the aligned blocks in which they lie, two in a
 * row, and shifts. Behind the columns' parts each map is a part. */
#include "fl_cuda_gather.h"
#include "fl_cuda_draw.cuh"
#include "fl_cuda_runtime.h"

#include <cuda_runtime.h>

static constexpr int THREADS = 256, AHEAD = 4; /* units that a thread loads before storing one */
static constexpr int MOST_COLUMNS = 16, MOST_MAPS = 4, MOST_CROPS = 4; /* in one launch */
static constexpr uint32_t BLOCK = 16, ODD_AHEAD = 2, ODD = 5;          /* ODD: a shift of no word */
static_assert(THREADS == MAP_THREADS, "a block does both");

struct column {
    const char *from, *end; /* of all rows */
    char *to;
    int64_t pitch;
    uint32_t row, units; /* units in a row, and in the batch */
    uint32_t last_part;  /* one past the column's last part */
    uint16_t shift;      /* a unit has 1 << shift bytes; ODD: row and units count bytes */
    int16_t crop;        /* of columns with parts before line_parts: index of the crop */
};

/* Lines of images that are needed: see fl_row_column. */
struct crop {
    const int32_t *spans;
    uint32_t step, plane, line; /* in bytes, but step */
};

struct batch {
    column columns[MOST_COLUMNS];
    fl_map_batch maps[MOST_MAPS];
    uint32_t last_maps[MOST_MAPS]; /* one past the last part of each */
    crop crops[MOST_CROPS];
    uint32_t line_parts;          /* of columns with a crop, which come first */
    uint32_t column_parts, parts; /* of all columns; with maps */
    uint32_t span_parts;          /* one past the last part whose map has a span; or 0 */
    const int64_t *rows;          /* NULL: rows `first`, ... of `own` */
    int64_t *kept;                /* gets all of `own`, with the first maps; NULL: nothing does */
    uint32_t first;
    int32_t own[FL_GATHER_OWN_ROWS];
};

static_assert(sizeof(batch) <= 4096, "no longer a small argument");

/* Rows of 8 bytes in the device's memory, or of 4 bytes in the argument. */
struct row_list {
    const void *at;
    bool is_wide;

    __device__ int64_t operator[](uint32_t i) const
    {
        return is_wide ? ((const int64_t *)at)[i] : ((const int32_t *)at)[i];
    }
};

/* Copies a thread's units. Past the last unit a thread loads the last unit again, so that no load
 * waits for a branch. */
template <class T>
static __device__ void copy_units(const column &of, const row_list &rows, uint32_t first)
{
    T units[AHEAD];
    uint32_t at[AHEAD];
    int64_t from[AHEAD]; /* row numbers */
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++) {
        const uint32_t unit = first + i * THREADS;
        at[i] = unit < of.units ? unit : of.units - 1;
        from[i] = rows[at[i] / of.row];
    }
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++)
        units[i] = ((const T *)(of.from + from[i] * of.pitch))[at[i] % of.row];
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++)
        if (first + i * THREADS < of.units) ((T *)of.to)[at[i]] = units[i];
}

/* Returns true if a line that is needed has a byte in a unit of an image, or if the unit has bytes
 * of two planes. */
static __device__ bool is_needed(const crop &of, uint32_t image, uint32_t byte)
{
    const uint32_t first = byte % of.plane, last = first + BLOCK - 1; /* of the plane's bytes */
    const int32_t *span = of.spans + (int64_t)image * of.step;
    return last >= of.plane ||
           ((int32_t)(last / of.line) >= span[0] && (int32_t)(first / of.line) < span[1]);
}

/* Copies a thread's units of images, but only those with bytes of lines that are needed. */
static __device__ void
copy_lines(const column &of, const crop &needed, const row_list &rows, uint32_t first)
{
    constexpr uint32_t BOTH = 2;
    uint4 units[BOTH];
    bool is_copied[BOTH];
#pragma unroll 1
    for (uint32_t n = 0; n < AHEAD / BOTH; n++, first += BOTH * THREADS) {
#pragma unroll
        for (uint32_t i = 0; i < BOTH; i++) {
            const uint32_t unit = first + i * THREADS, image = unit / of.row, at = unit % of.row;
            is_copied[i] = unit < of.units && is_needed(needed, image, at * BLOCK);
            if (is_copied[i]) units[i] = ((const uint4 *)(of.from + rows[image] * of.pitch))[at];
        }
#pragma unroll
        for (uint32_t i = 0; i < BOTH; i++)
            if (is_copied[i]) ((uint4 *)of.to)[first + i * THREADS] = units[i];
    }
}

/* ---- rows that only a short word divides */

/* 16 bytes as they lie in memory: in the blocks `low` and `high`, or in `low` alone. */
struct pair {
    uint4 low, high;
};

static __device__ uint32_t find_offset(const char *at) { return (uintptr_t)at % BLOCK; }

static __device__ pair load_pair(const char *at)
{
    const uint32_t offset = find_offset(at);
    const uint4 *block = (const uint4 *)(at - offset);
    return {__ldg(block), __ldg(block + (offset != 0))};
}

/* Returns true if the blocks of 16 bytes at an address lie within the rows. */
static __device__ bool has_blocks(const column &of, const char *at)
{
    const uint32_t before = find_offset(at), after = (BLOCK - before) % BLOCK;
    return at - of.from >= before && of.end - at >= BLOCK + after;
}

/* Returns the bytes from the given byte of `low` on. */
static __device__ uint4 shift_out(const pair &of, uint32_t first)
{
    uint32_t word[] = {of.low.x,  of.low.y,  of.low.z,  of.low.w,
                       of.high.x, of.high.y, of.high.z, of.high.w};
#pragma unroll
    for (uint32_t step = 2; step > 0; step--) /* by whole words: 2, then 1 */
#pragma unroll
        for (uint32_t i = 0; i + step < 8; i++)
            if (first & 4 * step) word[i] = word[i + step];
    const uint32_t bits = first % 4 * 8;
    return {__funnelshift_r(word[0], word[1], bits), __funnelshift_r(word[1], word[2], bits),
            __funnelshift_r(word[2], word[3], bits), __funnelshift_r(word[3], word[4], bits)};
}

static __device__ uint32_t join_word(uint32_t a, uint32_t b, int32_t count)
{
    const uint32_t mask = count <= 0 ? 0 : count >= 4 ? ~0U : (1U << count * 8) - 1;
    return (a & mask) | (b & ~mask);
}

/* Returns a unit whose first `count` bytes are a's; its other bytes are b's. */
static __device__ uint4 join(uint4 a, uint4 b, int32_t count)
{
    return {join_word(a.x, b.x, count), join_word(a.y, b.y, count - 4),
            join_word(a.z, b.z, count - 8), join_word(a.w, b.w, count - 12)};
}

/* The bytes of a unit: the first `left` are at `at` in a row. The others, if `next` is not NULL,
 * are at next + left in the next row. */
struct place {
    const char *at, *next;
    int32_t left;
};

static __device__ place find_place(const column &of, const row_list &rows, uint32_t byte)
{
    const uint32_t row = byte / of.row, offset = byte % of.row;
    place p = {of.from + rows[row] * of.pitch + offset, NULL, (int32_t)(of.row - offset)};
    if (p.left < (int32_t)BLOCK && byte + (uint32_t)p.left < of.units)
        p.next = of.from + rows[row + 1] * of.pitch - p.left;
    return p;
}

/* Copies a unit byte by byte if it is the end of the batch, or if its blocks do not lie within the
 * rows: nothing else may be read. Returns true if it has. */
static __device__ bool copy_bytes(const column &of, const place &p, uint32_t byte)
{
    if (of.units - byte >= BLOCK && has_blocks(of, p.at) &&
        (p.next == NULL || has_blocks(of, p.next)))
        return false;
#pragma unroll 1
    for (int32_t i = 0; i < (int32_t)BLOCK && byte + (uint32_t)i < of.units; i++)
        of.to[byte + (uint32_t)i] = i < p.left ? p.at[i] : p.next[i];
    return true;
}

/* Few units reach into a next row, so its blocks are loaded last, and one unit at a time. */
static __device__ uint4 make_unit(const place &p, const pair &row)
{
    const uint4 made = shift_out(row, find_offset(p.at));
    if (p.next == NULL) return made;
    return join(made, shift_out(load_pair(p.next), find_offset(p.next)), p.left);
}

/* Copies a thread's units of 16 bytes; the first begins at byte `first` of the batch. */
static __device__ void copy_odd(const column &of, const row_list &rows, uint32_t first)
{
    constexpr uint32_t STEP = THREADS * BLOCK;
    place places[ODD_AHEAD] = {};
    pair row[ODD_AHEAD];
#pragma unroll
    for (uint32_t i = 0; i < ODD_AHEAD; i++)
        if (first + i * STEP < of.units) places[i] = find_place(of, rows, first + i * STEP);
#pragma unroll
    for (uint32_t i = 0; i < ODD_AHEAD; i++)
        if (places[i].at != NULL && copy_bytes(of, places[i], first + i * STEP))
            places[i].at = NULL;
#pragma unroll
    for (uint32_t i = 0; i < ODD_AHEAD; i++)
        if (places[i].at != NULL) row[i] = load_pair(places[i].at);
#pragma unroll
    for (uint32_t i = 0; i < ODD_AHEAD; i++)
        if (places[i].at != NULL)
            *(uint4 *)(of.to + first + i * STEP) = make_unit(places[i], row[i]);
}

/* ---- the kernel */

static __device__ void copy_column(const column &of, const row_list &rows, uint32_t part)
{
    const uint32_t unit = part * (THREADS * AHEAD) + threadIdx.x;
    switch (of.shift) {
    case 0:
        return copy_units<uint8_t>(of, rows, unit);
    case 1:
        return copy_units<uint16_t>(of, rows, unit);
    case 2:
        return copy_units<uint32_t>(of, rows, unit);
    case 3:
        return copy_units<uint64_t>(of, rows, unit);
    case 4:
        return copy_units<uint4>(of, rows, unit);
    default:
        return copy_odd(of, rows, (part * (THREADS * ODD_AHEAD) + threadIdx.x) * BLOCK);
    }
}

/* The column of a part, and the rows of the batch. */
struct place_of_part {
    int i;
    uint32_t part; /* of the column */
    row_list rows;
};

static __device__ place_of_part find_part(const batch &given, uint32_t part)
{
    uint32_t first = 0;
    int i = 0;
    for (; part >= given.columns[i].last_part; i++) first = given.columns[i].last_part;
    const bool is_wide = given.rows != NULL;
    return {
        i, part - first, {is_wide ? (const void *)given.rows : given.own + given.first, is_wide}};
}

/* The batch of maps of a part, and the image. */
struct map_of_part {
    int i;
    uint32_t image;
};

static __device__ map_of_part find_map(const batch &given, uint32_t part)
{
    uint32_t first = given.column_parts;
    int i = 0;
    for (; part >= given.last_maps[i]; i++) first = given.last_maps[i];
    return {i, part - first};
}

static __device__ void draw_part(const batch &given, uint32_t part, drawn *at)
{
    const map_of_part found = find_map(given, part);
    const fl_map_batch &of = given.maps[found.i];
    const uint32_t image = found.image;
    const int64_t row = of.rows != NULL ? of.rows[image] : given.own[image];
    const uint8_t view = of.views != NULL ? of.views[image] : (uint8_t)0;
    __syncthreads(); /* the block's last map is written */
    if (found.i == 0 && given.kept != NULL && threadIdx.x == 0) given.kept[image] = row;
    write_map(of, {of.seed, row, of.epoch, view}, image, at);
}

/* Each kind of part has a loop of its own; in one loop they would take more registers. */
static __global__ void __launch_bounds__(THREADS, 4) k_gather(const batch __grid_constant__ given)
{
    __shared__ drawn shared;
    uint32_t part = blockIdx.x;
#pragma unroll 1
    for (; part < given.column_parts; part += gridDim.x) {
        const place_of_part found = find_part(given, part);
        copy_column(given.columns[found.i], found.rows, found.part);
    }
#pragma unroll 1
    for (; part < given.parts; part += gridDim.x) draw_part(given, part, &shared);
#pragma unroll 1
    for (part = blockIdx.x; part < given.span_parts; part += gridDim.x) {
        if (part < given.column_parts) continue;
        const map_of_part found = find_map(given, part);
        if (given.maps[found.i].has_spans) write_span(given.maps[found.i], found.image, &shared);
    }
}

/* Copies like k_gather, but draws nothing. Of the first parts' images only the needed lines are
 * copied. */
static __global__ void __launch_bounds__(THREADS, 4) k_fetch(const batch __grid_constant__ given)
{
    uint32_t part = blockIdx.x;
#pragma unroll 1
    for (; part < given.line_parts; part += gridDim.x) {
        const place_of_part found = find_part(given, part);
        const column &of = given.columns[found.i];
        copy_lines(of, given.crops[of.crop], found.rows,
                   found.part * (THREADS * AHEAD) + threadIdx.x);
    }
#pragma unroll 1
    for (; part < given.column_parts; part += gridDim.x) {
        const place_of_part found = find_part(given, part);
        copy_column(given.columns[found.i], found.rows, found.part);
    }
}

/* Finds the largest unit that divides all addresses and sizes of the column. */
static uint32_t find_shift(const fl_row_column *of, const char *to)
{
    const uint64_t bits =
        (uintptr_t)of->from | (uintptr_t)to | (uint64_t)of->bytes | (uint64_t)of->pitch;
    uint32_t shift = 0;
    while (shift < 4 && (bits >> shift & 1) == 0) shift++;
    return shift;
}

/* Adds a column with rows [first, first + row_count) of the batch. Its parts come after the parts
 * of the columns that were added before. */
static void
add_column(batch *given, column *out, const fl_row_column *of, int64_t first, int64_t row_count)
{
    char *to = of->to + first * of->bytes;
    const uint32_t word = find_shift(of, to);
    const bool is_odd = word < 3 && of->bytes >= BLOCK && (uintptr_t)to % BLOCK == 0;
    const uint32_t shift = is_odd ? 0 : word, row = (uint32_t)(of->bytes >> shift);
    const uint32_t units = row * (uint32_t)row_count;
    const uint32_t each = THREADS * (is_odd ? ODD_AHEAD * BLOCK : AHEAD);
    given->parts += units / each + (units % each != 0);
    *out = {of->from, of->end, to,           of->pitch,
            row,      units,   given->parts, (uint16_t)(is_odd ? ODD : word),
            0};
}

/* Returns true if a kernel can leave lines out. */
static bool has_crop(const fl_gather *of, const fl_row_column *column)
{
    return column->spans != NULL && of->map_count == 0 && find_shift(column, column->to) == 4;
}

/* Adds the columns from `column` on, as many as a launch takes; first those with a crop. */
static void
add_columns(batch *given, const fl_gather *of, int32_t column, int64_t first, int64_t row_count)
{
    const int32_t count = (int32_t)fl_min(MOST_COLUMNS, of->column_count - column);
    int16_t crops = 0;
    int32_t added = 0;
    bool is_added[MOST_COLUMNS] = {};
    for (int32_t i = 0; i < count && crops < MOST_CROPS; i++) {
        const fl_row_column *from = &of->columns[column + i];
        if (!has_crop(of, from)) continue;
        given->crops[crops] = {from->spans + first * from->span_step, (uint32_t)from->span_step,
                               (uint32_t)from->plane, (uint32_t)from->line};
        add_column(given, &given->columns[added], from, first, row_count);
        given->columns[added++].crop = crops++;
        is_added[i] = true;
    }
    given->line_parts = given->parts;
    for (int32_t i = 0; i < count; i++)
        if (!is_added[i])
            add_column(given, &given->columns[added++], &of->columns[column + i], first, row_count);
    given->column_parts = given->parts;
}

/* Adds as many of the maps as a launch takes; returns the number of maps that are left. */
static int32_t add_maps(batch *given, const fl_map_batch *maps, int32_t count)
{
    const int32_t taken = (int32_t)fl_min(count, MOST_MAPS);
    for (int32_t i = 0; i < taken; i++) {
        given->parts += (uint32_t)maps[i].images;
        given->maps[i] = maps[i];
        given->last_maps[i] = given->parts;
        if (maps[i].has_spans) given->span_parts = given->parts;
    }
    return count - taken;
}

static void set_rows(batch *given, const fl_gather *of, int64_t first)
{
    if (of->here == NULL) {
        given->rows = of->rows + first;
        return;
    }
    given->first = (uint32_t)first;
    for (int64_t i = 0; i < of->row_count; i++) given->own[i] = (int32_t)of->here[i];
}

/* Queues a launch for rows [first, first + row_count) of the columns from `column` on, and for the
 * maps that are left, of each as many as a launch takes. */
static cudaError_t launch(void *stream, const fl_gather *of, int32_t column, int64_t first,
                          int64_t row_count, int32_t *maps_left)
{
    batch given = {};
    set_rows(&given, of, first);
    add_columns(&given, of, column, first, row_count);
    const bool is_first = *maps_left == of->map_count;
    if (is_first) given.kept = of->kept;
    *maps_left = add_maps(&given, of->maps + of->map_count - *maps_left, *maps_left);
    if (given.parts == 0) return cudaSuccess;
    void *args[] = {&given};
    const unsigned blocks = (unsigned)fl_min(given.parts, of->most_blocks);
    return cudaLaunchKernel(given.line_parts > 0 ? k_fetch : k_gather, dim3(blocks), dim3(THREADS),
                            args, 0, (cudaStream_t)stream);
}

static bool are_countable(const fl_gather *of)
{
    int64_t images = 0;
    if (of->here != NULL && of->row_count > FL_GATHER_OWN_ROWS) return false;
    for (int32_t i = 0; i < of->map_count; i++)
        if (!fl_add(images, of->maps[i].images, &images)) return false;
    return images <= INT32_MAX / 2;
}

/* Splits rows into several launches, because units of a launch are counted in 32 bits. */
cudaError_t fl_cuda_queue_gather(void *stream, const fl_gather *of, int64_t most_bytes)
{
    int64_t longest = 1;
    int32_t maps = of->map_count;
    cudaError_t error = cudaSuccess;
    for (int32_t i = 0; i < of->column_count; i++) longest = fl_max(longest, of->columns[i].bytes);
    const int64_t step = most_bytes / longest;
    if (step == 0 || !are_countable(of)) return cudaErrorInvalidValue;
    for (int64_t first = 0; first < of->row_count; first += step)
        for (int32_t i = 0; i < of->column_count && error == cudaSuccess; i += MOST_COLUMNS)
            error = launch(stream, of, i, first, fl_min(of->row_count - first, step), &maps);
    while (error == cudaSuccess && maps > 0)
        error = launch(stream, of, of->column_count, 0, 0, &maps);
    return error;
}

cudaError_t fl_cuda_load_gathers(void)
{
    const void *kernels[] = {(const void *)k_gather, (const void *)k_fetch};
    return fl_cuda_load(kernels, 2);
}
