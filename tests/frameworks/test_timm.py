"""timm's datasets, transforms and loaders behind patch(): batches, errors and the states of all
three generators are timm's alone."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_folders import encode, nothing_compared, picture

pytest.importorskip("timm.data")

from PIL import Image
from timm.data import (
    FastCollateMixup,
    auto_augment,
    create_dataset,
    create_loader,
    create_transform,
    transforms,
)
from timm.data.random_erasing import RandomErasing
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import RandomHorizontalFlip

import fastloop
from fastloop._core import JpegImage
from fastloop.adapters import timm_draws, timm_images
from fastloop.adapters.timm_draws import Draws, get_states
from fastloop.compat import verdicts, verification
from fastloop.data.image_folder import decode

# A result that differs would be left to timm, with a warning.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", "20261130"))
RUNS = int(os.environ.get("FASTLOOP_FUZZ", "40"))
NUMBERS = pytest.mark.parametrize("workers", [0, 2])
RECIPE: dict[str, Any] = {
    "auto_augment": "rand-m7-mstd0.5-inc1",
    "interpolation": "random",
    "re_prob": 0.25,
    "re_mode": "pixel",
}
POLICIES = (
    *("rand-m7-mstd0.5-inc1", "rand-m9-n3-p0.7", "rand-mstd1-tweights-inc1", "rand-m5-mstd101-n4"),
    *("rand-m14-mmax15-mstd0.5", "original-mstd0.5", "v0", "v0r-mstd1", "originalr", None),
)


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test knows what earlier tests have compared, and small files are decoded in parts."""
    monkeypatch.setattr(decode, "LEAST_PIXELS", 1)
    yield from nothing_compared()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for number in range(36):
        image = picture(40 + number, 90 - 2 * number)
        kind, end = ("PNG", "png") if number % 9 == 8 else ("JPEG", "jpg")
        image = image.convert("L") if number % 11 == 5 else image
        named = {"progressive": True} if number % 9 == 4 else {}
        path = root / f"class {number % 3}" / f"{number:02}.{end}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(image, kind, **named))
    return root


def play(
    root: Path, workers: int = 0, is_subset: bool = False, change: Any = None, **named: Any
) -> list[Any]:
    """Return two epochs of a loader's batches, and the states of all generators."""
    dataset: Any = create_dataset("", root=str(root))
    options: dict[str, Any] = {"batch_size": 8, "is_training": True, "persistent_workers": False}
    options |= {"input_size": (3, 32, 32), "device": torch.device("cpu"), **named}
    random.seed(3)
    np.random.seed(4)
    torch.manual_seed(5)
    loader = create_loader(dataset, num_workers=workers, **options)
    if is_subset:  # keeps the transform of the dataset inside
        inner = loader.loader
        loader.loader = torch.utils.data.DataLoader(
            Subset(dataset, range(3, 30)), 8, num_workers=workers, collate_fn=inner.collate_fn
        )
    if change is not None:
        change(loader)
    found: list[Any] = []
    try:
        for _ in range(2):
            found += [[type(part), part.stride(), part] for b in loader for part in b]
    except Exception as error:
        found.append((type(error), str(error).splitlines()[0]))
    return [found, get_states(), torch.get_rng_state()]


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours[0]) == len(theirs[0]) and verification.same_bits(ours[0], theirs[0])
    assert ours[1] == theirs[1] and torch.equal(ours[2], theirs[2])


def count_served() -> int:
    served = fastloop.patch_status().seams["dataloader"].served
    return sum(epochs for how, (_, epochs) in served.items() if "samples by fastloop" in how)


def compare(root: Path, is_served: bool = True, **named: Any) -> list[Any]:
    """Compare what timm and fastloop make. Return it."""
    theirs = play(root, **named)
    assert theirs[0]
    fastloop.patch(verbose=False)
    with warnings.catch_warnings(record=True) as seen:  # in a sample they would be errors of files
        warnings.simplefilter("always")
        assert_same(play(root, **named), theirs)
    assert not [each for each in seen if "fastloop" in str(each.message)]
    assert (count_served() > 0) == is_served, fastloop.patch_status()
    fastloop.unpatch()
    return theirs


@NUMBERS
@pytest.mark.parametrize("is_subset", [False, True])
def test_the_recipe(root: Path, workers: int, is_subset: bool) -> None:
    compare(root, workers=workers, is_subset=is_subset, **RECIPE)


@NUMBERS
def test_the_recipe_without_the_prefetcher(root: Path, workers: int) -> None:
    compare(root, workers=workers, use_prefetcher=False, **RECIPE)


class Erasing(RandomErasing):  # type: ignore[misc]
    pass


def erase_grey(self: Any, image: Any, *given: Any) -> None:
    """Draw, read the image and write to it."""
    image[:, : random.randrange(9)] = image.mean()


@pytest.mark.parametrize("name", ["a class", "a device"])
def test_other_erasing_is_left(root: Path, name: str) -> None:
    def change(loader: Any) -> None:
        op = loader.dataset.transform.transforms[-1]
        if name == "a class":
            op.__class__ = Erasing
        else:
            op.device = torch.device("cpu")

    compare(root, is_served=False, change=change, use_prefetcher=False, **RECIPE)


def test_erasing_that_reads_images_is_timms(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The battery notices, and so does every batch if the function is replaced later."""
    before = RandomErasing._erase
    monkeypatch.setattr(RandomErasing, "_erase", erase_grey)
    compare(root, is_served=False, use_prefetcher=False, **RECIPE)

    def play_replaced() -> list[Any]:
        RandomErasing._erase = before
        random.seed(3)
        np.random.seed(4)
        torch.manual_seed(5)
        how = {"use_prefetcher": False, "num_workers": 0, **RECIPE}
        found: list[Any] = []
        for batch in create_loader(create_dataset("", root=str(root)), (3, 24, 24), 6, True, **how):
            RandomErasing._erase = erase_grey
            found += batch
        return [found, get_states(), torch.get_rng_state()]

    theirs = play_replaced()
    fastloop.patch(verbose=False)
    assert_same(play_replaced(), theirs)
    assert count_served() > 0


def random_options(any_of: random.Random) -> dict[str, Any]:
    side = any_of.choice([16, 24, 33])
    return {
        "input_size": (3, side, any_of.choice([side, 20])),
        "auto_augment": any_of.choice(POLICIES),
        "color_jitter": None,
        "interpolation": any_of.choice(["random", "random", "bilinear", "bicubic"]),
        "hflip": any_of.choice([0.5, 0.0, 1.0]),
        "vflip": any_of.choice([0.0, 0.5]),
        "scale": any_of.choice([None, (0.08, 1.0), (0.5, 0.9), (0.9, 3.0)]),
        "ratio": any_of.choice([None, (0.5, 2.0), (1.0, 1.0)]),
        "re_prob": any_of.choice([0.0, 0.6]),
        "re_mode": any_of.choice(["pixel", "const", "rand"]),
        "re_count": any_of.choice([1, 3]),
        "use_prefetcher": any_of.choice([True, False]),
        "mean": any_of.choice([(0.485, 0.456, 0.406), (0.5, 0.5, 0.5)]),
    }


@pytest.mark.parametrize("number", range(RUNS))
def test_random_chains(root: Path, number: int) -> None:
    any_of = random.Random(SEED + number)
    compare(root, **random_options(any_of))


def random_evaluation(any_of: random.Random) -> dict[str, Any]:
    side = any_of.choice([16, 24, 33])
    mode = any_of.choice(["center", "squash"])
    return {
        "is_training": (is_training := any_of.choice([False, False, True])),
        "no_aug": is_training,
        "input_size": (3, side, 20 if mode == "squash" and any_of.random() < 0.5 else side),
        "crop_mode": mode,
        "crop_pct": any_of.choice([None, 1.0, 0.5, 0.95]),
        "interpolation": any_of.choice(["bilinear", "bicubic"]),
        "use_prefetcher": any_of.choice([True, False]),
        "mean": any_of.choice([(0.485, 0.456, 0.406), (0.5, 0.5, 0.5)]),
        "workers": any_of.choice([0, 0, 0, 2]),
    }


@pytest.mark.parametrize("number", range(RUNS))
def test_random_evaluations(root: Path, number: int) -> None:
    compare(root, **random_evaluation(random.Random(SEED + number)))


@NUMBERS
@pytest.mark.parametrize("has_prefetcher", [False, True])
def test_evaluation_of_damaged_files(
    root: Path, tmp_path: Path, workers: int, has_prefetcher: bool
) -> None:
    damage(root, tmp_path)
    compare(tmp_path, workers=workers, is_training=False, use_prefetcher=has_prefetcher)


@pytest.mark.parametrize("has_prefetcher", [False, True])
def test_evaluation_for_the_programs_collate(root: Path, has_prefetcher: bool) -> None:
    named = {"is_training": False, "use_prefetcher": has_prefetcher}
    compare(root, collate_fn=stack_with_strides, **named)


def test_evaluation_with_labels_of_the_programs(root: Path) -> None:
    def change(loader: Any) -> None:
        reader = loader.dataset.reader
        reader.samples = [(path, label or None) for path, label in reader.samples]
        loader.dataset.target_transform = lambda label: label + random.randrange(5)

    compare(root, change=change, is_training=False)


class Negated(transforms.MaybeToTensor):  # type: ignore[misc]
    def __call__(self, image: Any) -> Any:
        return 1 - super().__call__(image)


CHANGES: dict[str, Any] = {
    "a mean": lambda ops: ops[-1].mean.numpy().fill(0.25),
    "a std": lambda ops: ops[-1].std.mul_(2),
    "another mean": lambda ops: setattr(ops[-1], "mean", torch.zeros(3)),
    "another conversion": lambda ops: ops.__setitem__(2, Negated()),
    "a size": lambda ops: setattr(ops[1], "size", (20, 24)),
    "no normalization": lambda ops: ops.pop(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_evaluation_that_changes_between_batches(root: Path, name: str) -> None:
    def play_changes() -> list[Any]:
        dataset, made = create_dataset("", root=str(root)), list[Any]()
        how = {"use_prefetcher": False, "num_workers": 0, "device": torch.device("cpu")}
        for number, batch in enumerate(create_loader(dataset, (3, 24, 24), 6, **how)):
            made += batch
            if number == 2:
                CHANGES[name](dataset.transform.transforms)
        return made

    theirs = play_changes()
    fastloop.patch(verbose=False)
    assert verification.same_bits(play_changes(), theirs)
    assert count_served() > 0


def test_a_conversion_that_is_replaced_between_batches(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play_replaced() -> list[Any]:
        dataset, made = create_dataset("", root=str(root)), list[Any]()
        loader = create_loader(dataset, (3, 24, 24), 6, num_workers=0, use_prefetcher=False)
        before = transforms.MaybeToTensor.__call__
        with monkeypatch.context() as patched:
            for number, batch in enumerate(loader):
                made += batch
                if number == 2:
                    negated = lambda *given: 1 - before(*given)  # noqa: E731
                    patched.setattr(transforms.MaybeToTensor, "__call__", negated)
        return made

    theirs = play_replaced()
    fastloop.patch(verbose=False)
    assert verification.same_bits(play_replaced(), theirs)
    assert count_served() > 0


def test_statistics_that_need_a_gradient_are_left(root: Path) -> None:
    def change(loader: Any) -> None:
        loader.dataset.transform.transforms[-1].mean.requires_grad_()

    compare(root, is_served=False, change=change, is_training=False, use_prefetcher=False)


def test_evaluation_of_an_image_folder_and_of_single_images(root: Path) -> None:
    def play_folder() -> list[Any]:
        transform = create_transform(24)
        folder = ImageFolder(str(root), transform)
        images = [picture(number, 40, 50 + number) for number in range(9)]
        return [*torch.utils.data.DataLoader(folder, 8), *map(transform, images)]

    theirs = play_folder()
    fastloop.patch(verbose=False)
    assert verification.same_bits(play_folder(), theirs)
    assert count_served() > 0
    assert fastloop.patch_status().seams["transforms"].native >= 9
    assert not fastloop.patch_status().seams["transforms"].fallbacks


def test_an_error_of_a_policy_is_timms(root: Path) -> None:
    found = compare(root, auto_augment="rand-m14-mmax15-n4-p1-inc1", batch_size=4)
    if int(Image.__version__.split(".")[0]) >= 13:
        assert found[0][-1][0] is ValueError and "bits" in found[0][-1][1]


def damage(root: Path, tmp_path: Path) -> None:
    """Write the files of a folder to another one, some of them damaged."""
    for number, path in enumerate(sorted(root.glob("*/*"))):
        data = path.read_bytes()
        data = data[: len(data) // 2] if number % 7 == 3 else data
        data = b"no image" if number % 7 == 5 else data
        if number % 7 == 6:  # a wrong code of Huffman's
            data = data[:-30] + b"\x12\x13" * 10 + data[-10:]
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        (tmp_path / path.parent.name / path.name).write_bytes(data)


@pytest.mark.parametrize("has_prefetcher", [True, False])
def test_damaged_files_give_the_next_sample(
    root: Path, tmp_path: Path, has_prefetcher: bool
) -> None:
    damage(root, tmp_path)
    compare(tmp_path, use_prefetcher=has_prefetcher, **RECIPE)


def test_a_part_that_libjpeg_refuses_is_decoded_whole(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, apply, refused = play(root, **RECIPE), Draws.apply, []

    def refuse(self: Any, image: Any, *given: Any) -> None:
        if type(image) is JpegImage:
            refused.append(image)
            raise ValueError("libjpeg warns")
        apply(self, image, *given)

    fastloop.patch(verbose=False)
    monkeypatch.setattr(Draws, "apply", refuse)
    assert_same(play(root, **RECIPE), theirs)
    assert len(refused) > 9 and count_served() > 0, fastloop.patch_status()


class Other(auto_augment.AugmentOp):  # type: ignore[misc]
    pass


def change_policy(loader: Any, name: str, value: Any) -> None:
    for op in policy_of(loader).ops:
        setattr(op, name, value)


def policy_of(loader: Any) -> Any:
    return loader.dataset.transform.transforms[-2]


def crop_of(loader: Any) -> Any:
    return loader.dataset.transform.transforms[0]


LEFT: dict[str, Any] = {
    "another class": lambda loader: setattr(policy_of(loader).ops[0], "__class__", Other),
    "a level of the program's": lambda x: change_policy(x, "level_fn", lambda m, _: (0.1,)),
    "a filter": lambda x: change_policy(x, "kwargs", {"fillcolor": (1, 2, 3), "resample": 0}),
    "a fill": lambda x: change_policy(x, "kwargs", {"fillcolor": None, "resample": 2}),
    "another order": lambda loader: loader.dataset.transform.transforms.reverse(),
    "grey images": lambda loader: setattr(loader.dataset, "input_img_mode", "L"),
    "no tries": lambda loader: setattr(loader.dataset, "_max_retries", 0),
    "bytes": lambda loader: setattr(loader.dataset, "load_bytes", True),
    "a get_params": lambda x: setattr(crop_of(x), "get_params", lambda *_: (0, 0, 9, 9)),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_known_is_left(root: Path, name: str) -> None:
    compare(root, is_served=False, change=LEFT[name], auto_augment="rand-m5-n1", hflip=0.0)


def flip_tensors(loader: Any) -> None:
    loader.dataset.transform.transforms.append(RandomHorizontalFlip())


def test_other_transforms_are_left(root: Path) -> None:
    compare(root, is_served=False)  # ColorJitter
    compare(root, is_served=False, auto_augment="3a", color_jitter=None)
    compare(root, is_served=False, auto_augment="augmix-m3", color_jitter=None)
    compare(root, is_served=False, is_training=False, crop_mode="border")
    compare(root, is_served=False, is_training=False, change=flip_tensors)


def stack_with_strides(batch: Any) -> Any:
    strides = [image.stride() for image, _ in batch]
    images, labels = zip(*batch, strict=True)
    return torch.stack(images), torch.tensor([*labels, *sum(strides, ())])


@NUMBERS
@pytest.mark.parametrize("mode", ["batch", "pair", "elem", "half"])
def test_mixup_while_collating(root: Path, workers: int, mode: str) -> None:
    named = {"cutmix_alpha": 1.0, "prob": 0.8, "num_classes": 5}
    compare(root, workers=workers, collate_fn=FastCollateMixup(mode=mode, **named), **RECIPE)


def test_mixup_that_is_switched_off(root: Path) -> None:
    def change(loader: Any) -> None:
        loader.mixup_enabled = True
        next(iter(loader))
        loader.mixup_enabled = False

    compare(root, change=change, collate_fn=FastCollateMixup(num_classes=5), **RECIPE)


@pytest.mark.parametrize("has_prefetcher", [True, False])
def test_samples_for_the_programs_collate(root: Path, has_prefetcher: bool) -> None:
    named = {"use_prefetcher": has_prefetcher, **RECIPE}
    compare(root, collate_fn=stack_with_strides, **named)


def test_a_batch_that_is_made_while_another_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a signal's handler, in the middle of a group of samples."""
    (tmp_path / "class").mkdir()
    for number in range(16):
        data = encode(picture(40 + number, 60, 70))
        (tmp_path / "class" / f"{number:02}.jpg").write_bytes(data)
    choose, calls, waiting, inner = random.choice, [-1], list[Any](), list[Any]()

    def choose_and_load(given: Any) -> Any:
        calls[0] -= 1
        if calls[0] == 0:
            waiting.append(len(timm_images._work.waiting))
            inner.append(next(second))
        return choose(given)

    def start(loader: Any) -> None:
        """Make the first samples, which are compared; then the next batch is interrupted."""
        nonlocal second
        options = {"num_workers": 0, "device": torch.device("cpu"), **RECIPE}
        dataset = create_dataset("", root=str(tmp_path))
        second = iter(create_loader(dataset, (3, 32, 32), 4, True, **options).loader)
        inner.append(next(second))
        next(iter(loader.loader))
        calls[0] = 5

    second = iter(())
    monkeypatch.setattr(random, "choice", choose_and_load)
    compare(tmp_path, change=start, **RECIPE)
    assert len(waiting) == 2 and waiting[1] > 0
    assert verification.same_bits(inner[2:], inner[:2])


def test_a_target_transform_that_draws(root: Path) -> None:
    def add_draws(loader: Any) -> None:
        loader.dataset.target_transform = lambda target: target + random.randrange(9)

    compare(root, change=add_draws, **RECIPE)


@pytest.mark.parametrize("kind", [float, bool, lambda target: np.int32(target)])
def test_labels_of_other_types(root: Path, kind: Any) -> None:
    def change(loader: Any) -> None:
        loader.dataset.target_transform = kind

    compare(root, change=change, **RECIPE)


def test_a_transform_that_changes(root: Path) -> None:
    """Between epochs, and between batches."""

    def play_changes() -> Any:
        random.seed(3)
        np.random.seed(4)
        torch.manual_seed(5)
        loader = create_loader(
            create_dataset("", root=str(root)),
            (3, 24, 24),
            6,
            True,
            device=torch.device("cpu"),
            num_workers=0,
            **RECIPE,
        )
        found: list[Any] = []
        for number, (images, labels) in enumerate(x for _ in range(3) for x in loader):
            found += [images, labels]
            if number == 5:
                crop_of(loader).scale = (0.9, 1.0)
            if number == 10:
                loader.mean = loader.mean + 1
            if number == 13:
                loader.std.mul_(2)
        return [found, get_states(), torch.get_rng_state()]

    theirs = play_changes()
    fastloop.patch(verbose=False)
    assert_same(play_changes(), theirs)


def test_other_pixels_end_native_samples(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, apply = play(root, **RECIPE), Draws.apply

    def turn(self: Any, image: Any, out: torch.Tensor, *given: Any) -> None:
        apply(self, image, out, *given)
        out[0, 0, 0] ^= 1

    monkeypatch.setattr(Draws, "judge", lambda self: verdicts.Verdict(""))
    monkeypatch.setattr(Draws, "apply", turn)
    fastloop.patch(verbose=False)
    with pytest.warns(RuntimeWarning, match="differ from timm's"):
        assert_same(play(root, **RECIPE), theirs)


@pytest.mark.parametrize("what", ["pixels", "a draw"])
def test_a_battery_notices(root: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(verdicts, "_read", {})
    monkeypatch.setattr(verdicts, "keep", lambda key, verdict: None)
    monkeypatch.setattr(verdicts, "find", lambda key: None)
    if what == "pixels":
        monkeypatch.setitem(timm_draws._STEPS, "invert", timm_draws._STEPS["equalize"])
    else:
        add = Draws._add
        monkeypatch.setattr(Draws, "_add", lambda *args: (add(*args), random.random())[0])
    compare(root, is_served=False, **RECIPE)


def empty_parts(loader: Any) -> None:
    loader.dataset.transform.transforms[-2] = auto_augment.AutoAugment([[], []])


class Level:
    def __call__(self, magnitude: float, hparams: Any) -> tuple[float]:
        return (magnitude * 2,)


UNUSUAL: dict[str, Any] = {
    "empty parts": empty_parts,
    "no operations": lambda x: policy_of(x).ops.clear(),
    "no number of layers": lambda x: setattr(policy_of(x), "num_layers", None),
    "layers of layers": lambda x: setattr(policy_of(x), "num_layers", (2,)),
    "a level without a name": lambda x: change_policy(x, "level_fn", Level()),
    "no arguments": lambda x: change_policy(x, "kwargs", {}),
    "no filter": lambda x: change_policy(x, "kwargs", {"fillcolor": (1, 2, 3), "resample": None}),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_attributes_are_left(root: Path, name: str) -> None:
    compare(root, is_served=False, change=UNUSUAL[name], auto_augment="rand-m5-n2")


def turn_all(transform: Any) -> None:
    for part in transform.transforms[-2].policy:
        hparams = {"img_mean": (0, 255, 3)}
        part[0] = auto_augment.AugmentOp("Rotate", 1.0, 9, hparams)


def grow(transform: Any) -> None:
    for part in transform.transforms[-2].policy:
        part.extend([auto_augment.AugmentOp("Rotate", 1.0, 9)] * 20)


@pytest.mark.parametrize("change", [turn_all, grow, lambda transform: transform.transforms.pop(1)])
def test_lists_that_change_between_batches(root: Path, change: Any) -> None:
    dataset: Any = create_dataset("", root=str(root))

    def play_changes() -> Any:
        random.seed(3)
        np.random.seed(4)
        torch.manual_seed(5)
        how = {"device": torch.device("cpu"), "num_workers": 0, "color_jitter": None}
        loader = create_loader(dataset, (3, 24, 24), 6, True, auto_augment="original", **how)
        found: list[Any] = []
        for number, (images, labels) in enumerate(loader):
            found += [images, labels]
            if number == 2:
                change(dataset.transform)
        return [found, get_states(), torch.get_rng_state()]

    theirs = play_changes()
    fastloop.patch(verbose=False)
    assert_same(play_changes(), theirs)
    assert count_served() > 0


def test_labels_that_are_missing(root: Path) -> None:
    def change(loader: Any) -> None:
        reader = loader.dataset.reader
        reader.samples = [(path, label or None) for path, label in reader.samples]

    found = compare(root, change=change, **RECIPE)
    assert any(-1 in part[2] for part in found[0])


def break_header(data: bytes, number: int) -> bytes:
    """Return a JPEG file that only a decoder finds damaged: tables that it names are missing."""
    at, bit = ((24, 1), (93, 1), (170, 2), (173, 2))[number % 4]
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


@NUMBERS
@pytest.mark.parametrize("has_function", [False, True])
def test_files_that_only_decoding_finds_damaged(
    root: Path, tmp_path: Path, workers: int, has_function: bool
) -> None:
    for number, path in enumerate(sorted(root.glob("*/*"))):
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        data = path.read_bytes()
        is_broken = number % 5 == 3 and path.suffix == ".jpg"
        data = break_header(data, number) if is_broken else data
        (tmp_path / path.parent.name / path.name).write_bytes(data)

    def change(loader: Any) -> None:
        if has_function:
            loader.dataset.target_transform = lambda label: label + random.randrange(5)

    compare(tmp_path, workers=workers, change=change, **RECIPE)
    if workers == 0:  # errors of a policy come after damaged files of the same batch
        policy = "rand-m14-mmax15-n1-p1-inc1"
        for size in (5, 6, 7):
            compare(tmp_path, change=change, auto_augment=policy, batch_size=size)
