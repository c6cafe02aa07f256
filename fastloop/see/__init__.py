"""Reports for people: what this machine offers, and where the time of a training loop goes."""
