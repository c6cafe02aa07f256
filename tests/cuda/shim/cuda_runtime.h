/* cuda_runtime.h: the language of kernels as C++, as far as csrc/cuda uses it: each thread of a
 * grid is a fiber of shim_grid.c. */
#ifndef SHIM_CUDA_RUNTIME_H
#define SHIM_CUDA_RUNTIME_H

#include "shim_grid.h"

#include <math.h>
#include <new>
#include <stdlib.h>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static __thread /* a block's threads are fibers of one thread */
#define __grid_constant__ &        /* one copy for all of the grid */

#define threadIdx (shim_here->thread)
#define blockIdx (shim_here->block)
#define gridDim (shim_here->blocks)

#define __builtin_assume(condition) ((void)(condition))
#define __isGlobal(address) ((address) != nullptr)

struct dim3 {
    unsigned x, y, z;
    explicit dim3(unsigned n, unsigned m = 1, unsigned k = 1) : x(n), y(m), z(k) {}
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static inline void __syncthreads() { (void)shim_barrier(false); }
static inline int __syncthreads_or(int vote) { return shim_barrier(vote != 0); }
static inline void __threadfence() { shim_fence(); }

static inline double __shfl_down_sync(unsigned, double value, unsigned delta)
{
    return shim_shuffle_down(value, delta);
}

static inline void __stwb(uint4 *to, uint4 value) { *to = value; }
static inline double __ldcg(const double *from) { return *from; }
template <class T> static inline T __ldg(const T *from) { return *from; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits)
{
    return (unsigned)(((unsigned long long)high << 32 | low) >> bits % 32);
}
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }

static inline unsigned atomicInc(unsigned *to, unsigned most)
{
    shim_before_atomic(to);
    unsigned old = __atomic_load_n(to, __ATOMIC_RELAXED), next;
    do next = old >= most ? 0 : old + 1;
    while (!__atomic_compare_exchange_n(to, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    shim_after_atomic(to);
    return old;
}

static inline float atomicExch(float *to, float value)
{
    float old;
    shim_before_atomic(to);
    __atomic_exchange(to, &value, &old, __ATOMIC_RELAXED);
    shim_after_atomic(to);
    return old;
}

template <class T> static inline T atomicAdd(T *to, T value)
{
    shim_before_atomic(to);
    T old = __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
    shim_after_atomic(to);
    return old;
}

/* Of a block's memory alone; barriers order the results. */
template <class T> static inline void shim_replace(T *to, T value, bool is_less)
{
    T old = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (
        (is_less ? value < old : value > old) &&
        !__atomic_compare_exchange_n(to, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static inline void atomicMin(int *to, int value) { shim_replace(to, value, true); }
static inline void atomicMax(int *to, int value) { shim_replace(to, value, false); }

template <class... Params> struct shim_call {
    void (*kernel)(Params...);
    std::tuple<std::decay_t<Params>...> args;

    static void run(void *self)
    {
        std::apply(static_cast<shim_call *>(self)->kernel, static_cast<shim_call *>(self)->args);
    }
};

template <class... Params, size_t... I>
shim_call<Params...> *shim_copy(void (*kernel)(Params...), void **args, std::index_sequence<I...>)
{
    void *memory = malloc(sizeof(shim_call<Params...>));
    return new (memory)
        shim_call<Params...>{kernel, {*static_cast<const std::decay_t<Params> *>(args[I])...}};
}

/* Parameters follow each other, each at a multiple of its alignment. */
template <class... Params> constexpr size_t shim_parameter_bytes()
{
    size_t bytes = 0;
    ((bytes = (bytes + alignof(Params) - 1) / alignof(Params) * alignof(Params) + sizeof(Params)),
     ...);
    return bytes;
}

template <class... Params>
cudaError_t cudaLaunchKernel(void (*kernel)(Params...), dim3 blocks, dim3 threads, void **args,
                             size_t shared, cudaStream_t stream)
{
    auto *call = shim_copy(kernel, args, std::index_sequence_for<Params...>());
    return shim_queue(stream, {shim_call<Params...>::run,
                               call,
                               {blocks.x, blocks.y, blocks.z},
                               {threads.x, threads.y, threads.z},
                               shim_parameter_bytes<std::decay_t<Params>...>(),
                               shared,
                               reinterpret_cast<const void *>(kernel)});
}

#endif
