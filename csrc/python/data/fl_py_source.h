/* fl_py_source: what a Python object is to a table: how it becomes a column of the core, and where
 * its memory lies.
 *
 * A kind of source is one file that fills fl_py_source_ops, and one line of fl_py_source_find,
 * which goes by the object's type. fl_py_table calls them; all need the interpreter lock and the
 * objects, which the table keeps alive. */
#ifndef FL_PY_SOURCE_H
#define FL_PY_SOURCE_H

#include "fl_py.h"
#include "fl_table.h"

typedef struct fl_py_source_ops fl_py_source_ops;

/* How much of the work on a batch the host does. The device that the batch goes to does the rest.
 */
typedef enum fl_py_host_share {
    FL_PY_HOST_ALL,
    FL_PY_HOST_PART, /* plans but for their last casts; tokens stay narrow */
    FL_PY_HOST_LEAST /* no plan that has a map; else as FL_PY_HOST_PART */
} fl_py_host_share;

/* One field of a table as Python gives it. Objects are borrowed from the table. */
typedef struct fl_py_source {
    const fl_py_source_ops *ops; /* static */
    const fl_py_state *state;    /* borrowed from the module */
    const fl_py_dlpack *dlpack;  /* borrowed from the table */
    PyObject *object;            /* tensor, ndarray, tuple, or an object of this module */
    PyObject *file;              /* see fl_py_mapped_file; of several arrays a tuple; or None */
    fl_py_host_share share;
    int64_t count;    /* of its parts */
    bool is_volatile; /* one of them is mapped from a file */
} fl_py_source;

/* An array behind a source. */
typedef struct fl_py_part {
    PyObject *array;       /* borrowed from the source; NULL: the table has no view of it */
    PyObject *file;        /* likewise; None: it is not mapped from one */
    fl_tensor view;        /* of the array, as the table reads it */
    int32_t field, number; /* of the source in its table, and of the part in its source */
} fl_py_part;

struct fl_py_source_ops {
    /* How many parts the source has; sets array and file of each, if parts is not NULL. -1 and
     * TypeError for what cannot be. */
    int64_t (*list)(const fl_py_source *self, fl_py_part *parts);

    /* Opens the column over the parts' views. It borrows from the source; the caller owns *out.
     * After a failure either err is set or an exception. */
    int (*open)(const fl_py_source *self, const fl_py_part *parts, fl_column **out, fl_err *err);

    /* True if the device casts batches, as self->share says. NULL: never. */
    bool (*is_cast)(const fl_py_source *self);

    /* Its memory may have moved: tells the column, which is field f of the table, where it lies.
     * Nobody reads. NULL: it has nothing but its parts' views. */
    void (*look)(const fl_py_source *self, fl_table *table, int32_t f);

    /* After rows have been read: -1 and OSError if a file that belongs to none of the parts has
     * become too short. NULL: there is none. */
    int (*check_files)(const fl_py_source *self);

    /* What errors call the files of tokens, a tuple of str; borrowed. NULL: it reads none. */
    PyObject *(*token_files)(const fl_py_source *self);

    bool has_views; /* it makes views of a row, each with its own random parameters */
};

extern const fl_py_source_ops fl_py_array_source_ops;    /* rows of a tensor or an ndarray */
extern const fl_py_source_ops fl_py_images_source_ops;   /* (array, plan) */
extern const fl_py_source_ops fl_py_segments_source_ops; /* (cast, array, rows, array, rows, ...) */
extern const fl_py_source_ops fl_py_windows_source_ops;  /* Windows */
extern const fl_py_source_ops fl_py_sequence_source_ops; /* SequenceColumn */

/* The kind of an object. */
const fl_py_source_ops *fl_py_source_find(const fl_py_state *state, PyObject *object);

/* fl_py_source_ops.list for a source of one array. */
int64_t fl_py_source_list_array(const fl_py_source *self, PyObject *array, fl_py_part *parts);

#endif
