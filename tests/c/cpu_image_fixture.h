/* cpu_image_fixture.h: the tables of kernels that this machine can run, and memory that ends at the
 * end of the data. */
#ifndef CPU_IMAGE_FIXTURE_H
#define CPU_IMAGE_FIXTURE_H

#include "check.h"

#include "fl_cpu_image.h"
#include "fl_cpu_level.h"

enum {
    LENGTHS = 301,      /* each one up to 300 */
    FENCED = 64 * 4096, /* bytes between two pages that fault */
    PAGE = 4096,
    PATTERN = 0xA5,
    VARIANTS = FL_CPU_LEVELS
};

static const fl_image_ops *variants[VARIANTS];
static int variant_count;

static inline void find_variants(void)
{
    unsetenv("FASTLOOP_CPU");
    variants[variant_count++] = &fl_cpu_image_plain;
#if defined(__x86_64__)
    if (fl_cpu_level_find() >= FL_CPU_AVX2) variants[variant_count++] = &fl_cpu_image_avx2;
    if (fl_cpu_level_find() >= FL_CPU_AVX512) variants[variant_count++] = &fl_cpu_image_avx512;
#elif defined(__aarch64__)
    if (fl_cpu_level_find() >= FL_CPU_NEON) variants[variant_count++] = &fl_cpu_image_neon;
#endif
}

#define EACH_VARIANT(ops)                                                      \
    for (const fl_image_ops **v = variants; v < variants + variant_count; v++) \
        for (const fl_image_ops *ops = *v; ops != NULL; ops = NULL)

/* ---- memory that faults on both sides */

typedef struct fence {
    uint8_t *data; /* owned: FENCED bytes, with a page before and a page after */
} fence;

static fence fences[3]; /* source, result, expected result */

static inline void make_fences(void)
{
    for (int i = 0; i < 3; i++) {
        uint8_t *memory =
            mmap(NULL, FENCED + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED);
        fences[i].data = memory + PAGE;
        CHECK(mprotect(fences[i].data, FENCED, PROT_READ | PROT_WRITE) == 0);
    }
}

/* Returns `bytes` of the memory, at its end or at its start. */
static inline uint8_t *part_of(const fence *from, int64_t bytes, bool is_at_end)
{
    CHECK(bytes >= 0 && bytes <= FENCED);
    return is_at_end ? from->data + FENCED - bytes : from->data;
}

/* Source, result and expected result of one call. */
typedef struct buffers {
    uint8_t *src, *dst, *expected; /* borrowed from `fences` */
    int64_t src_bytes, dst_bytes;
} buffers;

static inline buffers
make_buffers(int64_t src_bytes, int64_t dst_bytes, bool is_at_end, uint64_t *state)
{
    buffers b = {.src = part_of(&fences[0], src_bytes, is_at_end),
                 .dst = part_of(&fences[1], dst_bytes, is_at_end),
                 .expected = part_of(&fences[2], dst_bytes, is_at_end),
                 .src_bytes = src_bytes,
                 .dst_bytes = dst_bytes};
    fill_random(state, (char *)b.src, src_bytes);
    memset(b.expected, PATTERN, (size_t)dst_bytes);
    return b;
}

static inline void clear_result(const buffers *b) { memset(b->dst, PATTERN, (size_t)b->dst_bytes); }

static inline void
check_result(const buffers *b, const fl_image_ops *ops, const char *what, int64_t count)
{
    if (memcmp(b->dst, b->expected, (size_t)b->dst_bytes) == 0) return;
    int64_t at = 0;
    while (b->dst[at] == b->expected[at]) at++;
    fprintf(stderr, "\n%s of %s, %lld: byte %lld is %d, not %d\n", what, ops->name,
            (long long)count, (long long)at, b->dst[at], b->expected[at]);
    CHECK(false);
}

#endif
