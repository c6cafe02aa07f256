/* picture_fixture.h: an image as pixels; each pixel knows its byte or the operation that filled
 * it. */
#ifndef PICTURE_FIXTURE_H
#define PICTURE_FIXTURE_H

#include "check.h"

#include "fl_image_plan.h"

enum { NOT_FILLED = -1 };

typedef struct pixel {
    int fill; /* the operation, or NOT_FILLED */
    uint8_t byte[FL_MAX_CHANNELS];
} pixel;

typedef struct picture {
    fl_image_size size;
    pixel *pixels; /* owned */
} picture;

static inline picture make_picture(int32_t height, int32_t width)
{
    picture p = {{height, width}, calloc((size_t)height * (size_t)width + 1, sizeof(pixel))};
    CHECK(p.pixels != NULL);
    return p;
}

static inline pixel *pixel_at(const picture *p, int32_t y, int32_t x)
{
    CHECK(y >= 0 && y < p->size.height && x >= 0 && x < p->size.width);
    return &p->pixels[(int64_t)y * p->size.width + x];
}

static inline void replace(picture *old, picture new)
{
    free(old->pixels);
    *old = new;
}

static inline picture copy_picture(const picture *p)
{
    picture new = make_picture(p->size.height, p->size.width);
    memcpy(new.pixels, p->pixels, (size_t)p->size.height * (size_t)p->size.width * sizeof(pixel));
    return new;
}

/* Bytes in place of what operations have filled. */
static inline void settle(picture *p, const fl_image_op *ops)
{
    for (int64_t i = 0; i < (int64_t)p->size.height * p->size.width; i++) {
        pixel *at = &p->pixels[i];
        if (at->fill != NOT_FILLED) memcpy(at->byte, ops[at->fill].fill, sizeof at->byte);
        at->fill = NOT_FILLED;
    }
}

#endif
