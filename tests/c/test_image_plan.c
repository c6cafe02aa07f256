/* Tests of fl_image_plan: whole plans, drawn at random, against a reference that moves pixels one
 * by one. */
#include "image_fixture.h"

enum { PLANS = 6000, GUARD = 64, GUARD_BYTE = 0x5C, MOST_OPS = 6, LONGEST = 40 };

/* A configuration with what it points to. */
typedef struct plan_case {
    fl_image_config config;
    fl_image_op ops[FL_MAX_IMAGE_OPS];
    _Alignas(64) char tables[FL_MAX_CHANNELS * 256 * 4];
    float linear[3 * FL_MAX_CHANNELS];
} plan_case;

static void fill_op(uint64_t *seed, fl_image_op *op)
{
    fill_random(seed, (char *)op->fill, sizeof op->fill);
    fill_random(seed, (char *)op->out_fill, sizeof op->out_fill);
}

static int32_t length(uint64_t *seed)
{
    return 1 + (int32_t)random_below(seed, random_below(seed, 4) == 0 ? 3 : LONGEST);
}

static fl_image_op make_op(uint64_t *seed, fl_image_op_kind kind)
{
    fl_image_op op = {.kind = kind};
    fill_op(seed, &op);
    bool has_padding = kind == FL_OP_PAD || kind == FL_OP_RANDOM_CROP;
    bool has_size = kind == FL_OP_CENTER_CROP || kind == FL_OP_RANDOM_CROP ||
                    kind == FL_OP_RESIZE || kind == FL_OP_RANDOM_RESIZED_CROP;
    if (has_size) op.size = (fl_image_size){length(seed), length(seed)};
    if (kind == FL_OP_RESIZE && random_below(seed, 3) == 0) {
        op.size.width = 0;
        if (random_below(seed, 2)) op.max_size = op.size.height + length(seed);
    }
    op.interpolation = (fl_interpolation)(has_size ? random_below(seed, FL_INTERPOLATIONS) : 0);
    if (has_padding) {
        op.padding_mode = (fl_padding_mode)random_below(seed, FL_PADDING_MODES);
        for (int i = 0; i < 4; i++) op.padding[i] = (int32_t)random_below(seed, 6);
        op.pad_if_needed = random_below(seed, 2);
    }
    op.p = (double)random_below(seed, 4) / 3;
    op.scale[0] = 0.1, op.scale[1] = 1, op.ratio[0] = 0.5, op.ratio[1] = 2.5;
    return op;
}

static void make_case(uint64_t *seed, plan_case *p)
{
    memset(p, 0, sizeof *p);
    int32_t channels[] = {1, 2, 3, 3, 4};
    p->config = (fl_image_config){.ops = p->ops,
                                  .count = (int32_t)random_below(seed, MOST_OPS + 1),
                                  .channels = channels[random_below(seed, 5)],
                                  .in = {length(seed), length(seed)},
                                  .type = (fl_image_type)random_below(seed, FL_IMAGE_TYPES),
                                  .layout = (fl_image_layout)random_below(seed, FL_IMAGE_LAYOUTS),
                                  .seed = next_random(seed)};
    for (int32_t i = 0; i < p->config.count; i++) {
        p->ops[i] = make_op(seed, (fl_image_op_kind)random_below(seed, FL_OP_KINDS));
        for (int32_t k = 0; k < i; k++)
            if (p->ops[k].kind == p->ops[i].kind) p->ops[i].occurrence++;
    }
    fill_random(seed, p->tables, sizeof p->tables);
    if (p->config.type != FL_IMAGE_U8) p->config.tables = p->tables;
}

/* Applies a plan to an image; the caller frees the output, which is checked for guards. */
static char *apply_plan(const plan_case *p, const fl_image_plan *plan,
                        const fl_image_params *params, const fl_image_source *source)
{
    (void)p;
    int64_t bytes = fl_image_plan_out_bytes(plan);
    char *room = malloc((size_t)bytes + 2 * GUARD), *out = malloc((size_t)bytes);
    CHECK(room != NULL && out != NULL);
    memset(room, GUARD_BYTE, (size_t)bytes + 2 * GUARD);
    fl_err err;
    CHECK_INT(fl_image_plan_apply(plan, params, source, room + GUARD, &err), FL_OK);
    for (int i = 0; i < GUARD; i++)
        CHECK(room[i] == GUARD_BYTE && room[GUARD + bytes + i] == GUARD_BYTE);
    memcpy(out, room + GUARD, (size_t)bytes);
    free(room);
    return out;
}

static void check_plan(uint64_t *seed, plan_case *p, const fl_image_ops *table)
{
    p->config.image_ops = table;
    fl_err err = {0};
    fl_image_plan *plan;
    int status = fl_image_plan_open(&p->config, &plan, &err);
    if (status != FL_OK) {
        CHECK(status == FL_EINVAL && plan == NULL && err.text[0] != 0);
        return;
    }
    fl_image_params params[FL_MAX_IMAGE_OPS];
    for (int n = 0; n < 3; n++) {
        char *memory;
        fl_image_source source = make_source(seed, (lying)random_below(seed, WAYS_TO_LIE),
                                             p->config.in, p->config.channels, &memory);
        fl_sample_key key = {p->config.seed, n, 7, 0};
        CHECK_INT(fl_image_plan_draw(plan, &key, source.size, params, &err), FL_OK);
        char *out = apply_plan(p, plan, params, &source);
        char *expected = expected_output(&p->config, params, &source);
        CHECK(memcmp(out, expected, (size_t)fl_image_plan_out_bytes(plan)) == 0);
        free(out);
        free(expected);
        free(memory);
    }
    fl_image_plan_close(plan);
}

static void test_random_plans_equal_the_reference(void)
{
    const fl_image_ops *tables[MAX_TABLES];
    int count = find_tables(tables), opened = 0;
    uint64_t seed = 1;
    for (int n = 0; n < PLANS; n++) {
        plan_case p;
        make_case(&seed, &p);
        fl_image_plan *plan;
        p.config.image_ops = tables[0];
        opened += fl_image_plan_open(&p.config, &plan, NULL) == FL_OK;
        fl_image_plan_close(plan);
        for (int t = 0; t < count; t++) check_plan(&seed, &p, tables[t]);
    }
    CHECK(opened > PLANS / 3); /* the others have an error that other tests look at */
}

int main(void)
{
    start_tests();
    RUN(test_random_plans_equal_the_reference);
    return 0;
}
