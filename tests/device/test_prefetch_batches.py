"""prefetch: batches arrive as they were, by one copy: containers, kinds of tensors, objects."""

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers import assert_same
from lazy_device import LazyAccelerator, LazyDevice, numbered

import fastloop.loader.device_iter
from fastloop import prefetch
from fastloop.compat import tensors
from fastloop.device.accelerator import HostAccelerator, _parts
from fastloop.device.upload import Uploader

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass(frozen=True)
class Record:
    x: torch.Tensor
    name: str = "record"


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LazyDevice:
    device = LazyDevice("copies-late")
    monkeypatch.setattr(
        fastloop.loader.device_iter, "open_accelerator", lambda _: LazyAccelerator(device)
    )
    return device


def test_one_pinned_block_one_device_block_one_copy_a_batch(late: LazyDevice) -> None:
    batch = {f"{i}": torch.arange(i * 7, dtype=torch.int16) for i in range(20)}
    there = next(prefetch([batch], "cuda"))
    assert late.copies == ["copy"]
    assert len(late.blocks) == 2
    assert all(t.data_ptr() % 64 == 0 for t in there.values() if t.numel() > 0)
    late.run()
    assert_same(there, batch)


def nested() -> Any:
    x = torch.arange(6.0).reshape(2, 3)
    return {
        "list": [x, x.to(torch.uint8), "text", 3, None],
        "tuple": (x.bool(), b"bytes", torch.tensor(7)),
        "named": Pair(x.half(), x.to(torch.complex64)),
        "ordered": OrderedDict(b=x.long(), a=x.to(torch.bfloat16)),
        "default": defaultdict(list, a=x.double()),
        "user": UserDict(a=x.int()),
        "deque": deque([x + 1]),
        "record": Record(x - 1),
        "empty": torch.empty(0, 3),
        "strides": x.t(),
        "channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": x[:1].expand(4, 3),
        "every second": torch.arange(10)[::2],
        (1, 2): {},
    }


def assert_alike(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert_same(ours, theirs)
        assert ours.stride() == torch.empty_like(theirs).stride()
        assert not ours._is_view()
    elif isinstance(theirs, (dict, UserDict)):
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_alike(ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple, deque)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_alike(a, b)
    elif isinstance(theirs, Record):
        assert_alike(vars(ours), vars(theirs))
    else:
        assert ours is theirs


def test_nested_batches_arrive_as_they_were(late: LazyDevice) -> None:
    batch = nested()
    there = next(prefetch([batch], "cuda"))
    late.run()
    assert_alike(there, batch)
    assert there["default"].default_factory is list
    assert not LazyAccelerator(late).holds(batch["list"][0])


def test_empty_tensors_of_pinned_memory(late: LazyDevice) -> None:
    x = late.foreign(torch.arange(12.0).reshape(3, 4))
    batch = [x, x[:0], torch.empty(0, 4)]
    there = next(prefetch([batch], "cuda"))
    late.run()
    assert_alike(there, batch)


def test_pinned_tensors_with_gaps_are_packed(late: LazyDevice) -> None:
    x = late.foreign(torch.arange(12.0).reshape(3, 4))
    batch = [x, x.t(), x[:, ::2]]
    there = next(prefetch([batch], "cuda"))
    assert len(late.copies) == 3
    assert len([b for b in late.blocks if b.stream is None and not b.is_foreign]) == 1
    late.run()
    assert_alike(there, batch)


def test_a_tensor_that_is_there_twice_is_sent_once(late: LazyDevice) -> None:
    x = torch.ones(5)
    there = next(prefetch([[x, {"again": x}]], "cuda"))
    assert there[0] is there[1]["again"]


def test_tensors_of_a_batch_have_versions_of_their_own(late: LazyDevice) -> None:
    x, y = next(prefetch([[torch.ones(3), torch.ones(3)]], "cuda"))
    late.run()
    w = torch.ones(3, requires_grad=True)
    loss = (x * w).sum()
    y.add_(1)
    loss.backward()
    assert (x._version, y._version) == (0, 1)
    y.mul_(w)
    assert not x.requires_grad


def test_batches_of_inference_mode_can_be_used_outside() -> None:
    with torch.inference_mode():
        x = next(prefetch(numbered(), "cpu", static_buffers=True))
    (x * torch.ones(3, requires_grad=True)).sum().backward()


class Movable:
    def to(self, device: Any) -> "Movable":
        return self


class Packed(namedtuple("Packed", "data sizes")):
    """As torch's PackedSequence: a tuple of tensors, not all of which may be moved."""

    __slots__ = ()

    def pin_memory(self) -> "Packed":
        return self

    def to(self, accelerator: Any) -> "Packed":
        return Packed(accelerator.late.put(self.data), self.sizes)


def test_what_pins_itself_moves_itself(late: LazyDevice) -> None:
    sizes = torch.ones(3)
    batch = next(prefetch([[Packed(torch.ones(3), sizes)]], "cuda"))
    assert type(batch[0]) is Packed
    assert batch[0].sizes is sizes


class MadeAnew(Mapping[str, torch.Tensor]):
    """Its items are other tensors whenever it is asked, and it cannot be rebuilt."""

    def __init__(self) -> None:
        pass

    def __getitem__(self, key: str) -> torch.Tensor:
        return torch.full((3,), 7.0)

    def __iter__(self) -> Iterator[str]:
        return iter("ab")

    def __len__(self) -> int:
        return 2


def test_containers_that_cannot_be_rebuilt_become_plain_ones(late: LazyDevice) -> None:
    batch = next(prefetch([(MadeAnew(), range(3))], "cuda"))
    late.run()
    assert_alike(batch, ({"a": torch.full((3,), 7.0), "b": torch.full((3,), 7.0)}, [0, 1, 2]))
    assert all(map(LazyAccelerator(late).holds, batch[0].values()))


class Tagged(torch.Tensor):
    pass


NOT_PLAIN: dict[str, Callable[[], torch.Tensor]] = {
    "requires grad": lambda: torch.ones(2, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "subclass": lambda: torch.ones(2).as_subclass(Tagged),
    "conj": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "neg": lambda: torch._neg_view(torch.ones(2)),
    "sparse": lambda: torch.ones(2).to_sparse(),
    "csr": lambda: torch.ones(2, 2).to_sparse_csr(),
    "csc": lambda: torch.ones(2, 2).to_sparse_csc(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of what is beta
@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_what_is_not_a_plain_tensor_is_torchs_to_move(kind: str) -> None:
    tensor = NOT_PLAIN[kind]()
    moved: list[Any] = []

    class Notes(HostAccelerator):
        def holds(self, tensor: torch.Tensor) -> bool:
            return False

        def move(self, value: Any) -> Any:
            moved.append(value)
            return value

    accelerator = Notes(torch.device("cpu"))
    sent = Uploader(accelerator, None).send([tensor])
    assert len(moved) == 1
    assert moved[0] is tensor
    assert sent.batch[0] is tensor
    assert any(value is tensor for value in sent.to_record)
    parts = _parts(tensor)
    assert all(type(part) is not torch.Tensor or part.layout is torch.strided for part in parts)
    assert len(parts) == {"sparse": 2, "csr": 3, "csc": 3}.get(kind, len(parts))


@pytest.mark.parametrize("what", ["sparse", "Movable"])
def test_static_buffers_take_plain_tensors_only(what: str) -> None:
    batch = [torch.ones(2).to_sparse() if what == "sparse" else Movable()]
    fault = rf"batch\[0\] must be a plain dense tensor .*{what}.*make plain tensors in"
    with pytest.raises(ValueError, match=fault):
        next(prefetch([batch], "cpu", static_buffers=True))


def test_on_the_cpu_batches_are_left_alone() -> None:
    batch = nested()
    there = next(prefetch([batch], "cpu"))
    assert there["list"][0] is batch["list"][0]
    assert [x[0, 0].item() for x in prefetch(numbered(), "cpu", device_transform=torch.neg)] == [
        -float(i) for i in range(12)
    ]
    fixed = [x.data_ptr() for x in prefetch(numbered(), "cpu", static_buffers=True)]
    assert len(set(fixed)) == 1


def test_other_threads_may_import_modules_into_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Growing(ModuleType):
        @property
        def dtype(self) -> Any:
            vars(self)[f"module_{len(vars(self))}"] = None
            return torch.dtype

    growing = Growing("torch")
    vars(growing)["qint8"] = torch.qint8
    monkeypatch.setattr(tensors, "torch", growing)
    assert tensors._others.__wrapped__() == (torch.qint8,)
