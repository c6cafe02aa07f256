/* fl_cuda_grad: the passes over gradients on a CUDA device: a list as a kernel's table, and the
 * functions of fl_cuda_grad_ops. Each function queues one kernel. */
#include "fl_cuda.h"
#include "fl_cuda_kernels.h"
#include "fl_cuda_runtime.h"

/* Returns the sums in scratch. Scratch is the ticket, a sum for each chunk, then the rows of a list
 * and the rows of a second list to combine. */
static double *sums_of(const fl_cuda_queue *queue)
{
    return (double *)(void *)((char *)queue->scratch + FL_CUDA_TICKET_BYTES);
}

int64_t fl_cuda_scratch_bytes(const fl_tensor_list *list)
{
    return FL_CUDA_TICKET_BYTES + list->chunks * (int64_t)sizeof(double) +
           2 * list->count * (int64_t)sizeof(fl_cuda_row);
}

/* A device with this ratio is slow at doubles. The ratio counts additions of floats in the time of
 * one addition of doubles: 2 on devices for computing centres, 32 or 64 on most devices. */
enum { SLOW_RATIO = 5 };

static cudaError_t ask_device(fl_cuda_queue *queue)
{
    int processors, ratio;
    if (queue->processors > 0) return cudaSuccess;
    cudaError_t error =
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, queue->device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&ratio, cudaDevAttrSingleToDoublePrecisionPerfRatio,
                                       queue->device);
    if (error != cudaSuccess) return error;
    queue->processors = processors;
    queue->is_fp64_slow = ratio >= SLOW_RATIO;
    return cudaSuccess;
}

static cudaError_t
write_rows(const fl_cuda_queue *queue, const fl_tensor_list *list, fl_cuda_row *to)
{
    for (int64_t first = 0; first < list->count; first += FL_CUDA_ROWS) {
        cudaError_t error = fl_cuda_write_rows(queue->stream, list, first, to + first);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

/* Fills *table, and writes rows to the device if the launch cannot carry them. */
static cudaError_t lay_table(fl_cuda_queue *queue, const fl_tensor_list *list,
                             const fl_tensor_list *from, fl_cuda_table *table)
{
    fl_cuda_row *rows = (fl_cuda_row *)(void *)(sums_of(queue) + list->chunks);
    cudaError_t error = ask_device(queue);
    if (error != cudaSuccess) return error;
    int64_t most = (int64_t)queue->processors * FL_CUDA_BLOCKS_PER_SM;
    *table = (fl_cuda_table){list, from, rows, (int32_t)fl_max(1, fl_min(list->chunks, most))};
    if (list->count + (from != NULL ? from->count : 0) <= FL_CUDA_ROWS) return cudaSuccess;
    if (!queue->is_listed) error = write_rows(queue, list, rows);
    if (error == cudaSuccess) queue->is_listed = true;
    if (error == cudaSuccess && from != NULL) error = write_rows(queue, from, rows + list->count);
    return error;
}

/* Ends a pass: restores the thread's own device and returns `error` as a status. */
static int leave(fl_cuda_queue *queue, int32_t before, cudaError_t error, const char *pass)
{
    int status = error != cudaSuccess ? fl_cuda_fail(&queue->err, error, pass) : FL_OK;
    fl_cuda_leave(before);
    return status;
}

static bool has_doubles(const fl_tensor_list *list)
{
    for (int64_t i = 0; i < list->count; i++)
        if (list->spans[i].type == FL_F64) return true;
    return false;
}

/* Reduces the blocks so that all take equally many chunks, or one less. If a few blocks took one
 * chunk more, a pass that only reads would end with an idle device (ResNet-50 on an H100: 4 % of
 * its time). Passes that write are faster with every block that fits. */
static int32_t even_out(int32_t blocks, int64_t chunks)
{
    int64_t each = fl_max(1, (chunks + blocks - 1) / blocks);
    return (int32_t)fl_max(1, (chunks + each - 1) / each);
}

static int norm_check(const fl_grad_pass *pass, int32_t norm_type, fl_divisor divisor,
                      float *found_inf, double *norm)
{
    fl_cuda_queue *queue = pass->queue;
    fl_cuda_norm asked = {queue->scratch, sums_of(queue), norm_type, false,
                          divisor,        found_inf,      norm};
    fl_cuda_table table;
    int32_t before;
    FL_TRY(fl_cuda_enter(queue->device, &before, &queue->err));
    cudaError_t error = lay_table(queue, pass->list, NULL, &table);
    if (error == cudaSuccess) table.blocks = even_out(table.blocks, pass->list->chunks);
    /* With doubles in the list, the user expects the norm in double. */
    asked.is_grouped = norm_type == FL_NORM_2 && queue->is_fp64_slow && !has_doubles(pass->list);
    if (error == cudaSuccess) error = fl_cuda_norm_check(queue->stream, &table, &asked);
    return leave(queue, before, error, "norm_check");
}

static int scale_by(const fl_grad_pass *pass, const double *factor, const float *inverse,
                    float *found_inf, const char *name)
{
    fl_cuda_queue *queue = pass->queue;
    fl_cuda_table table;
    int32_t before;
    if (pass->list->count == 0) return FL_OK;
    FL_TRY(fl_cuda_enter(queue->device, &before, &queue->err));
    cudaError_t error = lay_table(queue, pass->list, NULL, &table);
    if (error == cudaSuccess)
        error = fl_cuda_scale(queue->stream, &table, factor, inverse, found_inf);
    return leave(queue, before, error, name);
}

static int scale(const fl_grad_pass *pass, const double *factor)
{
    return scale_by(pass, factor, NULL, NULL, "scale");
}

static int unscale(const fl_grad_pass *pass, const float *inv_scale, float *found_inf)
{
    return scale_by(pass, NULL, inv_scale, found_inf, "unscale");
}

static int combine(const fl_grad_pass *into, const fl_tensor_list *from, double alpha,
                   const double *factor, double beta, float *found_inf)
{
    fl_cuda_queue *queue = into->queue;
    fl_cuda_table table;
    int32_t before;
    if (into->list->count == 0) return FL_OK;
    FL_TRY(fl_cuda_enter(queue->device, &before, &queue->err));
    cudaError_t error = lay_table(queue, into->list, from, &table);
    if (error == cudaSuccess)
        error = fl_cuda_combine(queue->stream, &table, alpha, factor, beta, found_inf);
    return leave(queue, before, error, "combine");
}

static bool can_combine(int32_t into_type, int32_t from_type)
{
    if (into_type == from_type) return true;
    if (into_type == FL_F64 || from_type == FL_F64) return false;
    return into_type == FL_F32 || from_type == FL_F32;
}

static int clip_factor(void *on, const double *norm, double max_norm, const float *found_inf,
                       fl_divisor divisor, double *factor)
{
    fl_cuda_queue *queue = on;
    int32_t before;
    FL_TRY(fl_cuda_enter(queue->device, &before, &queue->err));
    cudaError_t error =
        fl_cuda_clip_factor(queue->stream, norm, max_norm, found_inf, divisor, factor);
    return leave(queue, before, error, "clip_factor");
}

static int invert(void *on, const float *of, float *inverse)
{
    fl_cuda_queue *queue = on;
    int32_t before;
    FL_TRY(fl_cuda_enter(queue->device, &before, &queue->err));
    return leave(queue, before, fl_cuda_invert(queue->stream, of, inverse), "invert");
}

static int update_scale(void *on, const fl_scale_rule *rule, const float *found_inf, float *value,
                        int32_t *tracker, int32_t *misses)
{
    fl_cuda_queue *queue = on;
    int32_t before;
    FL_TRY(fl_cuda_enter(queue->device, &before, &queue->err));
    cudaError_t error =
        fl_cuda_update_scale(queue->stream, rule, found_inf, value, tracker, misses);
    return leave(queue, before, error, "update_scale");
}

const fl_grad_ops fl_cuda_grad_ops = {.norm_check = norm_check,
                                      .clip_factor = clip_factor,
                                      .invert = invert,
                                      .scale = scale,
                                      .unscale = unscale,
                                      .combine = combine,
                                      .can_combine = can_combine,
                                      .update_scale = update_scale};
