"""Sequences of different lengths: batches of similar length, padded in C."""

import torch
from torch import nn

from fastloop import ArrayDataset, DataLoader, LengthBucketBatchSampler, PadCollate, RaggedArray

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
lengths = torch.randint(5, 200, (2000,)).tolist()
labels = torch.randint(2, (2000,))  # class 1 has the larger word numbers
pairs = zip(lengths, labels.tolist(), strict=True)
ids = RaggedArray.from_list([torch.randint(1, 50 + 50 * y, (n,)).tolist() for n, y in pairs])

data = ArrayDataset(input_ids=ids, labels=labels)
batches = LengthBucketBatchSampler(ids, max_tokens=4096)
collate = PadCollate(return_mask=True)
options = {"num_workers": 2, "device": device}
loader = DataLoader(data, batch_sampler=batches, collate_fn=collate, **options)

words, head = nn.Embedding(100, 32, padding_idx=0).to(device), nn.Linear(32, 2).to(device)
optimizer = torch.optim.AdamW([*words.parameters(), *head.parameters()], lr=1e-2)
for epoch in range(3):
    batches.set_epoch(epoch)
    for batch in loader:
        mask = batch["attention_mask"][..., None]
        mean = (words(batch["input_ids"]) * mask).sum(1) / mask.sum(1)
        loss = nn.functional.cross_entropy(head(mean), batch["labels"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
