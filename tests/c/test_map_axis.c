/* Tests of fl_map_axis: entries that are followed back are those that segments give forward, for
 * random operations that move pixels. */
#include "check.h"
#include "fl_image_axis.h"
#include "fl_map_axis.h"
#include "fl_op.h"

#include <string.h>

enum { ROUNDS = 5000, MOST_OPS = 6, MOST_EDGE = 40, ROOM = 1000 };

typedef struct moves {
    fl_image_op ops[MOST_OPS];
    fl_image_params params[MOST_OPS];
    int32_t count, in;
    fl_image_axis rows; /* after the operations */
} moves;

static void pad(moves *m, int32_t i, uint64_t *seed)
{
    const fl_padding_mode mode = (fl_padding_mode)random_below(seed, FL_PADDING_MODES);
    const int32_t most = mode == FL_PAD_REFLECT ? m->rows.length - 1 : m->rows.length;
    const int32_t before = (int32_t)random_below(seed, (int64_t)(most < 9 ? most : 9) + 1);
    const int32_t after = (int32_t)random_below(seed, (int64_t)(most < 9 ? most : 9) + 1);
    if (fl_image_axis_padded_count(m->rows.count, mode) > FL_MAX_SEGMENTS) return;
    m->ops[i].padding_mode = mode;
    m->params[i].padding[1] = before;
    m->params[i].padding[3] = after;
    fl_image_axis_pad(&m->rows, before, after, mode, i);
}

static void crop(moves *m, int32_t i, uint64_t *seed)
{
    const int32_t length = 1 + (int32_t)random_below(seed, m->rows.length);
    const int32_t top = (int32_t)random_below(seed, (m->rows.length - length) + 1);
    m->params[i].top = top;
    m->params[i].size = (fl_image_size){length, 1};
    fl_image_axis_crop(&m->rows, top, length);
}

static void add_op(moves *m, int32_t i, uint64_t *seed)
{
    static const fl_image_op_kind kinds[] = {FL_OP_PAD, FL_OP_RANDOM_CROP, FL_OP_CENTER_CROP,
                                             FL_OP_VERTICAL_FLIP, FL_OP_HORIZONTAL_FLIP};
    const fl_image_op_kind kind = kinds[random_below(seed, 5)];
    m->ops[i] = (fl_image_op){.kind = kind};
    m->params[i] = (fl_image_params){.is_applied = random_below(seed, 2) == 0};
    if (kind == FL_OP_VERTICAL_FLIP && m->params[i].is_applied) fl_image_axis_flip(&m->rows);
    if (kind <= FL_OP_RANDOM_CROP) pad(m, i, seed);
    if (kind == FL_OP_RANDOM_CROP || kind == FL_OP_CENTER_CROP) crop(m, i, seed);
    m->params[i].out = (fl_image_size){m->rows.length, 1};
}

static void make_moves(moves *m, uint64_t *seed)
{
    m->in = 1 + (int32_t)random_below(seed, MOST_EDGE);
    m->count = (int32_t)random_below(seed, MOST_OPS + 1);
    fl_image_axis_start(&m->rows, m->in);
    for (int32_t i = 0; i < m->count; i++) add_op(m, i, seed);
}

static void check_entries(const moves *m, const int32_t *map)
{
    for (int32_t n = 0; n < m->rows.count; n++) {
        const fl_segment *s = &m->rows.segment[n];
        for (int32_t i = 0; i < s->length; i++, map++)
            CHECK_INT(*map, s->fill == FL_NO_FILL ? s->from + i * s->step : -1 - s->fill);
    }
    CHECK_INT(*map, -77);
}

static void test_entries_are_those_of_segments(void)
{
    uint64_t seed = 11;
    for (int round = 0; round < ROUNDS; round++) {
        moves m;
        int32_t map[ROOM];
        make_moves(&m, &seed);
        CHECK(m.rows.length < ROOM);
        const fl_map_ops ops = {m.ops, m.params, 0, m.count, {m.in, 1}};
        map[m.rows.length] = -77;
        fl_map_axis(&ops, FL_MAP_ROWS, 0, m.rows.length, map);
        check_entries(&m, map);
    }
}

int main(void)
{
    RUN(test_entries_are_those_of_segments);
    return 0;
}
