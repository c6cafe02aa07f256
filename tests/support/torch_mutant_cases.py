"""The changes of torch that torch_mutant_program runs loops under.

Every part of fastloop's table has those that follow from its path; the others are written here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch_mutant_program import LOADER_LOOPS, STEP_LOOPS
from torch_mutants import (
    ADDED,
    NEWER,
    Edit,
    add_parameter,
    apply,
    edit_process_arguments,
    insert,
    order_parameters,
    remove_module,
    rename,
    rename_parameter,
    replace,
)

_LOADER = "torch.utils.data.dataloader:"
_BASE = _LOADER + "_BaseDataLoaderIter"
_MULTI = _LOADER + "_MultiProcessingDataLoaderIter"
_LOOP = "torch.utils.data._utils.worker:_worker_loop"
_COLLATE = "torch.utils.data._utils.collate:"
_SCALER = "torch.amp.grad_scaler:GradScaler"

# That come to the parts of a group.
LOOPS = {
    "tensors": ("arrays", "array_workers", "samples", *STEP_LOOPS),
    "loader": ("arrays", "samples", "processes", "threads", "resumed"),
    "single": ("arrays", "samples"),
    "multi": ("array_workers", "processes", "streams"),
    "workers": ("processes", "streams", "threads"),
    "fetch": ("arrays", "samples", "streams", "threads"),
    "collate": ("arrays", "samples", "processes"),
    "hooks": ("hooks",),
    "scaler": ("scaler", "stepper"),
    "clip": ("scaler", "clip"),
    "modes": ("samples", *STEP_LOOPS),
    "functorch": ("samples", "processes"),
    "sparse": ("sparse_grads",),
    "moves": ("arrays", "array_workers"),
    "profiler": ("samples", *STEP_LOOPS),
    "queue": ("array_workers", "processes"),
}


MORE = "done_more = 0"

STATEMENTS = "every function has one more statement"


KEYWORD = "keyword"  # noticed by the argument that is passed, not in a group


class Case(NamedTuple):
    """Attributes:
    edits: of torch's sources.
    then: done after their import.
    loops: that are run.
    group: of the table, in which it is noticed; "": nothing notices it, and `why` says why that
        is right.
    is_newer: whether torch's version is one that fastloop was not tested with, where the table has
        the syntax of the torch that is edited.
    """

    edits: tuple[Edit, ...] = ()
    then: Callable[[], None] = lambda: None
    loops: tuple[str, ...] = ()
    group: str = ""
    why: str = ""
    is_newer: bool = False

    def apply(self) -> None:
        apply(list(self.edits))
        self.then()
        if self.is_newer:
            torch.__version__ = type(torch.__version__)(NEWER)


def delete(path: str) -> Callable[[], None]:
    def run() -> None:
        module, _, names = path.partition(":")
        owner: Any = sys.modules[module]
        *outer, last = names.split(".")
        for name in outer:
            owner = getattr(owner, name)
        delattr(owner, last)

    return run


# ---- of the table

# What cannot be renamed in a torch that works alone, or is promised to users.
PUBLIC = {
    "DataLoader.__init__", "DataLoader.__iter__", "GradScaler.__init__", "GradScaler.scale",
    "GradScaler.unscale_", "GradScaler.step", "GradScaler.update", "clip_grad_norm_",
    "default_collate", "default_convert",
}  # fmt: skip


_WITHOUT_SOURCE = ("torch", "torch._C", "torch._C._functorch", "torch.autograd.profiler")


def _is_function(part: Any) -> bool:
    return hasattr(resolved(part.path), "__code__")


def resolved(path: str) -> Any:
    from fastloop.compat.torch_parts import resolve

    return resolve(path)


class _ObjectsAlone:
    """An attribute that is gone from its class, where fastloop looks for it. Objects still have it:
    torch's own C and Python call it there."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __get__(self, owner: Any, cls: Any) -> Any:
        if owner is None:
            raise AttributeError("gone")
        return self._found.__get__(owner, cls)


def hide(path: str) -> Callable[[], None]:
    def run() -> None:
        cls, name = getattr(torch, path.split(":")[1].split(".")[0]), path.rpartition(".")[2]
        setattr(cls, name, _ObjectsAlone(getattr(cls, name)))

    return run


def cases_of_part(part: Any, group: str) -> Iterator[tuple[str, Case]]:
    module, _, names = part.path.partition(":")
    last = names.rpartition(".")[2]
    loops = LOOPS[group]
    noticed = group
    title = f"{module.rpartition('.')[2]}.{names}"
    if module in _WITHOUT_SOURCE or group == "hooks":
        is_of_tensors = module == "torch" and group != "tensors"
        gone = (hide if is_of_tensors else delete)(part.path)
        yield f"{title} is gone", Case((), gone, loops, noticed)
        return
    is_special = last.startswith("__") or names in PUBLIC
    if not is_special:
        is_own = "." not in names and not isinstance(resolved(part.path), type)
        home = module.rpartition(".")[2] if is_own else ""
        yield f"{title} has another name", Case((rename(last, home),), loops=loops, group=noticed)
    if _is_function(part):
        group = noticed if part.forms else ""
        why = "" if part.forms else "its name is all that fastloop uses"
        edits = (add_parameter(part.path), insert(part.path, MORE))
        case = Case(edits, loops=loops, group=group, why=why)
        yield f"{title} does more, with another parameter", case


def known_syntax() -> dict[str, str]:
    """Of torch before it is edited."""
    from fastloop.compat.torch_parts import _PARTS, syntax_digest

    every = [part.path for parts in _PARTS.values() for part in parts if part.syntax]
    return {path: syntax_digest(resolved(path)) for path in every}


def cases_of_table() -> dict[str, Case]:
    """A part that stands in several groups has its cases once, with the loops of all."""
    from fastloop.compat.torch_parts import _PARTS

    found: dict[str, Case] = {}
    for group, parts in _PARTS.items():
        # "shards" and "fsdp" need processes: tests/step/test_dtensor.py and fsdp_cases.py say what
        # is done without a part.
        for part in parts if group in LOOPS else ():
            sets = [(f"{name} has another name", attribute(name, group)) for name in part.sets]
            for title, case in [*cases_of_part(part, group), *sets]:
                first = found.get(title, case)
                loops = tuple(dict.fromkeys(first.loops + case.loops))
                found[title] = (first if first.group else case)._replace(loops=loops)
    return found


def attribute(name: str, group: str) -> Case:
    loops = LOOPS[group]
    return Case((rename(name),), loops=loops, group=group)


# ---- others

_STATE = """
def state_dict(self): return {"of": "torch"}
def load_state_dict(self, state): raise RuntimeError("torch's own")
"""
_KEYWORD = (
    add_parameter(_LOADER + "DataLoader.__init__"),
    insert(_LOADER + "DataLoader.__init__", f"self.{ADDED} = {ADDED}"),
)


def _set_table_version() -> None:
    """DLPack's table, of the next major version."""
    import ctypes

    get, new = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    kept.append(b"dlpack_exchange_api")
    old = get(torch.Tensor.__dlpack_c_exchange_api__, kept[0])
    table = ctypes.create_string_buffer(ctypes.string_at(old, 128), 128)
    table[0:4] = (2).to_bytes(4, sys.byteorder)
    kept.append(table)
    torch.Tensor.__dlpack_c_exchange_api__ = new(ctypes.addressof(table), kept[0], None)


kept: list[Any] = []  # memory that torch's class points into


def _append_argument(arguments: list[Any]) -> None:
    import ast

    arguments.append(ast.Constant(None))


def _swap(arguments: list[Any]) -> None:
    arguments[0], arguments[1] = arguments[1], arguments[0]


def other_cases() -> Iterator[tuple[str, Case]]:
    loaders, steps = LOADER_LOOPS, STEP_LOOPS
    yield "nothing changes", Case(loops=(*loaders, *steps), why="it is the torch that is known")
    why = "a release that has changed no part of the table is as good as a tested one"
    newer = Case(loops=(*loaders, *steps), why=why, is_newer=True)
    yield f"the version is {NEWER}", newer
    yield (
        "the DLPack table has version 2",
        Case((), _set_table_version, ("arrays", "array_workers", "samples", *steps), "tensors"),
    )
    yield (
        "torch.amp.grad_scaler is elsewhere",
        Case((), lambda: remove_module("torch.amp.grad_scaler"), steps, "scaler"),
    )
    yield (
        "torch.nn.utils.clip_grad is elsewhere",
        Case((), lambda: remove_module("torch.nn.utils.clip_grad"), steps, "clip"),
    )
    yield (
        "torch.utils.data.dataloader is elsewhere",
        Case((), lambda: remove_module("torch.utils.data.dataloader"), loaders, "loader"),
    )
    for name in ("_per_optimizer_states", "_scale", "_init_scale", "_enabled"):
        yield f"GradScaler.{name} has another name", attribute(name, "scaler")
    for name in (
        "_sampler_iter", "_base_seed", "_num_yielded", "_num_workers", "_collate_fn", "_timeout",
        "_drop_last", "_pin_memory", "_persistent_workers",
    ):  # fmt: skip
        yield f"{name} of iterators has another name", attribute(name, "loader")
    for name in (
        "_prefetch_factor", "_send_idx", "_rcvd_idx", "_workers", "_index_queues",
        "_worker_result_queue", "_in_order", "_workers_done_event",
        "_workers_status", "_worker_queue_idx_cycle", "_shutdown",
    ):  # fmt: skip
        yield f"{name} of iterators has another name", attribute(name, "workers")
    yield "_dataset_fetcher of iterators has another name", attribute("_dataset_fetcher", "single")
    yield from _signature_cases()
    yield from _behaviour_cases()


def _signature_cases() -> Iterator[tuple[str, Case]]:
    loaders = ("processes", "streams", "threads")
    edits: tuple[Edit, ...]
    edits = (order_parameters(_LOOP, 0, 1), edit_process_arguments(_MULTI + ".__init__", _swap))
    yield "_worker_loop has another order", Case(edits, loops=loaders, group="workers")
    edits = (rename_parameter(_LOOP, "done_event", "end_event"),)
    yield "_worker_loop names a parameter anew", Case(edits, loops=loaders, group="workers")
    edits = (
        insert(_LOOP, "_ = required"),
        _required_parameter,
        edit_process_arguments(_MULTI + ".__init__", _append_argument),
    )
    yield "_worker_loop wants one more", Case(edits, loops=loaders, group="workers")
    yield "DataLoader has a new keyword", Case(_KEYWORD, loops=LOADER_LOOPS, why="""
        a keyword that nobody passes changes nothing""")  # fmt: skip
    edits = (
        *_KEYWORD,
        replace(_BASE + ".__init__", "iter(self._index_sampler)", f"""
            iter([[loader.{ADDED}]] if loader.{ADDED} else self._index_sampler)""".strip()),
    )  # fmt: skip
    yield "DataLoader's new keyword is used", Case(edits, loops=("keyword",), group="loader")
    init = _LOADER + "DataLoader.__init__"
    edits = (*_KEYWORD, insert(init, f"batch_size = {ADDED} or batch_size"))
    yield "DataLoader itself uses a new keyword", Case(edits, loops=("keyword",), group=KEYWORD)


def _required_parameter(module: str, tree: Any) -> None:
    import ast

    from torch_mutants import find

    if module == "torch.utils.data._utils.worker":
        arguments = find(tree, "_worker_loop").args
        arguments.args.append(ast.arg("required"))
        arguments.defaults.clear()


def _behaviour_cases() -> Iterator[tuple[str, Case]]:
    loaders = LOADER_LOOPS
    for name in ("DataLoader", "_BaseDataLoaderIter", "_MultiProcessingDataLoaderIter"):
        edits: tuple[Edit, ...] = (insert(_LOADER + name, _STATE, at_end=True),)
        yield f"{name} has a state_dict()", Case(edits, loops=loaders, why="""
            fastloop's own is in its class, and nothing calls torch's""")  # fmt: skip
    edits = (insert(_BASE + "._reset", "torch.rand(())", at_end=True),)
    yield "an epoch draws once more", Case(edits, loops=loaders, group="loader")
    edits = (insert(_SCALER + ".unscale_", "torch.rand(())"),)
    yield "unscale_ does more", Case(edits, loops=STEP_LOOPS, group="scaler")
    for title, edits, loops, group in _changes_without_names():
        yield title, Case(edits, loops=loops, group=group, is_newer=True)
    yield (
        STATEMENTS,
        Case(_statements(), loops=(*loaders, *STEP_LOOPS), group="loader", is_newer=True),
    )


def _changes_without_names() -> Iterator[tuple[str, tuple[Edit, ...], tuple[str, ...], str]]:
    """Of numbers and operators, which syntax alone shows."""
    loaders, workers = LOADER_LOOPS, LOOPS["workers"]
    draw = "torch.empty((), dtype=torch.int64).random_(generator=loader.generator)"
    edits: tuple[Edit, ...]
    edits = (insert(_BASE + ".__init__", draw, at_end=True),)
    yield "iterators draw once more", edits, loaders, "loader"
    edits = (replace(_BASE + ".__init__", draw, draw + ".random_(generator=loader.generator)"),)
    yield "the base seed is the second draw", edits, loaders, "loader"
    edits = (replace(_LOOP, "base_seed + worker_id", "base_seed - worker_id"),)
    yield "workers have other seeds", edits, workers, "workers"
    tasks = "self._prefetch_factor * self._num_workers"
    edits = tuple(
        replace(_MULTI + name, tasks, tasks + " + 1") for name in ("._reset", "._try_put_index")
    )
    yield "more is prefetched", edits, (*workers, "array_workers"), "workers"
    fetch = "torch.utils.data._utils.fetch:_MapDatasetFetcher.fetch"
    edits = (replace(fetch, "self.collate_fn(data)", "self.collate_fn(data[::-1])"),)
    yield "samples are collated in another order", edits, ("samples", "threads"), "fetch"
    edits = (
        replace(_COLLATE + "collate_int_fn", "torch.tensor(batch)", "torch.tensor(batch) * 2"),
    )
    yield "ints are collated otherwise", edits, LOOPS["collate"], "collate"
    edits = (insert(_SCALER + ".update", "self._growth_factor = 4.0"),)
    yield "the scale grows faster", edits, STEP_LOOPS, "scaler"
    clip = "torch.nn.utils.clip_grad:_clip_grads_with_norm_"
    edits = (replace(clip, "total_norm + 1e-06", "total_norm * 2"),)
    yield "clipping clips more", edits, ("scaler", "torch_clip"), "clip"


def _statements() -> tuple[Edit, ...]:
    """One in each function of the table, without a name."""
    from fastloop.compat.torch_parts import _PARTS

    paths = {part.path for parts in _PARTS.values() for part in parts if part.forms}
    return tuple(insert(path, "pass", at_end=True) for path in sorted(paths))


CASES: dict[str, Case] = {**dict(other_cases()), **cases_of_table()}
