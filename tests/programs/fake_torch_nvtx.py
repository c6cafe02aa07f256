"""torch's own NVTX: prints its ranges with an argument, and is not built in without."""

import sys

import torch

torch.version.cuda = "13.0" if sys.argv[1:] else None
torch.cuda.nvtx.range_push = lambda name: print("push", name)
torch.cuda.nvtx.range_pop = lambda: print("pop")
