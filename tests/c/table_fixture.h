/* table_fixture: what the tests of tables share: columns from descriptions, and a gather of a whole
 * layout. */
#ifndef TABLE_FIXTURE_H
#define TABLE_FIXTURE_H

#include "check.h"

#include "fl_column_image.h"
#include "fl_column_rows.h"
#include "fl_cpu_rows.h"
#include "fl_table.h"

/* A column in a test's words: rows that are copied or, with a plan, images. */
typedef struct column_spec {
    fl_tensor view;
    bool is_volatile;
    const fl_image_plan *plan;
    const fl_image_draws *draws; /* with a plan, or NULL */
    fl_image_layout layout;
    fl_dtype dtype; /* with a plan: of a result, contiguous and CHW */
} column_spec;

static inline int open_column(const column_spec *spec, fl_column **out, fl_err *err)
{
    if (spec->plan == NULL)
        return fl_column_rows_open(&spec->view, spec->is_volatile, &fl_cpu_row_ops, out, err);
    fl_image_size size = fl_image_plan_out(spec->plan);
    fl_column_image_config config = {
        .view = spec->view,
        .layout = spec->layout,
        .is_volatile = spec->is_volatile,
        .plan = spec->plan,
        .draws = spec->draws,
        .dtype = spec->dtype,
        .shape = {fl_image_plan_out_channels(spec->plan), size.height, size.width}};
    fl_tensor_strides(3, config.shape, config.stride);
    return fl_column_image_open(&config, out, err);
}

/* Opens a table as its users do: errors of a column name the column, and a failure leaves
 * nothing. */
static inline int open_specs(const column_spec *specs, int32_t count, fl_table **out, fl_err *err)
{
    fl_column *columns[8] = {NULL};
    int status = FL_OK;
    *out = NULL;
    for (int32_t f = 0; status == FL_OK && f < count; f++)
        status = fl_column_name_field(err, open_column(&specs[f], &columns[f], err), f);
    if (status == FL_OK) status = fl_table_open(columns, count, out, err);
    for (int32_t f = 0; status != FL_OK && f < count; f++) fl_column_close(columns[f]);
    return status;
}

/* Returns the layout of a batch of epoch 0, which must be possible. The caller closes the
 * layout. */
static inline fl_layout layout_of(const fl_table *table, const fl_rows *rows)
{
    fl_layout layout = {0};
    CHECK_INT(fl_table_layout(table, rows, 0, &layout, NULL), FL_OK);
    return layout;
}

/* Lays out and gathers one part. */
static inline int gather_part(const fl_table *table, const fl_rows *rows, uint32_t epoch,
                              int32_t part, int32_t parts, char *block, fl_err *err)
{
    fl_layout layout = {0};
    int status = fl_table_layout(table, rows, epoch, &layout, err);
    if (status == FL_OK)
        status = fl_table_gather(table, rows, epoch, &layout, part, parts, block, err);
    fl_layout_close(&layout);
    return status;
}

#endif
