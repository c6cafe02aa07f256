"""patch(): torch's own classes use fastloop."""

# What patch() can replace, by the names that users give.
SEAMS = ("dataloader", "grad_scaler", "clip_grad_norm", "transforms", "texts")
