"""Write the functions of the installed torchvision, transformers and datasets into originals.txt as
known, once the tests of frameworks have passed with them:

    python tests/versions/learn_originals.py

Names the functions whose form is new.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.append(str(Path(__file__).parents[1] / "support"))
from torchvision_shim import torchvision_v2

from fastloop.adapters import originals
from fastloop.compat import statements

TABLE = Path(originals.__file__).with_suffix(".txt")


def learn(text: str) -> str:
    module, lines = "", []
    for line in text.splitlines():
        module = line[:-1] if re.fullmatch(r"[\w.]+:", line) else module
        found = re.fullmatch(r"(    ([\w.]+)=([\w.,]*)=)([0-9a-f,]*)", line)
        if found and importlib.util.find_spec(module.partition(".")[0]):
            head, name, _, known = found.groups()
            form = statements.read_form(originals.function_of(f"{module}:{name}"))
            if form not in known.split(","):
                print(f"{module}.{name}")
                line = head + ",".join(filter(None, (known, form)))
        lines.append(line)
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    torchvision_v2()
    TABLE.write_text(learn(TABLE.read_text()))
