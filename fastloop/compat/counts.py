"""What seams have done, as text, and the counts that other processes hand over to this one.

Workers and interpreters that a program starts write their counts at their end, one line of JSON
each, to a file in the memory of the process that started them. That process reads the file when its
own status is asked for, and hands the sums over in its turn. A process that is killed loses its
counts; no process waits for counts. Imports no torch, which a launcher need not have.
"""

from __future__ import annotations

import os

from fastloop.compat.decoded import decoded

TYPE_CHECKING = False  # importing typing would take as long as all of this
if TYPE_CHECKING:
    from typing import Any

_VARIABLE, _FILE = "FASTLOOP_COUNTS", "fastloop-counts"
_SHOWN = 3  # reasons

_own = -1  # the descriptor of this process's file
_read = 0  # bytes of that file that were taken
_parents = os.environ.get(_VARIABLE, "")  # path of the file of the process that started this one


def open_counts() -> None:
    """Let processes that start from now on hand their counts over to this one, if there is a file
    for them: counts are not worth an error."""
    global _own
    if _own < 0:
        try:
            _own = os.memfd_create(_FILE)
        except OSError:  # no descriptor is left, or the system has no such files
            return
        os.environ[_VARIABLE] = f"/proc/{os.getpid()}/fd/{_own}"


def enter_child() -> None:
    """Note that this process is a fork."""
    global _own, _read, _parents
    if _own >= 0:
        _parents, _own, _read = f"/proc/self/fd/{_own}", -1, 0


def has_parent() -> bool:
    """Tell whether the process that started this one takes counts."""
    return bool(_parents)


def _is_open(path: str) -> bool:
    """Tell whether there is such a file: a different file may have the number by now."""
    try:
        return os.readlink(path).startswith(f"/memfd:{_FILE}")
    except OSError:
        return False


def hand_over(seams: dict[str, Any]) -> bool:
    """Write the counts of seams to the file of the process that started this one, once. Return
    False if there is no such process."""
    global _parents
    path, _parents = _parents, ""
    if not _is_open(path):
        return False
    used = {name: seam for name, seam in seams.items() if seam.native or seam.fallbacks}
    found: dict[str, Any] = {
        n: (s.native, s.fallbacks, s.served, s.fallback_ns) for n, s in used.items()
    }
    if decoded.files or decoded.full:
        found["decoded"] = decoded.counts()
    if found:
        import json

        with open(os.open(path, os.O_WRONLY | os.O_APPEND), "wb", 0) as file:
            file.write(json.dumps(found).encode() + b"\n")
    return True


def take_counts(seams: dict[str, Any]) -> bool:
    """Add the counts that were handed over since the last call to the counts of seams. Return
    whether there were any."""
    global _read
    if not _is_open(f"/proc/self/fd/{_own}"):
        return False
    data = os.pread(_own, os.fstat(_own).st_size - _read, _read)
    lines = data[: data.rfind(b"\n") + 1].splitlines()  # one may be half written
    _read += sum(len(line) + 1 for line in lines)
    for line in lines:
        import json

        found = json.loads(line)
        if "decoded" in found:
            decoded.merge(found["decoded"])
        for name in seams.keys() & found.keys():
            seam, (native, fallbacks, served, times) = seams[name], found[name]
            seam.native += native
            for sums, added in ((seam.fallbacks, fallbacks), (seam.fallback_ns, times)):
                for reason, count in added.items():
                    sums[reason] = sums.get(reason, 0) + count
            for how, (loaders, epochs) in served.items():
                before = seam.served.get(how, (0, 0))
                seam.served[how] = before[0] + loaders, before[1] + epochs
    return bool(lines)


def describe(name: str, seam: Any) -> str:
    """Return what a seam has done, with the first reasons why calls were left to torch."""
    if not seam.is_on and not seam.native and not seam.fallbacks:
        return f"{name} off ({seam.why})"
    each = {why: ns / seam.fallbacks[why] / 1e3 for why, ns in seam.fallback_ns.items()}
    costs = {why: f"; {us:.0f} us each" for why, us in each.items()}
    left = [f"{n} left to torch ({why}{costs.get(why, '')})" for why, n in seam.fallbacks.items()]
    left[_SHOWN:] = [f"{len(left) - _SHOWN} other reasons"] * (len(left) > _SHOWN)
    served = (
        f"{how}, {loaders} loader{'s' * (loaders != 1)}, {epochs} epoch{'s' * (epochs != 1)}"
        for how, (loaders, epochs) in seam.served.items()
    )
    shown = f" [{'; '.join(served)}]" if seam.served else ""
    why = "" if seam.is_on else f" ({seam.why})"
    return ", ".join([f"{name} {seam.native} native{shown}{why}", *left])
