"""report() while the loop runs: a line on a terminal."""
