/* Tests of fl_image_host_part: a plan's results are what its tables make of the bytes of its host's
 * part.
 */
#include "image_fixture.h"

#include "fl_image_host_part.h"

enum { PLANS = 1500, LONGEST = 30, MOST_OPS = 8 };

typedef struct part_case {
    fl_image_config config;
    fl_image_op ops[MOST_OPS];
    _Alignas(64) char tables[FL_MAX_CHANNELS * 256 * 4];
} part_case;

static int64_t element_bytes(const part_case *k) { return type_bytes(k->config.type); }

/* Adds an operation whose fill is the cast of some byte, perhaps not of the byte that the operation
 * names. */
static void add_op(uint64_t *seed, part_case *k, fl_image_op op)
{
    for (int32_t c = 0; c < k->config.channels; c++) {
        int64_t value = random_below(seed, 256);
        op.fill[c] = (uint8_t)(random_below(seed, 4) > 0 ? value : random_below(seed, 256));
        memcpy(op.out_fill + c * element_bytes(k), k->tables + (c * 256 + value) * element_bytes(k),
               (size_t)element_bytes(k));
    }
    k->ops[k->config.count++] = op;
}

/* Elements that are filled before a resize are bytes, and become what the tables say. */
static void fill_resized(part_case *k)
{
    int32_t last = k->config.count - 1;
    while (last >= 0 && k->ops[last].kind != FL_OP_RESIZE) last--;
    for (int32_t i = 0; i < last; i++)
        for (int32_t c = 0; c < k->config.channels; c++)
            memcpy(k->ops[i].out_fill + c * element_bytes(k),
                   k->tables + (c * 256 + k->ops[i].fill[c]) * element_bytes(k),
                   (size_t)element_bytes(k));
}

static fl_image_size random_size(uint64_t *seed)
{
    return (fl_image_size){1 + (int32_t)random_below(seed, LONGEST),
                           1 + (int32_t)random_below(seed, LONGEST)};
}

static fl_image_type random_type(uint64_t *seed)
{
    static const fl_image_type types[] = {FL_IMAGE_F16, FL_IMAGE_BF16, FL_IMAGE_F32};
    return types[random_below(seed, 3)];
}

static void make_case(uint64_t *seed, part_case *k)
{
    memset(k, 0, sizeof *k);
    k->config = (fl_image_config){.ops = k->ops,
                                  .channels = 1 + (int32_t)random_below(seed, FL_MAX_CHANNELS),
                                  .in = random_size(seed),
                                  .type = random_type(seed),
                                  .layout = (fl_image_layout)random_below(seed, FL_IMAGE_LAYOUTS),
                                  .tables = k->tables,
                                  .seed = next_random(seed),
                                  .image_ops = fl_cpu_image_ops_find()};
    fill_random(seed, k->tables, sizeof k->tables);
    const fl_image_op ops[MOST_OPS] = {
        {.kind = FL_OP_RANDOM_RESIZED_CROP,
         .interpolation = FL_BILINEAR,
         .scale = {0.2, 1},
         .ratio = {0.7, 1.4},
         .size = random_size(seed)},
        {.kind = FL_OP_PAD,
         .padding = {1, 2, 3, 0},
         .padding_mode = random_below(seed, 2) ? FL_PAD_CONSTANT : FL_PAD_EDGE},
        {.kind = FL_OP_RANDOM_CROP,
         .padding = {4, 4, 4, 4},
         .pad_if_needed = true,
         .size = random_size(seed)},
        {.kind = FL_OP_CENTER_CROP, .size = random_size(seed)},
        {.kind = FL_OP_HORIZONTAL_FLIP, .p = 0.5},
        {.kind = FL_OP_VERTICAL_FLIP, .p = 0.5},
        {.kind = FL_OP_RESIZE, .interpolation = FL_BICUBIC, .size = random_size(seed)},
        {.kind = FL_OP_ERASE, .p = 0.7, .scale = {0.1, 0.5}, .ratio = {0.5, 2}},
    };
    for (int i = 0; i < MOST_OPS; i++)
        if (random_below(seed, 2)) add_op(seed, k, ops[i]);
    fill_resized(k);
}

static void check_sample(const part_case *k, const fl_image_plan *plan, const fl_image_plan *part,
                         uint64_t *seed)
{
    char *memory;
    fl_image_source source = make_source(seed, (lying)random_below(seed, WAYS_TO_LIE), k->config.in,
                                         k->config.channels, &memory);
    fl_sample_key key = {.seed = k->config.seed, .index = (int64_t)random_below(seed, 1000)};
    fl_image_params params[MOST_OPS], same[MOST_OPS];
    memset(params, 0, sizeof params);
    memset(same, 0, sizeof same);
    CHECK_INT(fl_image_plan_draw(plan, &key, source.size, params, NULL), FL_OK);
    CHECK_INT(fl_image_plan_draw(part, &key, source.size, same, NULL), FL_OK);
    CHECK(memcmp(params, same, sizeof params) == 0);
    int64_t count = fl_image_plan_out_bytes(part), width = element_bytes(k);
    CHECK_INT(fl_image_plan_out_bytes(plan), count * width);
    char *out = malloc((size_t)(count * width));
    uint8_t *bytes = malloc((size_t)count);
    CHECK(out != NULL && bytes != NULL);
    CHECK_INT(fl_image_plan_apply(plan, params, &source, out, NULL), FL_OK);
    CHECK_INT(fl_image_plan_apply(part, params, &source, bytes, NULL), FL_OK);
    int64_t channels = k->config.channels;
    int64_t plane = k->config.layout == FL_HWC ? 1 : count / channels;
    for (int64_t i = 0; i < count; i++)
        CHECK(memcmp(out + i * width, k->tables + (i / plane % channels * 256 + bytes[i]) * width,
                     (size_t)width) == 0);
    free(out);
    free(bytes);
    free(memory);
}

static void test_the_tables_make_the_results_of_the_bytes(void)
{
    uint64_t seed = 1;
    int32_t ops = 0;
    for (int n = 0; n < PLANS; n++) {
        part_case k;
        fl_image_plan *plan, *part;
        fl_err err;
        make_case(&seed, &k);
        if (fl_image_plan_open(&k.config, &plan, &err) != FL_OK) continue; /* does not fit */
        CHECK_INT(fl_image_host_part_open(&k.config, &part, &err), FL_OK);
        CHECK_INT(fl_image_plan_count(part), k.config.count);
        for (int i = 0; i < 3; i++) check_sample(&k, plan, part, &seed);
        ops += k.config.count;
        fl_image_plan_close(plan);
        fl_image_plan_close(part);
    }
    CHECK(ops > PLANS);
}

/* Tables that make 1 + v of byte v, so nothing becomes 0. */
static void make_case_without_0(part_case *k, fl_image_op op)
{
    memset(k, 0, sizeof *k);
    k->config = (fl_image_config){.ops = k->ops,
                                  .count = 1,
                                  .channels = 3,
                                  .in = {8, 8},
                                  .type = FL_IMAGE_F32,
                                  .tables = k->tables,
                                  .image_ops = fl_cpu_image_ops_find()};
    for (int i = 0; i < 3 * 256; i++) {
        float element = 1 + (float)(i % 256);
        memcpy(k->tables + 4 * i, &element, 4);
    }
    k->ops[0] = op;
}

static void test_fills_that_no_byte_becomes(void)
{
    static const struct {
        fl_image_op op;
        const char *name; /* NULL: the operation fills nothing */
    } cases[] = {
        {{.kind = FL_OP_PAD, .padding = {0, 1, 0, 0}}, "Pad fills channel 0"},
        {{.kind = FL_OP_PAD}, NULL},
        {{.kind = FL_OP_PAD, .padding = {1, 1, 1, 1}, .padding_mode = FL_PAD_REFLECT}, NULL},
        {{.kind = FL_OP_RANDOM_CROP, .size = {5, 5}}, NULL},
        {{.kind = FL_OP_RANDOM_CROP, .size = {5, 5}, .padding = {0, 0, 0, 1}}, "RandomCrop fills"},
        {{.kind = FL_OP_RANDOM_CROP, .size = {9, 5}, .pad_if_needed = true}, "RandomCrop fills"},
        {{.kind = FL_OP_RANDOM_CROP,
          .size = {9, 5},
          .pad_if_needed = true,
          .padding_mode = FL_PAD_EDGE},
         NULL},
        {{.kind = FL_OP_RANDOM_CROP, .size = {5, 5}, .pad_if_needed = true}, NULL},
        {{.kind = FL_OP_CENTER_CROP, .size = {9, 9}}, "CenterCrop fills"},
        {{.kind = FL_OP_CENTER_CROP, .size = {8, 9}}, "CenterCrop fills"},
        {{.kind = FL_OP_CENTER_CROP, .size = {9, 8}}, "CenterCrop fills"},
        {{.kind = FL_OP_CENTER_CROP, .size = {8, 8}}, NULL},
        {{.kind = FL_OP_ERASE, .p = 0.1, .scale = {0.1, 0.2}, .ratio = {1, 1}},
         "RandomErasing fills"},
        {{.kind = FL_OP_ERASE, .scale = {0.1, 0.2}, .ratio = {1, 1}}, NULL},
        {{.kind = FL_OP_HORIZONTAL_FLIP, .p = 1}, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        part_case k;
        fl_image_plan *part;
        fl_err err = {0};
        make_case_without_0(&k, cases[i].op);
        CHECK_INT(fl_image_host_part_open(&k.config, &part, &err),
                  cases[i].name == NULL ? FL_OK : FL_EINVAL);
        CHECK((part != NULL) == (cases[i].name == NULL));
        if (cases[i].name != NULL) CHECK(strstr(err.text, cases[i].name) != NULL);
        fl_image_plan_close(part);
        for (int c = 0; c < 3; c++) memcpy(k.ops[0].out_fill + 4 * c, &(float){200}, 4);
        CHECK_INT(fl_image_host_part_open(&k.config, &part, &err), FL_OK);
        fl_image_plan_close(part);
    }
}

static void test_crops_of_images_of_any_size(void)
{
    part_case k;
    fl_image_plan *part;
    make_case_without_0(&k, (fl_image_op){.kind = FL_OP_CENTER_CROP, .size = {5, 5}});
    k.config.in = (fl_image_size){0};
    CHECK_INT(fl_image_host_part_open(&k.config, &part, NULL), FL_EINVAL);
    k.ops[1] = k.ops[0];
    k.ops[0] = (fl_image_op){.kind = FL_OP_RESIZE, .size = {6, 5}};
    k.config.count = 2;
    CHECK_INT(fl_image_host_part_open(&k.config, &part, NULL), FL_OK);
    fl_image_plan_close(part);
    k.ops[0].size.height = 4;
    CHECK_INT(fl_image_host_part_open(&k.config, &part, NULL), FL_EINVAL);
    CHECK(part == NULL);
}

static void test_what_is_not_cut(void)
{
    part_case k;
    fl_image_plan *part;
    fl_err err = {0};
    make_case_without_0(&k, (fl_image_op){.kind = FL_OP_RESIZE, .size = {20000, 20000}});
    CHECK_INT(fl_image_host_part_open(&k.config, &part, &err), FL_EINVAL);
    CHECK(part == NULL && strstr(err.text, "1200000000 elements") != NULL);
    k.config.type = FL_IMAGE_U8;
    k.config.tables = NULL;
    CHECK_INT(fl_image_host_part_open(&k.config, &part, &err), FL_EINVAL);
    CHECK(part == NULL && strstr(err.text, "bytes") != NULL);
    make_case_without_0(&k, (fl_image_op){.kind = FL_OP_CENTER_CROP});
    for (int c = 0; c < 3; c++) memcpy(k.ops[0].out_fill + 4 * c, &(float){200}, 4);
    CHECK_INT(fl_image_host_part_open(&k.config, &part, &err), FL_EINVAL); /* of no plan at all */
    CHECK(part == NULL);
}

static int open_and_close(void *arg)
{
    part_case *k = arg;
    fl_image_plan *part;
    FL_TRY(fl_image_host_part_open(&k->config, &part, NULL));
    fl_image_plan_close(part);
    return FL_OK;
}

static void test_every_refused_resource(void)
{
    part_case k;
    make_case_without_0(&k, (fl_image_op){.kind = FL_OP_RESIZE, .size = {5, 5}});
    CHECK(refuse_each(open_and_close, &k) >= 1);
}

int main(void)
{
    start_tests();
    RUN(test_the_tables_make_the_results_of_the_bytes);
    RUN(test_fills_that_no_byte_becomes);
    RUN(test_crops_of_images_of_any_size);
    RUN(test_what_is_not_cut);
    RUN(test_every_refused_resource);
    return 0;
}
