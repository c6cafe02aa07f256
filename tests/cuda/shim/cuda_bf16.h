/* cuda_bf16.h: bfloat16, converted as the hardware does: to nearest, ties to even. */
#ifndef SHIM_CUDA_BF16_H
#define SHIM_CUDA_BF16_H

#include <stdint.h>
#include <string.h>

struct __nv_bfloat16 {
    uint16_t bits;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
    uint32_t bits = (uint32_t)x.bits << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return {0x7fff};
    return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

#endif
