/* Tests of fl_image_draws for rotations, shears, perspectives and policies: how many words each
 * draws, and what the words become. */
#include "check.h"

#include "fl_cpu_image.h"
#include "fl_image_draws.h"
#include "fl_op_policy.h"

#include <math.h>

enum { HEIGHT = 16, WIDTH = 12, IMAGES = 200 };

static fl_torch_tilt asked; /* the last perspective that torch was asked for */
static int tilts;

static int answer(void *context, const fl_torch_tilt *tilt, float out[8])
{
    asked = *tilt;
    tilts++;
    for (int k = 0; k < 8; k++) out[k] = (float)(tilts + k);
    return context != NULL ? -1 : 0;
}

/* Plan and draws of one operation, the generator, and a second generator that is in the state that
 * torchvision would leave. */
typedef struct fixture {
    fl_image_plan *plan;
    fl_image_draws *draws;
    fl_torch_random random, words;
    fl_image_params found;
} fixture;

static fixture open_fixture(const fl_image_op *op, bool is_v1)
{
    fixture fix;
    fl_image_config config = {.ops = op,
                              .count = 1,
                              .channels = 3,
                              .in = {HEIGHT, WIDTH},
                              .image_ops = fl_cpu_image_ops_find()};
    CHECK_INT(fl_image_plan_open(&config, &fix.plan, NULL), FL_OK);
    fl_draw_ways ways = {.is_v1 = is_v1, .is_fused = true};
    CHECK_INT(fl_image_draws_open(fix.plan, &ways, &fix.draws, NULL), FL_OK);
    fl_torch_random_seed(&fix.random, 31);
    fix.words = fix.random;
    return fix;
}

static void draw(fixture *fix)
{
    const fl_torch_answers answers = {.tilt = answer};
    const fl_image_size in = {HEIGHT, WIDTH};
    CHECK_INT(fl_image_draws_one(fix->draws, &fix->random, in, &answers, &fix->found, NULL), FL_OK);
}

static void close_fixture(fixture *fix)
{
    CHECK(memcmp(&fix->random, &fix->words, sizeof fix->words) == 0);
    fl_image_draws_close(fix->draws);
    fl_image_plan_close(fix->plan);
}

static float uniform(fixture *fix, double from, double to)
{
    return fl_torch_random_uniform(&fix->words, (float)from, (float)to, true);
}

static int64_t below(fixture *fix, int64_t range)
{
    return fl_torch_random_int(&fix->words, 0, range);
}

static void test_a_rotation_draws_its_angle(void)
{
    fixture fix =
        open_fixture(&(fl_image_op){.kind = FL_OP_ROTATION, .affine.degrees = {-30, 50}}, false);
    for (int n = 0; n < IMAGES; n++) {
        draw(&fix);
        CHECK(fix.found.affine.angle == uniform(&fix, -30, 50));
    }
    close_fixture(&fix);
}

/* A limit of 0 is drawn, too, if the argument is not None. */
static void test_an_affine_draws_the_parts_that_were_given(void)
{
    for (int drawn = 0; drawn < 16; drawn++) {
        fl_image_op op = {.kind = FL_OP_AFFINE,
                          .affine = {.degrees = {-10, 10},
                                     .translate = {0.3, 0},
                                     .scale = {0.5, 2},
                                     .shear = {{-5, 8}, {0, 0}},
                                     .drawn = drawn}};
        fixture fix = open_fixture(&op, drawn % 2 == 0);
        for (int n = 0; n < IMAGES; n++) {
            draw(&fix);
            CHECK(fix.found.affine.angle == uniform(&fix, -10, 10));
            bool moves = drawn & FL_DRAWS_MOVE;
            float x = moves ? rintf(uniform(&fix, -0.3 * WIDTH, 0.3 * WIDTH)) : 0;
            float y = moves ? rintf(uniform(&fix, 0, 0)) : 0;
            CHECK(fix.found.affine.translate[0] == x && fix.found.affine.translate[1] == y);
            float scale = drawn & FL_DRAWS_SCALE ? uniform(&fix, 0.5, 2) : 1;
            float shear_x = drawn & FL_DRAWS_SHEAR_X ? uniform(&fix, -5, 8) : 0;
            float shear_y = drawn & FL_DRAWS_SHEAR_Y ? uniform(&fix, 0, 0) : 0;
            CHECK(fix.found.affine.scale == scale);
            CHECK(fix.found.affine.shear[0] == shear_x && fix.found.affine.shear[1] == shear_y);
        }
        close_fixture(&fix);
    }
}

static void test_a_perspective_draws_a_gate_and_four_corners(void)
{
    static const bool is_far[8] = {false, false, true, false, true, true, false, true};
    fl_image_op op = {.kind = FL_OP_PERSPECTIVE, .p = 0.6, .distortion = 0.7};
    fixture fix = open_fixture(&op, true);
    tilts = 0;
    for (int n = 0; n < IMAGES; n++) {
        int before = tilts;
        draw(&fix);
        bool is_applied = fl_torch_random_unit(&fix.words) < 0.6f;
        CHECK(fix.found.is_applied == is_applied && tilts == before + is_applied);
        for (int k = 0; k < 8 && is_applied; k++) {
            int edge = k % 2 == 0 ? WIDTH : HEIGHT, range = (int)(0.7 * (edge / 2)) + 1;
            int64_t expected = below(&fix, range) + (is_far[k] ? edge - range : 0);
            CHECK_INT(asked.corner[k / 2][k % 2], expected);
            CHECK(fix.found.coefficients[k] == (float)(tilts + k));
        }
    }
    CHECK(tilts > IMAGES / 3 && tilts < IMAGES);
    const fl_torch_answers no_answers = {.tilt = answer, .context = &tilts};
    fl_torch_random random;
    int status = FL_OK;
    for (uint64_t seed = 0; status == FL_OK; seed++) {
        fl_torch_random_seed(&random, seed);
        status = fl_image_draws_one(fix.draws, &random, (fl_image_size){HEIGHT, WIDTH}, &no_answers,
                                    &fix.found, NULL);
    }
    CHECK_INT(status, FL_EINVAL);
    close_fixture(&fix);
}

/* ---- policies */

/* Checks operation k of the drawn operations, and its strength at position `at`. */
static void check_drawn(const fixture *fix, const fl_image_op *op, int k, int which, int32_t at,
                        bool is_negative)
{
    const fl_image_size in = {HEIGHT, WIDTH};
    float strength = fl_policy_magnitude(op, (fl_policy_op)which, in, at, is_negative);
    CHECK_INT(fix->found.order[k], which);
    CHECK(fix->found.number[k] == strength);
}

/* v1 draws a sign as one of two integers, v2 as a unit number. */
static bool draw_sign(fixture *fix, int which, bool is_v1)
{
    if (which < FL_POLICY_SHEAR_X || which > FL_POLICY_SHARPNESS) return false;
    return is_v1 ? below(fix, 2) == 1 : fl_torch_random_unit(&fix->words) <= 0.5f;
}

static void check_table(fl_image_op op, bool is_v1)
{
    bool is_rand = op.kind == FL_OP_RAND_AUGMENT;
    int ops = is_rand ? (int)op.rand_augment.ops : 1, seen = 0;
    op.is_v1 = is_v1;
    fixture fix = open_fixture(&op, is_v1);
    for (int n = 0; n < IMAGES; n++) {
        draw(&fix);
        for (int k = 0; k < ops; k++) {
            int which = (int)below(&fix, FL_POLICY_DRAWN);
            bool has_strength = which >= FL_POLICY_SHEAR_X && which <= FL_POLICY_SOLARIZE;
            int32_t at = (int32_t)op.rand_augment.magnitude;
            if (!is_rand) at = has_strength ? (int32_t)below(&fix, 31) : 0;
            check_drawn(&fix, &op, k, which, at, draw_sign(&fix, which, is_v1));
            seen |= 1 << which;
        }
        CHECK_INT(fix.found.order[ops], -1);
    }
    CHECK_INT(seen, (1 << FL_POLICY_DRAWN) - 1);
    close_fixture(&fix);
}

static void test_tables_of_operations(void)
{
    for (int version = 1; version <= 2; version++) {
        check_table((fl_image_op){.kind = FL_OP_RAND_AUGMENT,
                                  .rand_augment = {.ops = 3, .magnitude = 9, .bins = 31}},
                    version == 1);
        check_table((fl_image_op){.kind = FL_OP_TRIVIAL_AUGMENT, .rand_augment.bins = 31},
                    version == 1);
    }
}

/* v1 draws two unit numbers and two signs at once, and 0 is negative. */
static void test_pairs_of_operations(void)
{
    for (int turn = 0; turn < 6; turn++) {
        bool is_v1 = turn % 2 == 0;
        fl_image_op op = {.kind = FL_OP_AUTO_AUGMENT, .policy = turn / 2, .is_v1 = is_v1};
        fixture fix = open_fixture(&op, is_v1);
        for (int n = 0; n < IMAGES; n++) {
            float unit[2] = {0};
            bool is_negative[2] = {false, false};
            draw(&fix);
            const fl_policy_step *pair = fl_policy_pair(&op, below(&fix, FL_POLICY_PAIRS));
            for (int k = 0; k < 2 && is_v1; k++) unit[k] = fl_torch_random_unit(&fix.words);
            for (int k = 0; k < 2 && is_v1; k++) is_negative[k] = below(&fix, 2) == 0;
            int count = 0;
            for (int k = 0; k < 2; k++) {
                if (!is_v1) unit[k] = fl_torch_random_unit(&fix.words);
                if (unit[k] > (float)(pair[k].tenths / 10.0)) continue;
                if (!is_v1) is_negative[k] = draw_sign(&fix, pair[k].op, false);
                check_drawn(&fix, &op, count++, pair[k].op, pair[k].magnitude, is_negative[k]);
            }
            CHECK_INT(fix.found.order[count], -1);
        }
        close_fixture(&fix);
    }
}

/* Numbers of torch.linspace() in float32. */
static void test_strengths(void)
{
    const fl_image_size in = {HEIGHT, WIDTH};
    fl_image_op op = {.kind = FL_OP_RAND_AUGMENT, .rand_augment = {.ops = 1, .bins = 31}};
    CHECK(fl_policy_magnitude(&op, FL_POLICY_SHEAR_X, in, 9, true) == -0x1.70a3d8p-4f);
    CHECK(fl_policy_magnitude(&op, FL_POLICY_TRANSLATE_X, in, 20, false) == 0x1.d00c6p+1f);
    CHECK(fl_policy_magnitude(&op, FL_POLICY_TRANSLATE_Y, in, 30, false) == 0x1.d00c6p+2f);
    CHECK(fl_policy_magnitude(&op, FL_POLICY_POSTERIZE, in, 30, true) == 4);
    CHECK(fl_policy_magnitude(&op, FL_POLICY_SOLARIZE, in, 7, true) == 0x1.888888p-1f);
    op.is_v1 = true;
    CHECK(fl_policy_magnitude(&op, FL_POLICY_SOLARIZE, in, 7, true) == 195.5f);
    CHECK(fl_policy_magnitude(&op, FL_POLICY_EQUALIZE, in, 7, true) == 0);
    op = (fl_image_op){.kind = FL_OP_TRIVIAL_AUGMENT, .rand_augment.bins = 31};
    CHECK(fl_policy_magnitude(&op, FL_POLICY_TRANSLATE_X, in, 30, false) == 32);
    CHECK(fl_policy_magnitude(&op, FL_POLICY_POSTERIZE, in, 30, false) == 2);
}

int main(void)
{
    start_tests();
    RUN(test_a_rotation_draws_its_angle);
    RUN(test_an_affine_draws_the_parts_that_were_given);
    RUN(test_a_perspective_draws_a_gate_and_four_corners);
    RUN(test_tables_of_operations);
    RUN(test_pairs_of_operations);
    RUN(test_strengths);
    return 0;
}
