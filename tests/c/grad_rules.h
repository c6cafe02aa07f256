/* grad_rules.h: the passes' rules on single numbers (the clip factor, the scale after a step), as
 * tests of any device. */
#ifndef GRAD_RULES_H
#define GRAD_RULES_H

#include "grad_fixture.h"

#include <float.h>

static const fl_grad_ops *ops; /* that is tested, on this queue; set before the tests */
static void *queue;

static double clip(const double *norm, double max_norm, fl_divisor divisor)
{
    double factor = -7;
    ops->clip_factor(queue, norm, max_norm, NULL, divisor, &factor);
    return factor;
}

static void test_clip_factor(void)
{
    const fl_divisor one = {NULL, 1};
    const float scale = 1024;
    check_double(clip(&(double){2}, 1, one), 1 / (2 + 1e-6));
    check_double(clip(&(double){0.5}, 1, one), 1);
    check_double(clip(&(double){0}, 1, one), 1);
    check_double(clip(&(double){1}, 1, one), 1 / (1 + 1e-6)); /* just above, as torch has it */
    check_double(clip(&(double){0}, 0, one), 0);
    check_double(clip(&(double){0}, 1e-7, one), 1e-7 / 1e-6);
    check_double(clip(&(double){INFINITY}, 1, one), 0);
    check_double(clip(&(double){1}, INFINITY, one), 1);
    check_double(clip(&(double){INFINITY}, INFINITY, one), NAN);
    check_double(clip(&(double){NAN}, 1, one), NAN);
    check_double(clip(&(double){1}, NAN, one), NAN);
    check_double(clip(&(double){3}, -1, one), -1 / (3 + 1e-6));
    check_double(clip(NULL, 1, one), 1);
    check_double(clip(NULL, NAN, one), 1);
    check_double(clip(NULL, 1, (fl_divisor){&scale, 3}), 1.0 / 3072);
    check_double(clip(&(double){2}, 1, (fl_divisor){&scale, 3}), 1 / (2 + 1e-6) / 3072);
    check_double(clip(&(double){0.5}, 1, (fl_divisor){&scale, 3}), 1.0 / 3072);
    check_double(clip(&(double){0.5}, 1, (fl_divisor){&scale, 1.0 / 1024}), 1);
}

static void test_gradients_that_are_not_finite_are_not_clipped(void)
{
    const float scale = 4, found[] = {0, 1};
    const double norm = 2;
    double factor = -7;
    ops->clip_factor(queue, &norm, 1, &found[0], (fl_divisor){&scale, 1}, &factor);
    check_double(factor, 1 / (2 + 1e-6) / 4);
    ops->clip_factor(queue, &norm, 1, &found[1], (fl_divisor){&scale, 1}, &factor);
    check_double(factor, 0.25);
}

static void test_invert(void)
{
    const float scales[] = {65536, 3, 0.1F, 1e-40F, 3e38F, INFINITY};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        float inverse = -7;
        ops->invert(queue, &scales[i], &inverse);
        CHECK(inverse == (float)(1 / (double)scales[i]));
    }
}

/* Computes torch's _amp_update_scale_, in torch's own steps. */
static void torch_update(float *scale, int32_t *tracker, float found, const fl_scale_rule *rule)
{
    if (found != 0) {
        *scale = (float)((double)*scale * rule->backoff);
        *tracker = 0;
        return;
    }
    int32_t successful = *tracker + 1;
    if (successful != rule->interval) {
        *tracker = successful;
        return;
    }
    float grown = (float)((double)*scale * rule->growth);
    if (isfinite(grown)) *scale = grown;
    *tracker = 0;
}

static void test_update_scale_is_torchs(void)
{
    uint64_t state = 9;
    const double factors[] = {2, 1.5, 1.0 / 3, 1e30, 1};
    for (int round = 0; round < 300; round++) {
        fl_scale_rule rule = {factors[round % 5],
                              1 / factors[round % 4],
                              1 + (int32_t)random_below(&state, 5),
                              1,
                              round % 2 ? 0 : -INFINITY,
                              INFINITY};
        float scale = 65536, should_be = scale;
        int32_t tracker = round % 7, expected = tracker, misses = 77;
        for (int step = 0; step < 100; step++) {
            float found = random_below(&state, 10) < round % 10;
            ops->update_scale(queue, &rule, &found, &scale, &tracker, step % 2 ? &misses : NULL);
            torch_update(&should_be, &expected, found, &rule);
            CHECK(isfinite(scale) || isfinite(should_be) == 0);
            if (!isfinite(should_be)) break; /* a backoff > 1: torch's scale is infinite */
            check_double((double)scale, (double)should_be);
            CHECK_INT(tracker, expected);
            CHECK_INT(misses, 77);
        }
    }
}

typedef struct step {
    float found, scale;
    int32_t tracker, misses;
} step;

static void check_steps(const fl_scale_rule *rule, float scale, const step *steps, int count)
{
    int32_t tracker = 0, misses = 0;
    for (int i = 0; i < count; i++) {
        ops->update_scale(queue, rule, &steps[i].found, &scale, &tracker, &misses);
        check_double((double)scale, (double)steps[i].scale);
        CHECK_INT(tracker, steps[i].tracker);
        CHECK_INT(misses, steps[i].misses);
    }
}

static void test_update_scale_within_bounds(void)
{
    const fl_scale_rule rule = {4, 0.25, 1, 1, 3, 100};
    check_steps(&rule, 8, (step[]){{0, 32, 0, 0}, {0, 100, 0, 0}, {0, 100, 0, 0}}, 3);
    check_steps(&rule, 8, (step[]){{1, 3, 0, 0}, {1, 3, 0, 0}, {0, 12, 0, 0}}, 3);
    check_steps(&rule, INFINITY, (step[]){{0, 100, 0, 0}}, 1);
    const fl_scale_rule most = {2, 0.5, 1, 1, 0, FLT_MAX};
    check_steps(&most, FLT_MAX, (step[]){{0, FLT_MAX, 0, 0}, {1, FLT_MAX / 2, 0, 0}}, 2);
    const fl_scale_rule open = {2, 0.5, 1, 1, 0, INFINITY};
    check_steps(&open, FLT_MAX, (step[]){{0, FLT_MAX, 0, 0}, {NAN, FLT_MAX / 2, 0, 0}}, 2);
}

static void test_update_scale_with_hysteresis(void)
{
    const fl_scale_rule rule = {2, 0.5, 2, 3, 0, INFINITY};
    const step steps[] = {{1, 8, 0, 1},       {1, 8, 0, 2}, {0, 8, 1, 0}, {1, 8, 0, 1},
                          {1, 8, 0, 2},       {1, 4, 0, 3}, {1, 2, 0, 4}, {0, 2, 1, 0},
                          {0, 4, 0, 0},       {1, 4, 0, 1}, {0, 4, 1, 0}, {0, 8, 0, 0},
                          {INFINITY, 8, 0, 1}};
    check_steps(&rule, 8, steps, 13);
}

static inline void run_rules(const fl_grad_ops *tested, void *on)
{
    ops = tested;
    queue = on;
    RUN(test_clip_factor);
    RUN(test_gradients_that_are_not_finite_are_not_clipped);
    RUN(test_invert);
    RUN(test_update_scale_is_torchs);
    RUN(test_update_scale_within_bounds);
    RUN(test_update_scale_with_hysteresis);
}

#endif
