/* fl_py_torch_random: the heap type _core.TorchRandom, torch's random generator of the CPU in C.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_TORCH_RANDOM_H
#define FL_PY_TORCH_RANDOM_H

#include "fl_py.h"
#include "fl_torch_random.h"

extern PyType_Spec fl_py_torch_random_spec;

/* Calls generator.get_state(): its state into *out. New reference: the tensor that has it, to be
 * given to fl_py_torch_state_put. NULL and an exception. */
PyObject *
fl_py_torch_state_take(const fl_py_dlpack *dlpack, PyObject *generator, fl_torch_random *out);

/* Calls generator.set_state() with the tensor, which then has the state: 0, or -1 and an
 * exception. Takes the reference. */
int fl_py_torch_state_put(const fl_py_dlpack *dlpack, PyObject *generator, PyObject *tensor,
                          const fl_torch_random *state);

#endif
