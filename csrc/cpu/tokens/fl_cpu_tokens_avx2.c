/* fl_cpu_tokens_avx2: fl_token_ops for x86 with AVX2. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#define FL_TOKENS fl_cpu_tokens_avx2
#define FL_TOKENS_NAME "avx2"
#define FL_VECTOR_BYTES 32
#define FL_V(op) _mm256_##op

#include "fl_base.h"

#include <immintrin.h>
#include <string.h>

static inline __m256i load_register(const char *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}
static inline void store_register(char *at, __m256i x) { _mm256_storeu_si256((__m256i *)at, x); }

/* These load this share of a register. */
static inline __m128i half(const char *at) { return _mm_loadu_si128((const __m128i *)at); }
static inline __m128i quarter(const char *at) { return _mm_loadl_epi64((const __m128i *)at); }
static inline __m128i eighth(const char *at)
{
    int32_t bits;
    memcpy(&bits, at, sizeof bits);
    return _mm_cvtsi32_si128(bits);
}

#include "fl_cpu_tokens_body.h"
#endif
