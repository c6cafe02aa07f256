"""python page_blocks.py PAGES...: run the blocks of pages that are whole programs (they begin with
an import), on small data. Each page has a process and a folder of its own, each program names of
its own. Print which pages have failed."""

import os
import re
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import torch
import torch._dynamo  # optimizers would, in each page
from PIL import Image

import fastloop

# Of all pages: what is large, and what takes long to import.
IMAGES = torch.randint(256, (600, 3, 256, 256), dtype=torch.uint8)
LABELS = torch.randint(10, (600,))


def write_files() -> None:
    """Write the files that pages read."""
    for name in ("cat", "dog"):
        (folder := Path("imagenet/train") / name).mkdir(parents=True)
        for number in range(4):
            image = np.full((256, 300, 3), number * 60, np.uint8)
            Image.fromarray(image).save(folder / f"{number}.jpg")
    Path("data").mkdir()
    tokens = np.arange(40 * 1024 + 1, dtype=np.uint16) % 1000
    tokens.tofile("data/train_0.bin")
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(tokens)
    Path("data/train-0.bin").write_bytes(header.tobytes() + tokens.tobytes())


def supposed_names() -> dict[str, object]:
    """Return what pages suppose that the reader has."""
    model = torch.nn.Embedding(1000, 1000)
    rows = [(torch.ones(4), torch.zeros(4)) for _ in range(64)]
    return {
        "images": IMAGES,
        "labels": LABELS,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "train": torch.utils.data.TensorDataset(IMAGES[:, :, :8, :8].contiguous(), LABELS),
        "any_iterable": rows[:4],
        "texts": [list(range(1, 2 + i % 40)) for i in range(600)],
        "tokenizer": lambda texts: {"input_ids": texts},
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": model.weight.square().mean(),
        "loss_fn": lambda found, wanted: found.mean(),
        "dataset": [(torch.tensor(i), torch.zeros(4)) for i in range(64)],
        "epochs": 1,
        "device": "cpu",
    }


def run_page(page: Path) -> None:
    write_files()
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
    programs = [block for block in map(dedent, blocks) if re.match(r"(import|from) ", block)]
    for program in programs:
        print(f"---- {page}:\n{program}----", flush=True)
        torch.manual_seed(0)
        exec(compile(program, page.name, "exec"), {"__name__": "__main__", **supposed_names()})
        fastloop.unpatch()
    print(len(programs), "programs ran")


def runs_in_a_child(page: Path, folder: Path) -> bool:
    """Return whether all programs of the page, and the process after them, end well."""
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        folder.mkdir()
        os.chdir(folder)
        run_page(page)
        sys.exit()
    return os.waitpid(pid, 0)[1] == 0


def main(pages: list[Path]) -> int:
    here = Path.cwd()
    failed = [page for n, page in enumerate(pages) if not runs_in_a_child(page, here / str(n))]
    print("failed:", *failed)
    return bool(failed)


sys.exit(main([Path(page) for page in sys.argv[1:]]))
