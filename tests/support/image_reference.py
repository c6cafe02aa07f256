"""Images made from the parameters of fastloop.transforms with plain torch, one operation after the
other: what a plan's output must equal bit for bit.

Crops and flips are indexing, paddings maps of indices, resizes torch's own interpolate on uint8,
values torch's operations in float32, rounded once to the type of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from image_draws import Op, Params, four, pair


def _sources(length: int, before: int, after: int, mode: str) -> torch.Tensor:
    """Which element of an axis each element of the padded axis shows."""
    at = torch.arange(-before, length + after)
    if mode == "symmetric":  # -1 shows 0
        return torch.where(at < 0, -1 - at, torch.where(at < length, at, 2 * length - 1 - at))
    if mode == "reflect":  # -1 shows 1
        return torch.where(at < 0, -at, torch.where(at < length, at, 2 * length - 2 - at))
    return at.clamp(0, length - 1)


def pad(
    image: torch.Tensor, sides: Sequence[int], fill: float | Sequence[float], mode: str
) -> torch.Tensor:
    left, top, right, bottom = sides
    height, width = image.shape[1:]
    padded = image[:, _sources(height, top, bottom, mode)][:, :, _sources(width, left, right, mode)]
    if mode == "constant":
        inside = torch.zeros(padded.shape[1:], dtype=torch.bool)
        inside[top : top + height, left : left + width] = True
        padded = torch.where(inside, padded, _per_channel(fill, image))
    return padded


def _per_channel(value: float | Sequence[float], image: torch.Tensor) -> torch.Tensor:
    values = [value] if isinstance(value, (int, float)) else list(value)
    return torch.tensor(values, dtype=torch.float32).to(image.dtype).view(-1, 1, 1)


def _pad(image: torch.Tensor, args: dict[str, Any], _params: Params) -> torch.Tensor:
    fill, mode = args.get("fill", 0), args.get("padding_mode", "constant")
    return pad(image, four(args["padding"]), fill, mode)


def _cropped(image: torch.Tensor, params: Params) -> torch.Tensor:
    top, left = params["top"], params["left"]
    return image[:, top : top + params["height"], left : left + params["width"]]


def _random_crop(image: torch.Tensor, args: dict[str, Any], params: Params) -> torch.Tensor:
    fill, mode = args.get("fill", 0), args.get("padding_mode", "constant")
    return _cropped(pad(image, params["padding"], fill, mode), params)


def _center_crop(image: torch.Tensor, args: dict[str, Any], _params: Params) -> torch.Tensor:
    height, width = pair(args["size"])
    y, x = max(0, height - image.shape[1]), max(0, width - image.shape[2])
    image = pad(image, (x // 2, y // 2, (x + 1) // 2, (y + 1) // 2), 0, "constant")
    top, left = (
        round((n - m) / 2.0) for n, m in zip(image.shape[1:], (height, width), strict=True)
    )
    return image[:, top : top + height, left : left + width]


def resized(image: torch.Tensor, size: Sequence[int], mode: str) -> torch.Tensor:
    if tuple(image.shape[1:]) == tuple(size):
        return image
    smooth: Any = {}
    if mode in ("bilinear", "bicubic"):
        smooth = {"antialias": True, "align_corners": False}
    image = image.contiguous()
    if tuple(size) == (1, 1):  # an assertion inside torch 2.13 fails for three channels at once
        return F.interpolate(image[:, None], (1, 1), mode=mode, **smooth)[:, 0]
    return F.interpolate(image[None], tuple(size), mode=mode, **smooth)[0]


def _resize(image: torch.Tensor, args: dict[str, Any], _params: Params) -> torch.Tensor:
    wanted, most = args["size"], args.get("max_size")
    sizes = [wanted] if isinstance(wanted, int) else list(wanted)
    if len(sizes) == 1:
        height, width = image.shape[1:]
        sizes.append(int(sizes[0] * max(height, width) / min(height, width)))
        if most is not None and sizes[1] > most:
            sizes = [int(most * sizes[0] / sizes[1]), most]
        if width <= height:
            sizes.reverse()
    return resized(image, sizes, args.get("interpolation", "bilinear"))


def _resized_crop(image: torch.Tensor, args: dict[str, Any], params: Params) -> torch.Tensor:
    mode = args.get("interpolation", "bilinear")
    return resized(_cropped(image, params), pair(args["size"]), mode)


def _horizontal(image: torch.Tensor, _args: dict[str, Any], params: Params) -> torch.Tensor:
    return image.flip(2) if params["flip"] else image


def _vertical(image: torch.Tensor, _args: dict[str, Any], params: Params) -> torch.Tensor:
    return image.flip(1) if params["flip"] else image


def _erase(image: torch.Tensor, args: dict[str, Any], params: Params) -> torch.Tensor:
    if not params["erase"]:
        return image
    erased = image.clone()
    _cropped(erased, params)[:] = _per_channel(args.get("value", 0), image)
    return erased


def _to_dtype(image: torch.Tensor, args: dict[str, Any], _params: Params) -> torch.Tensor:
    if not args["dtype"].is_floating_point or image.dtype.is_floating_point:
        return image
    image = image.to(torch.float32)
    return image.mul_(1.0 / 255) if args.get("scale", False) else image


def _normalize(image: torch.Tensor, args: dict[str, Any], _params: Params) -> torch.Tensor:
    mean, std = (torch.tensor(args[name], dtype=torch.float32) for name in ("mean", "std"))
    return image.sub(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1))


_REPLAYS: dict[str, Callable[[torch.Tensor, dict[str, Any], Params], torch.Tensor]] = {
    "Pad": _pad,
    "CenterCrop": _center_crop,
    "RandomCrop": _random_crop,
    "Resize": _resize,
    "RandomResizedCrop": _resized_crop,
    "RandomHorizontalFlip": _horizontal,
    "RandomVerticalFlip": _vertical,
    "RandomErasing": _erase,
    "ToDtype": _to_dtype,
    "Normalize": _normalize,
}


def out_dtype(ops: Sequence[Op]) -> torch.dtype:
    dtypes = [args["dtype"] for name, args in ops if name == "ToDtype"]
    return dtypes[-1] if dtypes else torch.uint8


def replay(ops: Sequence[Op], params: Sequence[Params], image: torch.Tensor) -> torch.Tensor:
    """What the operations make of a uint8 image [C, H, W], given the parameters of each."""
    for (name, args), chosen in zip(ops, params, strict=True):
        assert chosen["op"] == name
        image = _REPLAYS[name](image, args, chosen)
    return image.to(out_dtype(ops)).contiguous()
