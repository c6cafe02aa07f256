/* fl_box_blur: see fl_box_blur.h. The box of a Gaussian is described in P. Gwosdek et al.,
 * "Theoretical Foundations of Gaussian Convolution by Extended Box Filtering", 2011. Each result is
 * rounded to the type that it has in Pillow. */
#include "fl_box_blur.h"

#include <math.h>
#include <string.h>

enum { PASSES = 3 };

fl_box fl_box_of(float radius)
{
    float variance = radius * radius / PASSES;
    float length = (float)sqrt(12.0 * (double)variance + 1.0);
    float whole = (float)floor(((double)length - 1.0) / 2.0), next = whole + 1;
    float part = (2 * whole + 1) * (whole * next - 3 * variance);
    float box_radius = whole + part / (6 * (variance - next * next));
    fl_box box = {.radius = (int64_t)box_radius};
    box.whole = (uint32_t)((float)(1 << 24) / (box_radius * 2 + 1));
    box.part = ((1U << 24) - (uint32_t)(2 * box.radius + 1) * box.whole) / 2;
    return box;
}

/* Two images of FL_BOX_COLUMNS columns: the means of one are written to the other. */
typedef struct strips {
    uint8_t *from, *to;
} strips;

static void take_means(const fl_image_ops *ops, strips *at, int64_t rows, const fl_box *box)
{
    for (int i = 0; i < PASSES; i++) {
        ops->tone.box(at->to, at->from, rows, box);
        *at = (strips){at->to, at->from};
    }
}

/* Swaps rows and columns of `count` rows of pixels, which become parts of the rows of a strip; or
 * swaps back. `size`, the bytes of a pixel, must be a constant at compile time. */
static inline __attribute__((always_inline)) void
turn(uint8_t *strip, uint8_t *data, int64_t pitch, int64_t count, size_t size, bool is_back)
{
    const int64_t bytes = (int64_t)size;
    for (int64_t x = 0; x * bytes < pitch; x++, strip += FL_BOX_COLUMNS, data += bytes)
        for (int64_t y = 0; y < count; y++)
            memcpy(is_back ? data + y * pitch : strip + y * bytes,
                   is_back ? strip + y * bytes : data + y * pitch, size);
}

static void blur_x(const fl_image_ops *ops, strips at, const fl_box_image *image, const fl_box *box)
{
    const int64_t most = FL_BOX_COLUMNS / image->pixel_bytes;
    const int64_t pitch = image->columns * image->pixel_bytes;
    for (int64_t y = 0; y < image->rows; y += most) {
        int64_t count = fl_min(most, image->rows - y);
        for (int is_back = 0; is_back < 2; is_back++) {
            uint8_t *data = image->data + y * pitch;
            if (image->pixel_bytes == 4)
                turn(at.from, data, pitch, count, 4, is_back);
            else
                turn(at.from, data, pitch, count, 1, is_back);
            if (!is_back) take_means(ops, &at, image->columns, box);
        }
    }
}

static void blur_y(const fl_image_ops *ops, strips at, const fl_box_image *image, const fl_box *box)
{
    const int64_t pitch = image->columns * image->pixel_bytes;
    for (int64_t x = 0; x < pitch; x += FL_BOX_COLUMNS) {
        size_t bytes = (size_t)fl_min(FL_BOX_COLUMNS, pitch - x);
        uint8_t *data = image->data + x;
        for (int64_t y = 0; y < image->rows; y++)
            memcpy(at.from + y * FL_BOX_COLUMNS, data + y * pitch, bytes);
        take_means(ops, &at, image->rows, box);
        for (int64_t y = 0; y < image->rows; y++)
            memcpy(data + y * pitch, at.from + y * FL_BOX_COLUMNS, bytes);
    }
}

int fl_box_blur(const fl_image_ops *ops, const fl_box_image *image, float radius, fl_err *err)
{
    const int64_t bytes = FL_BOX_COLUMNS * fl_max(image->rows, image->columns);
    const fl_box box = fl_box_of(radius);
    uint8_t *memory = fl_alloc(2 * bytes);
    if (memory == NULL) return fl_fail(err, FL_ENOMEM, "no memory for a blur");
    const strips at = {memory, memory + bytes};
    blur_x(ops, at, image, &box);
    blur_y(ops, at, image, &box);
    fl_free(memory);
    return FL_OK;
}
