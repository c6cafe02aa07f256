"""What `make gpu` runs, on a machine with a CUDA device: stages, each with a status and under ten
minutes, none of which needs the network.

    python tests/gpu/run.py [STAGE...]

build        fastloop from this tree into build/gpu/site, for this device alone unless
             FASTLOOP_CUDA_ARCHS says otherwise; with GPU_WHEELS=FOLDER the wheels there beside it
correctness  scaler, clipping, Stepper, graphs
graph        graph_step: losses and weights of a loop that calls the step
passes       the kernels against the CPU's passes
uploads      loaders and prefetch
transforms   images that travel as bytes and are cast on the device
device_transforms  images that are uploaded untouched, and transformed by a kernel
tokens       windows of tokens that travel narrow and are widened on the device
resident     batches of data that lie on the device
fetch        batches of data in host memory that the device reads
slices       large batches, which are copied in slices, epoch after epoch
examples     examples/minimal_*.py
devices      a device that is not the current one; skipped where there is one alone
sanitizer    every kernel under compute-sanitizer; skipped where there is none
soak         the device stage under a hostile consumer, SOAK_S seconds (300)
bench        benchmarks/bench_cuda.py, into build/gpu/bench_cuda.json, and bench_resident.py

Without arguments all run, one after the other, also after one that fails, but for `build`; a stage
that is run alone finds what `build` has left. What they print is in build/gpu/STAGE.log. The file
GPU_RESULTS (build/gpu/results.jsonl; docs/results/gpu is for those to keep) gets a line of JSON for
the machine, with the commit (FASTLOOP_COMMIT in a copy without .git), and one for each stage.
GPU_PYTHON is the Python that has torch (this one)."""

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
from time import monotonic, strftime
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path(os.environ.get("GPU_PLACE") or ROOT / "build/gpu")
SITE, NOWHERE = PLACE / "site", PLACE / "nowhere"
RESULTS = Path(os.environ.get("GPU_RESULTS") or PLACE / "results.jsonl")
PYTHON = os.environ.get("GPU_PYTHON") or sys.executable
LIMIT_S = float(os.environ.get("GPU_STAGE_S") or 600)
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
        self.end = monotonic() + LIMIT_S

    def run(self, *command: object, **variables: str) -> str:
        """What a command prints. Its whole group ends with it, or at the limit."""
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
                status = child.wait(max(1, self.end - monotonic()))
            except subprocess.TimeoutExpired:
                raise FailedError(f"took more than {LIMIT_S:.0f} s") from None
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
    """The commit of the tree; "" if neither git nor FASTLOOP_COMMIT says it."""
    named = os.environ.get("FASTLOOP_COMMIT")
    if named:
        return named
    with suppress(OSError):
        command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
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
    for tool, more in TOOLS.items():
        options = ["--tool", tool, "--error-exitcode", "1", *more]
        stage.run(program, *options, *kernels)
    return ", ".join(TOOLS)


def soak(stage: Stage) -> str:
    seconds = os.environ.get("SOAK_S") or "300"
    return stage.run(PYTHON, ROOT / "tests/gpu/soak.py", seconds).strip().splitlines()[-1]


def bench(stage: Stage) -> str:
    names = ("bench_cuda", "bench_resident")
    for name in names:
        stage.run(PYTHON, ROOT / f"benchmarks/{name}.py", "--json", PLACE / f"{name}.json")
    return str(PLACE / f"{names[0]}.json")


STAGES: dict[str, Callable[[Stage], str]] = {
    "build": build,
    "correctness": lambda stage: stage.pytest("test_steps.py"),
    "graph": lambda stage: stage.pytest("test_graph_step.py"),
    "passes": lambda stage: stage.pytest("test_passes.py"),
    "uploads": lambda stage: stage.pytest("test_device_batches.py"),
    "transforms": lambda stage: stage.pytest("test_transforms.py"),
    "device_transforms": lambda stage: stage.pytest("test_device_transforms.py"),
    "tokens": lambda stage: stage.pytest("test_tokens.py"),
    "resident": lambda stage: stage.pytest("test_resident.py"),
    "fetch": lambda stage: stage.pytest("test_fetch.py"),
    "slices": lambda stage: stage.pytest("test_slices.py"),
    "examples": lambda stage: stage.pytest("test_examples.py"),
    "devices": devices,
    "sanitizer": sanitizer,
    "soak": soak,
    "bench": bench,
}


class Outcome(NamedTuple):
    stage: str
    status: str
    seconds: float
    why: str


def run_stage(name: str) -> Outcome:
    begin = monotonic()
    stage = Stage(name)
    try:
        status, why = "passed", STAGES[name](stage)
    except SkippedError as skip:
        status, why = "skipped", str(skip)
    except (FailedError, OSError, ValueError, IndexError) as error:
        status, why = "failed", str(error)
        print("".join(stage.log.read_text().splitlines(keepends=True)[-TAIL:]), end="")
    outcome = Outcome(name, status, round(monotonic() - begin, 1), why)
    with RESULTS.open("a") as results:
        print(json.dumps(outcome._asdict()), file=results)
    return outcome


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        print(f"there is no stage {unknown[0]!r}; they are {', '.join(STAGES)}", file=sys.stderr)
        return 2
    # What a stage has started is of a session of its own, and ends with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    NOWHERE.mkdir(parents=True, exist_ok=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for name in names or STAGES:
        print(f"{name} ...", flush=True)
        outcomes.append(run_stage(name))
        if name == "build" and outcomes[-1].status == "failed":
            break
    print()
    for outcome in outcomes:
        print(f"{outcome.stage:17} {outcome.status:8} {outcome.seconds:7.1f} s  {outcome.why}")
    return int(any(outcome.status == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
