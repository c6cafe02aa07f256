"""torchvision's ImageFolder by C: batches, errors and random states as with torch alone."""

from __future__ import annotations

import os
import pickle
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, default_collate, get_worker_info
from vision_cases import (
    MEAN,
    STD,
    assert_same,
    assert_same_bits,
    options_of,
    play,
    random_chain,
    v2,
)

import fastloop
from fastloop.adapters import torchvision_datasets, torchvision_folder
from fastloop.adapters.torchvision_folder import CutSamples, FolderSamples
from fastloop.compat import verification
from fastloop.data.image_folder import decode
from fastloop.data.transforms import ops

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from PIL import Image
from torchvision import datasets
from torchvision import transforms as v1

LOADERS = int(os.environ.get("FASTLOOP_FUZZ", "16"))
SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", time.strftime("%Y%m%d")))
NUMBERS = pytest.mark.parametrize("workers", [0, 2])
MODES = "RGB", "L", "CMYK", "RGB", "RGBA", "P", "L", "I;16", "1", "LA"


@pytest.fixture(autouse=True)
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test knows what those before it have compared."""
    verification.verification_of.cache_clear()
    yield
    fastloop.unpatch("transforms")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    numbers = np.random.default_rng(5)
    for number in range(40):
        mode = MODES[number % len(MODES)]
        suffix = "jpg" if mode in ("RGB", "CMYK") or number % 10 == 1 else "png"
        size = (1, 1) if number == 30 else (23 + number, 50 - number)
        pixels = numbers.integers(0, 256, (*size, 3), np.uint8)
        image = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 250)
        if mode != "I;16":
            image = Image.fromarray(pixels).convert(mode)
        path = root / f"class {number % 3}" / f"{number}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        image.save(path, **({"progressive": number % 20 == 3} if suffix == "jpg" else {}))
    return root


def recipe(module: Any, *first: Any) -> Any:
    first = first or (module.RandomResizedCrop(24), module.RandomHorizontalFlip())
    tail = [module.ToTensor()]
    if module is v2:
        tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return module.Compose([*first, *tail, module.Normalize(MEAN, STD)])


def folder(root: Path, transform: Any) -> Any:
    return datasets.ImageFolder(str(root), transform)


def why(dataset: Any, **options: Any) -> str:
    return fastloop.DataLoader(dataset, **options).stats().why


def count_c(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the images that C makes, by size: of this process."""
    made: Counter[str] = Counter()
    true_draws = torchvision_folder.chains.ImageDraws

    class Draws:
        def __init__(self, *args: Any) -> None:
            self.draws = true_draws(*args)

        def apply(self, *args: Any) -> None:
            self.draws.apply(*args)
            made["all"] += 1

    monkeypatch.setattr(torchvision_folder.chains, "ImageDraws", Draws)
    return made


@NUMBERS
@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_recipe(root: Path, module: Any, workers: int, shuffle: bool) -> None:
    dataset = folder(root, recipe(module))
    options = {"batch_size": 7, "shuffle": shuffle, "num_workers": workers}
    assert why(dataset, **options) == "samples of ImageFolder by fastloop"
    assert_same(dataset, options, shuffle)


def test_all_samples_but_the_first_are_made_by_c(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = count_c(monkeypatch)
    dataset = folder(root, recipe(v1))
    for _ in range(2):
        list(fastloop.DataLoader(dataset, batch_size=7))
    assert made["all"] == 80
    monkeypatch.setitem(Image.OPEN, "JPEG", None)  # Pillow cannot be asked
    jpegs = [i for i, (path, _) in enumerate(dataset.samples) if MODES[number_of(path)] == "RGB"]
    list(fastloop.DataLoader(Subset(dataset, jpegs), batch_size=4))
    assert made["all"] == 80 + len(jpegs)


def number_of(path: str) -> int:
    return int(Path(path).stem) % len(MODES)


@NUMBERS
def test_tensors_that_were_pil(root: Path, workers: int) -> None:
    parts = [v2.PILToTensor(), v2.RandomResizedCrop(20, antialias=True), v2.RandomVerticalFlip()]
    dataset = folder(root, v2.Compose([*parts, v2.ToDtype(torch.float32, scale=True)]))
    options = {"batch_size": 7, "num_workers": workers}
    assert why(dataset, **options) == "samples of ImageFolder by fastloop"
    assert_same(dataset, options)


@NUMBERS
def test_subsets_of_it(root: Path, workers: int) -> None:
    dataset = folder(root, recipe(v2, v2.Resize(30), v2.RandomCrop(24, pad_if_needed=True)))
    part = Subset(Subset(dataset, range(30, 3, -2)), [3, 1, 1, 9, -2, 0])
    options = {"batch_size": 4, "num_workers": workers, "shuffle": True}
    assert why(part, **options) == "samples of ImageFolder by fastloop"
    assert_same(part, options)


def test_a_loop_that_draws_between_batches(root: Path) -> None:
    dataset = folder(root, recipe(v1))
    assert_same(dataset, {"batch_size": 7}, between=lambda number: torch.randn(3))


def test_random_chains_and_loaders(root: Path) -> None:
    """FASTLOOP_FUZZ is how many, FASTLOOP_FUZZ_SEED the seed, which is that of the day."""
    any_of = random.Random(SEED)
    for number in range(LOADERS):
        module = any_of.choice((v1, v2))
        how = module.InterpolationMode(any_of.choice(("bilinear", "bicubic")))
        first = any_of.choice(
            (
                [module.RandomResizedCrop(32, interpolation=how)],
                [module.Resize((32, 32), how)],
                [module.Resize(36, how), module.CenterCrop(32)],
                [module.RandomVerticalFlip(), module.CenterCrop(32)],
                [module.RandomCrop(32, 3, pad_if_needed=True, fill=7)],
            )
        )
        transform = module.Compose([*first, *random_chain(any_of, module, "CIFAR10").transforms])
        dataset = folder(root, transform)
        options = options_of(any_of, any_of.choice((0, 0, 1, 2)))
        stops = [any_of.choice((None, 1, 2)), None]
        case = f"seed {SEED}, case {number}: {transform}, {options}, {stops}"
        assert why(dataset, **options) == "samples of ImageFolder by fastloop", case
        try:
            assert_same(dataset, options, any_of.random() < 0.3, stops=stops)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from None


# ---- files that cannot be read


def epoch_with_errors(loader: Any) -> list[Any]:
    """Batches, errors, and the state after each."""
    torch.manual_seed(3)
    found, batches = [], iter(loader)
    while True:
        try:
            found += next(batches)
        except StopIteration:
            return found
        except Exception as error:
            lines = re.sub(r"0x\w+", "", str(error)).strip().split("\n")
            lines = [line for line in lines if not line.startswith("This happened in batch")]
            found.append((type(error), lines[-1]))
        if loader.num_workers == 0:
            found.append(torch.get_rng_state())


@NUMBERS
@pytest.mark.parametrize("fault", ["missing", "empty", "cut", "wrong", "a folder"])
def test_errors_in_files(tmp_path: Path, root: Path, fault: str, workers: int) -> None:
    sources = sorted(root.glob("*/*.jpg"))[:9]
    (tmp_path / "a").mkdir()
    for number, source in enumerate(sources):
        (tmp_path / f"a/{number}.jpg").write_bytes(source.read_bytes())
    dataset, path = folder(tmp_path, recipe(v1)), tmp_path / "a/4.jpg"
    data = path.read_bytes()
    path.unlink()
    if fault == "a folder":
        path.mkdir()
    elif fault != "missing":
        path.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "wrong": b"GIF?"}[fault])
    options = {"batch_size": 3, "num_workers": workers}
    expected = epoch_with_errors(DataLoader(dataset, **options))
    found = epoch_with_errors(fastloop.DataLoader(dataset, **options))
    is_error = [isinstance(each, tuple) for each in expected]
    assert is_error == [isinstance(each, tuple) for each in found] and sum(is_error) == 1
    for ours, torchs in zip(found, expected, strict=True):
        assert ours == torchs if isinstance(ours, tuple) else torch.equal(ours, torchs)


def test_images_of_many_pixels_warn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1200)
    dataset = folder(root, recipe(v1))
    torch.manual_seed(1)
    with pytest.warns(Image.DecompressionBombWarning) as torchs:
        list(DataLoader(dataset, batch_size=7))
    torch.manual_seed(1)
    with pytest.warns(Image.DecompressionBombWarning) as ours:
        list(fastloop.DataLoader(dataset, batch_size=7))
    assert {str(each.message) for each in ours} == {str(each.message) for each in torchs}


def test_crops_that_are_too_large(root: Path) -> None:
    dataset = folder(root, recipe(v2, v2.RandomHorizontalFlip(), v2.RandomCrop(24)))
    options = {"batch_size": 5}
    expected = epoch_with_errors(DataLoader(dataset, **options))
    found = epoch_with_errors(fastloop.DataLoader(dataset, **options))
    for ours, torchs in zip(found, expected, strict=True):
        assert ours == torchs if isinstance(ours, tuple) else torch.equal(ours, torchs)
    assert any(isinstance(each, tuple) and each[0] is ValueError for each in found)


def test_a_row_that_a_subset_does_not_have(root: Path) -> None:
    """The samples before it are drawn."""
    dataset = Subset(folder(root, recipe(v1)), range(30))
    options = {"batch_size": 4, "sampler": [0, 1, 2, 99, 4, 5]}
    expected = epoch_with_errors(DataLoader(dataset, **options))
    found = epoch_with_errors(fastloop.DataLoader(dataset, **options))
    assert expected[0][0] is IndexError
    for ours, torchs in zip(found, expected, strict=True):
        assert ours == torchs if isinstance(ours, tuple) else torch.equal(ours, torchs)


ENDS = """
import sys, threading, time
sys.path.insert(0, {support!r})
import torchvision_shim
torchvision_shim.torchvision_v2()
from torchvision import datasets, transforms
import fastloop

def train():
    threading.main_thread().join()
    transform = transforms.Compose([transforms.RandomCrop(9, 9), transforms.ToTensor()])
    loader = fastloop.DataLoader(datasets.ImageFolder({root!r}, transform), batch_size=8)
    print(len(list(loader)), loader.stats().why)

threading.Thread(target=train).start()
"""


def test_a_loop_in_a_thread_outlives_the_main_thread(root: Path) -> None:
    support = str(Path(__file__).parents[1] / "support")
    code = ENDS.format(support=support, root=str(root))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout == "5 samples of ImageFolder by fastloop\n", ended.stderr


def test_images_that_wait_share_little_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many threads decode."""
    made = []

    def new_decoder() -> Any:
        made.append(true_new())
        return made[-1]

    true_new = torchvision_folder._new_decoder
    monkeypatch.setattr(torchvision_folder, "_new_decoder", new_decoder)
    monkeypatch.setattr(torchvision_folder, "usable_cpus", lambda: 4)
    torchvision_folder._threads_of.cache_clear()
    loader = fastloop.DataLoader(folder(root, recipe(v1)), batch_size=20)
    for _ in loader:
        pass
    torchvision_folder._threads_of.cache_clear()
    used = [decoder for decoder in made if hasattr(decoder._own, "memory")]  # of no thread
    assert 1 < len(used) <= torchvision_folder._AHEAD
    assert not any(isinstance(decoder._own, threading.local) for decoder in made)


# ---- what is left to torchvision


class Own(datasets.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image, target + 1


def own_loader(path: str) -> Any:
    return datasets.folder.pil_loader(path).rotate(90)


LEFT: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "a subclass": (lambda root: Own(root, recipe(v1)), {}, "the dataset is a Own"),
    "a loader": (
        lambda root: datasets.ImageFolder(root, recipe(v1), loader=own_loader),
        {},
        "has a loader of its own",
    ),
    "no transform": (lambda root: folder(root, None), {}, "the ImageFolder has no transform"),
    "a Lambda": (
        lambda root: folder(root, v1.Compose([v1.CenterCrop(9), v1.Lambda(v1.ToTensor())])),
        {},
        "which decodes ahead; the transform: fastloop does not do Lambda, operation 2",
    ),
    "sizes that differ": (
        lambda root: folder(root, v1.ToTensor()),
        {"batch_size": 1},
        "decodes ahead",
    ),
    "no batches": (
        lambda root: folder(root, recipe(v2)),
        {"batch_size": None},
        "single samples",
    ),
}


@pytest.mark.parametrize(("make", "others", "text"), LEFT.values(), ids=LEFT)
def test_what_is_left(root: Path, make: Any, others: dict[str, Any], text: str) -> None:
    dataset = make(root)
    assert text in why(dataset, **others)
    options = {"batch_size": 4, "shuffle": True, **others}
    if options["batch_size"] is not None and dataset.transform is not None:
        assert_same(dataset, options, stops=[None])


# ---- what changes


def change_p(dataset: Any) -> None:
    dataset.transform.transforms[1].p = 1.0


def change_transform(dataset: Any) -> None:
    dataset.transform = recipe(v2, v2.Resize((24, 24)))


def change_samples(dataset: Any) -> None:
    dataset.samples = dataset.samples[::-1]


def change_loader(dataset: Any) -> None:
    dataset.loader = own_loader


@NUMBERS
@pytest.mark.parametrize("change", [change_p, change_transform, change_samples, change_loader])
def test_changes_are_seen(root: Path, change: Callable[[Any], None], workers: int) -> None:
    """Between batches, or in a worker_init_fn."""

    def init(worker: int) -> None:
        change(get_worker_info().dataset)  # type: ignore[union-attr]

    def between(number: int) -> None:
        if number == 1 and workers == 0:
            change(dataset)

    found = []
    for make in (DataLoader, fastloop.DataLoader):
        dataset = folder(root, recipe(v1))
        options = {"batch_size": 7, "num_workers": workers, "worker_init_fn": init}
        found.append(list(play(make, dataset, options, [None], between=between)))
    assert_same_bits(found[1], found[0])


def test_another_default_dtype_is_left(root: Path) -> None:
    dataset = folder(root, recipe(v1))
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(dataset, {"batch_size": 8})
    finally:
        torch.set_default_dtype(torch.float32)


# ---- the check


@pytest.mark.parametrize("every", [0, 1, 10])
def test_a_difference_is_seen(root: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """Of the first samples, and with FASTLOOP_CHECK of others."""
    monkeypatch.setenv("FASTLOOP_CHECK", str(every))
    true_decode = torchvision_folder.AutoDecoder.__call__
    decoded: list[bytes] = []

    def decode(self: Any, data: bytes) -> Any:
        decoded.append(data)
        image = np.array(true_decode(self, data))
        return 255 - image if every == 0 or len(decoded) > 10 else image

    monkeypatch.setattr(torchvision_folder.AutoDecoder, "__call__", decode)
    dataset, options = folder(root, recipe(v1)), {"batch_size": 7, "shuffle": True}
    torch.manual_seed(1)
    expected = [part for batch in DataLoader(dataset, **options) for part in batch]
    torch.manual_seed(1)
    with pytest.warns(RuntimeWarning, match="differ from torchvision's") as seen:
        found = [part for batch in fastloop.DataLoader(dataset, **options) for part in batch]
    assert len(seen) == 1
    if every < 10:
        assert_same_bits(found, expected)


def test_a_wrong_state_is_seen(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_chain = torchvision_folder.chains.read_chain

    def read_wrongly(transform: Any) -> Any:
        chain = true_chain(transform)
        chain.ops.insert(1, ops.RandomHorizontalFlip(0))
        return chain

    monkeypatch.setattr(torchvision_folder.chains, "read_chain", read_wrongly)
    with pytest.warns(RuntimeWarning, match="Please report"):
        assert_same(folder(root, recipe(v1)), {"batch_size": 8})


# ---- behind torch's own class, and in other processes


@NUMBERS
def test_torchs_class_behind_patch(root: Path, workers: int) -> None:
    dataset = folder(root, recipe(v2))
    options = {"batch_size": 7, "shuffle": True, "num_workers": workers}
    torchs = list(play(DataLoader, dataset, options, [None, 2, None]))
    with fastloop.patched(["dataloader", "transforms"]):
        iterator = iter(DataLoader(dataset, **options))
        assert type(iterator._dataset) is FolderSamples
        (how,) = fastloop.patch_status().seams["dataloader"].served
        assert how.startswith("ImageFolder: ") and how.endswith(", samples by fastloop")
        del iterator
        ours = list(play(DataLoader, dataset, options, [None, 2, None]))
    assert_same_bits(ours, torchs)


def test_samples_in_another_process(root: Path) -> None:
    """As a spawned worker gets them, which may have another default dtype."""
    samples = FolderSamples(folder(root, recipe(v2)))
    torch.manual_seed(2)
    expected = default_collate([samples._dataset[i] for i in range(9)])
    for each in (samples, pickle.loads(pickle.dumps(samples))):
        assert type(each) is FolderSamples
        torch.manual_seed(2)
        assert_same_bits(default_collate(each.__getitems__(range(9))), expected)
    torch.set_default_dtype(torch.float64)
    try:
        assert type(pickle.loads(pickle.dumps(samples))) is datasets.ImageFolder
    finally:
        torch.set_default_dtype(torch.float32)


def test_persistent_workers(root: Path) -> None:
    dataset = folder(root, recipe(v2))
    options = {"batch_size": 4, "num_workers": 2, "persistent_workers": True}
    assert_same(dataset, options, stops=[2, None, 1, None])


def test_a_worker_init_fn_reads_samples(root: Path) -> None:
    def init(worker: int) -> None:
        dataset = get_worker_info().dataset  # type: ignore[union-attr]
        dataset.samples[0] = dataset.samples[dataset[1][1]]

    assert_same(folder(root, recipe(v1)), {"num_workers": 1, "worker_init_fn": init})


# ---- transforms with operations that Python calls


class Shown:
    """An operation of a user, which draws from all generators and shows what it meets."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, image: Any) -> Any:
        self.calls += 1
        chance = torch.rand(()).item(), random.random(), np.random.rand()
        image = image.rotate(90 * chance[0], fillcolor=int(255 * chance[1]))
        shown = len(image.info), self.calls % 256, int(255 * chance[2])
        image.putpixel((1, 2), shown if image.mode == "RGB" else shown[0])
        return image


def cut_recipe(module: Any) -> Any:
    gate = module.RandomApply([module.RandomVerticalFlip(), Shown()], 0.4)
    first = module.RandomResizedCrop(24), gate, module.RandomHorizontalFlip()
    return recipe(module, *first, module.Lambda(lambda image: image.convert("RGB")))


@pytest.mark.filterwarnings("error:The given NumPy array")
@NUMBERS
@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
def test_operations_of_users_in_a_folder(root: Path, module: Any, workers: int) -> None:
    def seeded_recipe() -> Any:
        random.seed(3)
        np.random.seed(4)
        return folder(root, cut_recipe(module))

    options = {"batch_size": 5, "shuffle": True, "num_workers": workers}
    found = []
    for make_loader in (DataLoader, fastloop.DataLoader):
        dataset = seeded_recipe()
        with fastloop.patched(["transforms"]) if make_loader is not DataLoader else nullcontext():
            batches = list(play(make_loader, dataset, options, [None, None]))
        rest = random.getstate(), np.random.get_state()[1].tobytes()
        found.append((batches, rest, dataset.transform.transforms[1].transforms[1].calls))
    assert_same_bits(found[1][0], found[0][0])
    assert found[0][1:] == found[1][1:]


def test_threads_decode_for_operations_of_users(root: Path) -> None:
    dataset = folder(root, cut_recipe(v1))
    loader = fastloop.DataLoader(dataset, 8)
    for _ in loader:
        pass
    assert type(loader.dataset) is datasets.ImageFolder
    assert loader.stats().why == "samples of ImageFolder by fastloop"
    samples = torchvision_datasets.samples_of(dataset, True, 0)
    assert type(samples) is CutSamples
    torch.manual_seed(2)
    before = Counter(thread.name.split("_")[0] for thread in threading.enumerate())
    samples.__getitems__(range(40))
    part = next(part for (place, *_), part in samples._parts.parts.items() if place == 0)
    assert part is not None and part.made > 10
    assert before[verification.DECODERS] > 0


def of_no_file(image: Any) -> Any:
    return image if type(image) is Image.Image else None


@pytest.mark.filterwarnings("error:fastloop's")
@pytest.mark.parametrize("first", [v1.RandomHorizontalFlip(), of_no_file])
def test_pillow_decodes_where_simplejpeg_is_missing(
    root: Path, first: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = decode.find_module
    monkeypatch.setattr(
        decode, "find_module", lambda name: None if name == "simplejpeg" else find(name)
    )
    dataset = folder(root, recipe(v1, first, v1.RandomResizedCrop(24)))
    image = torchvision_folder._new_decoder()(Path(dataset.samples[0][0]).read_bytes())
    assert isinstance(image, Image.Image), "an array takes two copies of the image"
    assert_same(dataset, {"batch_size": 4, "shuffle": True})


def test_a_folder_without_any_plan_is_decoded_ahead(root: Path) -> None:
    dataset = folder(root, v1.Compose([Shown(), v1.Lambda(v1.ToTensor())]))
    assert "decodes ahead; the transform: fastloop does not do Shown, operation 1" in why(dataset)


def test_a_folders_operations_may_change(root: Path) -> None:
    def change(transform: Any) -> Callable[[int], None]:
        def between(number: int) -> None:
            if number == 2:
                transform.transforms.insert(1, v1.RandomVerticalFlip(0.9))
            if number == 4:
                transform.transforms[0].scale = 0.5, 0.6

        return between

    found = []
    for make_loader in (DataLoader, fastloop.DataLoader):
        random.seed(3)
        np.random.seed(4)
        dataset = folder(root, cut_recipe(v1))
        between = change(dataset.transform)
        options = {"batch_size": 4}
        found.append(list(play(make_loader, dataset, options, [None], between=between)))
    assert_same_bits(found[1], found[0])
