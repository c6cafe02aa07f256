/* fl_py_jpeg: the heap types _core.JpegDecoder, the libjpeg-turbo that a loaded library links, and
 * _core.JpegImage, a file that an ImagePlan takes in place of an array [height, width, 3].
 *
 * Both are read-only: any thread may use them. All functions need the interpreter lock. */
#ifndef FL_PY_JPEG_H
#define FL_PY_JPEG_H

#include "fl_py.h"
#include "fl_jpeg.h"

typedef struct fl_py_jpeg_image {
    PyObject_HEAD
    fl_jpeg image;     /* borrows from the owners */
    PyObject *decoder; /* owned: a JpegDecoder */
    PyObject *data;    /* owned: bytes */
} fl_py_jpeg_image;

extern PyType_Spec fl_py_jpeg_decoder_spec, fl_py_jpeg_image_spec;

#endif
