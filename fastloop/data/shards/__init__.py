"""Datasets of shards: files that hold many samples each."""
