"""Batches on a real device: prefetch and DataLoader(device=...) against batch.to(device)."""

import os
from typing import Any

import pytest
import torch
from helpers import SAMPLERS, N, TorchLoader, bits, outcome, run_script, small_dataset

from fastloop import DataLoader, prefetch

PATHS = [("array", 0), ("array", 2), ("sync", 0), ("process", 2), ("torch", 0), ("torch", 2)]
every_path = pytest.mark.parametrize(("path", "workers"), PATHS)
LATE = 50_000_000  # cycles: some 30 ms


def loader_of(cls: Any, workers: int, **kwargs: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    arguments = {"batch_size": 7, **SAMPLERS["shuffle-generator"](N, generator), **kwargs}
    return cls(small_dataset(), num_workers=workers, **arguments)


def on_device(path: str, workers: int, **kwargs: Any) -> Any:
    return loader_of(DataLoader, workers, **{"path": path, "device": "cuda", **kwargs})


def assert_moved(ours: Any, theirs: Any) -> None:
    """Like ``theirs``, but on the device."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert ours.is_cuda
        if theirs.is_nested:
            ours, theirs = ours.values(), theirs.values()
        moved = theirs.to("cuda")
        assert (ours.dtype, ours.shape, ours.layout) == (moved.dtype, moved.shape, moved.layout)
        if theirs.layout is torch.strided:
            assert ours.stride() == moved.stride()
            assert (ours.is_conj(), ours.is_neg()) == (moved.is_conj(), moved.is_neg())
            ours, theirs = (t.cpu().resolve_conj().resolve_neg() for t in (ours, theirs))
        assert bits(ours.cpu()) == bits(theirs)
    elif isinstance(theirs, dict):
        for key in theirs:
            assert_moved(ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple)):
        for a, b in zip(ours, theirs, strict=True):
            assert_moved(a, b)
    else:
        assert ours == theirs


def tensors_of_every_kind() -> dict[str, torch.Tensor]:
    x = torch.arange(12.0).reshape(3, 4)
    return {
        "plain": x,
        "uint8": x.to(torch.uint8),
        "bool": x > 3,
        "bfloat16": x.to(torch.bfloat16),
        "complex": x.to(torch.complex64),
        "conj": x.to(torch.complex64).conj(),
        "neg": torch._neg_view(x),
        "0-d": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "transposed": x.t(),
        "strided": torch.arange(10)[::2],
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": x[:1].expand(5, 4),
        "pinned": x.pin_memory(),
        "sparse": x.to_sparse(),
        "csr": x.to_sparse_csr(),
        "jagged": torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.jagged),
        "requires grad": x.clone().requires_grad_(),
    }


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of what is beta
def test_what_arrives_is_what_to_gives() -> None:
    batch = [tensors_of_every_kind(), ("text", 3, None), {"nested": [torch.ones(3)]}]
    for there in prefetch([batch] * 3, "cuda"):
        assert_moved(there, batch)


def test_what_is_there_passes_through() -> None:
    here = [torch.ones(3, device="cuda"), torch.ones(3)]
    there = next(prefetch([here], "cuda"))
    assert there[0] is here[0]
    assert there[1].is_cuda


@every_path
def test_batches_are_torchs_on_every_path(path: str, workers: int) -> None:
    for _ in range(2):
        ours, theirs = on_device(path, workers), loader_of(TorchLoader, workers)
        for a, b in zip(ours, theirs, strict=True):
            assert_moved(a, b)


@every_path
def test_batches_are_torchs_without_our_uploads(
    path: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", "1")
    test_batches_are_torchs_on_every_path(path, workers)


# ---- streams and memory


@pytest.mark.parametrize("path", ["array", "process"])
def test_the_host_never_waits(no_sync: None, path: str) -> None:
    for _ in range(2):
        for x, y in on_device(path, 2):
            torch.cuda._sleep(LATE // 50)
            (x.sum() + y.sum()).mul_(2)


@pytest.mark.parametrize("changes", [False, True])
def test_late_kernels_read_their_own_batches(changes: bool) -> None:
    """The device is far behind, batches die at once, and their memory goes round."""
    streams = [torch.cuda.current_stream(), torch.cuda.Stream() if changes else None]
    sums = []
    batches = prefetch((torch.full((1 << 20,), float(i)) for i in range(40)), "cuda")
    for i in range(40):
        with torch.cuda.stream(streams[i % 2]):
            x = next(batches)
            torch.cuda._sleep(LATE // 10)
            sums.append(x.sum())
            del x
    torch.cuda.synchronize()
    assert [s.item() / (1 << 20) for s in sums] == [float(i) for i in range(40)]


def test_uploads_run_while_the_consumer_computes() -> None:
    batches = prefetch((torch.ones(1 << 24) for _ in range(3)), "cuda")
    next(batches)
    torch.cuda.synchronize()
    torch.cuda._sleep(20 * LATE)
    end = torch.cuda.Event()
    end.record()
    next(batches)  # uploads the third
    batches._accelerator._copies.synchronize()
    assert not end.query()


@pytest.mark.parametrize("path", ["array", "process"])
def test_a_batch_that_comes_in_the_middle_of_a_step_is_uploaded_there(path: str) -> None:
    side = torch.cuda.Stream()
    batches = iter(on_device(path, 1, prefetch_factor=1))
    theirs = iter(loader_of(TorchLoader, 1, prefetch_factor=1))
    for _ in range(2):
        next(batches), next(theirs)
    torch.cuda.synchronize()
    torch.cuda._sleep(20 * LATE)  # the step
    end = torch.cuda.Event()
    end.record()
    with torch.cuda.stream(side):
        batch = next(batches)
        side.synchronize()
        assert not end.query()
        assert_moved(batch, next(theirs))
        assert not end.query()


def test_epochs_go_on_with_the_memory_of_the_first() -> None:
    reserved = []
    for _ in range(40):
        for x in prefetch((torch.ones(1 << 20) for _ in range(5)), "cuda"):
            x.mul_(2)
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[2] == reserved[-1]


def test_a_transform_runs_on_the_stream_of_the_copies(no_sync: None) -> None:
    mean = torch.tensor([100.0, 120.0, 140.0]).pin_memory().to("cuda", non_blocking=True)
    images = [torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8) for _ in range(12)]
    streams = []

    def normalise(x: torch.Tensor) -> torch.Tensor:
        streams.append(torch.cuda.current_stream())
        return (x.float() - mean.view(3, 1, 1)) / 50

    seen = list(prefetch(iter(images), "cuda", device_transform=normalise))
    torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.current_stream() not in streams
    for ours, image in zip(seen, images, strict=True):
        wanted = (image.float() - mean.cpu().view(3, 1, 1)) / 50
        assert torch.allclose(ours.cpu(), wanted)


def test_a_transform_may_return_anything() -> None:
    def transform(x: torch.Tensor) -> Any:
        return {"sparse": x.to_sparse(), "host": torch.ones(2), "x": x, "n": 3}

    for batch in prefetch([torch.eye(3)] * 3, "cuda", device_transform=transform):
        assert batch["sparse"].to_dense().sum().item() == 3


def test_static_buffers_feed_a_graph() -> None:
    batches = iter(on_device("array", 2, static_buffers=True, drop_last=True))
    x, _ = next(batches)
    graph, out = torch.cuda.CUDAGraph(), torch.zeros(3, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.sum(x, 0, out=out)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        torch.sum(x, 0, out=out)
        with pytest.raises(RuntimeError, match="while a graph is being captured"):
            next(batches)
    theirs = iter(loader_of(TorchLoader, 2, drop_last=True))
    next(theirs)
    for (again, _), (wanted, _) in zip(batches, theirs, strict=True):
        assert again.data_ptr() == x.data_ptr()
        graph.replay()
        assert torch.allclose(out.cpu(), wanted.sum(0), atol=1e-5)


def test_a_batch_without_room_is_taken_again() -> None:
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    batches = prefetch((torch.full((1 << 26,), float(i)) for i in range(2)), "cuda")
    try:
        torch.cuda.set_per_process_memory_fraction(
            (torch.cuda.memory_reserved() + (1 << 27)) / total
        )
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                next(batches)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert [x[0].item() for x in batches] == [0.0, 1.0]


# ---- where it stands, pinned memory


@every_path
@pytest.mark.parametrize("batches", [0, 3, 8])
def test_a_state_counts_what_the_user_has(path: str, workers: int, batches: int) -> None:
    loader = on_device(path, workers)
    iterator = iter(loader)
    seen = [next(iterator) for _ in range(batches)]
    state = loader.state_dict()
    assert state["yielded"] == batches
    rest = on_device("array", 0)
    rest.load_state_dict(state)
    for a, b in zip([*seen, *rest], loader_of(TorchLoader, 0), strict=True):
        assert_moved(a, b)


@every_path
def test_pin_memory_gives_pinned_batches(path: str, workers: int) -> None:
    for x, y in on_device(path, workers, device=None, pin_memory=True):
        assert x.is_pinned()
        assert y.is_pinned()
    for a, b in zip(
        on_device(path, workers, pin_memory=True), loader_of(TorchLoader, workers), strict=True
    ):
        assert_moved(a, b)


@every_path
def test_pinned_batches_die_while_copies_still_read_them(path: str, workers: int) -> None:
    """As in x = x.cuda(non_blocking=True)."""
    ours = []
    for _ in range(3):
        for batch in on_device(path, workers, device=None, pin_memory=True):
            torch.cuda._sleep(LATE // 10)
            ours.append([t.to("cuda", non_blocking=True) for t in batch])
            del batch
    theirs = [batch for _ in range(3) for batch in loader_of(TorchLoader, workers)]
    for a, b in zip(ours, theirs, strict=True):
        assert_moved(a, b)


# ---- devices


def test_a_device_that_does_not_exist_is_torchs_error() -> None:
    name = f"cuda:{torch.cuda.device_count()}"
    theirs = outcome(lambda: torch.empty(0, device=name))
    assert theirs[0] == "raised"
    assert outcome(lambda: prefetch([], name))[:2] == theirs[:2]
    assert outcome(lambda: iter(on_device("array", 0, device=name)))[:2] == theirs[:2]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_another_device_than_the_current_one() -> None:
    for device in ("cuda:1", 1):
        for x, _ in on_device("array", 2, device=device, device_transform=lambda b: b):
            assert x.device == torch.device("cuda", 1)
            assert torch.cuda.current_device() == 0
    mixed = [torch.ones(3, device="cuda:0"), torch.ones(3)]
    there = next(prefetch([mixed], "cuda:1"))
    assert [t.device.index for t in there] == [1, 1]
    assert torch.equal(there[0].cpu(), mixed[1])


NO_DEVICE = """
import torch
from fastloop import DataLoader
loader = DataLoader(torch.utils.data.TensorDataset(torch.ones(4)), device="cuda")
try:
    iter(loader)
except Exception as error:
    print(error)
"""

FORKED = """
import os
import torch
from fastloop import prefetch
batches = prefetch((torch.ones(3) for _ in range(5)), "cuda")
next(batches)
torch.cuda.synchronize()
if os.fork() == 0:
    try:
        while True:
            next(batches)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
print(sum(x.sum().item() for x in batches))
"""


def test_no_visible_device_is_torchs_error(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "")
    assert "No CUDA GPUs are available" in run_script(tmp_path, NO_DEVICE, is_fresh=True)


def test_a_forked_child_gets_torchs_error_and_the_parent_goes_on(tmp_path: Any) -> None:
    printed = run_script(tmp_path, FORKED, is_fresh=True)
    assert "re-initialize CUDA in forked subprocess" in printed
    assert printed.endswith("12.0\n")
