/* image_kernels: how long each kernel for images takes with each table that this machine can run.
 *
 * Not part of the library. From the root of the sources:
 *     gcc -O3 -std=gnu11 -ffp-contract=off -Icsrc/base -Icsrc/core/batch -Icsrc/core/image -Icsrc/cpu -Icsrc/cpu/image \
 *         benchmarks/image_kernels.c csrc/cpu/image/fl_cpu_image*.c csrc/cpu/fl_cpu_level.c \
 *         csrc/core/image/fl_resample.c csrc/base/fl_base.c -lm -o build/image_kernels
 * It prints microseconds a call, the least of many. */
#include "fl_cpu_image.h"
#include "fl_cpu_level.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EDGE = 224, PLANE = EDGE * EDGE, ROOM = 8 << 20, ROUNDS = 400 };

/* What every case may use; owned. */
static uint8_t *src, *mid;
static float *dst;
static fl_image_cast line, halves, lookup;

static const fl_image_ops *tables[FL_CPU_LEVELS];
static int table_count;

/* `planes` planes of `edge` rows of `edge` bytes. */
static void cast_planes(const fl_image_ops *ops, fl_image_type type, int64_t edge, int planes,
                        const fl_image_cast *cast)
{
    int64_t bytes = fl_image_type_bytes(type);
    for (int c = 0; c < planes; c++) {
        const fl_image_block plane = {src + c * edge * edge, edge, 1, edge, edge, 0, 0, 0};
        ops->cast[type]((char *)dst + c * edge * edge * bytes, edge * bytes, &plane, cast);
    }
}

static void cast_plane(const fl_image_ops *ops, const fl_resample *axis)
{
    (void)axis;
    cast_planes(ops, FL_IMAGE_F32, EDGE, 1, &line);
}

static void cast_plane_by_table(const fl_image_ops *ops, const fl_resample *axis)
{
    (void)axis;
    cast_planes(ops, FL_IMAGE_F32, EDGE, 1, &lookup);
}

static void cast_plane_to_f16(const fl_image_ops *ops, const fl_resample *axis)
{
    (void)axis;
    cast_planes(ops, FL_IMAGE_F16, EDGE, 1, &halves);
}

static void cast_plane_to_bf16(const fl_image_ops *ops, const fl_resample *axis)
{
    (void)axis;
    cast_planes(ops, FL_IMAGE_BF16, EDGE, 1, &halves);
}

static void cast_small_image(const fl_image_ops *ops, const fl_resample *axis)
{
    (void)axis;
    cast_planes(ops, FL_IMAGE_F32, 32, 3, &line);
}

/* As a crop of a padded image has them: 3 columns of fill, 29 of the source. */
static void cast_small_crop(const fl_image_ops *ops, const fl_resample *axis)
{
    (void)axis;
    for (int c = 0; c < 3; c++) {
        const fl_image_block plane = {src + c * 1024, 32, 1, 32, 29, 3, 0, 0};
        ops->cast[FL_IMAGE_F32](dst + c * 1024, 128, &plane, &line);
    }
}

static void split_image(const fl_image_ops *ops, const fl_resample *axis)
{
    (void)axis;
    ops->split(mid, PLANE, src, PLANE, 3);
}

static void join_bytes(const fl_image_ops *ops, const fl_resample *axis)
{
    (void)axis;
    ops->join(mid, src, PLANE, PLANE, 3, 1);
}

static void join_floats(const fl_image_ops *ops, const fl_resample *axis)
{
    (void)axis;
    ops->join(dst, src, PLANE * 4, PLANE, 3, 4);
}

static void reverse_rows(const fl_image_ops *ops, const fl_resample *axis)
{
    (void)axis;
    const fl_image_block plane = {src + EDGE - 1, EDGE, -1, EDGE, EDGE, 0, 0, 0};
    ops->cast[FL_IMAGE_U8](mid, EDGE, &plane, NULL);
}

/* A plane of axis->in rows of axis->in bytes, in x and in y. */
static void resize_x(const fl_image_ops *ops, const fl_resample *axis)
{
    ops->resample_x(mid, axis->out, src, axis->in, axis->in, axis);
}

static void resize_y(const fl_image_ops *ops, const fl_resample *axis)
{
    ops->resample_y(mid, axis->out, src, axis->out, axis->out, axis);
}

/* The limit of a cast: its stores alone. */
static void only_store(const fl_image_ops *ops, const fl_resample *axis)
{
    (void)ops;
    (void)axis;
    memset(dst, 1, PLANE * 4);
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void run(const char *name, void (*work)(const fl_image_ops *, const fl_resample *),
                fl_interpolation how, int32_t in, int32_t out)
{
    fl_resample axis = {0};
    if (in > 0 && fl_resample_make(&axis, how, in, out, NULL) != FL_OK) exit(1);
    printf("%-44s", name);
    for (int t = 0; t < table_count; t++) {
        double best = 1e9;
        for (int round = 0; round < ROUNDS; round++) {
            double start = now_us();
            work(tables[t], &axis);
            double took = now_us() - start;
            best = took < best ? took : best;
        }
        printf(" %9.2f", best);
    }
    printf("\n");
    fl_resample_close(&axis);
}

static void make_data(void)
{
    src = fl_alloc(ROOM);
    mid = fl_alloc(ROOM);
    dst = fl_alloc(ROOM);
    float *table = fl_alloc(256 * 4);
    if (src == NULL || mid == NULL || dst == NULL || table == NULL) exit(1);
    for (int i = 0; i < ROOM; i++) src[i] = (uint8_t)((unsigned)i * 2654435761u >> 24);
    line = (fl_image_cast){table, true, 1.0F / 255, 0.485F, 0.229F, 1 / 0.229F, false};
    for (int v = 0; v < 256; v++) table[v] = ((float)v * line.scale - line.mean) / line.std;
    halves = line; /* what the tables hold does not matter where it is computed */
    lookup = (fl_image_cast){.table = table};
}

int main(void)
{
    make_data();
    tables[table_count++] = &fl_cpu_image_plain;
#if defined(__x86_64__)
    if (fl_cpu_level_find() >= FL_CPU_AVX2) tables[table_count++] = &fl_cpu_image_avx2;
    if (fl_cpu_level_find() >= FL_CPU_AVX512) tables[table_count++] = &fl_cpu_image_avx512;
#elif defined(__aarch64__)
    if (fl_cpu_level_find() >= FL_CPU_NEON) tables[table_count++] = &fl_cpu_image_neon;
#endif
    printf("%-44s", "us a call");
    for (int t = 0; t < table_count; t++) printf(" %9s", tables[t]->name);
    printf("\n");
    run("224x224 stores of floats alone", only_store, FL_NEAREST, 0, 0);
    run("224x224 to f32", cast_plane, FL_NEAREST, 0, 0);
    run("224x224 to f32, by a table", cast_plane_by_table, FL_NEAREST, 0, 0);
    run("224x224 to f16", cast_plane_to_f16, FL_NEAREST, 0, 0);
    run("224x224 to bf16", cast_plane_to_bf16, FL_NEAREST, 0, 0);
    run("3x32x32 to f32", cast_small_image, FL_NEAREST, 0, 0);
    run("3x32x32 to f32, columns 3 to the right", cast_small_crop, FL_NEAREST, 0, 0);
    run("224x224x3 to planes", split_image, FL_NEAREST, 0, 0);
    run("3x224x224 to pixels, u8", join_bytes, FL_NEAREST, 0, 0);
    run("3x224x224 to pixels, f32", join_floats, FL_NEAREST, 0, 0);
    run("224x224 flipped", reverse_rows, FL_NEAREST, 0, 0);
    run("188 rows, 188 to 224, bilinear", resize_x, FL_BILINEAR, 188, EDGE);
    run("224 columns, 188 to 224, bilinear", resize_y, FL_BILINEAR, 188, EDGE);
    run("256 rows, 256 to 224, bilinear", resize_x, FL_BILINEAR, 256, EDGE);
    run("224 columns, 256 to 224, bilinear", resize_y, FL_BILINEAR, 256, EDGE);
    run("256 rows, 256 to 224, bicubic", resize_x, FL_BICUBIC, 256, EDGE);
    run("224 columns, 256 to 224, bicubic", resize_y, FL_BICUBIC, 256, EDGE);
    run("500 rows, 500 to 341, bilinear", resize_x, FL_BILINEAR, 500, 341);
    run("341 columns, 500 to 341, bilinear", resize_y, FL_BILINEAR, 500, 341);
    run("1000 rows, 1000 to 224, bilinear", resize_x, FL_BILINEAR, 1000, EDGE);
    run("2000 rows, 2000 to 224, bilinear", resize_x, FL_BILINEAR, 2000, EDGE);
    return 0;
}
