/* fl_py_batch: see fl_py_batch.h. Allocates nothing but the tensors and their container. */
#include "fl_py_batch.h"

/* The tensor of field f, of shape {rows, row...}, or {row...} if is_single. */
static PyObject *
make_tensor(const fl_py_table *table, int32_t f, const fl_batch *batch, char *data, bool is_single)
{
    fl_py_layout layout;
    fl_py_table_layout(table, f, batch->rows.count, is_single, &layout);
    DLManagedTensorVersioned *managed = fl_slot_header(batch->slot);
    return fl_py_tensor_over(&table->dlpack, batch->slot, data, layout.dtype, layout.ndim,
                             layout.shape, layout.stride, managed + f);
}

static int put_tensor(PyObject *container, PyObject *keys, int32_t f, PyObject *tensor)
{
    if (tensor == NULL) return -1;
    if (keys == Py_None) {
        PyList_SET_ITEM(container, f, tensor);
        return 0;
    }
    int status = PyDict_SetItem(container, PyTuple_GET_ITEM(keys, f), tensor);
    Py_DECREF(tensor);
    return status;
}

PyObject *
fl_py_batch(const fl_py_table *table, PyObject *keys, const fl_batch *batch, bool is_single)
{
    int32_t count = table->count, f = 0;
    PyObject *container = keys == Py_None ? PyList_New(count) : PyDict_New();
    if (container == NULL) {
        fl_slot_return(batch->slot);
        return NULL;
    }
    fl_slot_lend(batch->slot, count + 1); /* one share is ours until we are done */
    char *data = batch->data;
    for (; f < count; f++) {
        PyObject *tensor = make_tensor(table, f, batch, data, is_single);
        if (put_tensor(container, keys, f, tensor) != 0) break;
        data += fl_table_field_bytes(table->table, f, batch->rows.count);
    }
    /* If field f failed it has given its share back; the fields before it go with the container. */
    for (int32_t rest = f + 1; rest < count; rest++) fl_slot_give(batch->slot);
    fl_slot_give(batch->slot);
    if (f == count) return container;
    Py_DECREF(container);
    return NULL;
}
