"""Image transforms, compiled to one plan that C runs."""

from fastloop.compat.requirements import require_torch

require_torch("fastloop.transforms")
