"""What the tests of PadCollate and PackCollate share."""

from typing import Any

from compare import assert_identical

from fastloop.data.sequences.pad import SequenceCollate


def by_torch(collate: SequenceCollate, samples: Any) -> Any:
    return collate.collate(None, samples)


def both(collate: SequenceCollate, samples: Any) -> Any:
    """The batch of C, which torch's functions make too."""
    batch = collate(samples)
    assert_identical(batch, by_torch(collate, samples))
    return batch


def core_of(collate: SequenceCollate) -> Any:
    collate([[1]])
    return collate._own
