"""A report as one HTML page: text, tables and charts in SVG. It holds no script, names no other
file, and takes the reader's light or dark colours."""

from __future__ import annotations

from collections.abc import Sequence
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
_WIDTH, _LEFT, _TOP, _HEIGHT = 640, 80, 16, 160  # of the chart; the space left of it and above


def _draw_steps(found: dict[str, Any]) -> str:
    """Draw a bar for each step, or for some steps on average, in which phases lie on top of each
    other; the times of a few steps that took very long are cut."""
    series = found["series"]
    shown = {name: values for name, values in series["phases_ms"].items() if any(values)}
    if not shown:
        return "<p>n/a: there were no steps.</p>"
    columns = list(zip(*shown.values(), strict=True))
    sums = sorted(sum(ms or 0 for ms in column) for column in columns)
    scale = 1.05 * (sums[int(0.98 * (len(sums) - 1))] if len(sums) > 50 else sums[-1])
    bottom, width, size = _TOP + _HEIGHT, (_WIDTH - _LEFT) / len(sums), series["steps_per_bar"]
    paths = dict.fromkeys(shown, "")
    for x, column in enumerate(columns):
        y = float(bottom)
        for name, ms in zip(shown, column, strict=True):
            height = min(_HEIGHT * (ms or 0) / scale, y - _TOP)
            y -= height
            box = f"h{width * 0.9:.2f}v{height:.1f}h-{width * 0.9:.2f}z"
            paths[name] += f"M{_LEFT + x * width:.1f} {y:.1f}{box}" if height > 0 else ""
    last = f"step {found['steps']['count'] - 1:,}"
    labels = [(_LEFT - 6, _TOP + 4, seconds(scale / 1e3)), (_LEFT - 6, bottom + 4, "0")]
    labels += [(_LEFT + 6, bottom + 22, f"{series['first_step']:,}"), (_WIDTH, bottom + 22, last)]
    says = f"Time of each {'step' if size == 1 else f'{size} steps, on average'}, by phase"
    bars = "".join(f'<path fill="var(--{name})" d="{path}"/>' for name, path in paths.items())
    texts = "".join(
        f'<text x="{x}" y="{y}" text-anchor="end">{escape(text)}</text>' for x, y, text in labels
    )
    items = (f'<li style="color:var(--{name})">■ {escape(LABELS[name])}</li>' for name in shown)
    return f"""<ul class="legend">{"".join(items)}</ul>
<figure><svg viewBox="0 0 {_WIDTH} {bottom + 30}" role="img"><title>{says}</title>
<path d="M{_LEFT} {_TOP}H{_WIDTH}M{_LEFT} {bottom}H{_WIDTH}" stroke="var(--line)"/>{bars}{texts}
</svg><figcaption>{says}; the highest is {seconds(sums[-1] / 1e3)}.</figcaption></figure>"""


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
<h2>Where the run went</h2>{_table(part_rows(found))}
<h2>Loaders, workers and more</h2><ul>{facts}</ul>
<footer>No synchronisation; the host's clock. The table of phases is of {found["steps"]["steady"]:,}
steps, without the first ones of the run and of each epoch. fastloop {found["fastloop"]}, torch
{found["torch"]}, Python {found["python"]}.</footer></body></html>
"""
