"""Workers of a loader: processes and threads. A worker process runs ``child.py``. A spawned worker
also imports ``batch_pickle.py`` and ``lifecycle.py``, and nothing else of the loader. The parent
uses the remaining modules.
"""
