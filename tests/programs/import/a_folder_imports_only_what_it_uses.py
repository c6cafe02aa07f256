import pickle
import subprocess
import sys
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from threading import Barrier, Thread

import PIL.Image
import torch

from fastloop import DataLoader, ImageFolder
from fastloop import transforms as T

if sys.argv[1:] == ["unpickle"]:
    # No operation has been made here.
    flip = pickle.loads(sys.stdin.buffer.read())
    assert flip(torch.zeros(3, 2, 2, dtype=torch.uint8)).shape == (3, 2, 2)
    sys.exit(f"{flip!r}")

root = Path("images", "class")
root.mkdir(parents=True)
for number in range(4):
    PIL.Image.new("RGB", (8, 8)).save(root / f"{number}.png")
dataset = ImageFolder("images", T.RandomCrop(4))
for path in ("thread", "process"):
    loader = DataLoader(dataset, 2, num_workers=2, path=path)
    assert [images.shape for images, _ in loader] == [(2, 3, 4, 4)] * 2
    unused = ["fastloop.adapters.", "fastloop.compat.seams", "fastloop.device.upload"]
    unused += ["fastloop.data.arrays", "fastloop.data.image_folder.planes"]
    if path == "thread":
        unused += ["fastloop.loader.workers.lifecycle", "fastloop.loader.arrays."]
        unused += ["fastloop.base.machine", "fastloop.base.names", "fastloop.compat.moves"]
    found = [name for name in sys.modules if name.startswith(tuple(unused))]
    assert not found, found

# Operations are made when they are used.
assert "__init__" in vars(T.RandomCrop) and "__init__" not in vars(T.ColorJitter)
assert list(signature(T.ColorJitter).parameters)[:2] == ["brightness", "contrast"]
assert "__init__" in vars(T.ColorJitter) and "__init__" not in vars(T.RandomRotation)


class Turned(T.RandomRotation):
    def __init__(self) -> None:
        super().__init__(30)


assert list(signature(Turned).parameters) == []
assert Turned().degrees == T.RandomRotation(30).degrees
command = [sys.executable, __file__, "unpickle"]
for protocol in (0, pickle.HIGHEST_PROTOCOL):  # the first one calls no __new__
    sent = pickle.dumps(T.RandomVerticalFlip(0.25), protocol)
    done = subprocess.run(command, input=sent, capture_output=True, check=False)
    assert done.stderr.decode().strip() == "RandomVerticalFlip(p=0.25)", done.stderr.decode()


@dataclass(eq=False)
class Named(T.RandomAffine):
    name: str = ""


assert (Named(30, name="a").degrees, Named(30, name="a").name) == (Turned().degrees, "a")
assert [field.name for field in fields(T.RandomPerspective)][:2] == ["distortion_scale", "p"]

barrier, made = Barrier(8), list[float]()


def make() -> None:
    barrier.wait()
    made.append(T.RandomSolarize(7.0, p=0.5).threshold)


threads = [Thread(target=make) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert made == [7.0] * 8, made
