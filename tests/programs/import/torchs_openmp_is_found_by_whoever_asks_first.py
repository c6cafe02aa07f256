import torch

from fastloop.base.threads import on_this_thread, openmp

assert openmp() is not None
torch.set_num_threads(3)
with on_this_thread():
    assert torch.get_num_threads() == 1
assert torch.get_num_threads() == 3
