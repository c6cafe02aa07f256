/* jpeg_fixture.h: writes baseline JPEG files. Every block of samples has one value, so a block
 * takes one number. */
#ifndef JPEG_FIXTURE_H
#define JPEG_FIXTURE_H

#include "check.h"

enum { MOST_BYTES = 1 << 16 };

typedef struct writer {
    uint8_t data[MOST_BYTES];
    int64_t bytes;
    uint32_t bits;
    int count;
} writer;

static inline void put(writer *w, const uint8_t *data, int64_t bytes)
{
    memcpy(w->data + w->bytes, data, (size_t)bytes);
    w->bytes += bytes;
}

static inline void put_bits(writer *w, uint32_t bits, int count)
{
    for (int i = count - 1; i >= 0; i--) {
        w->bits = w->bits << 1 | (bits >> i & 1);
        if (++w->count < 8) continue;
        const uint8_t byte = (uint8_t)w->bits;
        put(w, &byte, 1);
        if (byte == 0xFF) put(w, (const uint8_t[]){0}, 1);
        w->bits = 0;
        w->count = 0;
    }
}

/* The value of a block is near the value of the block before, so that few bits are needed. */
static inline int next_value(uint64_t *random, int before)
{
    const int value = before + (int)random_below(random, 61) - 30;
    return value < 0 ? 0 : value > 255 ? 255 : value;
}

/* Writes a block of 64 samples of one value: the number of bits of the difference in 4 bits, the
 * difference, and the end of the block. */
static inline void put_block(writer *w, int difference)
{
    int size = 0;
    difference *= 8; /* the first coefficient is 8 times the mean */
    while (abs(difference) >> size != 0) size++;
    put_bits(w, (uint32_t)size, 4);
    put_bits(w, (uint32_t)(difference < 0 ? difference - 1 : difference), size);
    put_bits(w, 0, 1);
}

/* Makes a file whose blocks follow from `seed`, and the planes of its blocks if they are wanted. */
static inline void make_file(writer *w, int width, int height, int components, int factors,
                             uint64_t seed, uint8_t *blocks)
{
    *w = (writer){.bytes = 0};
    const uint8_t start[] = {0xFF, 0xD8, 0xFF, 0xE0, 0,    4,    1, 2,  0xFF,
                             0xFE, 0,    3,    7,    0xFF, 0xDB, 0, 67, 0};
    const uint8_t frame[] = {0xFF,
                             0xC0,
                             0,
                             (uint8_t)(8 + 3 * components),
                             8,
                             (uint8_t)(height >> 8),
                             (uint8_t)height,
                             (uint8_t)(width >> 8),
                             (uint8_t)width,
                             (uint8_t)components};
    const uint8_t dc[] = {0xFF, 0xC4, 0, 31, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0,  0, 0,
                          0,    0,    0, 0,  0, 1, 2, 3, 4,  5, 6, 7, 8, 9, 10, 11};
    const uint8_t ac[] = {0xFF, 0xC4, 0, 20, 0x10, 1, 0, 0, 0, 0, 0,
                          0,    0,    0, 0,  0,    0, 0, 0, 0, 0, 0};
    put(w, start, sizeof start);
    for (int i = 0; i < 64; i++) put(w, (const uint8_t[]){1}, 1);
    put(w, frame, sizeof frame);
    for (int c = 0; c < components; c++)
        put(w, (const uint8_t[]){(uint8_t)(c + 1), (uint8_t)(c == 0 ? factors : 0x11), 0}, 3);
    put(w, dc, sizeof dc);
    put(w, ac, sizeof ac);
    put(w, (const uint8_t[]){0xFF, 0xDA, 0, (uint8_t)(6 + 2 * components), (uint8_t)components}, 5);
    for (int c = 0; c < components; c++) put(w, (const uint8_t[]){(uint8_t)(c + 1), 0}, 2);
    put(w, (const uint8_t[]){0, 63, 0}, 3);
    const int across = factors >> 4, down = factors & 15;
    const int columns = (width + 8 * across - 1) / (8 * across);
    const int rows = (height + 8 * down - 1) / (8 * down);
    int before[3] = {128, 128, 128};
    for (int i = 0; i < columns * rows; i++)
        for (int c = 0; c < components; c++)
            for (int k = 0; k < (c == 0 ? across * down : 1); k++) {
                const int value = next_value(&seed, before[c]);
                put_block(w, value - before[c]);
                before[c] = value;
                if (blocks != NULL) *blocks++ = (uint8_t)value;
            }
    put_bits(w, 0x7F, (8 - w->count) % 8);
    put(w, (const uint8_t[]){0xFF, 0xD9}, 2);
    CHECK(w->bytes < MOST_BYTES);
}

#endif
