"""What `make gpu` runs, on a machine with a CUDA device: stages, none of which needs the network.

    python tests/gpu/run.py             all stages within nine minutes; what has passed at this
                                        commit is left out, unless AGAIN=1
    python tests/gpu/run.py STAGE...    these stages, one after the other
    python tests/gpu/run.py --never-run the parts that no device has passed, by docs/results/gpu;
                                        writes the table of that folder's page

build        fastloop from this tree into build/gpu/site, for this device alone unless
             FASTLOOP_CUDA_ARCHS says otherwise; with GPU_WHEELS=FOLDER the wheels there beside it
slices       large batches, which are copied in slices, epoch after epoch
resident     batches of data that lie on the device
draws        the random parameters of images that the device draws
graph        graph_step: losses and weights of a loop that calls the step
fetch        batches of data in host memory that the device reads
device_transforms  images that are uploaded untouched, and transformed by a kernel
devices      a device that is not the current one; skipped where there is one alone
soak         the device stage under a hostile consumer, SOAK_S seconds (30)
passes       the kernels against the CPU's passes
examples     examples/minimal_*.py
sanitizer    every kernel under compute-sanitizer; skipped where there is none
correctness  scaler, clipping, Stepper, graphs
uploads      loaders and prefetch
transforms   images that travel as bytes and are cast on the device
tokens       windows of tokens that travel narrow and are widened on the device
bench        benchmarks/bench_cuda.py, into build/gpu/bench_cuda.json
bench_resident  benchmarks/bench_resident.py, a few rows at a time

All stages together: first `build`, then GPU_JOBS (4) at a time, those first that no device has
passed, then the benchmarks, each alone. A stage that fails ends no other, except `build`. Each
stage has a limit (GPU_STAGE_S lowers all), and GPU_TOTAL_S (540) limits all together; what there
was no time for runs the next time.

What a stage prints is in build/gpu/STAGE.log, how it ended at which commit in build/gpu/STAGE.json.
The file GPU_RESULTS (build/gpu/results.jsonl; docs/results/gpu is for those to keep) gets a line of
JSON for the machine, with the commit (FASTLOOP_COMMIT in a copy without .git), and one for each
stage. GPU_PYTHON is the Python that has torch (this one)."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep, strftime
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path(os.environ.get("GPU_PLACE") or ROOT / "build/gpu")
SITE, NOWHERE = PLACE / "site", PLACE / "nowhere"
RESULTS = Path(os.environ.get("GPU_RESULTS") or PLACE / "results.jsonl")
PYTHON = os.environ.get("GPU_PYTHON") or sys.executable
TOTAL_S = float(os.environ.get("GPU_TOTAL_S") or 540)
JOBS = int(os.environ.get("GPU_JOBS") or 4)
LEAST_S = 5.0  # with less time left, no stage begins
KEPT = ROOT / "docs/results/gpu"
# torch asks the driver what it answers with errors; what fails of ours kernels.py raises.
TOOLS = {
    "memcheck": ("--report-api-errors", "no"),
    "racecheck": (),
    "initcheck": (),
    "synccheck": (),
}
HANGS_S = "120"  # a test that takes longer shows where it hangs, and ends the stage
TAIL = 30  # lines of a log that are shown of a stage that failed
MACHINE = """
import json, platform, torch
has = torch.cuda.is_available()
print(json.dumps({
    "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
    "devices": torch.cuda.device_count() if has else 0,
    "device": torch.cuda.get_device_name(0) if has else "",
    "arch": "%d%d" % torch.cuda.get_device_capability(0) if has else "",
}))
"""
READY = """
import fastloop
from fastloop import _core
_core.check_cuda(0)
print(fastloop.__file__, fastloop.build_info())
"""


class FailedError(Exception):
    """Why a stage has failed: a line."""


class SkippedError(Exception):
    """Why a stage is left out: a line."""


class Stage:
    """A log, and a limit for all that runs in the stage."""

    def __init__(self, name: str) -> None:
        self.log = PLACE / f"{name}.log"
        self.log.write_text("")
        self.limit = min(PARTS[name].limit_s, float(os.environ.get("GPU_STAGE_S") or TOTAL_S))
        self.end = monotonic() + self.limit

    def run_each(self, commands: dict[str, list[object]], limit_s: float) -> str:
        """Run all commands, also after one that fails or takes longer than its limit."""
        faults = {name: self.fault_of(words, limit_s) for name, words in commands.items()}
        if any(faults.values()):
            told = [f"{name}: {fault}" for name, fault in faults.items() if fault]
            passed = ", ".join(name for name, fault in faults.items() if not fault)
            raise FailedError("; ".join(told) + f"; passed: {passed or 'none'}")
        return ", ".join(commands)

    def fault_of(self, command: list[object], limit_s: float) -> str:
        try:
            self.run(*command, limit_s=limit_s)
        except FailedError as error:
            return str(error)
        return ""

    def run(self, *command: object, limit_s: float = TOTAL_S, **variables: str) -> str:
        """What a command prints. Its whole group ends with it, or at the limit."""
        seconds = max(1.0, min(limit_s, self.end - monotonic()))
        path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH", "")]))
        words = [str(word) for word in command]
        before = self.log.stat().st_size
        with self.log.open("a") as log:
            block_end(True)  # until there is something to end
            child = subprocess.Popen(
                words,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=NOWHERE,
                env={**os.environ, "PYTHONPATH": path, **variables},
                start_new_session=True,
                preexec_fn=lambda: block_end(False),
            )
            try:
                block_end(False)
                status = child.wait(seconds)
            except subprocess.TimeoutExpired:
                limit = min(limit_s, self.limit)
                raise FailedError(f"took more than {limit:.0f} s") from None
            finally:
                end_group(child)
        said = self.log.read_bytes()[before:].decode(errors="replace")
        if status != 0:
            raise FailedError(f"{Path(words[0]).name} ended with status {status}")
        return said

    def pytest(self, name: str, *options: str) -> str:
        where = ["-c", ROOT / "pyproject.toml", "--rootdir", ROOT, "-p", "no:cacheprovider"]
        command = [PYTHON, "-m", "pytest", *where, ROOT / "tests/gpu" / name, *options]
        said = self.run(*command, TEST_HANGS_S=HANGS_S)
        found = re.findall(r"\d+ passed.*", said)
        if not found:
            raise FailedError("no test has passed")  # all skipped, say
        return str(found[-1]).strip("= ")


def block_end(is_blocked: bool) -> None:
    how = signal.SIG_BLOCK if is_blocked else signal.SIG_UNBLOCK
    signal.pthread_sigmask(how, [signal.SIGTERM])


def end_group(child: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def commit() -> str:
    """The commit of the tree, with "-dirty" if files differ from it; "" if neither git nor
    FASTLOOP_COMMIT says it."""
    named = os.environ.get("FASTLOOP_COMMIT")
    if named:
        return named
    with suppress(OSError):
        words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
        return subprocess.run(words, capture_output=True, text=True).stdout.strip()
    return ""


def ask_machine(stage: Stage) -> dict[str, Any]:
    machine: dict[str, Any] = json.loads(stage.run(PYTHON, "-c", MACHINE).splitlines()[-1])
    if not machine["devices"]:
        raise FailedError("torch finds no CUDA device")
    return machine


def build(stage: Stage) -> str:
    machine = ask_machine(stage)
    # setuptools would pack modules that no longer exist.
    for folder in (SITE, *ROOT.glob("build/lib*"), *ROOT.glob("build/bdist.*")):
        shutil.rmtree(folder, ignore_errors=True)
    # What wheels need in turn is among them, or this Python has it: pip would not look there.
    pip = [PYTHON, "-m", "pip", "install", "-q", "--no-index", "--target", SITE, "--no-deps"]
    folder = os.environ.get("GPU_WHEELS")
    if folder:
        wheels = sorted(Path(folder).resolve().glob("*.whl"))
        if not wheels:
            raise FailedError(f"GPU_WHEELS={folder} holds no wheel")
        stage.run(*pip, *wheels)
    archs = os.environ.get("FASTLOOP_CUDA_ARCHS") or machine["arch"]
    stage.run(
        *(*pip, "--no-build-isolation", ROOT),
        FASTLOOP_CUDA="1",
        FASTLOOP_CUDA_ARCHS=archs,
    )
    stage.run(PYTHON, "-c", READY)
    with RESULTS.open("a") as results:
        line = {"time": strftime("%Y-%m-%dT%H:%M:%S"), "commit": commit(), "archs": archs}
        line |= machine
        print(json.dumps(line), file=results)
    return f"{machine['device']}, torch {machine['torch']}, for {archs}"


def devices(stage: Stage) -> str:
    count = ask_machine(stage)["devices"]
    if count < 2:
        raise SkippedError("there is one device")
    return stage.pytest("test_device_batches.py", "-k", "another_device")


def sanitizer(stage: Stage) -> str:
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    path = os.pathsep.join([os.environ["PATH"], f"{home}/bin", f"{home}/compute-sanitizer"])
    program = shutil.which("compute-sanitizer", path=path)
    if program is None:
        raise SkippedError("there is no compute-sanitizer")
    kernels = [PYTHON, ROOT / "tests/gpu/kernels.py"]
    commands = {
        tool: [program, "--tool", tool, "--error-exitcode", "1", *more, *kernels]
        for tool, more in TOOLS.items()
    }
    return stage.run_each(commands, 40)


def soak(stage: Stage) -> str:
    seconds = os.environ.get("SOAK_S") or "30"
    return stage.run(PYTHON, ROOT / "tests/gpu/soak.py", seconds).strip().splitlines()[-1]


def bench(stage: Stage) -> str:
    path = PLACE / "bench_cuda.json"
    stage.run(PYTHON, ROOT / "benchmarks/bench_cuda.py", "--json", path)
    return str(path)


def bench_resident(stage: Stage) -> str:
    program = ROOT / "benchmarks/bench_resident.py"
    commands = {
        rows: [PYTHON, program, "--rows", rows, "--json", PLACE / f"bench_resident_{rows}.json"]
        for rows in ("a,b", "c,g", "d", "e", "i", "f", "h")
    }
    return stage.run_each(commands, 45)


def tests_of(name: str) -> Callable[[Stage], str]:
    return lambda stage: stage.pytest(name)


class Part(NamedTuple):
    run: Callable[[Stage], str]
    limit_s: float
    text: str  # what the page of results calls it


PARTS = {
    "build": Part(build, 120, "the build for the device"),
    "slices": Part(
        tests_of("test_slices.py"),
        90,
        "uploads in slices (batches of 4 MiB and more), threads and streams that live on from "
        "epoch to epoch",
    ),
    "resident": Part(
        tests_of("test_resident.py"),
        120,
        'data on the device: `.to("cuda")`, datasets of CUDA tensors; transforms, tokens and '
        "sequences there",
    ),
    "draws": Part(
        tests_of("test_draws.py"), 90, "random parameters of images that the device draws"
    ),
    "graph": Part(tests_of("test_graph_step.py"), 120, "`graph_step()`"),
    "fetch": Part(tests_of("test_fetch.py"), 90, '`gather="device"`'),
    "device_transforms": Part(
        tests_of("test_device_transforms.py"), 90, '`transforms_on="device"`'
    ),
    "devices": Part(devices, 60, "several devices in one process"),
    "soak": Part(soak, 300, "a loop that drops batches while kernels still read them"),
    "passes": Part(tests_of("test_passes.py"), 240, "each kernel over gradients"),
    "examples": Part(tests_of("test_examples.py"), 180, "the short programs in `examples/`"),
    "sanitizer": Part(sanitizer, 165, "all kernels of that day under compute-sanitizer"),
    "correctness": Part(
        tests_of("test_steps.py"),
        60,
        "`GradScaler`, `clip_grad_norm_`, `Stepper`, steps in a graph of torch",
    ),
    "uploads": Part(
        tests_of("test_device_batches.py"),
        90,
        '`device="cuda"`, `prefetch()`, `static_buffers=True`, `pin_memory=True`',
    ),
    "transforms": Part(
        tests_of("test_transforms.py"),
        60,
        'images that travel as bytes and are cast on the device (`transforms_on="auto"`)',
    ),
    "tokens": Part(tests_of("test_tokens.py"), 60, "tokens that travel narrow"),
    "bench": Part(bench, 240, "the speed of uploads, steps and training (`bench_cuda.py`)"),
    "bench_resident": Part(
        bench_resident, 320, "the speed of data on the device (`bench_resident.py`)"
    ),
}
ALONE = ("build", "bench", "bench_resident")


def passed_on() -> dict[str, dict[str, str]]:
    """For each stage: the devices on which its last kept run has passed, with the date of that
    run."""
    found: dict[str, dict[str, str]] = {stage: {} for stage in PARTS}
    for path in sorted(KEPT.glob("*.jsonl")):
        date, device = "", path.stem.upper()
        for line in map(json.loads, path.read_text().splitlines()):
            date = line.get("time", date)[:10]  # of the machine's line, which begins a run
            if "stage" in line:
                found[line["stage"]].pop(device, None)
                if line["status"] == "passed":
                    found[line["stage"]][device] = date
    return found


def page(text: str) -> str:
    """The page of results with the table of what has passed where."""
    rows = ["| part | stage | passed on |", "|---|---|---|"]
    devices_of = passed_on()
    for name in sorted(PARTS, key=lambda name: not devices_of[name]):
        runs = ", ".join(f"{device} {date}" for device, date in sorted(devices_of[name].items()))
        rows.append(f"| {PARTS[name].text} | `{name}` | {runs or 'not yet on hardware'} |")
    table = "".join(f"{row}\n" for row in rows)
    return re.sub(r"\| part \| stage \| passed on \|\n(?:\|.*\n)+", lambda _: table, text)


def tell_never_run() -> int:
    for name, runs in passed_on().items():
        if not runs:
            print(f"{name:17} {PARTS[name].text}")
    path = KEPT / "README.md"
    path.write_text(page(path.read_text()))
    return 0


class Outcome(NamedTuple):
    stage: str
    status: str
    seconds: float
    why: str
    commit: str = ""


def outcome_path(name: str) -> Path:
    return PLACE / f"{name}.json"


def run_stage(name: str) -> Outcome:
    print(f"{name} ...", flush=True)
    outcome_path(name).unlink(missing_ok=True)
    begin = monotonic()
    stage = Stage(name)
    try:
        status, why = "passed", PARTS[name].run(stage)
    except SkippedError as skip:
        status, why = "skipped", str(skip)
    except (FailedError, OSError, ValueError, IndexError) as error:
        status, why = "failed", str(error)
        print("".join(stage.log.read_text().splitlines(keepends=True)[-TAIL:]), end="")
    outcome = Outcome(name, status, round(monotonic() - begin, 1), why, commit())
    line = outcome._asdict()
    outcome_path(name).write_text(json.dumps(line))
    with RESULTS.open("a") as results:
        print(json.dumps({k: v for k, v in line.items() if k != "commit"}), file=results)
    return outcome


def read_outcome(name: str) -> Outcome | None:
    """How a stage has ended; None: it has not run to its end."""
    with suppress(OSError, ValueError):
        return Outcome(**json.loads(outcome_path(name).read_text()))
    return None


def has_passed(name: str, now: str) -> bool:
    """Whether a stage has passed at this commit, and need not run again."""
    outcome = read_outcome(name)
    is_same = outcome is not None and (outcome.status, outcome.commit) == ("passed", now)
    is_clean = now != "" and not now.endswith("-dirty")
    return is_same and is_clean and (name != "build" or SITE.exists())


def run_together(names: list[str], jobs: int, end: float) -> None:
    """Run stages, each by a process of this program, so many at a time, until the end."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while names or running:
            left = end - monotonic()
            if left < LEAST_S:
                names = []
            elif names and len(running) < jobs:
                limit = min(left, float(os.environ.get("GPU_STAGE_S") or left))
                command = [sys.executable, str(Path(__file__).resolve()), names[0]]
                env = {**os.environ, "GPU_STAGE_S": f"{limit:.1f}", "GPU_CHILD": "1"}
                running[names.pop(0)] = subprocess.Popen(command, env=env)
            running = {name: child for name, child in running.items() if child.poll() is None}
            sleep(0.05)
    finally:
        for child in running.values():
            child.terminate()  # ends what it has started
        for child in running.values():
            child.wait()


def in_order() -> list[list[str]]:
    """The stages, in groups of those that may run at once; in a group those first that no device
    has passed."""
    devices_of = passed_on()
    new = sorted(PARTS, key=lambda name: bool(devices_of[name]))  # in the order of PARTS otherwise
    return [["build"], [n for n in new if n not in ALONE], *([name] for name in ALONE[1:])]


def run_all() -> list[Outcome]:
    end, now = monotonic() + TOTAL_S, commit()
    again = bool(os.environ.get("AGAIN"))
    chosen = [name for name in PARTS if again or not has_passed(name, now)]
    for name in chosen:
        outcome_path(name).unlink(missing_ok=True)
    for names in in_order():
        run_together([name for name in names if name in chosen], JOBS, end)
        build = read_outcome("build")
        if build is None or build.status == "failed":
            return [build] if build else []
    late = "no time left: run this again to go on"
    return [read_outcome(name) or Outcome(name, "failed", 0, late) for name in PARTS]


def run_named(names: list[str]) -> list[Outcome]:
    outcomes = []
    for name in names:
        outcomes.append(run_stage(name))
        if name == "build" and outcomes[-1].status == "failed":
            break
    return outcomes


def main(names: list[str]) -> int:
    if names == ["--never-run"]:
        return tell_never_run()
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"there is no stage {unknown[0]!r}; they are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    # What a stage has started is of a session of its own, and ends with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    NOWHERE.mkdir(parents=True, exist_ok=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    outcomes = run_named(names) if names else run_all()
    if not os.environ.get("GPU_CHILD"):
        print()
        for outcome in outcomes:
            print(f"{outcome.stage:17} {outcome.status:8} {outcome.seconds:7.1f} s  {outcome.why}")
    return int(not outcomes or any(outcome.status == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
