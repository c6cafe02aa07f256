"""find_batch_size(): which micro-batch fits and is fastest."""
