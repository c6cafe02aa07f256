/* fl_py_snapshot: see fl_py_snapshot.h. Values are compared by identity, so an equal value that was
 * assigned again counts as different. */
#include "fl_py_snapshot.h"

typedef struct fl_py_snapshot {
    PyObject_HEAD
    PyObject *things; /* owned: tuple of weak references to the objects; of objects that have none,
                         the objects themselves */
    PyObject *types;  /* owned: tuple of the objects' classes */
    PyObject *attributes; /* owned: tuple of the objects' __dict__s */
    PyObject *noted; /* owned: for each object a tuple of its attributes (name, value, name, value,
                        ...), with a tuple of items for a list, and a tuple of values for a dict */
} fl_py_snapshot;

/* Returns the snapshot's form of a value, as a new reference. */
static PyObject *note_value(PyObject *value)
{
    if (PyList_CheckExact(value)) return PyList_AsTuple(value);
    if (!PyDict_Check(value)) return Py_NewRef(value);
    PyObject *values = PyDict_Values(value);
    PyObject *items = values != NULL ? PyList_AsTuple(values) : NULL;
    Py_XDECREF(values);
    return items;
}

static PyObject *note_dict(PyObject *dict)
{
    PyObject *key, *value, *noted = PyTuple_New(2 * PyDict_GET_SIZE(dict));
    Py_ssize_t at = 0, i = 0;
    while (noted != NULL && i < PyTuple_GET_SIZE(noted) && PyDict_Next(dict, &at, &key, &value)) {
        PyObject *item = note_value(value);
        if (item == NULL) {
            Py_CLEAR(noted);
            break;
        }
        PyTuple_SET_ITEM(noted, i++, Py_NewRef(key));
        PyTuple_SET_ITEM(noted, i++, item);
    }
    return noted;
}

static bool are_items(PyObject *list, PyObject *noted)
{
    if (!PyTuple_CheckExact(noted) || PyList_GET_SIZE(list) != PyTuple_GET_SIZE(noted))
        return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++)
        if (PyList_GET_ITEM(list, i) != PyTuple_GET_ITEM(noted, i)) return false;
    return true;
}

static bool are_values(PyObject *dict, PyObject *noted)
{
    PyObject *value;
    Py_ssize_t at = 0, i = 0;
    if (!PyTuple_CheckExact(noted) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(noted))
        return false;
    while (PyDict_Next(dict, &at, NULL, &value))
        if (value != PyTuple_GET_ITEM(noted, i++)) return false;
    return true;
}

static bool is_noted(PyObject *value, PyObject *noted)
{
    if (PyList_CheckExact(value)) return are_items(value, noted);
    return PyDict_Check(value) ? are_values(value, noted) : value == noted;
}

static bool is_dict_noted(PyObject *dict, PyObject *noted)
{
    PyObject *key, *value;
    Py_ssize_t at = 0, i = 0;
    if (2 * PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(noted)) return false;
    while (PyDict_Next(dict, &at, &key, &value)) {
        if (key != PyTuple_GET_ITEM(noted, i) || !is_noted(value, PyTuple_GET_ITEM(noted, i + 1)))
            return false;
        i += 2;
    }
    return true;
}

/* Returns the object that a reference of `things` stands for, as a new reference. NULL: the object
 * has died. */
static PyObject *find_thing(PyObject *ref)
{
    if (!PyWeakref_CheckRefExact(ref)) return Py_NewRef(ref);
#if PY_VERSION_HEX < 0x030D0000
    PyObject *thing = PyWeakref_GET_OBJECT(ref);
    return thing != Py_None ? Py_NewRef(thing) : NULL;
#else
    PyObject *thing;
    return PyWeakref_GetRef(ref, &thing) > 0 ? thing : NULL;
#endif
}

/* Tells whether object i still has its class and its __dict__, which both may be assigned. */
static bool is_thing_noted(const fl_py_snapshot *self, Py_ssize_t i)
{
    PyObject *thing = find_thing(PyTuple_GET_ITEM(self->things, i)), *dict = NULL;
    if (thing == NULL) return false;
    if ((PyObject *)Py_TYPE(thing) == PyTuple_GET_ITEM(self->types, i))
        dict = PyObject_GenericGetDict(thing, NULL);
    PyErr_Clear();
    Py_DECREF(thing);
    Py_XDECREF(dict); /* the tuple keeps the noted one alive */
    return dict != NULL && dict == PyTuple_GET_ITEM(self->attributes, i);
}

/* Notes object i of the list: 0, or -1 and an exception. */
static int note_thing(fl_py_snapshot *self, PyObject *thing, Py_ssize_t i)
{
    if (PyType_Check(thing)) { /* PyObject_GenericGetDict() would make a dict for a static type */
        PyErr_SetString(PyExc_TypeError, "Snapshot: objects must not be classes");
        return -1;
    }
    bool has_refs = PyType_SUPPORTS_WEAKREFS(Py_TYPE(thing));
    PyObject *ref = has_refs ? PyWeakref_NewRef(thing, NULL) : Py_NewRef(thing);
    if (ref == NULL) return -1;
    PyTuple_SET_ITEM(self->things, i, ref);
    PyTuple_SET_ITEM(self->types, i, Py_NewRef(Py_TYPE(thing)));
    PyObject *dict = PyObject_GenericGetDict(thing, NULL);
    if (dict == NULL) return -1;
    PyTuple_SET_ITEM(self->attributes, i, dict);
    PyObject *noted = note_dict(dict);
    if (noted == NULL) return -1;
    PyTuple_SET_ITEM(self->noted, i, noted);
    return 0;
}

static PyObject *snapshot_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"things", NULL};
    PyObject *things;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:Snapshot", keywords, &PyList_Type, &things))
        return NULL;
    fl_py_snapshot *self = (fl_py_snapshot *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(things);
    self->things = PyTuple_New(count);
    self->types = PyTuple_New(count);
    self->attributes = PyTuple_New(count);
    self->noted = PyTuple_New(count);
    bool has_all = self->things != NULL && self->types != NULL;
    int status = has_all && self->attributes != NULL && self->noted != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i < count; i++)
        status = note_thing(self, PyList_GET_ITEM(things, i), i);
    if (status == 0) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int snapshot_traverse(fl_py_snapshot *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->things);
    Py_VISIT(self->types);
    Py_VISIT(self->attributes);
    Py_VISIT(self->noted);
    return 0;
}

static int snapshot_clear(fl_py_snapshot *self)
{
    Py_CLEAR(self->things);
    Py_CLEAR(self->types);
    Py_CLEAR(self->attributes);
    Py_CLEAR(self->noted);
    return 0;
}

static void snapshot_dealloc(fl_py_snapshot *self)
{
    PyObject_GC_UnTrack(self);
    snapshot_clear(self);
    fl_py_free(self);
}

PyDoc_STRVAR(is_same_doc,
             "is_same()\n--\n\n"
             "Return True if each object still has its class and the noted attributes.");

static PyObject *snapshot_is_same(fl_py_snapshot *self, PyObject *Py_UNUSED(ignored))
{
    bool is_same = self->things != NULL;
    for (Py_ssize_t i = 0; is_same && i < PyTuple_GET_SIZE(self->things); i++)
        is_same = is_thing_noted(self, i) && is_dict_noted(PyTuple_GET_ITEM(self->attributes, i),
                                                           PyTuple_GET_ITEM(self->noted, i));
    return PyBool_FromLong(is_same);
}

static PyMethodDef snapshot_methods[] = {
    {"is_same", (PyCFunction)snapshot_is_same, METH_NOARGS, is_same_doc}, {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(snapshot_doc,
             "Snapshot(things)\n--\n\n"
             "The present classes and attributes of the objects in a list: the names and the\n"
             "identities of the values. Lists and dicts among the values are noted item by item.\n"
             "The snapshot keeps the values alive, but not the objects if they can be weakly\n"
             "referenced. An object that has died is not the same.");

static PyType_Slot snapshot_slots[] = {{Py_tp_doc, (void *)snapshot_doc},
                                       {Py_tp_new, snapshot_new},
                                       {Py_tp_traverse, snapshot_traverse},
                                       {Py_tp_clear, snapshot_clear},
                                       {Py_tp_dealloc, snapshot_dealloc},
                                       {Py_tp_methods, snapshot_methods},
                                       {0, NULL}};

PyType_Spec fl_py_snapshot_spec =
    FL_PY_SPEC("Snapshot", fl_py_snapshot, Py_TPFLAGS_HAVE_GC, snapshot_slots);

/* ---- functions of classes and modules */

const char fl_py_find_other_doc[] =
    PyDoc_STR("find_other(noted)\n--\n\n"
              "Compare attributes with noted values, given as a tuple (owner, name, value,\n"
              "owner, name, value, ...). An owner is a class or a module; the value None means\n"
              "that the owner has no own attribute of this name. Returns the index of the first\n"
              "owner whose attribute differs, or -1 if all attributes are as noted.");

/* Returns the attribute that a class or module itself defines, as a borrowed reference that the
 * caller only compares. NULL without an exception: there is no such attribute. */
static PyObject *find_own(PyObject *owner, PyObject *name)
{
    if (!PyType_Check(owner)) return PyDict_GetItemWithError(PyModule_GetDict(owner), name);
#if PY_VERSION_HEX < 0x030C0000
    return PyDict_GetItemWithError(((PyTypeObject *)owner)->tp_dict, name);
#else
    PyObject *dict = PyType_GetDict((PyTypeObject *)owner);
    PyObject *found = PyDict_GetItemWithError(dict, name);
    Py_DECREF(dict);
    return found;
#endif
}

PyObject *fl_py_find_other(PyObject *Py_UNUSED(module), PyObject *noted)
{
    Py_ssize_t count = PyTuple_Check(noted) ? PyTuple_GET_SIZE(noted) : 1;
    if (count % 3 != 0)
        return PyErr_Format(PyExc_TypeError, "find_other: parts must be a tuple of triples");
    for (Py_ssize_t i = 0; i < count; i += 3) {
        PyObject *owner = PyTuple_GET_ITEM(noted, i), *value = PyTuple_GET_ITEM(noted, i + 2);
        if (!PyType_Check(owner) && !PyModule_Check(owner))
            return PyErr_Format(PyExc_TypeError, "find_other: owners must be classes and modules");
        PyObject *found = find_own(owner, PyTuple_GET_ITEM(noted, i + 1));
        if (found == NULL && PyErr_Occurred()) return NULL;
        if (found != (value != Py_None ? value : NULL)) return PyLong_FromSsize_t(i);
    }
    return PyLong_FromLong(-1);
}
