/* Tests of fl_cpu_tokens: each instruction set this machine has, against single tokens, for all
 * types, lengths and places in memory. */
#include "check.h"
#include "fl_cpu_level.h"
#include "fl_cpu_tokens.h"

enum { MOST = 200, ROOM = MOST * 8 + 192, GUARD = 64, PATTERN = 0xA5 };

static const fl_token_ops *variants[FL_CPU_LEVELS];
static int variant_count;

static void find_variants(void)
{
    variants[variant_count++] = &fl_cpu_tokens_plain;
#if defined(__x86_64__)
    fl_cpu_level level = fl_cpu_level_find();
    if (level >= FL_CPU_AVX2) variants[variant_count++] = &fl_cpu_tokens_avx2;
    if (level >= FL_CPU_AVX512) variants[variant_count++] = &fl_cpu_tokens_avx512;
#elif defined(__aarch64__)
    variants[variant_count++] = &fl_cpu_tokens_neon;
#endif
}

static bool is_signed(fl_token_type type)
{
    return type == FL_TOKEN_I8 || type == FL_TOKEN_I16 || type == FL_TOKEN_I32 ||
           type == FL_TOKEN_I64;
}

static int64_t token_at(fl_token_type type, const char *tokens, int64_t i)
{
    int64_t bytes = fl_token_bytes(type), value = 0;
    memcpy(&value, tokens + i * bytes, (size_t)bytes);
    for (int64_t b = bytes; is_signed(type) && b < 8; b++)
        if ((signed char)tokens[i * bytes + bytes - 1] < 0)
            value |= (int64_t)(UINT64_C(0xFF) << (8 * b));
    return value;
}

static void check_tensor(const char *at, fl_token_out out, fl_token_type type, const char *tokens,
                         int64_t count, int64_t shift)
{
    int64_t bytes = fl_token_out_bytes(out);
    for (int64_t i = 0; i < count; i++) {
        int64_t token = token_at(type, tokens, i + shift);
        CHECK(memcmp(at + i * bytes, &token, (size_t)bytes) == 0);
    }
    for (int64_t i = 0; i < GUARD; i++) CHECK_INT((unsigned char)at[count * bytes + i], PATTERN);
    for (int64_t i = 1; i <= GUARD; i++) CHECK_INT((unsigned char)at[-i], PATTERN);
}

static void check_convert(const fl_token_ops *ops, fl_token_type type, fl_token_out out,
                          int64_t count, int64_t shift, int64_t offset, bool has_y)
{
    static char source[ROOM], x[ROOM], y[ROOM];
    uint64_t state = (uint64_t)(count * 64 + offset);
    char *tokens = source + offset;
    fill_random(&state, source, ROOM);
    memset(x, PATTERN, ROOM);
    memset(y, PATTERN, ROOM);
    char *to_x = x + GUARD + offset, *to_y = y + GUARD + offset / 2;
    CHECK(ops->convert[type][out](to_x, has_y ? to_y : NULL, tokens, count, shift, UINT64_MAX));
    check_tensor(to_x, out, type, tokens, count, 0);
    if (has_y) check_tensor(to_y, out, type, tokens, count, shift);
    if (!has_y) check_tensor(to_y, out, type, tokens, 0, 0);
}

static void test_every_type_and_length(void)
{
    for (int v = 0; v < variant_count; v++)
        for (fl_token_type type = 0; type < FL_TOKEN_TYPES; type++)
            for (fl_token_out out = 0; out < FL_TOKEN_OUTS; out++)
                for (int64_t count = 0; count < MOST; count++)
                    for (int64_t shift = 0; shift < 2; shift++)
                        check_convert(variants[v], type, out, count, shift, count * 7 % 64,
                                      shift == 1 || count % 2 == 0);
}

/* One token too large, at each place, the target of the last one too; and one that just fits. */
static void check_limit(const fl_token_ops *ops, fl_token_type type, int64_t count, int64_t shift)
{
    static char source[ROOM], x[ROOM], y[ROOM];
    int64_t bytes = fl_token_bytes(type);
    for (int64_t i = 0; i < count + shift; i++) {
        memset(source, 0, ROOM);
        int64_t fits = 100, large = 101, negative = -1;
        memcpy(source + i * bytes, &fits, (size_t)bytes);
        CHECK(ops->convert[type][FL_TOKEN_OUT_64](x, y, source, count, shift, 100));
        memcpy(source + i * bytes, &large, (size_t)bytes);
        CHECK(!ops->convert[type][FL_TOKEN_OUT_64](x, y, source, count, shift, 100));
        memcpy(source + i * bytes, &negative, (size_t)bytes);
        CHECK(!ops->convert[type][FL_TOKEN_OUT_32](x, NULL, source, count, shift, 100));
        CHECK(ops->convert[type][FL_TOKEN_OUT_16](x, y, source, count, shift, UINT64_MAX));
        /* All bits: the largest token without a sign, and no token with a sign. */
        uint64_t largest = UINT64_MAX >> (64 - 8 * bytes);
        for (uint64_t most = largest; most < UINT64_MAX; most = most * 2 + 1)
            CHECK_INT(ops->convert[type][FL_TOKEN_OUT_64](x, y, source, count, shift, most),
                      !is_signed(type));
    }
    memset(source, 0x7F, ROOM); /* memory after the tokens is not looked at */
    memset(source, 0, (size_t)((count + shift) * bytes));
    CHECK(ops->convert[type][FL_TOKEN_OUT_64](x, y, source, count, shift, 100));
}

static void test_tokens_out_of_range(void)
{
    static const int64_t counts[] = {1, 3, 4, 31, 32, 33, 64, 65, 130};
    for (int v = 0; v < variant_count; v++)
        for (fl_token_type type = 0; type < FL_TOKEN_TYPES; type++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                for (int64_t shift = 0; shift < 2; shift++)
                    check_limit(variants[v], type, counts[c], shift);
}

static void test_find(void)
{
    static char source[ROOM];
    for (int v = 0; v < variant_count; v++)
        for (fl_token_type type = 0; type < FL_TOKEN_TYPES; type++)
            for (int64_t at = 0; at < MOST; at++) {
                int64_t wanted = is_signed(type) ? -77 : 177;
                memset(source, 0, ROOM);
                CHECK_INT(variants[v]->find[type](source, at, wanted), at);
                memcpy(source + at * fl_token_bytes(type), &wanted, (size_t)fl_token_bytes(type));
                CHECK_INT(variants[v]->find[type](source, at, wanted), at);
                CHECK_INT(variants[v]->find[type](source, at + 1, wanted), at);
                CHECK_INT(variants[v]->find[type](source, MOST, wanted), at);
            }
}

static void test_count_up_and_fill(void)
{
    int64_t out[MOST + 1];
    for (int v = 0; v < variant_count; v++)
        for (int64_t count = 0; count < MOST; count++) {
            out[count] = -5;
            variants[v]->count_up(out, 1000, count);
            for (int64_t i = 0; i < count; i++) CHECK_INT(out[i], 1000 + i);
            variants[v]->fill(out, INT64_MAX - 1, count);
            for (int64_t i = 0; i < count; i++) CHECK_INT(out[i], INT64_MAX - 1);
            CHECK_INT(out[count], -5);
        }
}

int main(void)
{
    start_tests();
    find_variants();
    RUN(test_every_type_and_length);
    RUN(test_tokens_out_of_range);
    RUN(test_find);
    RUN(test_count_up_and_fill);
}
