import sys
import threading

threads = [threading.Thread(target=__import__, args=["fastloop"]) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
fastloop = __import__("fastloop")
fastloop.build_info()
first = sys.modules.pop("fastloop"), sys.modules.pop("fastloop._core")
import fastloop

assert fastloop.build_info() == first[0].build_info()
