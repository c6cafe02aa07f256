"""MixUp and CutMix: torchvision's arithmetic for the same parameters, and in a loader parameters
that depend on seed, epoch and batch alone."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from helpers import assert_same
from torch.utils.data import TensorDataset
from torchvision_shim import torchvision_v2

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T

PATHS = [("auto", 0), ("auto", 2), ("sync", 0), ("process", 2), ("thread", 2), ("torch", 0)]
GENERATOR = torch.Generator().manual_seed(0)
IMAGES, LABELS = torch.rand(22, 3, 8, 11, generator=GENERATOR), torch.arange(22) % 5
DATA = TensorDataset(IMAGES, LABELS)
Pair = namedtuple("Pair", "image label")


def choice(seed: int = 3) -> Any:
    return T.RandomChoice(
        [T.MixUp(alpha=0.4, num_classes=5, seed=seed), T.CutMix(num_classes=5)], p=[1, 2]
    )


def mixed(values: torch.Tensor, share: float) -> torch.Tensor:
    return values.roll(1, 0).mul_(1.0 - share).add_(values.mul(share))


def expected(x: torch.Tensor, y: torch.Tensor, params: dict[str, Any]) -> list[torch.Tensor]:
    hot = torch.nn.functional.one_hot(y, 5).float()
    if "box" not in params:
        return [mixed(x, params["lam"]), mixed(hot, params["lam"])]
    x1, y1, x2, y2 = params["box"]
    out = x.clone()
    out[..., y1:y2, x1:x2] = x.roll(1, 0)[..., y1:y2, x1:x2]
    return [out, mixed(hot, params["lam_adjusted"])]


@pytest.mark.parametrize(("path", "workers"), PATHS)
def test_parameters_depend_on_seed_epoch_and_batch(path: str, workers: int) -> None:
    mix, kinds = choice(), set()
    loader = DataLoader(DATA, 4, num_workers=workers, path=path, batch_transform=mix)
    for epoch in range(3):
        for i, batch in enumerate(loader):
            params = mix.params(i, epoch, (8, 11))
            kinds.add(params["chosen"])
            rows = slice(4 * i, 4 * i + 4)
            assert_same(batch, expected(IMAGES[rows], LABELS[rows], params))
    assert kinds == {0, 1} and mix.params(1, 2, (8, 11)) != choice(4).params(1, 2, (8, 11))


@pytest.mark.parametrize(("path", "workers"), PATHS)
def test_an_epoch_goes_on_with_its_own_numbers(path: str, workers: int) -> None:
    def loader() -> Any:
        options: dict[str, Any] = {"num_workers": workers, "path": path}
        return DataLoader(DATA, 4, batch_transform=choice(), **options)

    first = loader()
    list(first)
    iterator = iter(first)
    assert len([next(iterator) for _ in range(2)]) == 2
    state, rest = first.state_dict(), [[t.clone() for t in batch] for batch in iterator]
    again = loader()
    again.load_state_dict(state)
    assert_same([*again], rest)


def test_data_stay_as_they_are() -> None:
    images, before = IMAGES.clone(), IMAGES.clone()
    data = TensorDataset(images, LABELS)
    for collate in (None, lambda rows: (images[: len(rows)], LABELS[: len(rows)])):
        for _ in DataLoader(data, 4, collate_fn=collate, batch_transform=choice()):
            assert torch.equal(images, before)
    whole = TensorDataset(images[None], LABELS[None])
    for _ in DataLoader(whole, batch_size=None, batch_transform=choice()):
        assert torch.equal(images, before)


@pytest.mark.parametrize("out_layout", ["CHW", "channels_last"])
def test_batches_of_c_are_mixed_in_place(out_layout: str) -> None:
    pixels = torch.randint(0, 256, (9, 3, 8, 11), dtype=torch.uint8)
    cast = T.ToDtype(torch.float32, scale=True)
    data = ArrayDataset(pixels, LABELS[:9], transform=cast, out_layout=out_layout)
    mix = T.MixUp(num_classes=5)
    (plain, _), *_ = DataLoader(data, 9)
    (ours, _), *_ = DataLoader(data, 9, batch_transform=mix)
    assert_same(ours, mixed(plain.clone(), mix.params(0, 0, (8, 11))["lam"]))
    assert ours.stride() == plain.stride()


def test_before_the_transform_of_the_device_and_at_fixed_addresses() -> None:
    def twice(batch: Any) -> Any:
        return [batch[0] * 2, batch[1]]

    mix = choice()
    plain = [[t.clone() for t in batch] for batch in DataLoader(DATA, 4, batch_transform=mix)]
    both = DataLoader(DATA, 4, batch_transform=mix, device="cpu", device_transform=twice)
    assert_same([*both], [twice(batch) for batch in plain])
    static = DataLoader(
        DATA, 4, batch_transform=mix, device="cpu", static_buffers=True, drop_last=True
    )
    places = {(x.data_ptr(), y.data_ptr()) for x, y in static}
    assert len(places) == 1


def test_any_function_of_a_batch_will_do() -> None:
    loader = DataLoader(DATA, 4, batch_transform=lambda batch: batch[0].mean())
    assert [value.item() for value in loader] == [x.mean().item() for x, _ in DataLoader(DATA, 4)]
    with pytest.raises(TypeError, match="batch_transform must be a function of a batch, got 3"):
        DataLoader(DATA, batch_transform=3)


def test_labels_are_found_in_dicts_and_by_functions() -> None:
    lam = {"lam": 0.25}
    wanted = expected(IMAGES[:4], LABELS[:4], lam)
    for batch in (
        {"image": IMAGES[:4], "my_Label": LABELS[:4], "names": list("abcd")},
        Pair(IMAGES[:4], LABELS[:4]),
        [IMAGES[:4], {"x": 3, "labels": LABELS[:4]}],
    ):
        done = T.MixUp(num_classes=5).apply(batch, lam, in_place=False)
        assert type(done) is type(batch)
        found = [t for t in torch.utils._pytree.tree_leaves(done) if isinstance(t, torch.Tensor)]
        assert_same(found, wanted)
    mix = T.MixUp(num_classes=5, labels_getter=lambda batch: batch[0])
    assert_same(mix.apply([LABELS[:4], IMAGES[:4]], lam, in_place=False), wanted[::-1])
    hot = wanted[1]
    assert_same(T.MixUp().apply([IMAGES[:4], hot], lam, False)[1], mixed(hot, 0.25))


WRONG = [
    (lambda: T.MixUp(alpha=0), ValueError, "alpha must be a finite number > 0, got 0"),
    (lambda: T.MixUp(alpha="x"), TypeError, "alpha must be "),
    (lambda: T.CutMix(num_classes=0), ValueError, "num_classes must be an int >= 1, got 0"),
    (lambda: T.MixUp()(IMAGES, LABELS), ValueError, "num_classes must be passed if the labels"),
    (lambda: T.MixUp(num_classes=5)(IMAGES, 3), ValueError, "The labels must be a tensor, but got"),
    (
        lambda: T.MixUp(num_classes=5)(IMAGES[0], LABELS),
        ValueError,
        r"MixUp: images must be \[22, C, H, W\] for as many labels",
    ),
    (
        lambda: T.MixUp(num_classes=5)(IMAGES.byte(), LABELS),
        TypeError,
        r"MixUp: images must be of a float dtype, got torch.uint8 \(put ToDtype",
    ),
    (
        lambda: T.CutMix(num_classes=4)(IMAGES, torch.ones(22, 5)),
        ValueError,
        r"CutMix: labels must be indices \[N\], or probabilities",
    ),
    (lambda: T.MixUp()({"x": IMAGES}), ValueError, "labels must be a batch"),
    (
        lambda: T.RandomChoice([T.MixUp(), T.Pad(1)]),
        TypeError,
        "RandomChoice: item 1 must be an op",
    ),
    (lambda: T.RandomChoice([T.MixUp()], p=[-1]), ValueError, "RandomChoice: p must be 1 numbers"),
]


@pytest.mark.parametrize(("call", "kind", "text"), WRONG, ids=[text for _, _, text in WRONG])
def test_what_is_wrong_is_named(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=f"^{text}"):
        call()


@pytest.mark.parametrize("name", ["MixUp", "CutMix"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_called_they_are_torchvisions(name: str, dtype: torch.dtype) -> None:
    v2 = torchvision_v2() or pytest.skip("torchvision is not installed")
    images = IMAGES.to(dtype).contiguous(memory_format=torch.channels_last)
    for alpha in (0.2, 1.0, 3.0):
        for seed in range(20):
            torch.manual_seed(seed)
            ours = getattr(T, name)(alpha=alpha, num_classes=5)(images, LABELS)
            state = torch.get_rng_state()
            torch.manual_seed(seed)
            theirs = getattr(v2, name)(alpha=alpha, num_classes=5)(images, LABELS)
            assert_same(ours, theirs)
            assert torch.equal(state, torch.get_rng_state())
    both = [T.MixUp(num_classes=5), T.CutMix(num_classes=5)]
    for seed in range(9):
        torch.manual_seed(seed)
        ours = T.RandomChoice(both)(images, LABELS)
        torch.manual_seed(seed)
        theirs = v2.RandomChoice([v2.MixUp(num_classes=5), v2.CutMix(num_classes=5)])(
            images, LABELS
        )
        assert_same(ours, theirs)


def test_shares_are_of_the_beta_distribution() -> None:
    for alpha in (0.3, 1.0, 2.0):
        lams = torch.tensor([T.MixUp(alpha=alpha).params(i, 0, (2, 2))["lam"] for i in range(4000)])
        assert abs(lams.mean() - 0.5) < 0.03
        assert abs(lams.var() - 1 / (4 * (2 * alpha + 1))) < 0.01
