"""Facts about the installed torch and other libraries, for the doctor."""

from __future__ import annotations

from fastloop.compat import requirements


def torch_facts() -> dict[str, str]:
    """Return what fastloop uses of torch, and verdicts on new releases of other libraries."""
    try:
        requirements.require_torch("fastloop.DataLoader")
    except ImportError as error:
        return {"torch": f"missing: {error}"}
    import torch

    from fastloop.base.threads import openmp
    from fastloop.compat import verdicts
    from fastloop.compat.torch_parts import GROUPS, difference

    different = [f"{group} ({why})" for group in GROUPS if (why := difference(group))]
    parts = f"torch runs its own code for {', '.join(different)}" if different else "all are known"
    threads = "its own threads" if openmp() is None else "torch's OpenMP threads"
    facts = {"torch": torch.__version__, "torch parts": parts, "passes over gradients": threads}
    return facts | verdicts.describe_kept()
