"""The chart of ``bench``: a bar for each case, as SVG that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from fastloop.tools.bench.stats import Figure

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 640, 30, 120, 90, 40
_STYLE = """
svg { font: 13px system-ui, sans-serif; background: #fff }
text { fill: #222 } .bar { fill: #3b7dd8 } .same { fill: #9aa5b1 }
.line { stroke: #222; stroke-width: 1 } .one { stroke: #c33; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
  svg { background: #16181c } text { fill: #e6e6e6 } .line { stroke: #e6e6e6 }
}
"""


def draw_chart(bars: Sequence[tuple[str, Figure, str]]) -> str:
    """How many times as fast as others, on a logarithmic scale, with intervals.

    Args:
        bars: name, speed over another's, and what is written beside it.
    """
    low = min([0.5, *(figure.low for _, figure, _ in bars)])
    high = max([2.0, *(figure.high for _, figure, _ in bars)])
    scale = (_WIDTH - _LEFT - _RIGHT) / math.log(high / low)

    def x_of(value: float) -> float:
        return _LEFT + scale * math.log(value / low)

    height = _TOP + _ROW * len(bars) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'aria-label="speed of fastloop over others">',
        f"<style>{_STYLE}</style>",
        f'<text x="{_LEFT}" y="20">fastloop over others: times as fast, 95 % intervals</text>',
    ]
    one = x_of(1.0)
    for number, (name, figure, text) in enumerate(bars):
        y = _TOP + _ROW * number
        middle, end = y + _ROW / 2 - 4, x_of(figure.median)
        kind = "same" if figure.has(1.0) else "bar"
        parts += [
            f'<text x="{_LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{kind}" x="{min(one, end):.1f}" y="{y}" '
            f'width="{abs(end - one):.1f}" height="{_ROW - 8}"/>',
            f'<path class="line" d="M{x_of(figure.low):.1f} {middle:.1f}'
            f'H{x_of(figure.high):.1f}"/>',
            f'<text x="{max(one, x_of(figure.high)) + 6:.1f}" y="{middle + 4:.1f}">'
            f"{escape(text)}</text>",
        ]
    parts.append(f'<path class="one line" d="M{one:.1f} {_TOP - 6}V{height - 14}"/></svg>')
    return "\n".join(parts) + "\n"
