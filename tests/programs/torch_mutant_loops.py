"""Print the release of torch, the edits made to it, and the results of some loops, as JSON."""

import json
import sys

import torch
from torch_mutant_program import Loops, _Torch


def main() -> None:
    torch.set_num_threads(1)
    loops = Loops(_Torch(), {})
    found = {name: getattr(loops, name)() for name in ("arrays", "processes", "streams", "scaler")}
    edits = sys.modules["torch_mutants"].edits_made  # type: ignore[attr-defined]
    print(json.dumps([torch.__version__, edits, found]))


if __name__ == "__main__":
    main()
