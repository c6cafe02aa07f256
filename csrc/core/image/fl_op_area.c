/* fl_op_area: the edges of a rectangle from a random share of an area and a random ratio.
 *
 * The ratio is spread evenly in its logarithm. exp and log are our own: the C library's functions
 * differ in the last bit between versions and machines, and the same sample must be cut the same
 * way everywhere. Both use only operations that IEEE 754 rounds. */
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

/* Computes exp(x) = 2^n exp(r), |r| <= ln(2) / 2, by the series of exp(r). */
double fl_op_exp(double x)
{
    static const double over_factorial[] = {1.0 / 87178291200,
                                            1.0 / 6227020800,
                                            1.0 / 479001600,
                                            1.0 / 39916800,
                                            1.0 / 3628800,
                                            1.0 / 362880,
                                            1.0 / 40320,
                                            1.0 / 5040,
                                            1.0 / 720,
                                            1.0 / 120,
                                            1.0 / 24,
                                            1.0 / 6,
                                            1.0 / 2,
                                            1.0,
                                            1.0};
    double n = rint(x * 1.4426950408889634), r = x - n * 0.6931471805599453, sum = 0;
    for (size_t k = 0; k < sizeof over_factorial / sizeof *over_factorial; k++)
        sum = sum * r + over_factorial[k];
    return ldexp(sum, (int)n);
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

static double between(uint32_t word, const double limits[2])
{
    return limits[0] + fl_philox_unit(word) * (limits[1] - limits[0]);
}

void fl_op_draw_edges(const fl_image_op *op, fl_philox_block block, fl_image_size in,
                      int64_t *larger_with_ratio, int64_t *smaller_with_ratio)
{
    double area = (double)in.height * in.width * between(block.word[0], op->scale);
    double ratio = fl_op_exp(between(block.word[1], op->log_ratio));
    *larger_with_ratio = (int64_t)rint(sqrt(area * ratio));
    *smaller_with_ratio = (int64_t)rint(sqrt(area / ratio));
}

void fl_op_draw_corner(const uint32_t word[2], fl_image_size in, fl_image_size size,
                       fl_image_params *params)
{
    params->top = (int32_t)fl_philox_below(word[0], (uint32_t)(in.height - size.height) + 1);
    params->left = (int32_t)fl_philox_below(word[1], (uint32_t)(in.width - size.width) + 1);
    params->size = size;
}
