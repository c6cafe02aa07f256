"""timm's messages of skipped samples behind patch(): a program's filters see each message once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("timm.data")

from timm.data import dataset
from timm_loaders import RECIPE, count_served, damage, make_root, nothing_is_known, play

import fastloop

FIXTURES = make_root, nothing_is_known  # pytest finds what is imported


@pytest.mark.parametrize("name", ["marks messages", "drops repeated messages", "is an adapter"])
def test_what_a_program_does_with_messages(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    damage(root, tmp_path)
    logger, told = logging.getLogger("timm.data.dataset"), list[str]()

    def mark(record: logging.LogRecord) -> bool:
        record.msg = f"rank 0: {record.msg}"
        return True

    def play_and_tell() -> list[str]:
        seen = set[str]()

        def is_new(record: logging.LogRecord) -> bool:
            is_new = record.msg not in seen
            seen.add(record.msg)
            return is_new

        def tell(record: logging.LogRecord) -> Any:
            return told.append(record.getMessage())

        handler = logging.Handler()
        told.clear()
        with monkeypatch.context() as patch:
            patch.setattr(handler, "emit", tell)
            patch.setattr(logger, "handlers", [handler])
            patch.setattr(logger, "filters", [is_new if name.startswith("drops") else mark])
            if name == "is an adapter":
                patch.setattr(dataset, "_logger", logging.LoggerAdapter(logger, {}))
            play(tmp_path, **RECIPE)
        return list(told)

    theirs = play_and_tell()
    fastloop.patch(verbose=False)
    assert play_and_tell() == theirs and theirs
    assert count_served() > 0
