"""Datasets of windows of token files."""
