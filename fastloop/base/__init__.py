"""Helpers that know nothing of loaders or steps: nested containers, interrupts, memory, threads."""
