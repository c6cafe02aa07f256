import torch

import fastloop

print(fastloop.patch())
table = torch.nn.Embedding(5, 2, sparse=True)
table(torch.tensor([1])).sum().backward()
scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(table.parameters(), 1.0)
scaler.scale(torch.ones(()))
dense = torch.zeros(2)
dense.grad = torch.ones(2)
scaler.step(torch.optim.SGD([dense], 1.0))
torch.nn.utils.clip_grad_norm_([dense], 0.5)
for call in (
    lambda: scaler.step(optimizer),
    lambda: scaler.unscale_(optimizer),
    lambda: torch.nn.utils.clip_grads_with_norm_(table.weight, 0.1, torch.ones(())),
):
    try:
        call()
    except RuntimeError as error:
        print(error)
