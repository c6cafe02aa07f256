"""TarDataset: samples in tar archives, as webdataset writes them, as a map-style dataset."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch

from fastloop._core import FileReader, tar_members
from fastloop.base.checks import (
    check_type,
    check_value,
    is_sequence,
    make_message,
    read_choice,
)
from fastloop.data.field import Array, read_item
from fastloop.data.image_folder import decode as decoders
from fastloop.data.image_folder.cache import ONE_SIZE
from fastloop.data.image_folder.encoded import EncodedImages
from fastloop.data.shards.arrow_files import fetch_paths
from fastloop.data.shards.records import read_decode
from fastloop.data.shards.tar_index import ENTRY, OTHER_SET, SHARD_BITS, open_index

_IMAGES = ("jpg", "jpeg", "png", "webp")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_KEY = "__key__"
# What TarDataset._open sets.
_OPENED = ("_reader", "_entries", "_index_path", "_has_images", "_has_one_image", "_decode")


def _read_npy(data: bytes) -> Array:
    array: Array = np.load(io.BytesIO(data), allow_pickle=False)
    return array


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "cls": int,
    "json": json.loads,
    "txt": bytes.decode,
    "npy": _read_npy,
}


def _expand_ranges(path: str) -> list[str]:
    """Return the paths for ``shard-{000..012}.tar``, as a shell has them."""
    found = _RANGE.search(path)
    if found is None or os.path.exists(path):
        return [path]
    first, last = found.groups()
    width = len(first) if first.startswith("0") else 0
    numbers = range(int(first), int(last) + 1)
    parts = (f"{path[: found.start()]}{n:0{width}d}{path[found.end() :]}" for n in numbers)
    return [each for part in parts for each in _expand_ranges(part)]


def _read_paths(paths: Any, cache_dir: str | None) -> tuple[str, ...]:
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    rule = "a path or URL, a pattern such as 'train-{000..146}.tar', or a list of paths or patterns"
    check_type("paths", paths, is_sequence(given), rule)
    expanded: list[str] = []
    for path in map(os.fsdecode, given):
        is_pipe = path.startswith("pipe:")
        check_value("paths", path, not is_pipe, "a path or a URL", "copy the shards to a disk")
        expanded += _expand_ranges(path)
    check_value("paths", paths, expanded, rule)
    return fetch_paths(expanded, cache_dir)


def _read_fields(fields: Any) -> list[tuple[str, ...]] | None:
    """Return the extensions of each field, of which a sample must have one."""
    if fields is None:
        return None
    given = [fields] if isinstance(fields, str) else fields
    rule = "an extension such as 'jpg' or 'jpg;png', or a list of extensions"
    is_list = is_sequence(given) and all(isinstance(each, str) for each in given)
    check_type("fields", fields, is_list, rule, "or None")
    wanted = [tuple(each.lower().split(";")) for each in given]
    is_named = all(name and not name.startswith(".") for each in wanted for name in each)
    check_value("fields", fields, wanted and is_named, rule, "or None")
    return wanted


class TarDataset(EncodedImages):
    """Samples in tar archives ("shards"), by index: any order, and any sampler.

    A sample is what webdataset makes a sample: neighbouring files of an archive whose paths are
    equal up to the first dot of the name. That path is the key, and the rest, in lower case, the
    extension of a part. The first time, the headers of all shards are read, and an index of 16
    bytes a sample is written to a file.

    Args:
        paths: a path, a pattern (``train-*.tar``, ``train-{000..146}.tar``), a URL that fsspec
            opens, also a pattern, or a list of these. Shards of URLs are fetched when the dataset
            is made.
        fields: the extensions of a sample's parts, in order, for example ``["jpg;png", "cls"]``;
            of "jpg;png" the sample has one. Samples are tuples; for a single ``"jpg"``, the
            part itself. ``"__key__"`` is the key. None: a sample is a dict of all parts.
        transform: as in ``ImageFolder``, for every image. Images of one sample have the same
            random parameters. With several views a list of views takes the image's place.
        decode: ``"auto"``: ``.jpg .jpeg .png .webp`` are images, ``.cls`` an int, ``.json`` what
            JSON holds, ``.txt`` a str, ``.npy`` an array, and other parts bytes, by the last part
            of the extension. A dict from extensions to functions adds to this: the result of a
            function of the part's bytes is the part, and ``transform`` does not get it.
        on_error: for a part that cannot be decoded, as in ``ImageFolder``; a function gets
            ("shard: key.extension", error) and returns an image.
        on_missing: for samples that lack a field. ``"raise"``, or ``"skip"``: they do not count.
        duplicates: for keys that come again in a shard. ``"raise"``, or ``"keep"``: as separate
            samples, as webdataset has them.
        cache_dir: the folder of the index, and of shards that are fetched. None: the folder of the
            first shard, or ``~/.cache/fastloop`` if that cannot be written; the latter for shards.
        seed: the seed of the transforms' random parameters.

    Attributes:
        paths: the paths of the shards, or of their copies.
        skipped_files: the samples that ``on_error="skip"`` has replaced in this process.

    A shard that has changed since the dataset was made is an ``OSError`` with ``errno.ESTALE``.

    Raises:
        FileNotFoundError: a shard is missing.
        TypeError, ValueError: wrong arguments; a shard is compressed, damaged, or cut; a key comes
            again; a sample lacks a field.
        ImportError: samples have images, and neither simplejpeg nor Pillow is installed; for a URL,
            fsspec is not.
        OSError: a shard cannot be read; no folder for the index can be written. From samples: a
            part cannot be decoded. The text names shard and key.
    """

    _borrows_slots = True
    _decodes_files = True
    _unit = "sample"
    _fatal = (errno.ESTALE,)

    def __init__(
        self,
        paths: Any,
        fields: Any = None,
        transform: Any = None,
        *,
        decode: Any = "auto",
        on_error: Any = "raise",
        on_missing: str = "raise",
        duplicates: str = "raise",
        cache_dir: Any = None,
        seed: int = 0,
    ) -> None:
        self._wanted = _read_fields(fields)
        self._is_single = isinstance(fields, str)
        functions = read_decode(decode, "extensions")
        self._functions = {name.lower(): function for name, function in functions.items()}
        self._skips_missing = read_choice("on_missing", on_missing, ("raise", "skip")) == "skip"
        self._keeps = read_choice("duplicates", duplicates, ("raise", "keep")) == "keep"
        folder = None if cache_dir is None else os.path.expanduser(os.fsdecode(cache_dir))
        self._cache_dir = None if folder is None else os.path.abspath(folder)
        self._prepare(transform, len, on_error, "CHW", seed)  # _open finds the decoder
        self.paths = _read_paths(paths, self._cache_dir)
        self._open(None)

    # ---- the index

    def _open(self, states: bytes | None) -> None:
        """Open shards and index, also in a second process, which knows the shards' states."""
        self._reader = FileReader(self.paths, states)
        index = open_index(self.paths, self._reader.states, self._keeps, self._cache_dir)
        self._index_path, self._entries = index.path, index.entries
        chosen = [self._choose(each.split("/")) for each in index.sets]
        self._check_missing(chosen)
        counts = {sum(map(self._is_image, names)) for names in chosen if names is not None}
        self._has_images = counts != {0} or len(index.sets) == OTHER_SET
        self._has_one_image = counts == {1} and len(index.sets) < OTHER_SET
        check_value("paths", self.paths, len(self._entries), "shards with at least one sample")
        rule = "None if no sample has an image"
        check_value("transform", self._transform, self._transform is None or self._has_images, rule)
        if self._has_images:
            self._decode = decoders.AutoDecoder()

    def _choose(self, extensions: Sequence[str]) -> list[str] | None:
        """Return the extensions of a sample's fields, or None if the sample lacks one."""
        if self._wanted is None:
            return [_KEY, *extensions]
        has = {_KEY, *extensions}
        chosen = [next(filter(has.__contains__, names), None) for names in self._wanted]
        return None if None in chosen else chosen  # type: ignore[return-value]

    def _check_missing(self, chosen: list[list[str] | None]) -> None:
        """Leave out samples whose sets of extensions lack a field, or refuse them."""
        lacking = [number for number, names in enumerate(chosen) if names is None]
        if self._skips_missing and self._wanted is not None and len(chosen) == OTHER_SET:
            rule = f"'raise' if samples have {OTHER_SET} sets of extensions or more"
            raise ValueError(make_message("on_missing", rule, "skip"))
        if not lacking:
            return
        lacks = np.isin(self._entries["check"] & 255, lacking)
        if not self._skips_missing:
            row = int(np.argmax(lacks))
            key, members = self._members(row)
            self._fail_missing(row, key, [name for name, _ in members])
        self._entries = self._entries[~lacks]

    def _fail_missing(self, row: int, key: str, names: list[str]) -> NoReturn:
        fields = [";".join(names) for names in self._wanted or ()]
        shard = self.paths[self._place(row)[0]]
        text = f"{shard!r}, key {key!r}: a sample must have the fields {fields}, got {names}"
        raise ValueError(f"{text} (pass on_missing='skip' to leave such samples out)")

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the shards' states and no index: the second process reads the index's file."""
        kept = {name: value for name, value in self.__dict__.items() if name not in _OPENED}
        return {**kept, "_states": self._reader.states}

    def __setstate__(self, state: dict[str, Any]) -> None:
        states = state.pop("_states")
        self.__dict__.update(state)
        self._open(states)

    # ---- samples

    def __len__(self) -> int:
        return len(self._entries)

    def _place(self, row: int) -> tuple[int, int, int]:
        """Return the shard of a sample, its first byte there, and its bytes."""
        place, count, _ = self._entries[row].tolist()
        return place >> SHARD_BITS, place & (1 << SHARD_BITS) - 1, count

    def _announce(self, indices: Sequence[Any]) -> None:
        rows = [read_item(index, len(self))[0] for index in indices]
        found = self._entries[rows]
        places, low = found["place"].astype(np.int64), (1 << SHARD_BITS) - 1
        self._reader.announce(np.stack([places >> SHARD_BITS, places & low, found["bytes"]], 1))

    def _members(self, row: int) -> tuple[str, list[tuple[str, bytes]]]:
        """Read a sample: its key, and (extension, bytes) of each part."""
        place = self._place(row)
        data = self._reader.read(*place)
        try:
            key, members = tar_members(data, int(self._entries["check"][row]) >> 8)
        except ValueError as error:
            text = f"the sample at byte {place[1]} {error}; the file has changed"
            raise OSError(errno.ESTALE, text, self.paths[place[0]]) from None
        return key, [(name.lower(), content) for name, content in members]

    def _name(self, row: int) -> str:
        return f"{self.paths[self._place(row)[0]]}: {self._members(row)[0]}"

    def _is_image(self, name: str) -> bool:
        return name not in self._functions and name.rpartition(".")[2] in _IMAGES

    def _load(self, row: int) -> list[tuple[str, Any]]:
        """Return (extension, part) of each field; images are arrays."""
        key, members = self._members(row)
        parts = dict(members)
        names = self._choose(list(parts))
        if names is None:
            self._fail_missing(row, key, list(parts))
        where = f"{self.paths[self._place(row)[0]]}: {key}"
        loaded: list[tuple[str, Any]] = []
        for name in names:
            if name == _KEY:
                loaded.append((name, key))
            elif self._is_image(name):
                image = self._decode_image(f"{where}.{name}", partial(parts.__getitem__, name))
                # The next image would be decoded into the same memory.
                loaded.append((name, image if self._has_one_image else image.copy()))
            else:
                loaded.append((name, self._decode_part(f"{where}.{name}", name, parts[name])))
        return loaded

    def _decode_part(self, where: str, name: str, data: bytes) -> Any:
        decode = self._functions.get(name) or _DECODERS.get(name.rpartition(".")[2])
        return data if decode is None else decoders.call(decode, data, where)

    def _like(self) -> torch.Tensor | None:
        return super()._like() if self._has_one_image else None

    def _sample(self, row: int, view: int, slot: torch.Tensor | None = None) -> Any:
        loaded, _ = self._read(row)
        parts = [part for _, part in loaded]
        for i, (name, part) in enumerate(loaded):
            if self._is_image(name):
                images = self._apply(part, row, view, slot)
                parts[i] = images[0] if len(images) == 1 else images
        if self._wanted is None:
            return {name: part for (name, _), part in zip(loaded, parts, strict=True)}
        return parts[0] if self._is_single else tuple(parts)

    def _pixels(self, row: int) -> Array:
        images = [part for name, part in self._read(row)[0] if self._is_image(name)]
        check_value("index", row, images, "the index of a sample with an image")
        first: Array = images[0]
        return first

    def _size_remedy(self) -> str:
        return f"Images of shards may have several sizes: {ONE_SIZE}."

    def explain(self) -> str:
        """Return a text: the shards, the index, who decodes and transforms, and the source of
        random parameters."""
        lines = [
            f"{len(self)} samples in {len(self.paths)} tar shards",
            f"index: {self._index_path!r}, {ENTRY.itemsize} bytes a sample",
            "reads: one pread a sample; a batch is announced if the disk is slow",
        ]
        return "\n".join(lines + (self._explain_images() if self._has_images else []))

    def __repr__(self) -> str:
        return f"TarDataset({len(self.paths)} shards, {len(self)} samples)"
