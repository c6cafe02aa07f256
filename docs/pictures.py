"""Draws the pictures of docs/: the paths of a batch, a report and a comparison (SVG), and augmented
images (PNG).

    python docs/pictures.py

Each path is a row of boxes. Their colour says who does the work. The report and the comparison are
drawn from pictures/report.json and compare.txt, which two commands have measured and written:

    fastloop run --report=report.json train.py --noise
    fastloop compare --steps 400 --rounds 5 train.py > compare.txt
"""

from __future__ import annotations

import json
import re
import textwrap
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "pictures"
STYLE = """text { font: 13px system-ui, sans-serif; fill: #24292f } .small { font-size: 11px }
.title { font-weight: 600 } rect { stroke: #8c959f } .loop { fill: #dbe8ff }
.worker { fill: #d8f3dc } .device { fill: #ffe3c2 } .memory { fill: #eeeeee }
path { stroke: #57606a; fill: none }
.head { fill: #57606a; stroke: none }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .loop { fill: #1f3a68 }
.worker { fill: #1f4d2b } .device { fill: #5c3a12 } .memory { fill: #333333 }
path { stroke: #9da7b3 } .head { fill: #9da7b3 } }"""
WHO = {
    "loop": "the loop's thread",
    "worker": "threads or processes of the loader",
    "memory": "memory",
    "device": "the device",
}
# Boxes: who, title, two lines of text.
PATHS: dict[str, tuple[str, list[tuple[str, str, str, str]]]] = {
    "array": (
        'path "array": no Python runs for a sample',
        [
            ("loop", "sampler", "torch's permutation,", "cut into blocks of indices"),
            ("loop", "ring", "a slot and parts of it", "for each batch ahead"),
            ("worker", "gather", "C threads copy rows,", "transform images"),
            ("memory", "slot", "one block of memory,", "READY, then LENT"),
            ("loop", "tensors", "over the slot; the last one", "dropped gives it back"),
        ],
    ),
    "process": (
        'path "process": torch\'s worker loop over shared memory',
        [
            ("loop", "sampler", "a list of indices", "for each batch"),
            ("loop", "in-flight table", "a slot and a place in the", "memory budget"),
            ("worker", "worker process", "dataset[i]; C stacks the", "samples into the slot"),
            ("memory", "shared slot", "the reply tells only", "where the tensors lie"),
            ("loop", "tensors", "in the sampler's order;", "the last gives it back"),
        ],
    ),
    "thread": (
        'path "thread": the dataset runs in threads of this process',
        [
            ("loop", "sampler", "a list of indices", "for each batch"),
            ("loop", "tasks", "as many ahead as torch", "would have"),
            ("worker", "worker thread", "dataset[i] without", "pickling or copies"),
            ("memory", "slot", "the collate in C", "stacks the samples"),
            ("loop", "tensors", "in the sampler's order", ""),
        ],
    ),
    "sync": (
        'path "sync": no workers',
        [
            ("loop", "sampler", "a list of indices", "at each next()"),
            ("loop", "dataset[i]", "on the loop's own thread,", "as in torch"),
            ("loop", "collate in C", "samples or fields stacked", "without a Python loop"),
            ("memory", "slot", "from the loader's pool", ""),
            ("loop", "tensors", "of ordinary memory", ""),
        ],
    ),
    "device": (
        "device=: any of these paths, and then",
        [
            ("memory", "pinned slot", "filled by the path;", "images may stay bytes"),
            ("device", "copy", "one for each batch, on a", "stream of its own"),
            ("device", "kernels", "make elements of bytes,", "int64 of narrow tokens"),
            ("memory", "device buffer", "of torch's allocator", ""),
            ("loop", "tensors", "the loop's stream waits,", "the host does not"),
        ],
    ),
}
BOX, GAP, ROW = 160, 24, 112


def row(name: str, top: int) -> list[str]:
    """Return the elements of a path: its title, boxes, and arrows between them."""
    title, boxes = PATHS[name]
    found = [f'<text class="title" x="8" y="{top + 16}">{title}</text>']
    for number, (who, head, *lines) in enumerate(boxes):
        x, y = 8 + number * (BOX + GAP), top + 26
        found.append(f'<rect class="{who}" x="{x}" y="{y}" width="{BOX}" height="66" rx="6"/>')
        found.append(f'<text class="title" x="{x + 10}" y="{y + 20}">{head}</text>')
        for at, line in zip((38, 54), lines, strict=True):
            found.append(f'<text class="small" x="{x + 10}" y="{y + at}">{line}</text>')
        if number:
            found.append(f'<path d="M{x - GAP + 2} {y + 33}h{GAP - 9}"/>')
            found.append(f'<path class="head" d="M{x - 8} {y + 28}l7 5l-7 5z"/>')
    return found


def draw(*names: str) -> str:
    """Return the paths, one below the other, and what the colours mean, as SVG."""
    width, height = 5 * BOX + 4 * GAP + 16, ROW * len(names) + 26
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">']
    lines += [f"<title>The way of a batch: {', '.join(names)}</title>", f"<style>{STYLE}</style>"]
    for number, name in enumerate(names):
        lines += row(name, number * ROW)
    for number, (who, text) in enumerate(WHO.items()):
        x, y = 8 + number * 230, height - 18
        lines.append(f'<rect class="{who}" x="{x}" y="{y}" width="14" height="12"/>')
        lines.append(f'<text class="small" x="{x + 20}" y="{y + 10}">{text}</text>')
    return "\n".join([*lines, "</svg>", ""])


SCREEN = """text { font: 14px ui-monospace, monospace; fill: #24292f; white-space: pre }
.card { fill: #f6f8fa; stroke: #d0d7de } .told { font-weight: 600 }
svg svg text { font-family: system-ui, sans-serif; font-size: 12px }
:root { --data_wait: #d1495b; --host_to_device: #e0a030; --forward_backward: #2e7d6b;
--clip_optimizer: #3d6fb6; --other: #8c959f; --line: #d1d9e0 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 }
.card { fill: #151b23; stroke: #3d444d } :root { --line: #3d444d } }"""
LETTER, LINE = 8.45, 20  # of the font, in pixels


def draw_screen(lines: list[str], told: tuple[str, ...], chart: str = "") -> str:
    """Return lines of a terminal as SVG, those that begin like one of `told` in bold, and a chart
    of 640 by 206 below them."""
    width, top = round(LETTER * max(map(len, lines)) + 32), LINE * len(lines) + 32
    height = top + (round((width - 24) * 206 / 640) if chart else 0)
    found = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">']
    found += [f"<title>{escape(lines[0])}</title>", f"<style>{SCREEN}</style>"]
    size = f'width="{width - 2}" height="{height - 2}"'
    found.append(f'<rect class="card" x="1" y="1" {size} rx="8"/>')
    for number, line in enumerate(lines):
        kind = ' class="told"' if line.startswith(told) else ""
        place = f'x="16" y="{LINE * number + 30}" xml:space="preserve"'
        found.append(f"<text{kind} {place}>{escape(line)}</text>")
    if chart:
        place = f'x="8" y="{top - 8}" width="{width - 24}" height="{height - top}"'
        found.append(chart.replace("<svg ", f"<svg {place} ", 1))
    return "\n".join([*found, "</svg>", ""])


def draw_report(found: dict[str, Any]) -> str:
    """Return the verdict of a report, its table of a step and its chart."""
    from fastloop.tools.report.page import make_page
    from fastloop.tools.report.render import phase_rows
    from fastloop.tools.report.summary import LABELS

    verdict = textwrap.wrap(found["verdict"]["text"], 88)
    lines = [f"$ fastloop run --report=run.html {found['command']}", "", *verdict, ""]
    for part, *cells in phase_rows(found):
        sign = "■" if part in LABELS.values() and part != LABELS["step"] else " "
        lines.append(f"{sign} {part:18}" + "".join(f"{cell:>12}" for cell in cells))
    chart = re.search(r"<svg .*?</svg>", make_page(found), re.DOTALL)
    assert chart is not None
    drawn = draw_screen(lines, tuple(verdict), chart[0])
    for name, label in LABELS.items():
        sign = f'<tspan style="fill: var(--{name})">■</tspan>'
        drawn = drawn.replace(f">■ {label}", f">{sign} {label}")
    return drawn


def draw_comparison(text: str) -> str:
    """Return what `fastloop compare` has printed."""
    printed = [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(line, 118, subsequent_indent="    ", drop_whitespace=False)
    ]
    command = "$ fastloop compare --steps 400 --rounds 5 train.py"
    return draw_screen([command, *printed], ("EQUAL", "SPEED"))


def drawings() -> dict[str, str]:
    """Return all drawings by the name of their file."""
    return {
        "paths.svg": draw(*PATHS),
        **{f"{name}.svg": draw(name) for name in PATHS},
        "report.svg": draw_report(json.loads((FOLDER / "report.json").read_text())),
        "compare.svg": draw_comparison((FOLDER / "compare.txt").read_text()),
    }


def augment_images() -> object:
    """Return an array of uint8, HWC: each row has an image and four random results for it."""
    import numpy as np
    import torch

    from fastloop import ArrayDataset
    from fastloop import transforms as T

    y, x = np.mgrid[0:96, 0:96]
    disc = (x - 48) ** 2 + (y - 48) ** 2 < 30**2
    square = (abs(x - 40) < 26) & (abs(y - 56) < 26)
    stripes = (x + y) // 12 % 2 == 0
    images = torch.empty(3, 3, 96, 96, dtype=torch.uint8)
    for number, shape in enumerate((disc, square, stripes)):
        background = np.stack([x * 2, y * 2, 190 - x])
        colour = np.roll(np.array([235, 120, 40]), number)[:, None, None]
        images[number] = torch.from_numpy(np.where(shape, colour, background).astype(np.uint8))
    operations = T.RandomResizedCrop(96, (0.3, 1)), T.RandomHorizontalFlip(), T.RandomErasing(0.4)
    data = ArrayDataset(images, transform=T.Compose([*operations]), seed=4)
    rows = [torch.cat([images[i], *(data[i, view][0] for view in range(4))], 2) for i in range(3)]
    return torch.cat(rows, 1).permute(1, 2, 0).numpy()


def main() -> None:
    from PIL import Image

    for name, text in drawings().items():
        (FOLDER / name).write_text(text)
    Image.fromarray(augment_images()).save(FOLDER / "augmented.png", optimize=True)
    print(f"written: {FOLDER}")


if __name__ == "__main__":
    main()
