/* fl_py_channel: see fl_py_channel.h. */
#include "fl_py_channel.h"

PyObject *fl_py_report_corruption(fl_py_parent_end *self, int32_t worker)
{
    static const char advice[] = "look for writes out of bounds in native code of the dataset";
    self->is_overwritten = true;
    if (self->workers == 1)
        return PyErr_Format(PyExc_RuntimeError,
                            "worker %d has overwritten the memory shared with this process; %s",
                            (int)worker, advice);
    /* Every worker can write to the whole shared memory, so a different worker may be at fault. */
    return PyErr_Format(PyExc_RuntimeError,
                        "worker %d, or a different one of the %d workers, has overwritten the "
                        "memory shared with this process; %s",
                        (int)worker, (int)self->workers, advice);
}
