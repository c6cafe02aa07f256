"""TokenDataset: windows of tokens from files, as a map-style dataset."""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from fastloop._core import Windows
from fastloop.base import checks
from fastloop.compat.moves import watch
from fastloop.data.columns import Columns, Kernel, Request, check_single
from fastloop.data.epochs import Epoch, EpochDataset
from fastloop.data.field import Array, check_room, read_row
from fastloop.data.sequences.ragged import RaggedArray
from fastloop.data.tokens.files import (
    DTYPES,
    FORMATS,
    TokenFile,
    documents_of,
    expand_paths,
    open_again,
    open_tokens,
    read_dtype,
    take_buffers,
)

# For each dtype of samples, the dtypes of tokens. The core checks that each token of int64 or
# uint32 fits into int32.
_FITTING = {
    "int64": DTYPES,
    "int32": DTYPES,
    "uint16": ("uint8", "uint16"),
    "uint32": ("uint8", "uint16", "uint32"),
}
_MOST = 2**31 - 1  # the largest length, in tokens
_INT64_MAX = 2**63 - 1
_PART = 2**25  # the number of tokens that are sent to a device at a time


@dataclass
class WindowArguments:
    """The arguments of TokenDataset that describe windows; ``Windows`` takes the same arguments.

    Raises:
        TypeError, ValueError: a wrong argument.
    """

    seq_len: int
    mode: str = "strided"
    stride: Any = None  # an int after __post_init__
    targets: str | None = "shift"
    out_dtype: Any = torch.int64  # a name after __post_init__
    eos_id: int | None = None
    return_docs: bool = False
    vocab_size: int | None = None
    io: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        checks.read_choice("mode", self.mode, ("strided", "random", "jittered"))
        checks.read_choice("targets", self.targets, ("shift", "same", None))
        checks.read_choice("io", self.io, ("auto", "pread", "mmap"))
        self.seq_len = checks.read_int("seq_len", self.seq_len, 1, _MOST)
        if self.stride is not None and self.mode == "random":
            raise ValueError(checks.make_message("stride", "None with mode='random'", self.stride))
        self.stride = checks.read_optional_int("stride", self.stride, 1, _MOST) or self.seq_len
        self.vocab_size = checks.read_optional_int("vocab_size", self.vocab_size, 1, _INT64_MAX)
        most = _INT64_MAX if self.vocab_size is None else self.vocab_size - 1
        self.eos_id = checks.read_optional_int("eos_id", self.eos_id, 0, most)
        self.out_dtype = read_dtype("out_dtype", self.out_dtype, tuple(_FITTING))
        self.return_docs = bool(self.return_docs)
        self.seed = checks.read_int("seed", self.seed, 0, 2**64 - 1)

    @property
    def shortest(self) -> int:
        """The number of tokens in the shortest file that has a window."""
        need = self.seq_len + (self.targets == "shift")
        return need + (self.stride - 1 if self.mode == "jittered" else 0)

    def describe(self) -> str:
        """Return a line about the windows, for explain() and repr()."""
        stride = "" if self.mode == "random" else f", one every {self.stride} tokens"
        kind = f"{self.seq_len} tokens of {self.out_dtype}, targets {self.targets}"
        return f"{kind}, {self.mode}{stride}"

    def check_files(self, opened: Sequence[TokenFile]) -> None:
        """Raise a ValueError for files that do not go with the arguments."""
        for file in opened:
            most, whose = int(np.iinfo(file.dtype).max), f"the tokens of {file.path!r}"
            fits = file.dtype in _FITTING[self.out_dtype]
            rule = f"a dtype that holds {file.dtype}, {whose}"
            checks.check_value("out_dtype", self.out_dtype, fits, rule, "pass torch.int64")
            checks.read_optional_int("eos_id", self.eos_id, 0, most, f"{whose} are {file.dtype}")
            if self.return_docs and self.eos_id is None and file.ends is None:
                raise ValueError(
                    "eos_id must be an int with return_docs=True, got None "
                    f"({file.path!r} has no index of documents)"
                )
        longest = max(opened, key=operator.attrgetter("tokens"))
        if longest.tokens < self.shortest:
            rule = f"{self.shortest} tokens for seq_len={self.seq_len}, mode={self.mode!r}"
            got = f"{longest.tokens} in the longest, {longest.path!r} (pass a shorter seq_len)"
            raise ValueError(f"paths must have a file of {rule}, got {got}")


class TokenDataset(EpochDataset):
    """Windows of tokens from one or more files, for language models.

    Args:
        paths: a path, a pattern such as ``"data/*.bin"``, or a list of paths and patterns. The
            files of a pattern are sorted by name. No window crosses from one file to the next.
        seq_len: the number of tokens in a sample.
        format: ``"raw"``, ``"npy"``, ``"llmc"`` (llm.c, modded-nanogpt), ``"megatron"`` (the
            ``.bin`` file, with an ``.idx`` file beside), ``"datatrove"`` (the ``.ds`` file, with a
            ``.ds.index`` file beside), or ``"auto"``: the file's content decides.
        dtype: the dtype of the tokens in the files. Raw files need ``dtype``; in any other format
            the file says it.
        mode: ``"strided"``: window ``k`` of a file begins at token ``k * stride``.
            ``"jittered"``: at ``k * stride`` plus an offset in ``[0, stride)`` that each epoch
            draws. ``"random"``: each window begins at any token of any file, drawn with
            replacement; the number of samples is the number of tokens divided by ``seq_len``.
        stride: the number of tokens from the begin of one window to the next; None: ``seq_len``.
        targets: ``"shift"``: ``y[t]`` is the token after ``x[t]``. ``"same"``: ``y`` is a copy of
            ``x``, for models that shift their labels themselves, for example Hugging Face's. With
            ``"shift"`` such a model would learn the token after the next, without any error. None:
            only ``x``.
        out_dtype: the dtype of ``x`` and ``y``: ``torch.int64`` or ``torch.int32``;
            ``torch.uint16`` or ``torch.uint32`` if this dtype holds the files' tokens.
        eos_id: the token that ends each document. None: the index has the ends of documents.
        return_docs: whether samples are dicts with the bounds of documents, see below.
        vocab_size: the number of different tokens. A token outside of ``[0, vocab_size)`` is then
            an error.
        io: ``"pread"``, ``"mmap"``, or ``"auto"``: chosen for each file.
        seed: the seed of the modes ``"random"`` and ``"jittered"``. Random numbers are a function
            of (seed, epoch, index). fastloop's loaders count epochs; with torch's loader, call
            ``set_epoch()`` before each epoch.

    Sample ``i`` is ``(x, y)``, each with shape ``[seq_len]``; without targets only ``x``. With
    ``return_docs`` sample ``i`` is a dict of tensors with shape ``[seq_len]``: ``input_ids``;
    ``labels`` (unless targets is None); ``position_ids`` (int64), which count from 0 at the begin
    of the window and of each document; ``doc_ids`` (int64), which count the window's documents from
    0; ``loss_mask`` (bool), False if a token and its target belong to different documents. See
    docs/use/text.md.

    For example, ``TokenDataset("data/*.bin", 1024, dtype="uint16")``. ``fastloop.DataLoader`` reads
    whole batches; in ``torch.utils.data.DataLoader`` the dataset gives the same batches. In a
    spawned worker the dataset opens its files again.

    Raises:
        ValueError: a file does not have the format, is truncated, or is not a regular file;
            arguments do not go together; no file is as long as a window. Later: a token that
            ``vocab_size`` or ``out_dtype`` cannot hold, with file and position.
        TypeError: an argument has a wrong type.
        OSError: a file cannot be opened. Later: a file cannot be read or has become shorter, with
            file and position; a file has changed before a worker opens it again.
    """

    # The files' tokens on a device, as signed integers: torch cannot unpickle uint16.
    _tokens: torch.Tensor | None = None
    _dtype = torch.int64  # the tokens' real dtype, for views

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
        checks.read_choice("format", format, FORMATS)
        name = "auto" if isinstance(dtype, str) and dtype == "auto" else read_dtype("dtype", dtype)
        arguments = WindowArguments(
            seq_len, mode, stride, targets, out_dtype, eos_id, return_docs, vocab_size, io, seed
        )
        self._begin(arguments, (open_tokens(path, format, name) for path in expand_paths(paths)))

    @classmethod
    def from_megatron(
        cls, prefix: str | os.PathLike[str] | Sequence[Any], seq_len: int, **options: Any
    ) -> TokenDataset:
        """Make a dataset of ``prefix.bin`` and ``prefix.idx``, the files of Megatron's
        ``IndexedDataset``, or of a list of prefixes. Options: the class's, without ``format``."""
        prefixes: Any = prefix if isinstance(prefix, (list, tuple)) else [prefix]
        paths = [f"{os.fsdecode(each)}.bin" for each in prefixes]
        return cls(paths, seq_len, format="megatron", **options)

    @classmethod
    def from_buffers(cls, values: Any, offsets: Any, seq_len: int, **options: Any) -> TokenDataset:
        """Make a dataset of tokens in memory. The tokens are not copied.

        Args:
            values: all tokens, 1-D without gaps: an ndarray, a CPU tensor, an Arrow array.
            offsets: int32 or int64, ``[documents + 1]``: document ``i`` is
                ``values[offsets[i]:offsets[i + 1]]``. Windows cross from one document to the next.
            seq_len: and options: the class's, without ``format`` and ``dtype``.
        """
        self = cls.__new__(cls)
        self._begin(WindowArguments(seq_len, **options), [take_buffers(values, offsets)])
        return self

    def documents(self) -> RaggedArray:
        """Return the documents in the files, for ``PackedDataset`` or ``MixtureDataset``. The
        tokens are not copied; files stay mapped. Windows do not matter.

        Raises:
            ValueError: there is no ``eos_id``, and a file has no index of documents.
        """
        return documents_of(self._files, self._arguments.eos_id)

    def to(self, device: torch.device | str | int) -> TokenDataset:
        """Return a dataset with the files' tokens on a CUDA device; for ``"cpu"``, a dataset that
        reads the files. The new dataset counts its own epochs.

        ``to`` reads and checks the tokens once, and the device stores them with the narrowest type
        that holds them. Loaders without workers send the begins of windows to the device, and one
        kernel makes the batch.

        Experimental: loaders over data on a GPU have run on a simulated device only, not on a GPU.

        Raises:
            TypeError: return_docs is True, or the device is neither a CUDA device nor the CPU.
            MemoryError: the device has less free memory than the tokens take.
            ValueError: ``vocab_size`` or ``out_dtype`` cannot hold a token.
            OSError: a file cannot be read, or has changed.
        """
        if self._arguments.return_docs:
            remedy = "leave the tokens on the CPU, and pass device= to the loader"
            raise TypeError(f"return_docs must be False for to(), got True ({remedy})")
        device = torch.empty(0, device=device).device
        has_kernels = device.type in ("cpu", "cuda")
        checks.check_type("device", device, has_kernels, "the CPU or a CUDA device")
        made = copy.copy(self)
        made._epoch = self._epoch and Epoch()
        if device.type == "cpu":
            made._tokens = None
        elif made._tokens is None or made._tokens.device != device:
            made._load(device)
        return made

    def _load(self, device: torch.device) -> None:
        windows, counts = self._windows, [file.tokens for file in self._files]
        dtype = self._dtype = windows.read_tokens(0, 0, 0).dtype
        check_room(device, sum(counts) * dtype.itemsize, "the tokens")
        tokens = torch.empty(sum(counts), dtype=dtype, device=device)
        for file, held in enumerate(torch.split(tokens, counts)):
            for i, part in enumerate(torch.split(held, _PART)):
                part.copy_(windows.read_tokens(file, i * _PART, len(part)))
        self._tokens = tokens.view(getattr(torch, f"int{8 * dtype.itemsize}"))

    def _kernel(self) -> Kernel:
        """Return how a device makes windows of the tokens that lie there. An index of the kernel is
        the first token of a window."""
        arguments, windows = self._arguments, self._windows
        tokens = cast(torch.Tensor, self._tokens)
        length, dtype = arguments.seq_len, getattr(torch, arguments.out_dtype)
        parts, shift = 1 if arguments.targets is None else 2, int(arguments.targets == "shift")

        def new(count: int) -> list[torch.Tensor]:
            return [tokens.new_empty((count, length), dtype=dtype) for _ in range(parts)]

        def find(rows: Any, epoch: int) -> Array:
            starts: Array = windows.starts(rows, epoch).numpy()
            return starts

        def gather(starts: Array) -> list[torch.Tensor]:
            rows = torch.stack([tokens[i : i + length + shift] for i in starts.tolist()])
            outs = new(len(rows))
            for first, out in zip((0, shift), outs, strict=False):
                out.copy_(rows.view(self._dtype)[:, first : first + length])
            return outs

        return Kernel((tokens.view(self._dtype), shift), new, find, gather)

    def _begin(self, arguments: WindowArguments, tokens: Iterable[TokenFile]) -> None:
        self._arguments = arguments
        self._epoch = None if arguments.mode == "strided" else Epoch()
        self._open(tokens)

    def _open(self, tokens: Iterable[TokenFile]) -> Windows:
        arguments = self._arguments
        taken: list[TokenFile] = []
        descriptors: list[int] = []  # Windows takes descriptors over and removes them here
        try:
            for each in tokens:
                taken.append(each)
                if isinstance(each.source, int):
                    descriptors.append(each.source)
            arguments.check_files(taken)
            self._files = tuple(one._replace(source=None, ends=None, mapped=None) for one in taken)
            if not arguments.return_docs or arguments.eos_id is not None:
                taken = [each._replace(ends=None) for each in taken]
            files = tuple(each[: TokenFile._fields.index("format")] for each in taken)
            core = Windows(files, descriptors, **vars(arguments))
        finally:
            while descriptors:
                os.close(descriptors.pop())
        watch(core)
        self._core: Windows | None = core
        return core

    @property
    def _windows(self) -> Windows:
        """The core's windows. A copy in a second process opens the files at its first use."""
        core = self._core
        return self._open(map(open_again, self._files)) if core is None else core

    def _columns(self, request: Request) -> Columns:
        check_single(request, "TokenDataset", gives_views=False)
        names: Any = dict.fromkeys(self._keys) if self._keys else (None,) * 2
        if not self._keys and self._arguments.targets is None:
            names = None  # a sample is one tensor
        columns = Columns(names, kind="windows of tokens", gives_views=False)
        if self._tokens is None:
            return columns.add("tokens", self._windows)
        columns.device = self._tokens.device
        columns.kind = f"tensors on {columns.device}"
        return columns.add("tokens", self._windows, kernel=self._kernel())

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: Any) -> Any:
        row = read_row(index, len(self))
        if self._tokens is not None:
            return self._read([row])[0]
        return self._as_sample(self._windows.read_one(row, self._epoch_now()))

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        if self._has_own_samples(TokenDataset):
            return [self[index] for index in indices]
        windows = len(self)
        rows = [i if type(i) is int and 0 <= i < windows else read_row(i, windows) for i in indices]
        return self._read(rows)

    def _read(self, rows: list[int]) -> list[Any]:
        if self._tokens is None:
            batch: Sequence[Any] = self._windows.read_batch(rows, self._epoch_now())
        else:
            kernel = self._kernel()
            batch = kernel.gather(kernel.find(rows, self._epoch_now())) if rows else []
        return [self._as_sample(each) for each in zip(*(t.unbind(0) for t in batch), strict=True)]

    @property
    def _keys(self) -> tuple[str, ...] | None:
        """The keys of samples, or None if samples are tensors."""
        if not self._arguments.return_docs:
            return None
        labels = () if self._arguments.targets is None else ("labels",)
        return ("input_ids", *labels, "position_ids", "doc_ids", "loss_mask")

    def _as_sample(self, rows: tuple[torch.Tensor, ...]) -> Any:
        keys = self._keys
        if keys is not None:
            return dict(zip(keys, rows, strict=True))
        return rows if len(rows) > 1 else rows[0]

    @staticmethod
    def cu_seqlens(position_ids: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the bounds of documents in a batch, counted through all rows: the arguments of
        attention for sequences of different lengths (``flash_attn_varlen_func``).

        SYNC: on a CUDA device this function waits for the device twice.

        Args:
            position_ids: a batch's, ``[B, T]``, or a sample's, ``[T]``.

        Returns:
            ``cu_seqlens``, int32 ``[documents + 1]``: 0, and the end of each document;
            ``max_seqlen``, the number of tokens in the longest document.

        Raises:
            ValueError: position_ids does not have one or two dimensions, or a row does not begin
                with 0.
        """
        if position_ids.ndim not in (1, 2) or bool((position_ids[..., :1] != 0).any()):
            rule, shape = "[T] or [B, T] and begin each row with 0", tuple(position_ids.shape)
            raise ValueError(f"position_ids must be {rule}, got shape {shape}")
        flat = position_ids.reshape(-1)
        begins = (flat == 0).nonzero().view(-1)
        ends = torch.cat([begins, begins.new_tensor([flat.numel()])])
        return ends.to(torch.int32), int(ends.diff().max()) if flat.numel() else 0

    def explain(self) -> str:
        """Return a text about the samples and their random numbers, with a line for each file:
        format, tokens, windows, way of reading."""
        windows, arguments = self._windows, self._arguments
        unit = "begins of windows" if arguments.mode == "random" else "windows"
        lines = [f"{len(windows)} windows: {arguments.describe()}"]
        ways = windows.io
        if self._tokens is not None:
            ways = (f"on {self._tokens.device} as {str(self._dtype)[6:]}",) * len(ways)
        for file, count, way in zip(self._files, windows.counts, ways, strict=True):
            short = "" if count else f": shorter than {arguments.shortest} tokens"
            tokens = f"{file.tokens} tokens of {file.dtype}"
            lines.append(f"{file.path}: {file.format}, {tokens}, {count} {unit}{short}, {way}")
        if self._epoch is not None:
            lines.append(f"random numbers: seed {arguments.seed}, {self._epoch.explain()}")
        return "\n".join(lines)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the user's arrays, and no open files."""
        return {**self.__dict__, "_core": None}

    def __repr__(self) -> str:
        files, tokens = len(self._files), sum(file.tokens for file in self._files)
        what = self._files[0].path if files == 1 else f"{files} files"
        return f"TokenDataset({what!r}, {tokens} tokens, {self._arguments.describe()})"
