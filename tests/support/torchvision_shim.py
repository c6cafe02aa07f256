"""torchvision.transforms.v2 for tests and benchmarks, also beside a torch without CUDA; images made
by it from given parameters.

torchvision's wheels want the CUDA build of torch. Beside another one its C++ operators do not load,
and importing it fails because it describes some of them to torch. Its transforms are Python and
need none: declaring the names first is enough.
"""

import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from image_draws import Op, Params, pair
from image_reference import out_dtype

_DESCRIBED = re.compile(r"register_fake\(\"torchvision::(\w+)\"\)")
_declared: list[torch.library.Library] = []  # the names go with it


def _declare_operators(package: str) -> None:
    source = Path(package).with_name("_meta_registrations.py").read_text()
    library = torch.library.Library("torchvision", "DEF")
    for name in _DESCRIBED.findall(source):
        library.define(f"{name}(Tensor a) -> Tensor")
    _declared.append(library)


def torchvision_v2() -> ModuleType | None:
    """torchvision.transforms.v2, or None where torchvision is not installed."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or importlib.util.find_spec("PIL") is None:
        return None
    try:
        return importlib.import_module("torchvision.transforms.v2")
    except RuntimeError as error:  # a torch with CUDA gets here never
        if "torchvision::" not in str(error) or _declared:
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    _declare_operators(found.origin)
    return importlib.import_module("torchvision.transforms.v2")


def replay_by_torchvision(v2: Any, ops: Sequence[Op], params: Sequence[Params], image: Any) -> Any:
    """image_reference.replay by torchvision.transforms.v2: its functions where parameters are
    random, its classes elsewhere."""
    f = v2.functional
    for (name, args), chosen in zip(ops, params, strict=True):
        box = [chosen.get(side, 0) for side in ("top", "left", "height", "width")]
        if name == "RandomCrop":
            fill, mode = args.get("fill", 0), args.get("padding_mode", "constant")
            image = f.crop(f.pad(image, list(chosen["padding"]), fill, mode), *box)
        elif name == "RandomResizedCrop":
            how = v2.InterpolationMode(args.get("interpolation", "bilinear"))
            image = f.resized_crop(image, *box, list(pair(args["size"])), how, antialias=True)
        elif name == "RandomHorizontalFlip":
            image = f.horizontal_flip(image) if chosen["flip"] else image
        elif name == "RandomVerticalFlip":
            image = f.vertical_flip(image) if chosen["flip"] else image
        elif name == "RandomErasing":
            if chosen["erase"]:
                value = v2.RandomErasing(value=args.get("value", 0)).value
                image = f.erase(image, *box, torch.tensor(value)[:, None, None])
        elif name == "ToDtype" and args["dtype"].is_floating_point:
            image = v2.ToDtype(torch.float32, scale=args.get("scale", False))(image)
        else:
            image = getattr(v2, name)(**args)(image)
    return image.to(out_dtype(ops)).contiguous()
