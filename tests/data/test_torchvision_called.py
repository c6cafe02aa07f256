"""torchvision's ImageFolder with any transform, and with the user's collate: samples, errors and
random states as with torch alone."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_folders import nothing_compared
from torch.utils.data import DataLoader, Subset, default_collate, get_worker_info
from vision_cases import MEAN, STD, cifar, dataset_of, status, v2

import fastloop
from fastloop.adapters import torchvision_folder
from fastloop.adapters.torchvision_folder import CalledSamples, CutSamples
from fastloop.compat.verification import same_bits

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from PIL import Image, ImageFilter
from PIL.JpegImagePlugin import JpegImageFile
from torchvision import datasets
from torchvision import transforms as v1

# A result that differs would be left to torchvision, with a warning.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
NUMBERS = pytest.mark.parametrize("workers", [0, 2])
MODES = "RGB", "L", "CMYK", "RGB", "RGBA", "P", "L", "RGB", "1", "LA"
CHECKED = torchvision_folder._CHECKED


@pytest.fixture(autouse=True)
def plans() -> Iterator[None]:
    """No test knows what earlier tests have compared."""
    yield from nothing_compared()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    numbers = np.random.default_rng(5)
    for number in range(40):
        mode = MODES[number % len(MODES)]
        is_jpeg = mode in ("RGB", "CMYK", "L")
        pixels = numbers.integers(0, 256, (23 + number, 50 - number, 3), np.uint8)
        path = root / f"class {number % 3}" / f"{number}.{'jpg' if is_jpeg else 'png'}"
        path.parent.mkdir(exist_ok=True)
        named: dict[str, Any] = {}
        if is_jpeg:
            named = {"progressive": number % 20 == 3, "quality": 60 + number, "comment": b"by me"}
            named["dpi"] = (number + 1, 72)
        elif mode == "P":
            named = {"transparency": 3}
        if number % 20 == 7:
            exif = Image.Exif()
            exif[0x0112] = 6  # turned
            named |= {"exif": exif, "icc_profile": b"a profile"}
        Image.fromarray(pixels).convert(mode).save(path, **named)
    return root


def chain(module: Any, *first: Any) -> Any:
    tail = [module.ToTensor()]
    if module is v2:
        tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    first = first or (module.RandomResizedCrop(24), module.RandomHorizontalFlip())
    return module.Compose([*first, *tail, module.Normalize(MEAN, STD)])


# ---- transforms as people write them


class Preset:
    """As torchvision's reference scripts have one."""

    def __init__(self) -> None:
        self.transforms = chain(v1)

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


class TwoCrops:
    def __init__(self) -> None:
        self.base = chain(v1, v1.RandomResizedCrop(20), v1.RandomHorizontalFlip())

    def __call__(self, image: Any) -> Any:
        return [self.base(image), self.base(image)]


class MultiCrop:
    """Global and local crops, with a blur of its own between; as DINO has them."""

    def __init__(self) -> None:
        self.first, self.local = chain(v2), chain(v2, v2.RandomResizedCrop(9))

    def __call__(self, image: Any) -> Any:
        image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
        return [self.first(image)] + [self.local(image) for _ in range(3)]


class Counting:
    """Keeps state, and draws from NumPy and torch."""

    def __init__(self) -> None:
        self.count, self.chain = 0, chain(v1)

    def __call__(self, image: Any) -> Any:
        self.count += 1
        noise = np.random.rand() + torch.rand(()).item()
        return {"image": self.chain(image), "number": self.count + noise, "size": image.size}


class Raising(Preset):
    def __call__(self, image: Any) -> Any:
        if image.size[0] % 11 == 0:
            raise ArithmeticError(f"width {image.size[0]}")
        return super().__call__(image)


def write_into(image: Any) -> Any:
    """Write pixels in place, and look at what Pillow notes of the file."""
    image.putpixel((0, 0), (1, 2, 3))
    image.paste((9, 9, 9), (1, 1, 3, 4))
    notes = sum(len(str(value)) for value in image.info.values())
    facts = [
        type(image) is Image.Image,
        image.mode == "RGB",
        image.readonly,
        len(image.info),
        notes,
    ]
    facts += list(map(len, map(str, vars(image))))
    return torch.from_numpy(np.array(image)).sum(), torch.tensor(facts)


def with_lambda() -> Any:
    return v1.Compose([v1.RandomCrop(20, 4, pad_if_needed=True), v1.Lambda(v1.ToTensor())])


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "a preset": Preset,
    "two crops": TwoCrops,
    "many crops": MultiCrop,
    "state and dicts": Counting,
    "a function that writes": lambda: write_into,
    "a Lambda": with_lambda,
    "an error": Raising,
}


def seed() -> None:
    torch.manual_seed(5)
    random.seed(6)
    np.random.seed(7)


def states() -> list[Any]:
    numbers = np.random.get_state()
    return [torch.get_rng_state(), random.getstate(), numbers[1].tolist(), numbers[2]]


def epochs(make: Callable[..., Any], dataset: Any, options: dict[str, Any], count: int = 2) -> Any:
    """Return batches, errors and, without workers, the states of three generators after each."""
    seed()
    loader, found = make(dataset, **options), list[Any]()
    for _ in range(count):
        batches = iter(loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                break
            except ArithmeticError as error:
                batch = type(error), str(error).rpartition("width")[2].split()[0]
            found.append(batch)
            if options.get("num_workers", 0) == 0:
                found.append(states())
        found.append(states())
    return found


def assert_like_torch(dataset: Any, make: Callable[[], Any], **options: Any) -> list[Any]:
    """Compare torch's loader and fastloop's; `make` makes the transform anew for each."""
    found = []
    for loader in (DataLoader, fastloop.DataLoader):
        below = dataset.dataset if isinstance(dataset, Subset) else dataset
        below.transform = make()
        found.append(epochs(loader, dataset, options))
    assert same_bits(*found)
    return found[1]


@NUMBERS
@pytest.mark.parametrize("name", TRANSFORMS)
def test_any_transform(root: Path, name: str, workers: int) -> None:
    dataset = datasets.ImageFolder(str(root))
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "num_workers": workers}
    found = assert_like_torch(dataset, TRANSFORMS[name], **options)
    assert (name == "an error") == any(batch[0] is ArithmeticError for batch in found[::2])
    why = fastloop.DataLoader(dataset, **options).stats().why
    if name != "a Lambda":
        assert f"Python calls the transform, a {type(dataset.transform).__name__}, and" in why
    assert why.startswith("samples of ImageFolder by fastloop") == (workers == 0)


def test_images_are_those_of_pillow(root: Path) -> None:
    """Every attribute, for files of every kind, and not only for the first ones."""
    seen: list[Any] = []

    def keep(image: Any) -> int:
        seen.append(image)
        return 0

    dataset = datasets.ImageFolder(str(root), keep)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about transparency
        list(fastloop.DataLoader(dataset, batch_size=9))
        expected = [dataset.loader(path) for path, _ in dataset.samples]
    assert len(seen) == 40
    for ours, pillows in zip(seen, expected, strict=True):
        assert type(ours) is type(pillows) is Image.Image
        assert vars(ours).keys() == vars(pillows).keys()
        kept = [{k: v for k, v in vars(each).items() if k != "_im"} for each in (ours, pillows)]
        assert kept[0] == kept[1] and ours.tobytes() == pillows.tobytes()


@pytest.mark.parametrize("transform", [lambda image: image.size[0], chain(v1), with_lambda()])
def test_pillow_decodes_the_first_jpegs_alone(
    root: Path, transform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = datasets.ImageFolder(str(root), transform)
    jpegs = [i for i, (path, _) in enumerate(dataset.samples) if MODES[number_of(path)] == "RGB"]
    loader = fastloop.DataLoader(Subset(dataset, jpegs), batch_size=5, collate_fn=list)
    assert isinstance(iter(loader)._dataset, CutSamples)
    decoded: list[Any] = []
    load = JpegImageFile.load
    monkeypatch.setattr(JpegImageFile, "load", lambda image: decoded.append(1) or load(image))
    list(loader)
    list(loader)
    assert 0 < len(decoded) <= 3 * CHECKED


def number_of(path: str) -> int:
    return int(Path(path).stem) % len(MODES)


def test_a_callable_that_changes_the_dataset(root: Path) -> None:
    """Files that were read ahead are then not those of the dataset."""

    def make() -> Callable[[Any], Any]:
        dataset.samples = list(samples)
        calls: list[int] = []

        def swap(image: Any) -> Any:
            calls.append(1)
            if len(calls) == 5:
                dataset.samples = [(path, target + 50) for path, target in dataset.samples[::-1]]
            return image.size[0]

        return swap

    dataset = datasets.ImageFolder(str(root))
    samples = list(dataset.samples)
    assert_like_torch(dataset, make, batch_size=9)


def test_a_folder_of_any_files(root: Path) -> None:
    dataset = datasets.DatasetFolder(str(root), datasets.folder.default_loader, (".jpg", ".png"))
    assert_like_torch(Subset(dataset, range(30, 3, -2)), TwoCrops, batch_size=4)
    assert type(iter(fastloop.DataLoader(dataset, 4))._dataset) is CalledSamples


def test_a_subclass_and_another_loader_are_left(root: Path) -> None:
    class Own(datasets.ImageFolder):
        pass

    for dataset in (
        Own(str(root), Preset()),
        datasets.ImageFolder(str(root), Preset(), loader=Image.open),
    ):
        assert type(iter(fastloop.DataLoader(dataset, 4))._dataset) is type(dataset)


def test_compositions_inside_are_served(root: Path) -> None:
    for workers in (0, 2):
        list(
            fastloop.DataLoader(datasets.ImageFolder(str(root), TwoCrops()), 7, num_workers=workers)
        )
    assert status().native == (80 - CHECKED) + (80 - 2 * CHECKED)


# ---- the user's collate


def mix(samples: Any) -> Any:
    """As a mixup closure has it."""
    images, targets = default_collate(samples)
    if torch.rand(()) < 0.7:
        images = images.roll(1, 0).mul_(0.3).add_(images * 0.7)
    return images, targets, [type(image) for image, _ in samples], [i.stride() for i, _ in samples]


@NUMBERS
@pytest.mark.parametrize("module", [v1, v2])
def test_samples_for_the_users_collate(root: Path, module: Any, workers: int) -> None:
    dataset = datasets.ImageFolder(str(root))
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "num_workers": workers}
    for target_transform in (None, lambda target: target + torch.rand(())):
        dataset.target_transform = target_transform
        assert_like_torch(dataset, lambda: chain(module), collate_fn=mix, **options)
    loader = fastloop.DataLoader(dataset, collate_fn=mix, **options)
    assert loader.stats().why == "samples of ImageFolder by fastloop"


@NUMBERS
def test_samples_of_torchs_class_for_the_users_collate(root: Path, workers: int) -> None:
    dataset = datasets.ImageFolder(str(root), chain(v1))
    options = {"num_workers": workers, "collate_fn": mix}
    torchs = epochs(DataLoader, dataset, {"batch_size": 7, **options})
    with fastloop.patched():
        ours = epochs(DataLoader, dataset, {"batch_size": 7, **options})
        assert type(iter(DataLoader(dataset, 4, **options))._dataset) is CutSamples
        served = fastloop.patch_status().seams["dataloader"].served
        assert all(how.endswith("samples by fastloop") for how in served), served
    assert same_bits(ours, torchs)


@NUMBERS
@pytest.mark.parametrize("kind", ["CIFAR10", "SVHN", "MNIST"])
def test_samples_of_arrays_for_the_users_collate(kind: str, workers: int) -> None:
    called: list[Any] = [v1.Lambda(lambda image: image.rotate(3 + random.random()))]
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "num_workers": workers}
    cases: list[Any] = [(v1, [], None), (v2, called, lambda target: target + torch.rand(()))]
    for module, first, target_transform in cases:
        ops = [*first, module.Resize(40), module.RandomCrop(32, 4), module.RandomSolarize(90)]
        transform = module.Compose([*ops, v1.ToTensor()])
        dataset: Any = Subset(dataset_of(kind, transform), range(3, 33))
        dataset.dataset.target_transform = target_transform
        assert_like_torch(dataset, lambda made=transform: made, collate_fn=mix, **options)
    loader = fastloop.DataLoader(dataset, collate_fn=mix, **options)
    is_served = loader.stats().why == f"samples of {kind} by fastloop"
    assert is_served == (kind != "MNIST")


def test_arrays_that_change_while_they_are_loaded() -> None:
    def play(cls: Any, change: Any) -> Any:
        dataset = dataset_of("CIFAR10", chain(v1))
        torch.manual_seed(3)
        found: list[Any] = []
        try:
            for number, batch in enumerate(cls(dataset, batch_size=7, collate_fn=mix)):
                found.append((batch, torch.get_rng_state()))
                if number == 1:
                    change(dataset)
        except Exception as error:
            found.append((type(error), str(error).partition("\n")[0]))
        return found

    changes: list[Any] = [
        lambda dataset: vars(dataset).update(data=dataset.data[:, :20, :25].copy()),
        lambda dataset: vars(dataset).update(data=dataset.data[..., 0]),
        lambda dataset: vars(dataset).update(data=dataset.data / 255.0),
        lambda dataset: vars(dataset).update(data=torch.from_numpy(dataset.data)),
        lambda dataset: vars(dataset).update(data=dataset.data[:9]),
        lambda dataset: vars(dataset).update(targets=[4] * 40, transform=cifar(v1)),
    ]
    for change in changes:
        assert same_bits(play(fastloop.DataLoader, change), play(DataLoader, change))


def test_a_worker_init_fn_sees_the_dataset(root: Path) -> None:
    def init(worker: int) -> None:
        info: Any = get_worker_info()
        info.dataset.samples = info.dataset.samples[::-1]

    dataset = datasets.ImageFolder(str(root))
    options = {"num_workers": 1, "worker_init_fn": init, "collate_fn": mix, "batch_size": 6}
    assert_like_torch(dataset, lambda: chain(v1), **options)


def test_a_handler_within_submit_does_the_work_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    class Pool:
        def submit(self, work: Callable[[], Any]) -> str:
            found.append(torchvision_folder.submit(work))  # a real pool would wait for its lock
            return "future"

    monkeypatch.setattr(torchvision_folder, "_threads_of", lambda pid: Pool())
    assert torchvision_folder.submit(len) == "future" and found == [None]
    assert torchvision_folder.submit(len) == "future" and found == [None, None]
