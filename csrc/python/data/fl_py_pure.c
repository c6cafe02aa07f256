/* fl_py_pure: see fl_py_pure.h. */
#include "fl_py_pure.h"

#include <marshal.h>
#include <opcode.h>
#include <string.h>

enum { DEEPEST = 16, MARSHAL_VERSION = 2 }; /* 2: no references, whose number may change */

/* Of torch, of NumPy, of tensors and of plain values; builtins. None draws, changes a list or a
 * dict, or gives memory as it was found, as torch.empty does. */
static const char *const COMPUTING[] = {
    "abs",       "all",     "any",     "arange",  "array",     "as_tensor",  "astype",   "bool",
    "count",     "dict",    "divmod",  "double",  "enumerate", "eye",        "fill_",    "flatten",
    "float",     "float16", "float32", "float64", "full",      "functional", "get",      "index",
    "int",       "int16",   "int32",   "int64",   "int8",      "item",       "items",    "keys",
    "len",       "list",    "long",    "max",     "min",       "nn",         "one_hot",  "numpy",
    "ones",      "pow",     "range",   "reshape", "round",     "scatter",    "scatter_", "sorted",
    "squeeze",   "str",     "sum",     "tensor",  "torch",     "to",         "tuple",    "uint8",
    "unsqueeze", "values",  "view",    "where",   "zeros",     "zip",        NULL};

/* The caller looks which of them are torch's. */
static const char *const SEEDING[] = {"initial_seed", "int",   "numpy", "random",
                                      "seed",         "torch", NULL};

static const char *const MODULES[] = {"torch", "torch.nn",     "torch.nn.functional",
                                      "numpy", "numpy.random", "random"};
enum { MODULE_COUNT = sizeof MODULES / sizeof *MODULES, COMPUTING_MODULES = 4, OWNERS = 8 };

typedef struct reading {
    const char *const *listed;
    int modules_known;
    PyObject *module[OWNERS];  /* owned: MODULES, then Tensor and ndarray; NULL: not imported */
    PyObject *globals;         /* borrowed from the function */
    PyObject *modules, *plain; /* owned: dicts of the globals that are used */
    PyObject *why;             /* owned: why the function is refused, or NULL */
} reading;

/* Sets what is returned in place of the result. Always -1. */
static int refuse(reading *self, const char *what, PyObject *name)
{
    self->why = PyUnicode_FromFormat("it may draw or keep something: it %s %S", what, name);
    return -1;
}

static bool is_listed(const reading *self, PyObject *name)
{
    for (const char *const *each = self->listed; *each != NULL; each++)
        if (PyUnicode_CompareWithASCIIString(name, *each) == 0) return true;
    return false;
}

static bool is_known_module(const reading *self, PyObject *value)
{
    for (int i = 0; i < self->modules_known; i++)
        if (value == self->module[i]) return true;
    return false;
}

/* Whether a value is a number, text, None, or a list, tuple or dict of these, by exact type. */
static bool is_plain(PyObject *value, int depth)
{
    if (value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) ||
        PyFloat_CheckExact(value) || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value))
        return true;
    if (depth == DEEPEST) return false;
    if (PyDict_CheckExact(value)) {
        PyObject *key, *item;
        Py_ssize_t at = 0;
        while (PyDict_Next(value, &at, &key, &item))
            if (!is_plain(key, depth + 1) || !is_plain(item, depth + 1)) return false;
        return true;
    }
    if (!PyTuple_CheckExact(value) && !PyList_CheckExact(value)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); i++)
        if (!is_plain(PySequence_Fast_GET_ITEM(value, i), depth + 1)) return false;
    return true;
}

/* Whether this text is the name of a package or of a module inside it. */
static bool is_within(PyObject *text, const char *package)
{
    const char *name = text != NULL && PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : NULL;
    size_t length = strcspn(package, ".");
    return name != NULL && strncmp(name, package, length) == 0 &&
           (name[length] == '.' || name[length] == '\0');
}

/* Whether objects are of a package, of Python or of Cython, whose functions are of a class of its
 * own. */
static bool is_own_class(PyTypeObject *type, const char *package)
{
    PyObject *home = PyObject_GetAttrString((PyObject *)type, "__module__");
    bool is_own = is_within(home, package) || is_within(home, "builtins") ||
                  strstr(type->tp_name, "cython_function_or_method") != NULL;
    Py_XDECREF(home);
    return is_own;
}

/* Whether a thing of another package is in the place of one of this module: a Python function, or
 * an object of a class of that package. */
static bool is_replaced(PyObject *module, const char *name_of_module, PyObject *name)
{
    PyObject *found = PyDict_GetItemWithError(PyModule_GetDict(module), name);
    if (found == NULL) return false;
    if (PyMethod_Check(found)) found = PyMethod_GET_FUNCTION(found);
    PyObject *globals = PyFunction_Check(found) ? PyFunction_GET_GLOBALS(found) : NULL;
    bool is_own = globals != NULL
                      ? is_within(PyDict_GetItemString(globals, "__name__"), name_of_module)
                      : is_own_class(Py_TYPE(found), name_of_module);
    PyErr_Clear();
    return !is_own;
}

/* Whether the name of a global that is not listed may be another thing's attribute, too: the names
 * in code do not tell them apart. */
static bool is_attribute(const reading *self, PyObject *name, PyObject *value)
{
    for (int i = 0; i < MODULE_COUNT; i++) {
        PyObject *dict = self->module[i] != NULL ? PyModule_GetDict(self->module[i]) : NULL;
        PyObject *found = dict != NULL ? PyDict_GetItemWithError(dict, name) : NULL;
        if (found != NULL && found != value) return true;
    }
    for (int i = MODULE_COUNT; i < OWNERS; i++)
        if (self->module[i] != NULL && PyObject_HasAttr(self->module[i], name)) return true;
    return false;
}

static int read_name(reading *self, PyObject *name)
{
    PyObject *value = PyDict_GetItemWithError(self->globals, name);
    if (value != NULL && !is_listed(self, name) && is_attribute(self, name, value))
        return refuse(self, "uses", name);
    if (value != NULL && is_known_module(self, value))
        return PyDict_SetItem(self->modules, name, value);
    if (value != NULL && is_plain(value, 0)) return PyDict_SetItem(self->plain, name, value);
    if (PyErr_Occurred()) return -1;
    if (value != NULL || !is_listed(self, name)) return refuse(self, "uses", name);
    for (int i = 0; i < MODULE_COUNT; i++)
        if (self->module[i] != NULL && is_replaced(self->module[i], MODULES[i], name))
            return refuse(self, "uses a function that was replaced:", name);
    return 0;
}

static bool is_module_known(const reading *self, PyObject *name)
{
    for (int i = 0; i < self->modules_known; i++)
        if (PyUnicode_CompareWithASCIIString(name, MODULES[i]) == 0) return true;
    return false;
}

/* Reads what code imports: the names of modules and of their parts are among its other names. 0, or
 * -1 and an exception. */
static int read_imports(reading *self, PyCodeObject *code)
{
    PyObject *bytes = PyCode_GetCode(code);
    int status = bytes != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i + 1 < PyBytes_GET_SIZE(bytes); i += 2) {
        const uint8_t *step = (const uint8_t *)PyBytes_AS_STRING(bytes) + i;
        if (step[0] != IMPORT_NAME || step[1] >= PyTuple_GET_SIZE(code->co_names)) continue;
        PyObject *name = PyTuple_GET_ITEM(code->co_names, step[1]);
        if (!is_module_known(self, name)) status = refuse(self, "imports", name);
    }
    Py_XDECREF(bytes);
    return status;
}

/* Reads the names in a code object and those inside it: 0, or -1 and an exception. */
static int read_code(reading *self, PyCodeObject *code)
{
    if (read_imports(self, code) != 0) return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); i++)
        if (read_name(self, PyTuple_GET_ITEM(code->co_names, i)) != 0) return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_consts); i++) {
        PyObject *inner = PyTuple_GET_ITEM(code->co_consts, i);
        if (PyCode_Check(inner) && read_code(self, (PyCodeObject *)inner) != 0) return -1;
    }
    return 0;
}

/* Returns the value of a closure variable, of a known module its name, as a new reference. */
static PyObject *read_cell(const reading *self, PyObject *cell)
{
    PyObject *value = PyCell_Get(cell);
    if (value == NULL) return Py_NewRef(Py_Ellipsis); /* not plain */
    if (!is_known_module(self, value)) return value;
    PyObject *name = PyModule_GetNameObject(value);
    Py_DECREF(value);
    return name;
}

/* Those of all closure variables, as a new list. */
static PyObject *read_cells(const reading *self, PyObject *closure)
{
    Py_ssize_t count = closure != NULL ? PyTuple_GET_SIZE(closure) : 0;
    PyObject *cells = PyList_New(count);
    for (Py_ssize_t i = 0; cells != NULL && i < count; i++) {
        PyObject *value = read_cell(self, PyTuple_GET_ITEM(closure, i));
        if (value != NULL)
            PyList_SET_ITEM(cells, i, value);
        else
            Py_CLEAR(cells);
    }
    return cells;
}

/* A function that is not Python's: torch.tensor, or a builtin such as float. */
static PyObject *read_other(reading *self, PyObject *function)
{
    PyObject *name = PyObject_GetAttrString(function, "__name__"), *found = NULL;
    PyErr_Clear();
    if (name != NULL && PyUnicode_Check(name) && is_listed(self, name)) {
        found = PyDict_GetItemWithError(PyEval_GetBuiltins(), name);
        if (found != function && self->module[0] != NULL)
            found = PyDict_GetItemWithError(PyModule_GetDict(self->module[0]), name);
    }
    Py_XDECREF(name);
    if (found == function) return PyTuple_Pack(1, function);
    refuse(self, "is not a plain function, but of", (PyObject *)Py_TYPE(function));
    return NULL;
}

static PyObject *read_function(reading *self, PyObject *function)
{
    if (!PyFunction_Check(function)) return read_other(self, function);
    PyObject *code = PyFunction_GET_CODE(function), *cells = NULL, *dump = NULL, *found = NULL;
    PyObject *defaults = PyFunction_GET_DEFAULTS(function);
    PyObject *by_name = PyFunction_GET_KW_DEFAULTS(function);
    self->globals = PyFunction_GET_GLOBALS(function);
    if (read_code(self, (PyCodeObject *)code) != 0) return NULL;
    cells = read_cells(self, PyFunction_GET_CLOSURE(function));
    PyObject *held = cells != NULL
                         ? PyTuple_Pack(4, defaults != NULL ? defaults : Py_None,
                                        by_name != NULL ? by_name : Py_None, cells, self->plain)
                         : NULL;
    if (held != NULL && !is_plain(held, 0))
        refuse(self, "has defaults or closure variables that are not plain:", function);
    else if (held != NULL)
        dump = PyMarshal_WriteObjectToString(held, MARSHAL_VERSION);
    if (dump != NULL) found = PyTuple_Pack(3, code, self->modules, dump);
    Py_XDECREF(dump);
    Py_XDECREF(held);
    Py_XDECREF(cells);
    return found;
}

/* A module that is imported, borrowed; NULL: it is not, or another object stands in its place. */
static PyObject *find_module(PyObject *modules, const char *name)
{
    PyObject *found = PyDict_GetItemString(modules, name);
    return found != NULL && PyModule_Check(found) ? found : NULL;
}

/* Returns the function in an object of the class Lambda of torchvision.transforms, or the object
 * itself, as a new reference. */
static PyObject *open_lambda(PyObject *modules, PyObject *function)
{
    PyObject *v1 = find_module(modules, "torchvision.transforms");
    PyObject *cls = v1 != NULL ? PyDict_GetItemString(PyModule_GetDict(v1), "Lambda") : NULL;
    bool is_lambda = (PyObject *)Py_TYPE(function) == cls;
    return is_lambda ? PyObject_GetAttrString(function, "lambd") : Py_NewRef(function);
}

static PyObject *find_class(PyObject *module, const char *name)
{
    return module != NULL ? Py_XNewRef(PyDict_GetItemString(PyModule_GetDict(module), name)) : NULL;
}

PyObject *fl_py_read_function(PyObject *function, bool is_seeder)
{
    reading self = {.listed = is_seeder ? SEEDING : COMPUTING,
                    .modules_known = is_seeder ? MODULE_COUNT : COMPUTING_MODULES};
    PyObject *modules = PySys_GetObject("modules"), *found = NULL; /* borrowed */
    function = open_lambda(modules, function);
    for (int i = 0; i < MODULE_COUNT; i++)
        self.module[i] = Py_XNewRef(find_module(modules, MODULES[i]));
    self.module[MODULE_COUNT] = find_class(self.module[0], "Tensor");
    self.module[MODULE_COUNT + 1] = find_class(self.module[COMPUTING_MODULES - 1], "ndarray");
    self.modules = PyDict_New();
    self.plain = PyDict_New();
    if (function != NULL && self.modules != NULL && self.plain != NULL)
        found = read_function(&self, function);
    for (int i = 0; i < OWNERS; i++) Py_XDECREF(self.module[i]);
    Py_XDECREF(self.modules);
    Py_XDECREF(self.plain);
    Py_XDECREF(function);
    return self.why != NULL ? self.why : found;
}
