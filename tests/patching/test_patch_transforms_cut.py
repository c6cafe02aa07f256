"""Chains of torchvision with operations that fastloop does not know: Python calls these in their
place, and plans do the rest. What each operation meets, what comes out, and the states of all three
generators after each image are torchvision's alone."""

from __future__ import annotations

import gc
import io
import os
import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from vision_cases import MEAN, STD, random_color, random_geometry, status, v2

import fastloop
from fastloop.adapters import torchvision_parts

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from PIL import Image
from torchvision import transforms as v1

SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", "20261129"))
RUNS = int(os.environ.get("FASTLOOP_FUZZ", "120"))
SIDE = 37
MODULES = pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])


def make_images(count: int, info: bool = True) -> list[Any]:
    """Return images of PIL; some have an `info`, and some come from files."""
    numbers, images = np.random.default_rng(SEED), []
    for number in range(count):
        image = Image.fromarray(numbers.integers(0, 256, (SIDE, SIDE, 3), np.uint8))
        if info and number % 3 == 0:
            image.info["dpi"] = 72, number
        if info and number % 4 == 1:
            file = io.BytesIO()
            image.save(file, "JPEG", dpi=(72, 72))
            image = Image.open(file)
        images.append(image)
    return images


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    yield
    fastloop.unpatch("transforms")


def show(value: Any) -> Any:
    """Return all that an operation can see of an image."""
    if isinstance(value, Image.Image):
        return type(value), value.mode, value.size, value.info, value.readonly, value.tobytes()
    if isinstance(value, Tensor):
        pure = value.as_subclass(Tensor)
        return type(value), value.dtype, value.shape, value.stride(), pure.numpy().tobytes()
    if isinstance(value, (tuple, list)):
        return [show(part) for part in value]
    return value.tobytes() if isinstance(value, np.ndarray) else value


def states() -> Any:
    name, words, *rest = np.random.get_state()
    return bytes(torch.get_rng_state().numpy()), random.getstate(), name, words.tobytes(), rest


class Watched:
    """An operation of a user, which notes what it meets. Draws from all generators."""

    log: ClassVar[list[Any]] = []

    def __init__(self, how: str = "turn") -> None:
        self.how, self.calls = how, 0

    def __call__(self, image: Any) -> Any:
        self.calls += 1
        self.log.append((self.how, show(image), states()))
        chance = torch.rand(()).item(), random.random(), np.random.rand()
        if self.how == "raise" and chance[0] < 0.3:
            raise ValueError(f"drawn {chance}")
        if not isinstance(image, Image.Image):
            return image
        if self.how == "draw in place":
            image.putpixel((0, 0), (1, 2, 3) if image.mode == "RGB" else 1)
        kinds: dict[str, Callable[[], Any]] = {
            "turn": lambda: image.transpose(int(6 * chance[1])),
            "resize": lambda: image.resize((20 + int(9 * chance[2]), 31)),
            "grey": lambda: image.convert("L") if chance[0] < 0.4 else image,
            "L": lambda: image.convert("L"),
            "RGBA": lambda: image.convert("RGBA") if chance[1] < 0.4 else image,
            "bytes": lambda: v1.functional.pil_to_tensor(image).contiguous(),
            "floats": lambda: v1.functional.to_tensor(image),
            "pair": lambda: (image, 3) if chance[2] < 0.2 else image,
            "None": lambda: None if chance[2] < 0.2 else image,
        }
        return kinds.get(self.how, lambda: image)()

    @classmethod
    def take_log(cls) -> list[Any]:
        log, Watched.log = Watched.log, []
        return log


def play(transform: Any, images: list[Any]) -> list[Any]:
    """Return what comes out, and the generators' states, for each image."""
    torch.manual_seed(5)
    random.seed(6)
    np.random.seed(7)
    found: list[Any] = []
    for image in images:
        try:
            found.append(show(transform(image)))
        except Exception as error:
            found.append((type(error), str(error)))
        found.append(states())
    return [*found, *Watched.take_log()]


def assert_same(make: Callable[[], Any], images: Callable[[], list[Any]]) -> Any:
    """Run a new transform by torchvision and by fastloop. Return fastloop's."""
    Watched.log = []
    expected = play(make(), images())
    fastloop.patch("transforms", verbose=False)
    transform = make()
    found = play(transform, images())
    assert len(found) == len(expected)
    for place, (ours, torchs) in enumerate(zip(found, expected, strict=True)):
        assert ours == torchs, place
    return transform


def tail(module: Any) -> list[Any]:
    if module is v1:
        return [v1.ToTensor(), v1.Normalize(MEAN, STD)]
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


HOWS = "turn", "resize", "grey", "RGBA", "bytes", "floats", "pair", "None", "raise", "draw in place"


@MODULES
@pytest.mark.parametrize("how", HOWS)
def test_one_operation_of_a_user(module: Any, how: str) -> None:
    def make() -> Any:
        first = module.RandomResizedCrop(24), module.RandomHorizontalFlip()
        after = module.RandomVerticalFlip(), *tail(module)
        return module.Compose([*first, Watched(how), *after])

    transform = assert_same(make, lambda: make_images(24))
    assert transform.transforms[2].calls == 24
    # Resizes by Pillow, which Watched may call, count as well.
    assert status().native >= 24 - torchvision_parts._CHECKED, status()
    assert status().fallbacks["Watched, operation 3, runs in Python"] == 24


@MODULES
def test_gates_are_drawn_before_python_is_asked(module: Any) -> None:
    def make() -> Any:
        held = [module.Compose([Watched(), module.Resize(30)]), Watched("resize")]
        gate = module.RandomApply(held, 0.3)
        return module.Compose([module.RandomResizedCrop(24), gate, *tail(module)])

    transform = assert_same(make, lambda: make_images(40))
    calls = [transform.transforms[1].transforms[0].transforms[0].calls]
    calls += [transform.transforms[1].transforms[1].calls]
    assert calls[0] == calls[1] and 4 < calls[0] < 24
    assert status().native >= 40 - torchvision_parts._CHECKED
    assert sum(status().fallbacks.values()) == 2 * calls[0]


@MODULES
def test_containers_are_read(module: Any) -> None:
    def make() -> Any:
        inner = nn.Sequential(module.RandomResizedCrop(24), nn.Identity())
        after = nn.Sequential(module.RandomVerticalFlip(), nn.Identity())
        return module.Compose([inner, nn.Identity(), after, module.PILToTensor()])

    assert_same(make, lambda: make_images(20))
    assert status().native == 20 - torchvision_parts._CHECKED and not status().fallbacks


@MODULES
def test_an_image_of_pil_may_come_out(module: Any) -> None:
    def make() -> Any:
        return module.Compose([module.RandomResizedCrop(24), module.RandomHorizontalFlip()])

    assert_same(make, lambda: make_images(20))
    assert status().native == 20 - torchvision_parts._CHECKED and not status().fallbacks


@MODULES
def test_an_image_that_may_stay_itself_is_not_copied(module: Any) -> None:
    """torchvision returns the image if it has the size, and a user may write into the result."""
    fastloop.patch("transforms", verbose=False)
    transform = module.Compose([module.Resize((SIDE, SIDE)), Watched(), *tail(module)])
    met = []
    transform.transforms[1] = lambda image: met.append(image) or image
    images = make_images(8, info=False)
    for image in images:
        transform(image)
    assert all(a is b for a, b in zip(met, images, strict=True))
    assert status().native == 8 - torchvision_parts._CHECKED


@MODULES
def test_a_crop_of_a_tensor_stays_a_view(module: Any) -> None:
    """torchvision's crops of tensors share memory with the whole tensor."""
    sizes: list[int] = []

    def note(image: Tensor) -> Tensor:
        sizes.append(image.untyped_storage().nbytes())
        return image

    first = module.RandomResizedCrop(24), module.PILToTensor(), module.CenterCrop(20)
    transform = module.Compose([*first, note, module.ConvertImageDtype(torch.float32)])
    assert_same(lambda: transform, lambda: make_images(10))
    assert sizes == [3 * 24 * 24] * 20 and status().native == 10 - torchvision_parts._CHECKED


@MODULES
def test_what_padding_does_to_info(module: Any) -> None:
    crops = [{"padding": 3}, {"padding": None, "pad_if_needed": True}, {"padding": 0}]
    for options in crops:
        for size in (SIDE - 3, SIDE + 2):
            parts = [module.Resize(SIDE + 1), module.RandomCrop(size, **options), Watched()]
            assert_same(lambda parts=parts: module.Compose(parts), lambda: make_images(12))  # type: ignore[misc]
            fastloop.unpatch("transforms")
    parts = [
        module.Resize(20),
        module.RandomApply([module.Pad(2), module.CenterCrop(20)]),
        Watched(),
    ]
    assert_same(lambda: module.Compose(parts), lambda: make_images(30))
    assert status().native > 20


@MODULES
@pytest.mark.parametrize("is_grey", [False, True])
def test_what_colours_do_to_info(module: Any, is_grey: bool) -> None:
    ranges = [(0.4,), (0, 0.4), (0, 0, 0.4), (0, 0, 0, 0.2), (0.4, 0.4, 0.4, 0.2)]
    ops = [module.RandomApply([module.ColorJitter(*each)]) for each in ranges]
    ops += [module.RandomGrayscale(0.5), module.Grayscale(1), module.Grayscale(3)]
    ops += [module.RandomEqualize(), module.RandomPosterize(3), module.RandomAdjustSharpness(2)]
    ops += [module.RandomAutocontrast(), module.RandomSolarize(99), module.RandomInvert()]
    ops.append(module.RandomApply([module.RandomInvert(), module.ColorJitter(0.4)]))
    if module is v2:
        ops += [v2.RandomChoice([v2.RandomInvert(1), v2.ColorJitter(0.4)]), v2.RandomOrder(ops[:3])]
    grey = [Watched("L")] if is_grey else []
    for op in ops:
        parts = [*grey, module.CenterCrop(30), op, Watched()]
        assert_same(lambda parts=parts: module.Compose(parts), lambda: make_images(16))  # type: ignore[misc]
        assert status().native == 13, op
        fastloop.unpatch("transforms")


def test_versions_may_be_mixed() -> None:
    def make() -> Any:
        return v1.Compose([v1.RandomResizedCrop(24), v2.Resize(20), v2.ToTensor()])

    assert_same(make, lambda: make_images(20))
    assert status().native == 20 - torchvision_parts._CHECKED and not status().fallbacks


def test_a_change_in_the_middle_is_seen() -> None:
    """An operation of a user changes an operation that stands behind it."""

    class Changing(Watched):
        def __call__(self, image: Any) -> Any:
            self.behind.p = 1.0 if self.calls > 9 else 0.1
            return super().__call__(image)

    def make() -> Any:
        change = Changing("none")
        change.behind = v1.RandomHorizontalFlip()
        parts = [v1.RandomResizedCrop(24), change, change.behind, *tail(v1)]
        return v1.Compose(parts)

    assert_same(make, lambda: make_images(24))
    assert status().native > 10


def test_operations_that_change_are_seen() -> None:
    def make() -> Any:
        return v1.Compose([v1.RandomResizedCrop(24), Watched(), *tail(v1)])

    transform = make()
    fastloop.patch("transforms", verbose=False)
    play(transform, make_images(8))
    transform.transforms.insert(1, v1.Pad(2))
    found = play(transform, make_images(8))
    fastloop.unpatch("transforms")
    assert found == play(transform, make_images(8))


def test_nothing_is_done_if_plans_do_not_pay() -> None:
    def make() -> Any:
        return v1.Compose([v1.RandomHorizontalFlip(), Watched("floats"), v1.Normalize(MEAN, STD)])

    assert_same(make, lambda: make_images(12))
    assert status().native == 0 and list(status().fallbacks.values()) == [12]


def test_a_transform_with_a_users_operation_is_forgotten() -> None:
    transform = v1.Compose([v1.RandomResizedCrop(24), Watched(), *tail(v1)])
    fastloop.patch("transforms", verbose=False)
    play(transform, make_images(6))
    refs = weakref.ref(transform), weakref.ref(transform.transforms[1])
    del transform
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_a_plan_that_differs_leaves_its_own_operations_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true_compile = torchvision_parts.chains.Chain.compile

    class Wrong:
        def __init__(self, draws: Any) -> None:
            self.draws = draws

        def apply(self, image: Any, out: Tensor, generator: torch.Generator) -> int:
            applied: int = self.draws.apply(image, out, generator)
            out[0, 0, 0] += 1
            return applied

    def compile_wrongly(self: Any, *args: Any) -> Any:
        plan, draws = true_compile(self, *args)
        return plan, Wrong(draws) if self.makes_pil else draws

    monkeypatch.setattr(torchvision_parts.chains.Chain, "compile", compile_wrongly)

    def make() -> Any:
        return v1.Compose([v1.RandomResizedCrop(24), Watched(), *tail(v1)])

    with pytest.warns(RuntimeWarning, match="differ from torchvision's") as seen:
        transform = assert_same(make, lambda: make_images(20))
    assert len(seen) == 1 and transform.transforms[1].calls == 20
    assert status().native >= 20 - torchvision_parts._CHECKED  # the plan behind


# ---- random chains


def random_operation(any_of: random.Random, module: Any, depth: int = 0) -> Any:
    kind = any_of.randrange(12 if depth < 2 else 8)
    if kind == 0:
        return nn.Identity()
    if kind == 1:
        return module.Lambda(lambda image: image)
    if kind == 2:
        return module.GaussianBlur(3, (0.1, 2.0))
    if kind == 3:
        return random_color(any_of, module, (12, 12), depth)
    if kind < 7:
        return Watched(any_of.choice(HOWS))
    if kind == 7:
        return any_of.choice(random_geometry(any_of, module, 24) or [nn.Identity()])
    parts = [random_operation(any_of, module, depth + 1) for _ in range(any_of.randint(1, 3))]
    parts += random_geometry(any_of, module, 24)[:2]
    any_of.shuffle(parts)
    if kind == 8:
        return module.RandomApply(parts, any_of.choice((0, 0.3, 0.5, 1)))
    if kind == 9:
        return module.RandomChoice(parts)
    if kind == 10:
        return module.RandomOrder(parts)
    return module.Compose(parts)


def random_parts(seed: int) -> Any:
    any_of = random.Random(seed)
    module = any_of.choice((v1, v2))
    parts = random_geometry(any_of, module, SIDE)
    for _ in range(any_of.randint(1, 3)):
        parts.insert(any_of.randint(0, len(parts)), random_operation(any_of, module))
    if any_of.random() < 0.8:
        parts += tail(any_of.choice((module, module, v1, v2)))
    if any_of.random() < 0.2:
        parts.append(module.RandomErasing(0.5))
    return any_of.choice((v1, v2)).Compose(parts)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_random_chains_with_operations_of_users() -> None:
    counts: Counter[str] = Counter()
    for run in range(RUNS):
        seed = SEED + run
        info = run % 2 == 0
        try:
            assert_same(
                lambda seed=seed: random_parts(seed), lambda info=info: make_images(14, info)
            )  # type: ignore[misc]
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {random_parts(seed)}") from error
        counts["native"] += status().native > 0
        counts["cut"] += status().native > 0 and bool(status().fallbacks)
        fastloop.unpatch("transforms")
    assert counts["native"] > RUNS // 3 and counts["cut"] > RUNS // 4, counts
