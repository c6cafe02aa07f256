"""The dict that says where a Stepper stands, checked against the one that is to take it over."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastloop.base.schema import Schema

VERSION = 1
_ADVICE = "pass what state_dict() of a fastloop.Stepper returned, unchanged"
_NUMBER_OR_NONE = (float, type(None))
_STATE = Schema(
    {
        "version": int,
        "boundaries": int,
        "stepped": int,
        "skipped": int,
        "mean_weight": _NUMBER_OR_NONE,
        "is_buffered": bool,
        "window": (dict, type(None)),
    },
    _ADVICE,
    names_types=False,
)
_WINDOW = Schema(
    {
        "size": int,
        "expected": _NUMBER_OR_NONE,
        "count": int,
        "counted": int,
        "weight": float,
        "has_dropped": bool,
        "scale": _NUMBER_OR_NONE,
        "tensors": list,
    },
    _ADVICE,
    names_types=False,
)


def check_state(
    state: object, params: list[Tensor], *, is_buffered: bool, ranks: int
) -> dict[str, Any] | None:
    """Returns the part about the open window; None if none was open."""
    state = _STATE.check(state, "state")
    if state["version"] != VERSION:
        raise ValueError(
            f"state['version'] is {state['version']!r}, and this version of fastloop reads "
            f"{VERSION}; {_ADVICE}"
        )
    if state["window"] is None:
        return None
    window = _WINDOW.check(state["window"], "state['window']")
    there = window.get("ranks", ranks)  # the first versions left it out
    if there != ranks:
        raise ValueError(
            f"the state is of the middle of a window, in which {there} ranks have a part each, and "
            f"there are {ranks} here; save when stepper.is_boundary, or go on with {there} ranks"
        )
    if state["is_buffered"] != is_buffered:
        raise ValueError(
            f"the state holds {'buffers' if state['is_buffered'] else 'gradients'}, and this "
            f"Stepper keeps {'buffers' if is_buffered else 'none'}; make it with the accum_dtype "
            "and on_nonfinite that the saved one had"
        )
    _check_tensors(window["tensors"], params)
    return window


def _check_tensors(tensors: list[Any], params: list[Tensor]) -> None:
    if len(tensors) != len(params):
        raise ValueError(
            f"the state is of {len(tensors)} parameters, and the optimizer has {len(params)}"
        )
    for i, (tensor, param) in enumerate(zip(tensors, params, strict=True)):
        if tensor is None:
            continue
        if tensor.is_complex() and not param.is_complex():
            raise ValueError(
                f"the state's gradient {i} is of {tensor.dtype}, and the parameter of "
                f"{param.dtype}, which has no imaginary part; load it with the optimizer's "
                "parameters in the same order"
            )
        if tensor.shape != param.shape:
            raise ValueError(
                f"the state's gradient {i} has the shape {tuple(tensor.shape)}, and the parameter "
                f"{tuple(param.shape)}; load it with the optimizer's parameters in the same order"
            )
