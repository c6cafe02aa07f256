"""Datasets of torchvision made of arrays, random chains of its operations, and loaders over them:
what torch's DataLoader gives and leaves behind, to be compared with fastloop's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision_shim import torchvision_v2

import fastloop
from fastloop.compat.seams import SeamStatus

v2: Any = torchvision_v2()
if v2 is not None:
    from torchvision import datasets
    from torchvision import transforms as v1

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
COLORS = (
    *("ColorJitter", "RandomGrayscale", "RandomInvert", "RandomPosterize", "RandomSolarize"),
    *("RandomEqualize", "RandomAutocontrast", "RandomAdjustSharpness", "RandomPhotometricDistort"),
    *("RandomChannelPermutation", "RandomApply", "RandomOrder", "RandomChoice"),
    *("RandomHorizontalFlip", "RandomCrop"),
)
KINDS = "CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST", "EMNIST", "SVHN", "STL10"


def dataset_of(kind: str, transform: Any, count: int = 40) -> Any:
    """Return a dataset of this class over random images, as its own __init__ leaves it."""
    numbers = np.random.default_rng(3)
    cls = getattr(datasets, kind)
    dataset, labels = cls.__new__(cls), numbers.integers(0, 10, count)
    side = 96 if kind == "STL10" else 32
    images = numbers.integers(0, 256, (count, 3, side, side), dtype=np.uint8)
    grey = torch.from_numpy(images[:, 0, :28, :28].copy())
    attributes: dict[str, Any] = {"data": grey, "targets": torch.from_numpy(labels)}
    if kind.startswith("CIFAR"):
        attributes = {"data": images.transpose(0, 2, 3, 1), "targets": labels.tolist()}
    elif kind in ("SVHN", "STL10"):
        attributes = {"data": images, "labels": labels.astype(np.uint8 if side == 96 else int)}
    vars(dataset).update(attributes, transform=transform, target_transform=None)
    return dataset


def channels_of(kind: str) -> int:
    return 1 if "MNIST" in kind else 3


def side_of(kind: str) -> int:
    return {1: 28, 3: 96 if kind == "STL10" else 32}[channels_of(kind)]


def cifar(module: Any) -> Any:
    """Return the chain that everybody has, of v1 or v2."""
    to_tensor = [module.ToTensor()]
    if module is v2:
        to_tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    parts = [module.RandomCrop(32, padding=4), module.RandomHorizontalFlip(), *to_tensor]
    return module.Compose([*parts, module.Normalize(MEAN, STD)])


def random_geometry(any_of: random.Random, module: Any, side: int) -> list[Any]:
    """Return operations on PIL images of this edge, which may come out smaller."""
    p, parts = any_of.choice((0, 0.3, 0.5, 0.7, 1)), []
    is_square = True  # and has this edge: if only some images are cropped, the size stays
    mode = any_of.choice(("constant", "edge", "reflect", "symmetric"))
    fill = any_of.choice((0, 9, 255))
    for kind in any_of.sample(range(8), any_of.randint(0, 4)):
        if kind == 0:
            padding = any_of.choice((None, 4, 2, (1, 3), (0, 1, 2, 3)))
            size = any_of.choice((side, side - 3, (side, side - 5)))
            part = module.RandomCrop(size, padding, fill=fill, padding_mode=mode)
            side, is_square = (min(size), False) if isinstance(size, tuple) else (size, True)
        elif kind == 1:
            part = module.RandomHorizontalFlip(p)
        elif kind == 2:
            part = module.RandomVerticalFlip(p)
        elif kind == 3:
            held = [module.RandomHorizontalFlip(), module.RandomVerticalFlip(0.4)]
            if is_square:
                held += [module.RandomCrop(side, 3), module.CenterCrop(side)]
                held += [module.RandomApply([module.RandomCrop(side, 1, padding_mode=mode)])]
            part = module.RandomApply(
                any_of.sample(held, any_of.randint(1, len(held) // 2 + 1)), p=p
            )
        elif kind == 4:
            is_square = False
            part = module.Pad(any_of.choice((1, (2, 0))), fill, mode)
        elif kind == 5:
            side, is_square = any_of.choice((side, side - 2)), True
            part = module.CenterCrop(side)
        elif kind == 6:
            how = module.InterpolationMode(any_of.choice(("bilinear", "bicubic")))
            size = any_of.choice((side + 3, 20, (23, 31), (40, 22)))
            part, is_square = module.Resize(size, how), is_square and isinstance(size, int)
            side = size if isinstance(size, int) else min(size)
        else:
            side, is_square = any_of.choice((16, 24, 37)), True
            scale = any_of.choice(((0.08, 1.0), (0.5, 0.9)))
            part = module.RandomResizedCrop(side, scale, any_of.choice(((0.75, 4 / 3), (0.3, 3.0))))
        parts.append(part)
    return parts


def random_color(any_of: random.Random, module: Any, size: tuple[int, int], depth: int) -> Any:
    """Return an operation that keeps size and channels: on colours, or one that holds some."""
    p, name = any_of.choice((0, 0.3, 0.5, 0.9, 1)), any_of.choice(COLORS)
    if name == "RandomCrop" and 1 in size:  # a view of one row has strides of its own
        name = "RandomInvert"
    if name == "ColorJitter":
        ranges = (any_of.choice((0, 0.4, (0.5, 0.5), (0.0, 2.5), 1.0)) for _ in range(3))
        return module.ColorJitter(*ranges, any_of.choice((0, 0.1, 0.5, (-0.3, 0.2))))
    if name in ("RandomCrop", "RandomPhotometricDistort", "RandomChannelPermutation"):
        if name == "RandomCrop" or module is v1:
            return module.RandomCrop(size, 2)
        return (
            v2.RandomPhotometricDistort(p=p) if "Photo" in name else v2.RandomChannelPermutation()
        )
    arguments = {"RandomPosterize": range(1, 9), "RandomSolarize": (0, 127.3, 200, 255)}
    arguments["RandomAdjustSharpness"] = (0, 0.3, 1, 1.7, 2)
    if name in arguments:
        return getattr(module, name)(any_of.choice(arguments[name]), p)
    if name not in ("RandomApply", "RandomOrder", "RandomChoice"):
        return getattr(module, name)(p)
    held = random_colors(any_of, module, size, any_of.randint(1, 3), depth + 1)
    if depth > 1 or name == "RandomApply" or module is v1:
        return module.RandomApply(held, p=p)
    shares = any_of.choice((None, [any_of.random() + 0.01 for _ in held]))
    return v2.RandomOrder(held) if name == "RandomOrder" else v2.RandomChoice(held, shares)


def random_colors(
    any_of: random.Random, module: Any, size: tuple[int, int], count: int, depth: int = 0
) -> list[Any]:
    return [random_color(any_of, module, size, depth) for _ in range(count)]


def random_chain(any_of: random.Random, module: Any, kind: str) -> Any:
    """Return a chain that C does, of v1 or v2, for images of this kind of dataset."""
    channels = channels_of(kind)
    parts = random_geometry(any_of, module, side_of(kind))
    if any_of.random() < 0.3:
        side = side_of(kind)
        colors = random_colors(any_of, module, (side, side), any_of.randint(1, 2))
        parts = [module.Resize((side, side))] * any_of.randint(0, 1) + colors + parts
    how = any_of.randrange(3)
    if how == 0:
        parts.append(module.ToTensor())
    elif module is v2 and how == 1:
        parts += [v2.ToImage(), v2.ToDtype(torch.float32, scale=any_of.random() < 0.7)]
        parts += [v2.ToPureTensor()] * any_of.randint(0, 1)
    else:
        parts += [module.PILToTensor(), module.ConvertImageDtype(torch.float32)]
    if any_of.random() < 0.7:
        parts.append(module.Normalize([0.5] * channels, [0.2 + 0.01 * i for i in range(channels)]))
    if any_of.random() < 0.3:
        parts.append(module.RandomHorizontalFlip(0.6))
    if any_of.random() < 0.5:
        value = any_of.choice((0, 1.5, [0.1] * channels))
        parts.append(module.RandomErasing(any_of.choice((0.5, 0.9)), value=value))
    if any_of.random() < 0.2:
        return any_of.choice((v1, v2)).Compose([module.Compose(parts[:2]), *parts[2:]])
    return module.Compose(parts)


def options_of(any_of: random.Random, workers: int) -> dict[str, Any]:
    """Return arguments of a loader."""
    options: dict[str, Any] = {"num_workers": workers, "batch_size": any_of.choice((1, 5, 7, 40))}
    options["shuffle"] = any_of.random() < 0.7
    options["drop_last"] = any_of.random() < 0.3
    if workers > 0:
        options["prefetch_factor"] = any_of.choice((1, 2, 3))
        options["persistent_workers"] = any_of.random() < 0.5
    return options


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def play(
    make_loader: Callable[..., Any],
    dataset: Any,
    options: dict[str, Any],
    stops: list[int | None],
    with_generator: bool = False,
    between: Callable[[int], Any] = lambda number: None,
) -> Iterator[Tensor]:
    """Yield all batches and the states of generators on the way.

    Args:
        stops: for each epoch, the number of batches after which the loop is left; None: all.
        between: called after each batch with its number.
    """
    torch.manual_seed(17)
    generator = seeded(23) if with_generator else None
    loader = make_loader(dataset, generator=generator, **options)
    for stop in stops:
        for number, batch in enumerate(islice(loader, stop)):
            yield from (part.clone() for part in batch)
            if options.get("num_workers", 0) == 0:
                yield torch.get_rng_state()
            between(number)
        yield torch.get_rng_state()
        if generator is not None:
            yield generator.get_state()
        yield torch.rand(3)


def assert_same_bits(ours: list[Tensor], torchs: list[Tensor]) -> None:
    assert len(ours) == len(torchs)
    for place, (a, b) in enumerate(zip(ours, torchs, strict=True)):
        assert type(a) is type(b), place
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()), place
        assert a.numpy().tobytes() == b.numpy().tobytes(), place


def assert_same(dataset: Any, options: dict[str, Any], *others: Any, **named: Any) -> None:
    """Play loaders of torch and of fastloop, and compare them."""
    stops = named.pop("stops", [None, None])
    torchs = list(play(DataLoader, dataset, options, stops, *others, **named))
    ours = list(play(fastloop.DataLoader, dataset, options, stops, *others, **named))
    assert_same_bits(ours, torchs)


# ---- single images behind patch()


def status() -> SeamStatus:
    return fastloop.patch_status().seams["transforms"]


def results(transform: Any, images: list[Any], seed: int = 5) -> list[Any]:
    """The images, and the state after each."""
    torch.manual_seed(seed)
    found: list[Any] = []
    for image in images:
        found += [transform(image), torch.get_rng_state()]
    return found


def assert_same_images(ours: list[Any], torchs: list[Any]) -> None:
    for place, (a, b) in enumerate(zip(ours, torchs, strict=True)):
        assert type(a) is type(b), place
        if isinstance(a, Tensor):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()), place
            assert torch.equal(a.as_subclass(Tensor), b.as_subclass(Tensor)), place
