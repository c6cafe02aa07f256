"""Ordinary scripts of vision and of texts, by `python` and by `python -m fastloop run`, in turns.

    python benchmarks/bench_zero_change.py [--rows a,b,...,z,A,...,H] [--quick] [--json FILE]

a    CIFAR-10: RandomCrop(32, 4), RandomHorizontalFlip, ToTensor, Normalize of v1, batch 128
b    the same chain of v2, with ToImage and ToDtype in place of ToTensor
c    MNIST: ToTensor, Normalize, batch 128
d    a Dataset of a user over a uint8 tensor [N, 3, 32, 32], the chain of CIFAR-10 of v2
e    the same over [N, 3, 128, 128]: RandomResizedCrop(96), RandomHorizontalFlip, ToDtype, Normalize
f    the loader of Hugging Face's Trainer over 20 to 200 tokens a row, DataCollatorWithPadding
g    ImageFolder of JPEG of 500 x 375: RandomResizedCrop(224), RandomHorizontalFlip, ToTensor,
     Normalize of v1
h    a list of 20 000 samples, (uint8 tensor [3, 32, 32], int)
i    row a with a target_transform: Lambda of zeros(10).scatter_(), as PyTorch's tutorial has it
j    row a with AutoAugment of CIFAR-10 before ToTensor
k    row a with RandAugment
l    row a with TrivialAugmentWide
m    row g with a bilinear TrivialAugmentWide and RandomErasing(0.1), as torchvision's references
n    row a with ColorJitter(0.4, 0.4, 0.4, 0.1) before ToTensor
o    row g with RandomApply([ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8) and RandomGrayscale(0.2)
p    row g with a Lambda behind the flip
q    row g with MoCo v2's operations: those of o, then a blur of the program's own by chance
r    row g with SimCLR's operations: those of o, then torchvision's GaussianBlur(9)
s    row g with its Compose in an object that ImageFolder calls, as torchvision's references have it
t    a Dataset of a user that opens the files of row g and calls its Compose: by the import of
     fastloop's DataLoader alone, in place of `run`
u    row m with RandAugment
v    row m with AugMix
w    Hugging Face's datasets with a column of the files of row g, and a function that calls row g's
     Compose for each image, as the example of image classification has it
x    the texts of row f in a DataLoader, with a collate function around tokenizer.pad()
y    row f with DataCollatorForSeq2Seq
z    a list of (tensor of 20 to 200 ids, int), with a collate function around pad_sequence()
A    row f with DataCollatorForLanguageModeling(mlm=True)
B    the files of row g in timm's create_loader(): rand-m7-mstd0.5-inc1 (with m9 Pillow 13 raises an
     error now and then), random interpolation, erasing, on the CPU
C    row g by `run --cache`
D    row m by `run --cache`
E    the dataset of row t by `run --cache`
F    row w by `run --cache`
G    PyG's DataLoader over an InMemoryDataset: graphs of 10 to 60 nodes, four edges a node, batch 32
H    the files of row g in timm's create_loader() for evaluation, bicubic, on the CPU

Each without workers and with two. A script is a fresh process that makes the dataset in memory and
iterates over it twice; a digest of all batches and of the generator's state must be equal. Judged
are the medians of the second epoch's time, from row z on of the CPU time of all its processes, with
the digest's own time taken off. One table row each on stdout, with the ratio of each pair of turns
at its least; then one line a row, as the page of results has it; JSON lines in FILE.

With two workers, rows a, b, c and g also feed a simulated device, whose step takes half of the time
in which `python` makes a batch: how much of an epoch it works, from the first batch on.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha1
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

from _harness import Times, parse_arguments

ROUNDS, WORKERS = 5, (0, 2)
WITH_DEVICE = "abcg"
ON_FILES = "folder", "preset", "files", "images"  # kinds
BY_IMPORT = "FASTLOOP_BENCH_IMPORT"  # the script imports fastloop's DataLoader
FOLDER = "FASTLOOP_BENCH_FOLDER"  # where the images of row f are
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)


@dataclass(frozen=True)
class Row:
    name: str
    kind: str  # of dataset
    version: int  # of transforms
    count: int
    goals: tuple[float, float]  # without workers, with two
    has_target: bool = False
    has_cpu_time: bool = False  # is judged by CPU time
    has_cache: bool = False
    policy: str = ""  # an operation on colours, a policy, or a chain with unknown operations


ROWS = {
    "a": Row("CIFAR-10, v1", "CIFAR10", 1, 10_000, (40, 30)),
    "b": Row("CIFAR-10, v2", "CIFAR10", 2, 10_000, (40, 30)),
    "c": Row("MNIST", "MNIST", 1, 20_000, (25, 25)),
    "d": Row("a user's dataset, the chain of CIFAR-10", "own", 2, 10_000, (5, 3)),
    "e": Row("a user's dataset, RandomResizedCrop(96)", "large", 2, 2_000, (2.5, 2)),
    "f": Row("Trainer, DataCollatorWithPadding", "Trainer", 0, 4_000, (5, 5)),
    "g": Row("ImageFolder, JPEG", "folder", 1, 768, (2.5, 2)),
    "h": Row("a list of (tensor, int)", "list", 0, 20_000, (0.99, 3)),
    "i": Row("CIFAR-10, target_transform", "CIFAR10", 1, 10_000, (4, 2), has_target=True),
    "j": Row("CIFAR-10, AutoAugment", "CIFAR10", 1, 5_000, (40, 25), policy="AutoAugment"),
    "k": Row("CIFAR-10, RandAugment", "CIFAR10", 1, 5_000, (40, 25), policy="RandAugment"),
    "l": Row(
        "CIFAR-10, TrivialAugmentWide", "CIFAR10", 1, 5_000, (40, 25), policy="TrivialAugmentWide"
    ),
    "m": Row(
        "ImageFolder, TrivialAugmentWide", "folder", 1, 768, (2.5, 2), policy="TrivialAugmentWide"
    ),
    "n": Row("CIFAR-10, ColorJitter", "CIFAR10", 1, 10_000, (20, 15), policy="ColorJitter"),
    "o": Row("ImageFolder, ColorJitter", "folder", 1, 768, (2.5, 2), policy="ColorJitter"),
    "p": Row("ImageFolder, a Lambda", "folder", 1, 768, (2, 1.5), policy="Lambda"),
    "q": Row("ImageFolder, MoCo v2", "folder", 1, 384, (2, 1.5), policy="MoCo"),
    "r": Row("ImageFolder, SimCLR", "folder", 1, 384, (1.2, 1.1), policy="SimCLR"),
    "s": Row("ImageFolder, a preset object", "preset", 1, 768, (1.7, 1.2)),
    "t": Row("a user's dataset of JPEG, by the import", "files", 1, 768, (1.5, 1.2)),
    "u": Row("ImageFolder, RandAugment", "folder", 1, 768, (2.5, 2), policy="RandAugment"),
    "v": Row("ImageFolder, AugMix", "folder", 1, 384, (4, 2), policy="AugMix"),
    "w": Row("Hugging Face's images, with_transform", "images", 1, 768, (1.4, 1.4)),
    "x": Row("a function around tokenizer.pad()", "texts", 0, 4_000, (5, 1.2)),
    "y": Row("Trainer, Seq2Seq", "Trainer", 0, 4_000, (5, 5), policy="DataCollatorForSeq2Seq"),
    "z": Row(
        "a function around pad_sequence()", "sequences", 0, 20_000, (1.8, 1.2), has_cpu_time=True
    ),
    "A": Row(
        "Trainer, mlm=True",
        "Trainer",
        0,
        4_000,
        (8, 1.5),
        has_cpu_time=True,
        policy="DataCollatorForLanguageModeling",
    ),
    "B": Row("timm's ImageNet recipe", "timm", 1, 768, (4, 2.5), has_cpu_time=True),
    "C": Row("ImageFolder, --cache", "folder", 1, 768, (9, 3), has_cpu_time=True, has_cache=True),
    "D": Row(
        "ImageFolder, TrivialAugmentWide, --cache",
        "folder",
        1,
        768,
        (5, 3),
        has_cpu_time=True,
        has_cache=True,
        policy="TrivialAugmentWide",
    ),
    "E": Row(
        "a user's dataset of JPEG, --cache",
        "files",
        1,
        768,
        (2, 1.5),
        has_cpu_time=True,
        has_cache=True,
    ),
    "F": Row(
        "Hugging Face's images, --cache",
        "images",
        1,
        768,
        (2, 1.5),
        has_cpu_time=True,
        has_cache=True,
    ),
    "G": Row("PyG, InMemoryDataset", "graphs", 0, 4_000, (5, 5), has_cpu_time=True),
    "H": Row("timm's evaluation", "timm", 1, 768, (2.5, 2), has_cpu_time=True, policy="none"),
}


# ---- the script, in a process of its own


def blur(image: Any) -> Any:
    """Blur as MoCo's class does."""
    from PIL import ImageFilter

    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def change_colors(v1: Any) -> list[Any]:
    jitter = v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)
    return [jitter, v1.RandomGrayscale(0.2)]


# Operations of v1, among them some that Python calls.
UNKNOWN: dict[str, Callable[[Any], list[Any]]] = {
    "Lambda": lambda v1: [v1.Lambda(lambda image: image)],
    "MoCo": lambda v1: [*change_colors(v1), v1.RandomApply([blur])],
    "SimCLR": lambda v1: [*change_colors(v1), v1.GaussianBlur(9)],
}


def make_transform(row: Row) -> Any:
    import torch
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    if row.kind in ON_FILES:
        first = [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip()]
        last = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
        if row.policy in UNKNOWN:
            first += UNKNOWN[row.policy](v1)
        elif row.policy == "ColorJitter":
            first += change_colors(v1)
        elif row.policy:
            policy = getattr(v1, row.policy)
            first.append(policy(interpolation=v1.InterpolationMode.BILINEAR))
            last.append(v1.RandomErasing(0.1))
        return v1.Compose([*first, *last])
    if row.kind == "MNIST":
        return v1.Compose([v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,))])
    module = v1 if row.version == 1 else v2
    crop = v2.RandomResizedCrop(96) if row.kind == "large" else module.RandomCrop(32, padding=4)
    tail = [v1.ToTensor()] if row.version == 1 else [v2.ToDtype(torch.float32, scale=True)]
    if row.kind == "CIFAR10" and row.version == 2:
        tail.insert(0, v2.ToImage())
    if row.policy:
        given = {"AutoAugment": [v1.AutoAugmentPolicy.CIFAR10], "ColorJitter": [0.4, 0.4, 0.4, 0.1]}
        tail.insert(0, getattr(v1, row.policy)(*given.get(row.policy, ())))
    parts = [crop, module.RandomHorizontalFlip(), *tail, module.Normalize(MEAN, STD)]
    return module.Compose(parts)


def make_target_transform(row: Row) -> Any:
    import torch
    from torchvision.transforms import Lambda

    def one_hot(label: int) -> Any:
        return torch.zeros(10, dtype=torch.float).scatter_(0, torch.tensor(label), value=1)

    return Lambda(one_hot) if row.has_target else None


def make_images_dataset(samples: list[tuple[str, int]], transform: Any) -> Any:
    import datasets

    def change(rows: dict[str, Any]) -> dict[str, Any]:
        rows["pixels"] = [transform(image.convert("RGB")) for image in rows.pop("image")]
        return rows

    paths, labels = zip(*samples, strict=True)
    dataset = datasets.Dataset.from_dict({"image": paths, "label": labels})
    return dataset.cast_column("image", datasets.Image()).with_transform(change)


def make_folder_dataset(row: Row, folder: Any) -> Any:
    from torch.utils.data import Dataset

    transform = make_transform(row)
    folder.transform = transform
    if row.kind == "preset":
        folder.transform = lambda image: transform(image)
    if row.kind == "images":
        return make_images_dataset(folder.samples, transform)
    if row.kind != "files":
        return folder

    class Files(Dataset[Any]):
        def __len__(self) -> int:
            return len(folder.samples)

        def __getitem__(self, index: int) -> Any:
            from PIL import Image

            path, label = folder.samples[index]
            return transform(Image.open(path).convert("RGB")), label

    return Files()


def make_dataset(row: Row) -> Any:
    import numpy as np
    import torch
    from torch.utils.data import Dataset
    from torchvision import datasets

    if row.kind in ON_FILES:
        return make_folder_dataset(row, datasets.ImageFolder(os.environ[FOLDER]))
    numbers, side = np.random.default_rng(1), 128 if row.kind == "large" else 32
    images = numbers.integers(0, 256, (row.count, 3, side, side), np.uint8)
    labels = numbers.integers(0, 10, row.count)
    if row.kind == "list":
        tensors = [image.clone() for image in torch.from_numpy(images)]
        return list(zip(tensors, labels.tolist(), strict=True))
    transform = make_transform(row)
    if row.kind in ("own", "large"):

        class Own(Dataset[Any]):
            def __init__(self) -> None:
                self.images, self.labels = torch.from_numpy(images), torch.from_numpy(labels)

            def __len__(self) -> int:
                return len(self.images)

            def __getitem__(self, index: int) -> Any:
                return transform(self.images[index]), self.labels[index]

        return Own()
    # As their own __init__ leaves them, without the files.
    cls = getattr(datasets, row.kind)
    dataset = cls.__new__(cls)
    held = {"data": images.transpose(0, 2, 3, 1), "targets": labels.tolist()}
    if row.kind == "MNIST":
        held = {"data": torch.from_numpy(images[:, 0, :28, :28].copy())}
        held["targets"] = torch.from_numpy(labels)
    vars(dataset).update(held, transform=transform, target_transform=make_target_transform(row))
    return dataset


def make_trainer_loader(row: Row, workers: int) -> Any:
    import datasets
    import numpy as np
    import torch
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> None: ...

    numbers = np.random.default_rng(1)
    lengths = numbers.integers(20, 200, row.count)
    rows = {
        "input_ids": [numbers.integers(2, 30_000, n, np.int32) for n in lengths],
        "attention_mask": [np.ones(n, np.int8) for n in lengths],
        "label": numbers.integers(0, 2, row.count),
        "text": ["removed by the Trainer"] * row.count,
    }
    core = Tokenizer(WordLevel({"[PAD]": 0, "word": 1}, unk_token="word"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", mask_token="word")
    if row.policy == "DataCollatorForLanguageModeling":
        del rows["label"]
    elif row.policy:
        rows["labels"] = rows["input_ids"]
        del rows["label"]
    if row.kind == "texts":
        texts = datasets.Dataset.from_dict(rows).remove_columns("text")
        pad = partial(tokenizer.pad, padding="longest", return_tensors="pt")
        return torch.utils.data.DataLoader(
            texts, 128, shuffle=True, num_workers=workers, collate_fn=lambda samples: pad(samples)
        )
    collator = getattr(transformers, row.policy or "DataCollatorWithPadding")(tokenizer)
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=128,
        use_cpu=True,
        dataloader_num_workers=workers,
        label_names=["label"],
        report_to="none",
    )
    dataset = datasets.Dataset.from_dict(rows)
    trainer = Trainer(Model(), arguments, collator, train_dataset=dataset)
    return trainer.get_train_dataloader()


def make_sequences_loader(row: Row, workers: int) -> Any:
    import numpy as np
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def collate(samples: list[Any]) -> Any:
        ids, labels = zip(*samples, strict=True)
        return pad_sequence(ids, batch_first=True), torch.tensor(labels)

    lengths = np.random.default_rng(1).integers(20, 200, row.count).tolist()
    samples = [(torch.arange(length), length % 2) for length in lengths]
    return torch.utils.data.DataLoader(
        samples, 128, shuffle=True, num_workers=workers, collate_fn=collate
    )


def make_timm_loader(row: Row, workers: int) -> Any:
    import torch
    from timm.data import create_dataset, create_loader

    named: dict[str, Any] = {"interpolation": "bicubic"}
    if row.policy != "none":
        named = {"is_training": True, "auto_augment": "rand-m7-mstd0.5-inc1", "re_prob": 0.25}
        named |= {"interpolation": "random", "re_mode": "pixel"}
    return create_loader(
        create_dataset("", root=os.environ[FOLDER]),
        (3, 224, 224),
        128,
        num_workers=workers,
        device=torch.device("cpu"),
        persistent_workers=False,
        **named,
    )


def make_graphs_loader(row: Row, workers: int) -> Any:
    import torch
    from torch_geometric.data import Data, InMemoryDataset
    from torch_geometric.loader import DataLoader

    def make_graph(nodes: int) -> Any:
        edges = torch.arange(8 * nodes).reshape(2, -1) * 7 % nodes
        return Data(torch.rand(nodes, 7), edges, torch.rand(4 * nodes, 3), torch.tensor([nodes]))

    dataset: Any = InMemoryDataset()
    graphs = [make_graph(i % 51 + 10) for i in range(row.count)]
    dataset.data, dataset.slices = dataset.collate(graphs)
    return DataLoader(dataset, 32, shuffle=True, num_workers=workers)


def make_loader(row: Row, workers: int) -> Any:
    if row.kind == "graphs":
        return make_graphs_loader(row, workers)
    if row.kind == "timm":
        return make_timm_loader(row, workers)
    if row.kind == "sequences":
        return make_sequences_loader(row, workers)
    if row.kind in ("Trainer", "texts"):
        return make_trainer_loader(row, workers)
    sys.path.append(str(Path(__file__).parents[1] / "tests/support"))
    from torchvision_shim import torchvision_v2

    if torchvision_v2() is None:
        raise SystemExit("this needs torchvision: pip install --no-deps -r requirements-bench.txt")
    if BY_IMPORT in os.environ:
        from fastloop import DataLoader
    else:
        from torch.utils.data import DataLoader

    return DataLoader(make_dataset(row), 128, shuffle=True, num_workers=workers)


def cpu_time() -> float:
    """Return the CPU seconds of this process and of the workers that have ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def play(row: Row, workers: int, step_us: float) -> None:
    """Print microseconds a batch of the second epoch, and the digest; with a step, the share of a
    third epoch, from its first batch on, for which a device with such steps works."""
    import numpy as np
    import torch

    torch.manual_seed(6)
    loader = make_loader(row, workers)
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    digest = sha1(usedforsecurity=False)
    for _ in range(2):
        taken, start, batches = 0.0, perf_counter(), 0
        used, begin_cpu = 0.0, cpu_time()
        for batch in loader:
            taken += perf_counter() - start
            before = cpu_time()
            for part in batch.values() if hasattr(batch, "values") else batch:
                digest.update(part.numpy())
            batches += 1
            used += cpu_time() - before
            start = perf_counter()
        if row.has_cpu_time:
            taken = cpu_time() - begin_cpu - used
    digest.update(torch.get_rng_state().numpy())
    us, begin, batches = taken / batches * 1e6, 0.0, 0
    for _ in loader if step_us > 0 else ():
        begin = begin or perf_counter()  # no device works before there is a batch
        until, batches = perf_counter() + step_us / 1e6, batches + 1
        while (left := until - perf_counter()) > 0:
            sleep(left)
    busy = batches * step_us / 1e6 / (perf_counter() - begin)
    print(json.dumps({"us": us, "digest": digest.hexdigest(), "busy": busy}))


# ---- the benchmark


def make_folder(root: str, count: int) -> None:
    """Write JPEGs that are about as smooth as photographs, one of three upright."""
    import numpy as np
    from PIL import Image

    numbers = np.random.default_rng(1)
    for number in range(count):
        height, width = (375, 500) if number % 3 else (500, 375)
        small = numbers.integers(0, 256, (height // 12, width // 12, 3), np.uint8)
        smooth = np.asarray(
            Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
        )
        image = (smooth + numbers.normal(0, 6, smooth.shape)).clip(0, 255).astype(np.uint8)
        path = Path(root) / f"class {number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path, quality=88)


def run_script(letter: str, workers: int, *command: str, step_us: float = 0) -> dict[str, Any]:
    env = {**os.environ, "FASTLOOP": ""}
    if command and ROWS[letter].has_cache:
        command += (f"--cache={env[FOLDER]}.kept",)
    elif command and ROWS[letter].kind == "files":
        command, env[BY_IMPORT] = (), "1"
    argv = [sys.executable, *command, __file__, "--play", letter, str(workers), str(step_us)]
    done = subprocess.run(argv, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_row(letter: str, workers: int, rounds: int) -> tuple[Times, Times, float]:
    """Return the times of both, and the least ratio of a turn."""
    taken: dict[str, list[float]] = {"run": [], "python": []}
    for _ in range(rounds):
        found = {
            "python": run_script(letter, workers),
            "run": run_script(letter, workers, "-m", "fastloop", "run"),
        }
        if found["run"]["digest"] != found["python"]["digest"]:
            raise SystemExit(f"row {letter}, {workers} workers: digests differ")
        for who, values in taken.items():
            values.append(found[who]["us"])
    ratios = [plain / ours for plain, ours in zip(taken["python"], taken["run"], strict=True)]
    return Times(tuple(taken["run"])), Times(tuple(taken["python"])), min(ratios)


def measure_device(letter: str, rounds: int, step_us: float) -> tuple[Times, Times]:
    """Return how busy a device with such steps is, by `run` and by `python`, with two workers."""
    commands = ("-m", "fastloop", "run"), ()
    taken = [
        [run_script(letter, 2, *c, step_us=step_us)["busy"] for c in commands]
        for _ in range(rounds)
    ]
    ours, plain = zip(*taken, strict=True)
    return Times(ours, "%"), Times(plain, "%")


def main() -> int:
    if sys.argv[1:2] == ["--play"]:
        play(ROWS[sys.argv[2]], int(sys.argv[3]), float(sys.argv[4]))
        return 0
    arguments = parse_arguments(__doc__, "".join(ROWS))
    is_met, lines, page = True, [], "| script | no workers | 2 workers |\n|---|---|---|"
    folder = TemporaryDirectory()
    os.environ[FOLDER] = folder.name
    if {*"gmopqrstuvwBCDEFH"} & {*arguments.rows}:
        make_folder(folder.name, ROWS["g"].count)
    print("| script, a batch of 128 | workers | run | python | ratio | goal |")
    print("|---|---|---|---|---|---|")
    for letter in arguments.rows:
        row = ROWS[letter]
        page += f"\n| {row.name} |"
        for workers, goal in zip(WORKERS, row.goals, strict=True):
            ours, plain, least = measure_row(letter, workers, 2 if arguments.is_quick else ROUNDS)
            ratio = plain.median / ours.median
            is_met = is_met and ratio >= goal
            mark = "✓" if ratio >= goal else "✗"
            shown = f"{ratio:.1f} × (worst turn {least:.1f})"
            figure, worst = (f"{each:.{int(each < 10)}f}" for each in (ratio, least))
            page += f" {figure} × ({worst}) |"
            print(f"| {row.name} | {workers} | {ours} | {plain} | {shown} | ≥ {goal:g} × {mark} |")
            sys.stdout.flush()
            figures = {"run": ours.as_dict(), "python": plain.as_dict(), "least": least}
            if workers == 2 and letter in WITH_DEVICE:
                rounds = 2 if arguments.is_quick else ROUNDS
                busy, theirs = measure_device(letter, rounds, plain.median / 2)
                print(f"| {row.name}, a device is busy | 2 | {busy} | {theirs} | | ≥ 90 % |")
                figures |= {"busy": busy.as_dict(), "busy by python": theirs.as_dict()}
            lines.append(json.dumps({"row": letter, "workers": workers, **figures}))
    rmtree(f"{folder.name}.kept", ignore_errors=True)
    print(f"\n{page}")
    if arguments.json:
        arguments.json.write_text("\n".join(lines) + "\n")
    return 0 if is_met or arguments.is_quick else 1


if __name__ == "__main__":
    sys.exit(main())
