"""Draws the bars of README from benchmarks/chart.json; docs/results/benchmarks.md has the figures.

python benchmarks/chart.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "docs/pictures/bars.svg"
WIDTH, LEFT, RIGHT, ROW, TOP = 900, 300, 240, 34, 62
STYLE = """text { font: 14px system-ui, sans-serif; fill: #24292f } .small { font-size: 11px }
.title { font-weight: 600 } .bar { fill: #2f6fde } .grid { stroke: #8c959f; stroke-opacity: .35 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .bar { fill: #5b93f5 } }"""


def draw(chart: Any) -> str:
    """Return the chart as SVG: a bar a row, on a logarithmic scale from 1 to 200 times."""
    height = TOP + ROW * len(chart["rows"]) + 44
    room = WIDTH - LEFT - RIGHT

    def place(times: float) -> float:
        return round(LEFT + room * math.log(times) / math.log(200), 1)

    bottom = height - 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{chart['title']}</title>",
        f"<style>{STYLE}</style>",
        f'<text class="title" x="10" y="24">{chart["title"]}</text>',
    ]
    for times in (1, 10, 100):
        x = place(times)
        lines.append(f'<path class="grid" d="M{x} {TOP - 8}V{bottom}"/>')
        lines.append(f'<text class="small" x="{x}" y="{TOP - 12}">{times}×</text>')
    for number, row in enumerate(chart["rows"]):
        y = TOP + ROW * number
        end = place(row["times"])
        lines += [
            f'<text x="{LEFT - 12}" y="{y + 18}" text-anchor="end">{row["work"]}</text>',
            f'<rect class="bar" x="{LEFT}" y="{y + 2}" width="{end - LEFT:.1f}" height="22"/>',
            f'<text class="title" x="{end + 8:.1f}" y="{y + 18}">{row["times"]}×</text>',
            f'<text class="small" x="{WIDTH - 10}" y="{y + 18}" text-anchor="end">'
            f"{row['fastloop']}, torch {row['torch']}</text>",
        ]
    lines.append(f'<text class="small" x="10" y="{height - 12}">{chart["source"]}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    CHART.write_text(draw(json.loads((ROOT / "benchmarks/chart.json").read_text())))
    print(f"written: {CHART}")
