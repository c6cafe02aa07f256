/* fl_cuda_windows: windows of tokens in a device's memory become the rows of x and y, widened, by
 * one kernel.
 *
 * Rows follow each other, and each block makes the same number of their elements, wherever rows
 * end, so loads and stores of a warp lie side by side. */
#include "fl_cuda_windows.h"
#include "fl_cuda_runtime.h"

#include <cuda_runtime.h>

static constexpr int THREADS = 256, AHEAD = 4; /* elements that a thread loads before storing */
static constexpr int ELEMENTS = THREADS * AHEAD;

/* Makes a block's elements. Past the last element a thread loads the last element again, so that no
 * load waits for a branch. */
template <class From, class To>
static __device__ void
make_elements(const fl_window_batch &of, const int64_t *starts, const int64_t count)
{
    const uint64_t sign = of.is_signed ? (uint64_t)1 << (8 * sizeof(From) - 1) : 0;
    const int64_t first = (int64_t)blockIdx.x * ELEMENTS, left = count - first;
    const int64_t row = first / of.length;
    const uint32_t length = (uint32_t)of.length, place = (uint32_t)(first % of.length);
    From x[AHEAD], y[AHEAD];
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++) {
        const uint32_t at = threadIdx.x + i * THREADS;
        const uint32_t in_row = place + (at < left ? at : (uint32_t)(left - 1));
        const int64_t token = starts[row + in_row / length] + in_row % length;
        x[i] = ((const From *)of.from)[token];
        y[i] = ((const From *)of.from)[token + of.shift];
    }
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++) {
        const uint32_t at = threadIdx.x + i * THREADS;
        if (at >= left) return;
        ((To *)of.x)[first + at] = (To)((x[i] ^ sign) - sign);
        if (of.y != nullptr) ((To *)of.y)[first + at] = (To)((y[i] ^ sign) - sign);
    }
}

template <class To>
static __global__ void __launch_bounds__(THREADS)
    k_windows(const fl_window_batch __grid_constant__ of, const int64_t *starts, int64_t count)
{
    switch (of.from_bytes) {
    case 1:
        return make_elements<uint8_t, To>(of, starts, count);
    case 2:
        return make_elements<uint16_t, To>(of, starts, count);
    case 4:
        return make_elements<uint32_t, To>(of, starts, count);
    default:
        return make_elements<uint64_t, To>(of, starts, count);
    }
}

template <class To>
static cudaError_t
launch(void *stream, const fl_window_batch *windows, const int64_t *starts, int64_t count)
{
    const unsigned blocks = (unsigned)((count - 1) / ELEMENTS + 1);
    const void *args[] = {windows, &starts, &count};
    return cudaLaunchKernel(k_windows<To>, dim3(blocks), dim3(THREADS), (void **)args, 0,
                            (cudaStream_t)stream);
}

cudaError_t fl_cuda_queue_windows(void *stream, const fl_window_batch *windows,
                                  const int64_t *starts, int64_t count)
{
    const int64_t elements = count * windows->length;
    if (elements == 0) return cudaSuccess;
    if (windows->bytes == 2) return launch<uint16_t>(stream, windows, starts, elements);
    if (windows->bytes == 4) return launch<uint32_t>(stream, windows, starts, elements);
    return launch<uint64_t>(stream, windows, starts, elements);
}

cudaError_t fl_cuda_load_windows(void)
{
    const void *kernels[] = {(const void *)k_windows<uint16_t>, (const void *)k_windows<uint32_t>,
                             (const void *)k_windows<uint64_t>};
    return fl_cuda_load(kernels, 3);
}
