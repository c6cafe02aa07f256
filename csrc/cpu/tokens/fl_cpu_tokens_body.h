/* fl_cpu_tokens_body: the source of an fl_token_ops table. Each fl_cpu_tokens_*.c includes this
 * file once, after setting the table's name (FL_TOKENS, FL_TOKENS_NAME). If instructions widen
 * tokens, the file also sets the length of a register (FL_VECTOR_BYTES) and the widening: FL_STEP
 * bytes at a time, with FL_PUT.
 *
 * With registers, a run is worked on in blocks of one register of tokens. A block is compared once
 * and then widened piece by piece, for x and again for y. The second load from the nearest cache
 * costs less than storing to y from x's begin, because half of such stores would cross a cache
 * line. */
#include "fl_cpu_tokens.h"

#include <string.h>

#define FL_INLINE static inline __attribute__((always_inline))

/* Loads element i from any address. U is the type without sign; as U, a negative token is above
 * LARGEST, the largest of T. */
#define FL_DEFINE_TYPE(name, T, U, LARGEST)                                                      \
    typedef T type_##name;                                                                       \
    typedef U bits_##name;                                                                       \
    FL_INLINE T load_##name(const char *src, int64_t i)                                          \
    {                                                                                            \
        T token;                                                                                 \
        memcpy(&token, src + i * (int64_t)sizeof token, sizeof token);                           \
        return token;                                                                            \
    }                                                                                            \
    FL_INLINE bits_##name limit_##name(uint64_t most)                                            \
    {                                                                                            \
        if (most == UINT64_MAX) return (bits_##name) - 1;                                        \
        return most < LARGEST ? (bits_##name)most : LARGEST;                                     \
    }                                                                                            \
    static int64_t find_##name(const void *src, int64_t count, int64_t value)                    \
    {                                                                                            \
        enum { BLOCK = 64 };                                                                     \
        const U wanted = (U)value;                                                               \
        int64_t at = 0;                                                                          \
        for (; at + BLOCK <= count; at += BLOCK) {                                               \
            U found = 0;                                                                         \
            for (int k = 0; k < BLOCK; k++) found |= (U)((U)load_##name(src, at + k) == wanted); \
            if (found != 0) break;                                                               \
        }                                                                                        \
        while (at < count && (U)load_##name(src, at) != wanted) at++;                            \
        return at;                                                                               \
    }

FL_DEFINE_TYPE(u8, uint8_t, uint8_t, UINT8_MAX)
FL_DEFINE_TYPE(i8, int8_t, uint8_t, INT8_MAX)
FL_DEFINE_TYPE(u16, uint16_t, uint16_t, UINT16_MAX)
FL_DEFINE_TYPE(i16, int16_t, uint16_t, INT16_MAX)
FL_DEFINE_TYPE(u32, uint32_t, uint32_t, UINT32_MAX)
FL_DEFINE_TYPE(i32, int32_t, uint32_t, INT32_MAX)
FL_DEFINE_TYPE(i64, int64_t, uint64_t, INT64_MAX)

typedef uint8_t out_8;
typedef uint16_t out_16;
typedef uint32_t out_32;
typedef uint64_t out_64;

/* Converts tokens at <= i < count, one after the other. */
#define FL_DEFINE_ONES(from, to)                                                            \
    FL_INLINE bool ones_##from##_##to(char *restrict x, char *restrict y,                   \
                                      const char *restrict src, int64_t at, int64_t count,  \
                                      int64_t shift, bits_##from most)                      \
    {                                                                                       \
        bits_##from above = 0;                                                              \
        for (int64_t i = at; i < count; i++) {                                              \
            type_##from token = load_##from(src, i);                                        \
            above |= (bits_##from)((bits_##from)token > most);                              \
            out_##to out = (out_##to)token;                                                 \
            memcpy(x + i * (int64_t)sizeof out, &out, sizeof out);                          \
        }                                                                                   \
        for (int64_t i = at; y != NULL && i < count; i++) {                                 \
            out_##to out = (out_##to)load_##from(src, i + shift);                           \
            memcpy(y + i * (int64_t)sizeof out, &out, sizeof out);                          \
        }                                                                                   \
        if (shift > 0) above |= (bits_##from)((bits_##from)load_##from(src, count) > most); \
        return above == 0;                                                                  \
    }

#define FL_DEFINE_LOOP(from, to)                                                        \
    FL_DEFINE_ONES(from, to)                                                            \
    static bool convert_##from##_##to(void *x, void *y, const void *src, int64_t count, \
                                      int64_t shift, uint64_t most)                     \
    {                                                                                   \
        return ones_##from##_##to(x, y, src, 0, count, shift, limit_##from(most));      \
    }

#ifdef FL_V
/* A step fills one register. */
#define FL_STEP(token_bytes, out_bytes) (FL_VECTOR_BYTES / (out_bytes) * (token_bytes))
#define FL_PUT(dst, widen, at) store_register(dst, widen(at))

/* These make a register of elements from the tokens at `at`. */
#define widen_none(at) load_register(at)
#define widen_u8_16(at) FL_V(cvtepu8_epi16)(half(at))
#define widen_i8_16(at) FL_V(cvtepi8_epi16)(half(at))
#define widen_u8_32(at) FL_V(cvtepu8_epi32)(quarter(at))
#define widen_i8_32(at) FL_V(cvtepi8_epi32)(quarter(at))
#define widen_u16_32(at) FL_V(cvtepu16_epi32)(half(at))
#define widen_i16_32(at) FL_V(cvtepi16_epi32)(half(at))
#define widen_u8_64(at) FL_V(cvtepu8_epi64)(eighth(at))
#define widen_i8_64(at) FL_V(cvtepi8_epi64)(eighth(at))
#define widen_u16_64(at) FL_V(cvtepu16_epi64)(quarter(at))
#define widen_i16_64(at) FL_V(cvtepi16_epi64)(quarter(at))
#define widen_u32_64(at) FL_V(cvtepu32_epi64)(half(at))
#define widen_i32_64(at) FL_V(cvtepi32_epi64)(half(at))
#endif

#ifdef FL_VECTOR_BYTES
#define FL_TOKENS_OF(from) __attribute__((vector_size(FL_VECTOR_BYTES), aligned(1))) bits_##from

FL_INLINE bool is_any(const void *vector)
{
    uint64_t words[FL_VECTOR_BYTES / 8], all = 0;
    memcpy(words, vector, sizeof words);
    for (int i = 0; i < FL_VECTOR_BYTES / 8; i++) all |= words[i];
    return all != 0;
}

/* widen: the argument by which FL_PUT makes elements of the output from the tokens of a step. */
#define FL_DEFINE_BLOCKS(from, to, widen)                                                  \
    FL_INLINE bool blocks_##from##_##to(char *x, char *y, const char *src, int64_t blocks, \
                                        int64_t shift, bits_##from most)                   \
    {                                                                                      \
        enum { TOKEN = sizeof(type_##from), OUT = sizeof(out_##to) };                      \
        enum { STEP = FL_STEP(TOKEN, OUT), STEP_OUT = STEP / TOKEN * OUT };                \
        typedef FL_TOKENS_OF(from) tokens;                                                 \
        tokens above = {0};                                                                \
        for (int64_t b = 0; b < blocks; b++, src += FL_VECTOR_BYTES) {                     \
            tokens block;                                                                  \
            memcpy(&block, src, sizeof block);                                             \
            above |= (tokens)(block > most);                                               \
            _Pragma("GCC unroll 8") for (int k = 0; k < FL_VECTOR_BYTES; k += STEP)        \
            {                                                                              \
                FL_PUT(x, widen, src + k);                                                 \
                x += STEP_OUT;                                                             \
                if (y == NULL) continue;                                                   \
                FL_PUT(y, widen, src + k + shift * TOKEN);                                 \
                y += STEP_OUT;                                                             \
            }                                                                              \
        }                                                                                  \
        return !is_any(&above);                                                            \
    }

#define FL_DEFINE_WIDEN(from, to, widen)                                                  \
    FL_DEFINE_ONES(from, to)                                                              \
    FL_DEFINE_BLOCKS(from, to, widen)                                                     \
    static bool convert_##from##_##to(void *x, void *y, const void *src, int64_t count,   \
                                      int64_t shift, uint64_t most)                       \
    {                                                                                     \
        int64_t blocks = count * (int64_t)sizeof(type_##from) / FL_VECTOR_BYTES;          \
        int64_t done = blocks * FL_VECTOR_BYTES / (int64_t)sizeof(type_##from);           \
        bits_##from limit = limit_##from(most);                                           \
        bool is_below = y != NULL ? blocks_##from##_##to(x, y, src, blocks, shift, limit) \
                                  : blocks_##from##_##to(x, NULL, src, blocks, 0, limit); \
        return ones_##from##_##to(x, y, src, done, count, shift, limit) && is_below;      \
    }
#else
#define FL_DEFINE_WIDEN(from, to, widen) FL_DEFINE_LOOP(from, to)
#endif

FL_DEFINE_WIDEN(u8, 8, widen_none)
FL_DEFINE_WIDEN(i8, 8, widen_none)
FL_DEFINE_LOOP(u16, 8)
FL_DEFINE_LOOP(i16, 8)
FL_DEFINE_LOOP(u32, 8)
FL_DEFINE_LOOP(i32, 8)
FL_DEFINE_LOOP(i64, 8)

FL_DEFINE_WIDEN(u8, 16, widen_u8_16)
FL_DEFINE_WIDEN(i8, 16, widen_i8_16)
FL_DEFINE_WIDEN(u16, 16, widen_none)
FL_DEFINE_WIDEN(i16, 16, widen_none)
FL_DEFINE_LOOP(u32, 16)
FL_DEFINE_LOOP(i32, 16)
FL_DEFINE_LOOP(i64, 16)

FL_DEFINE_WIDEN(u8, 32, widen_u8_32)
FL_DEFINE_WIDEN(i8, 32, widen_i8_32)
FL_DEFINE_WIDEN(u16, 32, widen_u16_32)
FL_DEFINE_WIDEN(i16, 32, widen_i16_32)
FL_DEFINE_WIDEN(u32, 32, widen_none)
FL_DEFINE_WIDEN(i32, 32, widen_none)
FL_DEFINE_LOOP(i64, 32)

FL_DEFINE_WIDEN(u8, 64, widen_u8_64)
FL_DEFINE_WIDEN(i8, 64, widen_i8_64)
FL_DEFINE_WIDEN(u16, 64, widen_u16_64)
FL_DEFINE_WIDEN(i16, 64, widen_i16_64)
FL_DEFINE_WIDEN(u32, 64, widen_u32_64)
FL_DEFINE_WIDEN(i32, 64, widen_i32_64)
FL_DEFINE_WIDEN(i64, 64, widen_none)

static void count_up(int64_t *out, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++) out[i] = first + i;
}

static void fill(int64_t *out, int64_t value, int64_t count)
{
    for (int64_t i = 0; i < count; i++) out[i] = value;
}

#define FL_OUTS_OF(from)                                                                 \
    {                                                                                    \
        [FL_TOKEN_OUT_8] = convert_##from##_8, [FL_TOKEN_OUT_16] = convert_##from##_16,  \
        [FL_TOKEN_OUT_32] = convert_##from##_32, [FL_TOKEN_OUT_64] = convert_##from##_64 \
    }

const fl_token_ops FL_TOKENS = {
    .name = FL_TOKENS_NAME,
    .convert = {[FL_TOKEN_U8] = FL_OUTS_OF(u8),
                [FL_TOKEN_I8] = FL_OUTS_OF(i8),
                [FL_TOKEN_U16] = FL_OUTS_OF(u16),
                [FL_TOKEN_I16] = FL_OUTS_OF(i16),
                [FL_TOKEN_U32] = FL_OUTS_OF(u32),
                [FL_TOKEN_I32] = FL_OUTS_OF(i32),
                [FL_TOKEN_I64] = FL_OUTS_OF(i64)},
    .find = {[FL_TOKEN_U8] = find_u8,
             [FL_TOKEN_I8] = find_i8,
             [FL_TOKEN_U16] = find_u16,
             [FL_TOKEN_I16] = find_i16,
             [FL_TOKEN_U32] = find_u32,
             [FL_TOKEN_I32] = find_i32,
             [FL_TOKEN_I64] = find_i64},
    .count_up = count_up,
    .fill = fill,
};
