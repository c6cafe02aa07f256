"""What a worker has published before it died is delivered, its last batch or its own error, and not
the news of its death."""

from pathlib import Path

import pytest
from helpers import run_program


@pytest.mark.slowest
def test_a_reply_wins_over_the_death_of_its_writer(tmp_path: Path) -> None:
    """Its reply comes after replies that ask for more memory, and before its batch is due."""
    run_program(
        tmp_path,
        "process_replies/a_reply_wins_over_the_death_of_its_writer",
    )


def test_death_at_every_step_after_publishing(tmp_path: Path) -> None:
    """The worker's: after each line of Python that follows its reply. The parent's: it learns of
    reply and death at each line of its wait."""
    run_program(
        tmp_path,
        "process_replies/death_at_every_step_after_publishing",
    )
