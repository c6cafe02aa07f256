/* cuda_fp16.h: halves, converted as the hardware does: to nearest, ties to even. */
#ifndef SHIM_CUDA_FP16_H
#define SHIM_CUDA_FP16_H

#include <math.h>
#include <stdint.h>

struct __half {
    uint16_t bits;
};

static inline float __half2float(__half x)
{
    int exponent = x.bits >> 10 & 31, mantissa = x.bits & 0x3ff;
    float size = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
                 : exponent == 0 ? ldexpf((float)mantissa, -24)
                                 : ldexpf((float)(mantissa | 0x400), exponent - 25);
    return x.bits >> 15 ? -size : size;
}

static inline __half __float2half_rn(float x)
{
    int exponent;
    float size = fabsf(x);
    uint32_t bits = 0x7fff;
    if (size <= INFINITY) {
        (void)frexpf(size, &exponent);
        exponent = size == 0 || exponent < -13 ? -13 : exponent; /* size < 2^exponent */
        if (size >= 65536)
            bits = 0x7c00;
        else /* units of the last place; a carry makes the next exponent, or infinity */
            bits = ((uint32_t)(exponent + 13) << 10) + (uint32_t)rintf(ldexpf(size, 11 - exponent));
    }
    return {(uint16_t)(bits | (signbit(x) ? 0x8000U : 0U))};
}

#endif
