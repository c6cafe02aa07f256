/* fl_cpu_neon: what several files have to write past the caches of 64-bit Arm. */
#ifndef FL_CPU_NEON_H
#define FL_CPU_NEON_H

#include <arm_neon.h>

/* Two registers to dst, at any address, with the hint that they are not read soon. They become
 * visible in the order of other stores: no fence ends them. */
static inline __attribute__((always_inline)) void
stream_pair(void *dst, uint8x16_t first, uint8x16_t second)
{
    __asm__ volatile("stnp %q1, %q2, [%0]" : : "r"(dst), "w"(first), "w"(second) : "memory");
}

#endif
