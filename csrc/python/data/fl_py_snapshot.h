/* fl_py_snapshot: the heap type _core.Snapshot, the attributes of objects at one time.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_SNAPSHOT_H
#define FL_PY_SNAPSHOT_H

#include "fl_py.h"

extern PyType_Spec fl_py_snapshot_spec;

#endif
