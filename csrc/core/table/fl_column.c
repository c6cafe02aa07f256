/* fl_column: see fl_column.h. */
#include "fl_column.h"

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
