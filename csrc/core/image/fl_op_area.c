/* fl_op_area: the arguments of a random share of an area and a random ratio; fl_op_draw draws them.
 *
 * exp and log are our own: the C library's functions differ in the last bit between versions and
 * machines, and the same sample must be cut the same way everywhere. Both use only operations that
 * IEEE 754 rounds. */
#include "fl_op.h"

#include <math.h>

int fl_op_check_area(const char *name, const fl_image_op *op, fl_err *err)
{
    const double *scale = op->scale, *ratio = op->ratio;
    if (!(scale[0] >= 0 && scale[0] <= scale[1] && scale[1] <= 1e6))
        return fl_fail(err, FL_EINVAL,
                       "%s: scale must be (min, max) with 0 <= min <= max, got (%g, %g)", name,
                       scale[0], scale[1]);
    if (!(ratio[0] >= 1e-6 && ratio[0] <= ratio[1] && ratio[1] <= 1e6))
        return fl_fail(err, FL_EINVAL,
                       "%s: ratio must be (min, max) with 1e-6 <= min <= max <= 1e6, got (%g, %g)",
                       name, ratio[0], ratio[1]);
    return FL_OK;
}

/* Starts from a guess that is off by less than 0.2; each step leaves a twelfth of the cube of the
 * error. */
double fl_op_log(double x)
{
    int exponent;
    double part = frexp(x, &exponent), y = part - 1 + exponent * 0.6931471805599453;
    for (int step = 0; step < 4; step++) {
        double e = fl_op_exp(y);
        y += 2 * (x - e) / (x + e);
    }
    return y;
}

void fl_op_set_ratio(fl_image_op *op)
{
    op->log_ratio[0] = fl_op_log(op->ratio[0]);
    op->log_ratio[1] = fl_op_log(op->ratio[1]);
}
