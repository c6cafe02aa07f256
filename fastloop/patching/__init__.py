"""fastloop behind torch's own classes, for scripts and frameworks that nobody edits."""
