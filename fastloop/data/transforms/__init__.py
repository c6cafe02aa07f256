"""Image transforms, compiled to one native plan."""

from fastloop.compat.requirements import require_torch

require_torch("fastloop.transforms")
