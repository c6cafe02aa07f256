/* fl_py_pad: see fl_py_pad.h.
 *
 * This file reads the arguments, gives each sequence its start, and makes the small tensors: mask,
 * lengths, bounds and positions. fl_py_sequences writes the tensor of the sequences. All functions
 * enter with the interpreter lock. */
#include "fl_py_pad.h"

#include "fl_packing.h"
#include "fl_py_error.h"
#include "fl_py_sequences.h"

static PyObject *
make_int64(fl_py_stacker *stacker, int32_t ndim, const int64_t *shape, int64_t **to)
{
    char *data;
    PyObject *tensor = fl_py_stacker_tensor(stacker, (fl_dtype){kDLInt, 64, 1}, ndim, shape, &data);
    if (tensor != NULL) *to = (int64_t *)(void *)data;
    return tensor;
}

static PyObject *
make_mask(fl_py_stacker *stacker, const fl_py_sequences *self, const int64_t *shape)
{
    int64_t *to, at = 0;
    PyObject *tensor = make_int64(stacker, 2, shape, &to);
    for (Py_ssize_t i = 0; tensor != NULL && i < self->count; i++) {
        for (; at < self->runs[i].start; at++) to[at] = 0;
        for (; at < self->runs[i].start + self->runs[i].length; at++) to[at] = 1;
    }
    for (; tensor != NULL && at < shape[0] * shape[1]; at++) to[at] = 0;
    return tensor;
}

static PyObject *make_lengths(fl_py_stacker *stacker, const fl_py_sequences *self)
{
    int64_t *to, shape = self->count;
    PyObject *tensor = make_int64(stacker, 1, &shape, &to);
    for (Py_ssize_t i = 0; tensor != NULL && i < self->count; i++) to[i] = self->runs[i].length;
    return tensor;
}

/* ---- padding */

/* Cuts the runs to max_length and sets their starts: 0, or -1 and MemoryError if no memory can hold
 * that many elements. */
static int place_rows(fl_py_sequences *self, bool pad_left, int64_t multiple, int64_t max_length,
                      int64_t *width)
{
    int64_t longest = 0, total;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        if (max_length >= 0) self->runs[i].length = fl_min(self->runs[i].length, max_length);
        longest = fl_max(longest, self->runs[i].length);
    }
    int64_t rest = longest % multiple;
    if (!fl_add(longest, rest > 0 ? multiple - rest : 0, width) ||
        !fl_mul(*width, self->count, &total)) {
        fl_py_sequences_fail_size(self->count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->count; i++)
        self->runs[i].start = i * *width + (pad_left ? *width - self->runs[i].length : 0);
    return 0;
}

static PyObject *make_padded(fl_py_stacker *stacker, fl_py_sequences *self,
                             const fl_py_sequences_rule *rule, bool has_mask, bool has_lengths)
{
    PyObject *padded = fl_py_sequences_tensor(stacker, self, rule);
    if (padded == NULL || padded == Py_NotImplemented) return padded;
    PyObject *mask = has_mask ? make_mask(stacker, self, rule->shape) : Py_NewRef(Py_None);
    PyObject *lengths = NULL, *result = NULL;
    if (mask != NULL) lengths = has_lengths ? make_lengths(stacker, self) : Py_NewRef(Py_None);
    if (lengths != NULL) result = PyTuple_Pack(3, padded, mask, lengths);
    Py_DECREF(padded);
    Py_XDECREF(mask);
    Py_XDECREF(lengths);
    return result;
}

PyObject *fl_py_pad(fl_py_stacker *self, PyObject *args)
{
    PyObject *values, *result = NULL;
    fl_py_sequences_rule rule = {0};
    int pad_left, has_mask, has_lengths;
    long long multiple, max_length;
    if (!PyArg_ParseTuple(args, "O!OppLLppi:pad", &PyList_Type, &values, &rule.fill,
                          &rule.is_widened, &pad_left, &multiple, &max_length, &has_mask,
                          &has_lengths, &rule.float_bits))
        return NULL;
    if (multiple < 1) return PyErr_Format(PyExc_ValueError, "multiple must be at least 1");
    fl_py_sequences all;
    int status = fl_py_sequences_open(self, values, &all);
    if (status == 0) status = place_rows(&all, pad_left, multiple, max_length, &rule.shape[1]);
    rule.shape[0] = all.count;
    if (status == 0)
        result = make_padded(self, &all, &rule, has_mask, has_lengths);
    else if (status == FL_PY_UNCOVERED)
        result = Py_NewRef(Py_NotImplemented);
    fl_py_sequences_close(&all);
    return result;
}

/* ---- packing */

/* Returns the int64 at `i` of a list of ints; -1 if the item is not such an int. */
static int64_t int_at(PyObject *list, Py_ssize_t i)
{
    int overflow;
    PyObject *item = PyList_GET_ITEM(list, i);
    return PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : -1;
}

static int fail_places(void)
{
    return FL_PY_FAIL(PyExc_ValueError, "starts and lengths must fit values, rows and width");
}

/* Sets the starts of packed runs: 0, or -1 and ValueError unless the starts rise and `lengths`
 * agrees with the runs. */
static int place_packed(fl_py_sequences *self, PyObject *starts, PyObject *lengths, int64_t total)
{
    int64_t at = 0;
    if (PyList_GET_SIZE(starts) != self->count || PyList_GET_SIZE(lengths) != self->count)
        return fail_places();
    for (Py_ssize_t i = 0; i < self->count; i++) {
        fl_py_sequence *run = &self->runs[i];
        run->start = int_at(starts, i);
        if (run->length != int_at(lengths, i) || run->start < at || run->start > total ||
            run->length > total - run->start)
            return fail_places();
        at = run->start + run->length;
    }
    return 0;
}

static bool count_elements(const int64_t *shape, int64_t *total)
{
    if (shape[0] >= 0 && shape[1] >= 0 && fl_mul(shape[0], shape[1], total)) return true;
    PyErr_SetString(PyExc_ValueError,
                    "rows and width must be at least 0, and their product an int64");
    return false;
}

PyObject *fl_py_pack(fl_py_stacker *self, PyObject *args)
{
    PyObject *values, *starts, *lengths, *result = NULL;
    fl_py_sequences_rule rule = {0};
    long long rows, width;
    int64_t total;
    if (!PyArg_ParseTuple(args, "O!O!O!LLOppi:pack", &PyList_Type, &values, &PyList_Type, &starts,
                          &PyList_Type, &lengths, &rows, &width, &rule.fill, &rule.is_widened,
                          &rule.is_label, &rule.float_bits))
        return NULL;
    rule.shape[0] = rows;
    rule.shape[1] = width;
    if (!count_elements(rule.shape, &total)) return NULL;
    fl_py_sequences all;
    int status = fl_py_sequences_open(self, values, &all);
    if (status == 0) status = place_packed(&all, starts, lengths, total);
    if (status == 0)
        result = fl_py_sequences_tensor(self, &all, &rule);
    else if (status == FL_PY_UNCOVERED)
        result = Py_NewRef(Py_NotImplemented);
    fl_py_sequences_close(&all);
    return result;
}

/* Puts a number into a new list: 0, or -1 and an exception. */
static int put_int(PyObject *list, Py_ssize_t at, int64_t number)
{
    PyObject *item = list != NULL ? PyLong_FromLongLong(number) : NULL;
    if (item != NULL) PyList_SET_ITEM(list, at, item);
    return item != NULL ? 0 : -1;
}

/* Builds the result of pack_rows(). at_segment holds the sequence of each segment; -1: padding. */
static PyObject *
list_packing(const fl_packing *packing, Py_ssize_t count, const int64_t *at_segment)
{
    PyObject *order = PyList_New(count), *starts = PyList_New(count);
    PyObject *bounds = PyList_New((Py_ssize_t)packing->segments + 1);
    int status = put_int(bounds, 0, 0);
    int64_t end = 0, padding = 0;
    Py_ssize_t place = 0;
    for (int64_t segment = 0; status == 0 && segment < packing->segments; segment++) {
        int64_t i = at_segment[segment];
        if (i >= 0) {
            const fl_packed *sequence = &packing->sequences[i];
            status = put_int(order, place, i);
            if (status == 0) status = put_int(starts, place++, sequence->start);
            end = sequence->start + sequence->length;
            padding = sequence->padding;
        } else {
            end += padding;
        }
        if (status == 0) status = put_int(bounds, (Py_ssize_t)segment + 1, end);
    }
    PyObject *told = NULL;
    if (status == 0)
        told = Py_BuildValue("((LL)OOOL)", (long long)packing->rows, (long long)packing->width,
                             order, starts, bounds, (long long)packing->longest);
    Py_XDECREF(order);
    Py_XDECREF(starts);
    Py_XDECREF(bounds);
    return told;
}

const char fl_py_pack_rows_doc[] =
    "pack_rows(lengths, max_tokens, /)\n--\n\n"
    "Lay sequences in rows of max_tokens tokens; each sequence goes to the first row\n"
    "with room. With max_tokens=0 all sequences go to one row. Returns a tuple: the\n"
    "shape of the rows; the sequences in the order in which they lie there; the start\n"
    "of each sequence; the bounds of all segments, with the padding as segments; the\n"
    "length of the longest segment.";

PyObject *fl_py_pack_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *lengths, *result = NULL;
    long long max_tokens;
    if (!PyArg_ParseTuple(args, "O!L:pack_rows", &PyList_Type, &lengths, &max_tokens)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(lengths);
    fl_notes notes = {0};
    fl_packing *packing;
    fl_err err = {0};
    int status = fl_packing_reserve(&notes, count, &packing, &err);
    for (Py_ssize_t i = 0; status == FL_OK && i < count; i++)
        packing->sequences[i].length = int_at(lengths, i);
    if (status == FL_OK) status = fl_packing_fit(packing, count, max_tokens, &err);
    int64_t *at_segment = NULL;
    if (status == FL_OK) {
        at_segment = fl_alloc((packing->segments + 1) * (int64_t)sizeof *at_segment);
        if (at_segment == NULL) status = fl_fail(&err, FL_ENOMEM, "has no memory for a batch");
    }
    if (status == FL_OK) {
        for (int64_t i = 0; i < packing->segments; i++) at_segment[i] = -1;
        for (int64_t i = 0; i < count; i++) at_segment[packing->sequences[i].segment] = i;
        result = list_packing(packing, count, at_segment);
    } else {
        fl_py_raise(&err, NULL);
    }
    fl_free(at_segment);
    fl_free(notes.values);
    return result;
}

/* ---- segments */

/* Checks the bounds: 0, or -1 and ValueError unless the bounds rise from 0 to `total`. */
static int check_bounds(PyObject *bounds, int64_t total)
{
    Py_ssize_t count = PyList_GET_SIZE(bounds);
    int64_t before = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t bound = int_at(bounds, i);
        if (bound < before || (i == 0 && bound != 0)) break;
        before = bound;
        if (i == count - 1 && bound == total && total <= INT32_MAX) return 0;
    }
    return FL_PY_FAIL(PyExc_ValueError, "bounds must rise from 0 to rows * width, as int32");
}

static PyObject *make_cu_seqlens(fl_py_stacker *stacker, PyObject *bounds)
{
    char *data;
    int64_t count = PyList_GET_SIZE(bounds);
    PyObject *tensor = fl_py_stacker_tensor(stacker, (fl_dtype){kDLInt, 32, 1}, 1, &count, &data);
    bool is_same = tensor != NULL && PyList_GET_SIZE(bounds) == count;
    for (Py_ssize_t i = 0; is_same && i < count; i++)
        ((int32_t *)(void *)data)[i] = (int32_t)int_at(bounds, i);
    return tensor;
}

static PyObject *make_positions(fl_py_stacker *stacker, PyObject *bounds, const int64_t *shape)
{
    int64_t *to;
    PyObject *tensor = make_int64(stacker, 2, shape, &to);
    int64_t begin = 0, total = shape[0] * shape[1];
    for (Py_ssize_t i = 1; tensor != NULL && i < PyList_GET_SIZE(bounds); i++) {
        int64_t end = fl_min(int_at(bounds, i), total);
        for (int64_t at = begin; at < end; at++) to[at] = at - begin;
        begin = fl_max(begin, end);
    }
    return tensor;
}

PyObject *fl_py_segments(fl_py_stacker *self, PyObject *args)
{
    PyObject *given;
    int copies, has_positions;
    long long rows, width;
    int64_t total;
    if (!PyArg_ParseTuple(args, "O!LLip:segments", &PyList_Type, &given, &rows, &width, &copies,
                          &has_positions))
        return NULL;
    const int64_t shape[] = {rows, width};
    if (!count_elements(shape, &total) || check_bounds(given, total) != 0) return NULL;
    /* The copy cannot change: Python code never sees the copied list. */
    PyObject *bounds = PyList_GetSlice(given, 0, PyList_GET_SIZE(given));
    PyObject *all = bounds != NULL ? PyList_New(0) : NULL, *result = NULL;
    for (int i = 0; all != NULL && i < copies; i++) {
        PyObject *tensor = make_cu_seqlens(self, bounds);
        if (tensor == NULL || PyList_Append(all, tensor) != 0) Py_CLEAR(all);
        Py_XDECREF(tensor);
    }
    PyObject *positions = NULL;
    if (all != NULL)
        positions = has_positions ? make_positions(self, bounds, shape) : Py_NewRef(Py_None);
    if (positions != NULL) result = PyTuple_Pack(2, all, positions);
    Py_XDECREF(positions);
    Py_XDECREF(all);
    Py_XDECREF(bounds);
    return result;
}
