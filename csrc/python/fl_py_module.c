/* fl_py_module: the module _core, with its types and functions. */
#include "fl_py.h"
#include "fl_cpu_level.h"
#include "fl_cpus.h"
#include "fl_cuda.h"
#include "fl_pages.h"
#include "fl_py_array_loader.h"
#include "fl_py_arrow.h"
#include "fl_py_balance.h"
#include "fl_py_batch_pool.h"
#include "fl_py_buckets.h"
#include "fl_py_collate.h"
#include "fl_py_file_reader.h"
#include "fl_py_finalizer.h"
#include "fl_py_gatherer.h"
#include "fl_py_host_range.h"
#include "fl_py_grad_list.h"
#include "fl_py_image_cache.h"
#include "fl_py_image_draws.h"
#include "fl_py_image_op.h"
#include "fl_py_image_plan.h"
#include "fl_py_jpeg.h"
#include "fl_py_sequence_column.h"
#include "fl_py_indices.h"
#include "fl_py_lock_wait.h"
#include "fl_py_copy_row.h"
#include "fl_py_move.h"
#include "fl_py_numbers.h"
#include "fl_py_numpy.h"
#include "fl_py_packing.h"
#include "fl_py_pad.h"
#include "fl_py_parent_end.h"
#include "fl_py_mixture.h"
#include "fl_py_pil_blur.h"
#include "fl_py_permutation.h"
#include "fl_py_tensor_slot.h"
#include "fl_py_reply.h"
#include "fl_py_slices.h"
#include "fl_py_snapshot.h"
#include "fl_py_step_hook.h"
#include "fl_py_step_log.h"
#include "fl_py_table.h"
#include "fl_py_tar.h"
#include "fl_py_thread_pool.h"
#include "fl_py_windows.h"
#include "fl_py_token_file.h"
#include "fl_py_token_mask.h"
#include "fl_py_torch_random.h"
#include "fl_py_worker_end.h"
#include "fl_safe_read.h"
#include "fl_thread.h"

#include <unistd.h>

PyDoc_STRVAR(int64_array_doc,
             "int64_array(sequence, tensor_type)\n--\n\n"
             "Return the integers of a list or tuple as a new int64 ndarray, or None if an\n"
             "item is not a plain integer. tensor_type is torch.Tensor. Raises TypeError if\n"
             "`sequence` is neither a list nor a tuple.");

static PyObject *module_int64_array(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *sequence, *tensor_type;
    fl_py_dlpack dlpack;
    if (!PyArg_ParseTuple(args, "OO:int64_array", &sequence, &tensor_type)) return NULL;
    if (!PyList_Check(sequence) && !PyTuple_Check(sequence))
        return PyErr_Format(PyExc_TypeError,
                            "int64_array: values must be a list or tuple, got %.100s",
                            Py_TYPE(sequence)->tp_name);
    if (fl_py_dlpack_open(tensor_type, &dlpack) != 0) return NULL;
    PyObject *array = fl_py_int64_array(&dlpack, sequence);
    fl_py_dlpack_close(&dlpack);
    return array;
}

PyDoc_STRVAR(build_info_doc,
             "build_info()\n--\n\n"
             "Return a dict that tells how this module was built and what this machine\n"
             "supports.");

/* Tries on one page whether the kernel populates pages on request. */
static bool can_populate(void)
{
    fl_pages pages;
    bool can = fl_pages_open(1, &pages, NULL) == FL_OK && fl_pages_populate(pages.data, 1);
    fl_pages_close(&pages);
    return can;
}

static bool can_watch(void)
{
    int fd = fl_pidfd_open((int)getpid());
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* Returns the version as a string like "13.0"; without CUDA the string is empty. */
static PyObject *cuda_version(void)
{
    if (fl_cuda_version == 0) return PyUnicode_FromString("");
    return PyUnicode_FromFormat("%d.%d", fl_cuda_version / 1000, fl_cuda_version % 1000 / 10);
}

static PyObject *module_build_info(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue(
        "{s:s,s:s,s:s,s:i,s:s,s:s,s:O,s:O,s:N,s:s,s:s}", "version", FL_VERSION, "compiler",
        __VERSION__, "dlpack",
        Py_STRINGIFY(DLPACK_MAJOR_VERSION) "." Py_STRINGIFY(DLPACK_MINOR_VERSION), "cpus",
        (int)fl_cpu_count(), "instructions", fl_cpu_level_name(fl_cpu_level_find()),
        "guarded_reads", fl_safe_read_method(), "populates_pages",
        can_populate() ? Py_True : Py_False, "watches_processes", can_watch() ? Py_True : Py_False,
        "cuda", cuda_version(), "cuda_archs", fl_cuda_archs, "cuda_reason", FL_CUDA_REASON);
}

PyDoc_STRVAR(usable_cpus_doc,
             "usable_cpus()\n--\n\n"
             "Return how many threads can work at a time: the CPUs that the affinity allows now,\n"
             "within the quota of the control groups, rounded down; at least 1.");

static PyObject *module_usable_cpus(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(fl_cpu_count());
}

PyDoc_STRVAR(cpu_quota_doc, "cpu_quota(root, /)\n--\n\n"
                            "Return the CPUs that the control groups pay for; infinity without a\n"
                            "quota. `root` is the folder that holds proc and sys.");

static PyObject *module_cpu_quota(PyObject *Py_UNUSED(module), PyObject *root)
{
    const char *name = PyUnicode_AsUTF8(root);
    return name != NULL ? PyFloat_FromDouble(fl_cpu_quota(name)) : NULL;
}

PyDoc_STRVAR(check_cuda_doc,
             "check_cuda(device, /)\n--\n\n"
             "Raise RuntimeError (or a subclass) with the reason if kernels cannot run on the\n"
             "CUDA device with this index. Releases the interpreter lock.");

static PyObject *module_check_cuda(PyObject *Py_UNUSED(module), PyObject *args)
{
    fl_err err = {0};
    int device, status;
    if (!PyArg_ParseTuple(args, "i:check_cuda", &device)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = fl_cuda_check(device, &err);
    Py_END_ALLOW_THREADS
    if (status != FL_OK) return fl_py_raise(&err, NULL);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(open_stream_doc,
             "open_stream(device, /)\n--\n\n"
             "Open a stream of the CUDA device with this index, of the least priority, and\n"
             "return its handle. The stream lasts as long as the process. Raises\n"
             "torch.AcceleratorError. Releases the interpreter lock.");

static PyObject *module_open_stream(PyObject *Py_UNUSED(module), PyObject *args)
{
    fl_err err = {0};
    void *stream;
    int device, status;
    if (!PyArg_ParseTuple(args, "i:open_stream", &device)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = fl_cuda_stream_open(device, &stream, &err);
    Py_END_ALLOW_THREADS
    return status == FL_OK ? PyLong_FromVoidPtr(stream) : fl_py_raise(&err, NULL);
}

PyDoc_STRVAR(expect_fork_doc,
             "expect_fork()\n--\n\n"
             "Count the next forks of this thread as one worker process, until\n"
             "fork_expected(). Returns the worker's number for fork_ended(). Raises\n"
             "MemoryError.");

static PyObject *module_expect_fork(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    fl_err err;
    int64_t worker;
    if (fl_fork_expect(&worker, &err) != FL_OK) return fl_py_raise(&err, NULL);
    return PyLong_FromLongLong(worker);
}

PyDoc_STRVAR(fork_expected_doc, "fork_expected()\n--\n\n"
                                "End expect_fork(): later forks of this thread are not workers.");

static PyObject *module_fork_expected(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    fl_fork_expected();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(fork_ended_doc,
             "fork_ended(worker, /)\n--\n\n"
             "Tell that the forked worker with this number has exited: the memory that the\n"
             "worker inherited may be reused. A second call does nothing.");

static PyObject *module_fork_ended(PyObject *Py_UNUSED(module), PyObject *worker)
{
    long long number = PyLong_AsLongLong(worker);
    if (number == -1 && PyErr_Occurred()) return NULL;
    fl_fork_end(number);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(is_small_part_doc,
             "is_small_part(bytes, batch_bytes)\n--\n\n"
             "Return True if a tensor of `bytes` bytes gets its own memory in a batch of\n"
             "`batch_bytes` bytes. A program that keeps such a small tensor does not keep the\n"
             "whole batch alive.");

static PyObject *module_is_small_part(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long bytes, batch_bytes;
    if (!PyArg_ParseTuple(args, "LL:is_small_part", &bytes, &batch_bytes)) return NULL;
    return PyBool_FromLong(fl_py_is_small_part(bytes, batch_bytes));
}

static const char keep_heap_doc[] =
    PyDoc_STR("keep_heap(with_huge_pages=False, /)\n--\n\n"
              "Let malloc keep the memory of freed temporary arrays, instead of returning the\n"
              "memory to the system (fl_pages_keep_heap).");

static PyObject *module_keep_heap(PyObject *Py_UNUSED(module), PyObject *args)
{
    int with_huge_pages = 0;
    if (!PyArg_ParseTuple(args, "|p:keep_heap", &with_huge_pages)) return NULL;
    fl_pages_keep_heap(with_huge_pages != 0);
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"usable_cpus", module_usable_cpus, METH_NOARGS, usable_cpus_doc},
    {"cpu_quota", module_cpu_quota, METH_O, cpu_quota_doc},
    {"check_cuda", module_check_cuda, METH_VARARGS, check_cuda_doc},
    {"open_stream", module_open_stream, METH_VARARGS, open_stream_doc},
    {"expect_fork", module_expect_fork, METH_NOARGS, expect_fork_doc},
    {"fork_expected", module_fork_expected, METH_NOARGS, fork_expected_doc},
    {"fork_ended", module_fork_ended, METH_O, fork_ended_doc},
    {"keep_heap", module_keep_heap, METH_VARARGS, keep_heap_doc},
    {"copy_row", fl_py_copy_row, METH_VARARGS, fl_py_copy_row_doc},
    {"move", fl_py_move, METH_VARARGS, fl_py_move_doc},
    {"lock_wait", fl_py_lock_wait, METH_NOARGS, fl_py_lock_wait_doc},
    {"policy_strengths", fl_py_policy_strengths, METH_VARARGS, fl_py_policy_strengths_doc},
    {"pil_affine", fl_py_pil_affine, METH_VARARGS, fl_py_pil_affine_doc},
    {"pil_blur", fl_py_pil_blur, METH_VARARGS, fl_py_pil_blur_doc},
    {"pil_clear", fl_py_pil_clear, METH_O, fl_py_pil_clear_doc},
    {"pil_ycc", fl_py_pil_ycc, METH_VARARGS, fl_py_pil_ycc_doc},
    {"is_small_part", module_is_small_part, METH_VARARGS, is_small_part_doc},
    {"int64_array", module_int64_array, METH_VARARGS, int64_array_doc},
    {"read_numbers", fl_py_read_numbers, METH_VARARGS, fl_py_read_numbers_doc},
    {"arrow_rows", fl_py_arrow_rows, METH_O, fl_py_arrow_rows_doc},
    {"arrow_lists", fl_py_arrow_lists, METH_O, fl_py_arrow_lists_doc},
    {"int_lists", fl_py_int_lists, METH_VARARGS, fl_py_int_lists_doc},
    {"bucket_steps", fl_py_bucket_steps, METH_VARARGS, fl_py_bucket_steps_doc},
    {"balance_window", fl_py_balance_window, METH_VARARGS, fl_py_balance_window_doc},
    {"pack_rows", fl_py_pack_rows, METH_VARARGS, fl_py_pack_rows_doc},
    {"token_header", fl_py_token_header, METH_VARARGS, fl_py_token_header_doc},
    {"token_index", fl_py_token_index, METH_VARARGS, fl_py_token_index_doc},
    {"tar_index", fl_py_tar_index, METH_VARARGS, fl_py_tar_index_doc},
    {"tar_members", fl_py_tar_members, METH_VARARGS, fl_py_tar_members_doc},
    {"checksum", fl_py_checksum, METH_O, fl_py_checksum_doc},
    {"copy_slices", fl_py_copy_slices, METH_VARARGS, fl_py_copy_slices_doc},
    {"find_other", fl_py_find_other, METH_O, fl_py_find_other_doc},
    {"mask_tokens", fl_py_mask_tokens, METH_VARARGS, fl_py_mask_tokens_doc},
    {"torch_draw", fl_py_torch_draw, METH_VARARGS, fl_py_torch_draw_doc},
    {"build_info", module_build_info, METH_NOARGS, build_info_doc},
    {NULL, NULL, 0, NULL}};

/* The module's types, each with its offset in the state. */
static const struct {
    PyType_Spec *spec;
    size_t offset;
} types[] = {
    {&fl_py_table_spec, offsetof(fl_py_state, table_type)},
    {&fl_py_batch_pool_spec, offsetof(fl_py_state, batch_pool_type)},
    {&fl_py_array_loader_spec, offsetof(fl_py_state, array_loader_type)},
    {&fl_py_collate_spec, offsetof(fl_py_state, collate_type)},
    {&fl_py_worker_end_spec, offsetof(fl_py_state, worker_end_type)},
    {&fl_py_reply_spec, offsetof(fl_py_state, reply_type)},
    {&fl_py_parent_end_spec, offsetof(fl_py_state, parent_end_type)},
    {&fl_py_thread_pool_spec, offsetof(fl_py_state, thread_pool_type)},
    {&fl_py_grad_list_spec, offsetof(fl_py_state, grad_list_type)},
    {&fl_py_image_plan_spec, offsetof(fl_py_state, image_plan_type)},
    {&fl_py_image_draws_spec, offsetof(fl_py_state, image_draws_type)},
    {&fl_py_image_cache_spec, offsetof(fl_py_state, image_cache_type)},
    {&fl_py_ycc_image_spec, offsetof(fl_py_state, ycc_image_type)},
    {&fl_py_jpeg_decoder_spec, offsetof(fl_py_state, jpeg_decoder_type)},
    {&fl_py_jpeg_image_spec, offsetof(fl_py_state, jpeg_image_type)},
    {&fl_py_snapshot_spec, offsetof(fl_py_state, snapshot_type)},
    {&fl_py_sequence_column_spec, offsetof(fl_py_state, sequence_column_type)},
    {&fl_py_windows_spec, offsetof(fl_py_state, windows_type)},
    {&fl_py_permutation_spec, offsetof(fl_py_state, permutation_type)},
    {&fl_py_mixture_spec, offsetof(fl_py_state, mixture_type)},
    {&fl_py_file_reader_spec, offsetof(fl_py_state, file_reader_type)},
    {&fl_py_packing_spec, offsetof(fl_py_state, packing_type)},
    {&fl_py_gatherer_spec, offsetof(fl_py_state, gatherer_type)},
    {&fl_py_host_range_spec, offsetof(fl_py_state, host_range_type)},
    {&fl_py_finalizer_spec, offsetof(fl_py_state, finalizer_type)},
    {&fl_py_step_log_spec, offsetof(fl_py_state, step_log_type)},
    {&fl_py_step_hook_spec, offsetof(fl_py_state, step_hook_type)},
};
enum { TYPES = sizeof types / sizeof *types };

static PyTypeObject **type_at(PyObject *module, int i)
{
    return (PyTypeObject **)((char *)PyModule_GetState(module) + types[i].offset);
}

static int add_types(PyObject *module)
{
    for (int i = 0; i < TYPES; i++) {
        PyTypeObject **type = type_at(module, i);
        *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, types[i].spec, NULL);
        if (*type == NULL || PyModule_AddType(module, *type) != 0) return -1;
    }
    return 0;
}

static int module_exec(PyObject *module)
{
    fl_err err;
    if (fl_py_check(fl_cpu_level_check(&err), &err, NULL) != 0) return -1;
    fl_fork_install();
    if (fl_py_numpy_import() != 0) return -1;
    if (PyModule_AddStringConstant(module, "version", FL_VERSION) != 0) return -1;
    if (fl_py_image_op_export(module) != 0) return -1;
    return add_types(module);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    for (int i = 0; i < TYPES; i++) Py_VISIT(*type_at(module, i));
    return 0;
}

static int module_clear(PyObject *module)
{
    for (int i = 0; i < TYPES; i++) Py_CLEAR(*type_at(module, i));
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec},
#ifdef Py_mod_gil
                                          /* Critical sections replace the interpreter lock:
                                           * docs/internals/threads.md. */
                                          {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
                                          {0, NULL}};

static struct PyModuleDef core_module = {.m_base = PyModuleDef_HEAD_INIT,
                                         .m_name = "fastloop._core",
                                         .m_doc = "The C core of fastloop; private, use fastloop.",
                                         .m_size = sizeof(fl_py_state),
                                         .m_methods = module_methods,
                                         .m_slots = module_slots,
                                         .m_traverse = module_traverse,
                                         .m_clear = module_clear};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&core_module); }
