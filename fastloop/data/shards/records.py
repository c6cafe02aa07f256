"""Records: the base of datasets whose samples are dicts, with encoded images in some columns."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fastloop.base.checks import (
    check_callable,
    check_type,
    check_value,
    is_sequence,
    read_choice,
    refuse_if,
)
from fastloop.data.field import Array
from fastloop.data.image_folder import decode as decoders
from fastloop.data.image_folder.cache import ONE_SIZE
from fastloop.data.image_folder.encoded import EncodedImages
from fastloop.data.transforms.split import SplitPlan


def read_decode(decode: Any, keys: str) -> dict[str, Callable[[bytes], Any]]:
    """Return the functions of an argument ``decode``, by columns or extensions: the word `keys`."""
    is_dict = isinstance(decode, Mapping)
    is_taken = is_dict and all(isinstance(name, str) for name in decode)
    is_taken = is_taken or (isinstance(decode, str) and decode == "auto")
    rule = f"'auto', or a dict from {keys} to functions of bytes"
    check_type("decode", decode, is_taken, rule)
    functions: dict[str, Callable[[bytes], Any]] = dict(decode) if is_dict else {}
    for name, function in functions.items():
        check_callable(f"decode[{name!r}]", function, "a function of bytes")
    return functions


def check_names(columns: Any) -> None:
    """Raise TypeError or ValueError for an argument that is not None and no list of names."""
    is_list = columns is None or is_sequence(columns)
    check_type("columns", columns, is_list, "a list of names, or None")
    check_value("columns", columns, columns is None or len(columns), "at least one name")


def read_names(columns: Any, every: Sequence[str]) -> list[str]:
    """Return the names of columns, all of which are in `every`; None: every name."""
    check_names(columns)
    names = list(every if columns is None else columns)
    for name in names:
        read_choice("each of columns", name, every)
        refuse_if(every.count(name) > 1, f"data must have one column {name!r}, got several")
    return names


class Records(EncodedImages):
    """Samples that are dicts of columns.

    A subclass calls ``_prepare_columns``, and defines ``__len__`` and the method below that raises
    NotImplementedError.
    """

    _unit = "row"
    _fatal = (errno.ESTALE,)
    # What _prepare() sets, for datasets without images, which need no decoder.
    _images: tuple[str, ...] = ()
    _plans: dict[str, SplitPlan] = {}  # noqa: RUF012
    _on_error: Any = "raise"
    _transform: Any = None
    _why_python = ""

    def _prepare_columns(
        self,
        encoded: Sequence[str],
        images: Sequence[str],
        transform: Any,
        decode: Any,
        on_error: Any,
        seed: Any,
    ) -> None:
        """Check and keep how values are decoded.

        Args:
            encoded: the columns that ``decode`` may have a function for.
            images: those of them that hold images if ``decode`` has no function for them.
        """
        self._functions = read_decode(decode, "columns")
        for name in self._functions:
            read_choice("each column of decode", name, encoded)
        self._images = tuple(name for name in images if name not in self._functions)
        if self._images:
            self._prepare(transform, "auto", on_error, "CHW", seed)
        else:
            check_value("transform", transform, transform is None, "None if no column has images")

    def _values(self, row: int) -> dict[str, Any]:
        """Return the values of a row; those of images, and of columns with functions, as bytes."""
        raise NotImplementedError

    def _load(self, row: int) -> dict[str, Any]:
        values = self._values(row)
        for name in self._images:
            where = f"{self._name(row)}, {name}"
            image = self._decode_image(where, lambda name=name: values[name])  # type: ignore[misc]
            # The next image would be decoded into the same memory.
            values[name] = image if len(self._images) == 1 else image.copy()
        for name, function in self._functions.items():
            values[name] = decoders.call(function, values[name], f"{self._name(row)}, {name}")
        return values

    def _sample(self, row: int, view: int, slot: torch.Tensor | None = None) -> dict[str, Any]:
        values: dict[str, Any] = self._read(row)[0]
        for name in self._images:
            images = self._apply(values[name], row, view, slot)
            values[name] = images[0] if len(images) == 1 else images
        return values

    def _like(self) -> torch.Tensor | None:
        return super()._like() if len(self._images) == 1 else None

    def _pixels(self, row: int) -> Array:
        pixels: Array = self._read(row)[0][self._images[0]]
        return pixels

    def _size_remedy(self) -> str:
        return f"Images of a column may have several sizes: {ONE_SIZE}." if self._images else ""
