"""Batches that worker processes or threads make."""
