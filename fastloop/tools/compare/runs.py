"""Compares the plain and the patched runs of a program: are the results equal, and what do the runs
cost? A run is a dict of ``RunObserver.to_dict()``. This module does not import torch.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from fastloop.tools.text import ratio as show_ratio
from fastloop.tools.text import seconds, size, table

EQUAL, DIFFERENT, UNKNOWN = "equal", "different", "unknown"
_DRAWS = 2000
_ALIKE = 0.03  # a ratio that differs from 1 by less counts as no difference
_Run = dict[str, Any]


# ---- medians and their intervals


class Figure(NamedTuple):
    """A median and the 95 % interval of the median."""

    median: float
    low: float
    high: float


def draw_interval(compute: Callable[..., float], *samples: Sequence[Any]) -> Figure:
    """Return `compute(*samples)` and the bootstrap interval (Efron 1979, percentiles; a fixed
    seed). Each sample is drawn anew by itself."""
    draw = random.Random(len(samples[0]))
    drawn = sorted(
        compute(*(draw.choices(rounds, k=len(rounds)) for rounds in samples)) for _ in range(_DRAWS)
    )
    cut = _DRAWS // 40  # 2.5 % at each end
    return Figure(compute(*samples), drawn[cut], drawn[-1 - cut])


def median_of(rounds: Sequence[float]) -> Figure:
    """Return the median of rounds."""
    return draw_interval(statistics.median, rounds)


def ratio_of(theirs: Sequence[float], ours: Sequence[float]) -> Figure:
    """Return the median of `theirs` over the median of `ours`. Rounds are drawn in pairs, because
    programs that were measured side by side have met the same noise."""

    def divide(pairs: Sequence[tuple[float, float]]) -> float:
        return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)

    return draw_interval(divide, list(zip(theirs, ours, strict=True)))


def judge(ratio: Figure) -> str:
    """Describe a ratio. A wide interval around 1 proves nothing, so "cannot tell" is the answer."""
    if ratio.low >= 1 - _ALIKE and ratio.high <= 1 + _ALIKE:
        return "no difference"
    return "cannot tell" if ratio.low <= 1 <= ratio.high else f"{ratio.median:.3g}x"


# ---- equality


class Verdict(NamedTuple):
    """The answer to: does the patched program compute the same as the plain one?

    Attributes:
        kind: EQUAL, DIFFERENT or UNKNOWN.
        text: the equal numbers, the first difference, or why there is no answer.
    """

    kind: str
    text: str


def _find_difference(a: _Run, b: _Run, names: tuple[str, str]) -> str:
    """Return the first difference; "" if the runs are equal."""
    for one, other in zip_longest(a["losses"], b["losses"]):
        if one is None or other is None:
            which, loss = (names[1], other) if one is None else (names[0], one)
            return f"step {loss[0] + 1}: only {which} has one more backward pass"
        if one != other:
            told, others = (f"{loss[2] or loss[1]} ({loss[3][:16]})" for loss in (one, other))
            where = f"{told} in {names[0]} and {others} in {names[1]}"
            return f"step {min(one[0], other[0]) + 1}: the loss is {where}"
    if a["steps"] != b["steps"]:
        return f"{names[0]} has {a['steps']} steps, and {names[1]} has {b['steps']}"
    if a["parameters"] != b["parameters"]:
        return f"step {a['steps']}: the losses are equal, but the parameters afterwards differ"
    return ""


def find_verdict(plain: Sequence[_Run], patched: Sequence[_Run]) -> Verdict:
    """Compare two or more plain runs with the patched runs. If two plain runs differ, there is no
    verdict."""
    first = plain[0]
    if not first["losses"] and first["parameters"] is None:
        others = f"{first['calls_of_other_threads']} calls came from other threads"
        seen = "the thread that imports torch has run no backward pass and no step of a "
        return Verdict(UNKNOWN, f"{seen}torch.optim optimizer; {others}")
    for other in plain[1:]:
        if found := _find_difference(first, other, ("one plain run", "a second plain run")):
            remedy = "Fix the program's seeds or pass --seed 0; look at threads, clocks and files"
            return Verdict(UNKNOWN, f"the program differs from itself: {found}. {remedy}")
    for other in patched:
        if found := _find_difference(first, other, ("the plain run", "the patched run")):
            return Verdict(DIFFERENT, found)
    parameters = ", and the parameters after the last one" if first["parameters"] else ""
    return Verdict(EQUAL, f"{len(first['losses'])} losses of {first['steps']} steps{parameters}")


# ---- costs


# The label and the format of each key of a run. More is better for the first row only.
_ROWS: dict[str, tuple[str, Callable[[float], str]]] = {
    "steps_per_second": ("steps a second", "{:,.1f}".format),
    "data_wait_s": ("data wait a step", seconds),
    "cpu_s": ("CPU time a step", seconds),
    "first_batch_s": ("first batch", seconds),
    "between_epochs_s": ("between epochs", seconds),
    "total_s": ("start to last step", seconds),
    "pss_bytes": ("memory", size),
    "gpu_bytes": ("GPU memory", size),
}


class Costs(NamedTuple):
    """One row of the table. `ratio` is patched over plain; None if one of the two is 0."""

    plain: Figure
    patched: Figure
    ratio: Figure | None


def _compute_costs(plain: Sequence[_Run], patched: Sequence[_Run]) -> dict[str, Costs | None]:
    """Return the costs by key. A cost that some run did not measure is None."""
    costs: dict[str, Costs | None] = dict.fromkeys(_ROWS)
    for key in costs:
        a, b = ([run[key] for run in of] for of in (plain, patched))
        if None not in a + b:
            costs[key] = Costs(median_of(a), median_of(b), ratio_of(b, a) if all(a + b) else None)
    return costs


def _interval(figure: Figure, show: Callable[[float], str]) -> str:
    return f"({show(figure.low)} - {show(figure.high)})"


def _make_row(key: str, cost: Costs, more: str) -> list[str]:
    label, show = _ROWS[key]
    cells = [f"{show(one.median)} {_interval(one, show)}" for one in (cost.plain, cost.patched)]
    if cost.ratio is None:
        return [label, *cells, "n/a"]
    found = judge(cost.ratio)
    is_better = (cost.ratio.median > 1) == (key == "steps_per_second")
    notes = {"cannot tell": f"; {more}", "no difference": ""}
    note = notes.get(found, " better" if is_better else " worse")
    return [label, *cells, f"{found} {_interval(cost.ratio, show_ratio)}{note}"]


def make_table(plain: Sequence[_Run], patched: Sequence[_Run], limit: int) -> str:
    """Return the costs that were measured and the verdict, as text of 100 columns or more."""
    costs, rounds, steps = _compute_costs(plain, patched), len(plain), plain[0]["steps"]
    more = f"--rounds {max(7, 2 * rounds + 1)}"
    rows = {key: _make_row(key, cost, more) for key, cost in costs.items() if cost}
    lines = table([["", "plain", "patched", "patched / plain"], *rows.values()])
    lines.append(f"  patched: {patched[-1]['patched']}")
    if steps < limit:
        lines.append(f"  the program ended by itself after {steps} of {limit} steps")
    kind, found = find_verdict(plain, patched)
    titles = {DIFFERENT: "DIFFERENT", UNKNOWN: "NOT JUDGED"}
    title = titles.get(kind, f"EQUAL to the last bit in all {rounds + len(patched)} runs")
    speed = rows.get("steps_per_second", ["n/a, too few steps"])[-1]
    return "\n".join([*lines, f"{title}: {found}", f"SPEED: patched / plain: {speed}"])


def to_dict(plain: Sequence[_Run], patched: Sequence[_Run]) -> dict[str, Any]:
    """Return verdict, costs and runs for JSON; docs/api/tools.md describes the keys."""
    return {
        "verdict": _as_dict(find_verdict(plain, patched)),
        "costs": {key: _as_dict(cost) for key, cost in _compute_costs(plain, patched).items()},
        "runs": {"plain": list(plain), "patched": list(patched)},
    }


def _as_dict(value: Any) -> Any:
    is_named = isinstance(value, tuple)
    return {k: _as_dict(v) for k, v in value._asdict().items()} if is_named else value
