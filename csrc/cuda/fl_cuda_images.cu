/* fl_cuda_images: uint8 images in a device's memory become a batch, cropped, padded, flipped,
 * resized, erased and cast, by one kernel. Tables say the source of each pixel, the whole weights
 * of a resize, and the value of each byte, so the bits equal the CPU's. If colours change, the
 * kernel first makes the bytes of all images. The last block of an image to finish then changes the
 * image's colours and writes the result (fl_cuda_colors).
 *
 * A block makes some pixels of one image. One thread makes all channels of a pixel, so loads and
 * stores of a warp lie side by side. */
#include "fl_cuda_images.h"

#include "fl_cuda_colors.cuh"
#include "fl_cuda_last_block.cuh"
#include "fl_cuda_runtime.h"

#include <cuda_runtime.h>

static constexpr uint32_t THREADS = 256, EACH = 4; /* EACH: pixels of a thread */
/* Blocks whose registers a multiprocessor has to hold at a time; 7.5 has threads for four. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
static constexpr uint32_t BLOCKS_PER_SM = 4;
#else
static constexpr uint32_t BLOCKS_PER_SM = 5;
#endif

/* The source of a pixel: a row and a column of the map or, if fill is below 0, the operation that
 * fills the pixel. */
struct origin {
    int32_t row, column, fill;
};

static __device__ origin find_origin(const fl_image_batch &of, const int32_t *map, int32_t y,
                                     int32_t x)
{
    origin at = {map[y], map[of.height + x], 0};
    at.fill = at.row < at.column ? at.row : at.column;
    const int32_t *erased = map + of.height + of.width;
    const int32_t count = of.steps > 0 ? 0 : of.erased; /* otherwise erased after the colours */
#pragma unroll 1
    for (int32_t i = 0; i < count; i++, erased += FL_ERASED_NUMBERS)
        if (y >= erased[0] && x >= erased[1] && y < erased[2] && x < erased[3]) at.fill = erased[4];
    return at;
}

/* Rounds the sum of a resize to a byte; weights have this precision. */
static __device__ int32_t to_byte(int32_t sum, int32_t precision)
{
    const int32_t value = (sum + ((1 << precision) >> 1)) >> precision;
    return value < 0 ? 0 : value > 255 ? 255 : value;
}

/* Returns the taps of row or column `at`, in the table for source length `number`, counted from the
 * shortest. */
static __device__ const int32_t *
find_taps(const int32_t *taps, const fl_image_taps &axis, int32_t number, int32_t at)
{
    return taps + ((int64_t)number * axis.out + at) * (FL_TAP_NUMBERS + axis.taps);
}

/* The source of a resized pixel: byte (0, 0), the steps between rows and between columns, and the
 * taps. Each row is first rounded to a byte, as on the CPU. */
struct resized {
    int64_t from, row, column;
    const int32_t *rows, *columns;
};

static __device__ resized find_resized(const fl_image_batch &of, const int32_t *crop, origin at)
{
    const bool is_own = of.row_taps == NULL;
    const int32_t *rows = is_own ? crop + FL_CROP_NUMBERS : of.row_taps;
    const int32_t *columns = is_own ? find_taps(rows, of.rows, 1, 0) : of.column_taps;
    resized r = {
        crop[1] * of.from_steps[2] + crop[4] * of.from_steps[3], crop[2] * of.from_steps[2],
        crop[5] * of.from_steps[3],
        find_taps(rows, of.rows, is_own ? 0 : crop[0] - of.rows.shortest, at.row),
        find_taps(columns, of.columns, is_own ? 0 : crop[3] - of.columns.shortest, at.column)};
    r.from += r.rows[0] * r.row + r.columns[0] * r.column;
    return r;
}

static __device__ int32_t make_resized(const uint8_t *image, const resized &r)
{
    const uint8_t *row = image + r.from;
    int32_t sum = 0;
#pragma unroll 1
    for (int32_t j = 0; j < r.rows[1]; j++, row += r.row) {
        int32_t across = 0;
#pragma unroll 1
        for (int32_t k = 0; k < r.columns[1]; k++)
            across += r.columns[FL_TAP_NUMBERS + k] * row[k * r.column];
        sum += r.rows[FL_TAP_NUMBERS + j] * to_byte(across, r.columns[2]);
    }
    return to_byte(sum, r.rows[2]);
}

/* Makes a pixel whose bytes are read or filled, without a resize. The bytes of all channels are
 * loaded before the first is looked up, and all elements before the first is stored: a load could
 * not pass a store. */
template <class T>
static __device__ void
make_pixel(const fl_image_batch &of, const uint8_t *byte, int32_t fill, T *to)
{
    const T *table = (const T *)of.table;
    int32_t values[FL_MAX_CHANNELS];
    T elements[FL_MAX_CHANNELS];
#pragma unroll
    for (int32_t c = 0; c < FL_MAX_CHANNELS; c++) {
        values[c] = 255 - fill;
        if (c < of.channels && fill >= 0) values[c] = __ldg(byte + c * of.from_steps[1]);
    }
#pragma unroll
    for (int32_t c = 0; c < FL_MAX_CHANNELS; c++)
        if (c < of.channels) elements[c] = __ldg(table + c * of.values + values[c]);
#pragma unroll
    for (int32_t c = 0; c < FL_MAX_CHANNELS; c++)
        if (c < of.channels) to[c * of.to_steps[1]] = elements[c];
}

template <class T>
static __device__ void
make_resized_pixel(const fl_image_batch &of, const uint8_t *image, const resized &r, T *to)
{
    const T *table = (const T *)of.table;
#pragma unroll 1
    for (int32_t c = 0; c < of.channels; c++, table += of.values, image += of.from_steps[1])
        to[c * of.to_steps[1]] = __ldg(table + make_resized(image, r));
}

/* Makes the pixels of one part of an image; each thread of the block makes EACH. */
template <class T, uint32_t BLOCK>
static __device__ void
make_part(const fl_image_batch &of, const int64_t *rows, uint32_t image, uint32_t part)
{
    const uint32_t pixels = (uint32_t)of.height * (uint32_t)of.width;
    const int32_t *map = of.maps + image * of.map_numbers;
    const uint8_t *from = of.from + (rows != NULL ? rows[image] : image) * of.from_steps[0];
    T *to = (T *)of.to + image * of.to_steps[0];
    const int32_t edges =
        of.height + of.width + FL_ERASED_NUMBERS * of.erased + fl_steps_numbers(of.steps);
    uint32_t pixel = part * (BLOCK * EACH) + threadIdx.x;
#pragma unroll 1
    for (uint32_t i = 0; i < EACH; i++, pixel += BLOCK) {
        if (pixel >= pixels) return;
        const int32_t y = (int32_t)(pixel / (uint32_t)of.width);
        const int32_t x = (int32_t)(pixel % (uint32_t)of.width);
        const origin at = find_origin(of, map, y, x);
        T *element = to + y * of.to_steps[2] + x * of.to_steps[3];
        if (of.resizes && at.fill >= 0)
            make_resized_pixel(of, from, find_resized(of, map + edges, at), element);
        else
            make_pixel(of, from + at.row * of.from_steps[2] + at.column * of.from_steps[3], at.fill,
                       element);
    }
}

template <class T>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    k_images(const fl_image_batch __grid_constant__ of, const int64_t *rows, uint32_t blocks)
{
    make_part<T, THREADS>(of, rows, blockIdx.x / blocks, blockIdx.x % blocks);
}

/* Returns true in the last of the image's blocks: all bytes of the image are then written. */
static __device__ bool is_made(const fl_image_batch &of, uint32_t image, uint32_t blocks)
{
    int32_t *done = of.maps + image * of.map_numbers + of.runs_at - 1;
    __syncthreads();
    return blocks == 1 || is_last_block((uint32_t *)done, blocks);
}

/* Makes `bytes` like k_images; then the last block of each image makes its result. Equal parts of
 * all images lie side by side in the grid, so that all bytes are made before most blocks turn to
 * colours, which takes a block long. */
static __global__ void __launch_bounds__(COLOR_THREADS, 2)
    k_colors(const fl_image_batch __grid_constant__ bytes,
             const fl_image_batch __grid_constant__ of, const int64_t *rows, uint32_t count)
{
    __shared__ work shared;
    const uint32_t image = blockIdx.x % count;
    make_part<uint8_t, COLOR_THREADS>(bytes, rows, image, blockIdx.x / count);
    if (is_made(of, image, gridDim.x / count)) change_colors(of, image, &shared);
}

static uint32_t count_blocks(const fl_image_batch *images, uint32_t threads)
{
    return ((uint32_t)images->height * (uint32_t)images->width - 1) / (threads * EACH) + 1;
}

template <class T>
static cudaError_t
launch(void *stream, const fl_image_batch *images, const int64_t *rows, uint32_t count)
{
    uint32_t blocks = count_blocks(images, THREADS);
    const void *args[] = {images, &rows, &blocks};
    return cudaLaunchKernel(k_images<T>, dim3(count * blocks), dim3(THREADS), (void **)args, 0,
                            (cudaStream_t)stream);
}

/* Returns the batch of bytes that the colours of `images` start from, at the end of each result. */
static fl_image_batch find_bytes(const fl_image_batch *images)
{
    fl_image_batch bytes = *images;
    const int64_t elements = (int64_t)images->height * images->width * images->channels;
    bytes.to += (images->element_bytes - 1) * elements;
    bytes.to_steps[0] = images->element_bytes * elements;
    bytes.table += (int64_t)images->channels * images->values * images->element_bytes;
    bytes.element_bytes = 1;
    return bytes;
}

static cudaError_t
launch_colors(void *stream, const fl_image_batch *images, const int64_t *rows, uint32_t count)
{
    const fl_image_batch bytes = find_bytes(images);
    const void *args[] = {&bytes, images, &rows, &count};
    return cudaLaunchKernel(k_colors, dim3(count * count_blocks(images, COLOR_THREADS)),
                            dim3(COLOR_THREADS), (void **)args, 0, (cudaStream_t)stream);
}

cudaError_t
fl_cuda_queue_images(void *stream, const fl_image_batch *images, const int64_t *rows, int64_t count)
{
    const int64_t pixels = (int64_t)images->height * images->width;
    if (pixels * images->channels > INT32_MAX || count > INT32_MAX / count_blocks(images, THREADS))
        return cudaErrorInvalidValue;
    if (count == 0) return cudaSuccess;
    if (images->steps > 0) return launch_colors(stream, images, rows, (uint32_t)count);
    if (images->element_bytes == 1) return launch<uint8_t>(stream, images, rows, (uint32_t)count);
    if (images->element_bytes == 2) return launch<uint16_t>(stream, images, rows, (uint32_t)count);
    return launch<uint32_t>(stream, images, rows, (uint32_t)count);
}

cudaError_t fl_cuda_load_images(void)
{
    const void *kernels[] = {(const void *)k_images<uint8_t>, (const void *)k_images<uint16_t>,
                             (const void *)k_images<uint32_t>, (const void *)k_colors};
    return fl_cuda_load(kernels, 4);
}
