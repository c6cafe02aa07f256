"""Worker processes: requests and replies over shared memory, and what runs in a worker."""
