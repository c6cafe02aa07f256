/* fl_warp_pil: see fl_warp_pil.h. */
#include "fl_warp_pil.h"

#include <math.h>

static double radians(double degrees) { return degrees * (3.14159265358979323846 / 180.0); }

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
