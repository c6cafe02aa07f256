/* fl_py_image_draws: the heap type _core.ImageDraws, an ImagePlan whose parameters are drawn as
 * torchvision draws them, from torch's generator or from those that workers of torch would have.
 *
 * A table takes it in place of an ImagePlan. All functions need the interpreter lock, and the
 * loader's own: draws are made on the consumer's thread, right before the batch is submitted. */
#ifndef FL_PY_IMAGE_DRAWS_H
#define FL_PY_IMAGE_DRAWS_H

#include "fl_image_draws.h"
#include "fl_py_image_plan.h"

typedef struct fl_py_image_draws {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    fl_py_image_plan *plan; /* owned */
    PyObject *exp;          /* owned: a function, torch.exp() of a float32; */
    PyObject *exps;         /* owned: {argument: result} of those that were needed */
    bool is_missing;        /* one was needed that is not in `exps`: of */
    float missing;
    fl_image_draws *draws;    /* owned */
    fl_torch_random *streams; /* owned: of workers; NULL: not seeded */
    int64_t workers;
} fl_py_image_draws;

extern PyType_Spec fl_py_image_draws_spec;

#endif
