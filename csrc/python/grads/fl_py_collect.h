/* fl_py_collect: turns torch's objects into a list of tensors for passes to run over.
 *
 * All functions need the interpreter lock. Collecting calls Python (attributes and iterators of the
 * user's), so any code may run meanwhile. */
#ifndef FL_PY_COLLECT_H
#define FL_PY_COLLECT_H

#include "fl_py_launch.h"

/* The tensors that one owner collects again and again. Begins zeroed. One thread at a time. */
typedef struct fl_py_grads {
    fl_py_dlpack dlpack;
    PyObject *name_grad, *name_params, *name_dtype; /* owned: str */
    PyObject *is_neg;                               /* owned: torch.Tensor.is_neg */
    PyObject *written;    /* owned: written(tensors) tells autograd that the tensors will change */
    PyObject *new_number; /* owned: new_number(like) makes a 0-d float64 tensor on like's device */
    PyObject *tensors;    /* owned: list of the tensors collected last, plain or not */
    PyObject *shard_type; /* owned: torch's DTensor; NULL: DTensor is not known, and no tensor is
                             taken apart */
    PyObject *shard_layouts; /* owned: called with a spec, returns the number of its layout (-1: not
                                covered); also joins the numbers of processes */
    PyObject *specs;         /* owned: list; for each tensor's position the last spec, or None */
    PyObject *name_spec, *name_requires_grad; /* owned: str */
    PyObject *get_local, *get_spec;           /* owned: the descriptors of DTensor's attributes */
    uint8_t *kinds; /* owned: for each tensor's position the kind, from shard_layouts(); 0: the
                       tensor is not a DTensor */
    int64_t kinds_capacity;
    uint8_t *span_kinds; /* owned: the kind of each span of the list */
    int64_t span_kinds_capacity;
    uint64_t tensor_kinds, missing_kinds; /* one bit (1 << kind) for each kind among the tensors,
                                             and among the parameters without a gradient */
    fl_tensor_list list;
    uint64_t *layouts; /* owned: the layout of each span of the list */
    int64_t layouts_capacity;
    PyObject *dtypes[FL_FLOATS]; /* owned: torch.float64, ... by FL_F64, ...; NULL: no tensor had
                                    this dtype yet */
    uint32_t types;              /* one bit (1 << FL_F64, ...) for each type among the tensors */
    int32_t device;              /* the tensors' device: FL_PY_CPU, or the index of a CUDA device */
    bool is_plain; /* passes may run: each tensor is exactly a torch.Tensor, or a DTensor with such
                      a part, dense and real floating; all tensors are on one device on which passes
                      run; no two tensors share memory. types and device are set only if is_plain is
                      true */
    bool has_shards; /* a tensor, or a parameter without a gradient, is a DTensor; passes then run
                        over the parts in this process */
    fl_py_launcher launcher;
} fl_py_grads;

/* Opens zeroed grads: 0, or -1 and an exception. The caller calls fl_py_grads_clear and _free in
 * both cases. Takes its own references to the arguments. If tensor_type is None, no tensors are
 * plain. */
int fl_py_grads_open(fl_py_grads *self, PyObject *tensor_type, PyObject *written,
                     PyObject *new_number, PyObject *new_scratch);
int fl_py_grads_traverse(fl_py_grads *self, visitproc visit, void *arg);
void fl_py_grads_clear(fl_py_grads *self); /* drops all references that can be part of a cycle */
void fl_py_grads_free(fl_py_grads *self);  /* frees the remaining references and the memory */

/* The kind of items in a list, tuple or iterable. */
typedef enum fl_py_source {
    FL_PY_GROUPS,     /* the items are param_groups of an optimizer */
    FL_PY_PARAMETERS, /* the items are parameters: each .grad that is not None is collected */
    FL_PY_TENSORS     /* the items are tensors, and are collected themselves */
} fl_py_source;

/* Replaces the collection with the tensors found in `items`, and holds references to the tensors:
 * 0, or -1 and an exception, and then nothing is plain. Sets is_plain. */
int fl_py_grads_collect(fl_py_grads *self, PyObject *items, fl_py_source source);

/* From now on takes DTensors apart, and collects the parts in this process: 0, or -1 and an
 * exception. Kinds are numbers from 1 to FL_PY_MAX_KIND. Takes its own references to the
 * arguments. */
enum { FL_PY_MAX_KIND = 62 };
int fl_py_grads_take_shards(fl_py_grads *self, PyObject *shard_type, PyObject *shard_layouts);

/* Collects the spans of one kind from `from`, a plain list: 0, or -1 and an exception. The tensors
 * belong to `from`: release this collection before `from`. */
int fl_py_grads_collect_kind(fl_py_grads *self, const fl_py_grads *from, int32_t kind);

/* Releases the tensors: 0, or -1 and an exception. */
int fl_py_grads_release(fl_py_grads *self);

/* Returns the tensors of the last collection that are not DTensors: a new reference to a list; NULL
 * and an exception. */
PyObject *fl_py_grads_ordinary(const fl_py_grads *self);

/* Returns the tensor for a pass: for a DTensor the part in this process, otherwise the tensor
 * itself. New reference, or NULL and an exception. */
PyObject *fl_py_grads_local(const fl_py_grads *self, PyObject *tensor);

/* Returns how many plain tensors have no elements; such tensors have no span. */
Py_ssize_t fl_py_grads_empty(const fl_py_grads *self);

/* Returns the tensors' torch dtypes as a new set. */
PyObject *fl_py_grads_dtypes(const fl_py_grads *self);

#endif
