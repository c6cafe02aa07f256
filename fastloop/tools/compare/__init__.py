"""compare: the same script with plain torch and behind patch()."""
