"""Tar shards for bench_corpora.py: the time of an index, of its second open, loaders of images.

A loader runs in a process of its own: `python _work_tar.py CONTESTANT FOLDER IMAGES DTYPE` prints
a line of JSON. All decode with fastloop's decoder for JPEG files and crop at random to 224 pixels;
rivals crop with torch, as torchvision's v2 does. Memory is the proportional set size of the process
and its workers, without what the process took when torch and the contestant were imported. The last
quarter of the images is not measured, because workers that have no more to do end.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

BATCH, WORKERS = 64, 2
Lines = list[dict[str, Any]]
LOADERS = ("fastloop, processes", "fastloop, threads", "webdataset", "litdata")


def write_members(path: Path, members: Any) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


# ---- the index


def index_archive(path: Path) -> None:
    from fastloop._core import tar_index

    with open(path, "rb") as file:
        tar_index(str(path), file.fileno(), path.stat().st_size)


def list_by_tarfile(path: Path) -> None:
    with tarfile.open(path) as archive:
        archive.getmembers()


def drop_cached(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds_of(clock: Callable[[], float], call: Callable[[], object]) -> float:
    begin = clock()
    call()
    return clock() - begin


def show(name: str, found: list[float], unit: str) -> dict[str, Any]:
    low, middle, high = min(found), statistics.median(found), max(found)
    print(f"| {name} | {middle:,.4g} ({low:,.4g} - {high:,.4g}) {unit} |")
    return {"contestant": name, "values": found, "unit": unit}


def measure_index(is_quick: bool) -> Lines:
    count, rounds = (2000, 3) if is_quick else (16_000, 9)
    warm: dict[str, list[float]] = {"tar_index": [], "tarfile": []}
    shares: list[float] = []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path, blob = Path(folder) / "a.tar", random.Random(0).randbytes(30_000)
        write_members(path, ((f"{i:06}.jpg", blob) for i in range(count)))
        for _ in range(rounds):
            for name, call in (("tar_index", index_archive), ("tarfile", list_by_tarfile)):
                seconds = seconds_of(time.thread_time, lambda call=call: call(path))  # type: ignore[misc]
                warm[name].append(count / seconds)
            took = {}
            for name in random.sample(["cat", "tar_index"], 2):
                drop_cached(path)
                cat = ["cat", str(path)]
                run = {
                    "cat": lambda cat=cat: subprocess.run(cat, stdout=subprocess.DEVNULL),
                    "tar_index": lambda: index_archive(path),
                }[name]
                took[name] = seconds_of(time.perf_counter, run)
            shares.append(took["cat"] / took["tar_index"])
    lines = [show(f"{name}, cached", each, "members/s of CPU time") for name, each in warm.items()]
    return [*lines, show("tar_index, not cached, to `cat`", shares, "of its bytes/s")]


def measure_open(is_quick: bool) -> Lines:
    from fastloop import TarDataset

    shards, each = (16, 1000) if is_quick else (128, 10_000)
    times: list[float] = []
    grown: list[float] = []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        paths = [Path(folder) / f"{s:03}.tar" for s in range(shards)]
        for s, path in enumerate(paths):
            infos = (tarfile.TarInfo(f"{s * each + i:07}.cls") for i in range(each))
            path.write_bytes(b"".join(map(tarfile.TarInfo.tobuf, infos)) + bytes(10_240))
        child = os.fork()
        if child == 0:
            TarDataset(paths)
            os._exit(0)
        os.waitpid(child, 0)
        before = psutil.Process().memory_info().rss
        for _ in range(9):
            begin = time.process_time()
            data = TarDataset(paths)
            times.append((time.process_time() - begin) * 1e3)
            grown.append((psutil.Process().memory_info().rss - before) / 1e6)
            del data
    name = f"second open of {shards * each:,} samples"
    return [show(name, times, "ms of CPU time"), show(name, grown[:1], "MB")]


# ---- loaders


def write_images(folder: Path, count: int) -> list[str]:
    """JPEG files of 500 x 375 pixels and about 60 KB, 500 in a shard."""
    from PIL import Image

    rng = np.random.default_rng(0)
    files = []
    for _ in range(100):
        image = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).resize((500, 375))
        noise = rng.integers(-14, 15, (375, 500, 3))
        noisy = Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))
        out = io.BytesIO()
        noisy.save(out, "JPEG", quality=88)
        files.append(out.getvalue())
    paths = []
    for first in range(0, count, 500):
        numbers = range(first, min(first + 500, count))
        parts = ((n, ext) for n in numbers for ext in ("jpg", "cls"))
        path = folder / f"i-{first // 500:03}.tar"
        data = {"jpg": lambda n: files[n % 100], "cls": lambda n: str(n % 1000).encode()}
        write_members(path, ((f"{n:06}.{ext}", data[ext](n)) for n, ext in parts))
        paths.append(str(path))
    return paths


def crop(image: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    height, width = image.shape[1:]
    for _ in range(10):
        area = random.uniform(0.08, 1) * height * width
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            break
    else:
        w, h = width, height
    top, left = random.randint(0, height - h), random.randint(0, width - w)
    cut = image[None, :, top : top + h, left : left + w]
    resized = torch.nn.functional.interpolate(cut, (224, 224), mode="bilinear", antialias=True)
    return resized[0].float().div_(255) if dtype == torch.float32 else resized[0]


class Decoding:
    """Makes a sample of the bytes of its parts, as rivals have them."""

    def __init__(self, dtype: torch.dtype) -> None:
        from fastloop.data.image_folder.decode import AutoDecoder

        self.decode, self.dtype = AutoDecoder(), dtype

    def __call__(self, sample: Any) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(self.decode(sample["jpg"])).permute(2, 0, 1)
        return crop(image, self.dtype), int(sample["cls"])


def make_ours(paths: list[str], dtype: torch.dtype, **options: Any) -> Any:
    from fastloop import DataLoader, ShuffleSampler, TarDataset
    from fastloop import transforms as T

    chain = T.Compose([T.RandomResizedCrop(224), T.ToDtype(dtype, scale=True)])
    data = TarDataset(paths, ["jpg", "cls"], chain)
    order = ShuffleSampler(data)
    return lambda: DataLoader(data, BATCH, sampler=order, num_workers=WORKERS, **options)


def make_webdataset(paths: list[str], dtype: torch.dtype) -> Any:
    wds: Any = importlib.import_module("webdataset")
    stream = wds.WebDataset(paths, shardshuffle=len(paths)).shuffle(1000).map(Decoding(dtype))
    return lambda: wds.WebLoader(stream.batched(BATCH), batch_size=None, num_workers=WORKERS)


def make_litdata(folder: Path, dtype: torch.dtype) -> Any:
    litdata: Any = importlib.import_module("litdata")

    class Images(litdata.StreamingDataset):  # type: ignore[name-defined, misc]
        decoding = Decoding(dtype)

        def __getitem__(self, index: Any) -> Any:
            return self.decoding(super().__getitem__(index))

    data = Images(str(folder / "litdata"), shuffle=True)
    return lambda: litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=WORKERS)


def write_litdata(folder: Path, paths: list[str]) -> None:
    from fastloop import TarDataset

    litdata: Any = importlib.import_module("litdata")
    data = TarDataset(paths, decode={"jpg": bytes})
    samples = [{"jpg": data[i]["jpg"], "cls": data[i]["cls"]} for i in range(len(data))]
    out = str(folder / "litdata")
    litdata.optimize(dict, inputs=samples, output_dir=out, chunk_bytes="64MB", num_workers=1)


def tree() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def memory() -> float:
    return sum(float(process.memory_full_info().pss) for process in tree()) / 1e6


def cpu_seconds() -> float:
    return sum(sum(process.cpu_times()[:2]) for process in tree())


def load(contestant: str, folder: Path, count: int, dtype: torch.dtype) -> dict[str, float]:
    torch.set_num_threads(1)
    paths = sorted(map(str, folder.glob("*.tar")))
    make: Any = {
        "fastloop, processes": lambda: make_ours(paths, dtype),
        "fastloop, threads": lambda: make_ours(paths, dtype, path="thread"),
        "webdataset": lambda: make_webdataset(paths, dtype),
        "litdata": lambda: make_litdata(folder, dtype),
    }[contestant]()
    before, begin, seen, peak = memory(), time.perf_counter(), 0, 0.0
    iterator = iter(make())  # as long as this variable lives, so do the workers
    for images, _ in iterator:
        if seen == 0:
            first, start, spent = time.perf_counter() - begin, time.perf_counter(), cpu_seconds()
        seen += len(images)
        if seen // BATCH % 5 == 0:
            peak = max(peak, memory())
        if seen >= count:
            break
    took, spent = time.perf_counter() - start, cpu_seconds() - spent
    rest = seen - BATCH
    return {"rate": rest / took, "cpu": spent / rest * 1e3, "first": first, "memory": peak - before}


def measure_loaders(is_quick: bool, dtype: str) -> Lines:
    count, rounds = (1200, 1) if is_quick else (4800, 3)
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).absolute()
        paths = write_images(folder, count)
        rivals = [each for each in LOADERS if "fastloop" in each or importlib.util.find_spec(each)]
        if "litdata" in rivals:
            write_litdata(folder, paths)
        for _ in range(rounds):
            for each in rivals:
                command = [sys.executable, __file__, each, str(folder), str(count * 3 // 4), dtype]
                printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                found.setdefault(each, []).append(json.loads(printed.splitlines()[-1]))
    units = {"rate": "images/s", "cpu": "ms of CPU time an image", "first": "s to the first batch",
             "memory": "MB"}  # fmt: skip
    return [
        show(f"{each}, {dtype}", [run[key] for run in runs], unit)
        for each, runs in found.items()
        for key, unit in units.items()
    ]


def compare_tars(rows: list[str], is_quick: bool) -> Lines:
    lines: Lines = []
    print("\n| contestant | median (lowest - highest) |\n|---|---|")
    for row in rows:
        measure = {"n": measure_index, "o": measure_open}.get(row)
        dtype = "float32" if row == "p" else "uint8"
        found = measure_loaders(is_quick, dtype) if measure is None else measure(is_quick)
        lines += [{"row": row, **line} for line in found]
    return lines


if __name__ == "__main__":
    found = load(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), getattr(torch, sys.argv[4]))
    print(json.dumps(found), flush=True)
    os._exit(0)  # rivals' workers may not end
