/* fl_py_table: the heap type _core.Table, a core table over the user's tensors and arrays.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_TABLE_H
#define FL_PY_TABLE_H

#include "fl_py_source.h"

typedef struct fl_py_table {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    fl_py_fields fields;    /* owned; the sources stay alive while there are views of them */
    bool has_views;         /* a plan makes views of a row, each with its own random parameters */
    fl_py_host_share share; /* of the work on a batch */
    int32_t count;          /* of fields */
    fl_py_source *each;     /* owned: one for each field */
    int64_t part_count;
    fl_py_part *parts;  /* owned: of all sources in turn, with the views that the table reads */
    fl_table *table;    /* owned */
    fl_gate gate;       /* of the table, and of each that takes its place */
    PyObject *weakrefs; /* owned */
} fl_py_table;

extern PyType_Spec fl_py_table_spec;

/* Looks at the sources again, and rebuilds views and table if one has moved or changed its shape.
 * Only while nothing reads the table. 0, or -1 and an exception. */
int fl_py_table_refresh(fl_py_table *self);

/* Where its tensors lie now, if nothing else has changed. While its gate is closed and nobody is
 * inside. */
void fl_py_table_look(fl_py_table *self);

/* After the rows have been read: -1 and OSError if a mapped file behind one of them has become too
 * short meanwhile; else 0. */
int fl_py_table_check_files(fl_py_table *self, const fl_rows *rows);

#endif
