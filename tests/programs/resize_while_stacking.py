"""Resizes tensors in a collection while they are stacked: `… RESIZE_AT SPARE`."""

import gc
import sys

import torch

from fastloop.data.collate import make_collate

ITEMS = 300_000
resize_at, spare = map(int, sys.argv[1:])
tensors = [torch.full((ITEMS,), i) for i in range(4)]
runs = 0


def resize(phase, info):
    global runs
    runs += phase == "start"
    if runs == resize_at:
        for tensor in tensors:
            tensor.resize_(8 * ITEMS)


collate = make_collate()
collate([tensor.clone() for tensor in tensors])
gc.collect()
gc.callbacks.append(resize)
gc.set_threshold(1)
kept = [[] for _ in range(spare)]
stack = collate(list(tensors))
gc.set_threshold(0)
gc.callbacks.clear()
assert torch.equal(stack[:, :ITEMS], torch.arange(4)[:, None].expand(4, ITEMS))
