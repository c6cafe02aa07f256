"""docs/ describes the code that is there: its tables name every module once, and the page that
follows a batch through the code names functions that exist."""

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from textwrap import dedent
from typing import Any
from xml.etree import ElementTree

import pytest
from sources import (
    CSRC,
    PACKAGE,
    ROOT,
    assert_none,
    c_files,
    functions,
    own_files,
    python_modules,
    qualified_names,
)

import fastloop

DOCS = ROOT / "docs"
ONE_BATCH = DOCS / "internals/one-batch.md"

# ---- tables of modules


def module_names() -> set[str]:
    """As the tables name them: "fl_ring" for fl_ring.c and .h, "data/field.py" in the package."""
    modules = {path.relative_to(PACKAGE).as_posix() for path in python_modules().values()}
    return modules | {path.stem for path in c_files()}


def named_in_tables(text: str) -> list[str]:
    """The names in backticks in the first cells of those tables whose first column is "file"."""
    names, is_table = [], False
    for line in text.splitlines():
        cell = line.split("|")[1].strip() if line.startswith("|") else None
        if cell == "file":
            is_table = True
        elif cell is None:
            is_table = False
        elif is_table:
            names += re.findall(r"`([^`]+)`", cell)
    return names


def test_names_are_read_from_tables_of_files_alone() -> None:
    text = "| file | hides |\n|---|---|\n| `a`, `b/c.py` | `d` |\n\n| who | what |\n| `e` | x |\n"
    assert named_in_tables(text) == ["a", "b/c.py"]


def test_every_module_is_in_one_table() -> None:
    count = Counter(
        name for page in DOCS.rglob("*.md") for name in named_in_tables(page.read_text())
    )
    modules = module_names()
    assert_none(modules - count.keys())
    assert_none((name for name, times in count.items() if times > 1))
    others = {p.relative_to(ROOT).as_posix() for p in own_files() if CSRC not in p.parents}
    assert_none(count.keys() - modules - others)


# ---- the way of a batch: `file:function` in the steps of docs/internals/one-batch.md


def step_names(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The steps of a page, its numbered lines, each with the (file, function) that it names."""
    steps: list[str] = []
    for line in text.splitlines():
        if re.match(r"\d+\. ", line):
            steps.append(line)
        elif steps and line.startswith("   "):
            steps[-1] += line
    named = r"`([\w/]+\.(?:c|h|cu|cuh|py)):([\w.]+)`"
    return [(step, re.findall(named, step)) for step in steps]


def defined_names(file: str) -> set[str]:
    """What a file of csrc, by its name alone, or of the package, by its path in it, defines."""
    if file.endswith(".py"):
        path = PACKAGE / file
        return qualified_names(path) if path.exists() else set()
    paths = [path for path in c_files() if path.name == file]
    return {function.name for path in paths for function in functions(path.read_text())}


def step_faults(text: str) -> list[str]:
    faults = []
    for step, names in step_names(text):
        if not names:
            faults.append(f"no `file:function` in: {step}")
        faults += [f"there is no {f}:{name}" for f, name in names if name not in defined_names(f)]
    return faults


def test_the_way_of_a_batch_names_functions_that_exist() -> None:
    text = ONE_BATCH.read_text()
    assert step_names(text)
    assert not (faults := step_faults(text)), "\n".join(faults)


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        ("1. `fl_ring.c:fl_ring_submit` takes it.", None),
        ("1. `loader/route.py:choose_route`,\n   then `fl_ring.c:fl_ring_submit`.", None),
        ("1. `fl_ring.c:fl_ring_lost` takes it.", "fl_ring_lost"),
        ("1. `fl_lost.c:fl_ring_submit` takes it.", "fl_lost.c"),
        ("1. `loader/dataloader.py:DataLoader.lost` is called.", "DataLoader.lost"),
        ("1. `loader/lost.py:DataLoader` is called.", "loader/lost.py"),
        ("1. Somebody takes it.", "no `file:function`"),
        ("1. `fl_ring.c:fl_ring_submit` and\n   `fl_ring.c:fl_ring_lost`.", "fl_ring_lost"),
    ],
)
def test_a_step_that_names_nothing_is_seen(step: str, fault: str | None) -> None:
    faults = step_faults(step)
    assert faults == [] if fault is None else len(faults) == 1 and fault in faults[0], faults


# ---- code


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda p: p.stem
)
def test_python_in_pages_compiles(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)^ *```", page.read_text(), re.DOTALL | re.M):
        compile(dedent(block), page.name, "exec")


# ---- links, pictures, the reference

PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("examples/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)", text)
    assert_none(link for link in links if not (page.parent / link).exists())


def test_code_names_pages_that_exist() -> None:
    page = r"(?<![\w/])docs/[\w/-]+\.md"
    named = {name for path in own_files() for name in re.findall(page, path.read_text())}
    assert named
    assert_none(name for name in named if not (ROOT / name).is_file())


def test_pages_name_each_other_by_links() -> None:
    names = {page.name for page in DOCS.rglob("*.md")}
    faults = []
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        found = re.findall(r"`(?:docs/)?(?:\w+/)?([\w-]+\.md)`", text)
        faults += [
            f"{page.name}: {name}" for name in found if name in names - {page.name, "README.md"}
        ]
    assert_none(faults)


def test_readme_is_a_page() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8 * 1024


USE = sorted((DOCS / "use").glob("*.md"))


def test_pages_for_users_are_few_and_short() -> None:
    assert len(USE) <= 15
    assert sum(len(page.read_bytes()) for page in USE) <= 120 * 1024


@pytest.mark.parametrize("page", USE, ids=lambda page: page.stem)
def test_a_page_for_users_begins_with_an_example(page: Path) -> None:
    """The example is in the first screen, which shows about 40 lines."""
    first = page.read_text().splitlines()[:40]
    starts = [i for i, line in enumerate(first) if re.fullmatch("```(python|console)", line)]
    assert any("```" in first[start + 1 :] for start in starts), page


def load_script(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_those_of_their_scripts() -> None:
    drawings = load_script(DOCS / "pictures.py").drawings()
    chart = json.loads((ROOT / "benchmarks/chart.json").read_text())
    drawings["bars.svg"] = load_script(ROOT / "benchmarks/chart.py").draw(chart)
    for name, text in drawings.items():
        assert (DOCS / "pictures" / name).read_text() == text, name
        ElementTree.fromstring(text)


def test_the_first_page_shows_what_the_pictures_show() -> None:
    """Its comparison and its verdict were measured for the pictures."""
    page = (DOCS / "use/start.md").read_text()
    measured = (DOCS / "pictures/compare.txt").read_text().splitlines()
    shown = page.split("$ fastloop compare")[1].split("```")[0].splitlines()[1:]
    assert_none(line for line in shown if line.strip() != "…" and line not in measured)
    verdict = json.loads((DOCS / "pictures/report.json").read_text())["verdict"]["text"]
    assert verdict in " ".join(page.split())


def test_the_augmented_images_are_those_that_the_script_makes() -> None:
    image = pytest.importorskip("PIL.Image")
    with image.open(DOCS / "pictures/augmented.png") as shown:
        found = load_script(DOCS / "pictures.py").augment_images()
        assert found.tobytes() == shown.tobytes()


def test_the_chart_shows_what_the_page_of_benchmarks_states() -> None:
    lines = (DOCS / "results/benchmarks.md").read_text().splitlines()
    for row in json.loads((ROOT / "benchmarks/chart.json").read_text())["rows"]:
        found = [line for line in lines if row["fastloop"] in line and row["torch"] in line]
        assert found, row
        units = {"µs": 1e-6, "ms": 1e-3}
        ours, torchs = (
            float(x) * units[u] for x, u in (row[k].split() for k in ("fastloop", "torch"))
        )
        assert abs(torchs / ours / row["times"] - 1) < 0.03, row


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    count = Counter(re.findall(r"^::: fastloop\.(\w+)$", text, re.MULTILINE))
    assert count == Counter(fastloop.__all__)
    without_imports = re.sub(r"^(?:from|import) .*$", "", text, flags=re.MULTILINE)
    code = " ".join(re.findall(r"```python\n(.*?)```", without_imports, re.DOTALL))
    shown = {name for name in fastloop.__all__ if re.search(rf"\b{name}\b", code)}
    results = {"BatchPlan", "Diagnosis", "GraphStep", "LoaderStats", "MemoryUse", "ParameterCount"}
    results |= {"PatchState", "Report", "SeamStatus", "Suggestion", "WorkerStats", "transforms"}
    results |= {"LoaderUpdate", "Update"}
    assert_none({*fastloop.__all__} - shown - results)


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert Counter(listed) == Counter(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))


def test_pages_that_moved_lead_to_pages() -> None:
    moved = load_script(DOCS / "moved.py").moved_pages()
    pages = {new.replace("index", "README") for new in moved.values()}
    assert_none(page for page in pages if not (DOCS / f"{page}.md").is_file())
    assert_none(old for old in moved if (DOCS / f"{old}.md").exists())


def test_home_says_how_to_install_and_shows_the_chart() -> None:
    def commands(page: Path) -> list[str]:
        lines = page.read_text().split("## Install\n")[1].split("```")[1].splitlines()
        return [line.partition("#")[0].strip() for line in lines]

    home = (DOCS / "README.md").read_text()
    assert "](pictures/bars.svg)" in home and "](use/start.md)" in home
    assert commands(DOCS / "README.md") == commands(ROOT / "README.md")


def test_the_page_of_changes_is_that_of_the_root() -> None:
    assert '--8<-- "CHANGELOG.md"' in (DOCS / "changelog.md").read_text().splitlines()
    assert "pymdownx.snippets" in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize(
    "option", ["merge_init_into_class", "inherited_members", "show_signature_annotations"]
)
def test_the_reference_shows_the_arguments_of_classes_and_what_they_inherit(option: str) -> None:
    assert f"            {option}: true\n" in (ROOT / "mkdocs.yml").read_text()
