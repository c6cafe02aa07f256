/* fl_py_windows_source: windows of tokens as a field; the field gives each batch several
 * tensors. */
#include "fl_py_source.h"

#include "fl_py_windows.h"

static fl_py_windows *windows_of(const fl_py_source *self) { return (fl_py_windows *)self->object; }

/* A source of Windows has no parts: the Windows object knows its own files and arrays. */
static int64_t list(const fl_py_source *self, fl_py_part *parts)
{
    (void)self, (void)parts;
    return 0;
}

static bool is_cast(const fl_py_source *self)
{
    return self->share != FL_PY_HOST_ALL && fl_column_window_can_narrow(&windows_of(self)->column);
}

static int
open_windows(const fl_py_source *self, const fl_py_part *parts, fl_column **out, fl_err *err)
{
    (void)parts;
    fl_column_window_config config = windows_of(self)->column;
    config.is_narrow = is_cast(self);
    return fl_column_window_open(&config, out, err);
}

static int check_files(const fl_py_source *self)
{
    return fl_py_windows_check_files(windows_of(self));
}

static PyObject *token_files(const fl_py_source *self) { return windows_of(self)->names; }

const fl_py_source_ops fl_py_windows_source_ops = {.list = list,
                                                   .open = open_windows,
                                                   .is_cast = is_cast,
                                                   .check_files = check_files,
                                                   .token_files = token_files};
