import os
import platform

os.environ["FASTLOOP_CPU"] = "avx"
import fastloop

try:
    fastloop.build_info()
except ValueError as error:
    choices = "plain or neon" if platform.machine() == "aarch64" else "plain, avx2 or avx512"
    assert str(error) == f"FASTLOOP_CPU must be {choices}, or unset, got avx"
else:
    raise AssertionError("loaded")
os.environ["FASTLOOP_CPU"] = "plain"
assert fastloop.build_info()["instructions"] == "plain"
import fastloop.__main__ as m

m.main(["doctor"])
