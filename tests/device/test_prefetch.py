"""prefetch: memory is read and written in order, however late the device is; errors and ends."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import outcome
from lazy_device import SCHEDULES, LazyAccelerator, LazyDevice, check, numbered, read

import fastloop.loader.device_iter
from fastloop import prefetch

every_schedule = pytest.mark.parametrize("late", [*SCHEDULES, *range(20)], indirect=True)


@pytest.fixture(params=["copies-late"])
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LazyDevice:
    device = LazyDevice(request.param)
    monkeypatch.setattr(
        fastloop.loader.device_iter, "open_accelerator", lambda _: LazyAccelerator(device)
    )
    return device


@every_schedule
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_kernel_reads_its_own_batch_whenever_it_runs(late: LazyDevice, depth: int) -> None:
    seen = [read(late, x) for x in prefetch(numbered(), "cuda", depth)]
    check(late, seen, [*map(float, range(12))])
    assert late.copies == ["copy"] * 12
    assert late.synchronized == 0


@every_schedule
def test_batches_may_be_kept(late: LazyDevice) -> None:
    kept = list(prefetch(numbered(), "cuda"))
    check(late, [read(late, x) for x in kept], [*map(float, range(12))])


@every_schedule
def test_the_stream_may_change_between_batches(late: LazyDevice) -> None:
    batches = prefetch(numbered(), "cuda")
    seen = []
    for i in range(12):
        with late.on("side" if i % 3 else "compute"):
            seen.append(read(late, next(batches)))
    check(late, seen, [*map(float, range(12))])


@every_schedule
def test_batches_that_nobody_takes_do_no_harm(late: LazyDevice) -> None:
    seen = []
    for _ in range(4):
        batches = prefetch(numbered(), "cuda", 3)
        seen.append(read(late, next(batches)))
        del batches
    check(late, seen, [0.0] * 4)
    assert late.synchronized == 0


def scaled(late: LazyDevice, by: Callable[[], torch.Tensor]) -> Callable[[Any], Any]:
    def transform(x: torch.Tensor) -> torch.Tensor:
        made = late.allocate(x.nbytes, late.current).view(x.dtype).view(x.shape)
        late.launch(lambda to, of, factor: to.copy_(of * factor), made, x, by())
        return made

    return transform


@every_schedule
def test_a_transform_runs_after_the_copy_and_before_its_reader(late: LazyDevice) -> None:
    factor = late.put(torch.full((4, 3), 10.0))  # still being made when the iteration begins
    batches = prefetch(numbered(), "cuda", device_transform=scaled(late, lambda: factor))
    check(late, [read(late, x) for x in batches], [10.0 * i for i in range(12)])


@every_schedule
def test_a_transform_may_read_what_was_on_the_device(late: LazyDevice) -> None:
    def made_here() -> Iterator[torch.Tensor]:
        for x in numbered():
            yield late.put(x)

    factor = late.put(torch.full((4, 3), 2.0))
    batches = prefetch(made_here(), "cuda", device_transform=scaled(late, lambda: factor))
    check(late, [read(late, x) for x in batches], [2.0 * i for i in range(12)])


@every_schedule
def test_what_is_on_the_device_passes_through(late: LazyDevice) -> None:
    here = [late.put(x) for x in numbered(3)]
    there = list(prefetch(iter(here), "cuda"))
    assert all(a is b for a, b in zip(here, there, strict=True))


@every_schedule
def test_pinned_memory_of_the_users_is_read_before_it_is_let_go(late: LazyDevice) -> None:
    batches = prefetch(map(late.foreign, numbered()), "cuda")
    seen = [read(late, x) for x in batches]
    assert late.synchronized == 0
    check(late, seen, [*map(float, range(12))])
    assert not [b for b in late.blocks if b.stream is None and not b.is_foreign]


def test_pinned_memory_of_the_users_is_let_go_once_it_was_read(late: LazyDevice) -> None:
    for _ in prefetch(map(late.foreign, numbered()), "cuda"):
        late.run()
        assert sum(b.is_foreign and not b.is_free for b in late.blocks) <= 3


@every_schedule
@pytest.mark.parametrize("how", ["close", "del", "error"])
def test_an_end_waits_for_copies_from_pinned_memory_of_the_users(
    late: LazyDevice, how: str
) -> None:
    at: list[torch.Tensor] = []  # where a copy goes, kept by a kernel's author, say

    def transform(x: torch.Tensor) -> torch.Tensor:
        at.append(x)
        if how == "error":
            raise ValueError
        return x

    batches = prefetch(map(late.foreign, numbered()), "cuda", 2, device_transform=transform)
    if how == "error":
        with pytest.raises(ValueError):
            next(batches)
    else:
        next(batches)
    if how == "close":
        batches.close()
    del batches
    with late.on("copy"):
        check(late, [read(late, x) for x in at], [0.0, 1.0][: len(at)])


@every_schedule
def test_static_buffers_keep_their_addresses(late: LazyDevice) -> None:
    seen, addresses = [], set()
    batches = prefetch(
        ({"x": x, "i": i} for i, x in enumerate(numbered())), "cuda", static_buffers=True
    )
    for i in range(12):
        with late.on("side" if i in (5, 6, 9) else "compute"):
            batch = next(batches)
            assert batch["i"] == i
            addresses.add(batch["x"].data_ptr())
            seen.append(read(late, batch["x"]))
    del batch
    check(late, seen, [*map(float, range(12))])
    assert len(addresses) == 1


@every_schedule
def test_static_buffers_may_be_read_after_the_iterator_on_any_stream_it_was_taken_on(
    late: LazyDevice,
) -> None:
    batches = prefetch(numbered(2), "cuda", static_buffers=True)
    next(batches)
    with late.on("side"):
        seen = read(late, next(batches))
    del batches
    for _ in range(3):
        late.allocate(seen_size := 64, "compute")
        assert seen_size == 64
    check(late, [seen], [1.0])


class Moves:
    """A type that can be moved, but not lent."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, accelerator: Any) -> "Moves":
        return Moves(accelerator.late.put(self.x))


@every_schedule
def test_objects_move_themselves(late: LazyDevice) -> None:
    seen = [
        read(late, batch["o"].x)
        for batch in prefetch(({"o": Moves(x)} for x in numbered()), "cuda")
    ]
    check(late, seen, [*map(float, range(12))])


# ---- errors and ends


def test_errors_come_in_their_turn(late: LazyDevice) -> None:
    class Source:
        def __init__(self) -> None:
            self.i = -1

        def __iter__(self) -> "Source":
            return self

        def __next__(self) -> torch.Tensor:
            self.i += 1
            if self.i in (2, 3):
                raise ValueError(f"no {self.i}")
            if self.i >= 5:
                raise StopIteration
            return torch.full((2,), float(self.i))

    batches = prefetch(Source(), "cuda", 3)
    met: list[Any] = []
    for _ in range(7):
        got = outcome(lambda: next(batches))
        late.run()
        met.append(got[0].item() if isinstance(got, torch.Tensor) else got[2])
    assert met == [0.0, 1.0, "no 2", "no 3", 4.0, "", ""]


def test_close_lets_go_of_everything(late: LazyDevice) -> None:
    source = numbered()
    batches = prefetch(source, "cuda")
    next(batches)
    ref = weakref.ref(source)
    del source
    batches.close()
    assert ref() is None
    assert list(batches) == []
    assert all(block.is_free for block in late.blocks if block.stream is not None)


def test_ctrl_c_is_not_held(late: LazyDevice) -> None:
    def source() -> Iterator[torch.Tensor]:
        yield torch.zeros(1)
        raise KeyboardInterrupt

    batches = prefetch(source(), "cuda")
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    late.run()
    assert next(batches).tolist() == [0.0]


def test_a_batch_for_which_there_was_no_memory_is_taken_again(late: LazyDevice) -> None:
    late.budget = 100
    batches = prefetch(numbered(3), "cuda", 2)
    first = next(batches)  # the second has no room yet
    with pytest.raises(torch.OutOfMemoryError):
        next(batches)
    with pytest.raises(torch.OutOfMemoryError):
        next(batches)
    seen = [read(late, first)]
    del first
    seen += [read(late, next(batches)) for _ in range(2)]
    check(late, seen, [0.0, 1.0, 2.0])


def test_an_end_met_ahead_keeps_nothing_alive(late: LazyDevice) -> None:
    class Source:
        ended = 0

        def __iter__(self) -> "Source":
            return self

        def __next__(self) -> torch.Tensor:
            Source.ended += 1
            if Source.ended == 2:
                raise StopIteration
            return torch.zeros(1)

        def __del__(self) -> None:
            Source.ended = -1

    batches = prefetch(Source(), "cuda")
    next(batches)
    del batches
    assert Source.ended == -1  # without the garbage collector


def test_a_batch_may_not_be_taken_inside_a_capture(late: LazyDevice) -> None:
    batches = prefetch(numbered(1), "cuda")
    late.is_capturing = True
    with pytest.raises(RuntimeError, match="capture"):
        next(batches)
    late.is_capturing = False
    assert len(list(batches)) == 1
    late.is_capturing = True
    with pytest.raises(RuntimeError, match="capture"):
        prefetch(numbered(1), "cuda")


def test_static_buffers_name_what_differs(late: LazyDevice) -> None:
    source = [{"x": torch.ones(4, 3)}, {"x": torch.ones(2, 3)}]
    batches = prefetch(iter(source), "cuda", static_buffers=True)
    next(batches)
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"batch\['x'\] was .*\(4, 3\).* is .*\(2, 3\).*drop_last=True"
        ):
            next(batches)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="depth must be an int >= 1, got 0"):
        prefetch([], "cpu", 0)
    with pytest.raises(TypeError, match="not iterable"):
        prefetch(3, "cpu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"device must be the CPU or an accelerator .* got 'meta'"):
        prefetch([], "meta")
    with pytest.raises(RuntimeError, match="device"):
        prefetch([], "nowhere")
