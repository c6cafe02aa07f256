"""Batches on a device: the accelerator, destinations of batches, uploads, prefetching."""
