"""What trials of one program say, as it is and patched: whether they compute the same, and what
they cost. Trials are dicts, as ``TrialObserver.to_dict()`` makes them; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from fastloop.tools.compare.stats import Figure, judge, median_of, ratio_of, show_seconds

EQUAL, DIFFERENT, UNKNOWN = "equal", "different", "unknown"
_Trial = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """Whether the patched program computes what the plain one does.

    Attributes:
        kind: EQUAL, DIFFERENT or UNKNOWN.
        text: where they differ, or why that is not known.
    """

    kind: str
    text: str


def _show_loss(loss: Sequence[Any]) -> str:
    _, dtype, value, bits = loss
    return f"{value or dtype} ({bits[:16]})"


def find_difference(a: _Trial, b: _Trial, names: tuple[str, str]) -> str:
    """The first one; "" if there is none."""
    for ours, theirs in zip_longest(a["losses"], b["losses"]):
        if ours is None or theirs is None:
            which, loss = (names[1], theirs) if ours is None else (names[0], ours)
            return f"step {loss[0] + 1}: only {which} has another backward pass"
        if ours != theirs:
            return (
                f"step {min(ours[0], theirs[0]) + 1}: the loss is {_show_loss(ours)} in "
                f"{names[0]} and {_show_loss(theirs)} in {names[1]}"
            )
    if a["steps"] != b["steps"]:
        return f"{names[0]} has {a['steps']} steps, {names[1]} {b['steps']}"
    if a["parameters"] != b["parameters"]:
        return f"step {a['steps']}: the losses are equal, the parameters after it are not"
    return ""


def find_verdict(plain: Sequence[_Trial], patched: Sequence[_Trial]) -> Verdict:
    """Of two or more plain trials: a program that differs from itself cannot be judged."""
    first = plain[0]
    if not first["losses"] and first["parameters"] is None:
        elsewhere = first["calls_of_other_threads"]
        why = f"; {elsewhere} calls came from other threads" if elsewhere else ""
        return Verdict(
            UNKNOWN,
            "no backward pass and no step of a torch.optim optimizer was seen in the thread and "
            f"process that import torch{why}",
        )
    for other in plain[1:]:
        found = find_difference(first, other, ("one plain run", "another"))
        if found:
            return Verdict(
                UNKNOWN,
                f"the program differs from itself: {found}. Fix its seeds, or pass --seed 0; what "
                "is left comes of threads, the clock, or files that it has written",
            )
    for other in patched:
        found = find_difference(first, other, ("the plain run", "the patched one"))
        if found:
            return Verdict(DIFFERENT, found)
    return Verdict(EQUAL, "")


# ---- what they cost


def _show_rate(rate: float) -> str:
    return f"{rate:,.1f}" if rate < 1000 else f"{rate:,.0f}"


def _show_bytes(count: float) -> str:
    return f"{count / 1e6:,.0f} MB"


# Key of a trial, label, how its values are shown. Of the first more is better, of all others less.
_ROWS: list[tuple[str, str, Callable[[float], str]]] = [
    ("steps_per_second", "steps a second", _show_rate),
    ("data_wait_s", "data wait a step", show_seconds),
    ("cpu_s", "CPU time a step", show_seconds),
    ("first_batch_s", "first batch", show_seconds),
    ("between_epochs_s", "between epochs", show_seconds),
    ("total_s", "start to last step", show_seconds),
    ("pss_bytes", "memory", _show_bytes),
    ("gpu_bytes", "GPU memory", _show_bytes),
]
_OFTEN_ABSENT = ("between_epochs_s", "gpu_bytes")  # not worth a row of n/a


@dataclass(frozen=True)
class Costs:
    """One row.

    Attributes:
        ratio: patched over plain; None where one of them is 0.
    """

    plain: Figure
    patched: Figure
    ratio: Figure | None


def find_costs(plain: Sequence[_Trial], patched: Sequence[_Trial]) -> dict[str, Costs | None]:
    """By key; None for what some trial has not measured."""
    return {key: _cost(*([t[key] for t in of] for of in (plain, patched))) for key, *_ in _ROWS}


def _cost(plain: list[float | None], patched: list[float | None]) -> Costs | None:
    a, b = ([value for value in of if value is not None] for of in (plain, patched))
    if len(a) < len(plain) or len(b) < len(patched):
        return None
    ratio = ratio_of(b, a) if min(a + b) > 0 else None
    return Costs(median_of(a), median_of(b), ratio)


def _line(label: str, *cells: str) -> str:
    return f"  {label:<20}{cells[0]:<30}{cells[1]:<30}{cells[2]}".rstrip()


def _show_figure(figure: Figure, show: Callable[[float], str]) -> str:
    return f"{show(figure.median)} ({show(figure.low)} - {show(figure.high)})"


def _show_ratio(ratio: Figure | None, is_more_better: bool, rounds: int) -> str:
    if ratio is None:
        return "n/a"
    found, interval = judge(ratio), f" ({ratio.low:.3g} - {ratio.high:.3g})"
    if found == "cannot tell":
        return f"{found}{interval}; --rounds {_more(rounds)}"
    if found == "no difference":
        return found + interval
    return f"{found}{interval} {'better' if (ratio.median > 1) == is_more_better else 'worse'}"


def _more(rounds: int) -> int:
    return max(7, 2 * rounds + 1)


def _say_speed(cost: Costs | None, rounds: int) -> str:
    """The last sentence."""
    if cost is None or cost.ratio is None:
        return "SPEED: n/a, too few steps"
    found, ratio = judge(cost.ratio), cost.ratio
    interval = f"{ratio.low:.3g} to {ratio.high:.3g} times as many steps a second"
    if found == "cannot tell":
        return f"SPEED: cannot tell ({interval}); --rounds {_more(rounds)}, on an idle machine"
    if found == "no difference":
        return "SPEED: no difference: patched within 3 % of plain"
    return f"SPEED: patched is {'faster' if ratio.median > 1 else 'SLOWER'}: {found}, {interval}"


def make_table(plain: Sequence[_Trial], patched: Sequence[_Trial], limit: int) -> str:
    """Costs, then the verdict; 100 columns and more."""
    lines = [_line("", "plain", "patched", "patched / plain")]
    costs = find_costs(plain, patched)
    for key, label, show in _ROWS:
        cost = costs[key]
        if cost is not None:
            figures = (_show_figure(figure, show) for figure in (cost.plain, cost.patched))
            ratio = _show_ratio(cost.ratio, key == "steps_per_second", len(plain))
            lines.append(_line(label, *figures, ratio))
        elif key not in _OFTEN_ABSENT:
            lines.append(_line(label, "n/a", "n/a", "n/a"))
    lines.append(f"  patched: {patched[-1]['patched']}")
    steps = plain[0]["steps"]
    if steps < limit:
        lines.append(f"  the program has ended by itself after {steps} of {limit} steps")
    lines.append(_say(find_verdict(plain, patched), plain[0], len(plain) + len(patched)))
    lines.append(_say_speed(costs["steps_per_second"], len(plain)))
    return "\n".join(lines)


def _say(verdict: Verdict, first: _Trial, trials: int) -> str:
    if verdict.kind == UNKNOWN:
        return f"NOT JUDGED: {verdict.text}"
    if verdict.kind == DIFFERENT:
        return f"DIFFERENT: {verdict.text}"
    parameters = ", and the parameters after the last one"
    return (
        f"EQUAL to the last bit in all {trials} runs: {len(first['losses'])} losses of "
        f"{first['steps']} steps{parameters if first['parameters'] else '; parameters: n/a'}"
    )


def to_dict(plain: Sequence[_Trial], patched: Sequence[_Trial]) -> dict[str, Any]:
    """For JSON: docs/compare.md has the keys."""
    costs = find_costs(plain, patched)
    return {
        "verdict": asdict(find_verdict(plain, patched)),
        "costs": {key: cost and asdict(cost) for key, cost in costs.items()},
        "trials": {"plain": list(plain), "patched": list(patched)},
    }
