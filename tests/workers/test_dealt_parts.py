"""The first batches of an epoch over worker processes: all workers make parts of them if no sample
depends on its worker, and batches, errors and deaths are those of batches that one worker makes."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from image_folders import write_folder
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset, default_collate, get_worker_info
from vision_cases import v2
from workers import Gate, Kill, wait_until

from fastloop import DataLoader, ImageFolder
from fastloop import transforms as T
from fastloop._core import BatchPool, ParentEnd, WorkerEnd
from fastloop.data.collate import make_collate
from fastloop.loader.workers import child, dealt

WORKERS, BATCH = 3, 4
RECIPE = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToDtype(torch.float32)])

pytestmark = pytest.mark.usefixtures("one_thread")  # for forks


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images"), count=29)


def loaded(dataset: Any, batch_size: int = BATCH, **more: Any) -> Any:
    return DataLoader(dataset, batch_size, **{"num_workers": WORKERS, **more})


def are_equal(batches: Any, expected: Any) -> bool:
    pairs = [(list(batch), list(other)) for batch, other in zip(batches, expected, strict=True)]
    for batch, other in pairs:
        for tensor, wanted in zip(batch, other, strict=True):
            assert tensor.dtype == wanted.dtype and tensor.stride() == wanted.stride()
            assert torch.equal(tensor, wanted)
    return len(pairs) > 0


def torchs(dataset: Any, epoch: int = 0, batch_size: int = BATCH, **more: Any) -> list[Any]:
    dataset.set_epoch(epoch)
    return list(TorchLoader(dataset, batch_size, **more))


class Hook:
    """Notes which worker makes each row, and calls `act(row)` before."""

    def __init__(self, act: Callable[[int], object] | None = None) -> None:
        self.makers = torch.full((29,), -1).share_memory_()
        self.act = act
        self._sample: Any = ImageFolder._sample

    def __call__(self, dataset: Any, row: int, *more: Any) -> Any:
        info = get_worker_info()
        self.makers[row] = -1 if info is None else info.id
        if self.act is not None:
            self.act(row)
        return self._sample(dataset, row, *more)


@pytest.fixture(params=["rows", "parts"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: workers write rows side by side, or the parent joins parts."""
    if request.param == "parts":
        monkeypatch.setattr(dealt, "find_like", lambda _: None)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Hook:
    found = Hook()
    monkeypatch.setattr(ImageFolder, "_sample", lambda *arguments: found(*arguments))
    return found


# ---- who makes what


@pytest.mark.parametrize("is_persistent", [False, True])
def test_all_workers_make_the_first_batches(root: Path, hook: Hook, is_persistent: bool) -> None:
    """Each worker waits in its first row of a batch until all have one."""

    def meet(row: int) -> None:
        batch = hook.makers[row // 6 * 6 : row // 6 * 6 + 6]
        wait_until(lambda: row >= 18 or {*batch.tolist()} - {-1} == {0, 1, 2})

    hook.act = meet
    with loaded(ImageFolder(root, RECIPE), 6, persistent_workers=is_persistent) as loader:
        for _ in range(2):
            hook.makers.fill_(-1)
            list(loader)
            makers = hook.makers.tolist()
            assert all({*makers[first : first + 6]} == {0, 1, 2} for first in (0, 6, 12))
            assert makers[18:] == [0] * 6 + [1] * 5


@pytest.mark.parametrize(
    "more",
    [
        {"worker_init_fn": print},
        {"collate_fn": default_collate, "in_order": False},
        {"collate_fn": lambda samples: default_collate(samples)},
        {"num_workers": 1},
        {"num_workers": 9},
        {"batch_size": None},
    ],
)
def test_loaders_whose_batches_are_not_dealt(root: Path, more: dict[str, Any]) -> None:
    dataset = ImageFolder(root, RECIPE)
    assert dealt.may_deal(loaded(dataset))
    assert not dealt.may_deal(loaded(dataset, **{"num_workers": WORKERS, **more}))


class Own(ImageFolder):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda root: Own(root, RECIPE),
        lambda root: ImageFolder(root, RECIPE, target_transform=abs),
        lambda root: ImageFolder(root, RECIPE, on_error="skip"),
        lambda root: ImageFolder(root, RECIPE, decode=lambda data: data),
        lambda root: ImageFolder(root, RECIPE, out_layout="channels_last"),
        lambda root: ImageFolder(root, lambda image: torch.rand(3)),
        lambda root: ImageFolder(root, {"a": RECIPE, "b": RECIPE}),
        lambda root: ImageFolder(root),
        lambda root: [0] * 9,
    ],
)
def test_datasets_whose_batches_are_not_dealt(root: Path, make: Callable[[Path], Any]) -> None:
    assert not dealt.may_deal(loaded(make(root)))


def test_replaced_methods_keep_batches_whole(root: Path) -> None:
    dataset = ImageFolder(root, RECIPE)
    dataset.__getitems__ = lambda rows: [(torch.zeros(3), 0)] * len(rows)  # type: ignore[method-assign]
    assert not dealt.may_deal(loaded(dataset))


@pytest.mark.skipif(v2 is None, reason="torchvision is not installed")
def test_torchvisions_folder_is_dealt_without_random_transforms(root: Path) -> None:
    from torchvision import datasets, transforms

    last = [transforms.CenterCrop(16), transforms.ToTensor()]
    for first, is_dealt in ((transforms.Resize(18), True), (transforms.RandomRotation(9), False)):
        dataset = datasets.ImageFolder(str(root), transforms.Compose([first, *last]))
        with loaded(dataset) as loader:
            iterator = iter(loader)
            assert "samples of ImageFolder by fastloop" in loader.stats().why
            assert iterator._dealt.may_deal is is_dealt
            if is_dealt:
                assert are_equal(iterator, list(TorchLoader(dataset, BATCH)))


# ---- batches


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("batch_size", "context"),
    [(1, "fork"), (2, "fork"), (3, "fork"), (5, "forkserver"), (29, "fork"), (40, "fork")],
)
def test_batches_are_torchs(root: Path, batch_size: int, context: str) -> None:
    dataset = ImageFolder(root, RECIPE)
    how = {"multiprocessing_context": context, "persistent_workers": True}
    with loaded(dataset, batch_size, **how) as loader:
        for epoch in range(3):
            expected = torchs(dataset, epoch, batch_size)
            assert are_equal(loader, expected)


@pytest.mark.usefixtures("way")
@pytest.mark.filterwarnings("ignore:the loaded state is at the end")
def test_random_programs(root: Path, hook: Hook) -> None:
    """Epochs that are left early, of other lengths, with other orders, and resumed."""
    draw = random.Random(44)
    dataset = ImageFolder(root, RECIPE, seed=3)
    for trial in range(12):
        rows = draw.choices(range(29), k=draw.randrange(1, 40))
        batch_size, how = draw.choice([2, 3, 5, 8]), {"drop_last": draw.random() < 0.3}
        workers, within = draw.choice([2, 3, 4]), Subset(Subset(dataset, range(29)), rows)
        more = {"num_workers": workers, "prefetch_factor": draw.choice([1, 2, 3]), **how}
        more |= {"persistent_workers": draw.random() < 0.5, "epochs_ahead": draw.randrange(2)}
        with loaded(within, batch_size, **more) as loader:
            for epoch in range(4):
                dataset.set_epoch(epoch)
                expected = list(TorchLoader(within, batch_size, **how))
                taken, last = [], draw.randrange(1 + len(expected))
                for batch in loader:
                    taken.append(batch)
                    if len(taken) == last:
                        break
                state = loader.state_dict()
                if draw.random() < 0.5 and len(taken) == last:
                    loader.load_state_dict(state)
                    taken += loader
                    last = len(expected)
                assert len(taken) == (last or len(expected)), (trial, epoch)
                assert not taken or are_equal(taken, expected[: len(taken)]), (trial, epoch)


def test_a_part_is_no_batch_of_its_worker(root: Path) -> None:
    with loaded(ImageFolder(root, RECIPE)) as loader:
        batches = list(loader)
        stats = loader.stats()
        assert stats.batches == len(batches) == 8
        assert sum(worker.batches for worker in stats.workers) == 8 - WORKERS


# ---- memory that workers write together


def test_images_are_written_side_by_side(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent copies no image, and a batch that the loop holds is not written again."""
    monkeypatch.setattr(dealt.Parts, "join", join_and_note := Noted(dealt.Parts.join))
    dataset = ImageFolder(root, RECIPE)
    with loaded(dataset, persistent_workers=True) as loader:
        held, expected = [], []
        for epoch in range(3):
            expected += torchs(dataset, epoch)
            held += list(loader)
        assert are_equal(held, expected)
    stacks = [parts.stack for parts in join_and_note.seen]
    assert len(stacks) == 3 * WORKERS and all(stack is not None for stack in stacks)


class Noted:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seen = function, list[Any]()

    def __get__(self, parts: Any, _: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self.seen.append(parts)
            return self.function(parts, *arguments)

        return call


def test_rows_that_lie_elsewhere_are_made_whole(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child._Claims, "note", lambda *_: False)
    dataset = ImageFolder(root, RECIPE)
    with loaded(dataset, persistent_workers=True) as loader:
        for epoch in range(3):
            assert are_equal(loader, torchs(dataset, epoch))
        assert loader._iterator._dealt._like is None


def claimed(found: list[tuple[int, int]]) -> Any:
    stack = torch.zeros(8, 3)
    return dealt.find_rows(
        stack, [[(first, stack.dtype, stack[:count].shape, [])] for first, count in found]
    )


def test_every_row_is_made_once() -> None:
    assert claimed([(5, 3), (0, 2), (2, 3)]) == []
    for wrong in ([(0, 5)], [(0, 5), (4, 3)], [(0, 4), (5, 3)], [(1, 7)], [(0, 8), (0, 8)], []):
        assert claimed(wrong) is None
    stack = torch.zeros(8, 3)
    for other in (stack.double(), stack[:, :2]):
        assert dealt.find_rows(stack, [[(0, other.dtype, other.shape, [])]]) is None
    assert dealt.find_rows(stack, [None]) is None


def test_claims_cover_all_rows_and_a_successor_makes_those_of_its_predecessor() -> None:
    parent = ParentEnd(BatchPool(0, True), torch.Tensor, 2, 16, 1 << 23)
    address = parent.address()
    ends = [WorkerEnd(torch.Tensor, *address, number) for number in (0, 1)]
    like = torch.zeros(5)
    stack, marks, offset = parent.stage(like, 21)
    assert stack.shape == (21, 5) and marks.tolist() == [0] * 21
    taken: list[list[int]] = [[], []]
    for turn in range(99):
        found = ends[turn % 2].claim(offset, 21, like.nbytes, 4)
        if found is not None:
            first, count, where = found
            assert where == stack[first].data_ptr()
            taken[turn % 2] += range(first, first + count)
    assert sorted(taken[0] + taken[1]) == list(range(21)) and all(taken)
    assert marks.tolist() == [1 if row in taken[0] else 2 for row in range(21)]
    successor, again = WorkerEnd(torch.Tensor, *address, 1), []
    while (found := successor.claim(offset, 21, like.nbytes, 4)) is not None:
        again += range(found[0], found[0] + found[1])
    assert again == taken[1]
    for wrong in [(-64, 21, 20, 4), (offset, 1 << 40, 1 << 40, 4), (offset + 4, 2, 20, 4),
                  (address[1], 21, 20, 4), (offset, 0, 20, 4), (offset, 21, 20, 0)]:  # fmt: skip
        with pytest.raises(ValueError, match="must lie in the shared memory"):
            ends[0].claim(*wrong)
    for other, count in [(torch.zeros(5, 2).T, 3), (like, 0), (torch.zeros(0), 2)]:
        with pytest.raises(ValueError, match="stage"):
            parent.stage(other, count)


def test_memory_of_a_batch_that_was_left_waits_for_its_workers(root: Path, hook: Hook) -> None:
    """A worker may still write to an epoch's first batch while the next one begins."""
    gate = Gate()
    dataset = ImageFolder(root, RECIPE)
    with loaded(dataset, prefetch_factor=1) as loader:
        hook.act = lambda row: row != 2 or gate()
        iterator = iter(loader)
        wait_until(lambda: hook.makers[2] >= 0)
        before = iterator._dealt.stacks[0].data_ptr()
        iterator._dealt.clear()
        parent = iterator._parent_end
        others = [parent.stage(torch.zeros(3, 16, 16), BATCH) for _ in range(9)]
        assert before not in [stack.data_ptr() for stack, _, _ in others]
        gate.open()


# ---- errors and ends


@pytest.mark.usefixtures("way")
def test_an_error_is_that_of_a_whole_batch(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ImageFolder(root, RECIPE)
    dataset.samples[5] = str(root / "nothing.jpg"), 0
    dataset.samples[6] = str(root / "none.jpg"), 0
    texts = []
    for may_deal in (True, False):
        if not may_deal:
            monkeypatch.setattr(dealt, "_MOST_WORKERS", 0)
        with loaded(dataset) as loader:
            iterator = iter(loader)
            assert iterator._dealt.may_deal is may_deal
            next(iterator)
            with pytest.raises(FileNotFoundError) as caught:
                next(iterator)
            texts.append(str(caught.value))
            assert len(list(iterator)) == 6
    assert texts[0] == texts[1]
    assert "nothing.jpg" in texts[0] and "batch 1 (indices [4, 5, 6, 7])" in texts[0]


def once(path: Path, act: Callable[[], object], at: int) -> Callable[[int], None]:
    """Act at a row, the first time in any process."""

    def hooked(row: int) -> None:
        if row == at and not path.exists():
            path.touch()
            act()

    return hooked


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("at", [0, 1, 3, 7, 11, 20])
def test_a_worker_dies(root: Path, hook: Hook, tmp_path: Path, at: int) -> None:
    dataset = ImageFolder(root, RECIPE)
    expected = torchs(dataset)
    hook.act = once(tmp_path / "restarted", Kill(signal.SIGKILL), at)
    with loaded(dataset, on_worker_death="restart") as loader:
        with pytest.warns(RuntimeWarning, match=rf"batch {at // BATCH} \(indices \["):
            assert are_equal(loader, expected)
        assert loader.stats().restarts == 1
    hook.act = once(tmp_path / "raised", Kill(signal.SIGKILL), at)
    with loaded(dataset, persistent_workers=True) as loader:
        taken: list[Any] = []
        with pytest.raises(RuntimeError, match="killed by signal"):
            taken += loader
        assert are_equal(loader, expected)


def test_a_timeout_names_the_worker_whose_part_hangs(root: Path, hook: Hook) -> None:
    gate = Gate()
    dataset = ImageFolder(root, RECIPE)
    expected = torchs(dataset)
    hook.act = lambda row: row != 7 or gate()
    with loaded(dataset, timeout=0.3) as loader:
        iterator = iter(loader)
        assert are_equal([next(iterator)], expected[:1])
        with pytest.raises(
            RuntimeError, match=r"worker \d .*batch 1 \(indices \[4, 5, 6, 7\]\)"
        ) as e:
            next(iterator)
        assert f"worker {int(hook.makers[7])} " in str(e.value)
        gate.open()
        assert are_equal(iterator, expected[1:])


def test_close_while_parts_are_made(root: Path, hook: Hook) -> None:
    gate = Gate()
    hook.act = lambda row: row != 2 or gate()
    loader = loaded(ImageFolder(root, RECIPE))
    iterator = iter(loader)
    wait_until(lambda: (hook.makers[[0, 1, 3]] >= 0).all())
    pids = [worker.pid for worker in iterator._workers]
    gate.open()
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.usefixtures("way")
def test_handlers_that_raise_lose_no_part(root: Path) -> None:
    """A timer interrupts next() at any place; at most batches that it returns are lost."""

    class InterruptError(Exception):
        pass

    def handle(*_: object) -> None:
        raise InterruptError

    dataset = ImageFolder(root, RECIPE)
    expected = [batch[1].tolist() for batch in torchs(dataset, batch_size=2)]
    images = [batch[0] for batch in torchs(dataset, batch_size=2)]
    draw, before = random.Random(7), signal.signal(signal.SIGALRM, handle)
    lost = 0
    try:
        with loaded(dataset, 2, persistent_workers=True) as loader:
            for _ in range(40):
                try:
                    iterator = iter(loader)
                    place = SimpleNamespace(at=0)
                    while True:
                        signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 3e-3))
                        try:
                            batch = next(iterator)
                            signal.setitimer(signal.ITIMER_REAL, 0)
                        except InterruptError:
                            continue
                        finally:
                            signal.setitimer(signal.ITIMER_REAL, 0)
                        while not torch.equal(images[place.at], batch[0]):
                            lost, place.at = lost + 1, place.at + 1
                        assert expected[place.at] == batch[1].tolist()
                        place.at += 1
                except (StopIteration, InterruptError):
                    signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert lost < 300


def test_no_thread_of_torchs_joins_images() -> None:
    """torch would wait for its threads while workers keep all CPUs busy."""
    called: list[Any] = []
    images = tuple(torch.randint(0, 256, (n, 3, 160, 160), dtype=torch.uint8) for n in (2, 3, 3))
    parts = dealt.Parts(0, [images, tuple(torch.arange(len(each)) for each in images)])
    core = make_collate()
    sys.setprofile(
        lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None
    )
    try:
        joined = parts.join(core)
    finally:
        sys.setprofile(None)
    assert torch.equal(joined[0], torch.cat(images))
    assert joined[1].tolist() == [0, 1, 0, 1, 2, 0, 1, 2]
    assert called.count("collate_tensor_fn") <= 1  # of the labels


def test_batches_of_a_loader_that_inference_mode_opened_take_part_in_autograd(root: Path) -> None:
    dataset = ImageFolder(str(root), transform=RECIPE, seed=3)
    with torch.inference_mode():
        loader = iter(loaded(dataset))
    for images, labels in loader:
        assert not (images.is_inference() or labels.is_inference())
