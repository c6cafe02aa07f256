/* fl_py_gather_rows: copies fields, and draws the random parameters of images for many batches at
 * once, by one kernel. No other kernel reads host ranges. */
#include "fl_py_gather.h"

#include "fl_cuda.h"
#include "fl_py_error.h"

#include <string.h>

typedef struct work {
    fl_row_column *columns; /* owned, like maps */
    fl_map_batch *maps;
    fl_gather of;
    bool is_fetch; /* a column lies in a host range */
} work;

/* Returns true if `to` is a batch of rows of `from`. */
static bool is_batch_of(const fl_tensor *from, const fl_tensor *to, int64_t rows)
{
    bool is_alike = memcmp(&from->dtype, &to->dtype, sizeof to->dtype) == 0;
    if (!is_alike || from->ndim < 1 || from->ndim != to->ndim || to->shape[0] != rows) return false;
    size_t dims = (size_t)(from->ndim - 1) * sizeof *from->shape;
    return memcmp(from->shape + 1, to->shape + 1, dims) == 0 && fl_tensor_is_contiguous(to);
}

static int read_column(const fl_py_gather *self, const fl_py_gather_source *source, PyObject *out,
                       fl_row_column *column)
{
    fl_tensor from, to;
    if (fl_py_gather_view_source(self, source, &from) != 0 ||
        fl_py_gather_view(self, out, &to) != 0)
        return -1;
    if (!is_batch_of(&from, &to, self->row_count))
        return FL_PY_FAIL(PyExc_ValueError,
                          "gather: a batch must have the shape and dtype of rows");
    int64_t after = (from.shape[0] - 1) * from.stride[0]; /* of the last row */
    from.shape[0] = 1;
    int64_t bytes = fl_tensor_bytes(from.dtype, from.ndim, from.shape);
    *column = (fl_row_column){.from = from.data,
                              .end = (const char *)from.data + after + bytes,
                              .to = (char *)to.data,
                              .bytes = bytes,
                              .pitch = from.stride[0]};
    if (column->bytes == 0 || fl_tensor_is_contiguous(&from)) return 0;
    return FL_PY_FAIL(PyExc_ValueError, "gather: rows must be contiguous");
}

static int launch(const fl_py_gather *self, void *stream, const void *what, fl_err *err)
{
    fl_gather of = ((const work *)what)->of, maps = of;
    if (!((const work *)what)->is_fetch) return fl_cuda_gather(self->device, stream, &of, err);
    /* The few blocks that read over the link would draw for long. */
    of.most_blocks = FL_CUDA_FETCH_BLOCKS;
    of.map_count = maps.column_count = 0;
    if (maps.map_count > 0) FL_TRY(fl_cuda_gather(self->device, stream, &maps, err));
    return fl_cuda_gather(self->device, stream, &of, err);
}

/* Lets only the lines travel that the result of an image needs. */
static void crop_column(const fl_py_gather *self, const fl_py_gather_source *source,
                        const fl_map_batch *maps, fl_row_column *column)
{
    const fl_image_size in = fl_image_plan_in(source->plan->plan);
    const bool is_chw = source->plan->layout == FL_CHW;
    const int64_t step = maps->parts.numbers, pixels = (int64_t)in.height * in.width;
    if (pixels == 0) return;
    column->spans = maps->maps + (self->first - self->maps.first) * step + step - 2;
    column->span_step = step;
    column->plane = is_chw ? pixels : column->bytes;
    column->line = column->plane / in.height;
}

/* Fills in the columns. A staged source has its own tensor in `outs`, after the results. */
static int read_columns(const fl_py_gather *self, PyObject *outs, work *of)
{
    Py_ssize_t staging = self->count;
    const fl_map_batch *maps = of->maps;
    if (self->maps.tensors != NULL && fl_py_gather_images.find_maps(self, of->maps) != 0) return -1;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const fl_py_gather_source *source = &self->sources[i];
        bool is_staged = fl_py_gather_is_staged(source);
        of->of.map_count += source->plan != NULL && !self->are_drawn;
        of->is_fetch |= source->range != NULL;
        if (source->plan != NULL && !is_staged) {
            maps++;
            continue;
        }
        PyObject *out = PyList_GET_ITEM(outs, is_staged ? staging++ : i);
        fl_row_column *column = &of->columns[of->of.column_count++];
        if (read_column(self, source, out, column) != 0) return -1;
        if (is_staged) crop_column(self, source, maps++, column);
    }
    return 0;
}

static int run(const fl_py_gather *self, PyObject *outs)
{
    work of = {.columns = fl_alloc(self->count * (int64_t)sizeof *of.columns),
               .maps = fl_alloc(self->count * (int64_t)sizeof *of.maps)};
    of.of = (fl_gather){.columns = of.columns,
                        .maps = of.maps,
                        .rows = self->rows,
                        .here = self->here,
                        .kept = self->kept,
                        .row_count = self->row_count,
                        .most_blocks = INT32_MAX};
    int status = of.columns != NULL && of.maps != NULL ? read_columns(self, outs, &of) : -1;
    if (of.columns == NULL || of.maps == NULL) PyErr_NoMemory();
    if (status == 0 && (of.of.column_count > 0 || of.of.map_count > 0))
        status = fl_py_gather_queue(self, launch, &of);
    fl_free(of.columns);
    fl_free(of.maps);
    return status;
}

const fl_py_gather_ops fl_py_gather_rows = {.run = run};
