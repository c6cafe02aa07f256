"""Ctrl-C while a batch is awaited. The bar is 200 ms; the tests allow two seconds of the processor,
where the batch itself would take many."""

from pathlib import Path

import pytest
from helpers import run_program


def test_ctrl_c_ends_a_wait_and_the_loader_goes_on(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "signals/ctrl_c_ends_a_wait_and_the_loader_goes_on",
    )


@pytest.mark.slowest
def test_the_iterator_goes_on_after_ctrl_c(tmp_path: Path) -> None:
    """Without workers the batch that was being made is gone, as in torch; what threads have made
    ahead is kept."""
    run_program(
        tmp_path,
        "signals/the_iterator_goes_on_after_ctrl_c",
    )


@pytest.mark.slowest
def test_a_handler_that_returns_lets_the_wait_go_on(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "signals/a_handler_that_returns_lets_the_wait_go_on",
    )


@pytest.mark.slowest
def test_ctrl_c_while_another_thread_is_in_next(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "signals/ctrl_c_while_another_thread_is_in_next",
    )


def test_our_threads_take_no_signals(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "signals/our_threads_take_no_signals",
    )


def test_what_follows_a_handler_that_raises_is_in_order(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "signals/raising_handlers_leave_the_order",
    )


def test_a_handler_that_raises_loses_one_batch(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "signals/a_handler_at_each_step_loses_one_batch",
    )
