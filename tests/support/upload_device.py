"""The core built over the fake CUDA runtime (tests/cuda/fake), and devices for it: sys.argv[1] says
where it is.

Tensors on a device are torch CPU tensors over memory that the host cannot touch: whoever reads one
in passing dies. Kernels compare what a batch holds when they run, which may be long after the batch
was dropped.
"""

import ctypes
import gc
import importlib.util
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np
import torch

MOST_BYTES = 1 << 20
EAGER, LAZY, RANDOM = range(3)
OUT_OF_MEMORY, LAUNCH_FAILURE = 2, 719

# Ahead of `import fastloop`, whose own core is another.
spec = importlib.util.spec_from_file_location("fastloop._core", sys.argv[1])
assert spec is not None and spec.loader is not None
core: Any = importlib.util.module_from_spec(spec)
sys.modules["fastloop._core"] = core
spec.loader.exec_module(core)
fake = ctypes.CDLL(sys.argv[1])
fake.fake_set_order.argtypes = [ctypes.c_int, ctypes.c_uint64]
fake.fake_alloc.argtypes = [ctypes.c_int, ctypes.c_size_t]
fake.fake_alloc.restype = ctypes.c_void_p
fake.fake_free.argtypes = [ctypes.c_void_p]
fake.fake_synchronize.argtypes = [ctypes.c_void_p]
fake.fake_fail_at.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_bool]
fake.fake_refuse_pins.argtypes = [ctypes.c_bool]
fake.fake_calls.restype = ctypes.c_int64
fake.fake_choose_default.argtypes = [ctypes.c_bool]
fake.fake_has_context.restype = ctypes.c_bool
fake.fake_copies.restype = ctypes.c_int64
fake.fake_is_clean.restype = ctypes.c_bool
fake.fake_exchange_table.argtypes = [ctypes.c_void_p]
fake.fake_exchange_table.restype = ctypes.c_void_p
fake.fake_set_current_stream.argtypes = [ctypes.c_int, ctypes.c_void_p]
fake.fake_new_stream.restype = ctypes.c_void_p
fake.fake_launch_compare.argtypes = [
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_size_t,
]
fake.fake_launch_fill.argtypes = [
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_size_t,
]
fake.fake_compared.restype = ctypes.c_int64
fake.fake_mismatches.restype = ctypes.c_int64
fake.cudaStreamDestroy.argtypes = [ctypes.c_void_p]


class PinCosts(ctypes.Structure):
    """fake_pin_costs."""

    _fields_ = [(name, ctypes.c_int64) for name in ("registered", "unregistered", "bytes", "held")]


fake.fake_count_pins.restype = PinCosts
fake.fake_watch_lock.argtypes = [ctypes.c_void_p]
# Registering memory takes long: not with the interpreter lock.
fake.fake_watch_lock(ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p))


def replace_exchange_table() -> None:
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    api.PyCapsule_New.restype = ctypes.py_object
    capsule = torch.Tensor.__dlpack_c_exchange_api__  # type: ignore[attr-defined]
    table = fake.fake_exchange_table(api.PyCapsule_GetPointer(capsule, b"dlpack_exchange_api"))
    capsule = api.PyCapsule_New(table, b"dlpack_exchange_api", None)
    torch.Tensor.__dlpack_c_exchange_api__ = capsule  # type: ignore[attr-defined]


replace_exchange_table()
gc.freeze()  # collections look at what the trials make, not at torch

SOURCES = (
    torch.arange(40 * 3, dtype=torch.float32).reshape(40, 3),
    np.arange(40, dtype=np.int64) * 7,
    torch.arange(40 * 5000, dtype=torch.int32).reshape(40, 10, 500).to(torch.uint8),
)
FIELDS = [torch.as_tensor(source) for source in SOURCES]
PLAN: Any = None  # of the last field


def become_images() -> None:
    """From now on the last field is images that travel as bytes, and are floats on the device;
    with "sent" as they are, and a kernel flips them, too."""
    global SOURCES, PLAN
    tables = torch.randn(2, 256, generator=torch.Generator().manual_seed(0))
    shape = {"height": 50, "width": 50, "channels": 2, "layout": "CHW"}
    made = {"out_dtype": "float32", "out_layout": "CHW", "tables": tables.numpy().tobytes()}
    SOURCES = (*SOURCES[:2], SOURCES[2].reshape(40, 2, 50, 50))
    ops = ({"kind": HORIZONTAL_FLIP, "p": 1.0},) if IS_SENT else ()
    PLAN = core.ImagePlan(ops, **shape, **made, linear=None, seed=0)
    values = SOURCES[2].flip(3).long() if IS_SENT else SOURCES[2].long()
    FIELDS[2] = torch.stack([tables[c][values[:, c]] for c in range(2)], 1)


HORIZONTAL_FLIP = 5  # of fl_image_op_kind
IS_SENT = "sent" in sys.argv
if IS_SENT or "images" in sys.argv:
    become_images()
NAMES = ("a", "b", "c")


def make_table() -> Any:
    images = SOURCES[2] if PLAN is None else (SOURCES[2], PLAN)
    fields = zip((*SOURCES[:2], images), NAMES, (None,) * 3, strict=True)
    return core.Table(torch.Tensor, tuple(fields))


NUMBERS = {2 * 256 + 32: torch.float32, 64: torch.int64, 1 * 256 + 8: torch.uint8}


class Device:
    """Blocks as torch's allocator gives them: one that is freed serves the same stream at once.

    One of device 0 makes it the program's choice. Before that no thread has a device, and none may
    make a context where no ``Device`` has been."""

    used: ClassVar[set[int]] = set()

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.stream: int | None = None
        self.streams: list[int] = []
        self.free: list[tuple[int, int | None]] = []
        self.all: list[int] = []
        self.left = 1 << 30  # blocks that there is memory for
        self.out = self.most_out = 0  # blocks in use, now and at most
        self.hook: Callable[[], None] = lambda: None
        self.other_streams = 0
        Device.used.add(device)
        fake.fake_choose_default(device == 0)
        if device == 0:
            fake.cudaSetDevice(0)
        self.use(None)

    def use(self, stream: int | None) -> None:
        self.stream = stream
        fake.fake_set_current_stream(self.device, stream)

    def new_stream(self) -> int:
        stream: int = fake.fake_new_stream(self.device)
        self.streams.append(stream)
        return stream

    def allocate(self, count: int) -> torch.Tensor:
        self.hook()
        if self.left == 0:
            raise torch.OutOfMemoryError("none left")
        found = [place for place in self.free if place[1] == self.stream]
        if found:
            self.free.remove(found[-1])
            address = found[-1][0]
        else:
            address = fake.fake_alloc(self.device, max(count, MOST_BYTES))
            self.all.append(address)
        memory = (ctypes.c_uint8 * count).from_address(address)
        self.left -= 1
        self.out += 1
        self.most_out = max(self.most_out, self.out)
        weakref.finalize(memory, self._freed, address, self.stream, self.other_streams)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def _freed(self, address: int, stream: int | None, other_streams: int) -> None:
        self.left += 1
        self.out -= 1
        if self.other_streams == other_streams:  # else record_stream may have been for it
            self.free.append((address, stream))

    def split(
        self, buffer: torch.Tensor, places: list[Any], is_other_stream: bool
    ) -> list[torch.Tensor]:
        self.other_streams += is_other_stream
        tensors = []
        for offset, number, shape in places:
            dtype = NUMBERS[number]
            end = offset + int(np.prod(shape)) * dtype.itemsize
            tensors.append(buffer[offset:end].view(dtype).view(shape))
        return tensors

    def compare(self, batch: Any, rows: Any) -> None:
        """Queues kernels that look whether the batch holds these rows."""
        if isinstance(batch, dict) and "inner" in batch:
            batch = [*batch["inner"].values(), *batch["others"]]
        if isinstance(batch, dict):
            assert tuple(batch) == NAMES
            batch = list(batch.values())
        assert type(batch) is list and len(batch) == len(FIELDS)
        for tensor, field in zip(batch, FIELDS, strict=True):
            expected = field[rows].numpy()
            assert (tensor.dtype, tensor.shape) == (field.dtype, expected.shape)
            data = expected.tobytes()
            fake.fake_launch_compare(self.stream, tensor.data_ptr(), data, len(data))

    def synchronize(self) -> None:
        for stream in self.streams:
            fake.fake_synchronize(stream)
        fake.fake_synchronize(None)  # device 0's own

    def close(self) -> None:
        gc.collect()
        for stream in self.streams:
            fake.cudaStreamDestroy(stream)
        for address in self.all:
            fake.fake_free(address)
        assert fake.fake_is_clean()
        assert {number for number in (0, 1) if fake.fake_has_context(number)} <= Device.used
        assert fake.fake_mismatches() == 0
        assert fake.fake_count_pins().held == 0


class FakeAccelerator:
    """As fastloop.device.accelerator.Accelerator, for a device of the fake."""

    def __init__(self, device: Device) -> None:
        self.device = torch.device("cuda", device.device)
        self.allocate = device.allocate
        self.recorded: list[Any] = []
        self.record_stream = self.recorded.append
        self.is_capturing = False

    def allocate_pinned(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8)

    def copy_stream(self) -> Any:
        return nullcontext()

    def record_event(self) -> None:
        """Only what is not copied by C asks for events, and copies nothing in these trials."""

    def wait_event(self, event: None) -> None:
        pass

    def check(self) -> None:
        if self.is_capturing:
            raise RuntimeError("capture")


# What a call may fail with, and whether for good.
FAULTS = ((OUT_OF_MEMORY, False), (LAUNCH_FAILURE, False), (LAUNCH_FAILURE, True))


def check_errors(met: list[Exception], error: int) -> None:
    """They are torch's, for that error of the runtime."""
    is_memory = error == OUT_OF_MEMORY
    expected = torch.OutOfMemoryError if is_memory else torch.AcceleratorError
    for one in met:
        assert type(one) is expected and f"(CUDA error {error}, " in str(one), repr(one)
        assert getattr(one, "error_code", None) == (None if is_memory else error)


def on_another_thread(work: Callable[[], None]) -> None:
    """Raises what ``work`` raises."""
    met: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            met.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if met:
        raise met[0]


def expect(
    kind: type[Exception], text: str, work: Callable[[], Any], is_exact: bool = False
) -> None:
    try:
        work()
    except kind as error:
        assert text in str(error), error
        assert type(error) is kind or not is_exact, repr(error)
    else:
        raise AssertionError(f"no {kind.__name__}")
