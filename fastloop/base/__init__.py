"""What knows nothing of loaders or steps: nested batches, interrupts, memory, threads, schemas."""
