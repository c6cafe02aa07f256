/* limit_step: what no pass over gradients can beat: plain loops that read, or read and write, as
 * much memory, on threads that are ready.
 *
 * Not part of the library: bench_step.py builds it with `cc -O3 -march=native` and calls it through
 * ctypes, that is, without the interpreter lock. The threads are OpenMP's. */
#include <stdint.h>

typedef float lanes __attribute__((vector_size(64)));

enum { LANES = 16, ACROSS = 4, BLOCK = LANES * ACROSS };

static float read_block(const float *at, int64_t count)
{
    lanes sums[ACROSS] = {{0}};
    for (int64_t i = 0; i + BLOCK <= count; i += BLOCK)
        for (int k = 0; k < ACROSS; k++) {
            lanes x;
            __builtin_memcpy(&x, at + i + k * LANES, sizeof x);
            sums[k] += x * x;
        }
    lanes all = sums[0] + sums[1] + sums[2] + sums[3];
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += all[i];
    return sum;
}

float limit_read(const float *data, int64_t count, int64_t threads)
{
    float total = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : total)
    for (int64_t part = 0; part < threads; part++) {
        int64_t first = count / threads * part;
        total += read_block(data + first, count / threads);
    }
    return total;
}

void limit_scale(float *data, int64_t count, float factor, int64_t threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; i++) data[i] *= factor;
}
