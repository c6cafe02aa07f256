/* fl_py_copy_row: see fl_py_copy_row.h. The row goes through a buffer, because the tensors must not
 * change if the file of a mapped field has shrunk. */
#include "fl_py_copy_row.h"

#include "fl_py_seed.h"
#include "fl_py_table.h"

static int copy_out(fl_py_table *self, PyObject *out, const fl_output *output, const char *buffer)
{
    fl_tensor view;
    if (fl_py_view(&self->dlpack, out, &view) != 0) return -1;
    if (fl_tensor_bytes(view.dtype, view.ndim, view.shape) != output->bytes)
        return FL_PY_FAIL(PyExc_ValueError, "copy_row: each tensor must have the size of its row");
    if (output->bytes > 0)
        memcpy((char *)(uintptr_t)view.data, buffer + output->offset, (size_t)output->bytes);
    return 0;
}

/* Reads one row; the index must be in bounds. 0, or -1 and an exception. */
static int
read_row(fl_py_table *self, const fl_rows *rows, uint32_t epoch, PyObject *outs, fl_layout *layout)
{
    fl_err err = {0};
    char *buffer = NULL;
    int status = fl_table_layout(self->table, rows, epoch, layout, &err);
    if (status == FL_OK) {
        buffer = fl_alloc(layout->bytes);
        if (buffer == NULL) status = fl_fail(&err, FL_ENOMEM, "out of memory for a row");
    }
    if (status == FL_OK) {
        Py_BEGIN_ALLOW_THREADS
        fl_gate_enter(&self->gate);
        status = fl_table_gather(self->table, rows, epoch, layout, 0, 1, buffer, &err);
        fl_gate_leave(&self->gate);
        Py_END_ALLOW_THREADS
    }
    if (status != FL_OK) fl_py_raise(&err, &self->fields);
    if (status == FL_OK) status = fl_py_table_check_files(self, rows);
    for (int32_t i = 0; status == FL_OK && i < layout->count; i++)
        status = copy_out(self, PyTuple_GET_ITEM(outs, i), &layout->outputs[i], buffer);
    fl_free(buffer);
    return status == FL_OK ? 0 : -1;
}

const char fl_py_copy_row_doc[] =
    PyDoc_STR("copy_row(table, row, outs, epoch=0, /)\n--\n\n"
              "Copy one row of every field of a Table into `outs`, a tuple with one contiguous\n"
              "tensor for each output, in an epoch. Releases the interpreter lock.\n\n"
              "Mapped files are read safely: if a file has become shorter, raises OSError with\n"
              "the field and the row.");

PyObject *fl_py_copy_row(PyObject *module, PyObject *args)
{
    const fl_py_state *state = PyModule_GetState(module);
    Py_ssize_t row;
    PyObject *outs, *epoch_given = NULL;
    uint32_t epoch = 0;
    fl_py_table *self;
    if (!PyArg_ParseTuple(args, "O!nO!|O:copy_row", state->table_type, &self, &row, &PyTuple_Type,
                          &outs, &epoch_given))
        return NULL;
    if (epoch_given != NULL && fl_py_epoch(epoch_given, &epoch) != 0) return NULL;
    int32_t outputs = fl_table_outputs(self->table);
    if (PyTuple_GET_SIZE(outs) != outputs || self->share != FL_PY_HOST_ALL)
        return PyErr_Format(PyExc_ValueError,
                            "copy_row needs %d tensors, and no table for a device, got %zd tensors",
                            outputs, PyTuple_GET_SIZE(outs));
    int64_t length = fl_table_length(self->table), index = row;
    if (row < 0 || row >= length) {
        fl_err err = {.code = FL_EINDEX, .value = row, .length = length};
        return fl_py_raise(&err, &self->fields);
    }
    fl_rows rows = {.count = 1, .index = &index};
    fl_layout layout = {0};
    int status = read_row(self, &rows, epoch, outs, &layout);
    fl_layout_close(&layout);
    if (status != 0) return NULL;
    Py_RETURN_NONE;
}
