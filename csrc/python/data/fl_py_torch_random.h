/* fl_py_torch_random: torch's random generator of the CPU in native code, over the states of
 * torch's own generators.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_TORCH_RANDOM_H
#define FL_PY_TORCH_RANDOM_H

#include "fl_py.h"
#include "fl_torch_random.h"

/* _core.torch_draw. */
PyObject *fl_py_torch_draw(PyObject *module, PyObject *args);
extern const char fl_py_torch_draw_doc[];

/* Calls generator.get_state(), and reads the state into *out. Returns the tensor of the state, a
 * new reference, for fl_py_torch_state_put. NULL and an exception. */
PyObject *
fl_py_torch_state_take(const fl_py_dlpack *dlpack, PyObject *generator, fl_torch_random *out);

/* Writes the state to the tensor, and calls generator.set_state() with the tensor: 0, or -1 and an
 * exception. Takes the reference. */
int fl_py_torch_state_put(const fl_py_dlpack *dlpack, PyObject *generator, PyObject *tensor,
                          const fl_torch_random *state);

#endif
