"""tune(): num_workers, prefetch_factor and the path for a loader."""
