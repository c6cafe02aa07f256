/* fl_py_collect: from torch's objects to a list of tensors that passes can run over.
 *
 * All functions need the interpreter lock. Collecting calls Python (attributes and iterators of the
 * user's), so anything may run meanwhile. */
#ifndef FL_PY_COLLECT_H
#define FL_PY_COLLECT_H

#include "fl_py_launch.h"

/* Tensors that one owner collects again and again. Begins zeroed. One thread at a time. */
typedef struct fl_py_grads {
    fl_py_dlpack dlpack;
    PyObject *name_grad, *name_params, *name_dtype; /* owned: str */
    PyObject *is_neg;                               /* owned: torch.Tensor.is_neg */
    PyObject *written;    /* owned: written(tensors) tells autograd that they will change */
    PyObject *new_number; /* owned: new_number(like) makes a 0-d float64 tensor on its device */
    PyObject *tensors;    /* owned: list of those that were collected last, plain or not */
    PyObject *shard_type; /* owned: torch's DTensor; NULL: none is known, and none is taken apart */
    PyObject *shard_layouts; /* owned: numbers the layouts of DTensors when it is called with a
                                spec (-1: not covered), and joins the numbers of processes */
    PyObject *specs;         /* owned: list, by the position of a tensor its last spec, or None */
    PyObject *name_spec, *name_requires_grad; /* owned: str */
    PyObject *get_local, *get_spec;           /* owned: the descriptors of DTensor's attributes */
    uint8_t *kinds; /* owned: by the position of a tensor its kind, as shard_layouts() says; 0: it
                       is no DTensor */
    int64_t kinds_capacity;
    uint8_t *span_kinds; /* owned: the same for each span of the list */
    int64_t span_kinds_capacity;
    uint64_t tensor_kinds, missing_kinds; /* one bit (1 << kind) for each kind among the tensors,
                                             and among the parameters without a gradient */
    fl_tensor_list list;
    uint64_t *layouts; /* owned: the layout of each span of the list */
    int64_t layouts_capacity;
    PyObject *dtypes[FL_FLOATS]; /* owned: torch.float64, ... by FL_F64, ...; NULL: not met yet */
    uint32_t types;              /* one bit (1 << FL_F64, ...) for each type among the tensors */
    int32_t device;              /* of all tensors: FL_PY_CPU, or the index of a CUDA device */
    bool is_plain;   /* passes may run: each tensor is exactly a torch.Tensor, or a DTensor of such,
                        dense and real floating, all on one device that passes run on, no two share
                        memory. types and device are set only then */
    bool has_shards; /* one is a DTensor, or a parameter without a gradient is; passes then see what
                        this process has of it */
    fl_py_launcher launcher;
} fl_py_grads;

/* 0, or -1 and an exception; either way fl_py_grads_clear and _free take it apart. The references
 * are borrowed. Without a tensor_type (None) no tensors are plain. */
int fl_py_grads_open(fl_py_grads *self, PyObject *tensor_type, PyObject *written,
                     PyObject *new_number, PyObject *new_scratch);
int fl_py_grads_traverse(fl_py_grads *self, visitproc visit, void *arg);
void fl_py_grads_clear(fl_py_grads *self); /* all references that can be part of a cycle */
void fl_py_grads_free(fl_py_grads *self);  /* all the rest */

/* What the items of a list, tuple or iterable are. */
typedef enum fl_py_source {
    FL_PY_GROUPS,     /* param_groups of an optimizer */
    FL_PY_PARAMETERS, /* their .grad is collected, where it is not None */
    FL_PY_TENSORS     /* are collected themselves */
} fl_py_source;

/* Collects anew and holds what it finds: 0, or -1 and an exception, after which nothing is plain.
 * Sets is_plain. */
int fl_py_grads_collect(fl_py_grads *self, PyObject *items, fl_py_source source);

/* Takes DTensors for what they hold from now on: 0, or -1 and an exception. Kinds are numbers from
 * 1 to FL_PY_MAX_KIND. The references are borrowed. */
enum { FL_PY_MAX_KIND = 62 };
int fl_py_grads_take_shards(fl_py_grads *self, PyObject *shard_type, PyObject *shard_layouts);

/* Collects the spans of one kind of another list, which is plain: 0, or -1 and an exception. They
 * are the other's tensors: what is collected here must be let go of before. */
int fl_py_grads_collect_kind(fl_py_grads *self, const fl_py_grads *from, int32_t kind);

/* Lets go of the tensors: 0, or -1 and an exception. */
int fl_py_grads_release(fl_py_grads *self);

/* The tensors of the last collection that are no DTensors: a new reference to a list, NULL and an
 * exception. */
PyObject *fl_py_grads_ordinary(const fl_py_grads *self);

/* The tensor that a pass runs over: for a DTensor the part in this process. New reference, or NULL
 * and an exception. */
PyObject *fl_py_grads_local(const fl_py_grads *self, PyObject *tensor);

/* How many of the plain tensors have no elements; these have no span. */
Py_ssize_t fl_py_grads_empty(const fl_py_grads *self);

/* The torch dtypes of all tensors, a new set. */
PyObject *fl_py_grads_dtypes(const fl_py_grads *self);

#endif
