import gc

import fastloop.patching.patch as patching

seen = []
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]))
gc.collect()
gc.set_threshold(200, 1, 1)
seen.clear()
patching.patch()
assert gc.isenabled() and len(seen) <= 4, seen  # each comes twice
patching.unpatch()
gc.disable()
patching.patch()
assert not gc.isenabled()
