/* fl_cpu_neon: stores past the caches of 64-bit Arm, for several files. */
#ifndef FL_CPU_NEON_H
#define FL_CPU_NEON_H

#include <arm_neon.h>

/* Stores two registers at dst, at any address, with the hint that the data are not read soon. The
 * stores become visible in the order of other stores, so no fence is needed. */
static inline __attribute__((always_inline)) void
stream_pair(void *dst, uint8x16_t first, uint8x16_t second)
{
    __asm__ volatile("stnp %q1, %q2, [%0]" : : "r"(dst), "w"(first), "w"(second) : "memory");
}

#endif
