/* grad_model.h: tensors side by side in memory, as a list for the passes, and what they must
 * become.
 */
#ifndef GRAD_MODEL_H
#define GRAD_MODEL_H

#include "grad_fixture.h"

enum { GAP = 24 };

/* Tensors side by side, with gaps that must not change, and a copy of the whole memory. */
typedef struct model {
    char *memory, *copy; /* owned */
    int64_t bytes;
    fl_tensor_list list;
} model;

typedef struct shape {
    int64_t count;
    int32_t type;
    int64_t shift; /* elements between a multiple of 16 and its first */
} shape;

/* Returns where the next tensor begins, if the last tensor ended at `end`. */
static inline int64_t place_after(int64_t end, const shape *next)
{
    return (end + GAP + 15) / 16 * 16 + next->shift * fl_float_bytes(next->type);
}

static inline void keep(model *m) { memcpy(m->copy, m->memory, (size_t)m->bytes); }

static inline model make_model(const shape *shapes, int64_t count, int mix, uint64_t seed)
{
    model m = {0};
    int64_t end = 0;
    for (int64_t i = 0; i < count; i++)
        end = place_after(end, &shapes[i]) + shapes[i].count * fl_float_bytes(shapes[i].type);
    m.bytes = end + GAP;
    m.memory = fl_alloc(m.bytes);
    m.copy = fl_alloc(m.bytes);
    CHECK(m.memory != NULL && m.copy != NULL);
    memset(m.memory, 0xA5, (size_t)m.bytes);
    fl_tensor_list_begin(&m.list);
    end = 0;
    for (int64_t i = 0; i < count; i++) {
        char *at = m.memory + place_after(end, &shapes[i]);
        fill_elements(shapes[i].type, at, shapes[i].count, mix, &seed);
        CHECK_INT(fl_tensor_list_add(&m.list, at, shapes[i].count, shapes[i].type, NULL), FL_OK);
        end = at - m.memory + shapes[i].count * fl_float_bytes(shapes[i].type);
    }
    CHECK_INT(fl_tensor_list_end(&m.list, NULL), FL_OK);
    keep(&m);
    return m;
}

static inline void free_model(model *m)
{
    fl_tensor_list_close(&m->list);
    fl_free(m->memory);
    fl_free(m->copy);
}

/* Returns the address of a span in the copy. */
static inline char *copy_of(const model *m, const fl_span *span)
{
    return m->copy + (span->data - m->memory);
}

/* Checks that the tensors equal the copy; any NaN equals any NaN. */
static inline void check_model(const model *m)
{
    char *end = m->memory;
    for (int64_t i = 0; i < m->list.count; i++) {
        const fl_span *span = &m->list.spans[i];
        CHECK(memcmp(end, copy_of(m, span) - (span->data - end), (size_t)(span->data - end)) == 0);
        check_elements(span->type, span->data, copy_of(m, span), span->count);
        end = span->data + span->count * fl_float_bytes(span->type);
    }
    int64_t rest = m->memory + m->bytes - end;
    CHECK(memcmp(end, m->copy + m->bytes - rest, (size_t)rest) == 0);
}

/* The norm of the copy: a sum for each chunk, added in order. */
static inline double ref_model_norm(const model *m, int32_t norm_type, bool *is_finite)
{
    double joined = 0;
    *is_finite = true;
    for (int64_t i = 0; i < m->list.count; i++) {
        const fl_span *span = &m->list.spans[i];
        for (int64_t first = 0; first < span->count; first += FL_CHUNK) {
            bool is_chunk_finite;
            const char *data = copy_of(m, span) + first * fl_float_bytes(span->type);
            double sum = ref_norm(norm_type, span->type, data,
                                  fl_min(FL_CHUNK, span->count - first), &is_chunk_finite);
            if (!is_chunk_finite) *is_finite = false;
            if (norm_type != FL_NORM_MAX)
                joined += sum;
            else if (!(sum <= joined) && !isnan(joined))
                joined = sum;
        }
    }
    return norm_type == FL_NORM_2 ? sqrt(joined) : joined;
}

static inline void ref_model_scale(model *m, double factor)
{
    for (int64_t i = 0; i < m->list.count; i++) {
        const fl_span *span = &m->list.spans[i];
        ref_scale(span->type, copy_of(m, span), span->count, factor);
    }
}

/* Around the borders of chunks. */
static const shape border_shapes[] = {
    {FL_CHUNK - 1, FL_F32, 0},
    {1, FL_F64, 0},
    {FL_CHUNK, FL_F16, 0},
    {FL_CHUNK + 1, FL_BF16, 0},
    {0, FL_F32, 0},
    {8 * FL_CHUNK - 1, FL_F32, 0}, /* eight: a grain */
    {8 * FL_CHUNK, FL_BF16, 0},
    {2 * FL_CHUNK + 1, FL_F64, 0},
    {FL_CHUNK / 2, FL_F16, 0},
    {3, FL_F32, 0},
};
enum { BORDER_SHAPES = sizeof border_shapes / sizeof *border_shapes };

#endif
