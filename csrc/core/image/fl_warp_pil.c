/* fl_warp_pil: see fl_warp_pil.h. */
#include "fl_warp_pil.h"

#include <math.h>

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
