"""DataLoader: the routes, their iterators, and the position in an epoch."""
