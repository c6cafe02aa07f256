/* fl_py_batch: see fl_py_batch.h. Allocates only the tensors and their list. */
#include "fl_py_batch.h"

/* Makes the tensor of output i, or its number; is_single: without the dimension that counts
 * samples. New reference. */
static PyObject *
make_output(const fl_py_table *table, const fl_batch *batch, int32_t i, bool is_single)
{
    fl_output *output = &batch->layout.outputs[i];
    if (output->is_number) return PyLong_FromLongLong(output->number);
    int32_t skip = is_single && !output->is_whole ? 1 : 0;
    DLManagedTensorVersioned *managed = fl_slot_header(batch->slot);
    return fl_py_tensor_over(&table->dlpack, batch->slot, batch->data + output->offset,
                             output->dtype, output->ndim - skip, output->shape + skip,
                             output->stride + skip, managed + i);
}

static int32_t count_tensors(const fl_layout *layout, int32_t from)
{
    int32_t count = 0;
    for (int32_t i = from; i < layout->count; i++) count += !layout->outputs[i].is_number;
    return count;
}

PyObject *fl_py_batch(const fl_py_table *table, const fl_batch *batch, bool is_single)
{
    int32_t count = batch->layout.count, i = 0;
    PyObject *outputs = PyList_New(count);
    if (outputs == NULL) {
        fl_slot_return(batch->slot);
        return NULL;
    }
    /* This function holds one share until it returns. */
    fl_slot_lend(batch->slot, count_tensors(&batch->layout, 0) + 1);
    for (; i < count; i++) {
        PyObject *output = make_output(table, batch, i, is_single);
        if (output == NULL) break;
        PyList_SET_ITEM(outputs, i, output);
    }
    /* If output i has failed, it has given its share back; the outputs before it give theirs back
     * with the list. */
    for (int32_t rest = count_tensors(&batch->layout, i + 1); rest > 0; rest--)
        fl_slot_give(batch->slot);
    fl_slot_give(batch->slot);
    if (i == count) return outputs;
    Py_DECREF(outputs);
    return NULL;
}
