"""TokenDataset: windows of tokens out of files, as a map-style dataset."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from fastloop._core import Windows
from fastloop.base.moves import watch
from fastloop.data.epochs import Epoch, EpochDataset
from fastloop.data.tokens.arguments import (
    WindowArguments,
    check_choice,
    check_files,
    read_window_arguments,
)
from fastloop.data.tokens.files import (
    FORMATS,
    OpenTokens,
    find_paths,
    open_again,
    open_tokens,
    read_dtype,
    take_buffers,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class TokenDataset(EpochDataset):
    """Windows of tokens out of one or more files, for language models.

    Args:
        paths: a path, a pattern as ``"data/*.bin"``, or a list of them. Files of a pattern are
            taken in the order of their names. No window crosses from one file to the next.
        seq_len: tokens of a sample.
        format: ``"raw"``, ``"npy"``, ``"llmc"`` (llm.c, modded-nanogpt), ``"megatron"`` (the
            ``.bin`` file; its ``.idx`` lies beside it), ``"datatrove"`` (the ``.ds`` file; its
            ``.ds.index`` lies beside it), or ``"auto"``: told by what is in the file.
        dtype: of the tokens in the files. Raw files do not say it; others do.
        mode: ``"strided"``: window ``k`` of a file begins at token ``k * stride``.
            ``"jittered"``: at ``k * stride`` behind an offset in ``[0, stride)`` that each epoch
            draws. ``"random"``: at any token of any file, drawn for each sample, with replacement;
            an epoch has as many samples as ``seq_len`` goes into all tokens.
        stride: tokens from one window to the next; None: ``seq_len``.
        targets: ``"shift"``: ``y[t]`` is the token after ``x[t]``. ``"same"``: ``y`` is a copy of
            ``x``, for models that shift their labels themselves, as those of Hugging Face do.
            None: ``x`` alone. With ``"shift"`` and a model that shifts, the model learns the token
            after the next, and nothing fails.
        out_dtype: of ``x`` and ``y``: ``torch.int64``, ``torch.int32``; ``torch.uint16`` or
            ``torch.uint32`` for files of such tokens.
        eos_id: the token that ends each document. None: documents end where the index says.
        return_docs: samples are dicts that say where documents begin, see below.
        vocab_size: how many tokens there are. A token that is none of them is an error.
        io: ``"pread"``, ``"mmap"``, or ``"auto"``: chosen for each file.
        seed: of the random numbers of modes ``"random"`` and ``"jittered"``, which are a function
            of (seed, epoch, index). Loaders of fastloop count epochs by themselves; with torch's,
            call ``set_epoch()`` before each.

    Sample ``i`` is ``(x, y)``, each of shape ``[seq_len]``; without targets ``x`` alone. With
    ``return_docs`` it is a dict of tensors of shape ``[seq_len]``: ``input_ids``, ``labels``
    (unless targets is None); ``position_ids`` (int64), which counts from 0 at the begin of the
    window and of each document in it; ``doc_ids`` (int64), which counts the documents of the window
    from 0; ``loss_mask`` (bool), which is False where the target belongs to another document than
    the token it is predicted from. See docs/sequences.md.

    In ``fastloop.DataLoader`` batches are read by C; in ``torch.utils.data.DataLoader`` the dataset
    works too and gives the same batches. A dataset that is sent to a spawned worker opens its files
    there again.

    Raises:
        ValueError: a file that is not of its format, is cut, or is no regular file; arguments that
            do not go together; no file as long as a window. Later: a token that ``vocab_size`` or
            ``out_dtype`` has no room for, with file and place.
        TypeError: arguments of other types.
        OSError: a file that cannot be opened; later, one that cannot be read or has become
            shorter, with file and place; one that has changed before a worker opens it again.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        seq_len: int,
        *,
        format: str = "auto",
        dtype: Any = "auto",
        mode: str = "strided",
        stride: int | None = None,
        targets: str | None = "shift",
        out_dtype: Any = torch.int64,
        eos_id: int | None = None,
        return_docs: bool = False,
        vocab_size: int | None = None,
        io: str = "auto",
        seed: int = 0,
    ) -> None:
        check_choice("format", format, FORMATS)
        name = "auto" if isinstance(dtype, str) and dtype == "auto" else read_dtype(dtype)
        arguments = read_window_arguments(
            seq_len,
            mode=mode,
            stride=stride,
            targets=targets,
            out_dtype=out_dtype,
            eos_id=eos_id,
            return_docs=return_docs,
            vocab_size=vocab_size,
            io=io,
            seed=seed,
        )
        self._begin(arguments, (open_tokens(path, format, name) for path in find_paths(paths)))

    @classmethod
    def from_megatron(
        cls, prefix: str | os.PathLike[str] | Sequence[Any], seq_len: int, **options: Any
    ) -> Self:
        """A dataset over ``prefix.bin`` and ``prefix.idx``, as Megatron's ``IndexedDataset`` names
        them, or over a list of such. Options are those of the class but ``format``."""
        prefixes = prefix if isinstance(prefix, (list, tuple)) else [prefix]
        kinds = str, os.PathLike
        paths: list[Any] = [f"{os.fspath(p)}.bin" if isinstance(p, kinds) else p for p in prefixes]
        return cls(paths, seq_len, format="megatron", **options)

    @classmethod
    def from_buffers(cls, values: Any, offsets: Any, seq_len: int, **options: Any) -> Self:
        """A dataset over tokens in memory, which are not copied.

        Args:
            values: all tokens in one row: an ndarray, a CPU tensor, an Arrow array.
            offsets: int32 or int64, as many as documents and one more: document ``i`` is
                ``values[offsets[i]:offsets[i + 1]]``. Windows go over documents that follow each
                other.
            seq_len: and options: those of the class but ``format`` and ``dtype``.
        """
        for name in ("format", "dtype"):
            if name in options:
                raise TypeError(
                    f"{name}={options[name]!r} is about files, and from_buffers reads arrays, "
                    f"whose dtype says what is in them; leave {name} out"
                )
        self = cls.__new__(cls)
        self._begin(read_window_arguments(seq_len, **options), [take_buffers(values, offsets)])
        return self

    def _begin(self, arguments: WindowArguments, tokens: Iterable[OpenTokens]) -> None:
        self._arguments = arguments
        self._core: Windows | None = None
        self._epoch = None if arguments.mode == "strided" else Epoch()
        with _held() as descriptors:
            taken = _take(descriptors, tokens)
            self._files = tuple(each.file for each in taken)
            check_files(arguments, self._files, [each.ends is not None for each in taken])
            self._open(taken, descriptors)

    def _open(self, taken: Sequence[OpenTokens], descriptors: list[int]) -> Windows:
        keeps_ends = self._arguments.return_docs and self._arguments.eos_id is None
        files = tuple(
            (
                each.file.path,
                each.source,
                each.file.first_byte,
                each.file.tokens,
                each.file.dtype,
                each.ends if keeps_ends else None,
                each.mapped,
            )
            for each in taken
        )
        core = Windows(files, descriptors, **self._arguments._asdict())
        watch(core)
        self._core = core
        return core

    @property
    def _windows(self) -> Windows:
        """In a process that this was sent to, the first use opens the files."""
        if self._core is not None:
            return self._core
        with _held() as descriptors:
            return self._open(_take(descriptors, map(open_again, self._files)), descriptors)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: Any) -> Any:
        return self._as_sample(self._windows.read_one(self._resolve(index), self._epoch_now()))

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        windows = len(self)
        rows = [i if type(i) is int and 0 <= i < windows else self._resolve(i) for i in indices]
        batch = self._windows.read_batch(rows, self._epoch_now())
        return [self._as_sample(each) for each in zip(*(t.unbind(0) for t in batch), strict=True)]

    def _resolve(self, item: Any) -> int:
        try:
            index = operator.index(item)
        except TypeError:
            raise TypeError(
                f"a sample is {item!r}; pass an index. For several, use torch.utils.data.Subset or "
                "a DataLoader"
            ) from None
        windows = len(self)
        if not -windows <= index < windows:
            raise IndexError(f"index {index} is out of range for a dataset of length {windows}")
        return index % windows

    @property
    def _keys(self) -> tuple[str, ...] | None:
        """Of the samples, where they are dicts."""
        if not self._arguments.return_docs:
            return None
        labels = () if self._arguments.targets is None else ("labels",)
        return ("input_ids", *labels, "position_ids", "doc_ids", "loss_mask")

    def _as_sample(self, rows: tuple[torch.Tensor, ...]) -> Any:
        if self._arguments.return_docs:
            assert self._keys is not None
            return dict(zip(self._keys, rows, strict=True))
        return rows if len(rows) > 1 else rows[0]

    @staticmethod
    def cu_seqlens(position_ids: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Where documents begin in a batch, as attention for sequences of different length wants
        it (``flash_attn_varlen_func``): for all rows behind each other.

        On a CUDA device this waits for the device twice.

        Args:
            position_ids: of a batch, ``[B, T]``, or a sample, ``[T]``.

        Returns:
            ``cu_seqlens``, int32 ``[documents + 1]``: 0, and the end of each document;
            ``max_seqlen``, the tokens of the longest.

        Raises:
            TypeError: no tensor.
            ValueError: not one or two dimensions, or a row that does not begin with 0.
        """
        if not isinstance(position_ids, torch.Tensor):
            raise TypeError(
                f"position_ids is a {type(position_ids).__name__}; pass the tensor of a batch"
            )
        if position_ids.ndim not in (1, 2) or bool((position_ids[..., :1] != 0).any()):
            raise ValueError(
                f"position_ids of shape {tuple(position_ids.shape)} must have one or two "
                "dimensions, and each row begin with 0; pass those of a TokenDataset's batch"
            )
        flat = position_ids.reshape(-1)
        begins = (flat == 0).nonzero().view(-1)
        ends = torch.cat([begins, begins.new_tensor([flat.numel()])])
        return ends.to(torch.int32), int(ends.diff().max()) if flat.numel() else 0

    def explain(self) -> str:
        """What the samples are, whose random numbers they have, and a line for each file: format,
        tokens, windows, how it is read."""
        windows, arguments = self._windows, self._arguments
        unit = "begins of windows" if arguments.mode == "random" else "windows"
        lines = [f"{len(windows)} windows: {arguments.describe()}"]
        for file, count, how in zip(self._files, windows.counts, windows.io, strict=True):
            short = "" if count else f": shorter than {arguments.shortest} tokens"
            lines.append(
                f"{file.path}: {file.format}, {file.tokens} tokens of {file.dtype}, {count} {unit}"
                f"{short}, {how}"
            )
        if self._epoch is not None:
            lines.append(f"random numbers: seed {arguments.seed}, {self._epoch.explain()}")
        return "\n".join(lines)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is open. Arrays of the user's go along."""
        return {**self.__dict__, "_core": None}

    def __repr__(self) -> str:
        files, tokens = len(self._files), sum(file.tokens for file in self._files)
        what = self._files[0].path if files == 1 else f"{files} files"
        return f"TokenDataset({what!r}, {tokens} tokens, {self._arguments.describe()})"


@contextmanager
def _held() -> Iterator[list[int]]:
    """A list of descriptors: those that are in it in the end are closed."""
    descriptors: list[int] = []
    try:
        yield descriptors
    finally:
        while descriptors:
            os.close(descriptors.pop())


def _take(descriptors: list[int], tokens: Iterable[OpenTokens]) -> list[OpenTokens]:
    """All of them; their descriptors go into the list, those before an error too."""
    taken = []
    for each in tokens:
        if isinstance(each.source, int):
            descriptors.append(each.source)
        taken.append(each)
    return taken
