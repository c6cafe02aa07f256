"""bench: a quick benchmark of this machine."""
