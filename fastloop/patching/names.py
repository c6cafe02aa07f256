"""What can be patched, and where reports are; apart, because `run` asks before it imports anything
else."""

# What users name it, and the module whose `make_seam` makes it.
SEAMS = {
    "dataloader": "fastloop.patching.loader_seam",
    "grad_scaler": "fastloop.patching.scaler_seam",
    "clip_grad_norm": "fastloop.patching.clip_seam",
}

# By name, because they stand above this room. The first imports torch, the second does not.
REPORT = "fastloop.tools.report.report"
REPORT_FILES = "fastloop.tools.report.files"
