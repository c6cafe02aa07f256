"""TokenDataset: windows of tokens from files, as a map-style dataset.

First the files: their names, headers and indices, and whether they are still the same. A format is
told by content and by the index beside a file, never by a suffix alone. C knows the layouts of
headers and indices, NumPy that of .npy.
"""

from __future__ import annotations

import copy
import errno
import glob
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import torch

from fastloop._core import Windows, token_header, token_index
from fastloop.base import checks
from fastloop.compat.moves import are_noticed, watch
from fastloop.data.columns import Columns, Request, check_single
from fastloop.data.epochs import Epoch, EpochDataset
from fastloop.data.field import (
    Array,
    Field,
    MappedFile,
    check_room,
    open_regular,
    read_npy_header,
    read_row,
)
from fastloop.data.sequences.ragged import RaggedArray

FORMATS = ("auto", "raw", "npy", "llmc", "megatron", "datatrove")
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")
_HEADER_BYTES = 1024
_NPY = b"\x93NUMPY"
# How tokens with an index are recognised: format, suffix of the tokens, begin of the index.
_INDEXED = (("datatrove", ".ds", b""), ("megatron", ".bin", b"MMIDIDX"))
_DATATROVE_BESIDE = (".ds.index", ".ds.metadata", ".ds.loss")  # written beside "x.ds"
# The dtypes of tokens that each dtype of samples can hold. C checks whether each token of int64
# or uint32 fits int32.
_FITTING = {
    "int64": DTYPES,
    "int32": DTYPES,
    "uint16": ("uint8", "uint16"),
    "uint32": ("uint8", "uint16", "uint32"),
}
_MOST = 2**31 - 1  # of lengths, in tokens
_INT64_MAX = 2**63 - 1
_PART = 2**25  # tokens that are sent to a device at a time

Identity = tuple[int, int]  # size in bytes, time of the last change in ns


# ---- files


class TokenFile(NamedTuple):
    """A file from which windows are read, or arrays of the user in place of one. ``Windows`` in C
    takes the parts up to ``mapped``."""

    path: str  # of arrays, their name in errors
    # The function that gets a descriptor must close it. None: not open.
    source: int | Array | torch.Tensor | None
    first_byte: int
    tokens: int
    dtype: str
    ends: np.ndarray[Any, np.dtype[np.int64]] | None  # of documents, in tokens, if it says them
    mapped: MappedFile | None  # in which the array lies; it may become shorter
    format: str
    identities: dict[str, Identity]  # of the file, and of an index that says where documents end
    buffers: tuple[Any, Any] | None = None  # values and offsets as the user gave them


def read_dtype(name: str, dtype: Any, known: Sequence[str] = DTYPES) -> str:
    """Return the name of a dtype of NumPy or torch that must be one of ``known``."""
    is_torchs = isinstance(dtype, torch.dtype)
    try:
        found = np.dtype(str(dtype).removeprefix("torch.") if is_torchs else dtype)
    except TypeError:
        found = np.dtype(object)
    is_known = found.name in known and found.isnative
    checks.check_value(name, dtype, is_known, f"one of {', '.join(known)}")
    return found.name


def expand_paths(paths: Any) -> list[str]:
    """Return the absolute paths of a path, a pattern or a list of these. Files of a pattern come in
    the order of their names."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    rule = "a path, a pattern such as 'data/*.bin', or a list of at least one of these"
    checks.check_type("paths", paths, checks.is_sequence(paths), rule)
    checks.check_value("paths", paths, len(paths) > 0, rule)
    expanded: list[str] = []
    for given in paths:
        path = os.path.abspath(os.fsdecode(given))
        is_pattern = glob.has_magic(path) and not os.path.exists(path)
        found = sorted(glob.glob(path, recursive=True)) if is_pattern else [path]
        if not found:
            raise FileNotFoundError(errno.ENOENT, "No file has a name like this", path)
        expanded += found
    return expanded


def open_tokens(path: str, format: str, dtype: str) -> TokenFile:
    """Open a file and read its layout. Raise ValueError or OSError, which name it."""
    with open_regular(path, "paths", "write the tokens to a file, or use from_buffers") as opened:
        state = os.fstat(opened.fileno())
        head = os.pread(opened.fileno(), _HEADER_BYTES, 0)
        if format == "auto":
            format = _detect_format(path, head)
        ends, identities, read = None, {path: _identity(state)}, path
        try:
            if format == "npy":
                dtype, first, tokens = _read_npy(opened, state.st_size, dtype)
            elif format in ("megatron", "datatrove"):
                if format == "megatron" and not path.endswith(".bin"):
                    raise ValueError("must end with .bin (pass the .bin file of a Megatron index)")
                read = _index_of(path, format)
                with open_regular(read, "index", "write the index again") as file:
                    identities[read] = _identity(os.fstat(file.fileno()))
                    layout, ends = token_index(file.read(), state.st_size, format, dtype)
                dtype, first, tokens = layout
            else:
                dtype, first, tokens = token_header(head, state.st_size, format, dtype)
                if format == "auto":
                    format = "llmc" if first else "raw"
        except ValueError as error:
            raise ValueError(f"{read!r} {error}") from None
        source = os.dup(opened.fileno())
        return TokenFile(path, source, first, tokens, dtype, ends, None, format, identities)


def _detect_format(path: str, head: bytes) -> str:
    if head.startswith(_NPY):
        return "npy"
    if path.endswith(_DATATROVE_BESIDE):
        tokens = path[: path.rindex(".")]
        raise ValueError(f"{path!r} is not tokens but what datatrove writes beside {tokens!r}")
    for format, suffix, begin in _INDEXED:
        if path.endswith(suffix) and os.path.isfile(index := _index_of(path, format)):
            with open(index, "rb") as file:
                if file.read(len(begin)) == begin:
                    return format
    return "auto"


def _index_of(path: str, format: str) -> str:
    return f"{path}.index" if format == "datatrove" else f"{path.removesuffix('.bin')}.idx"


def _read_npy(opened: BinaryIO, file_bytes: int, dtype: str) -> tuple[str, int, int]:
    try:
        shape, _, found = read_npy_header(opened)
    except OSError:
        raise
    except Exception as error:  # NumPy's reader raises many types
        raise ValueError(f"cannot be opened as a .npy file: {error}") from None
    known = DTYPES if dtype == "auto" else (dtype,)
    if found.name not in known or not found.isnative:
        raise ValueError(f"must have a dtype of {', '.join(known)}, got {found}")
    if len(shape) != 1 or shape[0] == 0:
        raise ValueError(f"must be a vector of tokens, got shape {shape}")
    first, tokens = opened.tell(), shape[0]
    rule, got = f"{tokens} tokens of {found.itemsize} bytes, as its header says", file_bytes - first
    checks.refuse_if(got != tokens * found.itemsize, f"must have {rule}, got {got} bytes")
    return found.name, first, tokens


def open_again(file: TokenFile) -> TokenFile:
    """Open a file that was open before, maybe in another process. Raise OSError if it changed."""
    if file.buffers is not None:
        return take_buffers(*file.buffers)
    for path, was in file.identities.items():
        now = _identity(os.stat(path))
        if now != was:
            before, after = (f"{size} bytes, written at {ns} ns" for size, ns in (was, now))
            text = f"The file has changed since the dataset was made: it had {before}, and has"
            raise OSError(errno.ESTALE, f"{text} {after}; make the dataset again", path)
    return open_tokens(file.path, file.format, file.dtype)


def _identity(state: os.stat_result) -> Identity:
    return state.st_size, state.st_mtime_ns


def take_buffers(values: Any, offsets: Any) -> TokenFile:
    """Return tokens in memory, of documents ``values[offsets[i]:offsets[i + 1]]``."""
    ragged = RaggedArray(Field("values", _from_arrow(values)).source, _from_arrow(offsets))
    source, bounds = ragged.values, ragged.offsets.astype(np.int64)
    array = source.detach().numpy() if isinstance(source, torch.Tensor) else source
    dtype = array.dtype.name
    if dtype not in DTYPES:
        raise TypeError(f"values must have a dtype of {', '.join(DTYPES)}, got {dtype}")
    if not array.flags.c_contiguous:
        raise ValueError("values must have no gaps (pass numpy.ascontiguousarray(values))")
    begin, end = int(bounds[0]), int(bounds[-1])
    checks.refuse_if(begin == end, "offsets must hold at least one token, got none")
    if isinstance(source, torch.Tensor):
        # torch may move the memory of a tensor, and must then tell; a copy is never moved.
        source = source.detach().as_subclass(torch.Tensor) if are_noticed() else array.copy()
    place = "values", source, begin * array.itemsize, end - begin, dtype, bounds[1:] - begin
    return TokenFile(*place, ragged.file, "buffers", {}, (values, offsets))


def _from_arrow(array: Any) -> Any:
    """View an array of Arrow as NumPy's; return any other value."""
    is_known = isinstance(array, (np.ndarray, torch.Tensor)) or not hasattr(array, "__array__")
    return array if is_known else np.asarray(array)


# ---- windows


@dataclass
class WindowArguments:
    """The arguments of TokenDataset that say what its windows are; ``Windows`` in C takes the same.

    Raises:
        TypeError, ValueError: an argument that cannot be.
    """

    seq_len: int
    mode: str = "strided"
    stride: Any = None  # once read, an int
    targets: str | None = "shift"
    out_dtype: Any = torch.int64  # once read, a name
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
        is_right = self.stride is None or self.mode != "random"
        checks.check_value("stride", self.stride, is_right, "None with mode='random'")
        self.stride = checks.read_optional_int("stride", self.stride, 1, _MOST) or self.seq_len
        self.vocab_size = checks.read_optional_int("vocab_size", self.vocab_size, 1, _INT64_MAX)
        most = _INT64_MAX if self.vocab_size is None else self.vocab_size - 1
        self.eos_id = checks.read_optional_int("eos_id", self.eos_id, 0, most)
        self.out_dtype = read_dtype("out_dtype", self.out_dtype, tuple(_FITTING))
        self.return_docs = bool(self.return_docs)
        self.seed = checks.read_int("seed", self.seed, 0, 2**64 - 1)

    @property
    def shortest(self) -> int:
        """The tokens of the shortest file that has a window."""
        need = self.seq_len + (self.targets == "shift")
        return need + (self.stride - 1 if self.mode == "jittered" else 0)

    def describe(self) -> str:
        """Return a line about the windows, for people."""
        stride = "" if self.mode == "random" else f", one every {self.stride} tokens"
        kind = f"{self.seq_len} tokens of {self.out_dtype}, targets {self.targets}"
        return f"{kind}, {self.mode}{stride}"

    def check_files(self, opened: Sequence[TokenFile]) -> None:
        """Refuse files that do not go with the arguments, by a ValueError."""
        for file in opened:
            most, whose = int(np.iinfo(file.dtype).max), f"the tokens of {file.path!r}"
            fits = file.dtype in _FITTING[self.out_dtype]
            rule = f"a dtype that holds {file.dtype}, {whose}"
            checks.check_value("out_dtype", self.out_dtype, fits, rule, "pass torch.int64")
            checks.read_optional_int("eos_id", self.eos_id, 0, most, f"{whose} are {file.dtype}")
            reason = f"because {file.path!r} has no index of documents"
            is_unknown = self.return_docs and self.eos_id is None and file.ends is None
            checks.refuse_if(is_unknown, f"eos_id must be given with return_docs=True, {reason}")
        longest = max(opened, key=operator.attrgetter("tokens"))
        if longest.tokens < self.shortest:
            rule = f"{self.shortest} tokens for seq_len={self.seq_len}, mode={self.mode!r}"
            got = f"{longest.tokens} in the longest, {longest.path!r} (pass a shorter seq_len)"
            raise ValueError(f"paths must have a file of {rule}, got {got}")


class TokenDataset(EpochDataset):
    """Windows of tokens from one or more files, for language models.

    Args:
        paths: a path, a pattern such as ``"data/*.bin"``, or a list of these. Files of a pattern
            come in the order of their names. No window crosses from one file to the next.
        seq_len: the tokens of a sample.
        format: ``"raw"``, ``"npy"``, ``"llmc"`` (llm.c, modded-nanogpt), ``"megatron"`` (the
            ``.bin`` file; its ``.idx`` lies beside it), ``"datatrove"`` (the ``.ds`` file; its
            ``.ds.index`` lies beside it), or ``"auto"``: told by the content of the file.
        dtype: of the tokens in the files. Raw files need it; the other formats say it.
        mode: ``"strided"``: window ``k`` of a file begins at token ``k * stride``.
            ``"jittered"``: at ``k * stride`` plus an offset in ``[0, stride)`` that each epoch
            draws. ``"random"``: each window begins at any token of any file, drawn with
            replacement; the number of samples is that of all tokens divided by ``seq_len``.
        stride: the tokens from the begin of one window to the next; None: ``seq_len``.
        targets: ``"shift"``: ``y[t]`` is the token after ``x[t]``. ``"same"``: ``y`` is a copy of
            ``x``, for models that shift their labels themselves, as those of Hugging Face do.
            None: ``x`` alone. Such a model with ``"shift"`` would learn the token after the next,
            without any error.
        out_dtype: of ``x`` and ``y``: ``torch.int64`` or ``torch.int32``; ``torch.uint16`` or
            ``torch.uint32`` if these hold the tokens of the files.
        eos_id: the token that ends each document. None: the index says where documents end.
        return_docs: whether samples are dicts that say where documents begin, see below.
        vocab_size: the number of different tokens; a token outside of ``[0, vocab_size)`` is then
            an error.
        io: ``"pread"``, ``"mmap"``, or ``"auto"``: chosen for each file.
        seed: of the random numbers of the modes ``"random"`` and ``"jittered"``, which are a
            function of (seed, epoch, index). Loaders of fastloop count epochs; with a loader of
            torch, call ``set_epoch()`` before each.

    Sample ``i`` is ``(x, y)``, each of shape ``[seq_len]``; without targets ``x`` alone. With
    ``return_docs`` it is a dict of tensors of shape ``[seq_len]``: ``input_ids``, ``labels``
    (unless targets is None); ``position_ids`` (int64), which counts from 0 at the begin of the
    window and of each document in it; ``doc_ids`` (int64), which counts the documents of the window
    from 0; ``loss_mask`` (bool), which is False where the target belongs to another document than
    the token it is predicted from. See docs/use/text.md.

    In ``fastloop.DataLoader`` C reads the batches; in ``torch.utils.data.DataLoader`` the dataset
    gives the same batches. In a spawned worker the dataset opens its files again.

    Raises:
        ValueError: a file that has another format, is cut, or is not a regular file; arguments
            that do not go together; no file as long as a window. Later: a token that
            ``vocab_size`` or ``out_dtype`` cannot hold, with file and place.
        TypeError: an argument of another type.
        OSError: a file that cannot be opened; later, one that cannot be read or has become
            shorter, with file and place; one that has changed before a worker opens it again.
    """

    # Of all files, on a device, as signed integers: torch cannot unpickle uint16.
    _tokens: torch.Tensor | None = None
    _dtype = torch.int64  # the type that they are views of

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
        ``IndexedDataset``, or of a list of such. Options are those of the class but ``format``."""
        prefixes: Any = prefix if isinstance(prefix, (list, tuple)) else [prefix]
        paths = [f"{os.fsdecode(each)}.bin" for each in prefixes]
        return cls(paths, seq_len, format="megatron", **options)

    @classmethod
    def from_buffers(cls, values: Any, offsets: Any, seq_len: int, **options: Any) -> TokenDataset:
        """Make a dataset of tokens in memory, which are not copied.

        Args:
            values: all tokens, 1-D without gaps: an ndarray, a CPU tensor, an Arrow array.
            offsets: int32 or int64, ``[documents + 1]``: document ``i`` is
                ``values[offsets[i]:offsets[i + 1]]``. Windows cross from one document to the next.
            seq_len: and options: those of the class but ``format`` and ``dtype``.
        """
        self = cls.__new__(cls)
        self._begin(WindowArguments(seq_len, **options), [take_buffers(values, offsets)])
        return self

    def to(self, device: torch.device | str | int) -> TokenDataset:
        """Return a dataset with the tokens of all files on a CUDA device; for ``"cpu"``, one that
        reads the files. It counts epochs of its own.

        All tokens are read and checked here, once, and lie there as the narrowest type that holds
        them. Loaders without workers send the device the places where windows begin, and one
        kernel makes the batch.

        Experimental: loaders over data on a GPU have run on a simulated device only, not on a GPU.

        Raises:
            TypeError: return_docs is True, or another kind of device.
            MemoryError: the device has less free memory than the tokens take.
            ValueError: a token that ``vocab_size`` or ``out_dtype`` cannot hold, wherever it is.
            OSError: a file that cannot be read, or has changed.
        """
        if self._arguments.return_docs:
            remedy = "leave the tokens on the CPU, and pass device= to the loader"
            raise TypeError(f"to() takes no dataset with return_docs=True ({remedy})")
        device = torch.empty(0, device=device).device
        checks.check_type("device", device, device.type in ("cpu", "cuda"), "a CUDA device or cpu")
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

    def _resident(self) -> tuple[tuple[Any], Callable[[int], list[Any]], int]:
        """Return the tokens on the device, a function that makes the tensors of a batch of so many
        windows there, and how many tokens y begins behind x."""
        arguments, tokens = self._arguments, cast(torch.Tensor, self._tokens)
        length, dtype = arguments.seq_len, getattr(torch, arguments.out_dtype)
        parts = 1 if arguments.targets is None else 2

        def make(count: int) -> list[torch.Tensor]:
            return [tokens.new_empty((count, length), dtype=dtype) for _ in range(parts)]

        return (tokens.view(self._dtype),), make, int(arguments.targets == "shift")

    def _gather(self, starts: Array) -> list[torch.Tensor]:
        """Return x, and y if there are targets, of windows on the device that begin at these
        tokens. Nothing waits for the device."""
        tokens, length = cast(torch.Tensor, self._tokens), self._arguments.seq_len
        _, make, shift = self._resident()
        rows = torch.stack([tokens[i : i + length + shift] for i in starts.tolist()])
        outs = make(len(rows))
        for first, out in zip((0, shift), outs, strict=False):
            out.copy_(rows.view(self._dtype)[:, first : first + length])
        return outs

    def _begin(self, arguments: WindowArguments, tokens: Iterable[TokenFile]) -> None:
        self._arguments = arguments
        self._epoch = None if arguments.mode == "strided" else Epoch()
        self._open(tokens)

    def _open(self, tokens: Iterable[TokenFile]) -> Windows:
        arguments = self._arguments
        taken: list[TokenFile] = []
        descriptors: list[int] = []  # Windows empties the list as it takes them over
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
        """The windows in C. A copy in another process opens the files at its first use."""
        core = self._core
        return self._open(map(open_again, self._files)) if core is None else core

    def _columns(self, request: Request) -> Columns:
        check_single(request, "TokenDataset", gives_views=False)
        is_alone = self._keys is None and self._arguments.targets is None
        names = dict.fromkeys(self._keys) if self._keys else (None,) * 2
        columns = Columns(None if is_alone else names, kind="windows of tokens", gives_views=False)
        if self._tokens is not None:
            columns.device = self._tokens.device
            columns.kind = f"tensors on {columns.device}"
        return columns.add("tokens", self._windows)

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
            starts = self._windows.starts(rows, self._epoch_now()).numpy()
            batch = self._gather(starts) if rows else []
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
        """Return where documents begin in a batch, with its rows laid end to end: the arguments
        of attention for sequences of different length (``flash_attn_varlen_func``).

        SYNC: on a CUDA device this waits for the device twice.

        Args:
            position_ids: of a batch, ``[B, T]``, or a sample, ``[T]``.

        Returns:
            ``cu_seqlens``, int32 ``[documents + 1]``: 0, and the end of each document;
            ``max_seqlen``, the tokens of the longest.

        Raises:
            ValueError: not one or two dimensions, or a row that does not begin with 0.
        """
        if position_ids.ndim not in (1, 2) or bool((position_ids[..., :1] != 0).any()):
            rule, shape = "[T] or [B, T] and begin each row with 0", tuple(position_ids.shape)
            raise ValueError(f"position_ids must be {rule}, got shape {shape}")
        flat = position_ids.reshape(-1)
        begins = (flat == 0).nonzero().view(-1)
        ends = torch.cat([begins, begins.new_tensor([flat.numel()])])
        return ends.to(torch.int32), int(ends.diff().max()) if flat.numel() else 0

    def explain(self) -> str:
        """Return text on the samples and their random numbers, and a line for each file: format,
        tokens, windows, how it is read."""
        windows, arguments = self._windows, self._arguments
        unit = "begins of windows" if arguments.mode == "random" else "windows"
        lines = [f"{len(windows)} windows: {arguments.describe()}"]
        hows = windows.io
        if self._tokens is not None:
            hows = (f"on {self._tokens.device} as {str(self._dtype)[6:]}",) * len(hows)
        for file, count, how in zip(self._files, windows.counts, hows, strict=True):
            short = "" if count else f": shorter than {arguments.shortest} tokens"
            tokens = f"{file.tokens} tokens of {file.dtype}"
            lines.append(f"{file.path}: {file.format}, {tokens}, {count} {unit}{short}, {how}")
        if self._epoch is not None:
            lines.append(f"random numbers: seed {arguments.seed}, {self._epoch.explain()}")
        return "\n".join(lines)

    def __getstate__(self) -> dict[str, Any]:
        """Open files stay behind; arrays of the user go along."""
        return {**self.__dict__, "_core": None}

    def __repr__(self) -> str:
        files, tokens = len(self._files), sum(file.tokens for file in self._files)
        what = self._files[0].path if files == 1 else f"{files} files"
        return f"TokenDataset({what!r}, {tokens} tokens, {self._arguments.describe()})"
