/* fl_py_numpy: see fl_py_numpy.h. No other file includes NumPy. */
#include "fl_py_numpy.h"

#include "dlpack/dlpack.h"
#include "fl_py_error.h"

#include <numpy/arrayobject.h>

int fl_py_numpy_import(void) { return _import_array(); }

static bool find_dtype(PyArray_Descr *descr, fl_dtype *out)
{
    static const struct {
        char kind;
        uint8_t code;
    } codes[] = {{'i', kDLInt}, {'u', kDLUInt}, {'f', kDLFloat}, {'c', kDLComplex}, {'b', kDLBool}};
    int64_t bytes = PyDataType_ELSIZE(descr);
    if (!PyArray_ISNBO(descr->byteorder) || bytes > 16) return false;
    if (bytes == 16 && descr->kind != 'c') return false; /* torch has no long double */
    /* torch refuses an unsigned long long that is not NumPy's uint64. */
    if (descr->type_num == NPY_ULONGLONG && NPY_ULONGLONG != NPY_UINT64) return false;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (codes[i].kind != descr->kind) continue;
        *out = (fl_dtype){codes[i].code, (uint8_t)(bytes * 8), 1};
        return true;
    }
    return false;
}

/* SHARED(shape): the shape belongs to the array, and only the array's owner may change it. */
int fl_py_array_view(PyObject *object, fl_tensor *out)
{
    if (!PyArray_Check(object)) return 0;
    PyArrayObject *array = (PyArrayObject *)object;
    if (!find_dtype(PyArray_DESCR(array), &out->dtype))
        return FL_PY_FAIL(PyExc_TypeError, "torch has no dtype for %R", PyArray_DESCR(array));
    out->data = PyArray_BYTES(array);
    out->ndim = PyArray_NDIM(array); /* at most 64 in every NumPy */
    for (int32_t d = 0; d < out->ndim; d++) {
        out->shape[d] = PyArray_DIM(array, d);
        out->stride[d] = PyArray_STRIDE(array, d);
    }
    return 1;
}

bool fl_py_is_array(PyObject *object) { return PyArray_CheckExact(object); }

bool fl_py_is_read_only(PyObject *array) { return !PyArray_ISWRITEABLE((PyArrayObject *)array); }

bool fl_py_scalar_dtype(PyObject *scalar, fl_dtype *out)
{
    if (!PyArray_IsScalar(scalar, Number) && !PyArray_IsScalar(scalar, Bool)) return false;
    PyArray_Descr *descr = PyArray_DescrFromScalar(scalar);
    if (descr == NULL) {
        PyErr_Clear();
        return false;
    }
    bool is_found = find_dtype(descr, out);
    Py_DECREF(descr);
    /* torch refuses uint64 scalars. */
    return is_found && !(out->code == kDLUInt && out->bits == 64);
}

void fl_py_scalar_value(PyObject *scalar, char *out) { PyArray_ScalarAsCtype(scalar, out); }

bool fl_py_is_integer_scalar(PyObject *object) { return PyArray_IsScalar(object, Integer); }

PyObject *fl_py_int64_vector(Py_ssize_t length, int64_t **data)
{
    npy_intp shape = length;
    PyObject *array = PyArray_SimpleNew(1, &shape, NPY_INT64);
    if (array != NULL) *data = PyArray_DATA((PyArrayObject *)array);
    return array;
}

PyObject *fl_py_array_over(PyObject *owner, const char *data, const char *dtype, int32_t ndim,
                           const int64_t *shape)
{
    npy_intp dims[FL_MAX_NDIM];
    PyArray_Descr *descr = NULL;
    PyObject *name = PyUnicode_FromString(dtype);
    int status = name != NULL ? PyArray_DescrConverter(name, &descr) : NPY_FAIL;
    Py_XDECREF(name);
    if (status == NPY_FAIL) return NULL;
    for (int32_t d = 0; d < ndim; d++) dims[d] = (npy_intp)shape[d];
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, descr, ndim, dims, NULL,
                                           (void *)(uintptr_t)data, 0, NULL);
    if (array == NULL) return NULL;
    PyArray_UpdateFlags((PyArrayObject *)array, NPY_ARRAY_ALIGNED);
    if (PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(owner)) == 0) return array;
    Py_DECREF(array);
    return NULL;
}
