"""The reference that fastloop.transforms is held to: its random numbers are Philox's, and what it
makes of parameters is what torchvision makes of them."""

import pytest
import torch
from image_cases import make_case
from image_draws import Key, draw, philox
from image_reference import replay
from torchvision_shim import replay_by_torchvision, torchvision_v2


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        (0, "00000000 00000000 00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, "ffffffff ffffffff ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            0x299F31D0A4093822,
            *("243f6a88 85a308d3 13198a2e 03707344", "d16cfe09 94fdcceb 5001e420 24126ea1"),
        ),
    ],
)
def test_philox_gives_the_answers_of_its_authors(key: int, counter: str, words: str) -> None:
    got = philox(key, [int(word, 16) for word in counter.split()])
    assert " ".join(f"{word:08x}" for word in got) == words


@pytest.mark.parametrize("block", range(4))
def test_the_replay_is_torchvisions(block: int) -> None:
    v2 = torchvision_v2()
    if v2 is None:
        pytest.skip("torchvision is not installed")
    for seed in range(block * 100, block * 100 + 100):
        case = make_case(seed)
        image = case.images(1, seed)[0]
        params = draw(case.ops, Key(seed, 0, 0), case.size)
        if any(each["out"] == (1, 1) for each in params) and case.channels == 3:
            continue  # an assertion inside torch 2.13 fails for resizes to one pixel
        ours, theirs = (
            replay(case.ops, params, image),
            replay_by_torchvision(v2, case.ops, params, image),
        )
        assert ours.dtype == theirs.dtype, (seed, case)
        assert torch.equal(ours, theirs), (seed, case)
