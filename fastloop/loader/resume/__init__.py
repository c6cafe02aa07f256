"""The position of a loader in its epoch: saving it and resuming from it."""
