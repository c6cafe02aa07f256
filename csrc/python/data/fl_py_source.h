/* fl_py_source: reads a Python object for a table: opens a column of the core over the object, and
 * finds the object's memory.
 *
 * A kind of source is one file that fills fl_py_source_ops, and one line of find_ops in
 * fl_py_source.c, which chooses the kind by the object's type. fl_py_table calls these functions;
 * all need the interpreter lock and the objects, which the table keeps alive. */
#ifndef FL_PY_SOURCE_H
#define FL_PY_SOURCE_H

#include "fl_py.h"
#include "fl_table.h"

typedef struct fl_py_source_ops fl_py_source_ops;

/* The host's share of the work on a batch. The device that receives the batch does the rest. */
typedef enum fl_py_host_share {
    FL_PY_HOST_ALL,
    FL_PY_HOST_PART, /* plans without their last casts; tokens stay narrow */
    FL_PY_HOST_LEAST /* no plan that has a map; otherwise as FL_PY_HOST_PART */
} fl_py_host_share;

/* One field of a table as Python gives the field. Objects are borrowed from the table. */
typedef struct fl_py_source {
    const fl_py_source_ops *ops; /* static */
    const fl_py_state *state;    /* borrowed from the module */
    const fl_py_dlpack *dlpack;  /* borrowed from the table */
    PyObject *object;            /* tensor, ndarray, tuple, or an object of this module */
    PyObject *file;              /* see fl_py_mapped_file; a tuple for several arrays; or None */
    fl_py_host_share share;
    int64_t count;    /* number of parts */
    bool is_volatile; /* a part is mapped from a file */
} fl_py_source;

/* One array of a source. */
typedef struct fl_py_part {
    PyObject *array;       /* borrowed from the source; NULL: the table has no view of the array */
    PyObject *file;        /* borrowed from the source; None: the array is not mapped from a file */
    fl_tensor view;        /* the array as the table reads the array */
    int32_t field, number; /* index of the source in its table, and of the part in its source */
} fl_py_part;

struct fl_py_source_ops {
    /* Returns how many parts the source has; if parts is not NULL, sets array and file of each
     * part. -1 and TypeError for an impossible source. */
    int64_t (*list)(const fl_py_source *self, fl_py_part *parts);

    /* Opens the column over the parts' views. The column borrows from the source; the caller owns
     * *out. After a failure either err or an exception is set. */
    int (*open)(const fl_py_source *self, const fl_py_part *parts, fl_column **out, fl_err *err);

    /* Returns true if the device casts batches under self->share. NULL: never. */
    bool (*is_cast)(const fl_py_source *self);

    /* Checks files that belong to no part, after rows have been read: -1 and OSError if a file has
     * become too short. NULL: there are no such files. */
    int (*check_files)(const fl_py_source *self);

    /* Returns the names that errors give to the files of tokens, a tuple of str; borrowed. NULL:
     * the source reads no tokens. */
    PyObject *(*token_files)(const fl_py_source *self);

    bool has_views; /* the source makes views of a row, each with its own random parameters */
};

extern const fl_py_source_ops fl_py_array_source_ops;    /* rows of a tensor or an ndarray */
extern const fl_py_source_ops fl_py_images_source_ops;   /* (array, plan) */
extern const fl_py_source_ops fl_py_segments_source_ops; /* (cast, array, rows, array, rows, ...) */
extern const fl_py_source_ops fl_py_windows_source_ops;  /* Windows */
extern const fl_py_source_ops fl_py_sequence_source_ops; /* SequenceColumn */

/* Reads a field of a table, (object, name, file), and counts the parts; the caller has set state,
 * dlpack and share. 0, or -1 and an exception. */
int fl_py_source_read(fl_py_source *self, PyObject *field);

/* Lists the parts of field f of a table. */
void fl_py_source_list(fl_py_source *self, int32_t f, fl_py_part *parts);

/* Checks the file of a part after rows have been read: FL_OK; FL_ESOURCE if the file has become too
 * short for one of the rows meanwhile; or -1 and an exception. */
int fl_py_part_check_file(const fl_py_part *part, const fl_table *table, const fl_rows *rows,
                          fl_err *err);

/* Implements fl_py_source_ops.list for a source of one array. */
int64_t fl_py_source_list_array(const fl_py_source *self, PyObject *array, fl_py_part *parts);

#endif
