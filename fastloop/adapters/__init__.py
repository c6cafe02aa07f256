"""Adapters: what fastloop knows of other packages, a module for each. The loader imports no adapter
by itself: it asks ``find`` for the adapter of a class, whose package is loaded already.

An adapter of datasets has ``columns_of(dataset, request)``, and may have ``samples_of(dataset,
is_collated, workers)``: an object that stands in for the dataset and gives its samples, or None. An
adapter of collate functions has
``columns_of_collate(collate_fn, dataset, request)``.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastloop.base.checks import check_value, look_up

if TYPE_CHECKING:
    from fastloop.compat import late_seam

# By how the name of the module begins that defines a class.
_ADAPTERS = {
    "torchvision.datasets.": "torchvision_datasets",
    "datasets.arrow_dataset": "hugging_face",
    "transformers.": "hugging_face",
    "trl.trainer.": "hugging_face",
    "torch_geometric.loader.dataloader": "torch_geometric",
    "timm.data.dataset": "timm_images",
}
# The functions of each seam, by module: a class, the name of its function, and the adapter whose
# ``make_call`` makes the function that is put in. Without a class the function is the module's.
_SEAMS: dict[str, late_seam.Places] = {
    "transforms": {
        "torchvision.transforms.transforms": [("Compose", "__call__", "torchvision_compose")],
        "torchvision.transforms.v2._container": [("Compose", "forward", "torchvision_compose")],
        "timm.data.loader": [("PrefetchLoader", "__iter__", "timm_loader")],
        "PIL.Image": [
            ("Image", "resize", "pillow_resize"),
            ("Image", "_Image__transformer", "pillow_warp"),
        ],
        "PIL.ImageFile": [("ImageFile", "load", "pillow_load")],
        "PIL.ImageFilter": [("GaussianBlur", "filter", "pillow_blur")],
    },
    "texts": {
        "transformers.tokenization_utils_base": [
            ("PreTrainedTokenizerBase", "pad", "hugging_face_pad")
        ],
        "transformers.data.data_collator": [
            ("DataCollatorForLanguageModeling", "torch_mask_tokens", "hugging_face_mask")
        ],
        "datasets.arrow_dataset": [("Dataset", "__getitems__", "hugging_face_rows")],
        "torch.nn.utils.rnn": [("", "pad_sequence", "torch_pad")],
    },
}
# Functions that frameworks set as worker_init_fn, by module. They seed the random generators of a
# worker process, torch's too; no Python runs in the array path's threads.
_SEEDERS = (
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
    ("transformers.trainer_utils", "seed_worker"),
)


def as_counted(state: Any) -> Any:
    """Return the state of a loader as Lightning counts batches, if Lightning is loading on this
    thread."""
    return import_module(f"{__name__}.lightning").as_counted(state)


def check_count(count: Callable[[], int | None]) -> None:
    """Raise ValueError if Lightning would end the epoch earlier or later than the loader; see
    ``lightning.check_count``."""
    import_module(f"{__name__}.lightning").check_count(count)


def warn_of_lost_transforms() -> None:
    """Warn, for a loader with transforms of batches, that ``accelerate.prepare`` would drop them:
    accelerate is imported, and ``patch()``, which keeps them, is not on."""
    module = sys.modules.get("accelerate.data_loader")
    if module is not None and not hasattr(look_up(module, "prepare_data_loader"), "__wrapped__"):
        warnings.warn(
            "accelerate's prepare() makes a loader without device_transform and batch_transform; "
            "call fastloop.patch() before prepare() to keep them",
            RuntimeWarning,
            stacklevel=3,
        )


def find(value: object) -> Any:
    """Return the adapter of a class or a function, or None."""
    module = str(look_up(value, "__module__", ""))
    found = next((name for start, name in _ADAPTERS.items() if module.startswith(start)), None)
    return None if found is None else import_module(f"{__name__}.{found}")


@functools.cache
def _find_module(name: str) -> Any:
    return import_module(f"{__name__}.{name}")


def find_refusal(cls: type, workers: int) -> str:
    """Return why samples of a class of no known package are not traced, or ""."""
    reason: str = _find_module("closed_world").find_refusal(cls, workers)
    return reason


def trace(dataset: Any, request: Any) -> Any:
    """Return the columns of a dataset of no known package; see ``traced.columns_of``."""
    return _find_module("traced").columns_of(dataset, request)


def serve_fetches() -> bool:
    """Tell whether functions of other packages are served while a loader fetches samples; see
    ``late_seam.serve_fetches``."""
    is_served = False
    for name, places in _SEAMS.items():
        # torch's own function is always there, and alone does not open a seam.
        if any(place in sys.modules for place in places if not place.startswith("torch.")):
            from fastloop.compat import late_seam

            is_served |= late_seam.serve_fetches(name, functools.partial(make_seam, name))
    return is_served


def make_seam(name: str, is_strict: bool) -> late_seam.LateSeam:
    """Return a new seam of another package's functions."""
    from fastloop.compat import late_seam

    return late_seam.LateSeam(name, is_strict, _SEAMS[name], _find_module)


def keep_images(cache: bool | str) -> None:
    """Keep decoded images, in the default folder if ``cache`` is True; see ``planes.ask``."""
    check_value("cache", cache, cache is True or isinstance(cache, str), "True, a size or a folder")
    import_module("fastloop.data.image_folder.planes").ask("" if cache is True else cache)


def name_of_seeder(init: Any) -> str:
    """Return the name of a worker_init_fn, or of the function of a partial, if a framework's module
    defines that function to seed a worker; else ""."""
    function = init.func if type(init) is functools.partial else init
    for module, name in _SEEDERS:
        theirs: dict[str, Any] = getattr(sys.modules.get(module), "__dict__", {})
        if theirs.get(name) is function and look_up(function, "__globals__") is theirs:
            return name
    return ""
