"""torchvision's Compose behind patch(): images, classes, strides and random states of torchvision
alone, in any dataset."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from vision_cases import (
    assert_same_bits,
    assert_same_images,
    cifar,
    play,
    random_chain,
    results,
    status,
    v2,
)

import fastloop
from fastloop import transforms
from fastloop.adapters import torchvision_chain, torchvision_parts

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from PIL import Image
from time_limits import limit
from torchvision import transforms as v1
from torchvision import tv_tensors

SEED = 20261126
TAIL = v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)
PIXELS = torch.from_numpy(np.random.default_rng(4).integers(0, 256, (24, 3, 40, 44), np.uint8))
TENSORS = list(PIXELS)
SIZES = [TENSORS[i][:, : 20 + i, : 44 - i].contiguous() for i in range(24)]
IMAGES = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in TENSORS]
PIL_SIZES = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in SIZES]
GREY = [Image.fromarray(image[0].numpy()) for image in TENSORS]
SMALL = [Image.fromarray(image[:, :32, :32].permute(1, 2, 0).numpy()) for image in TENSORS]


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    yield
    fastloop.unpatch("transforms")


def assert_served(transform: Any, images: list[Any], at_least: int | None = None) -> None:
    torchs = results(transform, images)
    fastloop.patch("transforms", verbose=False)
    assert_same_images(results(transform, images), torchs)
    assert_same_images(results(transform, images), torchs)
    count = 2 * len(images) - torchvision_parts._CHECKED if at_least is None else at_least
    assert status().native >= count, status()


def chain(*parts: Any) -> Any:
    return v2.Compose([*parts, *TAIL])


FLIP = chain(v2.RandomHorizontalFlip())

SERVED: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    "v1, PIL": lambda: (cifar(v1), IMAGES),
    "v2, PIL": lambda: (cifar(v2), IMAGES),
    "v1, grey": lambda: (v1.Compose([v1.RandomCrop(30, 2), v1.ToTensor()]), GREY),
    "v2, grey, not float": lambda: (
        v2.Compose([v2.RandomCrop(30), v2.PILToTensor(), v2.ToDtype(torch.float32)]),
        GREY,
    ),
    "tensors": lambda: (chain(v2.RandomCrop(32, 4), v2.RandomHorizontalFlip()), TENSORS),
    "tensors of v1": lambda: (
        v1.Compose([v1.RandomCrop(32, 4), v1.ConvertImageDtype(torch.float32)]),
        TENSORS,
    ),
    "tv_tensors": lambda: (chain(v2.ToImage(), v2.RandomVerticalFlip()), TENSORS),
    "pure again": lambda: (v2.Compose([chain(v2.ToImage()), v2.ToPureTensor()]), TENSORS),
    "a resized crop": lambda: (
        chain(v2.RandomResizedCrop(16, antialias=True), v2.RandomHorizontalFlip()),
        TENSORS,
    ),
    "narrow ratios": lambda: (chain(v2.RandomResizedCrop(16, (0.9, 1), (3, 4))), TENSORS),
    "wide ratios": lambda: (chain(v2.RandomResizedCrop(16, (0.9, 1), (0.2, 0.3))), TENSORS),
    "many sizes": lambda: (
        v2.Compose([v2.RandomResizedCrop(16), *TAIL, v2.RandomErasing(0.5)]),
        SIZES,
    ),
    "a resize": lambda: (chain(v2.Resize((20, 24)), v2.CenterCrop(18)), SIZES),
    "a resize of PIL": lambda: (v1.Compose([v1.Resize((20, 24)), v1.ToTensor()]), PIL_SIZES),
    "a resize of one edge": lambda: (
        v1.Compose([v1.Resize(21, max_size=40), v1.CenterCrop(20), v1.ToTensor()]),
        PIL_SIZES,
    ),
    "one pixel": lambda: (v1.Compose([v1.CenterCrop(1), v1.ToTensor()]), IMAGES),
    "a resized crop of PIL, v1": lambda: (
        v1.Compose([v1.RandomResizedCrop(19), v1.RandomHorizontalFlip(), v1.ToTensor()]),
        PIL_SIZES,
    ),
    "a resized crop of PIL, v2": lambda: (
        chain(v2.RandomResizedCrop((9, 30), interpolation=3, antialias=None), v2.ToImage()),
        PIL_SIZES,
    ),
    "a grey resized crop": lambda: (
        v1.Compose([v1.RandomResizedCrop(33, (0.1, 1), (0.2, 5)), v1.ToTensor()]),
        GREY,
    ),
    "bicubic": lambda: (chain(v2.Resize(20, v2.InterpolationMode.BICUBIC)), TENSORS),
}


@pytest.mark.parametrize("make", SERVED.values(), ids=SERVED)
def test_what_is_served(make: Callable[[], tuple[Any, list[Any]]]) -> None:
    transform, images = make()
    assert_served(transform, images)


@pytest.mark.parametrize(
    "crop", [v2.CenterCrop(24), v2.RandomCrop(24, pad_if_needed=True)], ids=["center", "random"]
)
def test_crops_of_converted_images_that_some_pad(crop: Any) -> None:
    """Padded ones have other strides."""
    images = [image.crop((0, 0, 20, 30)) for image in IMAGES[:9]]
    assert_served(
        chain(v2.ToImage(), crop), IMAGES[:9] + images, 36 - 2 * torchvision_parts._CHECKED
    )


def test_random_chains() -> None:
    any_of = random.Random(SEED)
    for _ in range(40):
        module = any_of.choice((v1, v2))
        transform = random_chain(any_of, module, "CIFAR10")
        assert_served(transform, SMALL, at_least=1)


# One operation runs in Python, the rest by a plan.
CUT: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    "the nearest pixels of PIL": lambda: (
        v1.Compose([v1.Resize(20, v1.InterpolationMode.NEAREST), v1.ToTensor()]),
        IMAGES,
    ),
    "a view": lambda: (
        v1.Compose([v1.ToTensor(), v1.RandomCrop(20), v1.RandomHorizontalFlip(0.9)]),
        IMAGES,
    ),
    "a view that is flipped": lambda: (v2.Compose([*TAIL, v2.CenterCrop(20), FLIP]), TENSORS),
    "a resize by v1": lambda: (
        v1.Compose([v1.RandomResizedCrop(20), v1.ConvertImageDtype(torch.float32)]),
        TENSORS,
    ),
    "a Lambda": lambda: (v2.Compose([v2.Lambda(lambda x: x), *TAIL]), TENSORS),
}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("make", CUT.values(), ids=CUT)
def test_what_is_cut(make: Callable[[], tuple[Any, list[Any]]]) -> None:
    transform, images = make()
    assert_served(transform, images)
    assert any("runs in Python" in reason for reason in status().fallbacks)


LEFT: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    "a tensor that was PIL": lambda: (chain(v2.ToImage(), v2.RandomResizedCrop(18)), PIL_SIZES),
    "bytes": lambda: (v2.Compose([v2.RandomCrop(30)]), TENSORS),
    "floats": lambda: (v2.Compose([v2.RandomCrop(30)]), [t.float() for t in TENSORS]),
    "other strides": lambda: (
        chain(v2.RandomResizedCrop(20)),
        [t.permute(1, 2, 0).contiguous().permute(2, 0, 1) for t in TENSORS],
    ),
    "palettes": lambda: (v1.Compose([v1.PILToTensor()]), [i.convert("P") for i in IMAGES]),
    "several inputs": lambda: (
        lambda image: FLIP(image, 3)[0],
        TENSORS,
    ),
    "dicts": lambda: (
        lambda image: FLIP({"image": image})["image"],
        TENSORS,
    ),
}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_what_is_left(make: Callable[[], tuple[Any, list[Any]]]) -> None:
    transform, images = make()
    torchs = results(transform, images)
    fastloop.patch("transforms", verbose=False)
    assert_same_images(results(transform, images), torchs)
    assert status().native == 0


def test_images_too_small_raise_torchvisions_error() -> None:
    transform = chain(v2.RandomHorizontalFlip(), v2.RandomCrop(32))
    fastloop.patch("transforms", verbose=False)
    results(transform, TENSORS)
    served = status().native
    torch.manual_seed(3)
    with pytest.raises(ValueError, match="Required crop size"):
        transform(TENSORS[0][:, :20].contiguous())
    ours = torch.get_rng_state()
    fastloop.unpatch("transforms")
    torch.manual_seed(3)
    with pytest.raises(ValueError, match="Required crop size"):
        transform(TENSORS[0][:, :20].contiguous())
    assert torch.equal(ours, torch.get_rng_state())
    assert served > 0


def change_p(transform: Any) -> None:
    transform.transforms[0].p = 1.0


def add_hook(transform: Any) -> None:
    transform.transforms[0].register_forward_hook(lambda module, args, out: out.mul(2))


def replace_method(transform: Any) -> None:
    transform.transforms[0].forward = lambda image: image


def append(transform: Any) -> None:
    transform.transforms.append(v2.RandomErasing(1.0))


@pytest.mark.parametrize("change", [change_p, add_hook, replace_method, append])
def test_changes_are_seen(change: Callable[[Any], None]) -> None:
    def run() -> list[Any]:
        transform = chain(v2.RandomHorizontalFlip(0.1))
        first = results(transform, TENSORS)
        change(transform)
        return first + results(transform, TENSORS)

    torchs = run()
    fastloop.patch("transforms", verbose=False)
    assert_same_images(run(), torchs)
    assert status().native > 0


def test_many_changes_leave_the_transform() -> None:
    transform = chain(v2.RandomHorizontalFlip())
    fastloop.patch("transforms", verbose=False)
    for number in range(40):
        transform.transforms[0].p = number / 40
        results(transform, TENSORS[:5])
    served = status().native
    assert 0 < served < 40 and "more than 16 times" in "".join(status().fallbacks)
    results(transform, TENSORS)
    assert status().native == served


def test_many_sizes_leave_the_transform() -> None:
    """Each size has a plan where results differ in size, too."""
    transform = chain(v2.RandomHorizontalFlip())
    torchs = results(transform, SIZES * 2)
    fastloop.patch("transforms", verbose=False)
    assert_same_images(results(transform, SIZES * 2), torchs)
    assert status().native == 0 and "more than 16 times" in "".join(status().fallbacks)


def test_worlds_that_are_left() -> None:
    transform = chain(v2.RandomHorizontalFlip())
    fastloop.patch("transforms", verbose=False)
    results(transform, TENSORS)
    served = status().native
    assert served > 0
    torch.set_default_dtype(torch.float64)
    try:
        results(transform, TENSORS)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("cpu"):
        results(transform, TENSORS)
    with tv_tensors.set_return_type("TVTensor"):
        results(transform, TENSORS)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *args: None)
    results(transform, TENSORS)
    hook.remove()
    assert status().native == served
    results(transform, TENSORS)
    assert status().native > served


def test_a_first_image_in_another_world_leaves_nothing_for_good() -> None:
    transform = chain(v2.RandomHorizontalFlip())
    fastloop.patch("transforms", verbose=False)
    with torch.device("cpu"):
        results(transform, TENSORS)
    assert status().native == 0
    results(transform, TENSORS)
    assert status().native > 0


def normalize_wrongly(self: torchvision_chain.Chain, op: Any) -> None:
    self.ops.append(transforms.Normalize([0.5] * 3, [0.3] * 3))


def test_a_difference_leaves_the_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    _, *forms = torchvision_chain._READERS["Normalize"]
    monkeypatch.setitem(torchvision_chain._READERS, "Normalize", (normalize_wrongly, *forms))
    transform = chain(v2.RandomHorizontalFlip())
    torchs = results(transform, TENSORS)
    fastloop.patch("transforms", verbose=False)
    with pytest.warns(RuntimeWarning, match="differ from torchvision's") as seen:
        assert_same_images(results(transform, TENSORS), torchs)
    assert len(seen) == 1 and status().native == 0


class Wrong:
    """Draws of a plan, which end in other pixels from some sample on."""

    def __init__(self, draws: Any, first: int) -> None:
        self.draws, self.left = draws, first

    def apply(self, image: Any, out: Tensor, generator: torch.Generator) -> None:
        self.draws.apply(image, out, generator)
        self.left -= 1
        if self.left < 0:
            out[0, 0, 0] += 1


@pytest.mark.parametrize("every", [0, 1, 4])
def test_one_sample_of_so_many_is_compared(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    monkeypatch.setenv("FASTLOOP_CHECK", str(every))
    transform, images = chain(v2.RandomHorizontalFlip()), [TENSORS[0]] * 12
    torchs = results(transform, images)
    fastloop.patch("transforms", verbose=False)
    assert_same_images(results(transform, images), torchs)
    served = sum(1 for i in range(4, 13) if every == 0 or i % every)
    assert status().native == served
    true_draws = torchvision_chain.ImageDraws
    monkeypatch.setattr(torchvision_chain, "ImageDraws", lambda *a: Wrong(true_draws(*a), 5))
    again = chain(v2.RandomHorizontalFlip())
    if every == 0:
        results(again, images)  # nobody looks
        return
    with pytest.warns(RuntimeWarning, match="differ from torchvision's"):
        results(again, images)
    assert_same_images(results(again, images), torchs)


def test_a_wrong_number_of_samples_is_told_when_patching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOOP_CHECK", "some")
    with pytest.raises(ValueError, match="FASTLOOP_CHECK must be an int >= 0, got 'some'"):
        fastloop.patch("transforms", verbose=False)


class Pairs(Dataset[Any]):
    """A dataset of a user."""

    def __init__(self, transform: Any, images: list[Any]) -> None:
        self.transform, self.images = transform, images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.images[index]), index


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("images", [TENSORS, IMAGES], ids=["tensors", "PIL"])
def test_a_dataset_of_a_user(workers: int, images: list[Any]) -> None:
    dataset = Pairs(cifar(v2) if images is IMAGES else chain(v2.RandomResizedCrop(16)), images)
    options = {"batch_size": 5, "shuffle": True, "num_workers": workers}
    torchs = list(play(DataLoader, dataset, options, [None, None]))
    with fastloop.patched(["dataloader", "transforms"]):
        ours = list(play(DataLoader, dataset, options, [None, None]))
        assert status().native > 20
    assert_same_bits(ours, torchs)


def test_threads_draw_different_numbers() -> None:
    """As many draws leave the state that they leave one after the other, also where collections of
    garbage let other threads run."""
    fastloop.patch("transforms", verbose=False)
    flip = chain(v2.RandomHorizontalFlip())
    results(flip, TENSORS)
    rounds, thresholds = 20, gc.get_threshold()
    gc.callbacks.append(lambda *_: time.sleep(0))

    def draw() -> None:
        for i, image in enumerate(TENSORS * rounds):
            _junk: list[Any] = [[] for _ in range(i % 3)]
            flip(image)

    try:
        for _ in range(8):
            gc.set_threshold(1)
            threads = [threading.Thread(target=draw) for _ in range(4)]
            torch.manual_seed(9)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            ours = torch.get_rng_state()
            torch.manual_seed(9)
            torch.rand(4 * rounds * len(TENSORS))
            assert torch.equal(ours, torch.get_rng_state())
    finally:
        gc.set_threshold(*thresholds)
        del gc.callbacks[-1]


def test_a_transform_is_forgotten() -> None:
    transform = chain(v2.RandomHorizontalFlip())
    fastloop.patch("transforms", verbose=False)
    results(transform, TENSORS)
    refs = weakref.ref(transform), weakref.ref(transform.transforms[0])
    del transform
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_a_transform_can_be_copied() -> None:
    transform = chain(v2.RandomHorizontalFlip())
    fastloop.patch("transforms", verbose=False)
    results(transform, TENSORS)
    before = results(transform, TENSORS)
    for other in (copy.deepcopy(transform), pickle.loads(pickle.dumps(transform))):
        assert_same_images(results(other, TENSORS), before)
        assert vars(other).keys() == vars(transform).keys()


def run_program(program: str) -> str:
    support = str(Path(__file__).parents[1] / "support")
    argv = [sys.executable, "-c", f"import sys\nsys.path.append({support!r})\n{program}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=limit(120))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_garbage_is_not_collected_while_a_state_is_read() -> None:
    """torch holds the generator's mutex then. A thread that collects lets another one go on, which
    waits for the mutex with the interpreter lock: torch alone hangs here."""
    program = """
from torchvision_shim import torchvision_v2
v2 = torchvision_v2()
import gc, random, threading, time
import fastloop, torch
fastloop.patch("transforms", verbose=False)
image = torch.zeros(3, 8, 8, dtype=torch.uint8)
flip = v2.Compose([v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
kept = [flip(image) for _ in range(9)]

def work():
    for _ in range(1000):
        kept.extend([] for _ in range(random.randrange(6)))
        flip(image)

gc.callbacks.append(lambda *args: time.sleep(1e-5))
gc.set_threshold(7)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(fastloop.patch_status().seams["transforms"].native)
"""
    assert int(run_program(program)) == 4006


@pytest.mark.parametrize(
    ("path", "method"), [("process", "fork"), ("process", "spawn"), ("torch", "fork")]
)
def test_workers_do_not_digest_torchvision_anew(tmp_path: Path, path: str, method: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
import sys
sys.path.append({str(Path(__file__).parents[1] / "support")!r})
from torchvision_shim import torchvision_v2
v2 = torchvision_v2()
import fastloop, torch
from fastloop.adapters import originals
from fastloop.compat import statements
fastloop.patch("transforms", verbose=False)
digested, digest = [], statements.read_statements

def noting(function):
    digested.append(function)
    return digest(function)

statements.read_statements = noting
run = v2.Compose([v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        before = len(digested)
        has_noted = {method == "spawn"} or originals.methods_of.cache_info().currsize > 0
        run(torch.zeros(3, 8, 8, dtype=torch.uint8))
        return len(digested) - before if has_noted else -1

if __name__ == "__main__":
    loader = fastloop.DataLoader(Images(), 2, num_workers=1, path={path!r},
        multiprocessing_context={method!r})
    print(torch.cat(list(loader)).tolist(), len(digested) > 50)
""")
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=limit(300)
    )
    assert done.stdout == "[0, 0, 0, 0] True\n", done.stdout + done.stderr


def test_a_fork_compares_torchvision_once() -> None:
    run_program(
        """
from torchvision_shim import torchvision_v2
v2 = torchvision_v2()
import fastloop, os
from fastloop.adapters import originals
fastloop.patch("transforms", verbose=False)
asked, find_unknown = [], originals.find_unknown

def noting(*plans):
    asked.append(plans)
    return find_unknown(*plans)

def fork():
    before = len(asked)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return len(asked) - before

originals.find_unknown = noting
assert [fork(), fork(), fork()] == [1, 0, 0]
"""
    )


def test_it_waits_for_torchvision() -> None:
    run_program(
        """
import fastloop
state = fastloop.patch(verbose=False)
assert state.seams["transforms"].is_on and "torchvision" not in sys.modules
from torchvision_shim import torchvision_v2
v2 = torchvision_v2()
import torch
image = torch.zeros(3, 8, 8, dtype=torch.uint8)
run = v2.Compose([v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
for _ in range(9):
    run(image)
assert fastloop.patch_status().seams["transforms"].native == 6
fastloop.unpatch()
run(image)
assert not hasattr(v2.Compose.forward, "__wrapped__")
"""
    )
