"""The epoch of a dataset's transforms is one word for all processes that have the dataset."""

import copy
import multiprocessing
import os
import pickle
import time
from typing import Any

import numpy as np
import pytest
import torch.multiprocessing
from epoch_child import answer
from time_limits import limit

from fastloop import ArrayDataset, transforms
from fastloop.data import epochs
from fastloop.data.epochs import Epoch

CONTEXTS = multiprocessing.get_all_start_methods()


@pytest.mark.parametrize("start", CONTEXTS)
def test_a_process_that_is_there_already_sees_the_next_epoch(start: str) -> None:
    context = torch.multiprocessing.get_context(start)
    epoch, asked, told = Epoch(), context.Queue(), context.Queue()
    child = context.Process(target=answer, args=(epoch, asked, told), daemon=True)
    child.start()
    for number in (0, 3, 2**32 - 1):
        epoch.set(number)
        asked.put(True)
        assert told.get(timeout=limit(300)) == number
    asked.put(False)
    assert told.get(timeout=limit(300)) == epoch.value == 77
    child.join(limit(60))
    assert child.exitcode == 0


def test_what_the_user_sets_stays() -> None:
    epoch = Epoch()
    assert epoch.value == 0
    epoch.begin(2)
    assert epoch.value == 2
    epoch.set(0)
    epoch.begin(3)
    assert epoch.value == 0


@pytest.mark.parametrize("how", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_copies_have_words_of_their_own(how: Any) -> None:
    epoch = Epoch()
    epoch.set(5)
    clone = how(epoch)
    epoch.set(6)
    clone.begin(9)
    assert (epoch.value, clone.value) == (6, 5)
    clone.set(7)
    assert (epoch.value, clone.value) == (6, 7)


@pytest.mark.parametrize("wrong", [-1, 2**32, 2**70])
def test_epochs_that_no_key_holds(wrong: int) -> None:
    with pytest.raises(
        ValueError, match=rf"^epoch must be an int in \[0, 4294967295\], got {wrong} "
    ):
        Epoch().set(wrong)
    with pytest.raises(TypeError):
        Epoch().set(1.5)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [("a", TypeError), (1.0, TypeError), (None, TypeError), (-1, ValueError), (2**32, ValueError)],
)
def test_what_is_no_epoch_is_refused(wrong: Any, kind: type[Exception]) -> None:
    epoch = Epoch()
    with pytest.raises(
        kind, match=rf"epoch must be .*, got {wrong!r} \(the number of epochs before it\)"
    ):
        epoch.set(wrong)
    assert epoch.value == 0
    assert epoch.users is None


# ---- descriptors


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_many_datasets_take_few_descriptors() -> None:
    before = descriptors()
    epochs = [Epoch() for _ in range(3000)]
    assert descriptors() - before <= 3
    for number, epoch in enumerate(epochs):
        epoch.set(number)
    assert [epoch.value for epoch in epochs] == list(range(3000))
    assert len(pickle.dumps(epochs[0])) < 200
    del epochs, epoch
    assert descriptors() - before <= 1  # of words that are left to take


def test_transforms_without_random_parameters_take_none() -> None:
    images = np.arange(4 * 3 * 8 * 8, dtype=np.uint8).reshape(4, 3, 8, 8)
    plain = ArrayDataset(images, transform=transforms.CenterCrop(4))
    random = ArrayDataset(images, transform=transforms.RandomCrop(4))
    function = ArrayDataset(images, transform=lambda image: image)
    assert random._epoch is not None
    assert plain._epoch is None and function._epoch is None
    expected = plain[1][0]
    plain.set_epoch(5)
    assert torch.equal(plain[1][0], expected)
    assert torch.equal(plain[[1, 2]][0][0], expected)
    assert plain.params(1) == plain.params(1, epoch=5)


def test_a_forked_child_takes_words_of_its_own() -> None:
    """The parent takes the next one as the child does."""
    Epoch()
    pid = os.fork()
    if pid == 0:
        child = Epoch()
        time.sleep(0.2)
        child.set(9)
        os._exit(0)
    parent = Epoch()
    assert os.waitpid(pid, 0)[1] == 0
    assert parent.value == 0


class Forking:
    """Words that are not taken yet. The process forks when they are counted, as in a handler."""

    pid = -1

    def __init__(self, words: torch.Tensor) -> None:
        self.words = words

    def __len__(self) -> int:
        self.pid = os.fork() if self.pid < 0 else self.pid
        return len(self.words)

    def __getitem__(self, key: Any) -> torch.Tensor:
        return self.words[key]


def test_a_fork_while_a_word_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    words = Forking(torch.zeros(4, 2, dtype=torch.int64).share_memory_())
    monkeypatch.setattr(epochs, "_blocks", [words])
    ready, made = os.pipe()
    Epoch()
    epoch = Epoch()
    if words.pid == 0:
        os.read(ready, 1)
        epoch.set(77)
        os._exit(0)
    os.write(made, b"1")
    os.waitpid(words.pid, 0)
    os.close(ready)
    os.close(made)
    assert epoch.value == 0
