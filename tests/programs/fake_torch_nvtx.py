"""torch's own NVTX: prints its ranges with an argument, and is not built in without."""

import sys

import torch


def raise_error(name):
    raise RuntimeError("NVTX functions not installed")


torch.cuda.nvtx.mark = raise_error
if sys.argv[1:]:
    torch.cuda.nvtx.mark = lambda name: None
    torch.cuda.nvtx.range_push = lambda name: print("push", name)
    torch.cuda.nvtx.range_pop = lambda: print("pop")
