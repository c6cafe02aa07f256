/* fl_cpu_tokens: chooses the table for this machine; see fl_cpu_tokens.h. */
#include "fl_cpu_tokens.h"

#include "fl_cpu_level.h"

const fl_token_ops *fl_cpu_token_ops_find(void)
{
    switch (fl_cpu_level_find()) {
#if defined(__x86_64__)
    case FL_CPU_AVX512:
        return &fl_cpu_tokens_avx512;
    case FL_CPU_AVX2:
        return &fl_cpu_tokens_avx2;
#elif defined(__aarch64__)
    case FL_CPU_NEON:
        return &fl_cpu_tokens_neon;
#endif
    default:
        return &fl_cpu_tokens_plain;
    }
}
