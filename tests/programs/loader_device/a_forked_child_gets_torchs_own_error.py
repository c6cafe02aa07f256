import os

import torch

from fastloop.device.accelerator import Accelerator


class Forked(Accelerator):
    def __init__(self):  # without a stream
        self.device, self._pid = torch.device("cuda"), os.getpid()


accelerator = Forked()
if os.fork() == 0:
    try:
        accelerator.check()
    except AssertionError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
