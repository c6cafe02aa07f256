/* fl_cpu_image_warp_line: images whose pixels are mixed of neighbours in one row or one column, as
 * in shears and translations.
 *
 * fl_cpu_image_warp_pil includes this file if a register has four doubles or more. Most neighbours
 * follow each other in memory, so a register mixes bytes of several pixels, with the same doubles
 * in the same order as for a single pixel. */
#ifndef FL_CPU_IMAGE_WARP_LINE_H
#define FL_CPU_IMAGE_WARP_LINE_H

/* The pixel of each byte, for three and for four channels. */
static const int64_t pil_pixel_of_3[] = {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3,
                                         4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7};
static const int64_t pil_pixel_of_4[] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3,
                                         4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7};

#if FL_VECTOR_BYTES == 64
static inline pil_pixels pil_load(const uint8_t *src)
{
    return (pil_pixels)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)src));
}

/* Stores numbers cut to bytes, from 0 to 255. */
static inline void pil_store(uint8_t *dst, pil_doubles v)
{
    __m256i ints = _mm256_max_epi32(_mm512_cvttpd_epi32((__m512d)v), _mm256_setzero_si256());
    _mm_storel_epi64((__m128i *)dst, _mm256_cvtusepi32_epi8(ints));
}
#else
static inline pil_pixels pil_load(const uint8_t *src)
{
    int32_t word;
    memcpy(&word, src, sizeof word);
    return (pil_pixels)_mm_cvtepu8_epi32(_mm_cvtsi32_si128(word));
}

static inline void pil_store(uint8_t *dst, pil_doubles v) { store_pixel(dst, v); }
#endif

/* Mixes PIL_DOUBLES bytes. Sums of bytes are whole numbers, which doubles have without rounding. */
FL_FOR_EACH_ARITHMETIC pil_doubles mix_bytes(const uint8_t *const from[4], int64_t at,
                                             pil_doubles part, bool is_cubic)
{
    pil_pixels b = pil_load(from[1] + at), c = pil_load(from[2] + at);
    if (!is_cubic) return doubles_of(b) + doubles_of(c - b) * part;
    pil_pixels a = pil_load(from[0] + at), d = pil_load(from[3] + at), e = c - d;
    pil_doubles p3 = doubles_of(2 * (a - b) + e), p4 = doubles_of(b - a - e);
    return doubles_of(b) + part * (doubles_of(c - a) + part * (p3 + part * p4));
}

/* Mixes PIL_DOUBLES pixels. */
FL_FOR_EACH_ARITHMETIC void mix_vector(uint8_t *dst, const uint8_t *const from[4], int64_t at,
                                       const double *part, int64_t channels, bool is_cubic)
{
    const int64_t *pixel_of = channels == 3 ? pil_pixel_of_3 : pil_pixel_of_4;
    pil_doubles parts;
    memcpy(&parts, part, sizeof parts);
    for (int64_t c = 0; c < channels; c++, dst += PIL_DOUBLES, at += PIL_DOUBLES) {
        pil_longs which;
        memcpy(&which, pixel_of + c * PIL_DOUBLES, sizeof which);
        pil_store(dst, mix_bytes(from, at, __builtin_shuffle(parts, which), is_cubic));
    }
}

/* Mixes `count` pixels that follow each other. The last vector may go beyond them, but stays within
 * `room` pixels: the caller writes the pixels beyond `count` later. */
FL_FOR_EACH_ARITHMETIC void mix_run(uint8_t *dst, const uint8_t *const from[4], const double *part,
                                    int count, int room, int64_t channels, bool is_cubic)
{
    int i = 0;
    for (; i < count && i + PIL_DOUBLES <= room; i += PIL_DOUBLES)
        mix_vector(dst + i * channels, from, i * channels, part + i, channels, is_cubic);
    if (i >= count) return;
    const size_t rest = (size_t)(count - i);
    uint8_t bytes[4][4 * PIL_DOUBLES] = {{0}}, mixed[4 * PIL_DOUBLES];
    double parts[PIL_DOUBLES] = {0};
    for (int k = 0; k < 4; k++) memcpy(bytes[k], from[k] + i * channels, rest * (size_t)channels);
    memcpy(parts, part + i, rest * sizeof *parts);
    mix_vector(mixed, (const uint8_t *const[4]){bytes[0], bytes[1], bytes[2], bytes[3]}, 0, parts,
               channels, is_cubic);
    memcpy(dst + i * channels, mixed, rest * (size_t)channels);
}

/* Returns true if pixels are mixed along rows, as in translations and shears in x; or along
 * columns. */
static inline bool is_along_x(const double *m)
{
    return m[0] == 1 && m[3] == 0 && m[4] == 1 && m[5] == 0 && isfinite(m[1]) && isfinite(m[2]);
}

static inline bool is_along_y(const double *m)
{
    return m[0] == 1 && m[1] == 0 && m[2] == 0 && m[4] == 1 && isfinite(m[3]) && isfinite(m[5]);
}

/* Where the pixels of a piece of a row are read on the axis that changes. */
typedef struct pil_line {
    int count;
    double part[PIL_PIECE];
    int32_t own[PIL_PIECE]; /* the pixel before the position, from -1 on, or PIL_OUTSIDE */
} pil_line;

/* Finds the positions for the pixels from column `first` on; `m` is a row of the matrix. */
static inline void
locate_line(pil_line *p, const double m[3], int64_t row, int64_t first, int32_t length)
{
    const double of_row = m[1] * ((double)row + 0.5);
    for (int i = 0; i < p->count; i++)
        p->part[i] = m[0] * ((double)((int32_t)first + i) + 0.5) + of_row + m[2];
    split_axis(p->part, p->own, length, p->count);
}

/* Returns the end of the run of pixels from `first` on whose own pixels are `step` apart, at most
 * `most`. */
static inline int end_of_run(const pil_line *p, int first, int most, int step)
{
    enum { STRIDE = 16 };
    const int32_t own = p->own[first] - step * first;
    int i = first + 1;
    for (int32_t other = 0; i + STRIDE <= most; i += STRIDE) {
        for (int k = i; k < i + STRIDE; k++) other |= (p->own[k] - step * k) ^ own;
        if (other != 0) break;
    }
    while (i < most && p->own[i] - step * i == own) i++;
    return i;
}

/* Writes a run that begins with pixel i of a piece, which is at this row and column, and returns
 * its end. */
FL_FOR_EACH_ARITHMETIC int
write_run(const pil_line *p, int i, const pil_image *from, int64_t row, int64_t column,
          int64_t channels, bool is_x, bool is_cubic, uint8_t *dst)
{
    const int32_t own = p->own[i], length = is_x ? from->width : from->height;
    const int64_t pitch = is_x ? channels : from->width * channels;
    const uint8_t *v[4], *first = from->data + (is_x ? row * from->width : column) * channels;
    int most = p->count;
    if (is_x) most = own < 1 ? i + 1 : (int)fl_min(most, fl_max(i + length - 2 - own, i + 1));
    for (int k = 0; k < 4; k++) v[k] = first + clamp_to(own + k - 1, length) * pitch;
    const int end = end_of_run(p, i, most, is_x);
    /* Along a row, the source may end where the run ends. Along columns, the rows v also have all
     * pixels after the run. */
    const int room = is_x ? end - i : p->count - i;
    mix_run(dst, v, p->part + i, end - i, room, channels, is_cubic);
    return end;
}

/* Warps an image along one axis. */
FL_FOR_EACH_ARITHMETIC void warp_lines(uint8_t *dst, const pil_image *from, int64_t channels,
                                       const fl_warp_pil *warp, bool is_x, bool is_cubic)
{
    const int32_t length = is_x ? from->width : from->height;
    pil_line p;
    for (int64_t row = 0; row < from->height; row++)
        for (int64_t first = 0; first < from->width; first += PIL_PIECE) {
            p.count = (int)fl_min(PIL_PIECE, from->width - first);
            locate_line(&p, warp->m + (is_x ? 0 : 3), row, first, length);
            for (int i = 0, end; i < p.count; i = end) {
                end = i + 1;
                if (p.own[i] == PIL_OUTSIDE)
                    memcpy(dst, warp->fill, (size_t)channels);
                else
                    end = write_run(&p, i, from, row, first + i, channels, is_x, is_cubic, dst);
                dst += (end - i) * channels;
            }
        }
}

/* Warps an image along one axis. Returns false if pixels are mixed of neighbours in rows and
 * columns. */
static inline bool
try_lines(uint8_t *dst, const pil_image *from, int64_t channels, const fl_warp_pil *warp)
{
    bool is_x = is_along_x(warp->m), is_cubic = warp->how == FL_BICUBIC;
    if (warp->is_perspective || warp->how == FL_NEAREST || !(is_x || is_along_y(warp->m)))
        return false;
    if (channels == 3 && is_x)
        warp_lines(dst, from, 3, warp, true, is_cubic);
    else if (channels == 3)
        warp_lines(dst, from, 3, warp, false, is_cubic);
    else if (channels == 4)
        warp_lines(dst, from, 4, warp, is_x, is_cubic);
    else
        return false;
    return true;
}

#endif
