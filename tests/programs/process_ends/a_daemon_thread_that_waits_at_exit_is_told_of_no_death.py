import atexit
import multiprocessing.util
import threading

import torch

torch.set_num_threads(1)
from workers import Items, SleepAt, wait_until

from fastloop import DataLoader
from fastloop.loader.workers import processes as process_iter

looks = []


def look(iterator, look=process_iter.ProcessIter._look_for_dead):
    if not iterator._workers[0].is_alive():
        looks.append(1)
    return look(iterator)


def end():  # torch's flag is set after this, unless multiprocessing was imported before torch
    multiprocessing.util._exit_function()
    wait_until(lambda: len(looks) > 2 or not thread.is_alive())


process_iter.ProcessIter._look_for_dead = look
hook = SleepAt(0)
iterator = iter(DataLoader(Items(8, hook), 4, num_workers=1))
thread = threading.Thread(target=lambda: next(iterator), daemon=True)
thread.start()
wait_until(lambda: bool(hook.is_there))
atexit.register(end)
