"""Images in Arrow: read from the mapped file or from memory, decoded and transformed as those of an
ImageFolder, in both loaders; and rows that are damaged."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from image_folders import by_pillow, encode, picture, write_folder

from fastloop import ArrowDataset, DataLoader, ImageFolder
from fastloop import transforms as T

pa = pytest.importorskip("pyarrow")

KIND = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CHAIN = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToDtype(torch.float32)])


def make(root: Path, kind: Any = KIND) -> Any:
    """A table of a folder's images, in three chunks, in the folder's order."""
    folder = ImageFolder(write_folder(root))
    chunks: list[Any] = []
    for part in (slice(0, 5), slice(5, 6), slice(6, None)):
        contents = [Path(path).read_bytes() for path, _ in folder.samples[part]]
        rows = contents if kind != KIND else [{"bytes": c, "path": None} for c in contents]
        chunks.append(pa.array(rows, kind))
    label = pa.array(folder.targets, pa.int16())
    return pa.table({"image": pa.chunked_array(chunks, kind), "label": label})


def write(path: Path, table: Any) -> str:
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    return str(path)


@pytest.mark.parametrize("kind", [KIND, pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_samples_are_those_of_an_image_folder(kind: Any, is_mapped: bool, tmp_path: Path) -> None:
    table = make(tmp_path / "images", kind)
    given = write(tmp_path / "a", table) if is_mapped else table
    folder, data = (
        ImageFolder(tmp_path / "images", CHAIN, seed=3),
        ArrowDataset(given, transform=CHAIN, seed=3),
    )
    for epoch in (0, 1):
        folder.set_epoch(epoch)
        data.set_epoch(epoch)
        for row, view in ((0, 0), (5, 0), (6, 2), (-1, 0), (7, 1)):
            image, label = folder[row, view]
            assert torch.equal(data[row, view]["image"], image)
            assert data[row]["label"].item() == label
    assert data.params(4) == folder.params(4)
    plain = ArrowDataset(given)
    for row, content in enumerate(table["image"].to_pylist()):
        content = content["bytes"] if kind == KIND else content
        assert np.array_equal(plain[row]["image"].permute(1, 2, 0), by_pillow(content))
    assert plain._sources["image"]._place(8)[0] == (0 if is_mapped else -1)  # type: ignore[union-attr]


@pytest.mark.parametrize(("workers", "path"), [(0, "auto"), (1, "auto"), (1, "thread")])
def test_both_loaders_have_the_same_batches(workers: int, path: str, tmp_path: Path) -> None:
    data = ArrowDataset(write(tmp_path / "a", make(tmp_path / "images")), transform=CHAIN)
    ours = DataLoader(data, 4, num_workers=workers, path=path)
    theirs = TorchLoader(data, 4, num_workers=workers)
    assert "image" in ours.dataset[0] and "decode:" in data.explain()
    batches = [list(ours)]
    data.set_epoch(0)
    batches.append(list(theirs))
    assert_same(*batches)


def test_several_images_share_their_random_parameters(tmp_path: Path) -> None:
    images = [encode(picture(n, 30, 40), quality=90) for n in range(6)]
    table = pa.table({"left": images, "right": images[::-1], "raw": images, "text": [*"abcdef"]})
    data = ArrowDataset(table, transform=CHAIN, decode={"raw": len})
    for n in range(6):
        for name in ("left", "right"):
            assert torch.equal(data[n][name], ArrowDataset(table, [name], CHAIN)[n][name])
        assert data[n]["raw"] == len(images[n]) and data[n]["text"] == "abcdef"[n]
    same = pa.table({"left": images, "right": images})
    sample = ArrowDataset(same, transform=CHAIN)[3]
    assert torch.equal(sample["left"], sample["right"])
    views = ArrowDataset(same, ["left"], {"a": CHAIN, "b": CHAIN})[2]["left"]
    assert [view.shape for view in views] == [(3, 16, 16)] * 2
    loader = DataLoader(data, 3)
    assert_same(list(loader), list(TorchLoader(data, 3)))


def test_paths_stand_for_bytes_that_are_null(tmp_path: Path) -> None:
    folder = ImageFolder(write_folder(tmp_path))
    rows: list[Any] = []
    for number, (path, _) in enumerate(folder.samples):
        rows.append({"bytes": Path(path).read_bytes() if number % 3 else None, "path": path})
    table = pa.table({"image": pa.array(rows, KIND)})
    for given, first in ((table, 0), (table[4:9], 4), (write(tmp_path / "a", table), 0)):
        data = ArrowDataset(given)
        for row in range(len(data)):
            assert torch.equal(data[row]["image"], folder[first + row][0])
    for row in ({"bytes": None, "path": None}, {"bytes": None, "path": ""}):
        with pytest.raises(ValueError, match="row 2 of column 'image' must have bytes or a path"):
            ArrowDataset(pa.table({"image": pa.array([*rows[:2], row], KIND)}))
    with pytest.raises(TypeError, match="column 'image' must have no nulls"):
        ArrowDataset(pa.table({"image": pa.array([None], KIND)}))


def test_other_structs_of_bytes_and_path(tmp_path: Path) -> None:
    """If all bytes, or all paths, are null, pyarrow gives them no type of their own."""
    path = tmp_path / "a"
    path.write_bytes(b"read")
    table = pa.table({"image": [{"bytes": None, "path": str(path)}]})
    assert ArrowDataset(table, decode={"image": bytes})[0] == {"image": b"read"}
    table = pa.table({"image": [{"bytes": b"here", "path": None}]})
    assert ArrowDataset(table, decode={"image": bytes})[0] == {"image": b"here"}
    with pytest.raises(ValueError, match="row 0 of column 'image' must have bytes or a path"):
        ArrowDataset(pa.table({"image": [{"bytes": None, "path": None}]}))
    words = pa.dictionary(pa.int8(), pa.string())
    kinds = [(pa.int64(), pa.string()), (pa.binary_view(), pa.string()), (pa.binary(), words)]
    for kind in (*kinds, (pa.binary(1), pa.string()), (pa.string(), pa.string())):
        struct = pa.struct([("bytes", kind[0]), ("path", kind[1])])
        with pytest.raises(TypeError, match=r"column 'image' must be .*cast the column to struct<"):
            ArrowDataset(pa.table({"image": pa.array([], struct)}))


def test_nulls_that_have_bytes() -> None:
    """A null is null, whatever lies in its place."""
    image = encode(picture(1), "PNG")
    whole = pa.array([image, image])
    contents = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\1"), *whole.buffers()[1:]])
    structs = pa.StructArray.from_arrays([contents, pa.array([None, "/absent"])], fields=[*KIND])
    data = ArrowDataset(pa.table({"image": structs}))
    assert data[0]["image"].ndim == 3
    with pytest.raises(OSError, match="/absent"):
        data[1]


def test_images_of_a_dataset_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    folder = ImageFolder(write_folder(tmp_path / "images"))
    paths = [path for path, _ in folder.samples]
    features = datasets.Features({"image": datasets.Image()})
    given = datasets.Dataset.from_dict({"image": paths}, features)
    for made in (given, given.select([3, 1])):
        data = ArrowDataset(made)
        for row in range(len(data)):
            wanted = np.asarray(made[row]["image"].convert("RGB"))
            assert np.array_equal(data[row]["image"].permute(1, 2, 0), wanted)


# ---- bad input


def test_damaged_images(tmp_path: Path) -> None:
    images = [encode(picture(n), "PNG") for n in range(4)]
    images[1], images[2] = b"hello", b""
    path = write(tmp_path / "a", pa.table({"image": images}))
    data = ArrowDataset(path)
    with pytest.raises(OSError, match=f"'{path}: row 1, image' cannot be decoded with auto"):
        data[1]
    with pytest.raises(OSError, match=r"row 2, image' .* it is empty"):
        data[2]
    with pytest.warns(UserWarning, match="ArrowDataset skips .*the next row is read instead"):
        skips = ArrowDataset(path, on_error="skip")
        assert torch.equal(skips[1]["image"], data[3]["image"])
    assert len(skips.skipped_files) == 2
    grey = np.zeros((2, 3, 3), np.uint8)
    other = ArrowDataset(path, on_error=lambda name, error: grey)
    assert other[2]["image"].shape == (3, 2, 3)


def test_functions_that_fail_and_wrong_arguments() -> None:
    table = pa.table({"image": [b"x"], "label": [1]})
    with pytest.raises(OSError, match=r"'Table: row 0, image' cannot be decoded with .*int"):
        ArrowDataset(table, decode={"image": int})[0]
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"decode": None}, TypeError, "decode must be 'auto', or a dict from columns"),
        ({"decode": {"label": bytes}}, ValueError, "each column of decode must be one of 'image'"),
        ({"decode": {"image": 3}}, TypeError, r"decode\['image'\] must be a function of bytes"),
        ({"transform": 3}, TypeError, "transform must be an operation"),
        ({"seed": -1}, ValueError, "seed must be an int in"),
        ({"on_error": "go"}, TypeError, "on_error must be 'raise', 'skip'"),
        (
            {"transform": CHAIN, "decode": {"image": bytes}},
            ValueError,
            "transform must be None if no column has images",
        ),
    ]
    for given, error, text in cases:
        with pytest.raises(error, match=text):
            ArrowDataset(table, **given)
    with pytest.raises(TypeError, match="transform must be one that fastloop runs for params"):
        ArrowDataset(table, ["label"]).params(0)


def test_a_file_that_changes_is_noticed_at_the_row(tmp_path: Path) -> None:
    table = make(tmp_path / "images")
    path = write(tmp_path / "a", table)
    data = ArrowDataset(path, on_error="skip")
    again = pickle.loads(pickle.dumps(data))
    first = again[0]["image"]
    write(tmp_path / "b", table[::-1])
    (tmp_path / "b").rename(path)
    with pytest.raises(OSError, match="the file has changed since the dataset was made") as found:
        data[0]
    assert found.value.errno == errno.ESTALE and found.value.filename == path
    assert torch.equal(again[0]["image"], first), "its descriptor is of the old file"


def test_the_tables_own_file_was_replaced_before(tmp_path: Path) -> None:
    """Then its map is read, which still has the old rows."""
    table = make(tmp_path / "images")
    path = write(tmp_path / "a", table)
    old = pa.ipc.open_stream(pa.memory_map(path)).read_all()
    write(tmp_path / "b", table[::-1])
    (tmp_path / "b").rename(path)
    data, wanted = ArrowDataset(old), ArrowDataset(table)
    assert data._sources["image"]._place(0)[0] == -1  # type: ignore[union-attr]
    assert torch.equal(data[2]["image"], wanted[2]["image"])
