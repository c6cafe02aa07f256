/* fl_py_table: the heap type _core.Table, a core table over the user's tensors and arrays.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_TABLE_H
#define FL_PY_TABLE_H

#include "fl_py_source.h"

typedef struct fl_py_table {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    fl_py_fields fields;    /* owned; keeps the sources alive while views of sources exist */
    bool has_views;         /* a plan makes views of a row, each with its own random parameters */
    fl_py_host_share share; /* the host's share of the work on a batch */
    int32_t count;          /* number of fields */
    fl_py_source *each;     /* owned: one for each field */
    int64_t part_count;
    fl_py_part *parts;  /* owned: parts of the sources in turn, with the views that are read */
    fl_table *table;    /* owned */
    fl_gate gate;       /* guards this core table, and each later one that replaces it */
    PyObject *weakrefs; /* owned */
} fl_py_table;

extern PyType_Spec fl_py_table_spec;

/* Looks at the sources again; if a source has moved or changed its shape, rebuilds the views and
 * the table. Nothing may read the table meanwhile. 0, or -1 and an exception. */
int fl_py_table_refresh(fl_py_table *self);

/* Updates the addresses of tensors that have moved but not changed in any other way. The table's
 * gate must be closed, and nobody inside. */
void fl_py_table_look(fl_py_table *self);

/* Checks mapped files after rows have been read: -1 and OSError if a file has become too short for
 * one of the rows meanwhile; else 0. */
int fl_py_table_check_files(fl_py_table *self, const fl_rows *rows);

#endif
