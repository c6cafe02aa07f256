"""_core.ImagePlan and _core.Table: what Python may give them, and the errors for anything else."""

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from fastloop import _core, transforms
from fastloop.loader.arrays.iterator import ArrayConfig

HEIGHT, WIDTH = 9, 7
PAD, CENTER_CROP, RANDOM_CROP, RESIZE, FLIP, INVERT = map(
    _core.IMAGE_OPS.get,
    ("Pad", "CenterCrop", "RandomCrop", "Resize", "RandomHorizontalFlip", "RandomInvert"),
)


def make_plan(*ops: dict[str, Any], **kwargs: Any) -> _core.ImagePlan:
    arguments: dict[str, Any] = {
        "height": HEIGHT,
        "width": WIDTH,
        "channels": 3,
        "layout": "CHW",
        "out_dtype": "uint8",
        "out_layout": "CHW",
        "tables": None,
        "linear": None,
        "seed": 0,
        **kwargs,
    }
    return _core.ImagePlan(ops, **arguments)


def numbers(dtype: torch.dtype, channels: int = 3) -> bytes:
    values = torch.arange(256).expand(channels, 256) / 3
    return values.to(dtype).contiguous().view(torch.uint8).numpy().tobytes()


def image(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape or (3, HEIGHT, WIDTH), dtype=torch.uint8)


def test_each_kind_of_the_core_is_a_class_of_its_name() -> None:
    """The numbers are part of what users can reproduce, so they stay."""
    kinds = dict(_core.IMAGE_OPS)
    assert kinds.pop("a branch") == 23 and len(kinds) == 31
    assert {getattr(transforms, name).kind: name for name in kinds} == {
        number: name for name, number in kinds.items()
    }
    assert (kinds["Pad"], kinds["RandomInvert"], kinds["AugMix"]) == (0, 8, 31)
    with pytest.raises(TypeError):
        _core.IMAGE_OPS["Pad"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"out_dtype": "float64"}, "out_dtype must be uint8, .* or float32, got float64"),
        ({"layout": "NCHW"}, "layout must be CHW or HWC, got NCHW"),
        ({"out_layout": "CWH"}, "out_layout must be CHW or HWC, got CWH"),
        ({"channels": 0}, "channels of images must be 1 to 4, got 0"),
        ({"channels": 5}, "channels of images must be 1 to 4, got 5"),
        ({"tables": b""}, "tables must be None for uint8"),
        ({"out_dtype": "float32"}, "else 3072 bytes"),
        ({"out_dtype": "float16", "tables": numbers(torch.float32)}, "else 1536 bytes"),
        (
            {"out_dtype": "float32", "tables": numbers(torch.float32), "linear": (1.0, 2.0)},
            "linear must be a tuple of 3 numbers for each of 3 channels",
        ),
    ],
)
def test_plans_that_cannot_be(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_plan(**change)


@pytest.mark.parametrize(
    ("op", "text"),
    [
        ({"kind": 99}, "kind=99"),
        ({"kind": -1}, "kind=-1"),
        ({"kind": CENTER_CROP, "size": (3,)}, r"size=\(3,\)"),
        ({"kind": CENTER_CROP, "size": [3, 3]}, r"size=\[3, 3\]"),
        ({"kind": CENTER_CROP, "size": (3, 2**40)}, r"size=\(3, "),
        ({"kind": RESIZE, "size": (3, 3), "interpolation": 9}, "interpolation=9"),
        ({"kind": PAD, "padding_mode": 4}, "padding_mode=4"),
        ({"kind": INVERT, "number": (0.0,) * 12}, r"does not take number=\(0.0, "),
        ({"kind": INVERT, "number": [1.0]}, r"does not take number=\[1.0\]"),
        ({"kind": INVERT, "border": (1.0,)}, r"does not take border=\(1.0,\)"),
        ({"kind": PAD, "fill": b"12345"}, "fill=b'12345'"),
        ({"kind": PAD, "out_fill": "0"}, "out_fill='0'"),
        ({"kind": FLIP, "occurrence": 256}, "occurrence=256"),
    ],
)
def test_operations_that_cannot_be(op: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_plan(op)


def test_operations_of_wrong_types() -> None:
    wrong: list[Any] = [7, {"kind": "x"}, {"kind": FLIP, "p": "x"}, {"size": ("x", 1)}]
    for op in wrong:
        with pytest.raises(TypeError):
            make_plan(op)
    with pytest.raises(ValueError, match="a plan must have at most 32 operations, got 33"):
        make_plan(*[{"kind": FLIP}] * 33)
    with pytest.raises((OverflowError, TypeError)):
        make_plan(seed=-1)


def test_the_texts_of_the_core_are_passed_on() -> None:
    with pytest.raises(ValueError, match="RandomCrop"):
        make_plan({"kind": RANDOM_CROP, "size": (HEIGHT + 1, WIDTH)})


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("out_layout", ["CHW", "HWC", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
def test_layouts_and_dtypes(layout: str, out_layout: str, dtype: torch.dtype) -> None:
    tables = None if dtype is torch.uint8 else numbers(dtype)
    name = str(dtype).removeprefix("torch.")
    plan = make_plan(layout=layout, out_layout=out_layout, out_dtype=name, tables=tables)
    given = image()
    expected = given
    if tables is not None:
        table = torch.frombuffer(bytearray(tables), dtype=dtype).view(3, 256)
        expected = torch.stack([table[c][given[c].long()] for c in range(3)])
    source = given if layout == "CHW" else given.permute(1, 2, 0).contiguous()
    if out_layout == "HWC":
        expected = expected.permute(1, 2, 0)
    out = torch.empty(expected.shape, dtype=dtype)
    if out_layout == "channels_last":
        out = torch.empty(HEIGHT, WIDTH, 3, dtype=dtype).permute(2, 0, 1)
    assert plan.out_shape == tuple(expected.shape)
    for taken in (source, source.numpy()):
        plan.apply(taken, out.zero_(), 0, 0, 0)
        assert torch.equal(out, expected)


def test_images_of_any_strides_that_are_read_only() -> None:
    plan, given, out = make_plan(), image(), torch.empty(3, HEIGHT, WIDTH, dtype=torch.uint8)
    wide = np.zeros((3, HEIGHT * 2, WIDTH * 3), np.uint8)[:, ::-2, ::3]
    wide[...] = given.numpy()
    wide.flags.writeable = False
    plan.apply(wide, out, 0, 0, 0)
    assert torch.equal(out, given)


def test_images_and_results_that_do_not_fit() -> None:
    plan, out = make_plan(), torch.empty(3, HEIGHT, WIDTH, dtype=torch.uint8)
    for wrong in (image(1, HEIGHT, WIDTH), image(HEIGHT, WIDTH), image().float(), image().char()):
        with pytest.raises(ValueError, match="the image must be uint8, CHW, with 3 channels"):
            plan.apply(wrong, out, 0, 0, 0)
    with pytest.raises(ValueError):
        plan.apply(image(3, HEIGHT, WIDTH + 1), out, 0, 0, 0)
    for wrong in (out[:2], out.float(), out[:, :, :-1], out.permute(2, 1, 0), out[0]):
        with pytest.raises(ValueError, match="out must have the dtype, shape and strides"):
            plan.apply(image(), wrong, 0, 0, 0)
    with pytest.raises(TypeError, match=r"must be a torch.Tensor or numpy.ndarray, got list"):
        plan.apply([[[1]]], out, 0, 0, 0)


def test_keys_that_cannot_be() -> None:
    plan, out = make_plan(), torch.empty(3, HEIGHT, WIDTH, dtype=torch.uint8)
    for key in ((-1, 0, 0), (0, -1, 0), (0, 2**32, 0), (0, 0, 256), (0, 0, -1)):
        with pytest.raises(ValueError, match=r"must be in \[0, .*, got"):
            plan.apply(image(), out, *key)
        with pytest.raises(ValueError, match=r"must be in \[0, .*, got"):
            plan.draw(*key, HEIGHT, WIDTH)
    with pytest.raises(OverflowError):
        plan.draw(2**63, 0, 0, HEIGHT, WIDTH)
    plan.draw(2**63 - 1, 2**32 - 1, 255, HEIGHT, WIDTH)


def test_parameters_are_a_function_of_the_key() -> None:
    plan = make_plan({"kind": RANDOM_CROP, "size": (4, 3)}, {"kind": FLIP, "p": 0.5})
    seen = {
        str(plan.draw(i, e, v, HEIGHT, WIDTH)) for i in range(9) for e in (0, 1) for v in (0, 1)
    }
    assert len(seen) > 20
    for crop, flip in [plan.draw(i, 2, 3, HEIGHT, WIDTH) for i in range(50)]:
        assert 0 <= crop["top"] <= HEIGHT - 4
        assert 0 <= crop["left"] <= WIDTH - 3
        assert (crop["height"], crop["width"], crop["out"]) == (4, 3, (4, 3))
        assert crop["applied"] is True
        assert crop["padding"] == (0, 0, 0, 0)
        assert type(flip["applied"]) is bool


# ---- tables


def make_table(source: Any, plan: Any) -> _core.Table:
    return _core.Table(torch.Tensor, (((source, plan), "field 0", None),))


def test_images_of_a_table_need_a_plan() -> None:
    source, plan = image(5, 3, HEIGHT, WIDTH), make_plan()
    for none in (1, "plan", None):
        with pytest.raises(TypeError, match="must be an ImagePlan or ImageDraws"):
            make_table(source, none)
    for wrong in (source.char(), source[:, :2], source[:, :, :-1], source[0]):
        with pytest.raises(ValueError, match="field 0 must hold the images of its plan"):
            make_table(wrong, plan)


def test_a_row_is_what_the_plan_makes_of_it() -> None:
    source, plan = image(5, 3, HEIGHT, WIDTH), make_plan({"kind": RANDOM_CROP, "size": (4, 3)})
    out, expected = (torch.empty(3, 4, 3, dtype=torch.uint8) for _ in range(2))
    _core.copy_row(make_table(source, plan), 3, (out,))
    plan.apply(source[3], expected, 3, 0, 0)
    assert torch.equal(out, expected)


def test_a_table_keeps_its_plans_alive() -> None:
    plan = make_plan({"kind": RANDOM_CROP, "size": (4, 3)})
    table = make_table(image(5, 3, HEIGHT, WIDTH), plan)
    del plan
    gc.collect()
    out = torch.empty(3, 4, 3, dtype=torch.uint8)
    for row in range(5):
        _core.copy_row(table, row, (out,))


def test_threads_apply_one_plan() -> None:
    """Each with the result that it has alone."""
    plan = make_plan({"kind": RANDOM_CROP, "size": (4, 3)}, {"kind": RESIZE, "size": (6, 5)})
    given, wrong = image(), []

    def results(of: range) -> list[bytes]:
        out, found = torch.empty(3, 6, 5, dtype=torch.uint8), []
        for i in of:
            plan.apply(given, out, i, 1, 0)
            found.append(out.numpy().tobytes())
        return found

    expected = results(range(200))

    def work() -> None:
        wrong.extend(i for i, x in enumerate(results(range(200))) if x != expected[i])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_maps_of_nothing_and_of_computed_pixels() -> None:
    plan, rows = make_plan(), torch.zeros(0, dtype=torch.int64)
    out = torch.zeros(0, plan.map_length, dtype=torch.int32)
    plan.map(rows, out, 0)
    with pytest.raises(ValueError, match="out contiguous int32"):
        plan.map(rows, rows, 0)
    for wrong in (out[:, 1:].contiguous(), out.new_zeros(1, plan.map_length)):
        with pytest.raises(ValueError, match=r"out must have the shape \(0, "):
            plan.map(rows, wrong, 0)
    computed = make_plan({"kind": INVERT, "p": 0.5}, {"kind": CENTER_CROP, "size": (3, 3)})
    for count in (0, 2):
        with pytest.raises(ValueError, match="the plan computes pixels"):
            computed.map(torch.zeros(count, dtype=torch.int64), out, 0)


def test_a_device_has_the_arithmetic_of_v2_alone() -> None:
    invert = {"kind": INVERT, "p": 0.5}
    assert dict(_core.IMAGE_ARITHMETICS) == {"v2": 0, "v1": 1, "PIL": 2}
    assert make_plan(invert).map_length == make_plan({**invert, "arithmetic": 0}).map_length > 0
    for arithmetic in (1, 2):
        plan = make_plan({**invert, "arithmetic": arithmetic})
        assert plan.map_length == 0
        source = image()
        made, expected = torch.zeros_like(source), torch.zeros_like(source)
        plan.apply(source, made, 3, 0, 0)
        make_plan(invert).apply(source, expected, 3, 0, 0)
        assert torch.equal(made, expected)
    with pytest.raises(ValueError, match="arithmetic=3"):
        make_plan({**invert, "arithmetic": 3})


def test_plans_are_freed() -> None:
    class Held(np.ndarray):  # it can be referred to weakly
        pass

    source = image(5, 3, HEIGHT, WIDTH).numpy().view(Held)
    reference = weakref.ref(source)
    table = make_table(source, make_plan())
    del source, table
    gc.collect()
    assert reference() is None


def test_a_table_for_a_device_is_for_a_device_alone() -> None:
    images = torch.zeros(4, 1, 2, 3, dtype=torch.uint8)
    shape = {"height": 2, "width": 3, "channels": 1, "layout": "CHW"}
    made = {"out_dtype": "float16", "out_layout": "HWC", "tables": bytes(512)}
    plan = _core.ImagePlan((), **shape, **made, linear=None, seed=0)  # type: ignore[arg-type]
    table = make_table(images, plan)
    there = table.for_device()
    assert plan.why_whole == "" and there is not table
    with pytest.raises(ValueError, match="no table for a device"):
        _core.copy_row(there, 0, (torch.zeros(2, 3, 1, dtype=torch.float16),))
    with pytest.raises(ValueError, match="a table for a device must come with"):
        _core.ArrayLoader(there, _core.BatchPool(1), ArrayConfig((None,)))
    plain = _core.Table(torch.Tensor, ((images, "a", None),))
    assert plain.for_device() is plain
