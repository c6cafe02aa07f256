"""The cache of an ImageFolder: the same samples, made once, and what happens to it in crashes."""

import errno
import fcntl
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same, run_file

pytest.importorskip("PIL", reason="Pillow is not installed")

from image_folders import by_pillow, encode, picture, write_folder

from fastloop import DataLoader, ImageFolder
from fastloop import transforms as T
from fastloop.data.image_folder import decode as decode_room

HEAD = [T.Resize((30, 32)), T.CenterCrop(28)]
REST = [
    T.RandomCrop(20, padding=2, fill=9),
    T.RandomHorizontalFlip(),
    T.ToDtype(torch.float32, scale=True),
    T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
]
IMAGES, LOCK = "fastloop-images.npy", "fastloop-lock"
UNFINISHED = "fastloop-unfinished.npy"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images")


class Counting:
    """A decoder that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, data: bytes) -> Any:
        self.calls += 1
        return by_pillow(data)


def cached(root: Path, *ops: Any, **arguments: Any) -> ImageFolder:
    arguments.setdefault("cache", f"u8:{root.parent / 'cache'}")
    return ImageFolder(root, T.Compose(ops or HEAD), **arguments)


@pytest.mark.parametrize(
    "ops",
    [HEAD + REST, [T.Resize(20), T.CenterCrop(20)], [T.CenterCrop(70), *REST], HEAD + REST[2:]],
    ids=["train", "all of it", "padding", "nothing random"],
)
@pytest.mark.parametrize("out_layout", ["CHW", "HWC", "channels_last"])
def test_samples_are_those_without_a_cache(root: Path, ops: list[Any], out_layout: str) -> None:
    plain = ImageFolder(root, T.Compose(ops), out_layout=out_layout, seed=5)
    dataset = cached(root, *ops, out_layout=out_layout, seed=5)
    for epoch in (0, 2):
        plain.set_epoch(epoch)
        dataset.set_epoch(epoch)
        for i in range(len(plain)):
            ours, theirs = dataset[i, 3], plain[i, 3]
            assert_same(ours, theirs)
            assert ours[0].stride() == theirs[0].stride()
            assert dataset.params(i) == plain.params(i)
    with DataLoader(dataset, 4, num_workers=1) as loader:
        assert_same(list(loader), list(TorchLoader(plain, 4)))
        assert (loader.stats().path, loader.stats().why) == (
            "array",
            "ImageFolder of cached images, default collate",
        )
    assert dataset.explain().count("done in the cache") == len(dataset._baked)


def test_without_a_transform_images_of_one_size(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "images", height=9, width=12)
    dataset = ImageFolder(root, cache=f"u8:{tmp_path}/cache")
    plain = ImageFolder(root)
    assert_same([dataset[i] for i in range(14)], [plain[i] for i in range(14)])
    assert_same(list(DataLoader(dataset, 5)), list(DataLoader(plain, 5)))
    stored = np.load(tmp_path / "cache" / IMAGES)
    assert (stored.dtype, stored.shape) == (np.uint8, (14, 9, 12, 3))


def test_other_sizes_are_an_error(root: Path) -> None:
    text = (
        r"^images of a cache must have one size, \(\d+, \d+\) as '.*02\.JPEG' has, got "
        r"\(\d+, \d+\) for '.*\.(jpg|png|JPEG)' \(begin the transform with Resize\(\(height, width"
    )
    for ops in ([], [T.Resize(20)], [T.RandomCrop(8, pad_if_needed=True)]):
        with pytest.raises(ValueError, match=text):
            cached(root, *ops) if ops else ImageFolder(root, cache=f"u8:{root.parent}/cache")
        assert os.listdir(root.parent / "cache") == [LOCK]


def test_it_is_made_once(root: Path) -> None:
    decode = Counting()
    first = cached(root, decode=decode)
    assert decode.calls == 14
    again = cached(root, *HEAD, *REST, decode=decode)  # what comes behind it may differ
    assert decode.calls == 14
    assert_same(first[3], ImageFolder(root, T.Compose(HEAD), decode=decode)[3])
    assert again[3][0].shape == (3, 20, 20)


def test_it_may_be_moved_with_its_files(root: Path) -> None:
    decode = Counting()
    cached(root, decode=decode)
    other = root.parent / "elsewhere" / "images"
    other.parent.mkdir()
    (root.parent / "cache").rename(other.parent / "cache")
    root.rename(other)
    cached(other, decode=decode)
    assert decode.calls == 14


def touch(root: Path) -> None:
    path = next(root.rglob("03.jpg"))
    before = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def grow(root: Path) -> None:
    path = next(root.rglob("03.jpg"))
    before = path.stat()
    path.write_bytes(path.read_bytes() + b" ")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rename(root: Path) -> None:
    path = next(root.rglob("03.jpg"))
    path.rename(path.with_name("03a.jpg"))


def add(root: Path) -> None:
    (root / "cat" / "more.jpg").write_bytes(encode(picture(77)))


def remove(root: Path) -> None:
    next(root.rglob("03.jpg")).unlink()


@pytest.mark.parametrize("change", [touch, grow, rename, add, remove])
def test_files_that_changed_are_seen(root: Path, change: Callable[[Path], None]) -> None:
    cached(root)
    before = os.stat(root.parent / "cache" / IMAGES).st_ino
    change(root)
    dataset = cached(root)
    assert os.stat(root.parent / "cache" / IMAGES).st_ino != before
    plain = ImageFolder(root, T.Compose(HEAD))
    assert_same([dataset[i] for i in range(len(plain))], [plain[i] for i in range(len(plain))])


def test_who_has_the_old_one_keeps_it(root: Path) -> None:
    old = cached(root)
    before = [old[i] for i in range(14)]
    path = next(root.rglob("03.jpg"))
    path.write_bytes(encode(picture(99)))
    new = cached(root)
    assert_same([old[i] for i in range(14)], before)
    row = [name for name, _ in new.samples].index(str(path))
    assert not torch.equal(new[row][0], old[row][0])


def overwrite(folder: Path, at: int, data: bytes) -> None:
    with open(folder / IMAGES, "r+b") as file:
        file.seek(at)
        file.write(data)


def write_note(folder: Path, note: bytes) -> None:
    """Replace the note behind the images."""
    path = folder / IMAGES
    images = np.load(path, mmap_mode="r")
    os.truncate(path, images.offset + images.nbytes)
    with path.open("ab") as file:
        file.write(note)


DAMAGED: dict[str, Callable[[Path], Any]] = {
    "no images": lambda folder: (folder / IMAGES).unlink(),
    "an empty file": lambda folder: os.truncate(folder / IMAGES, 0),
    "half of the images": lambda folder: os.truncate(folder / IMAGES, 20000),
    "half of the note": lambda folder: os.truncate(
        folder / IMAGES, (folder / IMAGES).stat().st_size - 50
    ),
    "no note": lambda folder: write_note(folder, b""),
    "a note of bytes": lambda folder: write_note(folder, b"\xff\x00"),
    "a note of something": lambda folder: write_note(folder, b"[1]"),
    "a header of bytes": lambda folder: overwrite(folder, 0, b"\0" * 16),
    "a header without a literal": lambda folder: overwrite(folder, 12, b"((((("),
    "a header of another type": lambda folder: overwrite(folder, 12, b"{'descr': '|i1'"),
    "an unfinished file": lambda folder: (folder / IMAGES).rename(folder / UNFINISHED),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_what_is_damaged_is_made_again(root: Path, damage: Callable[[Path], Any]) -> None:
    before = cached(root)
    folder = root.parent / "cache"
    damage(folder)
    after = cached(root)
    assert sorted(os.listdir(folder)) == [IMAGES, LOCK]
    plain = ImageFolder(root, T.Compose(HEAD))
    assert_same([after[i] for i in range(14)], [plain[i] for i in range(14)])
    assert len(before) == 14


def test_other_options_are_an_error(root: Path) -> None:
    cached(root)
    folder = re.escape(repr(str(root.parent / "cache")))
    before = (root.parent / "cache" / IMAGES).stat()
    for arguments in (
        {"ops": [T.Resize((30, 32)), T.CenterCrop(27)]},
        {"ops": [T.Resize((30, 32), interpolation="bicubic"), T.CenterCrop(28)]},
        {"decode": by_pillow},
        {"on_error": "skip"},
    ):
        ops = arguments.pop("ops", HEAD)
        text = (
            rf"^options of the cache {folder} must be \{{'decode'.*, got \{{"
            r"'decode'.* \(or pass a new folder\)$"
        )
        with pytest.raises(ValueError, match=text):
            cached(root, *ops, **arguments)
    after = (root.parent / "cache" / IMAGES).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_an_image_that_fails_leaves_nothing(root: Path) -> None:
    path = next(root.rglob("03.jpg"))
    path.write_bytes(b"no image")
    with pytest.raises(
        OSError, match=rf"^{re.escape(repr(str(path)))} cannot be decoded with auto"
    ):
        cached(root)
    assert os.listdir(root.parent / "cache") == [LOCK]


def test_skipped_files_are_in_the_note(root: Path) -> None:
    names = ImageFolder(root)
    path = Path(names.samples[6][0])  # the one behind it is of another class
    assert names.targets[6] != names.targets[7]
    path.write_bytes(b"no image")
    plain = ImageFolder(root, T.Compose(HEAD + REST), on_error="skip")
    with pytest.warns(UserWarning, match="ImageFolder skips"):
        expected = [plain[i] for i in range(14)]
    with pytest.warns(UserWarning, match="ImageFolder skips"):
        made = cached(root, *HEAD, *REST, on_error="skip")
    found = cached(root, *HEAD, *REST, on_error="skip")
    for dataset in (made, found):
        assert_same([dataset[i] for i in range(14)], expected)
        assert dataset.skipped_files == [str(path)]
        (batch,) = DataLoader(dataset, 14)
        assert batch[1].tolist() == [target for _, target in expected]


def test_files_that_cannot_be_looked_at_are_the_decoders(root: Path) -> None:
    loop, gone = root / "cat" / "98.jpg", root / "cat" / "99.jpg"
    loop.symlink_to(loop.name)
    gone.symlink_to("nowhere")
    with pytest.warns(UserWarning, match="ImageFolder skips"):
        dataset = cached(root, on_error="skip")
    assert dataset.skipped_files == [str(loop), str(gone)]
    assert cached(root, on_error="skip").skipped_files == [str(loop), str(gone)]


def test_samples_that_were_changed_are_no_longer_those_of_the_cache(root: Path) -> None:
    dataset = cached(root)
    dataset.samples = dataset.samples[3:]
    for use in (lambda: dataset[0], lambda: list(DataLoader(dataset)), lambda: dataset.params(0)):
        with pytest.raises(
            RuntimeError, match="samples must have the 14 files of the cache, got 11 "
        ):
            use()


def test_parts_views_and_single_samples(root: Path) -> None:
    dataset = cached(root, *HEAD, *REST)
    part = torch.utils.data.Subset(dataset, [9, 2, 4])
    with DataLoader(part, 2, num_workers=1) as loader:
        batches = list(loader)
        assert loader.stats().path == "array"
    assert torch.equal(batches[0][0][1], dataset[2][0])
    dataset.set_epoch(0)
    assert_same(list(DataLoader(dataset, None)), list(TorchLoader(dataset, None)))
    pairs = [[(3, 0), (3, 1)]]
    ours, theirs = (list(make(dataset, batch_sampler=pairs)) for make in (DataLoader, TorchLoader))
    assert_same(ours, theirs)


@pytest.mark.slow
def test_workers_of_a_fork_server_open_it_again(root: Path) -> None:
    dataset = cached(root, *HEAD, *REST)
    loader = TorchLoader(dataset, 7, num_workers=1, multiprocessing_context="forkserver")
    assert_same(list(loader), list(TorchLoader(dataset, 7)))


# ---- folders that cannot be written to


def test_a_file_in_its_place(root: Path) -> None:
    (root.parent / "cache").write_text("")
    with pytest.raises(FileExistsError, match=r"File exists: '.*cache'"):
        cached(root)


@pytest.mark.parametrize("name", [IMAGES, UNFINISHED, LOCK])
def test_a_folder_in_the_place_of_a_file(root: Path, name: str) -> None:
    (root.parent / "cache" / name).mkdir(parents=True)
    with pytest.raises(OSError, match=rf"cache/{name}'"):
        cached(root)


@pytest.mark.parametrize("name", ["cache", "bird/cache", "../link"])
def test_a_folder_in_the_root_would_be_a_class(root: Path, name: str) -> None:
    (root.parent / "link").symlink_to(root / "bird", target_is_directory=True)
    (root.parent / "images2").mkdir()
    with pytest.raises(ValueError, match=r"^cache must be outside of root='.*images', where each"):
        cached(root, cache=f"u8:{root / name}")
    assert ImageFolder(root).classes == ["bird", "cat"]
    for _ in range(2):
        cached(root, cache=f"u8:{root.parent}")
        cached(root, cache=f"u8:{root}2")  # whose name begins with the root's


def test_a_folder_that_cannot_be_made(root: Path) -> None:
    with pytest.raises(OSError, match="'/proc/none'"):
        cached(root, cache="u8:/proc/none/cache")


def test_errors_of_images_are_not_the_folders(root: Path) -> None:
    """Wherever the images lie, and whatever on_error raises."""
    path = next(root.rglob("03.jpg"))
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(FileNotFoundError) as error:
        cached(root, cache=f"u8:{root.parent}")
    assert str(error.value) == f"[Errno 2] No such file or directory: '{path}'"

    def fail(path: str, error: Exception) -> Any:
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match=r"^\[Errno 5\] broken$"):
        cached(root, on_error=fail)


def as_nobody(call: Callable[[], Any]) -> Any:
    """Call it in a child without the rights of root, and return the result or the error's text."""
    receive, send = multiprocessing.Pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            try:
                send.send(call())
            except BaseException as error:
                send.send(f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return receive.recv()


def test_a_folder_that_is_read_only(root: Path) -> None:
    for folder in [root, *root.parents]:
        if folder.stat().st_uid == os.getuid() and Path(gettempdir()) in folder.parents:
            folder.chmod(folder.stat().st_mode | 0o055)
    cached(root)
    cache = root.parent / "cache"
    (cache / LOCK).unlink()
    cache.chmod(0o555)
    try:
        assert as_nobody(lambda: cached(root)[3][0].sum().item()) == cached(root)[3][0].sum().item()
        cache.chmod(0o755)
        (cache / IMAGES).unlink()
        cache.chmod(0o555)
        error = as_nobody(lambda: cached(root))
        assert re.match(r"PermissionError: .*Permission denied: '.*cache/fastloop-lock'", error)
    finally:
        cache.chmod(0o755)


@pytest.mark.slow
def test_a_full_disk_is_met_before_anything_is_decoded(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "programs" / "cache_beyond_file_limit.py"
    done = run_file(program, tmp_path, cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(
        rf"OSError {errno.EFBIG} .*File too large: '.*{UNFINISHED}' 1 \['{LOCK}'\]$",
        done.stdout.strip(),
    )


def test_room_is_taken_before_the_second_image(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a full disk would be a SIGBUS."""

    def refuse(file: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    decode = Counting()
    with pytest.raises(OSError, match=rf"No space left on device: '.*{UNFINISHED}'"):
        cached(root, decode=decode)
    assert decode.calls == 1
    assert os.listdir(root.parent / "cache") == [LOCK]


# ---- several processes

FORK = multiprocessing.get_context("fork")
HEAD_ALONE = T.Resize((30, 32))


def build(root: Path, wait_s: float) -> None:
    """Makes the cache, or waits for another that does; writes down whom it has decoded for."""

    def decode(data: bytes) -> Any:
        with (root.parent / "log").open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(wait_s)
        return by_pillow(data)

    dataset = ImageFolder(root, HEAD_ALONE, decode=decode, cache=f"u8:{root.parent / 'cache'}")
    plain = ImageFolder(root, HEAD_ALONE)
    assert_same([dataset[i] for i in range(14)], [plain[i] for i in range(14)])


def start(root: Path, wait_s: float) -> Any:
    process = FORK.Process(target=build, args=(root, wait_s))
    process.start()
    return process


def decoded_by(root: Path, at_least: int) -> list[int]:
    """The processes that have decoded something, once for each file."""
    log = root.parent / "log"
    while not log.exists() or len(log.read_text().split()) < at_least:
        time.sleep(0.01)
    return list(map(int, log.read_text().split()))


@pytest.mark.filterwarnings("ignore:This process")
def test_one_of_several_processes_makes_it(root: Path) -> None:
    processes = [start(root, 0.01) for _ in range(3)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    pids = decoded_by(root, 14)
    assert len(pids) == 14
    assert len(set(pids)) == 1


@pytest.mark.filterwarnings("ignore:This process")
def test_a_process_forked_meanwhile_does_not_keep_the_lock(root: Path) -> None:
    children: list[Any] = []

    def decode(data: bytes) -> Any:
        if not children:
            children.append(FORK.Process(target=time.sleep, args=(600,), daemon=True))
            children[0].start()
        return by_pillow(data)

    cached(root, decode=decode)
    try:
        file = os.open(root.parent / "cache" / LOCK, os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(file)
    finally:
        children[0].kill()
        children[0].join()


@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_a_builder_that_is_killed(root: Path, signal_number: int) -> None:
    """A process that waits for it makes the cache in its place."""
    first = start(root, 0.2)
    decoded_by(root, 3)
    second = start(root, 0.0)
    os.kill(first.pid, signal_number)
    first.join()
    second.join()
    assert first.exitcode != 0
    assert second.exitcode == 0
    assert sorted(os.listdir(root.parent / "cache")) == [IMAGES, LOCK]
    assert decoded_by(root, 14).count(second.pid) == 14


def test_a_crash_at_any_step_is_recovered_from(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is whole after each crash: it is the old one or the new one."""
    cache = root.parent / "cache"
    ImageFolder(root, T.Resize((9, 9)), cache=f"u8:{cache}")
    path = next(root.rglob("03.jpg"))
    before, changed = path.read_bytes(), path.stat()

    class Crash(BaseException):
        pass

    def crash_at(count: int) -> Callable[[Any], Any]:
        left = iter(range(count))
        state = {"dead": False}

        def wrap(call: Any) -> Any:
            def step(*args: Any, **kwargs: Any) -> Any:
                if state["dead"] or next(left, None) is None:
                    state["dead"] = True  # clean-up does not run either
                    raise Crash
                return call(*args, **kwargs)

            return step

        return wrap

    is_done, count = False, 0
    while not is_done:
        path.write_bytes(encode(picture(100 + count)))
        with monkeypatch.context() as patch:
            wrap = crash_at(count)
            for owner, name in STEPS:
                patch.setattr(owner, name, wrap(getattr(owner, name)))
            try:
                ImageFolder(root, T.Resize((9, 9)), cache=f"u8:{cache}")
                is_done = True
            except Crash:
                pass
        assert np.load(cache / IMAGES).shape == (14, 9, 9, 3)
        path.write_bytes(before)  # so that a note of before would seem to be right
        os.utime(path, ns=(changed.st_atime_ns, changed.st_mtime_ns))
        dataset = ImageFolder(root, T.Resize((9, 9)), cache=f"u8:{cache}")
        plain = ImageFolder(root, T.Resize((9, 9)))
        assert_same([dataset[i] for i in range(14)], [plain[i] for i in range(14)])
        count += 1
    assert sorted(os.listdir(cache)) == [IMAGES, LOCK]
    assert count > 17  # the steps of 14 images, and of their file


# Those of a build; each image is decoded once.
STEPS = [
    (os, "posix_fallocate"),
    (np.memmap, "flush"),
    (os, "rename"),
    (os, "unlink"),
    (decode_room, "check_image"),
]


@pytest.mark.parametrize("name", [IMAGES, UNFINISHED, LOCK])
def test_a_fifo_in_the_place_of_a_file_is_refused(root: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "cache").mkdir()
    os.mkfifo(tmp_path / "cache" / name)

    def end(*_: Any) -> None:
        raise KeyboardInterrupt("it waits for somebody who writes to the FIFO")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(8)
    try:
        text = f"^cache: .*{name}' must be a regular file, got a FIFO .remove it.$"
        with pytest.raises(ValueError, match=text):
            ImageFolder(root, T.Resize((8, 8)), cache=f"u8:{tmp_path / 'cache'}")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
