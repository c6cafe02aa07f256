"""Workers of a loader: processes and threads. ``child.py`` is what runs in a worker process. A
spawned worker imports ``batch_pickle.py`` and ``lifecycle.py`` as well, and nothing else of the
loader. The other modules are the parent's.
"""
