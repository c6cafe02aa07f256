"""DataLoader: the routes, their iterators, and where an epoch stands."""
