"""The epoch of a dataset's transforms is one word for all processes that have the dataset."""

import copy
import multiprocessing
import pickle
from typing import Any

import pytest
import torch.multiprocessing
from epoch_child import answer

from fastloop.data.epoch_word import Epoch

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
        assert told.get(timeout=300) == number
    asked.put(False)
    assert told.get(timeout=300) == epoch.value == 77
    child.join(60)
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
    with pytest.raises(ValueError, match=rf"^epoch={wrong} is not in \[0, 2\*\*32\)"):
        Epoch().set(wrong)
    with pytest.raises(TypeError):
        Epoch().set(1.5)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [("a", TypeError), (1.0, TypeError), (None, TypeError), (-1, ValueError), (2**32, ValueError)],
)
def test_what_is_no_epoch_is_refused(wrong: Any, kind: type[Exception]) -> None:
    epoch = Epoch()
    with pytest.raises(kind, match=f"epoch={wrong!r} .*; pass the count of epochs before it"):
        epoch.set(wrong)
    assert epoch.value == 0
    assert epoch.users is None
