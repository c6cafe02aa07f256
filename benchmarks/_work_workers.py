"""The work of the benchmark of workers: images in files, samples that wait, NumPy, JSON.

Spawned processes import this module.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from _harness import Epoch, Epochs
from _work import LOADERS, SEED
from _work_images import VALUES, Op, v2
from _work_python import is_same
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import fastloop

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from torchvision_shim import replay_by_torchvision

Variants = dict[str, dict[str, Any]]  # the arguments of each

CORES = 2
TORCH_VARIANTS = {f"workers={n}": {"num_workers": n} for n in (0, 1, 2)}


def threads(*counts: int) -> Variants:
    """Variants of fastloop with threads, as arguments."""
    return {f"threads={n}": {"num_workers": n, "path": "thread"} for n in counts}


def processes(*counts: int) -> Variants:
    return {f"processes={n}": {"num_workers": n, "path": "process"} for n in counts}


def make_loaders(
    who: str, dataset: Any, batch: int, variants: Variants, **more: Any
) -> dict[str, Any]:
    """A loader for each variant, whose workers persist."""
    return {
        variant: LOADERS[who](
            dataset,
            batch_size=batch,
            persistent_workers=arguments["num_workers"] > 0,
            **arguments,
            **more,
        )
        for variant, arguments in variants.items()
    }


def make_loader(who: str, dataset: Any, batch: int, variants: Variants, **more: Any) -> Any:
    """The loader of the only variant."""
    (loader,) = make_loaders(who, dataset, batch, variants, **more).values()
    return loader


def counting_epochs(loaders: dict[str, Any]) -> Epochs:
    """Also of streams, which do not know their length."""

    def epoch_of(loader: DataLoader[Any]) -> Epoch:
        return lambda: sum(1 for _batch in loader)

    return {variant: epoch_of(loader) for variant, loader in loaders.items()}


def assert_on_its_path(loaders: dict[str, Any]) -> None:
    """After an epoch of each."""
    for variant, loader in loaders.items():
        stats = loader.stats()
        if stats.path != {"threads": "thread", "processes": "process"}.get(
            variant.partition("=")[0], "sync"
        ):
            raise AssertionError(f"{variant} on path {stats.path!r} would mislead: {stats.why}")


def assert_same_batches(dataset: Any, batch: int, *ours: Variants) -> None:
    """One epoch with one seed, for every variant of fastloop; raises if it differs from that of
    torch without workers, or with as many where a stream is shared out among them."""
    is_stream = isinstance(dataset, IterableDataset)
    for variant, arguments in (item for variants in ours for item in variants.items()):
        theirs = {"num_workers": arguments["num_workers"] if is_stream else 0}
        pair = (
            LOADERS[who](
                dataset,
                batch,
                shuffle=not is_stream,
                generator=torch.Generator().manual_seed(SEED),
                **of,
            )
            for who, of in (("fastloop", arguments), ("torch", theirs))
        )
        for number, (one, other) in enumerate(zip(*pair, strict=True)):
            if not is_same(one, other):
                raise AssertionError(f"batch {number} with {variant} differs from torch's")


# ---- images in files


def write_images(root: Path, count: int) -> None:
    """A folder of classes of JPEG files of 500x375: smooth areas, edges and some grain, 85 KB."""
    from PIL import Image

    rng = np.random.default_rng(SEED)
    for number in range(count):
        folder = root / f"class_{number % 10}"
        folder.mkdir(exist_ok=True)
        coarse = rng.integers(0, 256, (9, 12, 3), np.uint8)
        smooth = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        pixels = np.asarray(smooth).astype(np.float32)
        top, left = rng.integers(0, (200, 300))
        pixels[top : top + 150, left : left + 180] *= 0.6
        pixels += rng.normal(0, 9, (375, 500, 1)).astype(np.float32)
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        image.save(folder / f"image_{number:05}.jpg", quality=92)


def decode_by_pillow(encoded: bytes) -> np.ndarray:
    """As torchvision's own loader does it."""
    from io import BytesIO

    from PIL import Image

    with Image.open(BytesIO(encoded)) as image:
        return np.asarray(image.convert("RGB"))


def decode_by_simplejpeg(encoded: bytes) -> np.ndarray:
    import simplejpeg

    pixels: np.ndarray = simplejpeg.decode_jpeg(encoded, colorspace="RGB")
    return pixels


DECODERS: dict[str, Callable[[bytes], np.ndarray]] = {
    "simplejpeg": decode_by_simplejpeg,
    "Pillow": decode_by_pillow,
}
GEOMETRY: list[Op] = [
    ("RandomResizedCrop", {"size": (224, 224)}),
    ("RandomHorizontalFlip", {}),
]


def as_tensor(path: str) -> torch.Tensor:
    """What users give torchvision's ImageFolder as `loader` who have simplejpeg."""
    return torch.from_numpy(decode_by_simplejpeg(Path(path).read_bytes())).permute(2, 0, 1)


class Folder:
    """JPEG files, and who makes batches of them."""

    BATCH = 32
    OPS = (*GEOMETRY, *VALUES)

    def __init__(self, root: Path, codec: str) -> None:
        self.root, self.codec = root, codec

    def ours(self, **more: Any) -> Any:
        decode = "auto" if self.codec == "simplejpeg" else DECODERS[self.codec]
        return fastloop.ImageFolder(str(self.root), decode=decode, seed=SEED, **more)

    def transformed(self) -> Any:
        t = fastloop.transforms
        return self.ours(transform=t.Compose([getattr(t, name)(**args) for name, args in self.OPS]))

    def theirs(self, codec: str, is_tensor_first: bool = True) -> Any:
        """torchvision's; an image is made a tensor as it is read, or after it was cropped, resized
        and flipped as PIL's."""
        t = v2()
        from torchvision.datasets import ImageFolder

        ops = [getattr(t, name)(**args) for name, args in self.OPS]
        if codec == "simplejpeg":
            return ImageFolder(str(self.root), t.Compose(ops), loader=as_tensor)
        ops.insert(0 if is_tensor_first else len(GEOMETRY), t.PILToTensor())
        return ImageFolder(str(self.root), t.Compose(ops))

    def our_loaders(self, variants: Variants) -> dict[str, Any]:
        return make_loaders("fastloop", self.transformed(), self.BATCH, variants, shuffle=True)

    def their_loaders(self, codec: str) -> dict[str, Any]:
        """Both ways of Pillow's users."""
        ways = {"": True, ", PIL's crops": False} if codec == "Pillow" else {"": True}
        loaders = {}
        for way, is_tensor_first in ways.items():
            dataset = self.theirs(codec, is_tensor_first)
            made = make_loaders("torch", dataset, self.BATCH, TORCH_VARIANTS, shuffle=True)
            loaders |= {f"{variant}{way}": loader for variant, loader in made.items()}
        return loaders

    def decode_alone(self) -> Epochs:
        """Decoding on two threads and nothing else."""
        decode = DECODERS[self.codec]
        files = [path.read_bytes() for path in sorted(self.root.glob("*/*"))]
        pool = ThreadPoolExecutor(CORES)

        def epoch() -> int:
            for _pixels in pool.map(decode, files):
                pass
            return len(files) // self.BATCH

        return {f"decode x{CORES}": epoch}

    def assert_same_images(self, *variants: Variants, batches: int = 3) -> None:
        """Raises unless files, classes and labels are torch's, pixels Pillow's, images what
        torchvision makes of them with the same parameters, and all paths give the same."""
        ours, theirs, plain = self.transformed(), self.theirs("Pillow"), self.ours()
        if ours.samples != theirs.samples or ours.class_to_idx != theirs.class_to_idx:
            raise AssertionError("the files or classes differ from torchvision's")
        for index in range(8):
            image = plain[index][0]
            path, label = theirs.samples[index]
            pixels = torch.from_numpy(decode_by_pillow(Path(path).read_bytes()).copy())
            if not torch.equal(image, pixels.permute(2, 0, 1)):
                raise AssertionError(f"{path} differs from Pillow's pixels")
            made = replay_by_torchvision(v2(), self.OPS, ours.params(index, epoch=0), image)
            if not torch.equal(ours[index][0], made) or ours[index][1] != label:
                raise AssertionError(f"sample {index} differs from torchvision's")
        wanted = self._first("torch", theirs, batches, num_workers=0)
        alike = self._first("fastloop", ours, batches, num_workers=0)
        for variant, arguments in (item for of in variants for item in of.items()):
            found = self._first("fastloop", ours, batches, **arguments)
            for (images, labels), (same, _), (_, right) in zip(found, alike, wanted, strict=True):
                if not torch.equal(images, same) or not torch.equal(labels, right):
                    raise AssertionError(f"a batch with {variant} differs")

    def _first(self, who: str, dataset: Any, batches: int, **arguments: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(SEED)
        loader = LOADERS[who](dataset, self.BATCH, shuffle=True, generator=generator, **arguments)
        return list(islice(loader, batches))


# ---- samples that wait


class Sleeper(Dataset[Any]):
    """Waits for a store, say, and has nothing to compute."""

    SECONDS = 2e-3

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        time.sleep(self.SECONDS)
        return index


def sleep_alone(dataset: Sleeper, batch: int, count: int) -> Epochs:
    """The samples on plain threads, without any loader."""
    pool = ThreadPoolExecutor(count)
    shares = [range(first, len(dataset), count) for first in range(count)]

    def run(share: Sequence[int]) -> None:
        for index in share:
            dataset[index]

    def epoch() -> int:
        list(pool.map(run, shares))
        return len(dataset) // batch

    return {f"plain threads={count}": epoch}


# ---- NumPy, and an index of Python objects


class Spectra(Dataset[Any]):
    """Log power in bands of a waveform, found through an index as large folders have it: a list of
    tuples, whose pages a forked worker copies as it counts references to what lies in them."""

    RATE, FRAME, HOP = 16_000, 512, 160
    EDGES = np.unique(np.geomspace(1, FRAME // 2, 40).astype(np.int64))

    def __init__(self, samples: int, seconds: float) -> None:
        rng = np.random.default_rng(SEED)
        self.waves = rng.integers(-20_000, 20_000, (32, int(seconds * self.RATE)), np.int16)
        self.window = np.hanning(self.FRAME).astype(np.float32)
        self.index = [(f"train/n{i % 1000:08}/n{i:08}_{i}.wav", i % 1000) for i in range(samples)]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        name, label = self.index[index]
        wave = self.waves[len(name) * label % len(self.waves)].astype(np.float32)
        frames = np.lib.stride_tricks.sliding_window_view(wave, self.FRAME)[:: self.HOP]
        spectrum = np.fft.rfft(frames * self.window)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        return np.log1p(np.add.reduceat(power, self.EDGES, axis=1)), label


def getitem_alone(dataset: Any, batch: int) -> Epochs:
    """The samples on two plain threads, without any loader."""
    pool = ThreadPoolExecutor(CORES)

    def epoch() -> int:
        for _sample in pool.map(dataset.__getitem__, range(len(dataset))):
            pass
        return len(dataset) // batch

    return {f"__getitem__ x{CORES}": epoch}


class TakenInTurn:
    """The batches of two plain threads without any loader: each takes the next sample, so both make
    every batch together. The samples are dropped."""

    def __init__(self, dataset: Any, batch: int) -> None:
        self.dataset, self.batch = dataset, batch
        self.pool = ThreadPoolExecutor(CORES)

    def __len__(self) -> int:
        return len(self.dataset) // self.batch

    def __iter__(self) -> Iterator[None]:
        numbers, made = iter(range(len(self.dataset))), SimpleQueue[int]()

        def work() -> None:
            for number in numbers:
                self.dataset[number]
                made.put(number // self.batch)

        for _ in range(CORES):
            self.pool.submit(work)
        counts = [0] * len(self)
        for batch in range(len(self)):
            while counts[batch] < self.batch:
                counts[made.get()] += 1
            yield None


# ---- a stream


def write_records(root: Path, records: int, shards: int = 8) -> None:
    """Lines of JSON: a text, a label, 256 tokens; 1.6 KB each."""
    rng = np.random.default_rng(SEED)
    for shard in range(shards):
        with (root / f"shard_{shard}.jsonl").open("w") as file:
            for number in range(records // shards):
                tokens = rng.integers(0, 50_000, 256).tolist()
                record = {"text": f"record {number} of {shard}", "label": number % 10}
                file.write(json.dumps(record | {"tokens": tokens}) + "\n")


class Records(IterableDataset[Any]):
    """A worker reads every n-th shard."""

    def __init__(self, root: Path) -> None:
        self.shards = sorted(root.glob("*.jsonl"))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        return self.read(first, step)

    def read(self, first: int, step: int) -> Iterator[dict[str, Any]]:
        for shard in self.shards[first::step]:
            with shard.open() as file:
                for line in file:
                    record = json.loads(line)
                    record["tokens"] = np.array(record["tokens"])
                    yield record


def _count(dataset: Records, first: int, step: int) -> int:
    return sum(1 for _record in dataset.read(first, step))


def read_alone(dataset: Records, batch: int) -> Epochs:
    """Reading and parsing in this process and in two, where the records are dropped."""
    pool = ProcessPoolExecutor(CORES)

    def here() -> int:
        return _count(dataset, 0, 1) // batch

    def apart() -> int:
        firsts = range(CORES)
        return sum(pool.map(_count, [dataset] * CORES, firsts, [CORES] * CORES)) // batch

    return {"read x1": here, f"read x{CORES}": apart}
