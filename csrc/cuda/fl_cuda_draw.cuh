/* fl_cuda_draw: the random parameters of images, and the maps that follow, for kernels. The draws
 * and the maps are the CPU's own functions, so the bits equal the CPU's if nvcc fuses no product
 * with a sum: a file that includes this one is compiled with --fmad=false.
 *
 * A block writes the map of one image. Thread k draws operation k, and writes its steps on colours;
 * all threads write rows and columns; one thread for each axis writes the runs of a resize and the
 * erased rectangles. */
#ifndef FL_CUDA_DRAW_CUH
#define FL_CUDA_DRAW_CUH

#include "fl_map_axis.h"

#include <cuda_runtime.h>

static constexpr int32_t MAP_THREADS = 256; /* of a block */
static_assert(MAP_THREADS >= FL_MAX_IMAGE_OPS, "each operation has a thread");

/* A block's memory. */
struct drawn {
    fl_sample_key key;
    fl_image_params params[FL_MAX_IMAGE_OPS];
    fl_color_step steps[FL_MAX_IMAGE_OPS][FL_MOST_STEPS];
    int32_t counts[FL_MAX_IMAGE_OPS]; /* of steps */
    int32_t first, end;               /* of the lines that are read */
};

static __device__ void clear(char *to, size_t bytes)
{
    for (size_t i = threadIdx.x * sizeof(int32_t); i < bytes; i += MAP_THREADS * sizeof(int32_t))
        *(int32_t *)(to + i) = 0;
}

static __device__ void
draw_one(const fl_image_op *op, const fl_sample_key &key, fl_image_size in, fl_image_params *params)
{
    params->is_applied = true;
    params->out = op->out;
    switch (op->kind) {
    case FL_OP_PAD:
        fl_op_draw_pad(op, &key, in, params);
        break;
    case FL_OP_CENTER_CROP:
        fl_op_draw_center_crop(op, &key, in, params);
        break;
    case FL_OP_RANDOM_CROP:
        fl_op_draw_crop(op, &key, in, params);
        break;
    case FL_OP_RANDOM_RESIZED_CROP:
        fl_op_draw_resized_crop(op, &key, in, params);
        break;
    case FL_OP_ERASE:
        fl_op_draw_erase(op, &key, in, params);
        break;
    case FL_OP_COLOR_JITTER:
        fl_op_draw_jitter(op, &key, in, params);
        break;
    case FL_OP_CHANNEL_PERMUTATION:
        fl_op_draw_permutation(op, &key, in, params);
        break;
    case FL_OP_PHOTOMETRIC_DISTORT:
        fl_op_draw_distort(op, &key, in, params);
        break;
    case FL_OP_CHOICE:
        fl_op_draw_choice(op, &key, in, params);
        break;
    case FL_OP_ORDER:
        fl_op_draw_order(op, &key, in, params);
        break;
    case FL_OP_RESIZE:
    case FL_OP_GRAYSCALE:
    case FL_OP_BRANCH:
        break;
    default:
        fl_op_draw_applied(op, &key, in, params);
    }
}

/* Draws the operations of an image. The operations that are held are drawn in any case; those that
 * are not reached are then not applied. */
static __device__ void draw(const fl_map_batch &of, const fl_sample_key &key, drawn *at)
{
    const int32_t k = (int32_t)threadIdx.x;
    if (k == 0) at->key = key;
    clear((char *)at->params, of.count * sizeof *at->params);
    __syncthreads();
    if (k < of.count)
        draw_one(of.ops + k, at->key, k > 0 ? of.ops[k - 1].out : of.in, &at->params[k]);
    __syncthreads();
    const bool is_reached = k >= of.count || fl_op_is_reached(of.ops, at->params, k);
    __syncthreads();
    if (!is_reached) at->params[k].is_applied = false;
    __syncthreads();
}

static __device__ void write_steps(const fl_map_batch &of, drawn *at, fl_color_step *steps)
{
    const int32_t k = (int32_t)threadIdx.x;
    if (k < of.count) at->counts[k] = fl_op_find_steps(of.ops + k, &at->params[k], at->steps[k]);
    __syncthreads();
    if (k >= of.count || at->counts[k] == 0) return;
    steps += fl_op_find_place(of.ops, at->params, at->counts, of.count, k);
    for (int32_t n = 0; n < at->counts[k]; n++) steps[n] = at->steps[k][n];
}

static __device__ void write_entries(const fl_map_ops &ops, fl_image_size out, int32_t *map)
{
    for (int32_t i = (int32_t)threadIdx.x; i < out.height + out.width; i += MAP_THREADS) {
        const bool is_column = i >= out.height;
        int32_t entry = 0;
        fl_map_axis(&ops, is_column ? FL_MAP_COLUMNS : FL_MAP_ROWS, is_column ? i - out.height : i,
                    1, &entry);
        map[i] = entry;
    }
}

/* Writes the map of one image. All threads of a block call this; before the first call, and between
 * two calls, they pass a barrier. */
static __device__ void
write_map(const fl_map_batch &of, const fl_sample_key &key, uint32_t image, drawn *at)
{
    int32_t *map = of.maps + (int64_t)image * of.parts.numbers;
    int32_t *runs = map + of.parts.runs_at;
    int32_t *steps = runs - fl_steps_numbers(of.parts.steps);
    int32_t *erased = steps - FL_ERASED_NUMBERS * of.parts.erases;
    fl_map_ops ops = {of.ops, at->params, 0, of.count, of.in};
    const bool has_axis = threadIdx.x < 2; /* a thread for rows, a thread for columns */
    const fl_map_direction axis = threadIdx.x == 0 ? FL_MAP_ROWS : FL_MAP_COLUMNS;
    clear((char *)erased, (size_t)(runs - erased) * sizeof *map);
    draw(of, key, at);
    if (of.parts.steps > 0) write_steps(of, at, (fl_color_step *)steps);
    if (of.parts.resize < of.count) {
        if (has_axis) fl_map_run(&ops, of.parts.resize, axis, runs + axis * FL_CROP_NUMBERS / 2);
        ops = fl_map_after(ops, of.parts.resize);
    }
    write_entries(ops, of.out, map);
    if (has_axis) fl_map_erases(&ops, axis, erased);
}

/* Notes that the result reads this line of the image. */
static __device__ void note_line(drawn *at, int32_t line)
{
    atomicMin(&at->first, line);
    atomicMax(&at->end, line + 1);
}

/* Writes the lines that a map reads: rows of the image or, if there is a resize, its run. All
 * threads of the block that has written the map call this. */
static __device__ void write_span(const fl_map_batch &of, uint32_t image, drawn *at)
{
    int32_t *map = of.maps + (int64_t)image * of.parts.numbers;
    const int32_t *run = map + of.parts.runs_at;
    __syncthreads(); /* the map is written, and the last span */
    if (threadIdx.x == 0) {
        at->first = INT32_MAX;
        at->end = 0;
    }
    __syncthreads();
    if (of.parts.resize == of.count) {
#pragma unroll 1
        for (int32_t i = (int32_t)threadIdx.x; i < of.out.height; i += MAP_THREADS)
            if (map[i] >= 0) note_line(at, map[i]);
    } else if (threadIdx.x < 2) {
        note_line(at, run[1] + (int32_t)threadIdx.x * (run[0] - 1) * run[2]);
    }
    __syncthreads();
    if (threadIdx.x < 2) map[of.parts.numbers - 2 + threadIdx.x] = (&at->first)[threadIdx.x];
}

#endif
