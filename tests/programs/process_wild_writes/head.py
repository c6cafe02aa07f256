"""What the programs of this folder share."""

import os


def find_ring():
    # The address of the mapping and a descriptor of the file, in a forked worker.
    (base,) = (line.split("-")[0] for line in open("/proc/self/maps") if "memfd:fastloop" in line)
    for name in os.listdir("/proc/self/fd"):
        try:
            if "memfd:fastloop" in os.readlink(f"/proc/self/fd/{name}"):
                return int(base, 16), int(name)
        except FileNotFoundError:  # that of the folder itself
            pass
    raise AssertionError("no ring")
