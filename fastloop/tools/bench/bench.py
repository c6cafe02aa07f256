"""``python -m fastloop bench``: torch and fastloop at the same work, on this machine."""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fastloop._core import build_info
from fastloop.tools.bench.budget import Budget, TimeIsOverError
from fastloop.tools.bench.cases import CASES, FASTLOOP, SPDL, TORCH, Case
from fastloop.tools.bench.chart import draw_chart
from fastloop.tools.bench.process import BenchError, Contestant, Round, start_server
from fastloop.tools.bench.stats import Figure, judge, median_of, ratio_of, show_seconds

SCHEMA = "fastloop.bench/1"
_LEAST_ROUNDS = 3  # an interval of fewer says nothing
_PLANNED = 0.8  # of the time that is left: turns take somewhat longer than they are to
_QUICK_S = 40.0  # for all cases; imports and the ends of processes come on top
_CLOSE = 1e-5  # of values that sums of other orders may give


Key = tuple[str, str]  # a contestant and one of its variants


@dataclass(frozen=True)
class Result:
    """One contestant of a case, at the best of its variants."""

    variant: str
    seconds: Figure
    cpu_seconds: float | None
    pss_bytes: int | None
    rounds: dict[str, list[Round]]


@dataclass(frozen=True)
class Outcome:
    """One case.

    Attributes:
        results: by contestant.
        speedups: of fastloop over the others. Empty where ``fault`` or ``left_out`` says why.
        fault: what is wrong.
        left_out: why it could not be measured here, though nothing is wrong.
    """

    case: Case
    results: dict[str, Result]
    speedups: dict[str, Figure]
    fault: str = ""
    left_out: str = ""


def _call_all(work: dict[Key, Contestant], name: str, budget: Budget) -> dict[Key, Any]:
    found = {}
    for key, contestant in work.items():
        budget.demand()
        found[key] = contestant.call(name)
    return found


def _find_fault(found: dict[Key, tuple[str, list[float]]]) -> str:
    """Why the contestants do not do the same; "" if they do."""
    first, (digest, values) = next(iter(found.items()))
    for key, (other, others) in found.items():
        names = f"{' '.join(key)} and {' '.join(first)}"
        if other != digest:
            return f"{names} differ in what they give"
        if len(others) != len(values) or not all(
            math.isclose(a, b, rel_tol=_CLOSE) for a, b in zip(others, values, strict=True)
        ):
            return f"{names} differ by more than {_CLOSE:g}"
    return ""


def _take_turns(
    work: dict[Key, Contestant], rounds: int, seconds: float, budget: Budget
) -> dict[Key, list[Round]]:
    """As many rounds as there is time for."""
    turns: dict[Key, list[Round]] = {key: [] for key in work}
    seconds = min(seconds, max(0.0, _PLANNED * budget.left()) / (rounds * len(work)))
    longest = 0.0
    for done in range(rounds):
        before = budget.left()
        if done < _LEAST_ROUNDS:
            budget.demand((_LEAST_ROUNDS - done) * longest)
        elif before < longest:
            break
        for key, contestant in work.items():
            turns[key].append(contestant.call("turn", seconds))
        longest = max(longest, before - budget.left()) if before < math.inf else 0.0
    return turns


def measure(
    case: Case,
    against: Sequence[str],
    rounds: int,
    seconds: float,
    is_short: bool,
    budget: Budget | None = None,
) -> Outcome:
    """First whether all give the same, then rounds in which every variant takes its turn."""
    budget = budget or Budget()
    budget.begin_case()
    if case.needs_gpu and not torch.cuda.is_available():
        return Outcome(case, {}, {}, left_out="needs a GPU")
    variants_of = {who: of for who, of in case.variants.items() if who in (*against, FASTLOOP)}
    with ExitStack() as stack:
        work: dict[Key, Contestant] = {}
        try:
            for who, variants in variants_of.items():
                for variant in variants:
                    contestant = Contestant(case.make, who, variant, is_short)
                    work[who, variant] = contestant
                    stack.callback(contestant.close)
            fault = _find_fault(_call_all(work, "check", budget))
            if fault:
                return Outcome(case, {}, {}, fault)
            _call_all(work, "warm", budget)
            turns = _take_turns(work, rounds, seconds, budget)
        except BenchError as error:
            return Outcome(case, {}, {}, str(error))
        except TimeIsOverError:
            why = f"no time was left for it; ask for it alone: --case {case.name}"
            return Outcome(case, {}, {}, left_out=why)
    results = {who: _best_of(who, turns) for who in variants_of}
    times = {who: [turn.seconds for turn in of.rounds[of.variant]] for who, of in results.items()}
    ours = times.pop(FASTLOOP)
    return Outcome(case, results, {who: ratio_of(of, ours) for who, of in times.items()})


def _best_of(who: str, turns: dict[Key, list[Round]]) -> Result:
    mine = {variant: of for (whose, variant), of in turns.items() if whose == who}
    figures = {variant: median_of([turn.seconds for turn in of]) for variant, of in mine.items()}
    best = min(figures, key=lambda variant: figures[variant].median)
    last = mine[best][-1]
    spent = [turn.cpu_seconds for turn in mine[best] if turn.cpu_seconds is not None]
    cpu = median_of(spent).median if len(spent) == len(mine[best]) else None
    return Result(best, figures[best], cpu, last.pss_bytes, mine)


# ---- what is shown


def _describe(result: Result) -> str:
    figure = result.seconds
    cpu = "n/a" if result.cpu_seconds is None else show_seconds(result.cpu_seconds)
    memory = "n/a" if result.pss_bytes is None else f"{result.pss_bytes / 1e6:.0f} MB"
    return (
        f"{show_seconds(figure.median)} ({show_seconds(figure.low)} - {show_seconds(figure.high)})"
        f", {result.variant}; CPU {cpu}, {memory}"
    )


def describe(outcome: Outcome) -> str:
    lines = [f"{outcome.case.name}: {outcome.case.what}"]
    lines += [f"  {who:<9} {_describe(result)}" for who, result in outcome.results.items()]
    lines += [
        f"  fastloop over {who}: {judge(of)} ({of.low:.3g} - {of.high:.3g})"
        for who, of in outcome.speedups.items()
    ]
    if outcome.fault:
        lines.append(f"  no figure: {outcome.fault}")
    if outcome.left_out:
        lines.append(f"  left out: {outcome.left_out}")
    return "\n".join(lines)


def to_dict(outcomes: Sequence[Outcome], arguments: Sequence[str]) -> dict[str, Any]:
    """What ``bench.json`` holds: docs/bench.md has the keys."""
    return {
        "schema": SCHEMA,
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "arguments": list(arguments),
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "torch_threads": torch.get_num_threads(),
            "fastloop": build_info(),
        },
        "cases": [
            {
                "case": outcome.case.name,
                "what": outcome.case.what,
                "fault": outcome.fault,
                "left_out": outcome.left_out,
                "speedups": {
                    who: asdict(of) | {"verdict": judge(of)} for who, of in outcome.speedups.items()
                },
                "contestants": {who: asdict(result) for who, result in outcome.results.items()},
            }
            for outcome in outcomes
        ],
    }


def write_files(folder: Path, outcomes: Sequence[Outcome], arguments: Sequence[str]) -> list[Path]:
    """``bench.json`` and ``bench.svg``."""
    folder.mkdir(parents=True, exist_ok=True)
    figures, chart = folder / "bench.json", folder / "bench.svg"
    figures.write_text(json.dumps(to_dict(outcomes, arguments), indent=1) + "\n")
    bars = [
        (f"{outcome.case.name}, {who}", speedup, judge(speedup))
        for outcome in outcomes
        for who, speedup in outcome.speedups.items()
    ]
    chart.write_text(draw_chart(bars))
    return [figures, chart]


def _parse(args: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fastloop bench",
        description="The same work by torch and by fastloop, each at the best of its settings: "
        "results are compared first, then all take turns. Medians with 95 % intervals.",
    )
    parser.add_argument(
        "--case", action="append", metavar="NAME", choices=["all", *CASES],
        help=f"all, or some of {', '.join(CASES)}; may be given more than once",
    )  # fmt: skip
    parser.add_argument(
        "--vs", default=TORCH, metavar="NAMES",
        help="against whom, with commas: torch, spdl (where it is installed and the case has it)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="write bench.json and bench.svg")
    parser.add_argument("--quick", action="store_true", help="less of everything: a minute")
    given = parser.parse_args(args)
    given.vs = given.vs.split(",")
    for who in given.vs:
        if who not in (TORCH, SPDL):
            parser.error(f"--vs takes torch and spdl, not {who!r}")
    if SPDL in given.vs and find_spec("spdl") is None:
        parser.error("--vs spdl needs SPDL: pip install spdl-core")
    return given


def main(args: list[str]) -> int:
    given = _parse(args)
    wanted = given.case or ["all"]
    names = list(CASES) if "all" in wanted else list(dict.fromkeys(wanted))
    rounds, seconds = (5, 0.05) if given.quick else (9, 0.5)
    if given.out is not None:
        try:
            given.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            print(f"bench: --out {given.out}: {error.strerror}", file=sys.stderr)
            return 2
    start_server()
    budget = Budget(_QUICK_S if given.quick else math.inf, len(names))
    outcomes = []
    for name in names:
        outcomes.append(measure(CASES[name], given.vs, rounds, seconds, given.quick, budget))
        print(describe(outcomes[-1]), flush=True)
    if given.out is not None:
        for path in write_files(given.out, outcomes, args):
            print(f"wrote {path}")
    return 1 if any(outcome.fault for outcome in outcomes) else 0
