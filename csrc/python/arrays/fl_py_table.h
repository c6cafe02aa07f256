/* fl_py_table: the heap type _core.Table, a core table over tensors and arrays of the user's.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_TABLE_H
#define FL_PY_TABLE_H

#include "fl_py_dlpack.h"
#include "fl_py_error.h"
#include "fl_table.h"
#include "fl_transfer_ops.h"

typedef struct fl_py_table {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    PyObject *sources;   /* owned: tuple of tensors and ndarrays, alive while views are */
    PyObject *plans;     /* owned: tuple of ImagePlan or None, alive as sources are; or None */
    bool has_plans;      /* one is an ImagePlan */
    bool is_cut;         /* batches hold what cut plans make: it is cast where they go */
    fl_py_fields fields; /* owned */
    fl_column *columns;  /* owned: one for each source */
    int32_t count;
    fl_table *table; /* owned */
} fl_py_table;

extern PyType_Spec fl_py_table_spec;

/* How a field lies in its part of a batch. */
typedef struct fl_py_layout {
    fl_dtype dtype;
    int32_t ndim;
    bool is_contiguous;
    int64_t shape[FL_MAX_NDIM], stride[FL_MAX_NDIM]; /* strides in elements */
} fl_py_layout;

/* In a batch of so many rows; is_single: of one row, without the batch dimension. */
void fl_py_table_layout(const fl_py_table *self, int32_t f, int64_t rows, bool is_single,
                        fl_py_layout *out);

/* Whether the field is cast where batches go. */
bool fl_py_table_is_cast(const fl_py_table *self, int32_t f);

/* What is cast of a batch of so many rows, in the order of fields: *count of at most as many casts
 * as there are fields. Their tables are borrowed from the table. Returns how many bytes the buffer
 * has: a batch as it is filled, then the elements of each such field, each at a multiple of 64. */
int64_t
fl_py_table_casts(const fl_py_table *self, int64_t rows, fl_transfer_cast *casts, int32_t *count);

/* Looks at the sources again, and rebuilds views and table if one has moved or changed its shape.
 * Only while nothing reads the table. 0, or -1 and an exception. */
int fl_py_table_refresh(fl_py_table *self);

/* After the rows have been read: -1 and OSError if a mapped file behind one of them has become too
 * short meanwhile; else 0. */
int fl_py_table_check_files(fl_py_table *self, const fl_rows *rows);

#endif
