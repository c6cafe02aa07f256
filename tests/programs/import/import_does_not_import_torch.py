import sys

before = set(sys.modules)
import fastloop

assert "torch" not in sys.modules
print(fastloop.__version__, fastloop.build_info(), dir(fastloop))
assert "torch" not in sys.modules
assert not hasattr(fastloop, "nothing")
assert "torch" not in sys.modules
assert fastloop.DataLoader.__name__ == "DataLoader"
assert "torch" in sys.modules
