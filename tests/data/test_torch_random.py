"""torch's generator in C: the numbers and the states of torch's own, over millions of draws."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from fastloop._core import torch_draw

MANY = int(os.environ.get("FASTLOOP_TEST_DRAWS", "300000"))
SEEDS = (0, 1, 123456789, 2**32 + 5, 2**63 - 1, 2**64 - 1)


class TorchRandom:
    """torch's generator of the CPU after manual_seed(seed), drawn from by native code."""

    def __init__(self, seed: int) -> None:
        self.state: bytes | int = seed

    def draw(self, kind: str, low: float, high: float, count: int) -> Any:
        numbers, self.state = torch_draw(self.state, kind, low, high, count)
        return numbers

    def get_state(self) -> bytes:
        return torch_draw(self.state, "u", 0, 0, 0)[1]

    def set_state(self, state: bytes) -> None:
        self.state = torch_draw(state, "u", 0, 0, 0)[1]

    def rand(self, count: int) -> list[float]:
        return self.draw("u", 0, 0, count)

    def uniform(self, start: float, end: float, count: int, is_fused: bool) -> list[float]:
        return self.draw("f" if is_fused else "t", start, end, count)

    def randint(self, low: int, high: int, count: int) -> list[int]:
        return self.draw("i", low, high, count)

    def random_(self) -> int:
        return self.draw("r", 0, 0, 1)[0]

    def choice(self, weights: tuple[float, ...]) -> int:
        numbers, self.state = torch_draw(self.state, "c", 0, 0, 1, weights)
        return numbers[0]

    def randperm(self, count: int) -> list[int]:
        return self.draw("p", 0, 0, count).tolist()


def pair(seed: int) -> tuple[TorchRandom, torch.Generator]:
    return TorchRandom(seed), torch.Generator().manual_seed(seed)


def assert_same_state(ours: TorchRandom, torchs: torch.Generator) -> None:
    assert ours.get_state() == bytes(torchs.get_state().tolist())


def is_fused() -> bool:
    torchs = torch.Generator().manual_seed(3)
    numbers = torch.empty(256).uniform_(-0.3, 0.9, generator=torchs).tolist()
    found = [how for how in (True, False) if TorchRandom(3).uniform(-0.3, 0.9, 256, how) == numbers]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_gives_the_state_of_torch(seed: int) -> None:
    assert_same_state(*pair(seed))


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_numbers_and_states_of_each_draw(seed: int) -> None:
    ours, torchs = pair(seed)
    for _ in range(3):
        assert ours.rand(MANY) == torch.rand(MANY, generator=torchs).tolist()
        assert_same_state(ours, torchs)
        for low, high in ((0, 2), (0, 9), (-7, 250), (0, 2**28 - 1), (0, 2**28), (-5, 2**40)):
            expected = torch.randint(low, high, (MANY // 8,), generator=torchs).tolist()
            assert ours.randint(low, high, MANY // 8) == expected
            assert_same_state(ours, torchs)
        for start, end in ((0.08, 1.0), (-0.28768208, 0.28768207), (2.0, 2.0), (0.02, 0.33)):
            drawn = torch.empty(MANY // 4).uniform_(start, end, generator=torchs)
            assert ours.uniform(start, end, MANY // 4, is_fused()) == drawn.tolist()
            assert_same_state(ours, torchs)
        for _ in range(100):
            drawn = torch.empty((), dtype=torch.int64).random_(generator=torchs)
            assert ours.random_() == drawn.item()
        for count in (0, 1, 2, 4, 623, 5000):
            assert ours.randperm(count) == torch.randperm(count, generator=torchs).tolist()
        assert_same_state(ours, torchs)


def test_choices() -> None:
    ours, torchs = pair(4)
    for weights in ((1.0,), (0.5, 0.5), (0.2, 0.0, 0.7, 0.1), tuple(torch.rand(16).tolist())):
        for _ in range(3000):
            expected = torch.multinomial(torch.tensor(weights), 1, generator=torchs).item()
            assert ours.choice(weights) == expected
        assert_same_state(ours, torchs)
    for wrong in ((), (1.0,) * 17):
        with pytest.raises(ValueError, match="weights must be 1 to 16 numbers"):
            ours.choice(wrong)


def test_draws_in_any_order() -> None:
    """Single draws, so that each kind begins anywhere in the 624 words of a state."""
    ours, torchs = pair(11)
    choices = torch.randint(0, 5, (20000,)).tolist()
    for choice in choices:
        if choice == 0:
            assert ours.rand(1) == torch.rand(1, generator=torchs).tolist()
        elif choice == 1:
            assert ours.randint(0, 9, 1) == torch.randint(0, 9, (1,), generator=torchs).tolist()
        elif choice == 2:
            assert ours.random_() == torch.empty((), dtype=torch.int64).random_(generator=torchs)
        elif choice == 3:
            assert ours.randperm(4) == torch.randperm(4, generator=torchs).tolist()
        else:
            wide = torch.randint(-5, 2**40, (1,), generator=torchs).tolist()
            assert ours.randint(-5, 2**40, 1) == wide
    assert_same_state(ours, torchs)


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 1000])
def test_states_with_a_spare_normal_number_are_kept(count: int) -> None:
    ours, torchs = pair(5)
    torch.randn(count, generator=torchs)
    ours.set_state(bytes(torchs.get_state().tolist()))
    assert_same_state(ours, torchs)
    assert ours.rand(1000) == torch.rand(1000, generator=torchs).tolist()
    assert_same_state(ours, torchs)
    torchs.set_state(torch.frombuffer(bytearray(ours.get_state()), dtype=torch.uint8))
    assert_same_state(ours, torchs)


def words_to_state(words: Tensor) -> bytearray:
    """A state whose next words are these, before they are mixed."""
    state = bytearray(TorchRandom(0).get_state())
    state[8:12] = (624).to_bytes(4, "little")
    state[24:5016] = words.to(torch.int64).numpy().tobytes()
    return state


@pytest.mark.parametrize("bounds", [(0.08, 1.0), (0.0, 1.0), (-0.29, 0.29), (1.0, 1.0000001)])
def test_ends_of_ranges(bounds: tuple[float, float]) -> None:
    """Words whose upper or lower bits are all alike, which rounding may take out of the range."""
    rows = torch.arange(624)
    words = torch.where(rows % 2 == 0, (1 << 32) - 1 - rows // 2, rows // 2)
    state = words_to_state(words)
    ours, torchs = pair(0)
    ours.set_state(bytes(state))
    torchs.set_state(torch.frombuffer(state, dtype=torch.uint8))
    drawn = torch.empty(624).uniform_(*bounds, generator=torchs)
    assert ours.uniform(*bounds, 624, is_fused()) == drawn.tolist()
    assert_same_state(ours, torchs)


def change(at: int, value: int, size: int) -> bytes:
    state = bytearray(TorchRandom(7).get_state())
    state[at : at + size] = value.to_bytes(size, "little")
    return bytes(state)


@pytest.mark.parametrize(
    "state",
    [
        b"",
        bytes(5055),
        change(8, 0, 4),
        change(8, 625, 4),
        change(12, 0, 4),
        change(16, 625, 8),
        change(8, 624, 4)[:16] + change(16, 2, 8)[16:],
    ],
)
def test_what_is_no_state_is_refused(state: bytes) -> None:
    ours = TorchRandom(1)
    before = ours.get_state()
    with pytest.raises(ValueError, match="state of torch's generator"):
        ours.set_state(state)
    assert ours.get_state() == before


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda r: r.randint(3, 3, 1), "low below high"),
        (lambda r: r.randperm(-1), "count must .*, got -1"),
        (lambda r: torch_draw(-1, "u", 0, 0, 1), "negative"),
        (lambda r: r.randperm(2**32 // 20 + 1), "count must"),
        (lambda r: r.rand(-1), "count must .*, got -1"),
    ],
)
def test_arguments_that_are_refused(call: Any, match: str) -> None:
    with pytest.raises((ValueError, OverflowError), match=match):
        call(TorchRandom(0))
