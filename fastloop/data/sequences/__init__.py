"""Sequences of different lengths: padding, packing, ragged arrays."""
