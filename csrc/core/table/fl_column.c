/* fl_column: see fl_column.h. */
#include "fl_column.h"

int fl_column_copy_rows(const fl_column *column, const fl_row_runs *runs, const fl_row_ops *row_ops,
                        const fl_column_batch *batch, int64_t from, int64_t to, char *dst,
                        fl_err *err)
{
    dst += from * runs->row_bytes;
    if (!column->is_volatile) {
        bool is_large = batch->outputs->bytes >= FL_LAYOUT_SMALL_BYTES;
        fl_row_runs_copy(runs, row_ops, batch->rows, from, to, dst, is_large);
        return FL_OK;
    }
    int64_t done = fl_row_runs_read(runs, batch->rows, from, to, dst);
    if (done < 0) return fl_fail(err, FL_ENOMEM, "out of memory for reads of a mapped file");
    if (done == (to - from) * runs->row_bytes) return FL_OK;
    return fl_column_fail_row(err, batch, fl_row_at(batch->rows, from + done / runs->row_bytes));
}

int fl_column_fail_row(fl_err *err, const fl_column_batch *batch, int64_t row)
{
    if (err != NULL) *err = (fl_err){.code = FL_ESOURCE, .field = batch->field, .value = row};
    return FL_ESOURCE;
}

int fl_column_name_row(fl_err *err, int status, const fl_column_batch *batch, int64_t row)
{
    if (err == NULL || status == FL_OK || status == FL_ESOURCE) return status;
    fl_err cause = *err;
    return fl_fail(err, status, "field %d, row %lld: %s", batch->field, (long long)row, cause.text);
}

int fl_column_name_field(fl_err *err, int status, int32_t field)
{
    if (err == NULL || status == FL_OK) return status;
    fl_err cause = *err;
    return fl_fail(err, status, "field %d %s", field, cause.text);
}
