/* Tests of fl_image_draws for operations on colours and for gates: how many words each draws, and
 * what the words become. */
#include "check.h"

#include "fl_cpu_image.h"
#include "fl_image_draws.h"

#include <math.h>

enum { IMAGES = 60, MOST_OPS = 8 };

static int no_exp(void *context, float x, float *out)
{
    (void)context;
    (void)x;
    (void)out;
    return -1;
}

/* Plan and draws of a chain for RGB images, the generator, and a second generator that is in the
 * state that torchvision would leave. */
typedef struct fixture {
    fl_image_plan *plan;
    fl_image_draws *draws;
    fl_torch_random random, words;
    fl_image_params found[MOST_OPS];
} fixture;

static fixture open_fixture(const fl_image_op *ops, int32_t count, bool is_v1, uint64_t seed)
{
    fixture fix;
    fl_image_config config = {
        .ops = ops, .count = count, .channels = 3, .image_ops = fl_cpu_image_ops_find()};
    config.in = (fl_image_size){16, 12};
    CHECK_INT(fl_image_plan_open(&config, &fix.plan, NULL), FL_OK);
    fl_draw_ways ways = {.is_v1 = is_v1, .is_fused = true};
    CHECK_INT(fl_image_draws_open(fix.plan, &ways, &fix.draws, NULL), FL_OK);
    fl_torch_random_seed(&fix.random, seed);
    fix.words = fix.random;
    return fix;
}

static int draw(fixture *fix)
{
    const fl_torch_answers exp = {.exp = no_exp};
    fl_image_size in = fl_image_plan_in(fix->plan);
    return fl_image_draws_one(fix->draws, &fix->random, in, &exp, fix->found, NULL);
}

static void check_words(const fixture *fix)
{
    CHECK(memcmp(&fix->random, &fix->words, sizeof fix->words) == 0);
}

static void close_fixture(fixture *fix)
{
    fl_image_draws_close(fix->draws);
    fl_image_plan_close(fix->plan);
}

static float unit(fixture *fix) { return fl_torch_random_unit(&fix->words); }

static float between(fixture *fix, double low, double high)
{
    return fl_torch_random_uniform(&fix->words, (float)low, (float)high, true);
}

/* Draws torch.randperm(count) and compares; later entries are negative. */
static void check_order(fixture *fix, int64_t count, const int8_t *order)
{
    int64_t expected[FL_MAX_ORDER];
    fl_torch_random_permutation(&fix->words, count, expected);
    for (int64_t k = 0; k < count; k++) CHECK_INT(order[k], expected[k]);
    CHECK(order[count] < 0);
}

static const fl_image_op jitter = {.kind = FL_OP_COLOR_JITTER,
                                   .jitter = {{0.5, 1.5}, {0.2, 1}, {NAN, NAN}, {-0.1, 0.3}}};

static void test_a_jitter_draws_its_order_and_then_its_changes(void)
{
    fixture fix = open_fixture(&jitter, 1, false, 5);
    for (int i = 0; i < IMAGES; i++) {
        const float *change = fix.found[0].change;
        CHECK_INT(draw(&fix), FL_OK);
        check_order(&fix, 4, fix.found[0].order);
        CHECK(change[0] == between(&fix, 0.5, 1.5) && change[1] == between(&fix, 0.2, 1));
        CHECK(isnan(change[2]) && change[3] == between(&fix, -0.1, 0.3));
        check_words(&fix);
    }
    close_fixture(&fix);
}

static void test_a_distortion_draws_a_gate_for_each_change(void)
{
    static const double ranges[4][2] = {{0.8, 1.2}, {0.5, 1.5}, {0.4, 1.6}, {-0.05, 0.05}};
    fl_image_op op = {.kind = FL_OP_PHOTOMETRIC_DISTORT, .p = 0.4};
    memcpy(op.jitter, ranges, sizeof ranges);
    fixture fix = open_fixture(&op, 1, false, 6);
    for (int i = 0; i < IMAGES; i++) {
        CHECK_INT(draw(&fix), FL_OK);
        for (int n = 0; n < 4; n++) {
            float change = fix.found[0].change[n];
            bool is_on = unit(&fix) < 0.4f;
            CHECK(is_on ? change == between(&fix, ranges[n][0], ranges[n][1]) : isnan(change));
        }
        CHECK_INT(fix.found[0].is_early, unit(&fix) < 0.5f);
        if (unit(&fix) < 0.4f)
            check_order(&fix, 3, fix.found[0].order);
        else
            CHECK(fix.found[0].order[0] < 0);
        check_words(&fix);
    }
    close_fixture(&fix);
}

/* v1 compares a double with p: p is a number that is drawn, and a little more as double only. */
static void check_gate(fl_image_op_kind kind, bool is_v1, bool is_double)
{
    fl_image_op op = {.kind = kind, .p = 0.5};
    fixture fix = open_fixture(&op, 1, is_v1, 7);
    op.p = (double)unit(&fix) + 1e-12;
    close_fixture(&fix);
    fix = open_fixture(&op, 1, is_v1, 7);
    for (int i = 0; i < IMAGES; i++) {
        CHECK_INT(draw(&fix), FL_OK);
        float u = unit(&fix);
        CHECK_INT(fix.found[0].is_applied, is_double ? (double)u < op.p : u < (float)op.p);
        CHECK(i > 0 || fix.found[0].is_applied == is_double);
        check_words(&fix);
    }
    close_fixture(&fix);
}

static void test_gates_of_single_operations(void)
{
    static const fl_image_op_kind kinds[] = {FL_OP_INVERT,   FL_OP_SOLARIZE,     FL_OP_POSTERIZE,
                                             FL_OP_EQUALIZE, FL_OP_AUTOCONTRAST, FL_OP_SHARPNESS};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        check_gate(kinds[k], true, true);
        check_gate(kinds[k], false, false);
    }
    check_gate(FL_OP_RANDOM_GRAYSCALE, true, false);
    check_gate(FL_OP_RANDOM_GRAYSCALE, false, false);
}

static void test_channels_and_grey(void)
{
    const fl_image_op ops[] = {{.kind = FL_OP_CHANNEL_PERMUTATION},
                               {.kind = FL_OP_GRAYSCALE, .grey_channels = 3}};
    fixture fix = open_fixture(ops, 2, false, 8);
    for (int i = 0; i < IMAGES; i++) {
        CHECK_INT(draw(&fix), FL_OK);
        check_order(&fix, 3, fix.found[0].order);
        CHECK(fix.found[1].is_applied);
        check_words(&fix);
    }
    close_fixture(&fix);
}

/* Pads and crops inside: their parameters must be those of an applied operation. */
static void test_a_gate_holds_any_operations(void)
{
    const fl_image_op ops[] = {
        {.kind = FL_OP_APPLY, .p = 0.6, .span = 3},
        {.kind = FL_OP_RANDOM_CROP, .size = {16, 12}, .padding = {1, 2, 3, 4}},
        {.kind = FL_OP_APPLY, .p = 0.5, .span = 1},
        {.kind = FL_OP_INVERT, .p = 0.3},
        {.kind = FL_OP_VERTICAL_FLIP, .p = 0.7}};
    fixture fix = open_fixture(ops, 5, false, 9);
    for (int i = 0; i < IMAGES; i++) {
        CHECK_INT(draw(&fix), FL_OK);
        bool is_on = unit(&fix) < 0.6f;
        CHECK_INT(fix.found[0].is_applied, is_on);
        if (is_on) {
            CHECK_INT(fix.found[1].top, fl_torch_random_word(&fix.words) % 7);
            CHECK_INT(fix.found[1].left, fl_torch_random_word(&fix.words) % 5);
            CHECK(fix.found[1].padding[3] == 4 && fix.found[1].out.width == 12);
            CHECK_INT(fix.found[2].is_applied, unit(&fix) < 0.5f);
            if (fix.found[2].is_applied) CHECK_INT(fix.found[3].is_applied, unit(&fix) < 0.3f);
        }
        CHECK_INT(fix.found[4].is_applied, unit(&fix) < 0.7f);
        check_words(&fix);
    }
    close_fixture(&fix);
}

/* A branch with two operations, one with a crop, and an empty one. */
static void check_branches(bool is_order)
{
    const fl_image_op ops[] = {{.kind = is_order ? FL_OP_ORDER : FL_OP_CHOICE, .span = 6},
                               {.kind = FL_OP_BRANCH, .span = 2, .p = 0.25},
                               {.kind = FL_OP_INVERT, .p = 0.5},
                               {.kind = FL_OP_EQUALIZE, .p = 0.5},
                               {.kind = FL_OP_BRANCH, .p = 0.25},
                               {.kind = FL_OP_BRANCH, .span = 1, .p = 0.5},
                               {.kind = FL_OP_HORIZONTAL_FLIP, .p = 0.4},
                               {.kind = FL_OP_VERTICAL_FLIP, .p = 0.4}};
    const float weights[] = {0.25f, 0.25f, 0.5f};
    fixture fix = open_fixture(ops, 8, false, 10);
    int seen = 0;
    for (int i = 0; i < IMAGES; i++) {
        CHECK_INT(draw(&fix), FL_OK);
        const int8_t *order = fix.found[0].order;
        if (is_order)
            check_order(&fix, 3, order);
        else
            CHECK_INT(order[0], fl_torch_random_choice(&fix.words, 3, weights));
        for (int n = 0; n < 3; n++)
            CHECK_INT(fix.found[((int[]){1, 4, 5})[n]].is_applied, is_order || order[0] == n);
        for (int n = 0; n < (is_order ? 3 : 1); n++) {
            seen |= 1 << order[n];
            if (order[n] == 0) {
                CHECK_INT(fix.found[2].is_applied, unit(&fix) < 0.5f);
                CHECK_INT(fix.found[3].is_applied, unit(&fix) < 0.5f);
            } else if (order[n] == 2) {
                CHECK_INT(fix.found[6].is_applied, unit(&fix) < 0.4f);
            }
        }
        CHECK_INT(fix.found[7].is_applied, unit(&fix) < 0.4f);
        check_words(&fix);
    }
    CHECK_INT(seen, 7);
    close_fixture(&fix);
}

static void test_branches(void)
{
    check_branches(true);
    check_branches(false);
}

/* Contrast of tensors depends on the machine for large images, and for v2 also for some sizes. */
/* Writes taps, and numbers that go up from sigma; fails if there is a context. */
static int weigh(void *context, int32_t taps, float sigma, float *out)
{
    for (int32_t k = 0; k <= taps / 2; k++) out[k] = sigma + (float)(taps + k);
    return context != NULL ? -1 : 0;
}

static void check_blur(int32_t width, int32_t height)
{
    const fl_image_op op = {.kind = FL_OP_BLUR,
                            .size = {height, width},
                            .arithmetic = FL_BY_PIL,
                            .blur_sigma = {0.1, 2}};
    fl_torch_answers answers = {.weigh = weigh};
    fixture fix = open_fixture(&op, 1, false, 12);
    const fl_image_size in = fl_image_plan_in(fix.plan);
    for (int n = 0; n < IMAGES; n++) {
        CHECK_INT(fl_image_draws_one(fix.draws, &fix.random, in, &answers, fix.found, NULL), FL_OK);
        const float sigma = between(&fix, 0.1, 2), *weight = fix.found->blur.weight;
        CHECK(fix.found->is_applied && fix.found->blur.sigma == sigma);
        for (int32_t k = 0; k <= width / 2; k++) CHECK(weight[k] == sigma + (float)(width + k));
        for (int32_t k = 0; k <= height / 2 && height != width; k++)
            CHECK(weight[width / 2 + 1 + k] == sigma + (float)(height + k));
    }
    check_words(&fix);
    answers.context = &fix;
    int status = fl_image_draws_one(fix.draws, &fix.random, in, &answers, fix.found, NULL);
    CHECK_INT(status, FL_EINVAL);
    close_fixture(&fix);
}

static int open_blur(int32_t width, int32_t height, int32_t channels, int arithmetic)
{
    const fl_image_op op = {.kind = FL_OP_BLUR,
                            .size = {height, width},
                            .arithmetic = arithmetic,
                            .blur_sigma = {1, 1}};
    fl_image_config config = {.ops = &op,
                              .count = 1,
                              .channels = channels,
                              .in = {90, 90},
                              .image_ops = fl_cpu_image_ops_find()};
    fl_image_plan *plan;
    fl_image_draws *draws;
    fl_draw_ways ways = {.is_fused = true};
    CHECK_INT(fl_image_plan_open(&config, &plan, NULL), FL_OK);
    int status = fl_image_draws_open(plan, &ways, &draws, NULL);
    fl_image_draws_close(draws);
    fl_image_plan_close(plan);
    return status;
}

static void test_a_blur_draws_sigma_and_asks_for_weights(void)
{
    check_blur(5, 5);
    check_blur(3, 7);
    CHECK_INT(open_blur(61, 61, 3, FL_BY_PIL), FL_OK);
    CHECK_INT(open_blur(63, 63, 3, FL_BY_PIL), FL_EINVAL);
    CHECK_INT(open_blur(57, 3, 3, FL_BY_PIL), FL_OK);
    CHECK_INT(open_blur(57, 5, 3, FL_BY_PIL), FL_EINVAL);
    CHECK_INT(open_blur(5, 5, 1, FL_BY_PIL), FL_OK);
    CHECK_INT(open_blur(5, 3, 1, FL_BY_PIL), FL_EINVAL);
    CHECK_INT(open_blur(5, 5, 3, FL_BY_TENSOR_V2), FL_EINVAL);
}

static void test_contrast_that_depends_on_the_machine(void)
{
    const fl_torch_answers exp = {.exp = no_exp};
    const struct {
        fl_image_arithmetic arithmetic;
        fl_image_size in;
        int status;
    } cases[] = {
        {FL_BY_TENSOR_V2, {16, 12}, FL_OK},       {FL_BY_TENSOR_V2, {15, 12}, FL_EINVAL},
        {FL_BY_TENSOR_V1, {15, 12}, FL_OK},       {FL_BY_PIL, {15, 12}, FL_OK},
        {FL_BY_TENSOR_V2, {256, 256}, FL_OK},     {FL_BY_TENSOR_V2, {256, 272}, FL_EINVAL},
        {FL_BY_TENSOR_V1, {256, 272}, FL_EINVAL}, {FL_BY_PIL, {256, 272}, FL_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_image_op ops[] = {jitter, {.kind = FL_OP_CENTER_CROP, .size = {8, 8}}};
        ops[0].arithmetic = cases[i].arithmetic;
        fixture fix = {.plan = NULL};
        fl_image_config config = {
            .ops = ops, .count = 2, .channels = 3, .image_ops = fl_cpu_image_ops_find()};
        CHECK_INT(fl_image_plan_open(&config, &fix.plan, NULL), FL_OK);
        CHECK_INT(fl_image_draws_open(fix.plan, &(fl_draw_ways){0}, &fix.draws, NULL), FL_OK);
        fl_torch_random_seed(&fix.random, 1);
        CHECK_INT(fl_image_draws_one(fix.draws, &fix.random, cases[i].in, &exp, fix.found, NULL),
                  cases[i].status);
        close_fixture(&fix);
        config.in = cases[i].in;
        CHECK_INT(fl_image_plan_open(&config, &fix.plan, NULL), FL_OK);
        CHECK_INT(fl_image_draws_open(fix.plan, &(fl_draw_ways){0}, &fix.draws, NULL),
                  cases[i].status);
        close_fixture(&fix);
    }
}

int main(void)
{
    start_tests();
    RUN(test_a_jitter_draws_its_order_and_then_its_changes);
    RUN(test_a_distortion_draws_a_gate_for_each_change);
    RUN(test_gates_of_single_operations);
    RUN(test_channels_and_grey);
    RUN(test_a_gate_holds_any_operations);
    RUN(test_branches);
    RUN(test_a_blur_draws_sigma_and_asks_for_weights);
    RUN(test_contrast_that_depends_on_the_machine);
    return 0;
}
