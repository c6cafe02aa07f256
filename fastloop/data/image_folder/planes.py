"""Decoded JPEG files in one file that workers, ranks and runs share.

docs/internals/image-cache.md describes the file and says when an image counts as the same.
"""

from __future__ import annotations

import functools
import io
import os
import re
import time
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from fastloop._core import ImageCache, YccImage
from fastloop.base.checks import make_message, refuse_if
from fastloop.base.once import make_once, write_whole
from fastloop.compat.decoded import decoded
from fastloop.data.field import Array
from fastloop.data.image_folder.decode import find_module
from fastloop.data.image_folder.jpeg import find_jpeg
from fastloop.data.transforms.ops import ToDtype
from fastloop.data.transforms.split import Piece, SplitPlan

_VARIABLE = "FASTLOOP_IMAGES"
_FILE, _UNFINISHED, _LOCK = "images", "images-unfinished", "images-lock"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT])(?:i?B)?", re.IGNORECASE)
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_RULE = "a size such as '8G', of at least 64K, or a folder"
_CHECKED = 4  # images of a process; later one of 64
# A file that changes twice within one tick of its file system's clock keeps its time.
_YOUNG_NS = 2 * 10**9
_NONE, _FULL, _HALF = range(3)  # fl_ycc.chroma


def parse_cache(text: str) -> tuple[int | None, str]:
    """Return the bytes, None if not given, and the folder that a size or a folder stands for."""
    size = _SIZE.fullmatch(text)
    budget = int(float(size[1]) * _UNITS[size[2].upper()]) if size else None
    if budget is not None and budget < 2**16:
        raise ValueError(make_message("cache", _RULE, text))
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.path.join(base, "fastloop", "images") if size or not text else text
    return budget, os.path.abspath(os.path.expanduser(folder))


def _read_boot() -> bytes:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return bytes.fromhex(file.read().strip().replace("-", ""))


def _open_file(folder: str, budget: int | None) -> ImageCache:
    """Open the file of a folder. If there is none, or one that is smaller than the budget or older
    than the machine's start, make a new file."""
    path, boot = os.path.join(folder, _FILE), _read_boot()
    os.makedirs(folder, 0o700, exist_ok=True)

    def find() -> ImageCache | None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            if os.fstat(fd).st_uid != os.geteuid():
                return None  # another user may have written anything
            found = ImageCache(fd, 2**62 if budget is None else budget, boot)
        except ValueError:
            return None
        finally:
            os.close(fd)
        return found if budget is None or budget <= found.size else None

    def make() -> ImageCache:
        disk = os.statvfs(folder)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        most = min(memory, disk.f_bavail * disk.f_frsize) // 2
        size = max(most, 2**16) if budget is None else budget
        head, front = ImageCache.format(size, boot)

        def write(unfinished: str) -> ImageCache:
            # Another user who may write to the folder may have put a link there meanwhile.
            fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, front)  # a full disk is an error now, and no SIGBUS later
                os.pwrite(fd, head, 0)
                os.truncate(fd, size)
                return ImageCache(fd, size, boot)
            finally:
                os.close(fd)

        return write_whole(path, write, os.path.join(folder, _UNFINISHED))

    return make_once(os.path.join(folder, _LOCK), find, make)


@functools.cache
def _plan() -> SplitPlan:
    return SplitPlan((Piece((ToDtype(torch.uint8),), ()),), (0, 0, 3), "HWC", "HWC", 0)


def to_array(image: YccImage) -> Array:
    """Return the image as an array [height, width, 3]."""
    array: Array = _plan().apply(image, 0).numpy()
    return array


class ImagePlanes:
    """The planes of JPEG files.

    A file's image is what Pillow makes of the file, bit for bit, or is not kept.

    Args:
        argument: a size, a folder, or "" for the defaults: half of the memory or of the disk's
            free space, in ~/.cache/fastloop/images.

    Raises:
        ImportError: Pillow is not installed.
        OSError: the folder cannot be read or written, or its disk is full.
        ValueError: a size is too small, or the folder is on a disk that machines share.
    """

    def __init__(self, argument: str) -> None:
        budget, self.folder = parse_cache(argument)
        self.argument = self.folder if budget is None else argument  # in any working directory
        self._pil: Any = find_module("PIL.JpegImagePlugin")
        if self._pil is None:
            raise ImportError("a cache of images needs Pillow; run: pip install fastloop[images]")
        self._file = _open_file(self.folder, budget)
        self._room = min(self._file.size, budget or self._file.size)
        core = self._pil.Image.core
        turbo = getattr(core, "libjpeg_turbo_version", "")
        self._decoder = f"{self._pil.Image.__version__} {core.jpeglib_version} {turbo}"
        self._is_full = False
        self._made = 0
        self.why = ""  # the reason why no more images are kept

    def __reduce__(self) -> tuple[type[ImagePlanes], tuple[str]]:
        return ImagePlanes, (self.argument,)

    def read(self, path: str, status: os.stat_result | None = None) -> YccImage | None:
        """Return the image of a file. If it is not kept yet, decode and keep it. None: the file is
        no JPEG file, or there is no room, or Pillow says what is wrong with it.

        Args:
            status: of the file, if the caller has opened it.
        """
        try:
            status = status or os.stat(path)
        except (OSError, ValueError):
            return None
        key = self._key(path, status)
        found = self._file.find(key)
        changed = max(status.st_mtime_ns, status.st_ctime_ns)
        if found or self._is_full or self.why or time.time_ns() - changed < _YOUNG_NS:
            return found
        try:
            made = self._decode(path, key)
        except Exception:  # the caller's decoder raises what the user reads
            return None
        if made is not None and not self._file.put(key, made):
            self._is_full, decoded.full = True, self._describe_full()
        return made

    def _key(self, path: str, status: os.stat_result) -> bytes:
        times = status.st_mtime_ns, status.st_ctime_ns
        text = f"{path!r} {status.st_dev} {status.st_ino} {status.st_size} {times} {self._decoder}"
        return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()

    def _decode(self, path: str, key: bytes) -> YccImage | None:
        with open(path, "rb") as file:
            data = file.read()
            if key != self._key(path, os.fstat(file.fileno())):
                return None  # it has changed
        if not data.startswith(b"\xff\xd8\xff") or self._pil.ImageFile.LOAD_TRUNCATED_IMAGES:
            return None
        image = self._open(data)
        if type(image) is not self._pil.JpegImageFile or image.mode not in ("L", "RGB"):
            return None
        made = self._decode_once(data) or YccImage(*self._planes(image, data))
        self._made += 1
        if self._made <= _CHECKED or self._made % 64 == 0:
            expected = np.asarray(self._open(data).convert("RGB"))
            if not np.array_equal(to_array(made), expected):
                self.why = "Pillow's planes do not make Pillow's images"
                return None
        return made

    def _decode_once(self, data: bytes) -> YccImage | None:
        jpeg = find_jpeg()
        image = None if jpeg is None else jpeg.open(data)
        with suppress(ValueError):  # libjpeg refuses the file
            return image and image.planes()
        return None

    def _open(self, data: bytes) -> Any:
        return self._pil.Image.open(io.BytesIO(data))

    def _planes(self, image: Any, data: bytes) -> tuple[bytes, int, int, int]:
        """Return the planes, the height, the width and the kind of chroma, by Pillow.

        At half the size libjpeg does not enlarge the Cb and Cr of a 4:2:0 file. So one more
        decoding gives planes of half the bytes. Other files have planes of the image's size.
        """
        width, height = image.size
        factors = [layer[1:3] for layer in image.layer]
        chroma = _FULL if image.mode == "RGB" else _NONE
        if factors == [(2, 2), (1, 1), (1, 1)] and width > 4 and height > 1:
            half = self._open(data)
            half.draft("YCbCr", (width // 2, height // 2))
            image.draft("L", image.size)
            colors, chroma = half, _HALF
            parts = [image, half.getchannel(1), half.getchannel(2)]
        else:
            image.draft("YCbCr", image.size)  # does nothing to a grey file
            colors, parts = image, image.split()
        refuse_if(colors.mode != "YCbCr" and chroma != _NONE, "Pillow does not show the planes")
        return b"".join(part.tobytes() for part in parts), height, width, chroma

    def _describe_full(self) -> str:
        used, room, size = (n / 2**20 for n in (self._file.used, self._room, self._file.size))
        remedy = f"a size above {size:,.0f} MiB makes a new file"
        if room < size:
            remedy = f"without a size it fills its file of {size:,.0f} MiB"
        told = f"the cache in {self.folder!r} is full ({used:,.0f} of {room:,.0f} MiB)"
        return f"{told}, so other JPEG files are decoded each time; {remedy}"

    def explain(self) -> str:
        """Return a line: the folder, and how full the file is."""
        used, size = self._file.used / 2**20, self._file.size / 2**20
        why = f"; {self.why}, so no more are kept" if self.why else ""
        why = f"; {self._describe_full()}" if self._is_full else why
        where = f"cache: planes of JPEG files in {self.folder!r}"
        return f"{where}, {used:,.0f} of {size:,.0f} MiB{why}"


_open_once = functools.cache(ImagePlanes)


def ask(argument: str) -> None:
    """Keep the images that Pillow decodes for torchvision's datasets, in this process and in
    processes that it starts. Raises what ``ImagePlanes`` raises."""
    os.environ[_VARIABLE] = _open_once(argument).argument


def find_asked() -> ImagePlanes | None:
    """Return the planes that ``ask`` has been called for, or None. Planes that this process cannot
    open, for example after a change of its user, are forgotten."""
    argument = os.environ.get(_VARIABLE)
    try:
        return None if argument is None else _open_once(argument)
    except (ImportError, MemoryError, OSError, ValueError):
        os.environ.pop(_VARIABLE, None)
        return None
