"""What each rank of test_batch_plan_ranks.py runs: find_batch_size on two gloo ranks under DDP."""

import os
from typing import Any

import torch
import torch.distributed as dist
from batch_trials_rig import Training
from torch.nn.parallel import DistributedDataParallel

import fastloop

RANK = int(os.environ["RANK"])


def refusal(*args: Any, **kwargs: Any) -> str:
    try:
        fastloop.find_batch_size(*args, **kwargs)
    except (RuntimeError, ValueError) as error:
        return str(error)
    raise AssertionError("found a plan")


def case_one_rank_has_less_memory() -> None:
    """Both find what the smaller one can, and training goes on in step."""
    training = Training(limit=5 if RANK else 30, wrap=DistributedDataParallel)
    before = training.digest()
    plan = fastloop.find_batch_size(training.step, *training.state, batch_size=64, trials=1)
    assert (plan.largest, plan.ranks, plan.effective_batch) == (4, 2, 64), plan
    why = [trial.why for trial in plan.attempts if trial.why]
    assert why[0].startswith("OutOfMemoryError" if RANK else "out of memory on a different rank")
    plans: list[object] = [None, None]
    dist.all_gather_object(plans, (plan.micro_batch, plan.accumulate, plan.attempts[0].seconds))
    assert plans[0] == plans[1]
    assert training.digest() == before
    training.step(3)  # reduces
    gradient = training.plain[4].bias.grad
    gradients = [torch.empty_like(gradient), torch.empty_like(gradient)]
    dist.all_gather(gradients, gradient)
    assert torch.equal(*gradients)


def case_one_rank_raises() -> None:
    training = Training(limit=5 if RANK else 100, error=ZeroDivisionError)
    before = training.digest()
    try:
        fastloop.find_batch_size(training.step, *training.state, batch_size=64, trials=1)
    except ZeroDivisionError:
        assert RANK == 1
    except RuntimeError as error:
        assert RANK == 0 and "find_batch_size() failed" in str(error)
    else:
        raise AssertionError("found a plan")
    assert training.digest() == before


def case_arguments_differ() -> None:
    training = Training()
    text = "or got different arguments on a different rank"
    assert text in refusal(training.step, *training.state, batch_size=64 + 2 * RANK)
    text = "hi must be an int >= 1, got 0" if RANK else "failed or got different arguments"
    assert text in refusal(training.step, *training.state, batch_size=64, hi=0 if RANK else 8)
    text = "batch_size must be divisible by 2 ranks x a micro-batch in [1, 3], got 7"
    assert text in refusal(training.step, *training.state, batch_size=7)


def case_modules_that_wait_for_others_are_refused() -> None:
    training = Training()
    static = DistributedDataParallel(training.plain, static_graph=True)
    synced = torch.nn.SyncBatchNorm.convert_sync_batchnorm(training.plain)
    for module in (static, synced):
        text = "no module that waits for other ranks"
        assert text in refusal(training.step, module, training.optimizer, batch_size=64)


torch.set_num_threads(1)
dist.init_process_group("gloo")
for case in (
    case_one_rank_has_less_memory,
    case_one_rank_raises,
    case_arguments_differ,
    case_modules_that_wait_for_others_are_refused,
):
    case()
    print(case.__name__, "fine", flush=True)
dist.destroy_process_group()
