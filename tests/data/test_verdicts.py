"""Verdicts on other libraries' code, which a later process reads from the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastloop import doctor
from fastloop.compat import verdicts
from fastloop.compat.verdicts import Verdict

VERDICT = Verdict("", "collators: transformers 6.0")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FASTLOOP_CACHE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(verdicts, "_read", {})
    return tmp_path / "fastloop" / "verdicts"


def kept(folder: Path) -> Path:
    verdicts.keep("name", VERDICT)
    verdicts._read.clear()  # as a new process begins
    return folder / "name"


def test_a_later_process_finds_a_verdict(folder: Path) -> None:
    file = kept(folder)
    assert verdicts.find("name") == VERDICT and verdicts.find("other") is None
    assert os.listdir(folder) == ["name"] and file.stat().st_mode & 0o777 == 0o600
    found = "collators: proven for transformers 6.0 (not known when fastloop was built)"
    assert verdicts.in_force() == [found]


def test_a_reason_is_kept(folder: Path) -> None:
    verdicts.keep("name", Verdict("batches\ndiffer", "collators: transformers 6.0"))
    verdicts._read.clear()
    assert str(verdicts.find("name")).startswith("collators: batches differ")


@pytest.mark.parametrize(
    "text", ["", "\n\n", "0\n\ncollators: transformers 6.0", "\xff", "a" * 9999]
)
def test_a_damaged_file_is_ignored(folder: Path, text: str) -> None:
    kept(folder).write_bytes(text.encode("latin-1"))
    assert verdicts.find("name") is None
    verdicts.keep("name", VERDICT)
    verdicts._read.clear()
    assert verdicts.find("name") == VERDICT


def test_every_byte_counts(folder: Path) -> None:
    file = kept(folder)
    text = file.read_bytes()
    for at in range(len(text)):
        file.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        assert verdicts.find("name") is None


def test_a_file_of_another_user_is_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert verdicts.find("name") is None
    (folder / "name").chmod(0o666)
    assert verdicts.find("name") is None
    (folder / "name").chmod(0o644)
    assert verdicts.find("name") == VERDICT


def test_another_machine_needs_a_verdict_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(folder)
    monkeypatch.setattr(verdicts, "_machine", lambda: "another")
    assert verdicts.find("name") is None


def test_a_folder_that_cannot_be_written_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    verdicts.keep("name", VERDICT)
    assert verdicts.find("name") == VERDICT  # in this process
    verdicts._read.clear()
    assert verdicts.find("name") is None and verdicts.describe_kept() == {}


def test_the_variable_turns_the_disk_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = kept(folder)
    monkeypatch.setenv("FASTLOOP_CACHE", "0")
    assert verdicts.find("name") is None
    file.unlink()
    verdicts.keep("name", VERDICT)
    assert verdicts.find("name") == VERDICT and not file.exists()


def test_the_doctor_tells_verdicts_on_what_is_installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"transformers": "6.0", "datasets": "5.2"}
    monkeypatch.setattr(verdicts, "version", installed.__getitem__)
    about = "collators: transformers 6.0 with datasets 5.2"
    for name, verdict in {
        "a": Verdict("", about),
        "b": Verdict("a batch differs", about),
        "c": Verdict("", "collators: transformers 5.9 with datasets 5.2"),
        "d": Verdict(""),
    }.items():
        verdicts.keep(name, verdict)
    proven = "proven for transformers 6.0 with datasets 5.2 (not known when fastloop was built)"
    assert verdicts.describe_kept() == {"collators": f"{proven}; a batch differs"}
    assert doctor().facts["collators"] == f"{proven}; a batch differs"
