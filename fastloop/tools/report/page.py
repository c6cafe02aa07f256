"""A report as one HTML page: text, tables and charts in SVG. It holds no script, names no other
file, and takes the reader's light or dark colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fastloop.tools.report.render import LABELS, describe_rate, list_facts, part_rows, phase_rows
from fastloop.tools.text import seconds

_STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--soft:#59636e;--line:#d1d9e0;
--card:#f6f8fa;--data_wait:#d1495b;--host_to_device:#e0a030;--forward_backward:#2e7d6b;
--clip_optimizer:#3d6fb6;--other:#8c959f}
@media(prefers-color-scheme:dark){:root{--page:#0d1117;--text:#e6edf3;--soft:#9198a1;--line:#3d444d;
--card:#151b23;--data_wait:#f0697b;--host_to_device:#e9b44c;--forward_backward:#4db79d;
--clip_optimizer:#6ea3f0;--other:#7d8590}}
body{margin:0 auto;padding:1.5rem 1rem 3rem;max-width:60rem;background:var(--page);
color:var(--text);font:16px/1.5 system-ui,sans-serif}
h1,h2{font-size:1.1rem;margin:2rem 0 .5rem}h1,figcaption,footer{color:var(--soft);font-weight:500}
.verdict{font-size:1.15rem;border-left:.35rem solid;background:var(--card);padding:.8rem 1rem}
.input{border-color:var(--data_wait)}.partly{border-color:var(--host_to_device)}
.not{border-color:var(--forward_backward)}
svg{display:block;width:100%}svg text{fill:var(--soft);font-size:12px}figure{margin:0}
div{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:right;padding:.3rem .5rem;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal}
ul{list-style:none;padding:0}.legend li{display:inline;margin-right:1rem}
@media(max-width:600px){svg text{font-size:20px}th,td{padding:.3rem .2rem;font-size:.85rem}}
"""
_WIDTH, _LEFT, _TOP, _HEIGHT = 640, 80, 16, 160  # of a chart; the space left of it and above


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(power * digit for digit in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if power * digit >= value)


def _draw_bars(
    series: Mapping[str, Sequence[float | None]], says: str, labels: dict[int, str], unit: str = ""
) -> str:
    """Draw bars, in which the values of several series lie on top of each other.

    Args:
        series: values of each bar, by the name of their colour.
        says: the caption.
        labels: texts below some bars.
        unit: "ms" writes the highest value as a time.
    """
    count = len(next(iter(series.values())))
    sums = sorted(sum(values[i] or 0 for values in series.values()) for i in range(count))
    # A few steps that took very long would press the others flat.
    limit = sums[int(0.98 * (count - 1))] * 1.05 if count > 50 else sums[-1]
    scale, bottom, width = _round_up(limit), _TOP + _HEIGHT, (_WIDTH - _LEFT) / count
    cut = sum(value > scale for value in sums)
    show = (lambda ms: seconds(ms / 1e3)) if unit == "ms" else "{:g}".format
    if cut:
        says += f" Higher than the chart: {cut}; the highest is {show(sums[-1])}."
    base, parts = [0.0] * count, []
    for name, values in series.items():
        path = ""
        for i, value in enumerate(values):
            low, high = base[i], min(base[i] + (value or 0), scale)
            base[i] = high
            if high > low:
                x, y = _LEFT + i * width, bottom - _HEIGHT * high / scale
                path += f"M{x:.1f} {y:.1f}h{width * 0.9:.2f}v{_HEIGHT * (high - low) / scale:.1f}"
                path += f"h-{width * 0.9:.2f}z"
        parts.append(f'<path fill="var(--{name})" d="{path}"/>')
    ends = [(_LEFT - 6, _TOP + 4, show(scale)), (_LEFT - 6, bottom + 4, "0")]
    marks = [(_LEFT + (i + 0.5) * width, bottom + 22, text) for i, text in labels.items()]
    parts += [
        f'<text x="{x:.0f}" y="{y}" text-anchor="{"end" if x < _LEFT or x > 600 else "middle"}">'
        f"{escape(text)}</text>"
        for x, y, text in (*ends, *marks)
    ]
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {bottom + 30}" role="img">'
        f"<title>{escape(says)}</title>"
        f'<path d="M{_LEFT} {_TOP}H{_WIDTH}M{_LEFT} {bottom}H{_WIDTH}" stroke="var(--line)"/>'
        f"{''.join(parts)}</svg><figcaption>{escape(says)}</figcaption></figure>"
    )


def _draw_steps(found: dict[str, Any]) -> str:
    series = found["series"]
    shown = {name: values for name, values in series["phases_ms"].items() if any(values)}
    if not shown:
        return "<p>n/a: there were no steps.</p>"
    last, size = len(next(iter(shown.values()))) - 1, series["steps_per_bar"]
    labels = {0: f"{series['first_step']:,}", last: f"step {found['steps']['count'] - 1:,}"}
    says = f"Time of each {'step' if size == 1 else f'{size} steps, on average'}, by phase."
    items = (f'<li style="color:var(--{name})">■ {escape(LABELS[name])}</li>' for name in shown)
    return f'<ul class="legend">{"".join(items)}</ul>' + _draw_bars(shown, says, labels, "ms")


def _draw_waits(found: dict[str, Any]) -> str:
    waits = found["waits"]
    if waits is None:
        return "<p>n/a: no batch came from a DataLoader.</p>"
    edges = waits["edges_ms"]
    labels = {i: seconds(edges[i] / 1e3) for i in range(0, len(edges), -(-len(edges) // 5))}
    says = "How many steps waited for data up to so long; the axis grows 1, 2, 5, 10."
    return _draw_bars({"data_wait": waits["counts"]}, says, labels)


def _draw_ready(found: dict[str, Any]) -> str:
    ready = found["series"]["batches_ready"]
    known = [value for value in ready if value is not None]
    if not known:
        return "<p>n/a: this loader keeps no queue that can be looked into.</p>"
    says = f"Batches ready when the loop asked for one: {sum(known) / len(known):.1f} on average. "
    says += "Near 0, the loop is faster than the loader."
    return _draw_bars({"clip_optimizer": ready}, says, {})


def _table(rows: Sequence[Sequence[str]]) -> str:
    text = "".join(
        "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"
        for row, tag in zip(rows, ["th", *["td"] * len(rows)], strict=False)
    )
    return f"<div><table>{text}</table></div>"


def make_page(found: dict[str, Any]) -> str:
    """Return the page of the numbers of ``Report.to_dict()``."""
    kind = found["verdict"]["kind"].partition(" ")[0].partition("-")[0]
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in list_facts(found))
    title = describe_rate(found)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>fastloop report: {title}</title><style>{_STYLE}</style></head><body>
<h1>fastloop report · {title} · {escape(found["began"])} · rank {found["rank"]}</h1>
<p class="verdict {kind}">{escape(found["verdict"]["text"])}</p>
<h2>Where a step goes</h2>{_draw_steps(found)}{_table(phase_rows(found))}
<h2>How long steps wait for data</h2>{_draw_waits(found)}
<h2>Batches ready</h2>{_draw_ready(found)}
<h2>Where the run went</h2>{_table(part_rows(found))}
<h2>Loaders, workers and more</h2><ul>{facts}</ul>
<footer>No synchronisation; the host's clock. The table of phases is of {found["steps"]["steady"]:,}
steps, without the first ones of the run and of each epoch. fastloop {found["fastloop"]}, torch
{found["torch"]}, Python {found["python"]}.</footer></body></html>
"""
