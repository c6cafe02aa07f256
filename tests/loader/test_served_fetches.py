"""fastloop.DataLoader without patch(): a dataset that calls torchvision's Compose is served inside
the loader's fetches, and nowhere else."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from time_limits import limit
from torch.utils.data import DataLoader, Dataset
from vision_cases import assert_same, cifar, status, v2

import fastloop
from fastloop.adapters import torchvision_parts
from fastloop.compat import seams
from fastloop.compat.counts import describe
from fastloop.compat.torch_parts import before_workers

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from PIL import Image
from torchvision import transforms as v1

PIXELS = np.random.default_rng(4).integers(0, 256, (24, 40, 44, 3), np.uint8)
CHECKED = torchvision_parts._CHECKED


class Images(Dataset[Any]):
    """A dataset as people write them."""

    def __init__(
        self, transform: Any, then: Callable[[Any], Any] = lambda image: image, mode: str = "RGB"
    ) -> None:
        self.transform, self.then, self.mode = transform, then, mode

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, index: int) -> Any:
        return self.then(self.transform(Image.fromarray(PIXELS[index]).convert(self.mode))), index


def drop_seam() -> None:
    fastloop.unpatch("transforms")
    if (seam := seams.opened.pop("transforms", None)) is not None:
        seam.serves_some = False
        seam.take_out()
        before_workers.remove(seam._prepare)


@pytest.fixture(autouse=True)
def no_seam() -> Iterator[None]:
    """The seam is not installed before a test, nor after it."""
    drop_seam()
    yield
    drop_seam()


def count(native: Callable[[], Any]) -> int:
    """Return how many images fastloop makes during a call."""
    before = status().native
    native()
    return status().native - before


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize(
    ("workers", "path", "made"),
    [(0, "auto", 24 - CHECKED), (2, "auto", 24 - 2 * CHECKED), (1, "thread", 24 - CHECKED)],
)
def test_the_class_alone_serves_a_dataset(module: Any, workers: int, path: str, made: int) -> None:
    dataset = Images(cifar(module))
    options = {"batch_size": 5, "num_workers": workers, "shuffle": True}
    if path == "auto":
        assert_same(dataset, options)
    dataset = Images(cifar(module))  # no plan of this transform has been compared
    loader = fastloop.DataLoader(dataset, path=path, **options)
    assert count(lambda: list(loader)) == made
    found = status()
    assert not found.is_on and "fetches of fastloop.DataLoader only" in found.why
    assert f"native ({found.why})" in describe("transforms", found)


SLOW = "a plan would not be faster, or results may share memory with other tensors"
REASONS = {
    "Lambda, operation 2, runs in Python": lambda: [
        v1.Resize(9),
        v1.Lambda(np.array),
        v1.Lambda(np.ravel),
    ],
    SLOW: lambda: [v1.RandomCrop(20), v1.PILToTensor()],
    "images of mode P": lambda: [v1.ToTensor()],
}


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("workers", [0, 2])
def test_what_python_does_is_counted_with_its_reason_and_time(reason: str, workers: int) -> None:
    dataset = Images(v1.Compose(REASONS[reason]()), mode="P" if "mode" in reason else "RGB")
    for _ in range(2):
        list(fastloop.DataLoader(dataset, batch_size=5, num_workers=workers))
    found = status()
    assert found.fallbacks[reason] == 48 and 0 < found.fallback_ns[reason] < 60e9
    assert re.search(
        rf", 48 left to torch \({re.escape(reason)}; \d+ us each\)", describe("transforms", found)
    )


def test_calls_outside_a_fetch_are_torchvisions() -> None:
    transform = cifar(v1)
    dataset, image = Images(transform), Image.fromarray(PIXELS[0])
    loader = fastloop.DataLoader(dataset, batch_size=5)
    for _ in loader:  # also while the loader is iterated
        assert count(lambda: [transform(image) for _ in range(9)]) == 0
    assert count(lambda: [transform(image) for _ in range(9)]) == 0
    assert count(lambda: list(DataLoader(dataset, 5, num_workers=2))) == 0


def test_a_thread_that_does_not_fetch_is_not_served() -> None:
    transform, image = cifar(v1), Image.fromarray(PIXELS[0])

    def in_a_thread(made: Any) -> Any:
        thread = threading.Thread(target=transform, args=(image,))
        thread.start()
        thread.join()
        return made

    loader = fastloop.DataLoader(Images(transform, in_a_thread), batch_size=5)
    assert count(lambda: list(loader)) == 24 - CHECKED


@pytest.mark.parametrize("workers", [0, 2])
def test_path_torch_and_the_environment_leave_it_off(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Images(cifar(v1))
    assert count(lambda: list(fastloop.DataLoader(dataset))) > 0  # the seam is installed
    assert (
        count(lambda: list(fastloop.DataLoader(dataset, 5, num_workers=workers, path="torch"))) == 0
    )
    monkeypatch.setenv("FASTLOOP", "0")
    assert count(lambda: list(fastloop.DataLoader(dataset, 5, num_workers=workers))) == 0


def test_a_torch_path_inside_a_fetch_is_left() -> None:
    inner = fastloop.DataLoader(Images(cifar(v1)), batch_size=5, path="torch")

    class Outer(Dataset[int]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return len(list(inner))

    list(fastloop.DataLoader(Images(cifar(v1)), batch_size=5))
    assert count(lambda: list(fastloop.DataLoader(Outer()))) == 0


def test_an_error_of_the_dataset_ends_the_fetch() -> None:
    def fail(made: Any) -> Any:
        raise ArithmeticError

    transform = cifar(v1)
    with pytest.raises(ArithmeticError):
        list(fastloop.DataLoader(Images(transform, fail)))
    assert count(lambda: [transform(Image.fromarray(PIXELS[0])) for _ in range(9)]) == 0


def test_patch_and_unpatch_around_it() -> None:
    transform, image = cifar(v1), Image.fromarray(PIXELS[0])
    loader = fastloop.DataLoader(Images(transform), batch_size=5)
    list(loader)
    with fastloop.patched("transforms"):
        assert status().is_on
        assert count(lambda: [transform(image) for _ in range(9)]) == 9
    assert not status().is_on
    assert count(lambda: [transform(image) for _ in range(9)]) == 0
    assert count(lambda: list(loader)) == 24 - CHECKED  # the loaders keep the seam


def test_a_program_without_torchvision_has_no_seam() -> None:
    code = """
import sys, torch, fastloop
list(fastloop.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4)), 2))
print("torchvision" in sys.modules, fastloop.patch_status().seams["transforms"].why)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False patch() was not called for it\n", done.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked(tmp_path: Path, method: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
import sys
sys.path.append({str(Path(__file__).parents[1] / "support")!r})
from torchvision_shim import torchvision_v2
v2 = torchvision_v2()
import fastloop, torch
from torch.utils.data import DataLoader
run = v2.Compose([v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return run(torch.arange(48, dtype=torch.uint8).view(3, 4, 4)), torch.get_rng_state()

if __name__ == "__main__":
    found = []
    for cls in (fastloop.DataLoader, DataLoader):  # a fork server keeps its environment
        torch.manual_seed(3)
        loader = cls(Images(), 4, num_workers=2, multiprocessing_context={method!r})
        found.append([part for batch in loader for part in batch])
    print(all(map(torch.equal, *found)), fastloop.patch_status().seams["transforms"].native)
""")
    argv = [sys.executable, program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=limit(300))
    assert done.stdout == f"True {24 - 2 * CHECKED}\n", done.stdout + done.stderr
