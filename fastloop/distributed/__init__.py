"""What the ranks of one job tell each other."""
