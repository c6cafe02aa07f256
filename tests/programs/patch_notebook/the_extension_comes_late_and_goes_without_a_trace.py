import torch
from torch.nn.utils import clip_grad_norm_

import fastloop

shell = object()
torchs = torch.amp.GradScaler.unscale_


def on():
    return [name for name, seam in fastloop.patch_status().seams.items() if seam.is_on]


fastloop.load_ipython_extension(shell)
print(on(), torch.amp.GradScaler.unscale_ is torchs)
params = [torch.zeros(2)]
params[0].grad = torch.ones(2)
clip_grad_norm_(params, 1.0)
fastloop.unload_ipython_extension(shell)
print(on(), torch.amp.GradScaler.unscale_ is torchs)
