/* fl_py_token_mask: see fl_py_token_mask.h. No Python code runs between reading the generator and
 * putting its state back, so no other thread draws meanwhile. */
#include "fl_py_token_mask.h"

#include "fl_py_torch_random.h"
#include "fl_token_mask.h"

enum { MOST_SPECIALS = 64 };

const char fl_py_mask_tokens_doc[] =
    "mask_tokens(generator, ids, labels, special, special_ids, masked, replaced, changed,\n"
    "mask_id, words, /)\n--\n\n"
    "Draw which tokens are masked, as transformers' DataCollatorForLanguageModeling\n"
    "does. Writes `labels`, and changes `ids`; both are contiguous int64 tensors of one\n"
    "shape. special: a bool tensor of tokens that stay, or None for tokens that have one\n"
    "of the special_ids, a tuple. masked, replaced, changed: probabilities. words: ids\n"
    "of changed tokens are below this; 0: no token is changed, and nothing is drawn for\n"
    "that. Raises ValueError or TypeError for other values; nothing has then changed.";

/* Returns the address of a contiguous tensor's elements, and checks `bits` and `count`; NULL and an
 * exception. */
static char *elements_of(const fl_py_dlpack *dlpack, PyObject *tensor, int bits, int64_t count)
{
    fl_tensor view;
    if (fl_py_view(dlpack, tensor, &view) != 0) return NULL;
    int64_t bytes = fl_tensor_bytes(view.dtype, view.ndim, view.shape);
    if (view.dtype.bits == bits && fl_tensor_is_contiguous(&view) && bytes == count * bits / 8)
        return (char *)(uintptr_t)view.data;
    PyErr_SetString(PyExc_ValueError, "ids, labels and special must be contiguous tensors of one "
                                      "shape, of int64, int64 and bool");
    return NULL;
}

static int read_specials(PyObject *tuple, int64_t *ids, fl_token_mask *rule)
{
    rule->specials = PyTuple_GET_SIZE(tuple);
    rule->special_ids = ids;
    if (rule->specials > MOST_SPECIALS)
        return FL_PY_FAIL(PyExc_ValueError, "special_ids must be at most %d", MOST_SPECIALS);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        ids[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (ids[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

typedef struct tokens {
    int64_t *ids, *labels, *at; /* borrowed, borrowed, owned */
    int64_t count;
} tokens;

/* Finds the elements of the tensors: 0, or -1 and an exception. */
static int open_tokens(const fl_py_dlpack *dlpack, PyObject *ids, PyObject *labels,
                       PyObject *special, fl_token_mask *rule, tokens *out)
{
    fl_tensor view;
    if (fl_py_view(dlpack, ids, &view) != 0) return -1;
    int64_t bytes = fl_tensor_bytes(view.dtype, view.ndim, view.shape);
    out->count = bytes / (int64_t)sizeof *out->ids;
    out->ids = (int64_t *)(void *)elements_of(dlpack, ids, 64, out->count);
    if (out->ids != NULL)
        out->labels = (int64_t *)(void *)elements_of(dlpack, labels, 64, out->count);
    if (out->labels == NULL) return -1;
    if (special != Py_None) {
        rule->special = (const uint8_t *)elements_of(dlpack, special, 8, out->count);
        if (rule->special == NULL) return -1;
    }
    out->at = fl_alloc(bytes + 1);
    if (out->at == NULL) PyErr_NoMemory();
    return out->at != NULL ? 0 : -1;
}

static int
draw(const fl_py_dlpack *dlpack, PyObject *generator, const fl_token_mask *rule, const tokens *what)
{
    fl_torch_random random;
    PyObject *state = fl_py_torch_state_take(dlpack, generator, &random);
    if (state == NULL) return -1;
    fl_token_mask_draw(rule, &random, what->count, what->ids, what->labels, what->at);
    return fl_py_torch_state_put(dlpack, generator, state, &random);
}

PyObject *fl_py_mask_tokens(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *generator, *ids, *labels, *special, *specials;
    int64_t special_ids[MOST_SPECIALS];
    long long mask_id, words;
    fl_token_mask rule = {0};
    fl_py_dlpack dlpack;
    tokens what = {0};
    if (!PyArg_ParseTuple(args, "OOOOO!fffLL:mask_tokens", &generator, &ids, &labels, &special,
                          &PyTuple_Type, &specials, &rule.masked, &rule.replaced, &rule.changed,
                          &mask_id, &words) ||
        read_specials(specials, special_ids, &rule) != 0)
        return NULL;
    if (words < 0 || words > FL_MOST_WORDS)
        return PyErr_Format(PyExc_ValueError, "words must be in [0, 2**28), got %lld", words);
    rule.mask_id = mask_id;
    rule.words = words;
    if (fl_py_dlpack_open_torch(&dlpack) != 0) return NULL;
    int was_on = PyGC_Disable(); /* no Python code runs between a look at the tensors and the end */
    int status = open_tokens(&dlpack, ids, labels, special, &rule, &what);
    if (status == 0) status = draw(&dlpack, generator, &rule, &what);
    if (was_on) PyGC_Enable();
    fl_free(what.at);
    fl_py_dlpack_close(&dlpack);
    return status == 0 ? Py_NewRef(Py_None) : NULL;
}
