/* Tests of what fl_image_plan refuses, of the sizes of results, and of the parameters that it
 * draws. */
#include "image_fixture.h"

static fl_image_config
config_of(const fl_image_op *ops, int32_t count, int32_t height, int32_t width)
{
    return (fl_image_config){.ops = ops,
                             .count = count,
                             .channels = 3,
                             .in = {height, width},
                             .image_ops = &fl_cpu_image_plain};
}

/* ---- what is refused */

/* The plan is refused with a text that has all words, which `|` divides, and is not cut off. */
static void check_refused(const fl_image_config *config, const char *words)
{
    fl_image_plan *plan;
    fl_err err = {0};
    CHECK_INT(fl_image_plan_open(config, &plan, &err), FL_EINVAL);
    CHECK(plan == NULL && strlen(err.text) < sizeof err.text - 1);
    char copy[200];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *rest = copy, *word; (word = strtok_r(rest, "|", &rest)) != NULL;) {
        if (strstr(err.text, word) == NULL) fprintf(stderr, "\n%s: no '%s'", err.text, word);
        CHECK(strstr(err.text, word) != NULL);
    }
}

static void check_op_refused(fl_image_op op, int32_t height, int32_t width, const char *words)
{
    fl_image_config config = config_of(&op, 1, height, width);
    check_refused(&config, words);
}

static void test_arguments_that_are_wrong_for_any_image(void)
{
    fl_image_op crop = {.kind = FL_OP_RANDOM_CROP, .size = {8, 8}};
    fl_image_op rrc = {
        .kind = FL_OP_RANDOM_RESIZED_CROP, .size = {8, 8}, .scale = {0.1, 1}, .ratio = {0.5, 2}};
    fl_image_op op = {.kind = FL_OP_HORIZONTAL_FLIP, .p = 1.5};
    check_op_refused(op, 9, 9, "RandomHorizontalFlip: p must be in [0, 1], got 1.5");
    op = (fl_image_op){.kind = FL_OP_VERTICAL_FLIP, .p = -1};
    check_op_refused(op, 9, 9, "RandomVerticalFlip: p must|got -1");
    op = (fl_image_op){.kind = FL_OP_ERASE, .p = 0.0 / 0.0};
    check_op_refused(op, 9, 9, "RandomErasing: p must");
    op = (fl_image_op){.kind = FL_OP_ERASE, .scale = {0.1, 1.1}, .ratio = {1, 1}};
    check_op_refused(op, 9, 9, "RandomErasing: scale must|got (0.1, 1.1)");
    op = rrc, op.scale[0] = 2;
    check_op_refused(op, 9, 9, "RandomResizedCrop: scale must be (min, max) with|got (2, 1)");
    op = rrc, op.ratio[0] = 0;
    check_op_refused(op, 9, 9, "RandomResizedCrop: ratio must|got (0, 2)");
    op = rrc, op.ratio[1] = 1.0 / 0.0;
    check_op_refused(op, 9, 9, "RandomResizedCrop: ratio must|got (0.5, inf)");
    op = rrc, op.size.width = 0;
    check_op_refused(op, 9, 9, "RandomResizedCrop: size must|got (8, 0)");
    op = rrc, op.interpolation = FL_INTERPOLATIONS;
    check_op_refused(op, 9, 9, "RandomResizedCrop: interpolation must|got 8");
    op = rrc, op.occurrence = 8;
    check_op_refused(op, 9, 9, "at most 8 of RandomResizedCrop");
    op = crop, op.padding[2] = -1;
    check_op_refused(op, 9, 9, "RandomCrop: padding must|got -1|crop");
    op = crop, op.padding_mode = FL_PADDING_MODES;
    check_op_refused(op, 9, 9, "RandomCrop: padding_mode must|got 4");
    op = (fl_image_op){.kind = FL_OP_CENTER_CROP, .size = {-3, 4}};
    check_op_refused(op, 9, 9, "CenterCrop: size must|got (-3, 4)");
    op = (fl_image_op){.kind = FL_OP_RESIZE};
    check_op_refused(op, 9, 9, "Resize: size must|got (0, 0)");
    op = (fl_image_op){.kind = FL_OP_RESIZE, .size = {9, 9}, .max_size = 10};
    check_op_refused(op, 9, 9,
                     "Resize: size must be one number with max_size, got (9, 9) and max_size=10");
    op = (fl_image_op){.kind = FL_OP_RESIZE, .size = {9, 0}, .max_size = 9};
    check_op_refused(op, 9, 9, "Resize: max_size must be greater than size=9, got 9");
    op = (fl_image_op){.kind = FL_OP_KINDS};
    check_op_refused(op, 9, 9, "the kind of an operation must be in");
}

static void test_arguments_of_augmentations_that_are_wrong(void)
{
    fl_image_op op = {.kind = FL_OP_INVERT, .p = 2};
    check_op_refused(op, 9, 9, "RandomInvert: p must|got 2");
    op = (fl_image_op){.kind = FL_OP_SOLARIZE, .tone = 255.5};
    check_op_refused(op, 9, 9, "RandomSolarize: threshold must|got 255.5");
    op = (fl_image_op){.kind = FL_OP_POSTERIZE, .tone = 9};
    check_op_refused(op, 9, 9, "RandomPosterize: bits must|got 9");
    op = (fl_image_op){.kind = FL_OP_SHARPNESS, .tone = -1};
    check_op_refused(op, 9, 9, "RandomAdjustSharpness: sharpness_factor must|got -1");
    op = (fl_image_op){.kind = FL_OP_BLUR, .size = {3, 4}, .blur_sigma = {1, 1}};
    check_op_refused(op, 9, 9, "GaussianBlur: kernel_size must|odd|got (4, 3)");
    op = (fl_image_op){.kind = FL_OP_BLUR, .size = {3, 3}, .blur_sigma = {0, 1}};
    check_op_refused(op, 9, 9, "GaussianBlur: sigma must|got (0, 1)");
    op.blur_sigma[0] = 1, op.size.width = 19;
    check_op_refused(op, 9, 9, "GaussianBlur: half of kernel_size|got (19, 3)|image of (9, 9)");
    op = (fl_image_op){.kind = FL_OP_ROTATION, .number = {2, 1}};
    check_op_refused(op, 9, 9, "RandomRotation: degrees must|got (2, 1)");
    op = (fl_image_op){.kind = FL_OP_ROTATION, .interpolation = FL_BICUBIC};
    check_op_refused(op, 9, 9,
                     "RandomRotation: interpolation must be nearest or bilinear, got mode 3");
    op = (fl_image_op){.kind = FL_OP_AFFINE, .number = {0, 0, 0, 2, 1, 1}};
    check_op_refused(op, 9, 9, "RandomAffine|translations in [0, 1]");
    op = (fl_image_op){.kind = FL_OP_PERSPECTIVE, .distortion = 1.5};
    check_op_refused(op, 9, 9, "RandomPerspective: distortion_scale must|got 1.5");
    op = (fl_image_op){.kind = FL_OP_ROTATION};
    check_op_refused(op, 1 << 20, 1 << 20, "(1048576, 1048576) is too large");
    op = (fl_image_op){.kind = FL_OP_NOISE, .noise = {0, -1, 0}};
    check_op_refused(op, 9, 9, "GaussianNoise: mean must|got mean=0 and sigma=-1");
    op = (fl_image_op){.kind = FL_OP_RAND_AUGMENT, .number = {9, 1, 31}};
    check_op_refused(op, 9, 9, "RandAugment: num_ops must be in [0, 8], got 9");
    op = (fl_image_op){.kind = FL_OP_RAND_AUGMENT, .number = {2, 31, 31}};
    check_op_refused(op, 9, 9, "RandAugment: magnitude must|got 31");
    op = (fl_image_op){.kind = FL_OP_TRIVIAL_AUGMENT, .number = {1, 0, 1}};
    check_op_refused(op, 9, 9, "TrivialAugmentWide: num_magnitude_bins must|got 1");
    op = (fl_image_op){.kind = FL_OP_AUTO_AUGMENT, .policy = 3};
    check_op_refused(op, 9, 9, "AutoAugment: policy must be in [0, 2], got 3");
    op = (fl_image_op){.kind = FL_OP_APPLY, .p = 3};
    check_op_refused(op, 9, 9, "RandomApply: p must|got 3");
    op = (fl_image_op){.kind = FL_OP_CHOICE};
    check_op_refused(op, 9, 9, "RandomChoice must have 1 to 16 transforms, got 0");
    op = (fl_image_op){.kind = FL_OP_APPLY, .span = 1};
    check_op_refused(op, 9, 9, "holds more operations than follow it");
    op = (fl_image_op){.kind = FL_OP_GRAYSCALE, .grey_channels = 2};
    check_op_refused(op, 9, 9, "Grayscale: num_output_channels must|got 2");
    op = (fl_image_op){.kind = FL_OP_COLOR_JITTER, .number = {0, 1, 2, 1}};
    check_op_refused(op, 9, 9, "ColorJitter: contrast must|got (2, 1)");
    op = (fl_image_op){.kind = FL_OP_PHOTOMETRIC_DISTORT, .number = {0, 1, 0, 1, 0, 1, -0.6, 0}};
    check_op_refused(op, 9, 9,
                     "RandomPhotometricDistort: hue must|-0.5 <= min <= max <= 0.5, got (-0.6, 0)");
}

static void test_operations_that_do_not_go_with_the_image(void)
{
    fl_image_op op = {.kind = FL_OP_RANDOM_CROP, .size = {32, 40}, .padding = {2, 2, 2, 2}};
    check_op_refused(op, 30, 30, "RandomCrop: size must|(34, 34), got (32, 40)|pad_if_needed=True");
    op = (fl_image_op){.kind = FL_OP_PAD, .padding = {5, 0, 0, 0}, .padding_mode = FL_PAD_REFLECT};
    check_op_refused(op, 9, 5, "Pad: padding_mode='reflect'|padding of 5|width of 5");
    op.padding_mode = FL_PAD_SYMMETRIC, op.padding[0] = 6;
    check_op_refused(op, 9, 5, "Pad: padding_mode='symmetric'|padding of 6|width of 5");
    op = (fl_image_op){.kind = FL_OP_RANDOM_CROP,
                       .size = {30, 3},
                       .padding_mode = FL_PAD_REFLECT,
                       .pad_if_needed = true};
    check_op_refused(op, 15, 5, "RandomCrop: padding_mode='reflect'|padding of 15|height of 15");
    op = (fl_image_op){.kind = FL_OP_RESIZE, .max_size = 10};
    check_op_refused(op, 1, 50, "Resize: size=0 with max_size=10|(1, 50)|0 by 10");
    op = (fl_image_op){.kind = FL_OP_RESIZE, .size = {1 << 20, 0}};
    check_op_refused(op, 1, 500, "Resize: size=1048576|1048576 by 524288000");
    op = (fl_image_op){.kind = FL_OP_HORIZONTAL_FLIP};
    check_op_refused(op, 0, 0, "differ in size|RandomResizedCrop");
    check_op_refused(op, -1, 5, "image of (-1, 5)");
    check_op_refused(op, 5, 1 << 25, "image of (5, 33554432)");
}

static void test_results_that_depend_on_chance(void)
{
    fl_image_op crop = {.kind = FL_OP_CENTER_CROP, .size = {4, 4}},
                grey = {.kind = FL_OP_GRAYSCALE};
    fl_image_op branch = {.kind = FL_OP_BRANCH, .span = 1};
    fl_image_op ops[5] = {{.kind = FL_OP_APPLY, .p = 0.5, .span = 1}, crop};
    fl_image_config config = config_of(ops, 2, 9, 9);
    check_refused(&config, "RandomApply: the size and the channels of results depend on chance");
    grey.grey_channels = 1;
    ops[1] = grey;
    check_refused(&config, "RandomApply: the size and the channels");
    fl_image_op choice = {.kind = FL_OP_CHOICE, .span = 4}, flip = {.kind = FL_OP_HORIZONTAL_FLIP};
    ops[0] = choice, ops[1] = branch, ops[2] = crop, ops[3] = branch, ops[4] = flip;
    config = config_of(ops, 5, 9, 9);
    check_refused(&config, "RandomChoice: the size and the channels of results depend on chance");
    ops[0].kind = FL_OP_ORDER, ops[4] = crop;
    check_refused(&config, "RandomOrder: the size and the channels of results depend on chance");
    fl_image_plan *plan;
    ops[0].kind = FL_OP_CHOICE;
    CHECK_INT(fl_image_plan_open(&config, &plan, NULL), FL_OK);
    CHECK_INT(fl_image_plan_out(plan).height, 4);
    fl_image_plan_close(plan);
    fl_image_op erase = {.kind = FL_OP_ERASE, .p = 1, .scale = {0.1, 1}, .ratio = {1, 1}};
    ops[0].kind = FL_OP_ORDER, ops[2] = flip, ops[4] = erase;
    check_refused(&config, "RandomErasing must stand after RandomOrder, not inside");
}

static void test_configurations_that_cannot_be(void)
{
    fl_image_op ops[FL_MAX_IMAGE_OPS + 1] = {{.kind = FL_OP_PAD}};
    fl_image_config config = config_of(ops, FL_MAX_IMAGE_OPS + 1, 8, 8);
    check_refused(&config, "at most 32");
    fl_image_op color = {.kind = FL_OP_AUTOCONTRAST};
    config = config_of(&color, 1, 8, 8), config.channels = 4;
    check_refused(&config, "RandomAutocontrast: the channels of images must be 1 or 3, got 4");
    config = config_of(ops, 1, 8, 8), config.channels = 5;
    check_refused(&config, "the channels of images must be 1 to 4, got 5");
    config = config_of(ops, 1, 8, 8), config.type = FL_IMAGE_F32;
    check_refused(&config, "tables");
    config = config_of(ops, 1, 8, 8), config.layout = FL_IMAGE_LAYOUTS;
    check_refused(&config, "layout");
    for (int i = 0; i < 5; i++)
        ops[i] = (fl_image_op){
            .kind = FL_OP_PAD, .padding = {1, 1, 1, 1}, .padding_mode = FL_PAD_SYMMETRIC};
    config = config_of(ops, 5, 8, 8);
    check_refused(&config, "Pad|pad once");
    config.count = 4;
    fl_image_plan *plan;
    CHECK_INT(fl_image_plan_open(&config, &plan, NULL), FL_OK);
    fl_image_plan_close(plan);
}

static void test_what_may_not_come_after_an_erasing(void)
{
    fl_image_op ops[2] = {
        {.kind = FL_OP_ERASE, .scale = {0.1, 0.2}, .ratio = {1, 1}},
        {.kind = FL_OP_RESIZE, .size = {8, 8}},
    };
    fl_image_config config = config_of(ops, 2, 9, 9);
    check_refused(&config, "RandomErasing must stand after Resize|put RandomErasing last");
    ops[1] = (fl_image_op){.kind = FL_OP_PAD, .padding_mode = FL_PAD_EDGE};
    check_refused(&config,
                  "RandomErasing must stand after Pad that repeats pixels|put RandomErasing last");
}

/* ---- sizes and parameters */

static void draw(const fl_image_config *config, int64_t index, fl_image_params *params)
{
    fl_image_plan *plan;
    fl_image_config ragged = *config;
    ragged.in = (fl_image_size){0, 0};
    fl_image_op crop = {.kind = FL_OP_CENTER_CROP, .size = {4, 4}};
    fl_image_op ops[2] = {config->ops[0], crop};
    ragged.ops = ops, ragged.count = 2;
    CHECK_INT(fl_image_plan_open(&ragged, &plan, NULL), FL_OK);
    fl_sample_key key = {9, index, 2, 1};
    fl_image_params both[2];
    CHECK_INT(fl_image_plan_draw(plan, &key, config->in, both, NULL), FL_OK);
    *params = both[0];
    fl_image_plan_close(plan);
}

static fl_image_params drawn(fl_image_op op, int32_t height, int32_t width, int64_t index)
{
    fl_image_config config = config_of(&op, 1, height, width);
    fl_image_params params;
    draw(&config, index, &params);
    return params;
}

/* The expected sizes come from torchvision's _compute_resized_output_size. */
static void test_sizes_of_resize(void)
{
    static const struct {
        fl_image_size in;
        int32_t size, max_size;
        fl_image_size out;
    } cases[] = {
        {{375, 500}, 256, 0, {256, 341}},
        {{500, 375}, 256, 0, {341, 256}},
        {{7, 7}, 3, 0, {3, 3}},
        {{3, 10}, 2, 0, {2, 6}},
        {{1, 100}, 5, 0, {5, 500}},
        {{480, 640}, 224, 250, {187, 250}},
        {{640, 480}, 224, 290, {290, 217}},
        {{33, 17}, 20, 21, {21, 11}},
        {{333, 500}, 0, 100, {66, 100}},
        {{500, 333}, 0, 77, {77, 51}},
        {{29, 31}, 13, 0, {13, 13}},
        {{31, 29}, 13, 14, {13, 13}},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        fl_image_op op = {
            .kind = FL_OP_RESIZE, .size = {cases[n].size, 0}, .max_size = cases[n].max_size};
        fl_image_params params = drawn(op, cases[n].in.height, cases[n].in.width, 0);
        CHECK_INT(params.out.height, cases[n].out.height);
        CHECK_INT(params.out.width, cases[n].out.width);
    }
}

static void check_params(fl_image_params p, int32_t top, int32_t left, const int32_t padding[4])
{
    CHECK_INT(p.top, top);
    CHECK_INT(p.left, left);
    for (int i = 0; i < 4; i++) CHECK_INT(p.padding[i], padding[i]);
}

/* Half of an odd rest rounds to even; missing columns are padded, one more at the end. */
static void test_where_a_center_crop_lies(void)
{
    fl_image_op op = {.kind = FL_OP_CENTER_CROP, .size = {4, 6}};
    check_params(drawn(op, 7, 7, 0), 2, 0, (int32_t[]){0, 0, 0, 0});
    check_params(drawn(op, 9, 13, 0), 2, 4, (int32_t[]){0, 0, 0, 0});
    check_params(drawn(op, 3, 1, 0), 0, 0, (int32_t[]){2, 0, 3, 1});
    check_params(drawn(op, 9, 3, 0), 2, 0, (int32_t[]){1, 0, 2, 0});
}

static void test_a_random_crop_has_the_numbers_of_its_sample(void)
{
    fl_image_op op = {
        .kind = FL_OP_RANDOM_CROP, .size = {20, 50}, .padding = {1, 2, 3, 4}, .occurrence = 5};
    op.pad_if_needed = true;
    fl_sample_key key = {9, INT64_C(1) << 40, 2, 1};
    fl_philox_block block = fl_philox_of_sample(&key, FL_OP_RANDOM_CROP << 3 | 5, 0);
    fl_image_params p = drawn(op, 30, 40, key.index);
    /* 40 + 1 + 3 columns lack 6, on both sides */
    check_params(p, (int32_t)fl_philox_below(block.word[0], 36 - 20 + 1),
                 (int32_t)fl_philox_below(block.word[1], 56 - 50 + 1), (int32_t[]){7, 2, 9, 4});
    CHECK(p.is_applied && p.size.height == 20 && p.size.width == 50 && p.out.width == 50);
}

static void test_all_places_of_a_crop_are_drawn(void)
{
    fl_image_op op = {.kind = FL_OP_RANDOM_CROP, .size = {28, 30}};
    int seen[5][3] = {{0}};
    for (int64_t i = 0; i < 3000; i++) {
        fl_image_params p = drawn(op, 32, 32, i);
        CHECK(p.top >= 0 && p.top < 5 && p.left >= 0 && p.left < 3);
        seen[p.top][p.left]++;
    }
    for (int y = 0; y < 5; y++)
        for (int x = 0; x < 3; x++) CHECK(seen[y][x] > 150 && seen[y][x] < 250);
}

static void test_flips_are_as_frequent_as_asked(void)
{
    int flipped[3] = {0};
    for (int n = 0; n < 3; n++) {
        fl_image_op op = {.kind = n % 2 ? FL_OP_VERTICAL_FLIP : FL_OP_HORIZONTAL_FLIP,
                          .p = n / 2.0};
        for (int64_t i = 0; i < 1000; i++) flipped[n] += drawn(op, 8, 8, i).is_applied;
    }
    CHECK(flipped[0] == 0 && flipped[2] == 1000);
    CHECK(flipped[1] > 440 && flipped[1] < 560);
}

static void test_crops_of_an_area_and_a_ratio(void)
{
    fl_image_op op = {
        .kind = FL_OP_RANDOM_RESIZED_CROP, .size = {7, 7}, .scale = {0.25, 0.5}, .ratio = {0.5, 2}};
    double areas = 0;
    int upright = 0;
    for (int64_t i = 0; i < 2000; i++) {
        fl_image_params p = drawn(op, 300, 200, i);
        CHECK(p.top >= 0 && p.top + p.size.height <= 300);
        CHECK(p.left >= 0 && p.left + p.size.width <= 200);
        double area = (double)p.size.height * p.size.width / 60000;
        double ratio = (double)p.size.width / p.size.height;
        CHECK(area > 0.245 && area < 0.505 && ratio > 0.49 && ratio < 2.02);
        areas += area;
        upright += p.size.height > p.size.width;
    }
    CHECK(areas / 2000 > 0.36 && areas / 2000 < 0.385);
    CHECK(upright > 1000 && upright < 1250); /* a wide crop often does not fit */
}

static void test_the_ratio_of_a_crop_is_exact(void)
{
    fl_image_op op = {
        .kind = FL_OP_RANDOM_RESIZED_CROP, .size = {7, 7}, .scale = {0.01, 0.01}, .ratio = {4, 4}};
    for (int64_t i = 0; i < 50; i++) {
        fl_image_params p = drawn(op, 1000, 1000, i);
        CHECK(p.size.width == 200 && p.size.height == 50);
    }
    op.ratio[0] = op.ratio[1] = 1e-6, op.scale[0] = op.scale[1] = 1;
    fl_image_params thin = drawn(op, 1000, 1000, 0); /* no try fits: the tries are 10^6 rows high */
    CHECK(thin.size.width == 1 && thin.size.height == 1000 && thin.left == 499);
}

static void test_the_middle_is_cropped_where_nothing_fits(void)
{
    fl_image_op op = {
        .kind = FL_OP_RANDOM_RESIZED_CROP, .size = {7, 7}, .scale = {4, 4}, .ratio = {0.75, 1.25}};
    fl_image_params wide = drawn(op, 100, 300, 0), tall = drawn(op, 300, 100, 0);
    fl_image_params even = drawn(op, 100, 100, 0), thin = drawn(op, 500, 1, 0);
    CHECK(wide.size.height == 100 && wide.size.width == 125 && wide.top == 0 && wide.left == 87);
    CHECK(tall.size.height == 133 && tall.size.width == 100 && tall.top == 83 && tall.left == 0);
    CHECK(even.size.height == 100 && even.size.width == 100);
    CHECK(thin.size.height == 1 && thin.size.width == 1 && thin.top == 249);
    op.ratio[0] = 100, op.ratio[1] = 200;
    CHECK_INT(drawn(op, 1, 1, 0).size.height, 1);
}

static void test_an_erasing_is_smaller_than_the_image(void)
{
    fl_image_op op = {.kind = FL_OP_ERASE, .p = 1, .scale = {0.02, 0.33}, .ratio = {0.3, 3.3}};
    for (int64_t i = 0; i < 2000; i++) {
        fl_image_params p = drawn(op, 20, 12, i);
        CHECK(p.is_applied && p.out.height == 20 && p.out.width == 12);
        CHECK(p.size.height < 20 && p.top >= 0 && p.top + p.size.height <= 20);
        CHECK(p.size.width < 12 && p.left >= 0 && p.left + p.size.width <= 12);
    }
    op.scale[0] = op.scale[1] = 1;
    CHECK(!drawn(op, 8, 8, 0).is_applied);
    op.scale[0] = op.scale[1] = 0.3, op.p = 0;
    CHECK(!drawn(op, 20, 12, 0).is_applied);
}

/* Users can reproduce these parameters, so they must never change. A model in Python with the exp
 * and log of its C library drew the same. */
static void test_parameters_that_have_been_drawn_before(void)
{
    static const int32_t expected[4][8] = {{36, 36, 215, 280, 131, 62, 70, 148},
                                           {96, 233, 176, 195, 135, 112, 61, 102},
                                           {21, 10, 343, 431, 12, 37, 150, 55},
                                           {0, 198, 188, 231, 6, 19, 197, 65}};
    fl_image_op rrc = {.kind = FL_OP_RANDOM_RESIZED_CROP,
                       .size = {224, 224},
                       .scale = {0.08, 1},
                       .ratio = {3.0 / 4, 4.0 / 3}};
    fl_image_op erase = {.kind = FL_OP_ERASE, .p = 1, .scale = {0.02, 0.33}, .ratio = {0.3, 3.3}};
    for (int64_t i = 0; i < 4; i++) {
        fl_image_params p = drawn(rrc, 375, 500, i), e = drawn(erase, 224, 224, i);
        int32_t all[8] = {p.top, p.left, p.size.height, p.size.width,
                          e.top, e.left, e.size.height, e.size.width};
        for (int k = 0; k < 8; k++) CHECK_INT(all[k], expected[i][k]);
    }
}

/* Operations of other kinds, and other operations of a kind, do not change what one draws. */
static void test_numbers_do_not_depend_on_the_rest_of_a_plan(void)
{
    fl_image_op ops[4] = {
        {.kind = FL_OP_RANDOM_CROP, .size = {20, 20}},
        {.kind = FL_OP_VERTICAL_FLIP, .p = 0.5},
        {.kind = FL_OP_PAD, .padding = {6, 6, 6, 6}},
        {.kind = FL_OP_RANDOM_CROP, .size = {20, 20}, .occurrence = 1},
    };
    fl_image_config all = config_of(ops, 4, 32, 32), first = config_of(ops, 1, 32, 32);
    fl_image_plan *plans[2];
    CHECK_INT(fl_image_plan_open(&all, &plans[0], NULL), FL_OK);
    CHECK_INT(fl_image_plan_open(&first, &plans[1], NULL), FL_OK);
    int same = 0;
    for (int64_t i = 0; i < 500; i++) {
        fl_sample_key key = {9, i, 0, 0};
        fl_image_params params[4], alone[1];
        CHECK_INT(fl_image_plan_draw(plans[0], &key, all.in, params, NULL), FL_OK);
        CHECK_INT(fl_image_plan_draw(plans[1], &key, all.in, alone, NULL), FL_OK);
        CHECK(memcmp(&params[0], &alone[0], sizeof params[0]) == 0);
        same += params[0].top == params[3].top;
    }
    CHECK(same < 100);
    fl_image_plan_close(plans[0]);
    fl_image_plan_close(plans[1]);
}

static void test_an_image_of_another_size_is_refused(void)
{
    fl_image_op op = {.kind = FL_OP_RANDOM_CROP, .size = {8, 8}};
    fl_image_config fixed = config_of(&op, 1, 9, 9), ragged = config_of(&op, 1, 0, 0);
    fl_image_plan *plan;
    fl_image_params params[1];
    fl_sample_key key = {0};
    fl_err err;
    CHECK_INT(fl_image_plan_open(&fixed, &plan, NULL), FL_OK);
    CHECK_INT(fl_image_plan_draw(plan, &key, (fl_image_size){9, 8}, params, &err), FL_EINVAL);
    CHECK(strstr(err.text, "(9, 8)") != NULL && strstr(err.text, "(9, 9)") != NULL);
    fl_image_plan_close(plan);
    CHECK_INT(fl_image_plan_open(&ragged, &plan, NULL), FL_OK);
    CHECK_INT(fl_image_plan_in(plan).height, 0);
    CHECK_INT(fl_image_plan_out(plan).width, 8);
    CHECK_INT(fl_image_plan_draw(plan, &key, (fl_image_size){7, 9}, params, &err), FL_EINVAL);
    CHECK(strstr(err.text, "RandomCrop") != NULL);
    CHECK_INT(fl_image_plan_draw(plan, &key, (fl_image_size){0, 9}, params, &err), FL_EINVAL);
    CHECK_INT(fl_image_plan_draw(plan, &key, (fl_image_size){8, 8}, params, &err), FL_OK);
    fl_image_plan_close(plan);
}

int main(void)
{
    start_tests();
    RUN(test_arguments_that_are_wrong_for_any_image);
    RUN(test_arguments_of_augmentations_that_are_wrong);
    RUN(test_operations_that_do_not_go_with_the_image);
    RUN(test_results_that_depend_on_chance);
    RUN(test_configurations_that_cannot_be);
    RUN(test_what_may_not_come_after_an_erasing);
    RUN(test_sizes_of_resize);
    RUN(test_where_a_center_crop_lies);
    RUN(test_a_random_crop_has_the_numbers_of_its_sample);
    RUN(test_all_places_of_a_crop_are_drawn);
    RUN(test_flips_are_as_frequent_as_asked);
    RUN(test_crops_of_an_area_and_a_ratio);
    RUN(test_the_ratio_of_a_crop_is_exact);
    RUN(test_the_middle_is_cropped_where_nothing_fits);
    RUN(test_an_erasing_is_smaller_than_the_image);
    RUN(test_parameters_that_have_been_drawn_before);
    RUN(test_numbers_do_not_depend_on_the_rest_of_a_plan);
    RUN(test_an_image_of_another_size_is_refused);
    return 0;
}
