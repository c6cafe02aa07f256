"""A report as one HTML page: text, tables and charts in SVG. It holds no script and names no other
file, and takes the reader's light or dark colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from fastloop.tools.report.table import (
    HEAD,
    LABELS,
    PARTS,
    describe_cost,
    describe_gpu,
    describe_loader,
    describe_rate,
    describe_skips,
    phase_rows,
    seconds,
)
from fastloop.tools.report.verdict import ms, percent

_STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--soft:#59636e;--line:#d1d9e0;
--card:#f6f8fa;--data_wait:#d1495b;--host_to_device:#e0a030;--forward_backward:#2e7d6b;--clip_optimizer:#3d6fb6;
--other:#8c959f;--gpu:#7b4fb0}
@media(prefers-color-scheme:dark){:root{--page:#0d1117;--text:#e6edf3;--soft:#9198a1;--line:#3d444d;
--card:#151b23;--data_wait:#f0697b;--host_to_device:#e9b44c;--forward_backward:#4db79d;
--clip_optimizer:#6ea3f0;--other:#7d8590;--gpu:#b48af0}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 3rem;max-width:60rem;background:var(--page);
color:var(--text);font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.1rem;margin:0 0 .75rem;color:var(--soft);font-weight:500}
h2{font-size:1.05rem;margin:2rem 0 .5rem}
.verdict{font-size:1.15rem;border-left:.35rem solid var(--soft);background:var(--card);
padding:.8rem 1rem;border-radius:.3rem}
.verdict.input{border-color:var(--data_wait)}.verdict.not{border-color:var(--forward_backward)}
.verdict.partly{border-color:var(--host_to_device)}
svg{display:block;width:100%;height:auto;margin:.25rem 0}
svg text{fill:var(--soft);font:12px system-ui,sans-serif}
figure{margin:0}figcaption,footer{color:var(--soft);font-size:.9rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.3rem .5rem;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal}
ul{list-style:none;padding:0;margin:.25rem 0;display:flex;flex-wrap:wrap;gap:.15rem 1rem}
li::before{content:"";display:inline-block;width:.8em;height:.8em;margin-right:.4em;
border-radius:.15em;background:var(--of)}
ul.plain{display:block}ul.plain li::before{display:none}
@media(max-width:600px){svg text{font-size:20px}svg .odd{display:none}
th,td{padding:.3rem .2rem;font-size:.85rem}}
footer{margin-top:2rem;border-top:1px solid var(--line);padding-top:.5rem}
"""
_WIDTH, _LEFT = 640, 76  # of a chart, and of what stands left of it


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _short_ms(value: float) -> str:
    return f"{value:g} ms" if value < 1000 else f"{value / 1000:g} s"


def _nice(value: float) -> float:
    """A round number that is not smaller."""
    if value <= 0:
        return 1.0
    power = 10.0 ** len(str(int(value))) / 10 if value >= 1 else 1.0
    while power > value:
        power /= 10
    return next(power * digit for digit in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if power * digit >= value)


def _figure(name: str, says: str, height: int, parts: Iterable[str], caption: str) -> str:
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="{name}-t">'
        f'<title id="{name}-t">{escape(says)}</title>{"".join(parts)}</svg>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _axis(top: int, height: int, highest: str) -> list[str]:
    return [
        f'<path d="M{_LEFT} {top}H{_WIDTH}M{_LEFT} {top + height}H{_WIDTH}" '
        'stroke="var(--line)" fill="none"/>',
        f'<text x="{_LEFT - 6}" y="{top + 4}" text-anchor="end">{escape(highest)}</text>',
        f'<text x="{_LEFT - 6}" y="{top + height + 4}" text-anchor="end">0</text>',
    ]


def _legend(names: Iterable[str]) -> str:
    items = (f'<li style="--of:var(--{name})">{escape(LABELS[name])}</li>' for name in names)
    return f"<ul>{''.join(items)}</ul>"


# ---- charts


def _draw_steps(found: dict[str, Any]) -> str:
    series = found["series"]
    shown = {name: ms for name, ms in series["phases_ms"].items() if any(v for v in ms)}
    if not shown:
        return "<p>n/a: there were no steps.</p>"
    bars = len(next(iter(shown.values())))
    sums = [sum(values[i] or 0 for values in shown.values()) for i in range(bars)]
    # A few steps that took very long would press the others flat.
    limit = sorted(sums)[int(0.98 * (bars - 1))] if bars > 20 else max(sums)
    scale, top, height = _nice(limit * 1.05), 10, 200
    width = (_WIDTH - _LEFT) / bars
    base = [0.0] * bars
    paths = []
    for name, values in shown.items():
        d = []
        for i, value in enumerate(values):
            low, high = base[i], min(base[i] + (value or 0), scale)
            base[i] = high
            if high > low:
                x, y = _LEFT + i * width, top + height * (1 - high / scale)
                size = height * (high - low) / scale
                d.append(f"M{_number(x)} {_number(y)}h{width:.2f}v{_number(size)}h-{width:.2f}z")
        paths.append(f'<path fill="var(--{name})" d="{"".join(d)}"/>')
    first, size = series["first_step"], series["steps_per_bar"]
    ends = [
        f'<text x="{_LEFT}" y="{top + height + 20}">step {first:,}</text>',
        f'<text x="{_WIDTH}" y="{top + height + 20}" text-anchor="end">'
        f"step {found['steps']['count'] - 1:,}</text>",
    ]
    cut = sum(value > scale for value in sums)
    caption = f"Each bar is {'a step' if size == 1 else f'the mean of {size} steps'}."
    if cut:
        higher = "One bar is" if cut == 1 else f"{cut} bars are"
        caption += f" {higher} higher than the chart; the highest is {ms(max(sums))}."
    parts = [*_axis(top, height, _short_ms(scale)), *paths, *ends]
    says = "Time of each step, by phase. " + found["verdict"]["text"]
    return _legend(shown) + _figure("steps", says, top + height + 28, parts, caption)


def _draw_counts(name: str, says: str, labels: Sequence[str], counts: Sequence[int]) -> str:
    top, height = 24, 120
    width = (_WIDTH - _LEFT) / len(counts)
    most = max(counts)
    parts = [f'<path d="M{_LEFT} {top + height}H{_WIDTH}" stroke="var(--line)"/>']
    every = -(-len(labels) // 10)
    for i, (label, count) in enumerate(zip(labels, counts, strict=True)):
        x, size = _LEFT + i * width, height * count / most
        parts.append(
            f'<rect x="{_number(x + 1)}" y="{_number(top + height - size)}" '
            f'width="{_number(max(width - 2, 1))}" height="{_number(size)}" '
            'fill="var(--data_wait)"/>'
        )
        middle = _number(x + width / 2)
        if count == most:
            y = _number(top + height - size - 4)
            parts.append(f'<text x="{middle}" y="{y}" text-anchor="middle">{count:,}</text>')
        if i % every == 0:
            kind = ' class="odd"' if i // every % 3 else ""
            parts.append(
                f'<text{kind} x="{middle}" y="{top + height + 20}" text-anchor="middle">'
                f"{escape(label)}</text>"
            )
    return _figure(name, says, top + height + 28, parts, says)


def _draw_waits(found: dict[str, Any]) -> str:
    waits = found["waits"]
    if waits is None:
        return "<p>n/a: no batch came from a DataLoader.</p>"
    says = "Steps that waited for data up to so long, the unit of the axis growing 1, 2, 5, 10."
    labels = [_short_ms(edge) for edge in waits["edges_ms"]]
    return _draw_counts("waits", says, labels, waits["counts"])


def _draw_ready(found: dict[str, Any]) -> str:
    ready = found["series"]["batches_ready"]
    known = [value for value in ready if value is not None]
    if not known:
        return "<p>n/a: this loader keeps no queue that can be looked into.</p>"
    scale, top, height = _nice(max(*known, 1)), 10, 100
    width = (_WIDTH - _LEFT) / len(ready)
    d = []
    for i, value in enumerate(ready):
        if value is not None:
            y = top + height * (1 - value / scale)
            x = _number(_LEFT + i * width)
            d.append(f"M{x} {_number(y)}h{width:.2f}V{top + height}h-{width:.2f}z")
    area = f'<path d="{"".join(d)}" fill="var(--clip_optimizer)"/>'
    mean = sum(known) / len(known)
    says = (
        f"Batches that were ready when the loop asked for one: {mean:.1f} on average. Near 0, the "
        "loop is faster than the loader."
    )
    return _figure("ready", says, height + 20, [*_axis(top, height, f"{scale:g}"), area], says)


# ---- tables


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    table = f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _part_table(found: dict[str, Any]) -> str:
    whole = found["seconds"]
    parts = found["seconds_of"]
    rows = [
        [label, seconds(parts[name]), percent(parts[name] / whole if whole else None)]
        for name, label in PARTS.items()
    ]
    return _table(["of the run", "time", "share"], rows)


def make_page(found: dict[str, Any]) -> str:
    """Of the numbers of ``Report.to_dict()``."""
    steps = found["steps"]
    kind = found["verdict"]["kind"].partition(" ")[0].partition("-")[0]
    loaders = "".join(f"<li>{escape(describe_loader(one))}</li>" for one in found["loaders"])
    ended = ""
    if found["ended_by"]:
        ended = f"<p>Ended by {escape(found['ended_by'])} in {found['ended_in'] or 'no step'}.</p>"
    title = describe_rate(found)
    gpu = f"<li>GPU busy: {escape(describe_gpu(found))}</li>" if found["gpu"]["uuid"] else ""
    versions = f"fastloop {found['fastloop']}, torch {found['torch']}, Python {found['python']}"
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>fastloop report: {title}</title><style>{_STYLE}</style></head><body>
<h1>fastloop report · {title} · {escape(found["began"])} · rank {found["rank"]}</h1>
<p class="verdict {kind}">{escape(found["verdict"]["text"])}</p>{ended}
<h2>Where a step goes</h2>{_draw_steps(found)}{_table(HEAD, phase_rows(found))}
<h2>How long steps wait for data</h2>{_draw_waits(found)}
<h2>Batches ready</h2>{_draw_ready(found)}
<h2>Where the run went</h2>{_part_table(found)}
<h2>Loaders and workers</h2><ul class="plain">{loaders or "<li>n/a: none was seen</li>"}</ul>
<ul class="plain"><li>Skipped steps: {escape(describe_skips(found))}</li>{gpu}</ul>
<footer>{escape(describe_cost(found))}; no synchronisation. The host's clock. The table of phases
is of {steps["steady"]:,} steps, without the first ones of the run and of each epoch. {versions}.
</footer></body></html>
"""
