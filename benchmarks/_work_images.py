"""The work of the benchmark of image preprocessing: images, transforms, and who applies them.

torch applies torchvision's transforms, one sample at a time, as its users do. A chain is a list of
names and arguments, which torchvision and fastloop.transforms share.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import Epoch, Epochs, aligned, build_library
from _work import SEED, WORKERS
from torch.utils.data import DataLoader, Dataset

import fastloop

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from torchvision_shim import replay_by_torchvision, torchvision_v2

Op = tuple[str, dict[str, Any]]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VALUES: list[Op] = [
    ("ToDtype", {"dtype": torch.float32, "scale": True}),
    ("Normalize", {"mean": MEAN, "std": STD}),
]


def v2() -> Any:
    found = torchvision_v2()
    if found is None:
        raise SystemExit("this needs torchvision: pip install --no-deps -r requirements-bench.txt")
    return found


class Transformed(Dataset[Any]):
    """What a user of torchvision writes."""

    def __init__(self, images: torch.Tensor, labels: list[int], transform: Any) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


def make_op(transforms: Any, op: Op) -> Any:
    name, args = op
    if "transforms" in args:
        args = {**args, "transforms": [make_op(transforms, part) for part in args["transforms"]]}
    if "policy" in args:
        args = {**args, "policy": transforms.AutoAugmentPolicy[args["policy"]]}
    return getattr(transforms, name)(**args)


@dataclass(frozen=True)
class Images:
    """What a row loads and makes of it."""

    rows: int
    height: int
    width: int
    batch: int
    out: int  # side of the result
    geometry: list[Op]
    values: list[Op]
    # Whether a replay with torchvision's functions is known here; tests compare the others.
    is_compared: bool = True

    @property
    def ops(self) -> list[Op]:
        return self.geometry + self.values

    @cached_property
    def pixels(self) -> np.ndarray:
        rng = np.random.default_rng(SEED)
        return rng.integers(0, 256, (self.rows, 3, self.height, self.width), np.uint8)

    @cached_property
    def labels(self) -> np.ndarray:
        return np.random.default_rng(SEED).integers(0, 1000, self.rows)

    def as_bytes(self) -> Images:
        """The same images, whose values stay as they are."""
        made = replace(self, values=[])
        vars(made).update(pixels=self.pixels, labels=self.labels)
        return made

    def dataset(self, who: str) -> Any:
        transforms = fastloop.transforms if who == "fastloop" else v2()
        chain = transforms.Compose([make_op(transforms, op) for op in self.ops])
        if who == "fastloop":
            return fastloop.ArrayDataset(self.pixels, self.labels, transform=chain, seed=SEED)
        return Transformed(torch.from_numpy(self.pixels), self.labels.tolist(), chain)

    def loader(self, who: str, workers: int) -> DataLoader[Any]:
        cls = fastloop.DataLoader if who == "fastloop" else DataLoader
        keep = {"num_workers": workers, "persistent_workers": workers > 0}
        loader: DataLoader[Any] = cls(self.dataset(who), self.batch, shuffle=True, **keep)
        return loader

    def loaders(self, who: str) -> dict[str, DataLoader[Any]]:
        return {f"workers={n}": self.loader(who, n) for n in WORKERS}

    def transforms_alone(self) -> Epoch:
        """torchvision's transforms and nothing else, on one thread: what no loader around them can
        beat on one core. Two batches stand for the epoch."""
        dataset = self.dataset("torch")

        def epoch() -> int:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            for index in range(2 * self.batch):
                dataset[index]
            torch.set_num_threads(threads)
            return 2

        return epoch

    def assert_same_images(self, samples: int = 8) -> None:
        """Raises if fastloop's differ from torchvision's of the same parameters."""
        if not self.is_compared:
            return
        dataset = self.dataset("fastloop")
        for index in range(samples):
            image = torch.from_numpy(self.pixels[index])
            params = dataset.params(index, epoch=0)
            if not torch.equal(
                dataset[index][0], replay_by_torchvision(v2(), self.ops, params, image)
            ):
                raise AssertionError(f"image {index} differs from torchvision's")


def small() -> Images:
    geometry: list[Op] = [
        ("RandomCrop", {"size": (32, 32), "padding": 4}),
        ("RandomHorizontalFlip", {}),
    ]
    return Images(20_000, 32, 32, 256, 32, geometry, VALUES)


def resized_crops() -> Images:
    geometry: list[Op] = [
        ("RandomResizedCrop", {"size": (224, 224)}),
        ("RandomHorizontalFlip", {}),
    ]
    return Images(1_280, 256, 256, 64, 224, geometry, VALUES)


def validation() -> Images:
    geometry: list[Op] = [("Resize", {"size": 256}), ("CenterCrop", {"size": (224, 224)})]
    return Images(640, 375, 500, 64, 224, geometry, VALUES)


def recipe(*augmentations: Op, last: Sequence[Op] = ()) -> Callable[[], Images]:
    """A resized crop, a flip and augmentations, as recipes for ImageNet have them."""

    def make() -> Images:
        crops = resized_crops()
        geometry = [*crops.geometry, *augmentations]
        return replace(
            crops, rows=640, geometry=geometry, values=[*VALUES, *last], is_compared=False
        )

    return make


def small_policy() -> Images:
    policy: Op = ("AutoAugment", {"policy": "CIFAR10"})
    cutout: Op = ("RandomErasing", {"p": 1.0, "scale": (0.25, 0.25), "ratio": (1.0, 1.0)})
    geometry = [*small().geometry, policy]
    return replace(
        small(), rows=5_120, geometry=geometry, values=[*VALUES, cutout], is_compared=False
    )


_JITTER: Op = ("ColorJitter", {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2})
_BLUR: Op = ("GaussianBlur", {"kernel_size": 23, "sigma": (0.1, 2.0)})


class _Images(ctypes.Structure):
    MAX_THREADS, MAX_CHANNELS = 8, 4  # as in limit_preprocess.c
    _fields_ = [
        ("src", ctypes.c_void_p),
        ("dst", ctypes.c_void_p * MAX_THREADS),
        ("order", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("pixels", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("mean", ctypes.c_float * MAX_CHANNELS),
        ("std", ctypes.c_float * MAX_CHANNELS),
        ("threads", ctypes.c_int64),
        ("streaming", ctypes.c_int64),
    ]


class CastLimit:
    """limit_preprocess.c."""

    def __init__(self) -> None:
        # Without contraction it gives torchvision's bits.
        self._library = build_library("limit_preprocess.c", "-pthread", "-ffp-contract=off")

    def epochs(self, images: Images, threads: Sequence[int] = (1, 2)) -> Epochs:
        """As many bytes of each image as the result has elements, with plain and with non-temporal
        stores, on each number of threads."""
        elements = 3 * images.out**2
        order = torch.randperm(images.rows, generator=torch.Generator().manual_seed(0)).numpy()
        buffers = [aligned(images.batch * elements * 4) for _ in range(max(threads))]
        kept = (images.pixels, order, buffers)  # C reads and writes them

        def epoch(n: int, streaming: bool) -> Epoch:
            work = _Images(
                src=images.pixels.ctypes.data,
                order=order.ctypes.data,
                rows=images.rows,
                batch=images.batch,
                row_bytes=images.pixels[0].nbytes,
                channels=3,
                pixels=images.out**2,
                scale=1.0 / 255,
                threads=n,
                streaming=streaming,
            )
            work.dst[: len(buffers)] = [buffer.ctypes.data for buffer in buffers]
            work.mean[:3], work.std[:3] = MEAN, STD

            def run(_kept: object = kept) -> int:
                if self._library.limit_run(ctypes.byref(work)) != 0:
                    raise OSError("limit_preprocess could not start a thread")
                return math.ceil(images.rows / images.batch)

            return run

        stores = {"plain": False, "streaming": True}
        return {f"{name} x{n}": epoch(n, how) for name, how in stores.items() for n in threads}


ROWS: dict[str, tuple[str, Callable[[], Images]]] = {
    "a": ("20 000 x 3x32x32: pad 4, crop, flip, f32, normalise, batch 256", small),
    "b": ("256 to 224: RandomResizedCrop, flip, f32, normalise, batch 64", resized_crops),
    "c": ("500x375: Resize(256), CenterCrop(224), f32, normalise, batch 64", validation),
    "d": (
        "SimCLR: (b), jitter 0.8, grey 0.2, blur 0.5",
        recipe(
            ("RandomApply", {"transforms": [_JITTER], "p": 0.8}),
            ("RandomGrayscale", {"p": 0.2}),
            ("RandomApply", {"transforms": [_BLUR], "p": 0.5}),
        ),
    ),
    "e": (
        "(b), TrivialAugmentWide, RandomErasing 0.1",
        recipe(("TrivialAugmentWide", {}), last=[("RandomErasing", {"p": 0.1})]),
    ),
    "f": ("(b), RandAugment(2, 9)", recipe(("RandAugment", {"num_ops": 2, "magnitude": 9}))),
    "g": ("(a) on 32x32, AutoAugment of CIFAR-10, Cutout 16", small_policy),
}
