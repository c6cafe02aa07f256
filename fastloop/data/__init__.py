"""Datasets of arrays, and torch's collate in C."""
