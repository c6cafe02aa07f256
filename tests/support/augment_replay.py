"""Images that torchvision.transforms.v2 makes from the parameters of augmentations."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from augment_noise import normal
from image_draws import Params

# What torchvision calls the functions behind classes with a probability, and their arguments.
GATED: dict[str, tuple[str, tuple[str, ...]]] = {
    "RandomInvert": ("invert", ()),
    "RandomSolarize": ("solarize", ("threshold",)),
    "RandomPosterize": ("posterize", ("bits",)),
    "RandomAutocontrast": ("autocontrast", ()),
    "RandomEqualize": ("equalize", ()),
    "RandomAdjustSharpness": ("adjust_sharpness", ("sharpness_factor",)),
}


def sample(v2: Any, op: Any, image: torch.Tensor, rows: torch.Tensor, start: Any) -> torch.Tensor:
    """Torchvision's sampling at the places that a matrix gives, [2 or 3, 3] in float32.

    torchvision multiplies matrices for these, which rounds in another way on Intel's CPUs.
    """
    height, width = image.shape[1:]
    x, y = (
        torch.arange(n, dtype=torch.float32) + at
        for n, at in zip((width, height), start, strict=True)
    )
    x, y = x[None, :], y[:, None]
    halves = torch.tensor([0.5 * width, 0.5 * height, 1.0])[: len(rows), None]
    to = [(x * a + y * b) + c for a, b, c in rows / halves]
    if len(to) == 3:
        to = [to[0] / to[2] - 1.0, to[1] / to[2] - 1.0]
    grid = torch.stack(to, dim=-1)[None]
    fill = None if op.fill is None else list(op.colors)
    geometry = v2.functional._geometry
    return geometry._apply_grid_transform(image, grid, op.interpolation, fill)


def replay_warp(v2: Any, op: Any, params: Params, image: torch.Tensor) -> torch.Tensor:
    height, width = image.shape[1:]
    if params["op"] == "RandomPerspective":
        if not params["apply"]:
            return image
        rows = torch.tensor([*params["coefficients"], 1.0]).view(3, 3)
        return sample(v2, op, image, rows, (0.5, 0.5))
    middle = [0.0, 0.0]
    if op.center is not None:
        middle = [op.center[0] - width * 0.5, op.center[1] - height * 0.5]
    if params["op"] == "RandomRotation":
        arguments: Any = (-(params["angle"] % 360), [0.0, 0.0], 1.0, [0.0, 0.0])
    else:
        moved = [float(n) for n in params["translate"]]
        arguments = (params["angle"], moved, params["scale"], list(params["shear"]))
    matrix = v2.functional._geometry._get_inverse_affine_matrix(middle, *arguments)
    rows = torch.tensor(matrix, dtype=torch.float32).view(2, 3)
    return sample(v2, op, image, rows, ((1.0 - width) * 0.5, (1.0 - height) * 0.5))


def replay_policy(v2: Any, op: Any, params: Params, image: torch.Tensor) -> torch.Tensor:
    """What torchvision makes of it by the operations that a policy drew."""
    for name, magnitude in params["transforms"]:
        shear = math.degrees(math.atan(magnitude))
        if name in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"):
            told: Params = {"op": "RandomAffine", "angle": 0.0, "scale": 1.0}
            told |= {"shear": (0.0, 0.0), "translate": (0, 0)}
            center: Any = None
            if name.startswith("Shear"):
                told["shear"], center = ((shear, 0.0) if name == "ShearX" else (0.0, shear)), (0, 0)
            elif name.startswith("Translate"):
                moved = int(magnitude)
                told["translate"] = (moved, 0) if name == "TranslateX" else (0, moved)
            else:
                told = {"op": "RandomRotation", "angle": magnitude}
                if magnitude == 0:
                    continue
            like = SimpleNamespace(
                center=center, fill=op.fill, colors=op.colors, interpolation=op.interpolation
            )
            image = replay_warp(v2, like, told, image)
        else:
            base = v2.RandAugment()
            image = base._apply_image_or_video_transform(
                image, name, magnitude, op.interpolation, base._fill
            )
    return image


def replay_mixture(v2: Any, op: Any, params: Params, image: torch.Tensor) -> torch.Tensor:
    """AugMix's sum of the image and of its chains, as torchvision adds them."""
    first, *weights = (torch.tensor(weight) for weight in params["weights"])
    mix = first * image
    for weight, chain in zip(weights, params["transforms"], strict=True):
        mix.add_(weight * replay_policy(v2, op, {"transforms": chain}, image))
    return mix.to(torch.uint8)


def replay_augmentation(v2: Any, op: Any, params: Params, image: torch.Tensor) -> torch.Tensor:
    """What torchvision makes of a uint8 image [C, H, W] by an operation with these parameters."""
    f, name = v2.functional, params["op"]
    if name in ("RandomApply", "RandomChoice", "RandomOrder"):
        return replay_held(v2, op, params, image)
    if name in ("RandomRotation", "RandomAffine", "RandomPerspective"):
        return replay_warp(v2, op, params, image)
    if name == "AugMix":
        return replay_mixture(v2, op, params, image)
    if name in ("RandAugment", "TrivialAugmentWide", "AutoAugment"):
        return replay_policy(v2, op, params, image)
    if name == "GaussianNoise":
        numbers = torch.from_numpy(normal(params["seed"], image.numel())).view(image.shape)
        with mock.patch.object(torch, "randn_like", lambda *_args, **_kwargs: numbers):
            return f.gaussian_noise(image, op.mean, op.sigma, op.clip)
    if name in GATED:
        function, arguments = GATED[name]
        values = [getattr(op, argument) for argument in arguments]
        return getattr(f, function)(image, *values) if params["apply"] else image
    if name == "RandomGrayscale":
        return f.rgb_to_grayscale(image, len(image)) if params["apply"] else image
    if name == "Grayscale":
        return f.rgb_to_grayscale(image, op.num_output_channels)
    if name in ("RandomHorizontalFlip", "RandomVerticalFlip"):
        return image.flip(2 if "Horizontal" in name else 1) if params["flip"] else image
    if name == "RandomCrop":
        left, top, right, bottom = params["padding"]
        padded = f.pad(image, [left, top, right, bottom], op.fill, op.padding_mode)
        return f.crop(padded, *(params[side] for side in ("top", "left", "height", "width")))
    if name == "GaussianBlur":
        return f.gaussian_blur(image, list(op.kernel_size), params["sigma"])
    given = {key: value for key, value in params.items() if key != "op"}
    if "fn_idx" in given:
        given["fn_idx"] = torch.tensor(given["fn_idx"])
    return getattr(v2, name)().transform(image, given)


def replay_held(v2: Any, op: Any, params: Params, image: torch.Tensor) -> torch.Tensor:
    """What torchvision makes of it by operations that another one holds."""
    if params["op"] == "RandomApply":
        return replay_augmentations(v2, op.parts, params.get("transforms", []), image)
    if params["op"] == "RandomChoice":
        parts = op.parts[params["chosen"]].parts
        return replay_augmentations(v2, parts, params["transforms"], image)
    for k in params["order"]:
        image = replay_augmentations(v2, op.parts[k].parts, params["transforms"][k], image)
    return image


def replay_augmentations(v2: Any, ops: Any, params: list[Params], image: Any) -> torch.Tensor:
    for op, chosen in zip(ops, params, strict=bool(params)):
        image = replay_augmentation(v2, op, chosen, image)
    return image.contiguous()
