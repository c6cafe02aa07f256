"""ImageFolder: torchvision's classes and samples, C's transforms, and what is refused."""

import copy
import os
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from torchvision_shim import torchvision_v2

pytest.importorskip("PIL", reason="Pillow is not installed")

from image_folders import by_pillow, encode, picture, write_folder
from PIL import Image

from fastloop import ArrayDataset, DataLoader, ImageFolder, adapters
from fastloop import transforms as T

v2: Any = torchvision_v2()
needs_torchvision = pytest.mark.skipif(v2 is None, reason="torchvision is not installed")

TRAIN = [
    T.RandomResizedCrop(16),
    T.RandomHorizontalFlip(),
    T.ToDtype(torch.float32, scale=True),
    T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images")


def make_odd_folder(root: Path) -> Path:
    """Write names that differ in case, depth and links, and files that are not images."""
    for name in ("b/2.JPG", "b/10.jpg", "b/1.Png", "B/x.jpeg", "a/z/1.jpg", "a/y.jpg", "a/z1/0.jpg",
                 "a/z/w/3.tiff", "b/notes.txt", "B/.hidden.jpg"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encode(picture(1), "PNG"))
    (root / "a" / "linked").symlink_to(root / "b", target_is_directory=True)
    (root / "c").symlink_to(root / "B", target_is_directory=True)
    (root / "file.jpg").write_bytes(b"")
    return root


def test_samples_in_torchvisions_order(tmp_path: Path) -> None:
    root = make_odd_folder(tmp_path)
    dataset = ImageFolder(root)
    names = [(os.path.relpath(path, root), target) for path, target in dataset.samples]
    assert dataset.classes == ["B", "a", "b", "c"]
    assert dataset.class_to_idx == {"B": 0, "a": 1, "b": 2, "c": 3}
    assert names == [
        ("B/.hidden.jpg", 0), ("B/x.jpeg", 0), ("a/y.jpg", 1), ("a/linked/1.Png", 1),
        ("a/linked/10.jpg", 1), ("a/linked/2.JPG", 1), ("a/z/1.jpg", 1), ("a/z/w/3.tiff", 1),
        ("a/z1/0.jpg", 1), ("b/1.Png", 2), ("b/10.jpg", 2), ("b/2.JPG", 2), ("c/.hidden.jpg", 3),
        ("c/x.jpeg", 3),
    ]  # fmt: skip
    assert dataset.imgs is dataset.samples
    assert dataset.targets == [target for _, target in dataset.samples]
    assert len(dataset) == 14


@needs_torchvision
def test_all_of_torchvisions_attributes(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder as Theirs

    root = make_odd_folder(tmp_path)
    for path in (root, str(root), f"{root}/"):
        ours, theirs = ImageFolder(path), Theirs(path)
        for name in ("root", "classes", "class_to_idx", "samples", "imgs", "targets"):
            assert getattr(ours, name) == getattr(theirs, name) or name == "root", name
        assert str(ours.root) == str(theirs.root)
        assert len(ours) == len(theirs)


@needs_torchvision
@pytest.mark.parametrize("layout", ["missing", "empty", "no images", "one class without"])
def test_torchvisions_errors_for_what_is_not_there(tmp_path: Path, layout: str) -> None:
    from torchvision.datasets import ImageFolder as Theirs

    root = tmp_path / "root"
    if layout != "missing":
        root.mkdir()
    if layout in ("no images", "one class without"):
        (root / "a").mkdir()
        (root / "b").mkdir()
    if layout == "one class without":
        (root / "a" / "1.jpg").write_bytes(b"")
    with pytest.raises(FileNotFoundError) as theirs:
        Theirs(root)
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(str(theirs.value))}$"):
        ImageFolder(root)


@needs_torchvision
def test_samples_equal_torchvisions_without_random_operations(root: Path) -> None:
    from torchvision.datasets import ImageFolder as Theirs

    crop = [v2.CenterCrop(24), v2.RandomHorizontalFlip(1.0), v2.ToImage()]
    end = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
    chain = v2.Compose([*crop, *end, v2.ToPureTensor()])
    ours, theirs = ImageFolder(root, chain), Theirs(root, chain)
    assert "native, after the decoder" in ours.explain()
    for i in range(len(ours)):
        assert_same(ours[i], theirs[i])


@needs_torchvision
def test_other_callables_get_what_torchvision_gives_them(root: Path) -> None:
    from torchvision import transforms as v1
    from torchvision.datasets import ImageFolder as Theirs

    chain = v1.Compose([v1.Resize(20), v1.CenterCrop(16), v1.ColorJitter(0.5), v1.ToTensor()])
    ours, theirs = ImageFolder(root, chain), Theirs(root, chain)
    assert "Python, with a PIL.Image" in ours.explain()
    assert "got v1's of torchvision (write Compose of v2)" in ours.explain()
    for i in range(len(ours)):
        torch.manual_seed(i)
        mine = ours[i]
        torch.manual_seed(i)
        assert_same(mine, theirs[i])
    with pytest.raises(TypeError, match=r"runs for params\(\), got Python's: Compose must"):
        ours.params(0)


def test_without_a_transform(root: Path) -> None:
    dataset = ImageFolder(root)
    for i, (path, target) in enumerate(dataset.samples):
        image, found = dataset[i]
        assert type(found) is int
        assert found == target
        assert image.is_contiguous()
        np.testing.assert_array_equal(
            image.permute(1, 2, 0).numpy(), by_pillow(Path(path).read_bytes())
        )
    assert_same(dataset[-1], dataset[len(dataset) - 1])
    assert_same(dataset[np.int64(2)], dataset[2])
    with pytest.raises(IndexError, match="index 14 is out of bounds for a length of 14"):
        dataset[14]


def test_a_sample_is_that_of_its_image_in_an_array(root: Path) -> None:
    """Views, epochs, parameters and seeds are those of an ArrayDataset of one row."""
    dataset = ImageFolder(root, T.Compose(TRAIN), seed=7)
    plain = ImageFolder(root)
    for epoch in (0, 3):
        dataset.set_epoch(epoch)
        for i in (0, 5, 13):
            image = plain[i][0]
            rows = ArrayDataset(image.expand(14, -1, -1, -1), transform=T.Compose(TRAIN), seed=7)
            rows.set_epoch(epoch)
            for view in (0, 200):
                assert_same(dataset[i, view][0], rows[i, view][0])
                assert dataset.params(i, view=view) == rows.params(i, view=view)
    assert dataset.params(0, epoch=1) != dataset.params(0, epoch=2)
    assert dataset.params(0)[0].keys() == {"op", "top", "left", "height", "width"}


def test_results_of_different_sizes(root: Path) -> None:
    """A plan for each size that comes."""
    ops = [T.Resize(18), T.Pad(1), T.ToDtype(torch.float16, scale=True)]
    dataset, plain = ImageFolder(root, T.Compose(ops)), ImageFolder(root)
    for i in range(len(dataset)):
        image = plain[i][0]
        assert_same(dataset[i][0], T.Compose(ops)(image))
        assert min(dataset[i][0].shape[1:]) == 20
        assert dataset.params(i) == [{"op": "Resize"}, {"op": "Pad"}, {"op": "ToDtype"}]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_of_different_sizes_says_what_gives_one(root: Path, workers: int) -> None:
    loader = DataLoader(ImageFolder(root, T.Resize(18)), 14, num_workers=workers)
    with pytest.raises(
        RuntimeError, match=r"(equal size|not resizable)(.|\n)*begin the transform with Resize"
    ):
        list(loader)


@pytest.mark.parametrize("out_layout", ["CHW", "HWC", "channels_last"])
def test_layouts_of_results(root: Path, out_layout: str) -> None:
    dataset = ImageFolder(root, T.Compose(TRAIN), out_layout=out_layout)
    image, expected = dataset[3][0], ImageFolder(root, T.Compose(TRAIN))[3][0]
    if out_layout == "HWC":
        assert image.is_contiguous()
        image = image.permute(2, 0, 1)
    assert image.shape == (3, 16, 16)
    assert (image.stride() == expected.stride()) == (out_layout == "CHW")
    assert torch.equal(image, expected)
    ours = list(DataLoader(dataset, 4))
    dataset.set_epoch(0)
    assert_same(ours, list(TorchLoader(dataset, 4)))


def test_pickles_and_copies(root: Path) -> None:
    dataset = ImageFolder(root, T.Compose(TRAIN), on_error="skip", seed=2)
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert_same(other[4], dataset[4])
        other.set_epoch(3)
        assert not torch.equal(other[4][0], dataset[4][0])
        assert other.skipped_files == []


def as_class(image: Any) -> Any:
    raise AssertionError


DECODE = "decode must be 'auto', or a function from bytes to an array .*, got "
ON_ERROR = "on_error must be 'raise', 'skip', or a function from .path, error. to an image, got "
EXTENSIONS = "extensions must be a list of names such as '.jpg', got "
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"root": None}, "expected str, bytes or os.PathLike object, not NoneType"),
    ({"transform": 3}, "transform must be an operation of fastloop.transforms, .*, got 3"),
    ({"transform": T.RandomCrop}, "transform must be .*, got <class .*RandomCrop'>"),
    ({"transform": T.Compose([T.ToDtype(torch.float32), T.Resize(5)])}, "Resize must stand before"),
    ({"transform": T.RandomCrop(5, fill=(1, 2), padding=1)}, "RandomCrop: fill must be one number"),
    ({"transform": as_class, "out_layout": "HWC"}, "out_layout must be 'CHW' if Python runs the"),
    ({"transform": as_class, "cache": "u8:x"}, "cache must be None if Python runs the transform"),
    ({"decode": "turbo"}, f"{DECODE}'turbo'"),
    ({"decode": None}, f"{DECODE}None"),
    ({"decode": Path}, f"{DECODE}<class .*Path'>"),
    ({"on_error": "ignore"}, f"{ON_ERROR}'ignore'"),
    ({"on_error": None}, f"{ON_ERROR}None"),
    ({"extensions": ["jpg"]}, rf"{EXTENSIONS}\['jpg'\]"),
    ({"extensions": "jpg"}, f"{EXTENSIONS}'jpg'"),
    ({"extensions": [3]}, rf"{EXTENSIONS}\[3\]"),
    ({"extensions": []}, rf"{EXTENSIONS}\[\]"),
    ({"extensions": 3}, "'int' object is not iterable"),
    ({"cache": "/tmp/x"}, "cache must be 'u8:<folder>' or 'planes', got '/tmp/x'"),
    ({"cache": "u8:"}, "cache must be 'u8:<folder>' or 'planes', got 'u8:'"),
    ({"cache": 3}, "cache must be 'u8:<folder>' or 'planes', got 3"),
    ({"out_layout": "WHC"}, "out_layout must be one of 'CHW', 'HWC', 'channels_last', got 'WHC'"),
    ({"seed": -1}, "seed must be an int in .*, got -1"),
    ({"seed": 1.5}, "seed must be an int .*, got 1.5"),
]


@pytest.mark.parametrize(("arguments", "text"), REFUSED, ids=range(len(REFUSED)))
def test_wrong_arguments_are_refused(root: Path, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{text}"):
        ImageFolder(**{"root": root, **arguments})


def test_arguments_of_torchvision_that_are_none_here(root: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'loader'"):
        ImageFolder(root, loader=as_class)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="takes from 2 to 4 positional arguments"):
        ImageFolder(root, None, None, as_class)  # type: ignore[misc]


def test_another_transform_is_for_another_dataset(root: Path) -> None:
    chain = T.Compose(TRAIN)
    dataset = ImageFolder(root, chain)
    assert dataset.transform is chain
    with pytest.raises(AttributeError, match="transform"):
        dataset.transform = None  # type: ignore[misc]


def test_one_extension_and_any_case(root: Path) -> None:
    upper = ImageFolder(root, extensions=[".JPEG"])
    assert {Path(path).suffix for path, _ in upper.samples} == {".JPEG"}
    assert ImageFolder(root, extensions=".jpeg").samples == upper.samples
    assert upper.extensions == (".jpeg",)


# ---- classes, files and labels as a program chooses them


def with_empty_class(root: Path) -> Path:
    (root / "dog").mkdir()
    return root


def is_png(path: str) -> bool:
    return path.endswith(".png")


CHOSEN: list[dict[str, Any]] = [
    {"allow_empty": True},
    {"allow_empty": True, "is_valid_file": is_png},
    {"is_valid_file": is_png},
    {"is_valid_file": lambda path: False},
    {},
]


def two_of_three(base: Any) -> Any:
    """A class that numbers two classes in another order, and names one without a folder."""

    class Chosen(base):  # type: ignore[misc]
        def find_classes(self, directory: Any) -> Any:
            assert Path(directory) == Path(self.root)
            return ["cat", "bird", "cow"], {"cat": 5, "bird": 2, "cow": 5}

    return Chosen


def one_of_each(base: Any) -> Any:
    class First(base):  # type: ignore[misc]
        @staticmethod
        def make_dataset(directory: Any, class_to_idx: Any, **options: Any) -> Any:
            found = base.make_dataset(directory, class_to_idx, **options)
            return list({target: (path, target) for path, target in found}.values())

    return First


def listing(cls: Any, root: Path, options: dict[str, Any]) -> Any:
    """What a dataset says of its files, or its error."""
    try:
        data = cls(root, **options)
    except (FileNotFoundError, ValueError) as error:
        return type(error), str(error)
    return data.classes, data.class_to_idx, data.samples, data.imgs, data.targets, data.extensions


@needs_torchvision
@pytest.mark.parametrize("make", [lambda base: base, two_of_three, one_of_each])
@pytest.mark.parametrize("options", CHOSEN, ids=range(len(CHOSEN)))
def test_classes_and_files_are_chosen_as_torchvisions_are(
    root: Path, make: Callable[[Any], Any], options: dict[str, Any]
) -> None:
    from torchvision.datasets import ImageFolder as Theirs

    with_empty_class(root)
    found = listing(make(ImageFolder), root, options)
    assert found == listing(make(Theirs), root, options)


def test_find_classes_and_make_dataset_of_a_subclass_are_called(root: Path) -> None:
    data = two_of_three(ImageFolder)(root, allow_empty=True)
    assert (data.classes, set(data.targets)) == (["cat", "bird", "cow"], {5, 2})
    assert {Path(path).parts[len(root.parts)]: target for path, target in data.samples} == {
        "bird": 2,
        "cat": 5,
    }
    assert data[0][1] == 2
    assert len(one_of_each(ImageFolder)(root)) == 2
    with pytest.raises(FileNotFoundError, match=r"^Found no valid file for the classes cow\. Supp"):
        two_of_three(ImageFolder)(root)
    empty = type("Empty", (ImageFolder,), {"find_classes": lambda self, directory: ([], {})})
    with pytest.raises(ValueError, match=r"^'class_to_index' must have at least one entry"):
        empty(root)
    with pytest.raises(ValueError, match=r"^Both extensions and is_valid_file cannot be None or"):
        ImageFolder(root, extensions=".png", is_valid_file=is_png)


def ten_more(label: int) -> int:
    return label + 10


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("is_later", [False, True])
def test_a_target_transform_is_called_for_each_sample(
    root: Path, tmp_path: Path, cache: bool, is_later: bool
) -> None:
    options: Any = {"cache": f"u8:{tmp_path / 'cache'}" if cache else None}
    plain = ImageFolder(root, T.Resize((8, 8)), **options)
    if is_later:
        data = ImageFolder(root, T.Resize((8, 8)), **options)
        list(DataLoader(data))
        data.target_transform = ten_more
    else:
        data = ImageFolder(root, T.Resize((8, 8)), ten_more, **options)
    assert [data[i][1] for i in range(14)] == [plain[i][1] + 10 for i in range(14)]
    assert "labels: target_transform, in Python" in data.explain()
    want = [[images, labels + 10] for images, labels in DataLoader(plain, 5)]
    assert_same(list(TorchLoader(data, 5)), want)
    for arguments in ({}, {"num_workers": 2}, {"num_workers": 2, "path": "thread"}):
        assert_same(list(DataLoader(data, 5, **arguments)), want)  # type: ignore[arg-type]
    if cache:
        with pytest.raises(ValueError, match="target_transform of the ImageFolder runs in Python"):
            DataLoader(data, path="array").stats()


def test_a_target_transform_is_called_once_behind_the_transform_of_its_image(root: Path) -> None:
    calls: list[Any] = []
    data = ImageFolder(root, lambda image: calls.append("image"), calls.append)
    assert data[3] == (None, None)
    assert calls == ["image", data.samples[3][1]]


# ---- files that cannot be decoded


def break_file(dataset: ImageFolder, row: int) -> str:
    path = dataset.samples[row][0]
    Path(path).write_bytes(b"\xff\xd8\xff no image")
    return path


def test_an_error_names_file_and_decoders(root: Path) -> None:
    dataset = ImageFolder(root, T.Compose(TRAIN))
    path = break_file(dataset, 3)
    with pytest.raises(OSError, match=rf"^{re.escape(repr(path))} cannot be decoded with auto: .*P"
                       "illow: it has no format that Pillow knows"):  # fmt: skip
        dataset[3]
    os.unlink(path)
    with pytest.raises(FileNotFoundError, match=re.escape(path)):
        dataset[3]
    os.mkfifo(path)
    with pytest.raises(OSError, match=f"ImageFolder: {re.escape(repr(path))} must be .* a FIFO"):
        dataset[3]


def test_skipped_files_are_replaced_by_the_next(root: Path) -> None:
    whole = ImageFolder(root, T.Compose(TRAIN))
    raw = ImageFolder(root)
    dataset = ImageFolder(root, T.Compose(TRAIN), on_error="skip")
    pictures = {i: raw[i] for i in range(14)}
    broken = [break_file(dataset, row) for row in (4, 5, 13)]
    assert dataset.skipped_files == []
    with pytest.warns(UserWarning, match=f"^ImageFolder skips '{re.escape(broken[0])}' cannot"):
        sample = dataset[4]
    # the picture and the class of 6, the random parameters of 4
    row = ArrayDataset(pictures[6][0].expand(14, -1, -1, -1), transform=T.Compose(TRAIN))
    assert_same(sample[0], row[4][0])
    assert sample[1] == pictures[6][1]
    assert dataset.params(4) == row.params(4)
    assert dataset.skipped_files == broken[:2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dataset[13][1] == pictures[0][1]
        assert_same(dataset[7], whole[7])
    assert dataset.skipped_files == broken


def test_skipping_keeps_batches_whole(root: Path) -> None:
    dataset = ImageFolder(root, T.Compose(TRAIN), on_error="skip")
    broken = [break_file(dataset, row) for row in (0, 1, 2, 3, 9)]
    results = []
    for make in (TorchLoader, DataLoader):
        for workers in (0, 2):
            dataset.set_epoch(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results.append(list(make(dataset, 4, num_workers=workers)))
    assert [len(x) for x, _ in results[0]] == [4, 4, 4, 2]
    for other in results[1:]:
        assert_same(other, results[0])
    assert dataset.skipped_files == broken  # of the loaders without workers


def test_processes_list_the_files_that_they_have_skipped(root: Path) -> None:
    dataset = ImageFolder(root, T.Compose(TRAIN), on_error="skip")
    break_file(dataset, 3)
    list(DataLoader(dataset, 4, num_workers=1, path="process"))
    assert dataset.skipped_files == []


def test_skipped_files_that_were_appended_to_samples(root: Path, tmp_path: Path) -> None:
    dataset = ImageFolder(root, T.Compose(TRAIN), on_error="skip")
    broken = [break_file(dataset, 0), str(tmp_path / "gone.jpg")]
    dataset.samples.append((broken[1], 0))
    with pytest.warns(UserWarning):
        batches = list(DataLoader(dataset, 5))
    assert [len(x) for x, _ in batches] == [5, 5, 5]
    assert dataset.skipped_files == broken


def test_a_folder_of_nothing_else_is_an_error(root: Path) -> None:
    dataset = ImageFolder(root, on_error="skip")
    for row in range(len(dataset)):
        break_file(dataset, row)
    with (
        pytest.warns(UserWarning, match="ImageFolder skips"),
        pytest.raises(OSError, match=r"06.jpg' cannot be decoded .*; nor can the 13 files aft"),
    ):
        dataset[2]


def test_a_function_for_errors(root: Path) -> None:
    told: list[Any] = []

    def grey(path: str, error: Exception) -> Any:
        told.append((path, error))
        return np.full((9, 9, 3), 128, np.uint8)

    dataset = ImageFolder(root, on_error=grey)
    target, path = dataset.targets[3], break_file(dataset, 3)
    image, found = dataset[3]
    assert image.eq(128).all()
    assert found == target
    assert told[0][0] == path
    assert isinstance(told[0][1], OSError)

    def refuse(path: str, error: Exception) -> Any:
        raise KeyError(path) from error

    with pytest.raises(KeyError, match=re.escape(path)):
        ImageFolder(root, on_error=refuse)[3]
    bad: Callable[..., Any] = lambda path, error: None  # noqa: E731
    with pytest.raises(
        TypeError, match=r"^the result of on_error=.*<lambda> for '.*' must be .*, got NoneType"
    ):
        ImageFolder(root, on_error=bad)[3]


def test_pillow_images_survive_the_decoders_next_call(root: Path) -> None:
    dataset = ImageFolder(root, transform=lambda image: image)
    first, second = dataset[0][0], dataset[2][0]
    assert isinstance(first, Image.Image)
    for image, row in ((first, 0), (second, 2)):
        path = dataset.samples[row][0]
        np.testing.assert_array_equal(np.asarray(image), by_pillow(Path(path).read_bytes()))


def test_a_function_that_a_loader_gets_later_may_use_other_libraries(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "serve_fetches", lambda: True)
    loader = DataLoader(ImageFolder(root, T.CenterCrop(4)), 2)
    list(loader)
    assert not loader._shared.is_served
    loader.collate_fn = lambda batch: batch
    list(loader)
    assert loader._shared.is_served
