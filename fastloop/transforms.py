"""Image operations that the loader runs natively, with the names and arguments of torchvision's v2.

Pass the operations as ``ArrayDataset(images, labels, transform=Compose([...]))``.
docs/use/transforms.md says which results the operations equal and which random numbers they draw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from fastloop.data.transforms import batches, color, ops, policy, warp
from fastloop.data.transforms.arguments import InterpolationMode
from fastloop.data.transforms.batches import *  # noqa: F403
from fastloop.data.transforms.color import *  # noqa: F403
from fastloop.data.transforms.dataset_transform import remedy_for
from fastloop.data.transforms.ops import *  # noqa: F403
from fastloop.data.transforms.policy import *  # noqa: F403
from fastloop.data.transforms.warp import *  # noqa: F403

__all__ = ["InterpolationMode", *batches.__all__, *color.__all__]
__all__ += [*ops.__all__, *policy.__all__, *warp.__all__]


if not TYPE_CHECKING:  # type checkers would believe that every name is defined

    def __getattr__(name: str) -> NoReturn:
        from fastloop.base.names import suggest

        text, hint = f"module {__name__!r} has no attribute {name!r}", suggest(name, __all__, 0.88)
        if not hint and not name.startswith("_"):
            hint = f", because fastloop has no such operation; {remedy_for(name)}"
        raise AttributeError(text + hint, name=name)  # without `name` Python would add one more
