"""timm's datasets, transforms and loaders behind patch(): batches, errors and the states of all
three generators are timm's alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_folders import encode, picture

pytest.importorskip("timm.data")

from PIL import Image, ImageOps
from timm.data import (
    FastCollateMixup,
    auto_augment,
    create_dataset,
    create_loader,
)
from timm.data.random_erasing import RandomErasing
from timm.data.transforms_factory import transforms_imagenet_train
from timm_loaders import (
    NUMBERS,
    RECIPE,
    RUNS,
    SEED,
    assert_same,
    compare,
    count_served,
    damage,
    make_root,
    nothing_is_known,
    play,
    stack_with_strides,
)
from torchvision import transforms as v1

import fastloop
from fastloop._core import JpegImage
from fastloop.adapters import timm_draws, timm_images
from fastloop.adapters.timm_draws import Draws, get_states
from fastloop.compat import verdicts, verification

# A result that differs would be left to timm, with a warning.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
FIXTURES = make_root, nothing_is_known  # pytest finds what is imported
POLICIES = (
    *("rand-m7-mstd0.5-inc1", "rand-m9-n3-p0.7", "rand-mstd1-tweights-inc1", "rand-m5-mstd101-n4"),
    *("rand-m14-mmax15-mstd0.5", "original-mstd0.5", "v0", "v0r-mstd1", "originalr", None),
)


@NUMBERS
@pytest.mark.parametrize("is_subset", [False, True])
def test_the_recipe(root: Path, workers: int, is_subset: bool) -> None:
    compare(root, workers=workers, is_subset=is_subset, **RECIPE)


@NUMBERS
def test_the_recipe_without_the_prefetcher(root: Path, workers: int) -> None:
    compare(root, workers=workers, use_prefetcher=False, **RECIPE)


def test_colors_after_a_policy(root: Path) -> None:
    def change(loader: Any) -> None:
        forced = {"color_jitter_prob": 0.5, "force_color_jitter": True, "use_prefetcher": True}
        made = transforms_imagenet_train(32, auto_augment="rand-m7", **forced)
        loader.dataset.transform = made

    compare(root, change=change, **RECIPE)


def half_of(crop: Any, image: Any) -> Any:
    return type(crop).__base__.__call__(crop, image).reduce(2).resize(crop.size[::-1])


class Louder(v1.ColorJitter):  # type: ignore[misc]
    def forward(self, image: Any) -> Any:
        return ImageOps.invert(super().forward(image))


@pytest.mark.parametrize("name", ["a factor", "a part", "a function", "a class", "a crop's class"])
def test_colors_that_change_between_batches(root: Path, name: str) -> None:
    def play_changes() -> Any:
        random.seed(3)
        torch.manual_seed(5)
        dataset: Any = create_dataset("", root=str(root))
        how = {"num_workers": 0, "device": torch.device("cpu"), "color_jitter_prob": 0.9}
        found: list[Any] = []
        for number, batch in enumerate(create_loader(dataset, (3, 24, 24), 6, True, **how)):
            found += batch
            gate = dataset.transform.transforms[-2]
            if number == 2 and name == "a factor":
                gate.transforms[0].contrast = (2.0, 3.0)
            elif number == 2 and name == "a function":
                gate.transforms[0].forward = ImageOps.invert
            elif number == 2 and name == "a class":
                gate.transforms[0].__class__ = Louder
            elif number == 2 and name == "a crop's class":
                crop = dataset.transform.transforms[0]
                crop.__class__ = type("Crop", (type(crop),), {"__call__": half_of})
            elif number == 2:
                gate.transforms.pop()
        return [found, get_states(), torch.get_rng_state()]

    theirs = play_changes()
    fastloop.patch(verbose=False)
    assert_same(play_changes(), theirs)
    assert count_served() > 0


def play_changing(root: Path, change: Callable[[Any], Any], **how: Any) -> list[Any]:
    """Batches of a loader without workers that is changed after each batch, and all generators."""
    random.seed(3)
    np.random.seed(4)
    torch.manual_seed(5)
    loader = create_loader(
        create_dataset("", root=str(root)), (3, 24, 24), 6, True,
        num_workers=0, device=torch.device("cpu"), **how,
    )  # fmt: skip
    found: list[Any] = []
    for batch in loader:
        change(loader)
        found += batch
    return [found, get_states(), torch.get_rng_state()]


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
        return play_changing(root, replace, use_prefetcher=False, **RECIPE)

    def replace(_: Any) -> None:
        RandomErasing._erase = erase_grey

    theirs = play_replaced()
    fastloop.patch(verbose=False)
    assert_same(play_replaced(), theirs)
    assert count_served() > 0


def test_pillow_gets_an_open_that_draws(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_and_draw(file: Any, before: Any = Image.open) -> Any:
        torch.rand(1)
        return before(file)

    def play_replaced() -> list[Any]:
        with monkeypatch.context() as patch:
            return play_changing(root, lambda _: patch.setattr(Image, "open", open_and_draw))

    theirs = play_replaced()
    fastloop.patch(verbose=False)
    assert_same(play_replaced(), theirs)
    assert count_served() > 0


@pytest.mark.parametrize("name", ["a class", "an attribute", "a function", "no device"])
def test_erasing_behind_the_prefetcher_may_become_another(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Erasing that reads images gets a tensor."""
    before = RandomErasing._erase
    monkeypatch.setattr(Erasing, "_erase", erase_grey)
    monkeypatch.setattr(RandomErasing, "_erase", before)

    def change(loader: Any) -> None:
        erasing = loader.random_erasing
        if name == "a class":
            erasing.__class__ = Erasing
        elif name == "an attribute":
            erasing._erase = partial(erase_grey, erasing)
        elif name == "no device":
            erasing.device = None
        else:
            RandomErasing._erase = erase_grey

    def play_replaced() -> list[Any]:
        RandomErasing._erase = before
        return play_changing(root, change, **RECIPE)

    theirs = play_replaced()
    fastloop.patch(verbose=False)
    assert_same(play_replaced(), theirs)
    assert count_served() > 0


def random_options(any_of: random.Random) -> dict[str, Any]:
    side = any_of.choice([16, 24, 33])
    return {
        "input_size": (3, side, any_of.choice([side, 20])),
        "auto_augment": any_of.choice(POLICIES),
        "color_jitter": any_of.choice([None, 0.4, (0.2, 0.6, 0.9), (0.0, 0.7, 0.3)]),
        "color_jitter_prob": any_of.choice([None, 0.7]),
        "grayscale_prob": any_of.choice([0.0, 0.0, 0.4]),
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


def test_an_error_of_a_policy_is_timms(root: Path) -> None:
    found = compare(root, auto_augment="rand-m14-mmax15-n4-p1-inc1", batch_size=4)
    if int(Image.__version__.split(".")[0]) >= 13:
        assert found[0][-1][0] is ValueError and "bits" in found[0][-1][1]


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


def test_other_transforms_are_left(root: Path) -> None:
    compare(root, is_served=False, color_jitter=(0.4, 0.4, 0.4, 0.1))
    compare(root, is_served=False, gaussian_blur_prob=0.5)
    compare(root, is_served=False, auto_augment="3a", color_jitter=None)
    compare(root, is_served=False, auto_augment="augmix-m3", color_jitter=None)


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


def test_a_transform_that_raises_is_called_once(root: Path) -> None:
    def play_raising() -> list[Any]:
        calls = list[Any]()

        def count(image: Any) -> Any:
            calls.append(torch.rand(1))
            if len(calls) == 3:
                raise LookupError("the third image")
            return torch.zeros(3, 24, 24, dtype=torch.uint8)

        random.seed(3)
        np.random.seed(4)
        torch.manual_seed(5)
        how = {"num_workers": 0, "device": torch.device("cpu")}
        dataset: Any = create_dataset("", root=str(root))
        loader = create_loader(dataset, (3, 24, 24), 6, True, **how)
        with pytest.raises(LookupError, match="third"):
            for _ in loader:
                dataset.transform = count
        return [calls, get_states(), torch.get_rng_state()]

    theirs = play_raising()
    fastloop.patch(verbose=False)
    assert_same(play_raising(), theirs)
    assert count_served() > 0


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
