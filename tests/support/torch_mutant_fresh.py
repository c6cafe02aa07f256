"""Changes torch in a process that has not imported it yet. A `sitecustomize` imports this, so that
it holds for `python script.py` and `python -m fastloop run script.py` and their workers alike;
TORCH_MUTANT names the change.
"""

import os

from torch_mutants import Edit, insert, install, rename, replace, set_version

_MULTI = "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter"

# By name, with whether fastloop must say so.
FRESH: dict[str, tuple[tuple[Edit, ...], bool]] = {
    "the version is newer": ((), False),
    "_worker_loop has another name": ((rename("_worker_loop", "worker"),), True),
    "_next_data does more": ((insert(_MULTI + "._next_data", "retried = 0"),), True),
    "the scale grows faster": (
        (replace("torch.amp.grad_scaler:GradScaler.update", "self._growth_factor", "4.0"),),
        True,
    ),
}

if "TORCH_MUTANT" in os.environ:
    install([*FRESH[os.environ["TORCH_MUTANT"]][0], set_version])
