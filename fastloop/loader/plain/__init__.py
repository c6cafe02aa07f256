"""torch's own iterators, counted."""
