/* fl_cpu_tokens_avx512: fl_token_ops for x86 with AVX-512. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq,prefer-vector-width=512")
#define FL_TOKENS fl_cpu_tokens_avx512
#define FL_TOKENS_NAME "avx512"
#define FL_VECTOR_BYTES 64
#define FL_V(op) _mm512_##op

#include "fl_base.h"

#include <immintrin.h>
#include <string.h>

static inline __m512i load_register(const char *at) { return _mm512_loadu_si512(at); }
static inline void store_register(char *at, __m512i x) { _mm512_storeu_si512(at, x); }

/* These load this share of a register. */
static inline __m256i half(const char *at) { return _mm256_loadu_si256((const __m256i *)at); }
static inline __m128i quarter(const char *at) { return _mm_loadu_si128((const __m128i *)at); }
static inline __m128i eighth(const char *at) { return _mm_loadl_epi64((const __m128i *)at); }

#include "fl_cpu_tokens_body.h"
#endif
