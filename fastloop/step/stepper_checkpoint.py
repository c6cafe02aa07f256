"""The dict that says where a Stepper stands, checked against the one that is to take it over."""

from __future__ import annotations

from typing import Any

from torch import Tensor

VERSION = 1
_KINDS: dict[str, Any] = {
    "version": int,
    "boundaries": int,
    "stepped": int,
    "skipped": int,
    "mean_weight": (float, type(None)),
    "is_buffered": bool,
    "window": (dict, type(None)),
}
_KINDS_OF_WINDOW: dict[str, Any] = {
    "size": int,
    "expected": (float, type(None)),
    "count": int,
    "counted": int,
    "weight": float,
    "has_dropped": bool,
    "scale": (float, type(None)),
    "tensors": list,
}
_UNCHANGED = "pass what state_dict() of a fastloop.Stepper returned, unchanged"


def _check_kinds(state: object, kinds: dict[str, Any], name: str) -> None:
    if not isinstance(state, dict):
        raise TypeError(f"{name} is a {type(state).__name__}, not a dict; {_UNCHANGED}")
    for key, kind in kinds.items():
        if key not in state:
            raise ValueError(f"{name} has no {key!r}; {_UNCHANGED}")
        if not isinstance(state[key], kind):
            raise TypeError(f"{name}[{key!r}] is {state[key]!r}; {_UNCHANGED}")


def check_state(state: object, params: list[Tensor], is_buffered: bool) -> dict[str, Any] | None:
    """Returns the part about the open window; None if none was open."""
    _check_kinds(state, _KINDS, "state")
    assert isinstance(state, dict)
    if state["version"] != VERSION:
        raise ValueError(
            f"state['version'] is {state['version']!r}, and this version of fastloop reads "
            f"{VERSION}; {_UNCHANGED}"
        )
    window: dict[str, Any] | None = state["window"]
    if window is None:
        return None
    _check_kinds(window, _KINDS_OF_WINDOW, "state['window']")
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
