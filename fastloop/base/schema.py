"""The fields that a saved dict must have, and the errors for a dict that is something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Schema(NamedTuple):
    """The keys of a state dict and the types of their values."""

    fields: Mapping[str, type | tuple[type, ...]]  # exact types: a bool does not count as int
    advice: str  # the end of every message: what to pass instead
    names_types: bool = True  # whether the message for a wrong type names the right one

    def check(self, state: object, name: str) -> dict[str, Any]:
        """The state itself, whose fields have the right types; it may have other keys too.

        Args:
            state: what the user passed.
            name: how messages call it.

        Raises:
            TypeError: the state is not a dict, or a field has another type.
            ValueError: a field is missing.
        """
        if not isinstance(state, dict):
            raise TypeError(f"{name} is a {type(state).__name__}, not a dict; {self.advice}")
        for key, kinds in self.fields.items():
            if key not in state:
                raise ValueError(f"{name} has no {key!r}; {self.advice}")
            kinds = kinds if isinstance(kinds, tuple) else (kinds,)
            if type(state[key]) not in kinds:
                names = " or ".join(kind.__name__ for kind in kinds)
                expected = f", not {names}" if self.names_types else ""
                raise TypeError(f"{name}[{key!r}] is {state[key]!r}{expected}; {self.advice}")
        return state
