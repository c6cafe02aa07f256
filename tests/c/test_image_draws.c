/* Tests of fl_image_draws: how many words each step draws and what the words become, failures that
 * leave the generator unchanged, and columns whose rows have drawn parameters. */
#include "table_fixture.h"

#include "fl_cpu_image.h"
#include "fl_image_draws.h"

#include <math.h>
#include <pthread.h>

enum { HEIGHT = 10, WIDTH = 12, CROP = 8, ROWS = 37, IMAGE = HEIGHT * WIDTH };

static fl_image_plan *open_plan(const fl_image_op *ops, int32_t count)
{
    fl_image_plan *plan;
    fl_image_config config = {.ops = ops,
                              .count = count,
                              .channels = 1,
                              .in = {HEIGHT, WIDTH},
                              .image_ops = fl_cpu_image_ops_find()};
    CHECK_INT(fl_image_plan_open(&config, &plan, NULL), FL_OK);
    return plan;
}

static int exp_calls;

static int call_exp(void *context, float x, float *out)
{
    exp_calls++;
    *out = expf(x);
    return context != NULL ? -1 : 0;
}

static const fl_torch_answers plain_exp = {.exp = call_exp};
static const fl_torch_answers failing_exp = {.exp = call_exp, .context = &exp_calls};

/* Draws of v1, or of v2 and with these logarithms of the first operation's ratio. */
static fl_image_draws *open_draws(const fl_image_plan *plan, bool is_v1, float least, float most)
{
    fl_image_draws *draws;
    fl_draw_ways ways = {.is_v1 = is_v1, .is_fused = true, .log_ratio = {{least, most}}};
    CHECK_INT(fl_image_draws_open(plan, &ways, &draws, NULL), FL_OK);
    return draws;
}

/* Draws the parameters of ROWS rows from this seed; *random then stands after them. */
static void draw_rows(fl_image_draws *draws, fl_torch_random *random, fl_image_params *out)
{
    CHECK_INT(fl_image_draws_make(draws, random, ROWS, &plain_exp, NULL), FL_OK);
    CHECK_INT(fl_image_draws_copy(draws, ROWS, out, NULL), FL_OK);
}

static bool is_same_state(const fl_torch_random *a, const fl_torch_random *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Checks a crop of this size from padded images: v1 draws both numbers or none, v2 one for each
 * longer axis. */
static void check_crop(bool is_v1, fl_image_size size, bool draws_top, bool draws_left)
{
    fl_image_op op = {.kind = FL_OP_RANDOM_CROP, .size = size, .padding = {1, 0, 2, 1}};
    fl_image_plan *plan = open_plan(&op, 1);
    fl_image_draws *draws = open_draws(plan, is_v1, 0, 0);
    fl_image_params found[ROWS];
    fl_torch_random random, words;
    fl_torch_random_seed(&random, 8);
    words = random;
    draw_rows(draws, &random, found);
    for (int i = 0; i < ROWS; i++) {
        int32_t rows = HEIGHT + 1 - size.height + 1, columns = WIDTH + 3 - size.width + 1;
        int64_t top = draws_top ? fl_torch_random_word(&words) % (uint32_t)rows : 0;
        int64_t left = draws_left ? fl_torch_random_word(&words) % (uint32_t)columns : 0;
        CHECK_INT(found[i].top, top);
        CHECK_INT(found[i].left, left);
        CHECK(found[i].is_applied && found[i].padding[2] == 2 && found[i].out.width == size.width);
    }
    CHECK(is_same_state(&random, &words));
    fl_image_draws_close(draws);
    fl_image_plan_close(plan);
}

static void test_crops(void)
{
    fl_image_size small = {CROP, CROP}, high = {HEIGHT + 1, CROP}, whole = {HEIGHT + 1, WIDTH + 3};
    check_crop(true, small, true, true);
    check_crop(false, small, true, true);
    check_crop(true, high, true, true);
    check_crop(false, high, false, true);
    check_crop(true, whole, false, false);
    check_crop(false, whole, false, false);
}

/* is_v1: a number that is p itself applies the flips. */
static void check_apply(bool is_v1)
{
    fl_torch_random random, words;
    fl_torch_random_seed(&random, 21);
    words = random;
    float p = fl_torch_random_unit(&words);
    const fl_image_op ops[] = {{.kind = FL_OP_APPLY, .p = (double)p, .span = 1},
                               {.kind = FL_OP_HORIZONTAL_FLIP, .p = 0.4},
                               {.kind = FL_OP_VERTICAL_FLIP, .p = 0.7}};
    fl_image_plan *plan = open_plan(ops, 3);
    fl_image_draws *draws = open_draws(plan, is_v1, 0, 0);
    fl_image_params found[3 * ROWS];
    words = random;
    draw_rows(draws, &random, found);
    for (int i = 0; i < ROWS; i++) {
        float unit = fl_torch_random_unit(&words);
        bool is_on = unit < p || (is_v1 && unit == p);
        CHECK(i > 0 || is_on == is_v1);
        CHECK_INT(found[3 * i].is_applied, is_on);
        CHECK(!is_on || found[3 * i + 1].is_applied == (fl_torch_random_unit(&words) < 0.4f));
        CHECK_INT(found[3 * i + 2].is_applied, fl_torch_random_unit(&words) < 0.7f);
    }
    CHECK(is_same_state(&random, &words));
    fl_image_draws_close(draws);
    fl_image_plan_close(plan);
}

static void test_flips_within_apply(void)
{
    check_apply(true);
    check_apply(false);
}

/* A device follows all operations, so those whose holder is not applied must say so. */
static void test_operations_that_are_not_reached(void)
{
    const fl_image_op ops[] = {{.kind = FL_OP_APPLY, .p = 0, .span = 1},
                               {.kind = FL_OP_HORIZONTAL_FLIP, .p = 1},
                               {.kind = FL_OP_CHOICE, .span = 4},
                               {.kind = FL_OP_BRANCH, .span = 1, .p = 1, .branch_end = 1},
                               {.kind = FL_OP_INVERT, .p = 0},
                               {.kind = FL_OP_BRANCH, .span = 1, .p = 0, .branch_end = 1},
                               {.kind = FL_OP_VERTICAL_FLIP, .p = 1}};
    fl_image_plan *plan = open_plan(ops, 7);
    fl_image_draws *draws = open_draws(plan, false, 0, 0);
    fl_image_params found[7 * ROWS];
    int32_t map[HEIGHT + WIDTH + FL_STEP_NUMBERS + 1];
    fl_torch_random random;
    fl_torch_random_seed(&random, 3);
    draw_rows(draws, &random, found);
    CHECK_INT(fl_image_plan_map_length(plan), HEIGHT + WIDTH + fl_steps_numbers(1));
    fl_image_plan_map(plan, found, map);
    for (int32_t y = 0; y < HEIGHT; y++) CHECK_INT(map[y], y);
    for (int32_t x = 0; x < WIDTH; x++) CHECK_INT(map[HEIGHT + x], x);
    CHECK_INT(map[HEIGHT + WIDTH], FL_TONE_NONE);
    fl_image_draws_close(draws);
    fl_image_plan_close(plan);
}

static const fl_image_op erase = {
    .kind = FL_OP_ERASE, .p = 0.8, .scale = {0.02, 0.33}, .ratio = {0.3, 3.3}};

static void test_rectangles(void)
{
    fl_image_plan *plan = open_plan(&erase, 1);
    fl_image_draws *draws = open_draws(plan, false, -1.2f, 1.2f);
    fl_image_params found[ROWS];
    fl_torch_random random, words;
    int applied = 0;
    fl_torch_random_seed(&random, 2);
    words = random;
    draw_rows(draws, &random, found);
    for (int i = 0; i < ROWS; i++) {
        applied += found[i].is_applied;
        if (!(fl_torch_random_unit(&words) < 0.8f)) {
            CHECK(!found[i].is_applied);
            continue;
        }
        for (int t = 0; t < 10; t++) {
            double area = IMAGE * (double)fl_torch_random_uniform(&words, 0.02f, 0.33f, true);
            float ratio = expf(fl_torch_random_uniform(&words, -1.2f, 1.2f, true));
            int64_t height = (int64_t)rint(sqrt(area * ratio));
            int64_t width = (int64_t)rint(sqrt(area / ratio));
            if (height >= HEIGHT || width >= WIDTH) continue;
            CHECK_INT(found[i].size.height, height);
            CHECK_INT(found[i].size.width, width);
            CHECK_INT(found[i].top, fl_torch_random_int(&words, 0, HEIGHT - height + 1));
            CHECK_INT(found[i].left, fl_torch_random_int(&words, 0, WIDTH - width + 1));
            break;
        }
    }
    CHECK(applied > ROWS / 2 && is_same_state(&random, &words));
    fl_image_draws_close(draws);
    fl_image_plan_close(plan);
}

static fl_image_op resized_crop(double least, double most)
{
    return (fl_image_op){.kind = FL_OP_RANDOM_RESIZED_CROP,
                         .size = {5, 6},
                         .scale = {0.9, 1},
                         .ratio = {least, most}};
}

/* Images of two sizes, whose crops may fail ten times. */
static void check_resized_crop(double least, double most, fl_image_size in)
{
    fl_image_op op = resized_crop(least, most);
    fl_image_config config = {
        .ops = &op, .count = 1, .channels = 1, .image_ops = fl_cpu_image_ops_find()};
    fl_image_plan *plan;
    CHECK_INT(fl_image_plan_open(&config, &plan, NULL), FL_OK);
    const float from = logf((float)least), to = logf((float)most);
    fl_image_draws *draws = open_draws(plan, false, from, to);
    fl_torch_random random, words;
    fl_torch_random_seed(&random, 6);
    words = random;
    for (int i = 0; i < 200; i++) {
        fl_image_params found;
        CHECK_INT(fl_image_draws_one(draws, &random, in, &plain_exp, &found, NULL), FL_OK);
        int64_t height = in.height, width = in.width, top = -1, left = -1;
        for (int t = 0; t < 10 && top < 0; t++) {
            double area =
                (double)(in.height * in.width) * fl_torch_random_uniform(&words, 0.9f, 1.0f, true);
            float ratio = expf(fl_torch_random_uniform(&words, from, to, true));
            width = (int64_t)rint(sqrt(area * ratio));
            height = (int64_t)rint(sqrt(area / ratio));
            if (width < 1 || width > in.width || height < 1 || height > in.height) continue;
            top = fl_torch_random_int(&words, 0, in.height - height + 1);
            left = fl_torch_random_int(&words, 0, in.width - width + 1);
        }
        if (top < 0) {
            double shape = (double)in.width / in.height;
            height = shape < least ? (int64_t)rint(in.width / least) : in.height;
            width = shape > most ? (int64_t)rint(in.height * most) : in.width;
            top = (in.height - height) / 2;
            left = (in.width - width) / 2;
        }
        CHECK_INT(found.size.height, height);
        CHECK_INT(found.size.width, width);
        CHECK_INT(found.top, top);
        CHECK_INT(found.left, left);
        CHECK(found.out.height == 5 && found.out.width == 6 && is_same_state(&random, &words));
    }
    fl_image_draws_close(draws);
    fl_image_plan_close(plan);
}

static void test_resized_crops(void)
{
    check_resized_crop(0.75, 4.0 / 3, (fl_image_size){20, 21});
    check_resized_crop(0.75, 4.0 / 3, (fl_image_size){4, 60});
    check_resized_crop(0.2, 0.3, (fl_image_size){20, 21});
    check_resized_crop(3, 4, (fl_image_size){20, 21});
}

/* torchvision cannot crop this rectangle. */
static void test_a_crop_of_no_pixels(void)
{
    fl_image_op op = resized_crop(9, 9);
    op.scale[0] = 1;
    fl_image_config config = {
        .ops = &op, .count = 1, .channels = 1, .image_ops = fl_cpu_image_ops_find()};
    fl_image_plan *plan;
    CHECK_INT(fl_image_plan_open(&config, &plan, NULL), FL_OK);
    fl_image_draws *draws = open_draws(plan, false, 2.2f, 2.2f);
    fl_torch_random random;
    fl_image_params found;
    fl_err err;
    fl_torch_random_seed(&random, 6);
    fl_image_size flat = {20, 4};
    CHECK_INT(fl_image_draws_one(draws, &random, flat, &plain_exp, &found, &err), FL_EINVAL);
    fl_image_draws_close(draws);
    fl_image_plan_close(plan);
}

/* If the last bit of exp() decides, torch is asked. Here that is so for each rectangle whose edges
 * are a whole number and a half. */
static void test_exp_is_asked_where_its_last_bit_decides(void)
{
    fl_image_op op = erase;
    op.p = 1;
    op.scale[0] = op.scale[1] = (double)(2.25f / IMAGE); /* an edge of 1.5 */
    fl_image_plan *plan = open_plan(&op, 1);
    fl_image_draws *draws = open_draws(plan, false, 0, 0);
    fl_torch_random random, before;
    fl_err err;
    fl_torch_random_seed(&random, 2);
    before = random;
    exp_calls = 0;
    CHECK_INT(fl_image_draws_make(draws, &random, ROWS, &failing_exp, &err), FL_EINVAL);
    CHECK(exp_calls == 1 && is_same_state(&random, &before));
    CHECK_INT(fl_image_draws_copy(draws, ROWS, NULL, &err), FL_EINVAL);
    CHECK_INT(fl_image_draws_make(draws, &random, ROWS, &plain_exp, &err), FL_OK);
    CHECK(exp_calls > 1 && !is_same_state(&random, &before));
    fl_image_draws_close(draws);
    fl_image_plan_close(plan);
}

static void check_refused(const fl_image_op *ops, int32_t count)
{
    fl_image_plan *plan = open_plan(ops, count);
    fl_image_draws *draws;
    CHECK_INT(fl_image_draws_open(plan, &(fl_draw_ways){0}, &draws, NULL), FL_EINVAL);
    CHECK(draws == NULL);
    fl_image_plan_close(plan);
}

static void test_operations_that_are_drawn_otherwise(void)
{
    const fl_image_op blur = {.kind = FL_OP_BLUR, .size = {3, 3}, .blur_sigma = {1, 1}};
    const fl_image_op flip = {.kind = FL_OP_HORIZONTAL_FLIP, .p = 0.5};
    const fl_image_op apply[] = {{.kind = FL_OP_APPLY, .p = 0.5, .span = 2}, flip, blur};
    check_refused((fl_image_op[]){flip, blur}, 2);
    check_refused(apply, 3);
}

/* ---- columns */

typedef struct fixture {
    uint8_t images[ROWS * IMAGE];
    fl_image_plan *plan;
    fl_image_draws *draws;
    fl_table *table;
} fixture;

static int open_fixture(fixture *fix)
{
    static const fl_image_op ops[] = {{.kind = FL_OP_RANDOM_CROP, .size = {CROP, CROP}},
                                      {.kind = FL_OP_HORIZONTAL_FLIP, .p = 0.5}};
    fl_image_config config = {.ops = ops,
                              .count = 2,
                              .channels = 1,
                              .in = {HEIGHT, WIDTH},
                              .image_ops = fl_cpu_image_ops_find()};
    fl_err err;
    *fix = (fixture){.plan = NULL};
    fill_random(&(uint64_t){3}, (char *)fix->images, sizeof fix->images);
    FL_TRY(fl_image_plan_open(&config, &fix->plan, &err));
    FL_TRY(fl_image_draws_open(fix->plan, &(fl_draw_ways){0}, &fix->draws, &err));
    column_spec spec = {.view = {.data = (const char *)fix->images,
                                 .dtype = {1, 8, 1},
                                 .ndim = 4,
                                 .shape = {ROWS, 1, HEIGHT, WIDTH},
                                 .stride = {IMAGE, IMAGE, WIDTH, 1}},
                        .plan = fix->plan,
                        .draws = fix->draws,
                        .dtype = {1, 8, 1}};
    return open_specs(&spec, 1, &fix->table, &err);
}

static void close_fixture(fixture *fix)
{
    fl_table_close(fix->table);
    fl_image_draws_close(fix->draws);
    fl_image_plan_close(fix->plan);
}

typedef struct part {
    const fl_table *table;
    const fl_layout *layout;
    const fl_rows *rows;
    int32_t number, parts;
    char *out;
} part;

static void *gather(void *arg)
{
    const part *p = arg;
    CHECK_INT(fl_table_gather(p->table, p->rows, 0, p->layout, p->number, p->parts, p->out, NULL),
              FL_OK);
    return NULL;
}

/* Gathers in threads while the next batch is drawn and laid out. */
static void test_rows_have_the_parameters_of_their_batch(void)
{
    enum { PARTS = 4 };
    static fixture fix;
    fl_image_params expected[2 * ROWS], next[2 * ROWS];
    static uint8_t out[ROWS * CROP * CROP], row[CROP * CROP];
    fl_torch_random random;
    fl_rows rows = {.count = ROWS, .is_range = true};
    fl_layout layout = {0}, other = {0};
    CHECK_INT(open_fixture(&fix), FL_OK);
    fl_torch_random_seed(&random, 4);
    draw_rows(fix.draws, &random, expected);
    CHECK_INT(fl_table_layout(fix.table, &rows, 0, &layout, NULL), FL_OK);
    CHECK_INT(fl_table_layout(fix.table, &rows, 0, &layout, NULL), FL_OK); /* once more */
    pthread_t threads[PARTS];
    part parts[PARTS];
    for (int32_t i = 0; i < PARTS; i++) {
        parts[i] = (part){fix.table, &layout, &rows, i, PARTS, (char *)out};
        CHECK(pthread_create(&threads[i], NULL, gather, &parts[i]) == 0);
    }
    draw_rows(fix.draws, &random, next);
    CHECK_INT(fl_table_layout(fix.table, &rows, 0, &other, NULL), FL_OK);
    for (int32_t i = 0; i < PARTS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int64_t i = 0; i < ROWS; i++) {
        fl_image_source image = {.data = fix.images + i * IMAGE,
                                 .stride_y = WIDTH,
                                 .stride_x = 1,
                                 .size = {HEIGHT, WIDTH}};
        CHECK_INT(fl_image_plan_apply(fix.plan, &expected[2 * i], &image, row, NULL), FL_OK);
        CHECK(memcmp(row, out + i * CROP * CROP, sizeof row) == 0);
    }
    CHECK(memcmp(expected, next, sizeof next) != 0);
    fl_layout_close(&layout);
    fl_layout_close(&other);
    close_fixture(&fix);
}

static void test_a_batch_without_draws_is_refused(void)
{
    static fixture fix;
    fl_torch_random random;
    fl_rows rows = {.count = 3, .is_range = true};
    fl_layout layout = {0};
    fl_err err;
    CHECK_INT(open_fixture(&fix), FL_OK);
    CHECK_INT(fl_table_layout(fix.table, &rows, 0, &layout, &err), FL_EINVAL);
    fl_torch_random_seed(&random, 4);
    CHECK_INT(fl_image_draws_make(fix.draws, &random, 4, &plain_exp, &err), FL_OK);
    CHECK_INT(fl_table_layout(fix.table, &rows, 0, &layout, &err), FL_EINVAL);
    CHECK_INT(fl_image_draws_make(fix.draws, &random, -1, &plain_exp, &err), FL_EINVAL);
    fl_layout_close(&layout);
    close_fixture(&fix);
}

static int use_everything(void *arg)
{
    static fixture fix;
    fl_torch_random random;
    fl_rows rows = {.count = ROWS, .is_range = true};
    fl_layout layout = {0};
    (void)arg;
    fl_torch_random_seed(&random, 4);
    int status = open_fixture(&fix);
    if (status == FL_OK) status = fl_image_draws_make(fix.draws, &random, ROWS, &plain_exp, NULL);
    if (status == FL_OK) status = fl_table_layout(fix.table, &rows, 0, &layout, NULL);
    fl_layout_close(&layout);
    close_fixture(&fix);
    return status;
}

static void test_every_refused_resource(void) { CHECK(refuse_each(use_everything, NULL) > 5); }

int main(void)
{
    start_tests();
    RUN(test_crops);
    RUN(test_flips_within_apply);
    RUN(test_operations_that_are_not_reached);
    RUN(test_rectangles);
    RUN(test_resized_crops);
    RUN(test_a_crop_of_no_pixels);
    RUN(test_exp_is_asked_where_its_last_bit_decides);
    RUN(test_operations_that_are_drawn_otherwise);
    RUN(test_rows_have_the_parameters_of_their_batch);
    RUN(test_a_batch_without_draws_is_refused);
    RUN(test_every_refused_resource);
    return 0;
}
