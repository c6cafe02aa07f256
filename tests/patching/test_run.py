"""python -m fastloop run: a program runs as under plain python, and torch is patched in it and in
the interpreters that it starts."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from time_limits import limit

SCRIPT = """
import sys, helper, atexit, __main__
print(__name__, __file__, __spec__, __package__, __cached__, type(__loader__).__name__)
print(sys.argv, sys.path[0], helper.VALUE, vars(__main__) is globals())
print([name for name in ("torch", "numpy", "typing") if name in sys.modules])
def end():
    traceback, names = getattr(sys, "last_traceback", None), []
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    print("at exit", sys.modules["__main__"].LAST, sys.excepthook is sys.__excepthook__, names)
atexit.register(end)
LAST = "still there"
what = sys.argv[1] if len(sys.argv) > 1 else ""
if what == "exit":
    sys.exit(3)
if what == "text":
    sys.exit("a text")
if what == "hook":
    sys.excepthook = lambda kind, error, traceback: print("hook", kind, error, traceback.tb_lineno)
if what == "wrong hook":
    sys.excepthook = lambda kind, error, traceback: [print(sys.exc_info()), 1 / 0]
def fail():
    raise KeyboardInterrupt if what == "interrupt" else LookupError("wrong")
if what:
    try:
        fail()
    except LookupError as error:
        raise RuntimeError("in the end") from error
"""

TEXT = """import helper, sys
print(sys.argv, sys.path[0], sorted(globals()), type(__loader__))
1 / 0
"""

CASES = [
    ["script.py"],
    ["folder/../script.py"],
    ["./script.py"],
    ["link.py"],
    ["script.py", "exit", "--only", "-m"],
    ["script.py", "text"],
    ["script.py", "fail"],
    ["script.py", "hook"],
    ["script.py", "wrong hook"],
    ["script.py", "interrupt"],
    ["compiled.pyc", "fail"],
    ["folder", "x"],
    ["./folder/", "x"],
    ["archive.zip", "x"],
    ["-m", "folder", "x"],
    ["-mfolder", "x"],
    ["-m", "folder.inner", "x"],
    ["-m", "helper"],
    ["-m", "folder.nothing"],
    ["nothing.py"],
    ["broken.py"],
    ["-c", TEXT, "-x"],
    [f"-c{TEXT}", "-c"],
    ["-c", "x = ("],
    ["-", "-x"],
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import zipfile

    root = tmp_path_factory.mktemp("programs")
    (root / "script.py").write_text(SCRIPT)
    (root / "helper.py").write_text("VALUE = 3\nprint(__name__)\n")
    (root / "broken.py").write_text("x = (\n")
    py_compile.compile(str(root / "script.py"), str(root / "compiled.pyc"))
    (root / "elsewhere").mkdir()
    (root / "elsewhere" / "real.py").write_text(SCRIPT)
    (root / "elsewhere" / "helper.py").write_text("VALUE = 'of the real file'\n")
    (root / "link.py").symlink_to("elsewhere/real.py")
    (root / "folder").mkdir()
    (root / "folder" / "__init__.py").write_text("")
    inner = "import sys; print(__name__, __package__, __spec__.name, sys.argv, sys.path[0])"
    (root / "folder" / "__main__.py").write_text(inner)
    (root / "folder" / "inner.py").write_text(f"from . import __name__\n{inner}\n1 / 0\n")
    with zipfile.ZipFile(root / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", inner)
    return root


def run(root: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        input=TEXT,
        cwd=root,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=limit(300),
    )


@pytest.mark.parametrize("args", CASES, ids=lambda args: " ".join(args).partition("import")[0])
def test_a_program_runs_as_under_python(programs: Path, args: list[str]) -> None:
    plain = run(programs, *args)
    ours = run(programs, "-m", "fastloop", "run", *args)
    assert (ours.returncode, ours.stdout, ours.stderr) == (
        plain.returncode,
        plain.stdout,
        plain.stderr,
    )


def test_an_interactive_session_goes_on_where_the_program_ended(programs: Path) -> None:
    plain = run(programs, "-i", "-m", "helper")
    ours = run(programs, "-i", "-m", "fastloop", "run", "-m", "helper")
    assert "ZeroDivisionError" in ours.stderr  # of what is typed
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)


def test_safe_path_is_kept(programs: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("python has no -P")
    plain = run(programs, "-P", "folder/inner.py")
    ours = run(programs, "-P", "-m", "fastloop", "run", "folder/inner.py")
    assert ours.returncode == plain.returncode == 1
    assert ours.stdout == plain.stdout and ours.stderr == plain.stderr


USES_TORCH = """
import subprocess, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

def show(where):
    kind = type(iter(DataLoader(TensorDataset(torch.zeros(4)), 2))).__name__
    sys.stdout.write(f"{where} {kind}\\n")  # in one piece, beside other ranks
    sys.stdout.flush()

if __name__ == "__main__":
    show("here")
    for method in sys.argv[1:]:
        process = torch.multiprocessing.get_context(method).Process(target=show, args=(method,))
        process.start()
        process.join()
    code = "import sys, sitecustomize as s; print(s.__file__, 'fastloop' in sys.modules)"
    code += "; from script import show; show('other')"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.fixture
def torch_program(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(USES_TORCH)
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "sitecustomize.py").write_text("IS_USERS = True\n")
    return tmp_path


@pytest.mark.slowest
def test_children_of_every_kind_are_patched_and_the_users_sitecustomize_runs(
    torch_program: Path,
) -> None:
    users = torch_program / "users"
    args = ("-m", "fastloop", "run", "script.py", "fork", "spawn", "forkserver")
    paths = filter(None, [str(users), os.environ.get("PYTHONPATH", "")])
    done = run(torch_program, *args, PYTHONPATH=os.pathsep.join(paths))
    wanted = ["here ArrayIter", "fork ArrayIter", "spawn ArrayIter", "forkserver ArrayIter"]
    wanted += [f"{users / 'sitecustomize.py'} False", "other ArrayIter"]
    assert done.stdout.splitlines() == wanted, done.stderr
    first, last = done.stderr.splitlines()
    assert first.startswith("fastloop ") and "on for dataloader, grad_scaler, clip_" in first
    others = "grad_scaler 0 native; clip_grad_norm 0 native; transforms 0 native; texts 0 native"
    how = "TensorDataset: gathered by threads, 5 loaders, 5 epochs"
    assert last == f"fastloop: end of run: dataloader 5 native [{how}]; {others}"


@pytest.mark.slowest
@pytest.mark.parametrize("args", [["--no-children"], ["--only", "dataloader", "--no-children"]])
def test_no_children_are_patched_if_so_wished(torch_program: Path, args: list[str]) -> None:
    env = {"PYTHONPATH": str(torch_program / "users"), "FASTLOOP_VERBOSE": "0"}
    done = run(torch_program, "-m", "fastloop", "run", *args, "script.py", **env)
    assert "here ArrayIter" in done.stdout and "other _Single" in done.stdout
    assert done.stderr == ""


@pytest.mark.slowest
def test_one_word_switches_all_of_it_off(torch_program: Path) -> None:
    env = {"PYTHONPATH": str(torch_program / "users"), "FASTLOOP": "0"}
    done = run(torch_program, "-m", "fastloop", "run", "script.py", **env)
    assert "here _Single" in done.stdout and "other _Single" in done.stdout
    assert done.stderr == ""


def test_a_process_that_has_loaded_nothing_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "fastloop", "run", "-c", "import torch")
    assert done.stderr.endswith("texts 0 native\n")


LAUNCHER = """
import os, subprocess, sys
code = "from script import show; show('rank')"
for rank in "01":
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "RANK": rank}, check=True)
"""


@pytest.mark.slowest
def test_a_launcher_says_what_its_ranks_did(torch_program: Path) -> None:
    (torch_program / "launch.py").write_text(LAUNCHER)
    done = run(torch_program, "-m", "fastloop", "run", "launch.py")
    assert done.stdout == "rank ArrayIter\n" * 2
    (line,) = done.stderr.splitlines()
    how = "TensorDataset: gathered by threads, 2 loaders, 2 epochs"
    assert line.startswith(f"fastloop: end of run: dataloader 2 native [{how}]"), line


RANK = """
import torch.distributed
from script import show
torch.distributed.init_process_group("gloo")
show("rank")
torch.distributed.barrier()  # or a rank is gone before the other one has connected to it
torch.distributed.destroy_process_group()
"""


@pytest.mark.slowest
def test_torchrun_says_what_its_ranks_did(torch_program: Path) -> None:
    (torch_program / "rank.py").write_text(RANK)
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = run(torch_program, "-m", "fastloop", "run", *launch, "rank.py")
    assert done.returncode == 0 and done.stdout == "rank ArrayIter\n" * 2, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("fastloop")]
    first, last = told
    assert ": on for dataloader" in first, told
    assert last.startswith("fastloop: end of run: dataloader 2 native [TensorDataset: "), told


@pytest.mark.slowest
def test_other_ranks_are_silent(torch_program: Path) -> None:
    env = {"PYTHONPATH": str(torch_program / "users"), "RANK": "1"}
    done = run(torch_program, "-m", "fastloop", "run", "--no-children", "script.py", **env)
    assert "here ArrayIter" in done.stdout and done.stderr == ""


def test_a_run_within_a_run_is_one_run(torch_program: Path) -> None:
    args = ("-m", "fastloop", "run")
    done = run(torch_program, *args, *args, "script.py", "not a method")
    assert "here ArrayIter" in done.stdout and done.returncode == 1
    assert done.stderr.count("ValueError: cannot find context") == 1, done.stderr
    assert done.stderr.count(": on for") == done.stderr.count("end of run") == 1, done.stderr


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([], "there is nothing to run"),
        (["-m"], "there is nothing to run"),
        (["-c"], "there is nothing to run"),
        (["--only"], "--only needs names"),
        (
            ["--only=loaders", "x.py"],
            "clip_grad_norm,transforms,texts, got 'loaders'",
        ),
        (["--fast", "x.py"], "unknown option --fast; give the program's own options after the "),
    ],
)
def test_wrong_options_are_explained(programs: Path, args: list[str], text: str) -> None:
    done = run(programs, "-m", "fastloop", "run", *args)
    assert done.returncode == 2 and text in done.stderr and "usage:" in done.stderr


LOOKS_FIRST = """
import copy, importlib.util, sys
for _ in range(2):
    loader = copy.copy(importlib.util.find_spec("torch").loader)
    print(loader.name, loader.is_package("torch"), "torch" in sys.modules)
import torch
from torch.utils.data import DataLoader, TensorDataset
print(type(iter(DataLoader(TensorDataset(torch.zeros(4)), 2))).__name__)
print(type(torch.__loader__) is type(torch.__spec__.loader) is type(torch.nn.__loader__))
"""


def test_a_program_may_look_for_torch_before_it_imports_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LOOKS_FIRST)
    done = run(tmp_path, "-m", "fastloop", "run", "script.py")
    assert done.stdout.splitlines() == ["torch True False"] * 2 + ["ArrayIter", "True"], done.stderr


def test_a_torch_that_is_too_old_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.9.1'")
    (tmp_path / "script.py").write_text("import torch; print(torch.__version__)")
    done = run(tmp_path, "-m", "fastloop", "run", "script.py")
    assert done.returncode == 0 and done.stdout == "2.9.1\n"
    text = (
        "fastloop: torch is not patched: fastloop.patch() needs PyTorch 2.10 or newer, found 2.9.1"
    )
    assert done.stderr.startswith(text) and len(done.stderr.splitlines()) == 1, done.stderr


def test_an_import_of_torch_that_fails_may_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import sys; 'again' in sys.argv or 1 / 0")
    text = "import sys\ntry: import torch\nexcept ZeroDivisionError: sys.argv.append('again')\n"
    (tmp_path / "script.py").write_text(text + "import torch")
    done = run(tmp_path, "-m", "fastloop", "run", "script.py")
    assert done.returncode == 0 and "torch is not patched" in done.stderr, done.stderr


def test_a_torch_that_cannot_be_patched_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('another torch')")
    (tmp_path / "script.py").write_text("import torch; print('done', torch.__loader__)")
    done = run(tmp_path, "-m", "fastloop", "run", "script.py")
    assert done.returncode == 0 and "another torch" in done.stdout and "done" in done.stdout
    assert "SourceFileLoader" in done.stdout and "torch is not patched" in done.stderr


@pytest.mark.parametrize("text", ["import torch", "import sys"])
def test_a_stderr_that_takes_nothing_stops_no_program(tmp_path: Path, text: str) -> None:
    (tmp_path / "script.py").write_text(f"{text}\nprint('done')")
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "fastloop", "run", "--report=run.json", "script.py"]
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=full, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n")
