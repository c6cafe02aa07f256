/* fl_py_gatherer: see fl_py_gatherer.h. */
#include "fl_py_gatherer.h"

#include "fl_cuda.h"
#include "fl_py.h"
#include "fl_py_gather.h"
#include "fl_py_gather_pieces.h"
#include "fl_py_put.h"
#include "fl_py_structure.h"

#include <unistd.h>

enum { AHEAD_BYTES = 4 << 20 }; /* of maps that are drawn at a time */

typedef struct fl_py_gatherer {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    PyObject *empty_like; /* owned: torch.empty_like */
    PyObject *new_batch; /* owned: new_batch(count) returns a list of new tensors for a batch; None:
                            torch's index makes batches, without a kernel */
    PyObject *new_maps;  /* owned: new_maps(count) returns a list of new int32 tensors for `count`
                            maps  of each plan; or None */
    PyObject *send, *empties;  /* owned: see fl_py_pieces_make; or None */
    PyObject *structure;       /* owned: see fl_py_structure.h */
    PyObject *sources;         /* owned: a tuple; the type's docstring describes sources */
    fl_py_gather_source *each; /* owned: the `count` fields among the sources */
    Py_ssize_t count;
    fl_py_pieces pieces;     /* owned: the columns of sequences among the sources */
    int device;              /* as in fl_py_gather.h */
    Py_ssize_t outputs, all; /* number of outputs of fields, and of all outputs */
    Py_ssize_t made;   /* number of tensors that new_batch makes: outputs, and one for each staged
                          source */
    PyObject *rows;    /* owned: indices on the device, or NULL */
    Py_ssize_t plans;  /* number of sources with a plan */
    int64_t map_bytes; /* of the maps of one row, for all plans */
    fl_py_gather_maps maps; /* tensors owned: drawn for batches of the indices `rows` */
    long long length;       /* as in fl_py_gather.h */
    PyObject *forms; /* owned: tensors without memory, shaped like a batch of form_rows rows; NULL:
                        none yet */
    int64_t form_rows; /* rows of the last batch */
    pid_t pid;
} fl_py_gatherer;

static bool has_windows(const fl_py_gatherer *self)
{
    return self->count > 0 && self->each[0].is_windows;
}

/* ---- memory of a batch */

/* Returns the list of new tensors that make(count) returns. No user code can reach the list. New
 * reference. */
static PyObject *make_tensors(PyObject *make, const char *name, int64_t count, Py_ssize_t wanted)
{
    PyObject *given = PyObject_CallFunction(make, "L", (long long)count), *made;
    if (given == NULL) return NULL;
    made = PyList_CheckExact(given) ? PySequence_List(given) : Py_NewRef(Py_None);
    Py_DECREF(given);
    if (made == NULL || (made != Py_None && PyList_GET_SIZE(made) == wanted)) return made;
    Py_DECREF(made);
    return PyErr_Format(PyExc_ValueError, "gather: %s must return a list of %zd tensors", name,
                        wanted);
}

/* Makes the tensors of a batch, in their own memory. */
static PyObject *new_batch(const fl_py_gatherer *self, int64_t count)
{
    return make_tensors(self->new_batch, "new_batch", count, self->made);
}

static int give_memory_back(PyObject *tensor)
{
    PyObject *storage = PyObject_CallMethod(tensor, "untyped_storage", NULL);
    PyObject *done = storage != NULL ? PyObject_CallMethod(storage, "resize_", "i", 0) : NULL;
    Py_XDECREF(storage);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

/* Returns the forms for `count` rows. New reference. */
static PyObject *get_forms(fl_py_gatherer *self, int64_t count)
{
    if (self->forms != NULL) return Py_NewRef(self->forms);
    PyObject *forms = new_batch(self, count);
    int status = forms != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i < self->made; i++)
        status = give_memory_back(PyList_GET_ITEM(forms, i));
    if (status == 0 && self->form_rows == count) Py_XSETREF(self->forms, Py_NewRef(forms));
    if (status != 0) Py_CLEAR(forms);
    return forms;
}

/* Makes memory for a batch from the forms: torch needs half the time if it can copy an existing
 * tensor's form. New reference. */
static PyObject *allocate(fl_py_gatherer *self, int64_t count)
{
    if (self->form_rows != count) { /* a batch of a different size seldom comes twice */
        Py_CLEAR(self->forms);
        self->form_rows = count;
        return new_batch(self, count);
    }
    PyObject *forms = get_forms(self, count), *outs = NULL;
    if (forms != NULL) outs = PyList_New(self->made);
    for (Py_ssize_t i = 0; outs != NULL && i < self->made; i++)
        fl_py_put(&outs, i, PyObject_CallOneArg(self->empty_like, PyList_GET_ITEM(forms, i)));
    Py_XDECREF(forms);
    return outs;
}

/* ---- maps of images */

static const int64_t *indices_of(const fl_py_gather *gather)
{
    return gather->here == NULL ? gather->rows - gather->first : NULL;
}

static bool has_maps(const fl_py_gather_maps *maps, const fl_py_gather *gather, uint32_t epoch)
{
    return maps->tensors != NULL && maps->epoch == epoch && maps->stream == gather->stream &&
           maps->indices == indices_of(gather) && maps->first <= gather->first &&
           gather->first + gather->row_count <= maps->first + maps->count;
}

/* Finds the last tensor of new_maps(). The kernel that draws writes there the rows that came in its
 * argument, for the kernels after it. */
static int find_kept(const fl_py_gatherer *self, fl_py_gather *gather)
{
    fl_tensor view;
    if (gather->maps.tensors == NULL) return -1;
    if (fl_py_gather_view(gather, PyList_GET_ITEM(gather->maps.tensors, self->plans), &view) != 0)
        return -1;
    gather->kept = (int64_t *)(uintptr_t)view.data;
    if (view.dtype.code == kDLInt && view.dtype.bits == 64 && view.ndim == 1 &&
        view.shape[0] >= gather->maps.count && fl_tensor_is_contiguous(&view))
        return 0;
    return FL_PY_FAIL(PyExc_ValueError, "gather: new_maps must return int64 [count] at the end");
}

/* Chooses the maps of a batch: those that have been drawn, or memory for its maps and the maps of
 * the next rows. */
static int choose_maps(const fl_py_gatherer *self, fl_py_gather *gather, uint32_t epoch)
{
    gather->maps = self->maps;
    gather->are_drawn =
        self->map_bytes == 0 || (gather->here == NULL && has_maps(&self->maps, gather, epoch));
    if (gather->are_drawn) {
        Py_XINCREF(gather->maps.tensors);
        return 0;
    }
    const int64_t most = fl_max(AHEAD_BYTES / self->map_bytes, gather->row_count);
    gather->maps = (fl_py_gather_maps){.first = gather->first,
                                       .count = fl_min(most, gather->rest),
                                       .epoch = epoch,
                                       .stream = gather->stream,
                                       .indices = indices_of(gather)};
    gather->maps.tensors =
        make_tensors(self->new_maps, "new_maps", gather->maps.count, self->plans + 1);
    return find_kept(self, gather);
}

/* Keeps maps that have been drawn. The stream orders the kernels, so maps are dropped as soon as no
 * batch to come needs them. Takes the reference to their tensors. */
static void keep_maps(fl_py_gatherer *self, const fl_py_gather *gather, bool is_queued)
{
    PyObject *dropped = gather->maps.tensors;
    if (is_queued && !gather->are_drawn && gather->here == NULL) {
        dropped = self->maps.tensors;
        self->maps = gather->maps;
    }
    Py_XDECREF(dropped);
}

/* ---- batches */

static int run_kernels(fl_py_gather *gather, PyObject *outs)
{
    if (gather->sources[0].is_windows) return fl_py_gather_windows.run(gather, outs);
    bool is_queued = fl_py_gather_images.run(gather, outs) == 0;
    return fl_py_gather_note(gather) == 0 && is_queued ? 0 : -1;
}

/* Has torch gather rows of one field, if the kernel does not take the field. New reference. */
static PyObject *index_source(const fl_py_gatherer *self, PyObject *source, PyObject *rows)
{
    Py_ssize_t length = PyObject_Size(source);
    if (length < 0) return NULL;
    if (length < self->length) return fl_py_gather_refuse(self->length, length);
    return PyObject_GetItem(source, rows);
}

/* Returns a new list with the rows of each field. */
static PyObject *index_sources(const fl_py_gatherer *self, PyObject *rows)
{
    PyObject *outs = PyList_New(self->count);
    for (Py_ssize_t i = 0; outs != NULL && i < self->count; i++)
        fl_py_put(&outs, i, index_source(self, self->each[i].tensor, rows));
    return outs;
}

static PyObject *
make_by_torch(const fl_py_gatherer *self, PyObject *indices, int64_t first, int64_t count)
{
    PyObject *rows = PySequence_GetSlice(indices, (Py_ssize_t)first, (Py_ssize_t)(first + count));
    PyObject *outs = rows != NULL ? index_sources(self, rows) : NULL;
    Py_XDECREF(rows);
    return outs;
}

/* The indices of a batch: [first, first + count) of a tensor or, if that is None, `here`. */
typedef struct chosen {
    PyObject *tensor, *here;
    int64_t first, count;
} chosen;

static int open_rows(fl_py_gather *gather, const chosen *rows)
{
    if (rows->tensor != Py_None)
        return fl_py_gather_open(gather, rows->tensor, rows->first, rows->count);
    if (fl_py_gather_open_here(gather, rows->here) != 0) return -1;
    if (gather->row_count == rows->count && !gather->sources[0].is_windows) return 0;
    return FL_PY_FAIL(PyExc_ValueError, "gather: this batch needs indices on the device");
}

/* Makes the tensors of a batch, as a list. New reference. */
static PyObject *make_outputs(fl_py_gatherer *self, const chosen *rows, uint32_t epoch)
{
    if (self->outputs == 0) return PyList_New(0);
    if (self->new_batch == Py_None && !has_windows(self))
        return make_by_torch(self, rows->tensor, rows->first, rows->count);
    if (self->new_batch == Py_None)
        return PyErr_Format(PyExc_ValueError, "gather: windows need new_batch");
    fl_py_gather gather = {.dlpack = &self->dlpack,
                           .device = self->device,
                           .sources = self->each,
                           .count = self->count,
                           .length = self->length};
    PyObject *outs = allocate(self, rows->count);
    /* The tensors of staged rows are freed once the kernels are queued: torch reuses their memory
     * on the same stream only, and so after these kernels. */
    if (outs != NULL && (open_rows(&gather, rows) != 0 || choose_maps(self, &gather, epoch) != 0 ||
                         run_kernels(&gather, outs) != 0 ||
                         PyList_SetSlice(outs, self->outputs, self->made, NULL) != 0))
        Py_CLEAR(outs);
    keep_maps(self, &gather, outs != NULL);
    return outs;
}

/* Makes the sequences' outputs for the batch of `rows`, and returns the outputs together with the
 * tensors of the fields, in the order of the sources. Takes outs, which may be NULL. New
 * reference. */
static PyObject *add_sequences(const fl_py_gatherer *self, PyObject *outs, PyObject *rows)
{
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    Py_ssize_t next[2] = {0}; /* next index among the fields, and among the sequences */
    PyObject *made = NULL, *all = NULL;
    if (outs != NULL) made = fl_py_pieces_make(&self->pieces, rows, self->send, self->empties);
    if (made != NULL) all = PyList_New(self->all);
    for (Py_ssize_t i = 0; all != NULL && i < self->all; i++) {
        PyObject *source = PyTuple_GET_ITEM(self->sources, i);
        bool is_sequence = Py_IS_TYPE(source, state->sequence_column_type);
        PyObject *from = is_sequence ? made : outs;
        PyList_SET_ITEM(all, i, Py_NewRef(PyList_GET_ITEM(from, next[is_sequence]++)));
    }
    Py_XDECREF(made);
    Py_XDECREF(outs);
    return all;
}

/* Replaces each output with its first row: 0, or -1 and an exception. */
static int take_first_rows(PyObject *outs)
{
    PyObject *zero = PyLong_FromLong(0);
    int status = zero != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i < PyList_GET_SIZE(outs); i++) {
        PyObject *row = PyObject_GetItem(PyList_GET_ITEM(outs, i), zero);
        status = row != NULL ? PyList_SetItem(outs, i, row) : -1;
    }
    Py_XDECREF(zero);
    return status;
}

/* Arranges the outputs in the structure. Takes outs, which may be NULL. New reference. */
static PyObject *arrange(const fl_py_gatherer *self, PyObject *outs, bool is_single)
{
    if (outs != NULL && is_single && take_first_rows(outs) != 0) Py_CLEAR(outs);
    return outs != NULL ? fl_py_structure_around(self->structure, outs) : NULL;
}

PyDoc_STRVAR(set_rows_doc,
             "set_rows(indices, length)\n--\n\n"
             "Set the indices for the batches that follow. indices: an int64 vector on the\n"
             "device with values in [0, length), which are not checked here; or None, if each\n"
             "take() brings its own. length: the number of rows of the data.");

static PyObject *gatherer_set_rows(fl_py_gatherer *self, PyObject *args)
{
    PyObject *rows;
    long long length;
    if (!PyArg_ParseTuple(args, "OL:set_rows", &rows, &length)) return NULL;
    self->length = length;
    Py_XSETREF(self->rows, Py_NewRef(rows));
    Py_CLEAR(self->maps.tensors); /* last: a decref may run code that asks for a batch */
    Py_RETURN_NONE;
}

PyDoc_STRVAR(take_doc,
             "take(first, count, epoch, is_single, rows=None, /)\n--\n\n"
             "Return the batch of indices [first, first + count), made on the current stream.\n"
             "One kernel copies up to 16 fields and draws the random parameters of up to 4\n"
             "plans, for this batch and later ones, up to 4 MiB of maps; each field with a plan\n"
             "takes a kernel of its own. Waits only while the stream's queue is full, without the\n"
             "interpreter lock. Raises ValueError if the data have lost rows since set_rows().\n\n"
             "epoch: of the random numbers. is_single: return the first row of each tensor.\n"
             "rows: the indices of the batch on the CPU, for sequences, whose outputs one kernel\n"
             "makes, up to 32; and for all if set_rows() got None: at most 640, which travel in\n"
             "the first kernel's argument.");

static PyObject *gatherer_take(fl_py_gatherer *self, PyObject *args)
{
    long long first, count;
    unsigned long epoch;
    PyObject *rows = Py_None;
    int is_single;
    if (!PyArg_ParseTuple(args, "LLkp|O:take", &first, &count, &epoch, &is_single, &rows))
        return NULL;
    if (self->rows == NULL)
        return PyErr_Format(PyExc_ValueError, "gather: set_rows() has not been called");
    const chosen batch = {Py_NewRef(self->rows), rows, first, count};
    PyObject *outs = make_outputs(self, &batch, (uint32_t)epoch);
    Py_DECREF(batch.tensor);
    if (self->pieces.count > 0) outs = add_sequences(self, outs, rows);
    return arrange(self, outs, is_single);
}

PyDoc_STRVAR(arrange_doc,
             "arrange(tensors, is_single, /)\n--\n\n"
             "Put tensors that torch has made into a batch, as take() does, and return the\n"
             "batch.");

static PyObject *gatherer_arrange(fl_py_gatherer *self, PyObject *args)
{
    PyObject *tensors;
    int is_single;
    if (!PyArg_ParseTuple(args, "Op:arrange", &tensors, &is_single)) return NULL;
    PyObject *outs = PySequence_List(tensors);
    if (outs == NULL || PyList_GET_SIZE(outs) == self->all) return arrange(self, outs, is_single);
    Py_DECREF(outs);
    return PyErr_Format(PyExc_ValueError, "arrange() needs %zd tensors", self->all);
}

PyDoc_STRVAR(stream_doc,
             "stream()\n--\n\n"
             "Return the handle of the current stream. Returns None if no kernel makes\n"
             "batches, during the capture of a graph, and in a forked child.");

static PyObject *gatherer_stream(fl_py_gatherer *self, PyObject *Py_UNUSED(ignored))
{
    fl_cuda_queue queue = {.device = self->device};
    bool is_capturing = true;
    if (self->new_batch == Py_None || getpid() != self->pid) Py_RETURN_NONE;
    if (fl_py_stream(&self->dlpack, self->device, &queue.stream) != 0) return NULL;
    if (fl_cuda_is_capturing(&queue, &is_capturing, NULL) != FL_OK || is_capturing) Py_RETURN_NONE;
    return PyLong_FromVoidPtr(queue.stream);
}

/* ---- the type */

/* Reads one source; -1 and ValueError if the object is not a source. */
static int read_source(const fl_py_state *state, PyObject *item, fl_py_gather_source *out)
{
    PyObject *range, *pair;
    Py_ssize_t size = PyTuple_CheckExact(item) ? PyTuple_GET_SIZE(item) : 0;
    if (size == 2) {
        long shift = PyLong_AsLong(PyTuple_GET_ITEM(item, 1));
        if (shift == -1 && PyErr_Occurred()) return -1;
        *out = (fl_py_gather_source){.tensor = PyTuple_GET_ITEM(item, 0), .is_windows = true};
        out->shift = (int32_t)shift;
        if (shift == 0 || shift == 1) return 0;
    } else if (size == 3) {
        range = PyTuple_GET_ITEM(item, 1);
        pair = PyTuple_GET_ITEM(item, 2);
        *out = (fl_py_gather_source){.tensor = PyTuple_GET_ITEM(item, 0)};
        if (range != Py_None) out->range = (fl_py_host_range *)range;
        if (pair != Py_None && PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2) {
            out->plan = (fl_py_image_plan *)PyTuple_GET_ITEM(pair, 0);
            out->values = PyTuple_GET_ITEM(pair, 1);
        }
        if ((out->range == NULL || Py_IS_TYPE(range, state->host_range_type)) &&
            (out->plan != NULL ? Py_IS_TYPE(out->plan, state->image_plan_type) : pair == Py_None))
            return 0;
    }
    return FL_PY_FAIL(
        PyExc_ValueError,
        "sources must be (tensor, HostRange or None, (ImagePlan, values) or None) each, "
        "SequenceColumns, or (tokens, shift), whose shift is 0 or 1");
}

static int read_sources(fl_py_gatherer *self, const fl_py_state *state)
{
    Py_ssize_t all = PyTuple_GET_SIZE(self->sources);
    self->each = fl_alloc(all * (int64_t)sizeof *self->each);
    if (self->each == NULL) PyErr_NoMemory();
    for (Py_ssize_t i = 0; self->each != NULL && i < all; i++) {
        PyObject *source = PyTuple_GET_ITEM(self->sources, i);
        if (Py_IS_TYPE(source, state->sequence_column_type)) continue;
        if (read_source(state, source, &self->each[self->count++]) != 0) return -1;
    }
    return self->each != NULL
               ? fl_py_pieces_open(&self->pieces, state, &self->dlpack, self->sources)
               : -1;
}

/* Counts the outputs of a batch: 0, or -1 and ValueError if the structure does not fit the
 * sources. */
static int count_outputs(fl_py_gatherer *self)
{
    int64_t count = fl_py_structure_count(self->structure);
    if (count < 0) return -1;
    Py_ssize_t sources = PyTuple_GET_SIZE(self->sources);
    self->all = (Py_ssize_t)count;
    self->outputs = self->made = has_windows(self) ? self->all : self->count;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const fl_py_image_plan *plan = self->each[i].plan;
        self->made += fl_py_gather_is_staged(&self->each[i]);
        if (plan == NULL) continue;
        self->plans++;
        self->map_bytes += fl_image_plan_map_length(plan->plan) * (int64_t)sizeof(int32_t);
    }
    bool fits = has_windows(self) ? sources == 1 && (count == 1 || count == 2) : count == sources;
    for (Py_ssize_t i = 1; i < self->count; i++) fits = fits && !self->each[i].is_windows;
    if (fits) return 0;
    return FL_PY_FAIL(
        PyExc_ValueError,
        "structure must have one output for each source, or for windows x, or x and y");
}

static PyObject *gatherer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"tensor_type", "memory",    "structure", "sources",
                               "device",      "sequences", NULL};
    PyObject *tensor_type, *memory, *empty_like, *new_batch, *structure, *sources;
    PyObject *maps = Py_None, *send = Py_None, *empties = Py_None;
    int device;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!OO!i|(OO):Gatherer", keywords, &tensor_type,
                                     &PyTuple_Type, &memory, &structure, &PyTuple_Type, &sources,
                                     &device, &send, &empties) ||
        !PyArg_ParseTuple(memory, "OO|O:Gatherer", &new_batch, &empty_like, &maps))
        return NULL;
    fl_py_gatherer *self = (fl_py_gatherer *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->empty_like = Py_NewRef(empty_like);
    self->new_batch = Py_NewRef(new_batch);
    self->new_maps = Py_NewRef(maps);
    self->send = Py_NewRef(send);
    self->empties = Py_NewRef(empties);
    self->structure = Py_NewRef(structure);
    self->sources = Py_NewRef(sources);
    self->device = device;
    self->form_rows = -1;
    self->pid = getpid();
    if (fl_py_dlpack_open(tensor_type, &self->dlpack) == 0 &&
        read_sources(self, PyType_GetModuleState(type)) == 0 && count_outputs(self) == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int gatherer_traverse(fl_py_gatherer *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->dlpack.tensor_type);
    Py_VISIT(self->empty_like);
    Py_VISIT(self->new_batch);
    Py_VISIT(self->new_maps);
    Py_VISIT(self->maps.tensors);
    Py_VISIT(self->send);
    Py_VISIT(self->empties);
    Py_VISIT(self->structure);
    Py_VISIT(self->sources);
    Py_VISIT(self->forms);
    Py_VISIT(self->rows);
    return 0;
}

/* There is no tp_clear. new_batch, new_maps and the structure are the only members through which
 * Python code can make a cycle. */

static void gatherer_dealloc(fl_py_gatherer *self)
{
    PyObject_GC_UnTrack(self);
    fl_py_pieces_close(&self->pieces);
    Py_XDECREF(self->empty_like);
    Py_XDECREF(self->new_batch);
    Py_XDECREF(self->new_maps);
    Py_XDECREF(self->maps.tensors);
    Py_XDECREF(self->send);
    Py_XDECREF(self->empties);
    Py_XDECREF(self->structure);
    Py_XDECREF(self->sources);
    Py_XDECREF(self->forms);
    Py_XDECREF(self->rows);
    fl_free(self->each);
    fl_py_dlpack_close(&self->dlpack);
    fl_py_free(self);
}

PyDoc_STRVAR(
    doc, "Gatherer(tensor_type, memory, structure, sources, device, sequences=(None, None))\n--\n\n"
         "Batches of rows that kernels of a CUDA device read.\n\n"
         "memory: (new_batch, torch.empty_like, new_maps). new_batch(count) returns a list of\n"
         "new tensors for a batch of `count` rows, then a tensor for the rows of each field\n"
         "that has both a range and a plan; if new_batch is None, no kernel runs, and torch's\n"
         "indexing makes the fields. new_maps(count), for fields with a plan, returns a list\n"
         "of an int32 tensor [count, plan.map_length] for each plan, then an int64 tensor\n"
         "[count]. structure: the containers around the tensors of a batch, as for an ArrayLoader. "
         "sources: a tuple\n"
         "with one source for each output.\n\n"
         "A field is (tensor, range, plan): range is the HostRange that holds the tensor,\n"
         "or None; plan is (ImagePlan, its values() on the device), or None if rows are\n"
         "copied. A SequenceColumn is a source, if its values lie on the device; the\n"
         "leader of the column does not count. For windows there is one source (tokens,\n"
         "shift): windows begin at the indices, and y begins `shift` tokens after x, 0 or\n"
         "1.\n\n"
         "device: the index of the device. sequences: a function that copies a CPU tensor\n"
         "to the device, and a mapping from dtype (DLPack's code * 256 + bits) to a\n"
         "function that makes a tensor of a given shape on the device.");

static PyMethodDef methods[] = {
    {"set_rows", (PyCFunction)gatherer_set_rows, METH_VARARGS, set_rows_doc},
    {"take", (PyCFunction)gatherer_take, METH_VARARGS, take_doc},
    {"arrange", (PyCFunction)gatherer_arrange, METH_VARARGS, arrange_doc},
    {"stream", (PyCFunction)gatherer_stream, METH_NOARGS, stream_doc},
    {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {{Py_tp_doc, (void *)doc},
                              {Py_tp_new, gatherer_new},
                              {Py_tp_traverse, gatherer_traverse},
                              {Py_tp_dealloc, gatherer_dealloc},
                              {Py_tp_methods, methods},
                              {0, NULL}};

PyType_Spec fl_py_gatherer_spec = FL_PY_SPEC("Gatherer", fl_py_gatherer, Py_TPFLAGS_HAVE_GC, slots);
