"""A plugin of pytest's, to be loaded with a core of build_core.py: the engine sees every CPU tensor
as one of CUDA device 0, and the kernels, compiled for the CPU, work on it."""

import ctypes
from pathlib import Path

import torch

import fastloop._core

FOLDER = Path(fastloop._core.__file__).parents[1]
NAME = b"dlpack_exchange_api"

_library = ctypes.CDLL(str(FOLDER / "libas_cuda.so"))
_library.as_cuda.restype = ctypes.c_void_p
_library.as_cuda.argtypes = [ctypes.c_void_p]
ctypes.CDLL(fastloop._core.__file__).fake_choose_default(True)
_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def show_as_cuda() -> None:
    tensor_type: type = torch.Tensor
    table = _api.PyCapsule_GetPointer(tensor_type.__dlpack_c_exchange_api__, NAME)  # type: ignore[attr-defined]
    shown = _api.PyCapsule_New(_library.as_cuda(table), NAME, None)
    tensor_type.__dlpack_c_exchange_api__ = shown  # type: ignore[attr-defined]


show_as_cuda()
