/* fl_py_file_reader: the heap type _core.FileReader: parts of many files as bytes
 * (fl_file_reader). */
#ifndef FL_PY_FILE_READER_H
#define FL_PY_FILE_READER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec fl_py_file_reader_spec;

#endif
