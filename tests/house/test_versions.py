"""Versions are named as `make matrix` has found them, and nothing bounds them from above."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from sources import ROOT

from fastloop.compat.requirements import NEWEST_TESTED, OLDEST

RECORD: dict[str, Any] = json.loads((ROOT / "docs/results/versions.json").read_text())
RESULTS: list[dict[str, Any]] = RECORD["cells"]
ADAPTERS: list[dict[str, Any]] = RECORD["adapters"]
GREEN = [result for result in RESULTS if result["passed"] and not result["why"]]


def release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def project() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib", reason="is in Python from 3.11 on")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_tables_are_made_from_the_results() -> None:
    program = ROOT / "tests/versions/results.py"
    done = subprocess.run([sys.executable, program, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_oldest_and_the_newest_release_that_doctor_calls_tested_have_passed() -> None:
    releases = {release(result["torch"]) for result in GREEN}
    assert (min(releases), max(releases)) == (OLDEST, NEWEST_TESTED)


def test_the_oldest_release_is_named_alike_everywhere() -> None:
    asked = "torch>=" + ".".join(map(str, OLDEST))
    assert project()["project"]["optional-dependencies"]["torch"] == [asked]


def test_classifiers_name_interpreters_that_have_passed() -> None:
    name = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    said = {found[1] for line in project()["project"]["classifiers"] if (found := name.match(line))}
    passed = {"{}.{}".format(*release(result["python"])) for result in GREEN}
    assert said == passed & said, f"no green cell for {sorted(said - passed)}"


def test_what_users_install_has_lower_bounds_alone() -> None:
    wanted = project()["project"]
    extras = wanted["optional-dependencies"].values()
    lines = [*wanted["dependencies"], *(line for extra in extras for line in extra)]
    assert lines and [line for line in lines if not re.fullmatch(r"[\w-]+>=[\d.]+", line)] == []


def test_the_frameworks_of_the_group_are_those_that_tests_install() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    group = project()["dependency-groups"]["frameworks"]
    assert group and [line for line in group if line not in lines] == []


# ---- releases whose code C stands in for


def known_releases() -> dict[str, str]:
    """The heading of originals.txt: {"torchvision": "0.28 and 0.29", ...}."""
    text = (ROOT / "fastloop/adapters/originals.txt").read_text()
    heading = " ".join(
        line.removeprefix("#").strip() for line in text.split("\n\n")[0].splitlines()
    )
    named = r"\d+\.\d+(?: and \d+\.\d+)?"
    return dict(re.findall(rf"(torchvision|transformers|datasets|timm) ({named})", heading))


def test_pages_name_the_releases_that_are_known() -> None:
    """One page names all of them, and no page names a different range."""
    known = known_releases()
    assert known.keys() == {"torchvision", "transformers", "datasets", "timm"}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = {path: " ".join(path.read_text().split()) for path in pages}
    page = texts[ROOT / "docs/internals/zero-change.md"]
    assert all(f"{name} {releases}" in page for name, releases in known.items())
    ranges = re.compile(r"(torchvision|transformers|datasets) (\d+\.\d+ and \d+\.\d+)")
    for path, text in texts.items():
        assert all(known[name] == found for name, found in ranges.findall(text)), path


# ---- adapters


def adapter_modules() -> set[str]:
    """Each module of adapters/ that knows a package; originals.py asks for all of them."""
    names = {path.stem for path in (ROOT / "fastloop/adapters").glob("*.py")}
    return names - {"__init__", "originals", "closed_world", "traced", "torch_pad"}


def test_every_adapter_has_a_line_and_every_line_an_adapter() -> None:
    lines = [line["adapter"] for line in ADAPTERS]
    modules = adapter_modules()
    assert [name for name in modules if not any(map(name.startswith, lines))] == []
    assert [line for line in lines if not any(name.startswith(line) for name in modules)] == []


def test_the_tests_of_adapters_are_there() -> None:
    names = [name for line in ADAPTERS for name in line["tests"]]
    assert names and [name for name in names if not (ROOT / "tests" / name).is_file()] == []


def test_adapters_name_the_releases_that_are_known_or_installed_for_tests() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    pins = {
        name: ".".join(version.split(".")[:2])
        for name, _, version in (line.partition(";")[0].partition("==") for line in lines)
    }
    known = {name: releases.split(" and ") for name, releases in known_releases().items()}
    for line in ADAPTERS:
        for name, releases in line["versions"].items():
            assert releases == known.get(name, [pins.get(name)]), name
