"""A report as one HTML page: fills ``page.html`` with text, tables and a chart in SVG. The page has
no script, needs no further file, and follows the reader's light or dark colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from fastloop.tools.report.render import describe_rate, list_facts, part_rows, phase_rows
from fastloop.tools.report.summary import LABELS
from fastloop.tools.text import seconds

# The drawing is _WIDTH wide. The bars are _HEIGHT high, _LEFT from the left, _TOP from the top.
_WIDTH, _LEFT, _TOP, _HEIGHT = 640, 80, 16, 160


def _draw_steps(found: dict[str, Any]) -> str:
    """Draw a bar for each step, or for the mean of some steps. A bar stacks the phases of a step.
    Bars of a few very long steps are cut off at the top."""
    series = found["series"]
    shown = {name: values for name, values in series["phases_ms"].items() if any(values)}
    if not shown:
        return "<p>n/a, because there were no steps.</p>"
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
    end = 'text-anchor="end"'
    texts = "".join(f'<text x="{x}" y="{y}" {end}>{escape(told)}</text>' for x, y, told in labels)
    items = (f'<li style="color:var(--{name})">■ {escape(LABELS[name])}</li>' for name in shown)
    return f"""<ul class="legend">{"".join(items)}</ul>
<figure><svg viewBox="0 0 {_WIDTH} {bottom + 30}" role="img"><title>{says}</title>
<path d="M{_LEFT} {_TOP}H{_WIDTH}M{_LEFT} {bottom}H{_WIDTH}" stroke="var(--line)"/>{bars}{texts}
</svg><figcaption>{says}; the highest is {seconds(sums[-1] / 1e3)}.</figcaption></figure>"""


def _table(rows: Sequence[Sequence[str]]) -> str:
    text = ""
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        text += "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"
    return f"<div><table>{text}</table></div>"


def make_page(found: dict[str, Any]) -> str:
    """Return the page for the numbers of ``Report.to_dict()``."""
    versions = {name: found[name] for name in ("fastloop", "torch", "python", "rank")}
    return Template(Path(__file__).with_name("page.html").read_text("utf-8")).substitute(
        versions,
        title=describe_rate(found),
        **{name: escape(found[name]) for name in ("began", "command", "host")},
        kind=found["verdict"]["kind"].partition(" ")[0].partition("-")[0],
        verdict=escape(found["verdict"]["text"]),
        chart=_draw_steps(found),
        phases=_table(phase_rows(found)),
        parts=_table(part_rows(found)),
        facts="".join(f"<li>{escape(fact)}</li>" for fact in list_facts(found)),
        steady=f"{found['steps']['steady']:,}",
    )
