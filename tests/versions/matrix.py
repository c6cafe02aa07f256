"""`make matrix`: the heart of the tests on other releases of torch, other interpreters and other
start methods. Each is a cell, named by a word of VERSIONS; docs/results/versions.md says what they
mean.

Environments lie in MATRIX_DIR, one at a time: only that of the newest torch is kept. Results go to
docs/results/versions.json after each cell. A cell is run again once fastloop/ or csrc/ has changed
since, or with --again."""

from __future__ import annotations

import argparse
import collections
import datetime
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import results
from results import ROOT, Result

START_METHODS = ("forkserver", "spawn")
# The loops' tests: as many as take a minute or two.
LOADER = "epochs loader_iteration loader_parity loader_signature resume streams thread_parity"
HEART = (
    *(f"loader/test_{name}.py" for name in LOADER.split()),
    *(f"workers/test_{name}.py" for name in ("process_parity", "restart")),
    *(f"patching/test_patch_{name}.py" for name in ("clip", "loaders", "scaler")),
    *(f"step/test_{name}.py" for name in ("clip", "scaler", "scaler_parity", "stepper")),
    "versions/test_torch_mutants.py",  # quick: the table's digests are this release's
)
# Only the loader starts processes by the method that is set; tests of workers name theirs.
HEART_OF_METHODS = ("loader",)
# Lines of requirements-dev.txt. What else tests would use, such as frameworks, they skip.
REQUIREMENTS = "numpy pytest pytest-xdist hypothesis psutil tqdm pillow cloudpickle".split()
SOURCES = "fastloop csrc setup.py setup_cuda.py pyproject.toml README.md LICENSE".split()
TESTED = re.compile(r"^(?:OLDEST|NEWEST_TESTED) = \((\d+), (\d+)\)", re.MULTILINE)
ASK_MINOR = """
import sys, sysconfig
t = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print("%d.%d" % sys.version_info[:2] + t)
"""
ASK_VERSIONS = """
import platform, sysconfig, torch
t = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print(torch.__version__, platform.python_version() + t, platform.machine())
"""


class CellError(Exception):
    """A cell's environment cannot be made; the text is why."""


@dataclass(frozen=True)
class Cell:
    name: str
    torch: str  # what is asked of the index
    python: str  # the interpreter's path
    start_method: str = "fork"

    @property
    def is_free_threaded(self) -> bool:
        return re.fullmatch(r"py3\.\d+t", self.name) is not None

    @property
    def folder(self) -> str:
        text = f"{self.torch}-{self.python}"
        return re.sub(r"[^\w.]+", "-", text).strip("-")


class Counts(NamedTuple):
    passed: int = 0
    failed: int = 0
    skipped: int = 0


def call(*command: str | Path, **variables: str) -> str:
    """The output of a program. Raises CellError with its last lines if it fails."""
    environ = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise CellError(f"{Path(command[0]).name} {command[1]} failed: {said[-300:]}")
    return done.stdout


# ---- cells


def tested_releases() -> list[str]:
    """All minor releases from the oldest to the newest tested one."""
    text = (ROOT / "fastloop/compat/requirements.py").read_text()
    (major, oldest), (_, newest) = TESTED.findall(text)
    return [f"{major}.{minor}" for minor in range(int(oldest), int(newest) + 1)]


def newest_release(uv: str) -> str:
    listed = subprocess.run(
        [uv, "pip", "compile", "-q", "--no-deps", "--no-header", "--no-annotate", "-"],
        input="torch",
        capture_output=True,
        text=True,
        check=True,
    )
    return ".".join(listed.stdout.strip().partition("==")[2].split(".")[:2])


def interpreters(paths: list[str]) -> dict[str, str]:
    """By their versions ("3.12", "3.13t")."""
    found: dict[str, str] = {}
    for path in paths:
        done = subprocess.run([path, "-c", ASK_MINOR], capture_output=True, text=True)
        if done.returncode == 0:
            found.setdefault(done.stdout.strip(), path)
    return found


def read_cells(words: list[str], newest: str, here: str, pythons: dict[str, str]) -> list[Cell]:
    """The last cells are those of the newest torch and the usual Python, which is `here`."""
    cells: dict[str, Cell] = {}
    for word in words:
        if word in START_METHODS:
            cell = Cell(word, f"torch=={newest}.*", here, word)
        elif word == "newest" or re.fullmatch(r"\d+\.\d+", word):
            release = newest if word == "newest" else word
            cell = Cell(release, f"torch=={release}.*", here)
        elif word.startswith("py") and word[2:] in pythons:
            method = "fork" if int(word[4:].rstrip("t")) < 14 else "forkserver"  # its default
            cell = Cell(word, "torch", pythons[word[2:]], method)
        elif word.startswith("py"):
            print(f"{word}: no such interpreter here; name its path in PYTHONS", file=sys.stderr)
            continue
        else:
            kinds = "a release (2.13), newest, an interpreter (py3.12), forkserver or spawn"
            sys.exit(f"VERSIONS has {word!r}, which must be {kinds}")
        cells[cell.name] = cell
    return sorted(cells.values(), key=lambda cell: cell.torch == f"torch=={newest}.*")


# ---- what is tested


def commit() -> str:
    name = call("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
    is_changed = call("git", "-C", ROOT, "status", "--porcelain", "fastloop", "csrc", "tests")
    return name + "+" * bool(is_changed)


def is_current(result: Result | None) -> bool:
    """Whether the package is the one that was tested."""
    if result is None or result.commit.endswith("+"):
        return False
    command = f"git diff --quiet {result.commit} -- fastloop csrc"
    return subprocess.run(command.split(), cwd=ROOT, capture_output=True).returncode == 0


# ---- environments


class Workshop:
    """MATRIX_DIR: environments, wheels of fastloop by interpreter, logs."""

    def __init__(self, folder: Path, uv: str) -> None:
        self.folder = folder
        self.uv = uv
        self.commit = commit()
        self.wheels: dict[str, str] = {}  # by interpreter
        for name in ("sources", "wheels"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in ("sources", "nowhere", "logs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        for name in SOURCES:
            source, target = ROOT / name, folder / "sources" / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=ignored)
            else:
                shutil.copy(source, target)

    def environment(self, cell: Cell) -> Path:
        """A folder with torch, what tests need, and fastloop, built from the sources."""
        place = self.folder / cell.folder
        python = place / "bin" / "python"
        pip = (self.uv, "pip", "install", "-q", "--no-cache", "--python", python)
        if not python.exists():
            call(self.uv, "venv", "-q", "--clear", "--no-cache", "--python", cell.python, place)
        lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
        wanted = [line for line in lines if line.partition("==")[0] in REQUIREMENTS]
        wanted.append("setuptools>=77")  # torch 2.11 and 2.12 want one before 82
        if cell.is_free_threaded:  # the last releases have no wheels for it; torch, too, is older
            wanted = ["--only-binary", ":all:", *REQUIREMENTS, "setuptools"]
        call(*pip, cell.torch, *wanted)
        if cell.python not in self.wheels:
            self.wheels[cell.python] = self.build(python, f"wheels/{cell.folder}")
        call(*pip, "--no-deps", "--reinstall", self.wheels[cell.python])
        return place

    def build(self, python: Path, name: str) -> str:
        variables = {"FASTLOOP_CUDA": "0"}
        if shutil.which("ccache"):
            variables["CC"] = "ccache gcc"
        place = self.folder / name
        flags = ("-q", "--wheel", "--no-build-isolation", "--no-cache", "--python", python)
        call(self.uv, "build", *flags, "-o", place, self.folder / "sources", **variables)
        (wheel,) = place.glob("*.whl")
        return str(wheel)

    def run(self, cell: Cell, jobs: str) -> Result:
        try:
            place = self.environment(cell)
            torch, python, machine = call(place / "bin" / "python", "-c", ASK_VERSIONS).split()
        except CellError as error:
            return self.result(cell, ("none", "unknown", "unknown"), Counts(), 0, str(error))
        report = self.folder / "logs" / f"{cell.name}.xml"
        report.unlink(missing_ok=True)
        began = time.monotonic()
        with report.with_suffix(".log").open("w") as log:
            command = [place / "bin" / "pytest", *arguments(cell, jobs), f"--junitxml={report}"]
            # Else Triton, which torch's optimizers import, puts the lock back.
            environ = {**os.environ, **({"PYTHON_GIL": "0"} if cell.is_free_threaded else {})}
            nowhere = self.folder / "nowhere"
            subprocess.run(command, cwd=nowhere, stdout=log, stderr=log, env=environ)
        seconds = round(time.monotonic() - began)
        counts, why = read_report(report)
        return self.result(cell, (torch.partition("+")[0], python, machine), counts, seconds, why)

    def result(
        self, cell: Cell, versions: tuple[str, str, str], counts: Counts, seconds: int, why: str
    ) -> Result:
        date = datetime.date.today().isoformat()
        fields = (*versions, cell.start_method, *counts, seconds, date, self.commit, why)
        return Result(cell.name, *fields)


def arguments(cell: Cell, jobs: str) -> list[str | Path]:
    """Of pytest."""
    tests = ROOT / "tests"
    rooms = HEART_OF_METHODS if cell.name in START_METHODS else HEART
    found: list[str | Path] = ["-c", ROOT / "pyproject.toml", "--rootdir", ROOT]
    found += [room.replace("=", f"={tests}/") if "=" in room else tests / room for room in rooms]
    found += ["--quick", "-q", "-p", "no:cacheprovider"]
    found += ["-n", jobs, "--dist", "loadfile"] if jobs != "1" else []
    return found + (["--start-method", cell.start_method] if cell.start_method != "fork" else [])


# ---- results


def read_report(path: Path) -> tuple[Counts, str]:
    """What passed, failed and was skipped; and the errors, the most frequent first."""
    if not path.exists():
        return Counts(), "pytest ended without a report"
    suite = next(ElementTree.parse(path).iter("testsuite"))
    tests, failures, errors, skipped = (
        int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")
    )
    said: collections.Counter[str] = collections.Counter()
    first: dict[str, str] = {}
    for case in suite.iter("testcase"):
        for fault in [*case.iter("failure"), *case.iter("error")]:
            text = (fault.get("message") or "").strip().partition("\n")[0][:100]
            said[text] += 1
            first.setdefault(text, str(case.get("name")))
    texts = [f"{n} × `{text}` ({first[text]})" for text, n in said.most_common(3)]
    more = len(said) - 3
    texts += [f"{more} other errors"] if more > 0 else []
    failed = failures + errors
    return Counts(tests - failed - skipped, failed, skipped), "; ".join(texts)


def run_cells(cells: list[Cell], workshop: Workshop, kept: str, jobs: str, again: bool) -> None:
    """Results are saved behind each cell, and its environment deleted unless it is `kept`."""
    found = results.load()
    for i, cell in enumerate(cells):
        if is_current(found.get(cell.name)) and not again:
            print(f"{cell.name}: has run on these sources", flush=True)
            continue
        print(f"{cell.name}: {cell.torch}, {cell.python}, {cell.start_method}", flush=True)
        found[cell.name] = workshop.run(cell, jobs)
        results.save(found)
        later = {other.folder for other in cells[i + 1 :]}
        if cell.torch != kept and cell.folder not in later:
            shutil.rmtree(workshop.folder / cell.folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser("make matrix")
    parser.add_argument("cells", nargs="*", help="all, if none is named")
    parser.add_argument("--pythons", default="", help="paths of interpreters")
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--again", action="store_true", help="cells that have run, too")
    options = parser.parse_args()
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        sys.exit("make matrix needs uv, which is in requirements-dev.txt")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("MATRIX_DIR") or Path(cache, "fastloop-matrix")).resolve()
    newest = newest_release(uv)
    here = getattr(sys, "_base_executable", sys.executable)
    pythons = interpreters([here, *options.pythons.split()])
    others = [f"py{version}" for version, path in pythons.items() if path != here]
    words = options.cells or [*tested_releases(), "newest", *others, *START_METHODS]
    cells = read_cells(words, newest, here, pythons)
    run_cells(cells, Workshop(folder, uv), f"torch=={newest}.*", options.jobs, options.again)
    results.main(is_check=False)
    found = results.load()
    shown = [found[cell.name] for cell in cells]
    print(results.long_table(sorted(shown, key=results.order)))
    return int(not all(result.is_green for result in shown))


if __name__ == "__main__":
    sys.exit(main())
