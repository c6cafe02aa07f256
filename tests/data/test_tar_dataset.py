"""TarDataset: webdataset's samples by index, ImageFolder's pixels, the index and its file, changed
and damaged shards, and what is refused."""

import errno
import io
import os
import pickle
import random
import re
import tarfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same, run_script

pytest.importorskip("PIL", reason="Pillow is not installed")

from image_folders import by_pillow, encode, picture
from tar_shards import image_members, write_shards, write_tar

from fastloop import DataLoader, ImageFolder, ShuffleSampler, TarDataset
from fastloop import transforms as T

CROP = T.Compose([T.RandomResizedCrop(16), T.ToDtype(torch.float32, scale=True)])
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return write_shards(tmp_path / "shards")


def index_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.index"))


# ---- samples


def samples_of(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    """The rule, as Python's tarfile reads members: neighbours with one key are a sample."""
    found: list[tuple[str, dict[str, bytes]]] = []
    with tarfile.open(path) as archive:
        for member in archive:
            folder, _, base = member.name.rpartition("/")
            stem, dot, ext = base.partition(".")
            is_meta = re.match(r"__[^/]*__($|/)", member.name)
            if not member.isreg() or is_meta or not stem or not dot:
                continue
            key = f"{folder}/{stem}" if folder else stem
            if not found or found[-1][0] != key:
                found.append((key, {}))
            file: Any = archive.extractfile(member)
            found[-1][1][ext.lower()] = file.read()
    return found


def write_random(path: Path, rnd: random.Random, name: str) -> None:
    members = []
    for i in range(rnd.randint(1, 8)):
        folder = rnd.choice(["", "./", "a.b/", "x" * 60 + "/", "__meta__/"])
        long = "" if name == "ustar" else "y" * rnd.choice([0, 50, 120])
        stem = f"{folder}{i:03}{long}" + ("ä" if name == "pax" and rnd.random() < 0.3 else "")
        for ext in rnd.sample([".jpg", ".cls", ".JSON", ".seg.png", ""], rnd.randint(1, 4)):
            data = rnd.randbytes(rnd.choice([0, 1, 511, 512, 513, 3000]))
            members.append((stem + ext, data))
    write_tar(path, members, FORMATS[name])
    if rnd.random() < 0.5:  # folders and links belong to no sample
        with tarfile.open(path, "a", format=FORMATS[name]) as archive:
            for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE):
                info = tarfile.TarInfo("zzz.jpg")
                info.type, info.linkname = kind, "000.jpg"
                archive.addfile(info)


@pytest.mark.parametrize("name", FORMATS)
def test_samples_are_those_that_tarfile_has(name: str, tmp_path: Path) -> None:
    rnd = random.Random(name)
    for trial in range(12):
        paths = [tmp_path / f"{trial}-{n}.tar" for n in range(2)]
        for path in paths:
            write_random(path, rnd, name)
        want = [sample for path in paths for sample in samples_of(path)]
        if not want:
            continue
        data = TarDataset(paths, decode=dict.fromkeys(("jpg", "cls", "json", "seg.png"), bytes))
        got = [data[i] for i in range(len(data))]
        assert [(sample.pop("__key__"), sample) for sample in got] == want


def test_parts_by_their_extensions(tmp_path: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.arange(3))
    image = encode(picture(1), "PNG")
    parts = {"png": image, "cls": b"7\n", "json": b'{"a": [1]}', "txt": "hé".encode(), "bin": b"\0",
             "npy": array.getvalue(), "seg.png": image, "a.json": b"2"}  # fmt: skip
    path = write_tar(
        tmp_path / "a.tar", [(f"k.{ext.upper()}", data) for ext, data in parts.items()]
    )
    sample = TarDataset(path)[0]
    pixels = torch.from_numpy(by_pillow(image).copy()).permute(2, 0, 1)
    assert list(sample) == ["__key__", *parts]
    assert_same([sample[name] for name in ("png", "seg.png")], [pixels] * 2)
    assert sample["npy"].tolist() == [0, 1, 2]
    rest = [sample[name] for name in ("__key__", "cls", "json", "txt", "bin", "a.json")]
    assert rest == ["k", 7, {"a": [1]}, "hé", b"\0", 2]
    fields = ["jpg;png", "__key__", "cls"]
    assert TarDataset(path, fields, decode={"PNG": len})[0] == (len(image), "k", 7)
    assert TarDataset(path, "cls")[0] == 7
    assert TarDataset(path, "cls;txt", decode={"cls": float})[0] == 7.0


def test_names_that_are_no_text(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "\udcff.tar", [("\udcff\udcfe.\udce4", b"1"), ("b.\udce4", b"2")])
    data = TarDataset(path)
    assert data[0] == {"__key__": "\udcff\udcfe", "\udce4": b"1"}
    assert TarDataset(data.paths, ["\udce4"])[1] == (b"2",)


def test_pixels_and_random_parameters_are_image_folders(tmp_path: Path) -> None:
    members = image_members(range(12))
    tar = TarDataset(write_tar(tmp_path / "a.tar", members), ["jpg", "cls"], CROP, seed=3)
    for name, data in members:
        if name.endswith("jpg"):
            path = tmp_path / "root" / "c" / name.removeprefix("img/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    folder = ImageFolder(tmp_path / "root", CROP, seed=3)
    tar.set_epoch(2), folder.set_epoch(2)
    assert_same([tar[i][0] for i in range(12)], [folder[i][0] for i in range(12)])
    assert_same(tar[(5, 1)][0], folder[(5, 1)][0])
    assert tar.params(4) == folder.params(4)
    views = TarDataset(tar.paths, ["jpg", "cls"], {"a": CROP, "b": T.CenterCrop(8)})
    assert [tuple(view.shape) for view in views[1][0]] == [(3, 16, 16), (3, 8, 8)]


def test_images_of_one_sample_are_cut_alike(tmp_path: Path) -> None:
    first, second = encode(picture(1, 40, 40)), encode(picture(2, 40, 40))
    members = [("k.jpg", first), ("k.mask.jpg", first), ("k.other.jpg", second)]
    path = write_tar(tmp_path / "a.tar", members)
    data = TarDataset(path, ["jpg", "mask.jpg", "other.jpg", "jpg"], CROP)
    one, same, other, again = data[0]
    assert_same([same, again], [one, one])
    assert_same(TarDataset(path, "other.jpg", CROP)[0], other)
    assert not torch.equal(one, other)
    batch = next(iter(DataLoader(data, 1)))
    assert_same([each[0] for each in batch], [one, same, other, again])


# ---- loaders


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "path": "thread"}])
def test_batches_of_loaders(shards: list[str], options: Any) -> None:
    def load(make: Any, **given: Any) -> list[Any]:
        data = TarDataset(shards, ["jpg", "cls"], CROP, seed=1)
        data.set_epoch(1)
        return list(make(data, 4, sampler=ShuffleSampler(data, seed=5), **given))

    got, want = load(DataLoader, **options), load(TorchLoader)
    assert_same(got, want)
    assert sorted(torch.cat([labels for _, labels in got]).tolist()) == list(range(30))


@pytest.mark.slow
def test_workers_of_a_fork_server_read_the_index_again(shards: list[str]) -> None:
    data = TarDataset(shards, ["jpg", "cls"], T.CenterCrop(8))
    pickled = pickle.dumps(data)
    assert len(pickled) < 1024 * len(shards)
    loader = TorchLoader(data, 8, num_workers=1, multiprocessing_context=get_context("forkserver"))
    assert_same(list(loader), list(TorchLoader(data, 8)))


def test_images_of_a_batch_lie_in_its_memory(shards: list[str]) -> None:
    data = TarDataset(shards, ["jpg", "cls"], CROP)
    loader = DataLoader(data, 8)
    for images, _ in loader:
        assert images.shape[1:] == (3, 16, 16)
    assert data._like() is not None
    assert TarDataset(shards, ["cls"])._like() is None


def test_a_sample_is_one_read_and_descriptors_stay(
    shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, reads = TarDataset(shards, ["jpg", "cls"]), []

    class Counting:
        def __init__(self, reader: Any) -> None:
            self.read = lambda *part: reads.append(part) or reader.read(*part)
            self.announce = reader.announce

    list(TorchLoader(data, 4, collate_fn=list))
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(data, "_reader", Counting(data._reader))
    for _ in range(3):
        list(TorchLoader(data, 4, sampler=ShuffleSampler(data), collate_fn=list))
    assert len(reads) == 90
    assert len(set(reads)) == 30
    assert len(os.listdir("/proc/self/fd")) == before


def test_resumes_at_any_batch_on_any_workers(shards: list[str]) -> None:
    rnd = random.Random(1)

    def loader() -> Any:
        data = TarDataset(shards, ["jpg", "cls"], CROP, seed=1)
        workers = rnd.choice([0, 0, 1, 2])
        options: Any = {"path": "thread"} if workers and rnd.random() < 0.7 else {}
        return DataLoader(
            data, 4, sampler=ShuffleSampler(data, seed=5), num_workers=workers, **options
        )

    whole = loader()
    want = [batch for _ in range(2) for batch in whole]
    for _ in range(4):  # deaths at random batches
        got: list[Any] = []
        state = None
        while len(got) < len(want):
            current = loader()
            if state is not None:
                current.load_state_dict(pickle.loads(pickle.dumps(state)))
            until = len(got) + rnd.randint(1, 9)
            while len(got) < min(until, len(want)):
                for batch in current:
                    got.append(batch)
                    state = current.state_dict()
                    if len(got) >= until:
                        break
        assert_same(got, want)


# ---- the index


def test_the_index_is_made_once(shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shards[0]).parent
    TarDataset(shards)
    (file,) = index_files(folder)
    assert file.stat().st_size == 48 + 3 * 32 + 30 * 16 + len("jpg/cls")
    monkeypatch.setattr("fastloop.data.shards.tar_index.tar_index", None)
    for paths in (shards, f"{folder}/*.tar", f"{folder}/train-{{000..002}}.tar"):
        assert len(TarDataset(paths)) == 30
    moved = folder.rename(folder.with_name("moved"))
    assert len(TarDataset(f"{moved}/*.tar")) == 30


def test_changed_shards_are_read_again(shards: list[str]) -> None:
    folder = Path(shards[0]).parent
    TarDataset(shards)
    (file,) = index_files(folder)
    before = file.read_bytes()
    state = os.stat(shards[1])
    other = write_tar(folder / "other", image_members(range(110, 120)))
    with open(other, "ab") as grown:
        grown.write(bytes(state.st_size - other.stat().st_size))
    if other.stat().st_size == state.st_size:  # equal but for the inode
        os.utime(other, ns=(0, state.st_mtime_ns))
    other.rename(shards[1])
    assert TarDataset(shards, "cls")[10] == 110
    assert file.read_bytes() != before


def test_a_damaged_index_is_made_again(shards: list[str]) -> None:
    TarDataset(shards)
    (file,) = index_files(Path(shards[0]).parent)
    whole, rnd = file.read_bytes(), random.Random(2)
    for trial in range(150):
        damaged = bytearray(whole)
        if trial % 3 == 0:
            damaged = damaged[: rnd.randrange(len(whole))]
        elif trial % 3 == 1:
            damaged[rnd.randrange(len(whole))] ^= 1 << rnd.randrange(8)
        else:
            at = rnd.randrange(0, len(whole) - 8, 8)
            damaged[at : at + 8] = rnd.choice([b"\xff" * 8, b"\0" * 8, rnd.randbytes(8)])
        file.write_bytes(damaged)
        assert TarDataset(shards, "cls")[29] == 29
        assert file.read_bytes() == whole


def test_folders_of_the_index(shards: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    folder = Path(shards[0]).parent
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    TarDataset(shards, cache_dir=tmp_path / "new" / "er")
    assert len(index_files(tmp_path / "new" / "er")) == 1 and not index_files(folder)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert len(TarDataset(shards)) == 30
    assert len(index_files(tmp_path / "home/.cache/fastloop")) == 1 and not index_files(folder)
    assert len(TarDataset(shards)) == 30
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        TarDataset(shards, cache_dir=tmp_path / "file")


def test_an_index_in_the_place_of_which_fifos_wait(shards: list[str], tmp_path: Path) -> None:
    TarDataset(shards)
    (file,) = index_files(Path(shards[0]).parent)
    for ending in ("", ".lock", ".unfinished"):
        Path(f"{file}{ending}").unlink(missing_ok=True)
        os.mkfifo(f"{file}{ending}")
    program = "import sys, fastloop\nprint(len(fastloop.TarDataset(sys.argv[1:])))"
    with pytest.raises(ValueError, match=r"cache_dir: .* must be a regular file, got a FIFO"):
        TarDataset(shards)
    file.unlink()
    assert run_script(tmp_path, program, *shards) == "30\n"


def test_an_index_of_parts_whose_extension_is_empty(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.", b"1")])
    for _ in range(2):  # by the archive, and by the index
        with pytest.raises(ValueError, match="must have the fields"):
            TarDataset(path, "cls")


MAKER = """
import sys
from fastloop import TarDataset
from fastloop.data.shards import tar_index as index
real, count = index._make, []
index._make = lambda *a: count.append(1) or real(*a)
print(len(TarDataset(sys.argv[1:])), len(count))
"""

KILLED = """
import os, sys, signal
from fastloop import TarDataset
os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
TarDataset(sys.argv[1:])
"""


@pytest.mark.slow
def test_two_processes_make_one_index_and_a_killed_one_none(
    shards: list[str], tmp_path: Path
) -> None:
    folder = Path(shards[0]).parent
    run_script(tmp_path, KILLED, *shards, returncode=-9)
    assert not index_files(folder)
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run_script, tmp_path, MAKER, *shards) for _ in range(2)]
        assert sorted(run.result() for run in runs) == ["30 0\n", "30 1\n"]
    assert [path.name for path in folder.iterdir() if "unfinished" in path.name] == []


# ---- shards that change


def test_shards_that_change_under_a_dataset(shards: list[str]) -> None:
    data = TarDataset(shards, ["jpg", "cls"], on_error="skip")
    assert data[0][1] == 0
    again = pickle.dumps(data)
    os.truncate(shards[0], 1000)  # is open
    content = Path(shards[1]).read_bytes()
    Path(shards[1]).write_bytes(content[:512] + b"x" * 100 + content[612:])
    os.rename(shards[2], f"{shards[2]}.gone")
    for row, number in ((0, errno.ESTALE), (10, errno.ESTALE), (20, errno.ENOENT)):
        if row < 20:
            with pytest.raises(OSError, match="has changed") as caught:
                data[row]
            assert (caught.value.errno, caught.value.filename) == (number, shards[row // 10])
    with pytest.raises(OSError) as caught:  # the index is of shards that are gone
        pickle.loads(again)[0]
    assert caught.value.errno in (errno.ESTALE, errno.ENOENT)


def test_a_second_process_indexes_no_other_shards(shards: list[str]) -> None:
    pickled = pickle.dumps(TarDataset(shards))
    for file in index_files(Path(shards[0]).parent):
        file.unlink()
    assert len(pickle.loads(pickled)) == 30
    for file in index_files(Path(shards[0]).parent):
        file.unlink()
    write_tar(Path(shards[1]), image_members(range(5)))
    with pytest.raises(OSError, match="A shard has changed since the dataset was made") as caught:
        pickle.loads(pickled)
    assert caught.value.errno == errno.ESTALE


def test_a_shard_rewritten_with_its_old_time_is_noticed(shards: list[str]) -> None:
    data = TarDataset(shards, ["jpg", "cls"])
    state = os.stat(shards[0])
    content = Path(shards[0]).read_bytes()
    other = bytearray(
        write_tar(Path(shards[0]).with_name("o"), image_members(range(50, 60))).read_bytes()
    )
    other = (other + bytes(len(content)))[: len(content)]
    with open(shards[0], "r+b") as file:
        file.write(other)
    os.utime(shards[0], ns=(0, state.st_mtime_ns))
    with pytest.raises(OSError, match="different sample at byte 0; the file has changed") as caught:
        data[0]
    assert caught.value.errno == errno.ESTALE


# ---- errors of samples


def test_parts_that_cannot_be_decoded(tmp_path: Path) -> None:
    members = image_members(range(6))
    cut = [(name, data[:40] if "0002.jpg" in name else data) for name, data in members]
    cut = [(name, b"?" if "0003.cls" in name else data) for name, data in cut]
    path = str(write_tar(tmp_path / "a.tar", cut))
    data = TarDataset(path, ["jpg", "cls"])
    for row, name, who in ((2, "0002.jpg", "auto"), (3, "0003.cls", "builtins.int")):
        text = re.escape(f"'{path}: img/{name}' cannot be decoded with {who}: ")
        with pytest.raises(OSError, match=text):
            data[row]
    skipping = TarDataset(path, ["jpg", "cls"], on_error="skip")
    with pytest.warns(UserWarning, match="TarDataset skips .*0002.jpg.*; the next sample is read"):
        assert [skipping[row][1] for row in range(6)] == [0, 1, 4, 4, 4, 5]
    assert skipping.skipped_files == [f"{path}: img/0002", f"{path}: img/0003"]
    grey = np.full((4, 5, 3), 9, np.uint8)
    asked = []
    filling = TarDataset(path, ["jpg", "cls"], on_error=lambda *args: asked.append(args[0]) or grey)
    assert_same(filling[2], (torch.full((3, 4, 5), 9, dtype=torch.uint8), 2))
    assert asked == [f"{path}: img/0002.jpg"]
    with pytest.raises(OSError, match=r"0003\.cls"):
        filling[3]


def test_samples_that_lack_a_field(tmp_path: Path) -> None:
    members = image_members(range(6))
    members = [m for m in members if m[0] not in ("img/0001.cls", "img/0004.cls")]
    path = write_tar(tmp_path / "a.tar", members)
    text = (
        r"a\.tar', key 'img/0001': a sample must have the fields \['jpg', 'cls'\], got \['jpg'\] "
    )
    with pytest.raises(ValueError, match=text + r"\(pass on_missing='skip'"):
        TarDataset(path, ["jpg", "cls"])
    data = TarDataset(path, ["jpg", "cls"], on_missing="skip")
    again = pickle.loads(pickle.dumps(data))
    assert [s[1] for s in data] == [s[1] for s in again] == [0, 2, 3, 5]
    assert len(TarDataset(path)) == len(TarDataset(path, "jpg")) == 6
    with pytest.raises(ValueError, match="shards with at least one sample"):
        TarDataset(path, "wav", on_missing="skip")


def test_more_kinds_of_samples_than_the_index_counts(tmp_path: Path) -> None:
    members = [(f"{i}.{ext}", b"1") for i in range(300) for ext in ("cls", f"x{i}")]
    path = write_tar(tmp_path / "a.tar", members)
    data = TarDataset(path, "cls")
    assert [data[i] for i in range(300)] == [1] * 300
    with pytest.raises(ValueError, match="'raise' if samples have 255 sets"):
        TarDataset(path, "cls", on_missing="skip")
    members[-2] = ("299.json", b"1")
    write_tar(path, members)
    with pytest.raises(ValueError, match=r"key '299': a sample must have the fields \['cls'\]"):
        TarDataset(path, "cls")[299]


def test_keys_that_come_again(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"2"), ("a.txt", b"3")])
    text = r"a\.tar' has the key 'a' a second time at byte 2048; .*duplicates='keep'"
    with pytest.raises(ValueError, match=text):
        TarDataset(path)
    data = TarDataset(path, duplicates="keep")
    assert [data[i]["__key__"] for i in range(3)] == ["a", "b", "a"]


# ---- arguments and shards that are refused


def break_tar(content: bytes, how: str) -> bytes:
    import gzip

    return {
        "empty": b"",
        "no tar": b"x" * 2000,
        "cut in a header": content[:1300],
        "cut in a member": content[:600],
        "cut at the border": content[: content.index(b"img/0001.jpg")],
        "flipped": b"X" + content[1:],
        "gzip": gzip.compress(content),
        "two archives": content + content,
    }[how]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("empty", "must not be empty"),
        ("no tar", "wrong checksum at byte 0"),
        ("cut in a header", "is cut"),
        ("cut in a member", "is cut within the member at byte 0"),
        ("cut at the border", "ends without two blocks of zeros at byte"),
        ("flipped", "wrong checksum at byte 0"),
        ("gzip", r"must not be compressed, got gzip \(decompress it"),
        ("two archives", "goes on after its end at byte"),
    ],
)
def test_damaged_shards_are_refused(how: str, text: str, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", image_members(range(3)))
    path.write_bytes(break_tar(path.read_bytes(), how))
    with pytest.raises(ValueError, match=f"a.tar' .*{text}"):
        TarDataset(path)
    assert not index_files(tmp_path)


def test_a_name_with_a_zero_byte(tmp_path: Path) -> None:
    """Lists of extensions end with zero bytes."""
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a.jpg")
        info.pax_headers = {"path": "a.j\0pg"}
        archive.addfile(info)
    with pytest.raises(ValueError, match="has a damaged PAX header at byte 0"):
        TarDataset(tmp_path / "a.tar")


def test_paths_that_are_no_shards(tmp_path: Path, shards: list[str]) -> None:
    folder = Path(shards[0]).parent
    os.mkfifo(tmp_path / "fifo")
    cases: list[tuple[Any, type[Exception], str]] = [
        (folder, IsADirectoryError, "Is a directory"),
        (tmp_path / "fifo", OSError, "must be a regular file"),
        (f"{folder}/train-{{000..003}}.tar", FileNotFoundError, "train-003.tar"),
        (f"{folder}/valid-*.tar", FileNotFoundError, "No file matches this pattern"),
        ([], ValueError, "paths must be"),
        (3, TypeError, "paths must be"),
        ("pipe:cat a.tar", ValueError, "copy the shards to a disk"),
    ]
    for paths, kind, text in cases:
        with pytest.raises(kind, match=text):
            TarDataset(paths)


def test_only_images_need_a_decoder(shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastloop.data.image_folder.decode.find_module", lambda name: None)
    data = pickle.loads(pickle.dumps(TarDataset(shards, "cls")))
    assert data[3] == 3 and "decode:" not in data.explain()
    with pytest.raises(ImportError, match="needs Pillow"):
        TarDataset(shards)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fields": 3}, "fields must be an extension"),
        ({"fields": []}, "fields must be an extension"),
        ({"fields": [".jpg"]}, "fields must be an extension"),
        ({"fields": ["jpg", 1]}, "fields must be an extension"),
        ({"decode": "pil"}, "decode must be 'auto', or a dict"),
        ({"decode": {"jpg": 3}}, r"decode\['jpg'\] must be a function of bytes"),
        ({"decode": {1: len}}, "decode must be 'auto', or a dict"),
        ({"on_missing": "drop"}, "on_missing must be one of 'raise', 'skip'"),
        ({"duplicates": "drop"}, "duplicates must be one of 'raise', 'keep'"),
        ({"on_error": "ignore"}, "on_error must be 'raise', 'skip'"),
        ({"seed": -1}, "seed must be an int"),
        ({"fields": "cls", "transform": CROP}, "transform must be None if no sample has an image"),
    ],
)
def test_wrong_arguments(options: Any, text: str, shards: list[str]) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        TarDataset(shards, **options)


def test_explains_itself(shards: list[str]) -> None:
    data = TarDataset(shards, ["jpg", "cls"], CROP)
    assert repr(data) == "TarDataset(3 shards, 30 samples)"
    assert "30 samples in 3 tar shards\nindex: '" in data.explain()
    assert "RandomResizedCrop" in data.explain()
    path = write_tar(Path(shards[0]).with_name("o.tar"), [*image_members([0]), ("b.cls", b"1")])
    assert len(TarDataset(path, None, CROP).params(0)) == 2
    with pytest.raises(ValueError, match="the index of a sample with an image, got 1"):
        TarDataset(path, None, CROP).params(1)
