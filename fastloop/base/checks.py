"""Readers of arguments. Each returns the value, or raises an error of one sentence: NAME must be
RULE, got VALUE; with a remedy in parentheses if the remedy is not obvious.

A value of the wrong type is a TypeError, one out of range a ValueError. Every room reads its
arguments with these; a rule that only one class has stands in that class. ``look_up`` asks an
object that may be the user's for an attribute.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Sequence
from typing import Any, TypeVar

_Choice = TypeVar("_Choice")


def look_up(thing: object, name: str, default: Any = None) -> Any:
    """Return an attribute of an object that may be the user's, or `default` if the object has none:
    its properties and its ``__getattr__`` may raise any exception to say so."""
    try:
        return getattr(thing, name, default)
    except Exception:
        return default


def is_read_ahead(loader: object) -> bool:
    """Tell whether the loader, or ``run --ahead`` for all loaders, asks for epochs ahead."""
    return look_up(loader, "epochs_ahead", 0) == 1 or os.environ.get("FASTLOOP_AHEAD") == "1"


def make_message(name: str, rule: str, value: object, remedy: str = "") -> str:
    """Return the text of a refusal; for errors that the readers below do not cover."""
    return f"{name} must be {rule}, got {value!r}" + (f" ({remedy})" if remedy else "")


def check_type(name: str, value: object, holds: object, rule: str, remedy: str = "") -> None:
    """Raise TypeError unless the rule holds."""
    if not holds:
        raise TypeError(make_message(name, rule, value, remedy))


def check_value(name: str, value: object, holds: object, rule: str, remedy: str = "") -> None:
    """Raise ValueError unless the rule holds."""
    if not holds:
        raise ValueError(make_message(name, rule, value, remedy))


def refuse_if(applies: object, text: str) -> None:
    """Raise ValueError with this text if the condition applies."""
    if applies:
        raise ValueError(text)


def is_int(value: Any) -> bool:
    """Tell whether `value` counts as an int: NumPy's integers and 0-d tensors do, bools do not."""
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def is_number(value: Any) -> bool:
    """Tell whether `value` counts as a real number; bools and text do not."""
    if isinstance(value, (bool, str, bytes)):
        return False
    try:
        to_float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def to_float(value: Any) -> float:
    """Return float(value); an int too large for a float becomes an infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def is_sequence(value: Any) -> bool:
    """Tell whether `value` is a sequence and not text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def are_numbers(values: Any, count: int | None = None) -> bool:
    """Tell whether `values` is a sequence of numbers; of `count` numbers, if that is given."""
    return is_sequence(values) and count in (None, len(values)) and all(map(is_number, values))


def read_int(
    name: str, value: Any, low: int | None = None, high: int | None = None, remedy: str = ""
) -> int:
    """Return `value` as an int within [low, high]."""
    rule = f"an int{_describe_range(low, high)}"
    check_type(name, value, is_int(value), rule, remedy)
    number = operator.index(value)
    is_within = (low is None or low <= number) and (high is None or number <= high)
    check_value(name, value, is_within, rule, remedy)
    return number


def read_optional_int(
    name: str, value: Any, low: int | None = None, high: int | None = None, remedy: str = ""
) -> int | None:
    """Return `value` as an int within [low, high], or None."""
    if value is None:
        return None
    return read_int(name, value, low, high, remedy or "or None")


def read_number(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, remedy: str = ""
) -> float:
    """Return `value` as a float within [low, high]; NaN is refused. The ends may be infinite."""
    rule = f"a number{_describe_range(low, high)}"
    check_type(name, value, is_number(value), rule, remedy)
    number = to_float(value)
    check_value(name, value, low <= number <= high, rule, remedy)
    return number


def read_choice(name: str, value: Any, choices: Sequence[_Choice]) -> _Choice:
    """Return the one of `choices` that equals `value`."""
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    raise ValueError(make_message(name, f"one of {', '.join(map(repr, choices))}", value))


def check_callable(name: str, value: Any, rule: str = "a function") -> None:
    """Refuse a value that cannot be called."""
    check_type(name, value, callable(value), rule)


def read_function(name: str, value: Any, rule: str, words: Sequence[str] = ()) -> Any:
    """Return `value` if it is a function or one of the words. A class is refused."""
    is_function = callable(value) and not isinstance(value, type)
    check_type(name, value, is_function or (isinstance(value, str) and value in words), rule)
    return value


def check_state(name: str, value: Any, like: Any, remedy: str) -> None:
    """Refuse a part of a saved state that differs in type from `like`, lacks a key of `like`, or is
    a lower int. None in `like` stands for anything."""
    if type(like) is int:
        read_int(name, value, like, (1 << 63) - 1, remedy)
    elif like is not None and not isinstance(value, type(like)):
        raise TypeError(make_message(name, f"a {type(like).__name__}", value, remedy))
    for key, part in like.items() if isinstance(like, dict) else ():
        if key not in value:
            text = f"{name} must be a dict with {key!r}, got a dict without {key!r} ({remedy})"
            raise ValueError(text)
        check_state(f"{name}[{key!r}]", value[key], part, remedy)


def _describe_range(low: float | None, high: float | None) -> str:
    has_low, has_high = low not in (None, -math.inf), high not in (None, math.inf)
    if has_low and has_high:
        return f" in [{low}, {high}]"
    return f" >= {low}" if has_low else f" <= {high}" if has_high else ""
