/* fl_py_image_draws: the heap type _core.ImageDraws, an ImagePlan with parameters drawn as
 * torchvision draws them: from torch's generator, or from the generators that torch's workers would
 * have.
 *
 * A table takes ImageDraws in place of an ImagePlan. All functions need the interpreter lock and
 * the loader's own lock: the consumer's thread draws, right before it submits the batch. */
#ifndef FL_PY_IMAGE_DRAWS_H
#define FL_PY_IMAGE_DRAWS_H

#include "fl_image_draws.h"
#include "fl_py_image_plan.h"

typedef struct fl_py_image_draws {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    fl_py_image_plan *plan; /* owned */
    PyObject *exp;          /* owned: a function, torch.exp() of a float32 */
    PyObject *tilt;    /* owned: a function, the coefficients of a perspective from the numbers of
                          fl_torch_tilt */
    PyObject *weigh;   /* owned: a function, half the weights of a blur from taps and sigma */
    PyObject *answers; /* owned: recent results of these functions, by the argument or the tuple of
                          arguments */
    PyObject *missing; /* owned: a list of the arguments that `answers` lacked in the last draw */
    fl_image_draws *draws;    /* owned */
    fl_torch_random *streams; /* owned: one stream for each worker; NULL: not seeded */
    int64_t workers;
} fl_py_image_draws;

extern PyType_Spec fl_py_image_draws_spec;

#endif
