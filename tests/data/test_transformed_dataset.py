"""ArrayDataset with transforms: samples, items, epochs, parameters, copies, and what it refuses."""

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_same
from image_draws import Key, Op, draw
from image_reference import replay

from fastloop import ArrayDataset
from fastloop import transforms as T

ROWS = 7
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OPS: list[Op] = [
    ("RandomCrop", {"size": 8, "padding": 3, "fill": (9, 99, 200)}),
    ("RandomHorizontalFlip", {}),
    ("ToDtype", {"dtype": torch.float32, "scale": True}),
    ("Normalize", {"mean": MEAN, "std": STD}),
    ("RandomErasing", {"p": 0.7, "value": (0.5, -2, 7)}),
]


def chain(ops: list[Op] = OPS) -> T.Compose:
    return T.Compose([getattr(T, name)(**args) for name, args in ops])


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, shape, np.uint8)


IMAGES = pixels(ROWS, 3, 9, 10)


def truth(dataset: ArrayDataset, index: int, ops: list[Op] = OPS, **key: Any) -> torch.Tensor:
    """By plain torch, from the parameters that the dataset tells."""
    return replay(ops, dataset.params(index, **key), torch.from_numpy(IMAGES.copy())[index])


def dataset_of(images: Any = IMAGES, transform: Any = None, **kwargs: Any) -> ArrayDataset:
    return ArrayDataset(images, np.arange(ROWS), transform=transform or chain(), **kwargs)


# ---- samples


def test_samples_are_what_the_parameters_make_of_the_rows() -> None:
    dataset = dataset_of(seed=5)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        for i in range(ROWS):
            image, label = dataset[i]
            assert_same(image, truth(dataset, i))
            assert label == i


@pytest.mark.parametrize(
    "ops",
    [
        [("Pad", {"padding": 2, "fill": 0.9})],
        [("ToDtype", {"dtype": torch.float32}), ("Pad", {"padding": 2, "fill": 0.9})],
        [("ToDtype", {"dtype": torch.uint8, "scale": True})],
        [("ToDtype", {"dtype": torch.float16, "scale": True})],
        [
            ("CenterCrop", {"size": 30}),
            ("ToDtype", {"dtype": torch.bfloat16, "scale": True}),
            ("Normalize", {"mean": MEAN, "std": STD}),
            ("CenterCrop", {"size": 33}),
            ("Normalize", {"mean": (0.1,), "std": (3.0,)}),
            ("Pad", {"padding": (1, 0), "fill": (1, 2, 3)}),
        ],
        [
            ("ToDtype", {"dtype": torch.float16, "scale": True}),
            ("Normalize", {"mean": MEAN, "std": STD}),
            ("ToDtype", {"dtype": torch.float32}),
        ],
        [("Pad", {"padding": 3, "fill": (250, 1, 120)}), ("Resize", {"size": (5, 6)})],
        [("Resize", {"size": 5}), ("Resize", {"size": (7, 3), "interpolation": "nearest"})],
    ],
    ids=lambda ops: " ".join(name for name, _ in ops),
)
def test_values_and_fills_go_through_what_comes_behind_them(ops: list[Op]) -> None:
    dataset = dataset_of(transform=chain(ops))
    assert_same(dataset[2][0], truth(dataset, 2, ops))


@pytest.mark.parametrize(
    ("size", "most", "result"), [((9, 10), 20, (18, 20)), ((10, 3), 5, (5, 1))]
)
def test_resize_of_none_makes_the_longer_edge_max_size(
    size: tuple[int, int], most: int, result: tuple[int, int]
) -> None:
    images = torch.from_numpy(pixels(2, 3, *size))
    transform = T.Compose([T.Pad(0), T.Resize(None, max_size=most)])
    ops: list[Op] = [("Resize", {"size": result})]
    assert_same(
        ArrayDataset(images, transform=transform)[1][0], replay(ops, [{"op": "Resize"}], images[1])
    )


def test_a_dtype_of_bytes_changes_the_layout_alone() -> None:
    dataset = dataset_of(transform=T.ToDtype(torch.uint8), out_layout="HWC")
    assert_same(dataset[1][0], torch.from_numpy(IMAGES[1].transpose(1, 2, 0).copy()))


LAYOUTS: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "array": lambda a, d: a,
    "tensor": lambda a, d: torch.from_numpy(a.copy()),
    "reversed": lambda a, d: a[::-1, ::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1, ::-1],
    "Fortran": lambda a, d: np.asfortranarray(a),
    "sliced": lambda a, d: np.repeat(np.repeat(a, 2, 3), 3, 2)[:, :, ::3, ::2],
    "read-only": lambda a, d: np.frombuffer(a.tobytes(), np.uint8).reshape(a.shape),
    "subclass": lambda a, d: torch.from_numpy(a.copy()).as_subclass(Tagged),
    "memmap": lambda a, d: _saved(a, d),
    "path": lambda a, d: _saved(a, d).filename,
    "reversed memmap": lambda a, d: _saved(a[:, :, ::-1], d)[:, :, ::-1],
}


class Tagged(torch.Tensor):
    pass


def _saved(array: np.ndarray, folder: Path) -> Any:
    np.save(folder / "images.npy", array)
    return np.load(folder / "images.npy", mmap_mode="r")


@pytest.mark.parametrize("out_layout", ["CHW", "HWC", "channels_last"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_every_kind_of_field_and_layout_gives_the_same_pixels(
    make: Callable[[np.ndarray, Path], Any], layout: str, out_layout: str, tmp_path: Path
) -> None:
    images = IMAGES if layout == "CHW" else IMAGES.transpose(0, 2, 3, 1).copy()
    dataset = dataset_of(make(images, tmp_path), layout=layout, out_layout=out_layout)
    for i in (0, 4):
        image, expected = dataset[i][0], truth(dataset, i)
        if out_layout == "channels_last":
            assert image.stride() == (1, 8 * 3, 3)
        assert_same(image, expected.permute(1, 2, 0) if out_layout == "HWC" else expected)


def test_each_field_has_its_own_transform() -> None:
    small = T.Compose([T.Resize((3, 4)), T.ToDtype(torch.float16)])
    for key in ("image", "other"):
        fields: dict[str, Any] = {"image": IMAGES, "label": np.arange(ROWS), "other": IMAGES}
        dataset = ArrayDataset(**fields, transform={key: small, "label": None})
        sample = dataset[3]
        assert list(sample) == list(fields)
        for name in ("image", "other"):
            assert sample[name].shape == ((3, 3, 4) if name == key else (3, 9, 10))
    both = ArrayDataset(IMAGES, IMAGES, transform={0: small, 1: chain()})
    assert [image.dtype for image in both[3]] == [torch.float16, torch.float32]


def test_fields_with_equal_operations_have_equal_parameters() -> None:
    """So a picture and its mask stay in step."""
    flip = T.RandomHorizontalFlip()
    crop = T.RandomCrop(5)
    dataset = ArrayDataset(
        a=IMAGES, b=IMAGES, transform={"a": T.Compose([crop, flip]), "b": T.Compose([crop, flip])}
    )
    for i in range(ROWS):
        assert_same(dataset[i]["a"], dataset[i]["b"])
        assert dataset.params(i, field="a") == dataset.params(i, field="b")


# ---- items


def test_items_are_indices_or_pairs_of_index_and_view() -> None:
    dataset = dataset_of(seed=1)
    for i in (0, 6):
        for view in (0, 1, 255):
            expected = truth(dataset, i, view=view)
            for same in (i, i - ROWS, np.int64(i), torch.tensor(i)):
                assert_same(dataset[same, view][0], expected)
                assert dataset[same, view][1] == i
                assert dataset.params(i, view=view) == dataset.params(int(same), view=view)
        assert_same(dataset[i][0], dataset[i, 0][0])
        assert not torch.equal(dataset[i, 0][0], dataset[i, 1][0])
    items = [2, (2, 1), np.int64(-1)]
    for one, same in zip(dataset.__getitems__(items), items, strict=True):
        assert_same(one, dataset[same])
    assert_same(torch.utils.data.Subset(dataset, [5, 3])[1], dataset[3])


@pytest.mark.parametrize(
    ("item", "kind", "text"),
    [
        (1.0, TypeError, r"^a sample must be an index, \(index, view\), or a slice, .* got 1.0$"),
        ("0", TypeError, "^a sample must be .* got '0'$"),
        (None, TypeError, "^a sample must be .* got None$"),
        ((1, 2, 3), TypeError, r"^a sample must be .* got \(1, 2, 3\)$"),
        ((1, 2.0), TypeError, r"^a sample must be .* got \(1, 2.0\)$"),
        (ROWS, IndexError, f"^index {ROWS} is out of bounds for a length of {ROWS}$"),
        (-ROWS - 1, IndexError, f"^index {-ROWS - 1} is out of bounds"),
        ((2**70, 0), IndexError, "is out of bounds"),
        ((0, 256), ValueError, r"^view must be an int in \[0, 255\], got 256$"),
        ((0, -1), ValueError, "^view must be an int in .*, got -1$"),
    ],
)
def test_items_that_are_no_sample(item: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        dataset_of()[item]


@pytest.mark.parametrize("index", [(0, 1), [0, 1], 1.0, slice(2), "0"], ids=repr)
def test_params_are_of_one_sample(index: Any) -> None:
    with pytest.raises(TypeError, match=f"^a sample must be .*{re.escape(repr(index))}"):
        dataset_of().params(index)


def test_without_transforms_slices_and_lists_are_taken_as_ever() -> None:
    dataset = ArrayDataset(IMAGES)
    assert_same(dataset[2:4], (torch.from_numpy(IMAGES.copy())[2:4],))
    assert_same(dataset[[1, 2]], (torch.from_numpy(IMAGES.copy())[[1, 2]],))
    assert_same(dataset.__getitems__([1]), [(torch.from_numpy(IMAGES.copy())[1],)])
    dataset.set_epoch(3)
    assert dataset._epoch is None
    with pytest.raises(
        TypeError, match=r"^transform must be one that fastloop runs for params\(\), got None"
    ):
        dataset.params(0)


# ---- parameters


def test_parameters_are_of_the_epoch_asked_for() -> None:
    dataset = dataset_of(seed=2)
    every = [[dataset.params(i, epoch=e) for i in range(ROWS)] for e in range(4)]
    assert all(every[0] != other for other in every[1:])
    for e in (2, 0):
        dataset.set_epoch(e)
        assert [dataset.params(i) for i in range(ROWS)] == every[e]
    assert every != [[dataset_of(seed=3).params(i, epoch=e) for i in range(ROWS)] for e in range(4)]


def test_parameters_are_one_dict_for_each_operation() -> None:
    ops = [
        *(T.Pad(1), T.CenterCrop(9), T.RandomCrop(8), T.Resize(12), T.RandomResizedCrop(6)),
        *(T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.ToDtype(torch.float32)),
        *(T.Normalize(MEAN, STD), T.RandomErasing(1.0)),
    ]
    params = dataset_of(transform=T.Compose(ops)).params(0)
    assert [each.pop("op") for each in params] == [type(op).__name__ for op in ops]
    keys = [set(each) for each in params]
    box = {"top", "left", "height", "width"}
    assert keys[2:] == [
        *(box | {"padding"}, set(), box, {"flip"}, {"flip"}, set(), set(), box | {"erase"})
    ]


def test_parameters_are_drawn_for_each_operation_by_itself() -> None:
    ops: list[Op] = [
        ("RandomCrop", {"size": (9, 7), "padding": (1, 2, 3, 4), "pad_if_needed": True}),
        ("RandomHorizontalFlip", {}),
        ("RandomCrop", {"size": (11, 5), "pad_if_needed": True}),
        ("RandomHorizontalFlip", {"p": 0.4}),
        ("RandomErasing", {"p": 1.0}),
    ]
    dataset = dataset_of(transform=chain(ops), seed=2**63 + 5)
    for i in range(ROWS):
        drawn = draw(ops, Key(2**63 + 5, 8, i, 3), (9, 10))
        for each in drawn:
            each.pop("out")
        assert dataset.params(i, epoch=8, view=3) == drawn


def test_parameters_of_one_field_among_several() -> None:
    dataset = ArrayDataset(a=IMAGES, b=IMAGES, c=IMAGES, transform={"a": chain(), "c": T.Pad(1)})
    assert dataset.params(1, field="c")[0]["op"] == "Pad"
    with pytest.raises(ValueError, match=r"^field must be one of 'a', 'c', got None"):
        dataset.params(1)
    with pytest.raises(ValueError, match=r"^field must be one of 'a', 'c', got 'b'"):
        dataset.params(1, field="b")


@pytest.mark.parametrize(
    ("epoch", "kind"), [(-1, ValueError), (2**32, ValueError), (0.5, TypeError)]
)
def test_epochs_that_there_are_not(epoch: Any, kind: type[Exception]) -> None:
    dataset = dataset_of()
    with pytest.raises(kind):
        dataset.set_epoch(epoch)
    with pytest.raises(kind):
        dataset.params(0, epoch=epoch)


# ---- one image


def test_an_operation_alone_does_what_the_dataset_does() -> None:
    image = torch.from_numpy(IMAGES[0].copy())
    assert_same(T.RandomHorizontalFlip(1.0)(image), image.flip(2))
    assert_same(T.RandomVerticalFlip(0.0)(image), image)
    assert_same(T.CenterCrop(3)(image), image[:, 3:6, 4:7].contiguous())
    values = T.Compose([T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)])
    assert_same(values(image), replay(OPS[2:4], [{"op": o} for o, _ in OPS[2:4]], image))
    assert_same(T.ToDtype(torch.bfloat16)(image), image.bfloat16())


def test_torchs_seed_reproduces_what_an_operation_alone_draws() -> None:
    op, image = chain(), torch.from_numpy(IMAGES[0].copy())
    torch.manual_seed(4)
    first = [op(image) for _ in range(5)]
    torch.manual_seed(4)
    for result in first:
        assert_same(chain()(image), result)
    assert any(not torch.equal(result, first[0]) for result in first)
    state = torch.get_rng_state()
    T.Compose([T.CenterCrop(4), T.ToDtype(torch.float32)])(image)
    assert torch.equal(torch.get_rng_state(), state)


def test_one_operation_takes_images_of_any_size() -> None:
    op = T.RandomCrop(2)
    for shape in [(3, 4, 5), (1, 2, 2), (3, 4, 5), (4, 9, 9)]:
        assert op(torch.zeros(shape, dtype=torch.uint8)).shape == (shape[0], 2, 2)


# ---- copies and texts


@pytest.mark.parametrize("how", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_copies_give_the_same_samples(how: Callable[[Any], Any]) -> None:
    dataset = dataset_of(seed=9, out_layout="HWC")
    dataset.set_epoch(4)
    clone = how(dataset)
    assert repr(clone) == repr(dataset)
    for i in range(ROWS):
        assert_same(clone[i], dataset[i])
    dataset.set_epoch(5)
    assert clone.params(0) == dataset.params(0, epoch=4)


def test_texts_say_what_becomes_of_each_field() -> None:
    dataset = ArrayDataset(image=IMAGES, label=np.arange(ROWS), transform=chain(), seed=6)
    shape = "(7, 3, 9, 10)"
    assert repr(dataset) == (
        f"ArrayDataset(image: uint8 {shape} -> float32 (3, 8, 8), label: int64 (7,))"
    )
    lines = dataset.explain().split("\n")
    assert lines[0].startswith(
        "field 'image': uint8 (3, 9, 10) CHW -> float32 (3, 8, 8) CHW, native, "
    )
    assert [line.strip().partition("(")[0] for line in lines[1:-3]] == [name for name, _ in OPS]
    assert "to float32; " in lines[3]
    assert lines[-2] == "field 'label': int64 (7,)"
    assert lines[-1].startswith(
        "random parameters: seed 6, epoch 0, counted by fastloop's loaders; "
    )
    dataset.set_epoch(2)
    assert dataset.explain().endswith("random parameters: seed 6, epoch 2, set by set_epoch()")


@pytest.mark.parametrize(
    ("count", "line"),
    [
        (5, "the finished result is uploaded, because RandomErasing fills channel 0 with a value "),
        (4, "uint8 is uploaded, and the device looks numbers up"),
        (2, "the finished result is uploaded, because the results of the plan are bytes"),
    ],
)
def test_texts_say_what_a_device_does(count: int, line: str) -> None:
    *_, last = dataset_of(transform=chain(OPS[:count])).explain().split("\n")[:-2]
    assert last.startswith(f"  with workers and a CUDA device: {line}")


# ---- what is refused


def crop_of(size: Any) -> Any:
    return lambda: dataset_of(transform=T.RandomCrop(size))


FLOAT = T.ToDtype(torch.float32)
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (crop_of(11), ValueError, "^field 0: .*RandomCrop.*11.*pad_if_needed"),
    (
        lambda: dataset_of(transform=T.Pad(12, padding_mode="reflect")),
        ValueError,
        "^field 0: .*Pad.*12",
    ),
    (
        lambda: dataset_of(transform=T.Normalize(MEAN, STD)),
        ValueError,
        r"^field 0: Normalize: images must be float, got torch.uint8 \(put ToDtype",
    ),
    (
        lambda: dataset_of(transform=T.Compose([FLOAT, T.Normalize([1, 2], [1])])),
        ValueError,
        r"^field 0: Normalize: mean must be one number, or one for each of 3 channels, got \[1.0",
    ),
    (
        lambda: dataset_of(transform=T.Compose([FLOAT, T.Resize(4)])),
        ValueError,
        "^field 0: Resize must stand before ToDtype: it resizes uint8 images$",
    ),
    (
        lambda: dataset_of(transform=T.Compose([FLOAT, T.ToDtype(torch.uint8)])),
        ValueError,
        "^field 0: ToDtype: dtype must be a float type after a ToDtype .*, got torch.uint8$",
    ),
    (
        lambda: dataset_of(transform=T.Pad(1, fill=(1, 2))),
        ValueError,
        r"^field 0: Pad: fill must be one number, or one for each of 3 channels, got \[1.0, 2.0\]$",
    ),
    (
        lambda: dataset_of(transform=T.RandomErasing(value=(1, 2, 3, 4))),
        ValueError,
        "^field 0: RandomErasing: value must be one .* 3 channels, got .1.0, 2.0, 3.0, 4.0.$",
    ),
    (
        lambda: dataset_of(transform=T.RandomCrop(4, 1, fill=256)),
        ValueError,
        r"^field 0: RandomCrop: fill must be in \[0, 255\] for .*, got \[256.0\] .*after ToDt",
    ),
    (
        lambda: dataset_of(transform=T.RandomErasing(value=-0.5)),
        ValueError,
        "^field 0: RandomErasing: value must be in .* for uint8 images, got .-0.5.",
    ),
    (
        lambda: dataset_of(transform=T.Compose([T.RandomVerticalFlip()] * 9)),
        ValueError,
        "^field 0: a plan must have at most 8 of RandomVerticalFlip$",
    ),
    (
        lambda: dataset_of(IMAGES.astype(np.float32)),
        TypeError,
        "^field 0: images with a transform must be uint8, got torch.float32 ..x . 255..round",
    ),
    (
        lambda: dataset_of(IMAGES.astype(np.int16)),
        TypeError,
        "^field 0: images with a transform must be uint8, got torch.int16",
    ),
    (
        lambda: dataset_of(IMAGES[:, 0]),
        ValueError,
        r"^field 0: the shape of images must be CHW, got \(9, 10\) \(pass array\[:, None\] for",
    ),
    (
        lambda: dataset_of(np.zeros((ROWS, 2, 3, 4, 5), np.uint8)),
        ValueError,
        r"^field 0: the shape of images must be CHW, got \(2, 3, 4, 5\)",
    ),
    (
        lambda: dataset_of(IMAGES.transpose(0, 2, 3, 1)),
        ValueError,
        r"^field 0: .* must be CHW with 1 to 4 channels, got \(9, 10, 3\) \(pass layout='HWC'\)$",
    ),
    (
        lambda: dataset_of(IMAGES, layout="HWC"),
        ValueError,
        r"^field 0: .* must be HWC with 1 to 4 channels, got \(3, 9, 10\) \(pass layout='CHW'\)$",
    ),
    (
        lambda: dataset_of(np.zeros((ROWS, 8, 9, 9), np.uint8)),
        ValueError,
        r"^field 0: .*, got \(8, 9, 9\) \(split the channels into several fields\)$",
    ),
    (
        lambda: ArrayDataset(np.zeros(ROWS, np.uint8), IMAGES, transform=T.Pad(1)),
        ValueError,
        r"^field 0: the shape of images must be CHW, got \(\)",
    ),
    (
        lambda: ArrayDataset(y=np.arange(ROWS), x=IMAGES, transform=T.Pad(1)),
        TypeError,
        "^field 'y': images with a transform must be uint8, got torch.int64",
    ),
    (
        lambda: ArrayDataset(np.empty(3, object), transform=T.Pad(1)),
        TypeError,
        "^field 0 must have a dtype .*got object .*resize images to one size",
    ),
    (
        lambda: dataset_of(transform=lambda row: row, layout="HWC"),
        ValueError,
        "^layout and out_layout must be left out without .*pass ToDtype",
    ),
    (
        lambda: dataset_of(transform=lambda row: row, out_layout="channels_last"),
        ValueError,
        "^layout and out_layout must be left out without .*pass ToDtype",
    ),
    (
        lambda: dataset_of(transform=T.Compose([FLOAT, T.Pad(1, fill=1e39)])),
        ValueError,
        "^field 0: Pad: fill must be finite in float32, got .1e.39.$",
    ),
    (
        lambda: dataset_of(transform=T.Compose([T.ToDtype(torch.float16), T.Pad(1, fill=70000)])),
        ValueError,
        "^field 0: Pad: fill must be finite in float16, got .70000.0.$",
    ),
    (
        lambda: dataset_of(IMAGES[:, :, :0]),
        ValueError,
        r"^field 0: the shape of images must be one without 0, got \(3, 0, 10\)$",
    ),
    (
        lambda: dataset_of(IMAGES[:, :, :, :1], T.Resize(None, max_size=1)),
        ValueError,
        r"^field 0: Resize: max_size must be large enough .* images of size \(9, 1\), got 1$",
    ),
    (lambda: dataset_of(transform=T.Pad), TypeError, "^field 0: transform must be .*ops.Pad'>"),
    (
        lambda: dataset_of(transform=3),
        TypeError,
        "^field 0: transform must be an operation .*'int'>",
    ),
    (
        lambda: dataset_of(transform=[T.Pad(1), FLOAT]),
        TypeError,
        "^field 0: transform must be .*, a Compose of several, .*'list'>",
    ),
    (
        lambda: dataset_of(transform=(T.Pad(1), FLOAT)),
        TypeError,
        "^field 0: transform must be .*'tuple'>",
    ),
    (
        lambda: ArrayDataset(IMAGES, layout="HWC"),
        ValueError,
        "^layout and out_layout must be left out .*pass ToDtype.torch.uint8.",
    ),
    (
        lambda: ArrayDataset(x=IMAGES, transform={"y": chain()}),
        ValueError,
        "^each key of transform must be one of 'x', got 'y'$",
    ),
    (
        lambda: ArrayDataset(IMAGES, transform={"x": chain()}),
        ValueError,
        "^each key of transform must be one of 0, got 'x'$",
    ),
    (
        lambda: dataset_of(layout="NCHW"),
        ValueError,
        "^layout must be one of 'CHW', 'HWC', got 'NCHW'$",
    ),
    (
        lambda: dataset_of(out_layout=None),
        ValueError,
        "^out_layout must be one of 'CHW', 'HWC', 'channels_last', got None$",
    ),
    (
        lambda: dataset_of(seed=-1),
        ValueError,
        r"^seed must be an int in \[0, 18446744073709551615\], got -1$",
    ),
    (
        lambda: dataset_of(seed=2**64),
        ValueError,
        "^seed must be an int in .*, got 18446744073709551616$",
    ),
    (lambda: dataset_of(seed=0.5), TypeError, "^seed must be an int .*, got 0.5$"),
    (
        lambda: ArrayDataset(x=IMAGES, transform=IMAGES),
        TypeError,
        "^field 'x': transform must be .*numpy.ndarray'>",
    ),
    (
        lambda: ArrayDataset(transform="images.npy"),
        TypeError,
        "^fields must be given .*all by name, got .*$",
    ),
    (
        lambda: ArrayDataset(x=IMAGES, layout=np.arange(ROWS)),
        ValueError,
        "^layout must be one of 'CHW', 'HWC', got array",
    ),
    (
        lambda: ArrayDataset(x=IMAGES, seed=torch.arange(ROWS)),
        TypeError,
        "^seed must be an int .*, got tensor",
    ),
]


@pytest.mark.parametrize(("make", "kind", "text"), REFUSED, ids=[text for *_, text in REFUSED])
def test_what_cannot_be_is_said_when_the_dataset_is_made(
    make: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        make()
