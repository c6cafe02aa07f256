"""An image and its masks: the masks get the image's geometry, with the same parameters, and the
nearest pixel in place of means."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import TorchLoader, assert_same
from torchvision_shim import torchvision_v2

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T

PATHS = [("array", 0), ("array", 2), ("sync", 0), ("process", 2), ("torch", 2)]
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randint(0, 256, (20, 3, 24, 20), dtype=torch.uint8, generator=GENERATOR)
MASKS = torch.randint(0, 20, (20, 1, 24, 20), dtype=torch.uint8, generator=GENERATOR)


def chain(how: str, *colors: Any) -> list[Any]:
    return [
        T.RandomApply([*colors, T.RandomRotation(20, interpolation=how, fill=7)], p=0.6),
        *colors,
        T.RandomResizedCrop(16, interpolation=how),
        T.RandomOrder([*colors, T.RandomHorizontalFlip(), T.RandomVerticalFlip()]),
        T.RandomAffine(10, (0.1, 0.1), (0.8, 1.2), 5, interpolation=how),
        T.RandomPerspective(0.4, interpolation=how),
        T.RandomCrop(14, padding=1, padding_mode="reflect"),
        T.Resize((9, 11), interpolation=how),
    ]


def dataset(images: torch.Tensor, aug: Any) -> ArrayDataset:
    fields = {"image": images, "mask": MASKS, "depth": MASKS + 100, "label": torch.arange(20)}
    return ArrayDataset(**fields, transform={("image", "mask", "depth"): aug}, seed=4)


@pytest.mark.parametrize(("path", "workers"), PATHS)
def test_masks_move_with_their_image(path: str, workers: int) -> None:
    cast = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.5], [0.5]), T.RandomErasing(1.0)]
    data = dataset(IMAGES, T.Compose([*chain("bilinear", T.RandomInvert(0.5)), *cast]))
    # The masks as images, by a chain without colours that takes nearest pixels anyway.
    plain = chain("nearest")
    plain[2] = T.RandomOrder([T.Identity(), *plain[2].transforms])
    plain[0] = T.RandomApply([T.Identity(), *plain[0].transforms], p=0.6)
    alone = [
        ArrayDataset(field, transform=T.Compose(plain), seed=4) for field in (MASKS, MASKS + 100)
    ]
    loader = DataLoader(data, 6, path=path, num_workers=workers)
    batches = zip(loader, *(TorchLoader(each, 6) for each in alone), strict=True)
    for batch, (mask,), (depth,) in batches:
        assert batch["image"].dtype is torch.float32
        assert_same([batch["mask"], batch["depth"]], [mask, depth])


def test_masks_are_torchvisions() -> None:
    v2 = torchvision_v2() or pytest.skip("torchvision is not installed")
    from torchvision import tv_tensors

    ops = [T.RandomResizedCrop((16, 12)), T.RandomHorizontalFlip(), T.Pad(2, fill=9)]
    data = dataset(IMAGES, T.Compose(ops))
    functional = v2.functional
    for i in range(20):
        crop, flip, _ = data.params(i, field="image")
        box = [crop[name] for name in ("top", "left", "height", "width")]
        pair = tv_tensors.Image(IMAGES[i]), tv_tensors.Mask(MASKS[i])
        made = [functional.resized_crop(value, *box, [16, 12]) for value in pair]
        made = [functional.horizontal_flip(value) for value in made] if flip["flip"] else made
        image, mask = (functional.pad(value, [2], fill=9) for value in made)
        assert_same(data[i]["image"], image.as_subclass(torch.Tensor))
        assert_same(data[i]["mask"], mask.as_subclass(torch.Tensor))


def test_what_masks_cannot_have_is_named() -> None:
    for aug, text in (
        (T.RandAugment(), "a transform with masks must be operations on images and masks alike"),
        (T.Compose([T.Pad(1), len]), "len must be an operation of fastloop, got a function"),
    ):
        with pytest.raises(ValueError, match=text):
            dataset(IMAGES, aug)
    with pytest.raises(TypeError, match="field 'mask': images with a transform must be uint8"):
        ArrayDataset(image=IMAGES, mask=MASKS.long(), transform={("image", "mask"): T.Pad(1)})
    for key in (("image", "masks"), ("images",), ()):
        with pytest.raises(ValueError, match="each key of transform must be"):
            ArrayDataset(image=IMAGES, mask=MASKS, transform={key: T.Pad(1)})
