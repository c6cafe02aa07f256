/* fl_warp: see fl_warp.h. */
#include "fl_warp.h"

#include <math.h>
#include <string.h>

static double radians(double degrees) { return degrees * (3.14159265358979323846 / 180.0); }

/* Sets a row of the matrix, divided by half an edge. */
static void set_row(float row[3], double a, double b, double c, int32_t edge)
{
    float half = (float)(0.5 * edge);
    row[0] = (float)a / half;
    row[1] = (float)b / half;
    row[2] = (float)c / half;
}

void fl_affine_matrix(double m[6], const fl_affine *affine, bool is_v1)
{
    double turn = radians(affine->angle), shear_x = radians(affine->shear[0]);
    double shear_y = radians(affine->shear[1]), scale = affine->scale;
    double x = affine->center[0], y = affine->center[1];
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

void fl_warp_affine(fl_image_warp *out, const fl_affine *affine, fl_image_size size, bool is_v1)
{
    double m[6];
    fl_affine_matrix(m, affine, is_v1);
    *out = (fl_image_warp){.width = size.width,
                           .height = size.height,
                           .origin_x = (float)((1.0 - size.width) * 0.5),
                           .origin_y = (float)((1.0 - size.height) * 0.5)};
    set_row(out->x, m[0], m[1], m[2], size.width);
    set_row(out->y, m[3], m[4], m[5], size.height);
}

void fl_warp_perspective(fl_image_warp *out, const float *coefficients, fl_image_size size)
{
    const float *k = coefficients;
    *out = (fl_image_warp){.width = size.width,
                           .height = size.height,
                           .origin_x = 0.5f,
                           .origin_y = 0.5f,
                           .is_perspective = true,
                           .z = {k[6], k[7], 1.0f}};
    set_row(out->x, (double)k[0], (double)k[1], (double)k[2], size.width);
    set_row(out->y, (double)k[3], (double)k[4], (double)k[5], size.height);
}

enum { UNKNOWNS = 8 };

/* Gaussian elimination with partial pivoting. Returns false if the matrix is singular. */
static bool solve(double m[UNKNOWNS][UNKNOWNS + 1])
{
    for (int k = 0; k < UNKNOWNS; k++) {
        int pivot = k;
        for (int row = k + 1; row < UNKNOWNS; row++)
            if (fabs(m[row][k]) > fabs(m[pivot][k])) pivot = row;
        if (fabs(m[pivot][k]) < 1e-9) return false;
        double kept[UNKNOWNS + 1];
        memcpy(kept, m[k], sizeof kept);
        memcpy(m[k], m[pivot], sizeof kept);
        memcpy(m[pivot], kept, sizeof kept);
        for (int row = 0; row < UNKNOWNS; row++) {
            double part = row == k ? 0 : m[row][k] / m[k][k];
            for (int c = k; c <= UNKNOWNS && part != 0; c++) m[row][c] -= part * m[k][c];
        }
    }
    return true;
}

void fl_warp_coefficients(double from[4][2], double to[4][2], float *coefficients)
{
    static const float same[UNKNOWNS] = {1, 0, 0, 0, 1, 0, 0, 0};
    double m[UNKNOWNS][UNKNOWNS + 1];
    memset(m, 0, sizeof m);
    for (int corner = 0; corner < 4; corner++)
        for (int axis = 0; axis < 2; axis++) {
            double *row = m[2 * corner + axis], at = from[corner][axis];
            row[3 * axis] = to[corner][0];
            row[3 * axis + 1] = to[corner][1];
            row[3 * axis + 2] = 1;
            row[6] = -at * to[corner][0];
            row[7] = -at * to[corner][1];
            row[UNKNOWNS] = at;
        }
    bool is_solved = solve(m);
    for (int k = 0; k < UNKNOWNS; k++)
        coefficients[k] = is_solved ? (float)(m[k][UNKNOWNS] / m[k][k]) : same[k];
}
