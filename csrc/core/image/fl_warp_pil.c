/* fl_warp_pil: see fl_warp_pil.h. */
#include "fl_warp_pil.h"

#include <math.h>
#include <string.h>

/* ---- matrices */

static double radians(double degrees) { return degrees * (3.14159265358979323846 / 180.0); }

void fl_warp_pil_affine(fl_warp_pil *out, const fl_affine *affine, bool is_v1)
{
    double turn = radians(affine->angle), shear_x = radians(affine->shear[0]);
    double shear_y = radians(affine->shear[1]), scale = affine->scale;
    double x = affine->center[0], y = affine->center[1], *m = out->m;
    double to_x = affine->translate[0], to_y = affine->translate[1];
    double a = cos(turn - shear_y) / cos(shear_y), b = -(a * tan(shear_x) + sin(turn));
    double c = sin(turn - shear_y) / cos(shear_y), d = cos(turn) - c * tan(shear_x);
    if (is_v1) {
        b = -cos(turn - shear_y) * tan(shear_x) / cos(shear_y) - sin(turn);
        d = -sin(turn - shear_y) * tan(shear_x) / cos(shear_y) + cos(turn);
    }
    m[0] = d / scale;
    m[1] = -b / scale;
    m[3] = -c / scale;
    m[4] = a / scale;
    if (is_v1) {
        m[2] = (m[0] * (-x - to_x) + m[1] * (-y - to_y)) + x;
        m[5] = (m[3] * (-x - to_x) + m[4] * (-y - to_y)) + y;
    } else {
        m[2] = x - m[0] * (x + to_x) - m[1] * (y + to_y);
        m[5] = y - m[3] * (x + to_x) - m[4] * (y + to_y);
    }
}

/* Rounds a number from -1 to 1 to 15 decimals, as Python's round() does. */
static double round_15(double x)
{
    double product = x * 1e15, rest = fma(x, 1e15, -product), whole = rint(product);
    double part = (product - whole) + rest; /* what the whole number leaves */
    return (part > 0.5 ? whole + 1 : part < -0.5 ? whole - 1 : whole) / 1e15;
}

void fl_warp_pil_rotate(fl_warp_pil *out, double degrees, const double center[2])
{
    double turn = -radians(degrees), cosine = round_15(cos(turn)), sine = round_15(sin(turn));
    double x = -center[0], y = -center[1], *m = out->m;
    m[0] = m[4] = cosine;
    m[1] = sine;
    m[3] = -sine;
    m[2] = (m[0] * x + m[1] * y) + center[0];
    m[5] = (m[3] * x + m[4] * y) + center[1];
}

/* ---- a piece of a row */

enum { PIECE = 128 };

typedef struct piece {
    int64_t row, first; /* of the first pixel */
    int count;
    uint8_t inside[PIECE]; /* 255; 0: the pixel is read outside of the image */
    int32_t at[PIECE];     /* offset in a plane of the pixel that is read */
    /* bilinear and bicubic: the position, and later how far it is beyond a whole number */
    double x[PIECE], y[PIECE];
    int32_t column[PIECE], row_of[PIECE]; /* the whole numbers, from -1 on */
    int32_t right[PIECE], down[PIECE];    /* bilinear: offsets of the other pixels that are read */
} piece;

/* Returns the pixel of an axis that is nearest to x. */
static int32_t clamp(int32_t x, int64_t length)
{
    return x < 0 ? 0 : x < length ? x : (int32_t)length - 1;
}

/* ---- nearest */

static void set_nearest(piece *p, int i, int32_t x, int32_t y, const fl_image_planes *from)
{
    bool is_in = x >= 0 && x < from->columns && y >= 0 && y < from->rows;
    p->inside[i] = is_in ? 255 : 0;
    p->at[i] = is_in ? y * (int32_t)from->pitch + x : 0;
}

/* Returns what x86-64 makes of a double, so a number that does not fit is negative. */
static int32_t cut(double x) { return x >= -0x1p31 && x < 0x1p31 ? (int32_t)x : INT32_MIN; }

static int32_t whole(double x) { return x < 0 ? -1 : cut(x); }

static bool fits_fixed(const double *m, int64_t x, int64_t y)
{
    double columns = (double)x, rows = (double)y;
    return fabs(columns * m[0] + rows * m[1] + m[2]) < 32768 &&
           fabs(columns * m[3] + rows * m[4] + m[5]) < 32768;
}

/* Returns true if Pillow computes positions as integers of 1/65536 pixels. */
static bool is_fixed(const fl_warp_pil *warp, const fl_image_planes *to)
{
    const double *m = warp->m;
    int64_t w = to->columns, h = to->rows;
    if (warp->is_perspective || (m[1] == 0 && m[3] == 0)) return false;
    return fits_fixed(m, 0, 0) && fits_fixed(m, w, h) && fits_fixed(m, 0, h) && fits_fixed(m, w, 0);
}

static uint32_t fix(double x) { return (uint32_t)cut(floor(x * 65536.0 + 0.5)); }

static void locate_fixed(const fl_warp_pil *warp, const fl_image_planes *from, piece *p)
{
    const double *m = warp->m;
    uint32_t row = (uint32_t)p->row, first = (uint32_t)p->first;
    uint32_t step_x = fix(m[0]), step_y = fix(m[3]);
    uint32_t x = fix(m[2] + m[0] * 0.5 + m[1] * 0.5) + row * fix(m[1]) + first * step_x;
    uint32_t y = fix(m[5] + m[3] * 0.5 + m[4] * 0.5) + row * fix(m[4]) + first * step_y;
    for (int i = 0; i < p->count; i++, x += step_x, y += step_y)
        set_nearest(p, i, (int32_t)x >> 16, (int32_t)y >> 16, from);
}

/* Adds the steps of positions one by one, because each sum is rounded. `now` is the position of the
 * next pixel. */
static void locate_added(const double *m, const fl_image_planes *from, double now[2], piece *p)
{
    for (int i = 0; i < p->count; i++, now[0] += m[0], now[1] += m[3])
        set_nearest(p, i, whole(now[0]), whole(now[1]), from);
}

static void read_nearest(const piece *p, uint8_t *restrict dst, const uint8_t *restrict plane)
{
    for (int i = 0; i < p->count; i++) dst[i] = plane[p->at[i]];
}

/* ---- positions in doubles */

static void locate(const fl_warp_pil *warp, piece *p)
{
    const double *m = warp->m, y = (double)p->row + 0.5;
    for (int i = 0; i < p->count; i++) {
        double x = (double)(p->first + i) + 0.5;
        p->x[i] = m[0] * x + m[1] * y + m[2];
        p->y[i] = m[3] * x + m[4] * y + m[5];
        if (!warp->is_perspective) continue;
        double z = m[6] * x + m[7] * y + 1;
        p->x[i] /= z;
        p->y[i] /= z;
    }
}

static void take_nearest(const fl_image_planes *from, piece *p)
{
    for (int i = 0; i < p->count; i++) set_nearest(p, i, whole(p->x[i]), whole(p->y[i]), from);
}

/* Splits a position inside of an axis into the middle of a pixel, which it returns, and the rest.
 * NaN stays NaN. */
static int32_t split(double *x, bool is_in)
{
    double position = is_in ? *x - 0.5 : 0;
    int32_t pixel = position >= 0 ? (int32_t)position : -1;
    *x = position - pixel;
    return pixel;
}

/* Finds the pixels that are mixed. The rest of NaN is NaN, and then the byte is 0. */
static void settle(const fl_image_planes *from, piece *p)
{
    const double width = (double)from->columns, height = (double)from->rows;
    for (int i = 0; i < p->count; i++) {
        bool is_out = p->x[i] < 0 || p->x[i] >= width || p->y[i] < 0 || p->y[i] >= height;
        p->inside[i] = is_out ? 0 : 255;
        int32_t column = p->column[i] = split(&p->x[i], !is_out);
        int32_t row = p->row_of[i] = split(&p->y[i], !is_out);
        int32_t x = clamp(column, from->columns), y = clamp(row, from->rows);
        p->at[i] = y * (int32_t)from->pitch + x;
        p->right[i] = clamp(column + 1, from->columns) - x;
        p->down[i] = (clamp(row + 1, from->rows) - y) * (int32_t)from->pitch;
    }
}

static void read_bilinear(const piece *p, uint8_t *restrict dst, const uint8_t *restrict plane)
{
    for (int i = 0; i < p->count; i++) {
        const uint8_t *upper = plane + p->at[i], *lower = upper + p->down[i];
        int32_t right = p->right[i];
        double a = *upper + (upper[right] - *upper) * p->x[i];
        double b = *lower + (lower[right] - *lower) * p->x[i], v = a + (b - a) * p->y[i];
        dst[i] = v > 0 ? (uint8_t)v : 0;
    }
}

static double cubic(double a, double b, double c, double d, double part)
{
    double p2 = -a + c, p3 = 2 * (a - b) + c - d, p4 = -a + b - c + d;
    return b + part * (p2 + part * (p3 + part * p4));
}

static void read_bicubic(const piece *p, const fl_image_planes *from, uint8_t *restrict dst,
                         const uint8_t *restrict plane)
{
    for (int i = 0; i < p->count; i++) {
        double of_row[4];
        int32_t x[4];
        for (int k = 0; k < 4; k++) x[k] = clamp(p->column[i] + k - 1, from->columns);
        for (int k = 0; k < 4; k++) {
            const uint8_t *v = plane + clamp(p->row_of[i] + k - 1, from->rows) * from->pitch;
            of_row[k] = cubic(v[x[0]], v[x[1]], v[x[2]], v[x[3]], p->x[i]);
        }
        double v = cubic(of_row[0], of_row[1], of_row[2], of_row[3], p->y[i]);
        dst[i] = v >= 255 ? 255 : v > 0 ? (uint8_t)v : 0;
    }
}

/* ---- all */

static void read_channels(const fl_warp_pil *warp, int32_t channels, const fl_image_planes *from,
                          const fl_image_planes *to, const piece *p)
{
    for (int32_t c = 0; c < channels; c++) {
        const uint8_t *plane = from->data + c * from->plane;
        uint8_t *dst = to->data + c * to->plane + p->row * to->pitch + p->first;
        if (warp->how == FL_NEAREST)
            read_nearest(p, dst, plane);
        else if (warp->how == FL_BILINEAR)
            read_bilinear(p, dst, plane);
        else
            read_bicubic(p, from, dst, plane);
        for (int i = 0; i < p->count; i++)
            dst[i] = (uint8_t)((dst[i] & p->inside[i]) | (warp->fill[c] & ~p->inside[i]));
    }
}

void fl_warp_pil_run(const fl_warp_pil *warp, int32_t channels, const fl_image_planes *from,
                     const fl_image_planes *to)
{
    const double *m = warp->m;
    const bool is_nearest = warp->how == FL_NEAREST, has_integers = is_fixed(warp, to);
    double row_x = m[2] + m[1] * 0.5 + m[0] * 0.5, row_y = m[5] + m[4] * 0.5 + m[3] * 0.5;
    piece p;
    for (p.row = 0; p.row < to->rows; p.row++, row_x += m[1], row_y += m[4]) {
        double now[2] = {row_x, row_y};
        for (p.first = 0; p.first < to->columns; p.first += PIECE) {
            p.count = (int)fl_min(PIECE, to->columns - p.first);
            if (is_nearest && has_integers) {
                locate_fixed(warp, from, &p);
            } else if (is_nearest && !warp->is_perspective) {
                locate_added(m, from, now, &p);
            } else {
                locate(warp, &p);
                if (is_nearest)
                    take_nearest(from, &p);
                else
                    settle(from, &p);
            }
            read_channels(warp, channels, from, to, &p);
        }
    }
}
