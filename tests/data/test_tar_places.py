"""TarDataset: shards of URLs, which are fetched, and a disk that is full."""

import pickle
from pathlib import Path

import pytest
import torch
from helpers import run_script

pytest.importorskip("PIL", reason="Pillow is not installed")

from tar_shards import image_members, write_shards, write_tar

from fastloop import TarDataset


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return write_shards(tmp_path / "shards")


def test_shards_of_urls_are_fetched(shards: list[str], tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    expected, cache = TarDataset(shards, ["__key__", "jpg"]), tmp_path / "cache"
    folder = Path(shards[0]).parent
    for paths in (f"file://{folder}/train-{{000..002}}.tar", f"file://{folder}/*.tar"):
        data = TarDataset(paths, ["__key__", "jpg"], cache_dir=cache)
        assert len(data) == 30 and data[17][0] == expected[17][0]
        assert torch.equal(data[17][1], expected[17][1])
        assert all(Path(path).parent == cache for path in data.paths)
    assert len(list(cache.glob("*.tar"))) == 3 and len(list(cache.glob("*.index"))) == 1
    again = pickle.loads(pickle.dumps(data))
    assert again[29][0] == expected[29][0]
    write_tar(Path(shards[1]), image_members(range(50, 53)))
    data = TarDataset(paths, "cls", cache_dir=cache)
    assert len(data) == 23 and data[10] == 50
    with pytest.raises(FileNotFoundError, match=r"train-003\.tar"):
        TarDataset(f"file://{folder}/train-{{000..003}}.tar", cache_dir=cache)


FULL = """
import resource, sys
from fastloop import TarDataset
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    TarDataset(sys.argv[1:])
except OSError as error:
    print(error.strerror, error.filename)
"""


def test_a_full_disk(shards: list[str], tmp_path: Path) -> None:
    told = run_script(tmp_path, FULL, *shards)
    folder = Path(shards[0]).parent
    assert told.startswith(f"File too large {folder}/fastloop-")
    assert [path.name for path in folder.iterdir() if path.suffix not in (".tar", ".lock")] == []
