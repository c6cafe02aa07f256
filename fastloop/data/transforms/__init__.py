"""Image transforms, compiled to one plan that C runs."""
