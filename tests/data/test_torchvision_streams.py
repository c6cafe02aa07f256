"""Datasets of torchvision by C: batches, and the states of all generators, as with torch alone."""

from __future__ import annotations

import functools
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import mutants
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, Subset, SubsetRandomSampler
from vision_cases import (
    KINDS,
    MEAN,
    STD,
    assert_same,
    assert_same_bits,
    cifar,
    dataset_of,
    options_of,
    play,
    random_chain,
    v2,
)

import fastloop
from fastloop.adapters import originals, torchvision_chain
from fastloop.compat import verification
from fastloop.data.transforms import ops
from fastloop.loader.arrays import compared

pytestmark = pytest.mark.skipif(v2 is None, reason="torchvision is not installed")
if v2 is not None:
    from PIL import Image
    from torchvision import datasets, tv_tensors
    from torchvision import transforms as v1

LOADERS = int(os.environ.get("FASTLOOP_FUZZ", "24"))
SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", time.strftime("%Y%m%d")))
NUMBERS = pytest.mark.parametrize("workers", [0, 2])
VERSIONS = pytest.mark.parametrize("version", [1, 2])


@pytest.fixture(autouse=True)
def verifications() -> Iterator[None]:
    """No test knows what those before it have compared."""
    verification.verification_of.cache_clear()
    yield
    verification.verification_of.cache_clear()


def module_of(version: int) -> Any:
    return v1 if version == 1 else v2


def path_of(dataset: Any, **options: Any) -> str:
    return fastloop.DataLoader(dataset, **options).stats().path


# ---- the recipes


@VERSIONS
@NUMBERS
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("with_generator", [False, True])
def test_the_recipe_of_cifar(
    version: int, workers: int, shuffle: bool, with_generator: bool
) -> None:
    dataset = dataset_of("CIFAR10", cifar(module_of(version)))
    options = {"batch_size": 7, "shuffle": shuffle, "num_workers": workers}
    assert path_of(dataset, **options) == "array"
    assert_same(dataset, options, with_generator)


@NUMBERS
@pytest.mark.parametrize("place", [0, 1])
def test_a_resize_of_pil_and_of_a_tensor_that_was_pil(workers: int, place: int) -> None:
    parts = [v2.RandomResizedCrop(24), v2.ToDtype(torch.float32, scale=True)]
    dataset = dataset_of("SVHN", v2.Compose([*parts[:place], v2.ToImage(), *parts[place:]]))
    options = {"batch_size": 7, "num_workers": workers}
    assert path_of(dataset, **options) == "array"
    assert_same(dataset, options)


@VERSIONS
@pytest.mark.parametrize("kind", KINDS)
def test_each_class(version: int, kind: str) -> None:
    module, channels = module_of(version), 1 if "MNIST" in kind else 3
    normalize = module.Normalize(MEAN[:channels], STD[:channels])
    dataset = dataset_of(kind, module.Compose([module.ToTensor(), normalize]))
    assert path_of(dataset) == "array"
    assert_same(dataset, {"batch_size": 9, "shuffle": True})
    assert_same(dataset, {"batch_size": 9, "num_workers": 1}, stops=[None])


@VERSIONS
@pytest.mark.parametrize("stop", [1, 2, 5])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_streams_of_persistent_workers_go_on(version: int, stop: int, prefetch: int) -> None:
    """Batches that were sent and dropped have moved the streams, too."""
    dataset = dataset_of("CIFAR10", cifar(module_of(version)))
    options = {"batch_size": 4, "shuffle": True, "num_workers": 3, "persistent_workers": True}
    assert_same(dataset, {**options, "prefetch_factor": prefetch}, stops=[stop, None, stop])


@NUMBERS
def test_a_loop_that_draws_between_batches(workers: int) -> None:
    def draw(number: int) -> None:
        torch.rand(5)
        torch.randn(3)  # leaves a spare normal number behind

    dataset = dataset_of("CIFAR10", cifar(v1))
    assert_same(dataset, {"batch_size": 7, "num_workers": workers}, between=draw)


@NUMBERS
def test_a_part_of_a_dataset(workers: int) -> None:
    dataset = dataset_of("CIFAR10", cifar(v2))
    part = Subset(Subset(dataset, range(30, 3, -2)), [3, 1, 1, 9, -2, 0])
    options = {"batch_size": 4, "num_workers": workers, "shuffle": True}
    assert path_of(part, **options) == "array"
    assert_same(part, options)


@pytest.mark.parametrize("seen", ["replacement", "part"])
def test_samplers(seen: str) -> None:
    dataset = dataset_of("MNIST", v1.ToTensor())
    sampler: Any = RandomSampler(dataset, replacement=True, num_samples=50)
    if seen == "part":
        sampler = SubsetRandomSampler(list(range(5, 25)))
    assert path_of(dataset, sampler=sampler) == "array"
    assert_same(dataset, {"batch_size": 6, "sampler": sampler})


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffle_sampler(workers: int) -> None:
    dataset = dataset_of("MNIST", v1.Compose([v1.RandomCrop(28, 4), v1.ToTensor()]))
    epochs = []
    for cls in (DataLoader, fastloop.DataLoader):
        torch.manual_seed(3)
        sampler = fastloop.ShuffleSampler(dataset, seed=4)
        loader = cls(dataset, 6, sampler=sampler, num_workers=workers)
        epochs.append([batch for _ in range(2) for batch in loader])
    assert loader.stats().path == "array"
    for torchs, ours in zip(*epochs, strict=True):
        assert all(map(torch.equal, torchs, ours))


@VERSIONS
def test_a_number_that_is_p_itself(version: int) -> None:
    """v1 applies the flip of the first sample, v2 does not."""
    module = module_of(version)
    torch.manual_seed(17)
    torch.empty((), dtype=torch.int64).random_()  # the base seed
    p = torch.rand(1).item()
    parts = [module.RandomApply([module.RandomHorizontalFlip(1.0)], p=p), module.ToTensor()]
    dataset = dataset_of("CIFAR10", module.Compose(parts))
    assert path_of(dataset) == "array"
    assert_same(dataset, {"batch_size": 7})
    torch.manual_seed(17)
    image, _ = next(iter(fastloop.DataLoader(dataset)))
    is_flipped = not torch.equal(image[0], v1.ToTensor()(dataset.data[0]))
    assert is_flipped == (version == 1)


def test_torchs_class_behind_patch() -> None:
    dataset = dataset_of("CIFAR10", cifar(v1))
    torchs = list(play(DataLoader, dataset, {"batch_size": 7, "shuffle": True}, [None, 2, None]))
    with fastloop.patched("dataloader") as state:
        assert state.seams["dataloader"].is_on
        loader = DataLoader(dataset)
        assert type(iter(loader)) is compared.ComparedIter
        ours = list(play(DataLoader, dataset, {"batch_size": 7, "shuffle": True}, [None, 2, None]))
    assert_same_bits(ours, torchs)


def test_random_chains_datasets_and_loaders() -> None:
    """FASTLOOP_FUZZ is how many, FASTLOOP_FUZZ_SEED the seed, which is that of the day."""
    any_of = random.Random(SEED)
    for number in range(LOADERS):
        kind, module = any_of.choice(KINDS), any_of.choice((v1, v2))
        dataset = dataset_of(kind, random_chain(any_of, module, kind), any_of.choice((1, 13, 40)))
        options = options_of(any_of, any_of.choice((0, 0, 0, 1, 2)))
        stops = [any_of.choice((None, 1, 2)), None]
        case = f"seed {SEED}, case {number}: {kind}, {dataset.transform}, {options}, {stops}"
        found = fastloop.DataLoader(dataset, **options).stats()
        if "at most" in found.why or "pad once" in found.why:
            continue  # of 500 chains, one is longer than plans may be
        assert found.path == "array", f"{case}: {found.why}"
        try:
            assert_same(dataset, options, any_of.random() < 0.3, stops=stops)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from None


# ---- what is left to torchvision


class _OwnFlip(v1.RandomHorizontalFlip if v2 is not None else object):  # type: ignore[misc]
    pass


class _OwnSet(datasets.CIFAR10 if v2 is not None else object):  # type: ignore[misc]
    pass


def hooked(op: Any) -> Any:
    op.register_forward_hook(lambda *args: None)
    return op


def with_attribute(op: Any, name: str, value: Any) -> Any:
    setattr(op, name, value)
    return op


LEFT: dict[str, Callable[[], Any]] = {
    "a Lambda": lambda: v1.Lambda(lambda x: x),
    "a subclass": lambda: _OwnFlip(),
    "a hook": lambda: hooked(v1.RandomHorizontalFlip()),
    "a function in place of a method": lambda: with_attribute(
        v1.RandomHorizontalFlip(), "forward", lambda image: image
    ),
    "another operation": lambda: v1.ElasticTransform(),
    "a resize to the nearest pixels": lambda: v1.Resize(40, v1.InterpolationMode.NEAREST),
    "both versions": lambda: v2.RandomCrop(32),
    "a fill of floats": lambda: v1.RandomCrop(32, 4, fill=(1, 2, 3)),
    "a conversion by chance": lambda: v1.RandomApply(
        [v1.RandomVerticalFlip(), v1.PILToTensor()], 0.0
    ),
    "attributes that are stale": lambda: with_attribute(v2.Pad(1), "fill", 9),
}


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_chains_that_are_left(make: Callable[[], Any]) -> None:
    op = make()
    first = [v1.RandomVerticalFlip()] if type(op).__module__ == v1.__name__ else []
    dataset = dataset_of(
        "CIFAR10", v1.Compose([*first, v1.RandomVerticalFlip(), op, v1.ToTensor()])
    )
    assert path_of(dataset, batch_size=8) == "sync"
    assert_same(dataset, {"batch_size": 8, "shuffle": True}, stops=[None])


def dataset_with(**attributes: Any) -> Any:
    dataset = dataset_of("CIFAR10", cifar(v1))
    vars(dataset).update(attributes)
    return dataset


def own_set() -> Any:
    dataset = dataset_of("CIFAR10", cifar(v1))
    dataset.__class__ = _OwnSet
    return dataset


SETS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "a target_transform": lambda: (dataset_with(target_transform=lambda t: torch.rand(1)), {}),
    "a subclass": lambda: (own_set(), {}),
    "labels of another kind": lambda: (dataset_with(targets=[float(i) for i in range(40)]), {}),
    "images of another kind": lambda: (dataset_with(data=list(dataset_with().data)), {}),
    "a function for workers": lambda: (
        dataset_with(),
        {"num_workers": 2, "worker_init_fn": lambda worker: torch.rand(worker)},
    ),
    "another sampler": lambda: (dataset_with(), {"sampler": [3, 1, 2]}),
    "batches in any order": lambda: (dataset_with(), {"num_workers": 1, "in_order": False}),
}


@pytest.mark.parametrize("make", SETS.values(), ids=SETS)
def test_datasets_and_loaders_that_are_left(make: Callable[[], Any]) -> None:
    dataset, options = make()
    assert path_of(dataset, **options) != "array"
    assert_same(dataset, {"batch_size": 8, **options}, stops=[None])


def test_another_default_dtype_is_left() -> None:
    dataset = dataset_of("CIFAR10", cifar(v1))
    torch.set_default_dtype(torch.float64)
    try:
        assert path_of(dataset) == "sync"
        assert_same(dataset, {"batch_size": 8})
    finally:
        torch.set_default_dtype(torch.float32)


def test_tv_tensors_as_results_are_left() -> None:
    dataset = dataset_of("CIFAR10", v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip()]))
    assert path_of(dataset) == "array"
    with tv_tensors.set_return_type("TVTensor"):
        assert path_of(dataset) == "sync"
        torchs = list(play(DataLoader, dataset, {"batch_size": 8}, [None]))
        ours = list(play(fastloop.DataLoader, dataset, {"batch_size": 8}, [None]))
    assert list(map(type, ours)) == list(map(type, torchs))


# ---- what changes while an iterator is there


def change_p(dataset: Any) -> None:
    dataset.transform.transforms[1].p = 1.0


def change_chain(dataset: Any) -> None:
    dataset.transform.transforms.append(v1.RandomErasing(1.0))


def change_mean(dataset: Any) -> None:
    dataset.transform.transforms[-1].mean = [0.1, 0.2, 0.3]


def change_data(dataset: Any) -> None:
    dataset.data = 255 - dataset.data


def change_pixels(dataset: Any) -> None:
    dataset.data[:] //= 2


def change_transform(dataset: Any) -> None:
    dataset.transform = v1.Compose([v1.RandomVerticalFlip(), v1.ToTensor()])


def change_dtype(dataset: Any) -> None:
    torch.set_default_dtype(torch.float64)


CHANGES = (
    change_p, change_chain, change_mean, change_data, change_pixels, change_transform, change_dtype
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changes_between_batches_are_seen(change: Callable[[Any], None]) -> None:
    def run(make_loader: Any) -> Any:
        dataset = dataset_of("CIFAR10", cifar(v1))

        def between(number: int) -> None:
            if number == 1:
                change(dataset)

        try:
            return list(play(make_loader, dataset, {"batch_size": 7}, [None], between=between))
        finally:
            torch.set_default_dtype(torch.float32)

    assert_same_bits(run(fastloop.DataLoader), run(DataLoader))


def test_persistent_workers_keep_what_they_began_with() -> None:
    def run(make_loader: Any) -> Any:
        dataset = dataset_of("CIFAR10", cifar(v1))
        options = {"batch_size": 7, "num_workers": 2, "persistent_workers": True}
        played = play(make_loader, dataset, options, [None, None])
        first = [next(played)]
        dataset.transform.transforms[1].p = 1.0
        return first + list(played)

    assert_same_bits(run(fastloop.DataLoader), run(DataLoader))


# ---- the check


def test_a_difference_leaves_the_plan_to_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = dataset_of("CIFAR10", v1.Compose([v1.RandomVerticalFlip(1.0), *cifar(v1).transforms]))
    verification.verification_of.cache_clear()
    monkeypatch.setattr(verification, "same_bits", lambda a, b: False)
    before = torch.get_rng_state()
    with pytest.warns(RuntimeWarning, match="differ from torchvision's") as seen:
        loader = fastloop.DataLoader(dataset, batch_size=7)
        assert loader.stats().path == "sync"
        assert loader.stats().path == "sync"
    assert len(seen) == 1
    assert torch.equal(before, torch.get_rng_state())
    assert_same(dataset, {"batch_size": 7})


@pytest.mark.parametrize("wrong", ["pixels", "draws"])
def test_the_check_sees_a_difference(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    true_chain = torchvision_chain.read_chain

    def read_wrongly(transform: Any) -> Any:
        chain = true_chain(transform)
        if wrong == "pixels":
            chain.ops[-1] = type(chain.ops[-1])([0.5] * 3, [0.3] * 3)
        else:
            chain.ops.insert(1, ops.RandomHorizontalFlip(0))
        return chain

    verification.verification_of.cache_clear()
    monkeypatch.setattr(torchvision_chain, "read_chain", read_wrongly)
    dataset = dataset_of("CIFAR10", cifar(v1))
    with pytest.warns(RuntimeWarning, match="Please report"):
        assert path_of(dataset) == "sync"


@pytest.mark.parametrize("every", [1, 10, 19])
def test_one_sample_of_so_many_is_compared(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    monkeypatch.setenv("FASTLOOP_CHECK", str(every))
    verification.verification_of.cache_clear()
    dataset, options = dataset_of("CIFAR10", cifar(v1)), {"batch_size": 7, "shuffle": True}
    assert_same(dataset, options)
    verification.verification_of.cache_clear()
    asked: list[int] = []
    true_compare, true_make = compared.Original.compare, compared.make_batch

    def compare(self: Any, *how: Any) -> None:
        asked.append(-(-self.verification._count // 7))  # which batch; 0: at iter()
        true_compare(self, *how)

    def make(*how: Any) -> Any:
        batch = true_make(*how)
        batch[0][0, 0, 0, 0] += len(asked) > 2  # a wrong pixel in the second that is due
        return batch

    monkeypatch.setattr(compared.Original, "compare", compare)
    monkeypatch.setattr(compared, "make_batch", make)
    torch.manual_seed(3)
    expected = [*chain.from_iterable(DataLoader(dataset, **options)), torch.get_rng_state()]
    torch.manual_seed(3)
    with pytest.warns(RuntimeWarning, match="differ from torchvision's"):
        found = [*chain.from_iterable(fastloop.DataLoader(dataset, **options))]
    found.append(torch.get_rng_state())
    assert_same_bits(found, expected)
    first = -(-every // 7)
    assert asked == [0, first, max(first + 1, -(-2 * every // 7))]


def test_another_release_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    function = datasets.CIFAR10.__getitem__
    code = mutants.replaced(function, "self.data[index]", "self.data[index + 0]")
    monkeypatch.setattr(function, "__code__", code)
    loader = fastloop.DataLoader(dataset_of("CIFAR10", cifar(v1)))
    assert loader.stats().path == "sync"
    release = sys.modules["torchvision"].__version__
    assert loader.stats().why == f"fastloop does not know torchvision {release}"
    assert path_of(dataset_of("SVHN", cifar(v1))) == "array"


@VERSIONS
def test_a_changed_function_costs_only_the_plans_that_need_it(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of(version)
    function = originals.function_of("torchvision.transforms._functional_pil:vflip")
    code = mutants.replaced(function, "FLIP_TOP_BOTTOM", "FLIP_LEFT_RIGHT")
    monkeypatch.setattr(function, "__code__", code)
    ends = [module.RandomVerticalFlip(), module.RandomHorizontalFlip()]
    for flip, path in zip(ends, ("sync", "array"), strict=True):
        chain = module.Compose([module.RandomCrop(28), flip, module.ToTensor()])
        dataset = dataset_of("CIFAR10", chain)
        assert path_of(dataset) == path
        assert_same(dataset, {"batch_size": 8}, stops=[None])


def replace_method(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(v1.RandomHorizontalFlip, "forward", lambda self, image: image)


def wrap_method(patch: pytest.MonkeyPatch) -> None:
    before = datasets.CIFAR10.__getitem__

    @functools.wraps(before)
    def wrapped(self: Any, index: int) -> Any:
        return before(self, (index + 1) % len(self))

    patch.setattr(datasets.CIFAR10, "__getitem__", wrapped)


def replace_function(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(v1.functional, "to_tensor", lambda image: torch.zeros(3, 32, 32))


def replace_draw(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "rand", lambda *size: torch.ones(size))


def add_method(patch: pytest.MonkeyPatch) -> None:
    def getitems(self: Any, rows: list[int]) -> Any:
        return [(torch.zeros(3), row) for row in rows]

    patch.setattr(datasets.CIFAR10, "__getitems__", getitems, raising=False)


def replace_image(patch: pytest.MonkeyPatch) -> None:
    before = Image.fromarray
    patch.setattr(Image, "fromarray", lambda array: before(255 - array))


def replace_crop(patch: pytest.MonkeyPatch) -> None:
    before = Image.Image.crop
    patch.setattr(Image.Image, "crop", lambda self, box: before(self, (0, 0, 32, 32)))


def replace_array(patch: pytest.MonkeyPatch) -> None:
    before = np.array
    patch.setattr(np, "array", lambda *args, **named: 255 - before(*args, **named))


def replace_sub(patch: pytest.MonkeyPatch) -> None:
    before = torch.Tensor.sub_
    patch.setattr(torch.Tensor, "sub_", lambda self, other: before(self, other).mul_(2))


REPLACEMENTS = (
    replace_method, wrap_method, replace_function, replace_draw,
    add_method, replace_image, replace_crop, replace_array, replace_sub,
)  # fmt: skip


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_functions_that_are_replaced_between_batches(
    monkeypatch: pytest.MonkeyPatch, replace: Callable[[Any], None]
) -> None:
    """The first batches have been compared; a function that is put back is seen at iter()."""

    def run(make_loader: Any) -> Any:
        def between(number: int) -> None:
            if number == 1:
                replace(monkeypatch)

        options, dataset = {"batch_size": 7}, dataset_of("CIFAR10", cifar(v1))
        found = list(play(make_loader, dataset, options, [None], between=between))
        monkeypatch.undo()
        return found + list(play(make_loader, dataset, options, [None]))

    assert_same_bits(run(fastloop.DataLoader), run(DataLoader))


@pytest.mark.parametrize("replace", REPLACEMENTS)
@pytest.mark.parametrize("is_first", [False, True])
def test_functions_that_were_replaced(
    monkeypatch: pytest.MonkeyPatch, replace: Callable[[Any], None], is_first: bool
) -> None:
    dataset = dataset_of("CIFAR10", cifar(v1))
    if is_first:
        originals.methods_of.cache_clear()
        verification.verification_of.cache_clear()
    else:
        assert path_of(dataset) == "array"
    replace(monkeypatch)
    assert path_of(dataset) == "sync"
    assert_same(dataset, {"batch_size": 8}, stops=[None])
    monkeypatch.undo()
    originals.methods_of.cache_clear()
    assert path_of(dataset) == "array"


def test_nothing_is_left_behind() -> None:
    dataset = dataset_of("CIFAR10", cifar(v1))
    for _ in range(2):
        list(fastloop.DataLoader(dataset, batch_size=7, num_workers=2))
    gc.collect()
    count = len(gc.get_objects())
    for _ in range(5):
        list(fastloop.DataLoader(dataset, batch_size=7, num_workers=2))
    gc.collect()
    assert len(gc.get_objects()) < count + 200
