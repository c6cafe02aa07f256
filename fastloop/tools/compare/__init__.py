"""compare: the same script with plain torch and under patch()."""
