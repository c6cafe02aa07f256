import sys

import fastloop

fastloop.load_ipython_extension(None)
print("torch" in sys.modules)
if sys.argv[1] == "unload":
    fastloop.unload_ipython_extension(None)
print(fastloop.patch_status().seams["clip_grad_norm"].is_on)
