"""Stepper(max_norm_spike=): which windows are spikes, what a spike leaves alone, states; against a
plain list of norms."""

import copy
import math
import random
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stepper_runs import INF, Run

import fastloop
from fastloop import ArrayDataset, DataLoader, Stepper
from fastloop.loader.resume.recent import SizeWatch, find_rows
from fastloop.step.norm_guard import NormGuard
from fastloop.step.window import Lookahead

FACTOR = 5.0


def spike_of(norms: list[float], norm: float) -> bool:
    recent = [n for n in norms[-128:] if math.isfinite(n)]
    if len(recent) < 16 or not math.isfinite(norm):
        return False
    return norm > FACTOR * statistics.median_low(recent)


def warmed(steps: int = 20, **kwargs: Any) -> Run:
    run = Run(1, max_norm_spike=FACTOR, **kwargs)
    for seed in range(steps):
        run.micro(seed)
    assert run.stepper.spikes == 0
    return run


def spike(run: Run, spoil: float = 1e4) -> None:
    with pytest.warns(UserWarning, match=r"the norm \S+ of window \d+ is above"):
        run.micro(3, spoil=spoil)


def every_scaler() -> list[Any]:
    ours = fastloop.GradScaler("cpu", init_scale=8.0)
    return [None, ours, torch.amp.GradScaler("cpu", init_scale=8.0)]


@pytest.mark.parametrize("seed", range(2))
def test_spikes_are_the_norms_above_the_median(seed: int) -> None:
    rng = random.Random(seed)
    run, norms, expected = Run(1, max_norm_spike=FACTOR), [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(300):
            # A level that stays high becomes the median; inf and NaN are not counted.
            level = 100.0 if 150 < i < 250 else 1.0
            spoil = rng.choice([INF, 30.0, 1.0, 1.0, 1.0, 0.5]) * level
            before = run.parameters()
            run.micro(i, spoil=spoil)
            assert run.stepper.last_norm is not None
            norm = run.stepper.last_norm.item()
            is_spike = spike_of(norms, norm)
            expected += is_spike
            assert run.stepper.spikes == expected
            assert (run.parameters() == before) == (is_spike or not math.isfinite(norm))
            # As the ring does, the list has a place for a norm that is not finite.
            norms.append(norm)
    assert expected > 10


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("way", [{}, {"accum_dtype": torch.float64}])
def test_a_spike_is_skipped_and_the_scale_stays(kind: int, fused: bool, way: Any) -> None:
    scaler = every_scaler()[kind]
    run = warmed(fused=fused, scaler=scaler, schedule=0.5, **way)
    before, lr = run.parameters(), run.optimizer.param_groups[0]["lr"]
    buffers = [s["momentum_buffer"].clone() for s in run.optimizer.state.values()]
    spike(run)
    after = [s["momentum_buffer"] for s in run.optimizer.state.values()]
    assert run.parameters() == before and all(map(torch.equal, buffers, after))
    assert (run.stepper.stepped, run.stepper.skipped, run.stepper.spikes) == (20, 1, 1)
    assert run.optimizer.param_groups[0]["lr"] == lr and not run.has_gradients()
    if scaler is not None:
        assert scaler.get_scale() == 8.0
    run.micro(4)
    assert run.stepper.stepped == 21 and run.parameters() != before
    run.micro(5, spoil=INF)  # not finite: no spike, and the scale backs off
    assert (run.stepper.skipped, run.stepper.spikes) == (2, 1)
    assert scaler is None or scaler.get_scale() == 4.0


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_a_spike_is_clipped(kind: int, fused: bool, max_norm: float | None) -> None:
    kwargs: Any = {"fused": fused, "max_norm": max_norm, "scaler": every_scaler()[kind]}
    run, other = warmed(on_spike="clip", **kwargs), Run(1, **kwargs)
    for seed in range(20):
        other.micro(seed)
    assert run.parameters() == other.parameters()  # no spike: not a bit differs
    norms = run.stepper.state_dict()["norms"]["norms"]
    limit = FACTOR * statistics.median_low(norms)
    seen: list[float] = []

    def see(optimizer: Any, args: Any, kwargs: Any) -> None:
        grads = [p.grad.flatten() for p in run.model.parameters() if p.grad is not None]
        scale = getattr(optimizer, "grad_scale", None)
        seen.append((torch.cat(grads).norm() / (1.0 if scale is None else scale)).item())

    run.optimizer.register_step_pre_hook(see)
    spike(run)
    assert seen[0] == pytest.approx(min(limit, max_norm or limit), rel=1e-4)
    assert (run.stepper.stepped, run.stepper.skipped, run.stepper.spikes) == (21, 0, 1)


def test_a_spike_names_its_batches() -> None:
    run = Run(2, max_norm_spike=FACTOR)
    dataset = torch.utils.data.TensorDataset(torch.arange(50.0))
    with pytest.warns(UserWarning, match=r"window 20 \(batches 40 to 41 of this loop;") as told:
        for i, _ in enumerate(run.stepper.iterate(DataLoader(dataset))):
            run.micro(i, spoil=1e4 if i == 41 else 1.0)
    assert len(told) == 1 and run.stepper.spikes == 1


SAMPLES = list(range(60))
VECTOR = ArrayDataset(torch.arange(60))
TWICE = torch.utils.data.RandomSampler(SAMPLES, num_samples=100, replacement=True)  # many blocks
LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "threads": lambda: DataLoader(SAMPLES, 3, shuffle=True, num_workers=2, path="thread"),
    "no workers": lambda: DataLoader(SAMPLES, 3, shuffle=True),
    "a device, no workers": lambda: DataLoader(SAMPLES, 3, shuffle=True, batch_transform=_same),
    "arrays": lambda: DataLoader(VECTOR, 3, shuffle=True),
    "arrays, threads": lambda: DataLoader(VECTOR, 3, shuffle=True, num_workers=2),
    "arrays, ahead": lambda: DataLoader(
        VECTOR, 3, shuffle=True, num_workers=2, persistent_workers=True, epochs_ahead=1
    ),
    "arrays in order": lambda: DataLoader(VECTOR, 3),
    "arrays, small blocks": lambda: DataLoader(VECTOR, 3, sampler=TWICE, num_workers=2),
    "arrays, own batches": lambda: DataLoader(
        VECTOR, batch_sampler=[[i, 59 - i] for i in range(60)], num_workers=2
    ),
}


def _same(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize("resumed", [0, 7])
@pytest.mark.parametrize("name", LOADERS)
def test_a_spike_names_the_samples_of_its_batches(name: str, resumed: int) -> None:
    run, loader = warmed(20), LOADERS[name]()
    for _ in range(0 if resumed else 3):
        assert len(list(loader)) > 15
    if resumed:
        for number, _ in enumerate(loader, 1):
            if number == resumed:
                state = loader.state_dict()
                break
        loader.load_state_dict(state)
    samples: list[str] = []
    with pytest.warns(UserWarning, match="is above") as told:
        for number, batch in enumerate(run.stepper.iterate(loader), resumed):
            rows = batch[0] if isinstance(batch, list | tuple) else batch
            if number in (9, 15):
                samples.append(f"samples of {number}: {rows.tolist()}")
            run.micro(number, spoil=1e4 if number in (9, 15) else 1.0)
    texts = [str(each.message) for each in told]
    assert len(texts) == 2 and all(map(str.__contains__, texts, samples))


@pytest.mark.parametrize(
    ("size", "how"), [(2, {}), (3, {"num_workers": 2, "in_order": False})], ids=["size", "order"]
)
def test_no_wrong_samples_are_named(size: int, how: dict[str, Any]) -> None:
    run, loader = warmed(20), DataLoader(VECTOR, 3, shuffle=True, **how)
    with pytest.warns(UserWarning, match=r"\(batches 9 to 9 of this loop\) is above"):
        for number, _ in enumerate(run.stepper.iterate(loader)):
            loader.batch_sampler.batch_size = size  # type: ignore[union-attr]
            run.micro(number, spoil=1e4 if number == 9 else 1.0)


@pytest.mark.parametrize("name", ["arrays", "arrays, threads", "arrays in order"])
def test_a_batch_size_that_has_changed_for_a_while_names_no_samples(name: str) -> None:
    run, loader = warmed(20), LOADERS[name]()
    with pytest.warns(UserWarning, match=r"\(batches 9 to 9 of this loop\) is above"):
        for number, _ in enumerate(run.stepper.iterate(loader)):
            loader.batch_sampler.batch_size = 2 if 3 <= number < 5 else 3  # type: ignore[union-attr]
            run.micro(number, spoil=1e4 if number == 9 else 1.0)


class Refilled:
    """A batch sampler that yields one list again and again."""

    def __iter__(self) -> Any:
        batch: list[int] = []
        for number in range(20):
            batch[:] = [number, 59 - number]
            yield batch

    def __len__(self) -> int:
        return 20


@pytest.mark.parametrize(
    "how", [{}, {"num_workers": 2}, {"num_workers": 2, "path": "thread"}], ids=str
)
@pytest.mark.parametrize("dataset", [VECTOR, SAMPLES], ids=["arrays", "list"])
def test_a_list_that_the_sampler_refills_names_no_samples(dataset: Any, how: Any) -> None:
    run, loader = warmed(20), DataLoader(dataset, batch_sampler=Refilled(), **how)
    with pytest.warns(UserWarning, match=r"\(batches 9 to 9 of this loop\) is above"):
        for number, _ in enumerate(run.stepper.iterate(loader)):
            run.micro(number, spoil=1e4 if number == 9 else 1.0)


@pytest.mark.parametrize("name", ["arrays", "arrays, threads", "threads"])
def test_the_samples_of_a_loop_that_has_begun(name: str) -> None:
    """Batches count from the begin of the epoch. Nobody has asked to keep the first ones."""
    with LOADERS[name]() as loader:
        loader._keep_indices()
        iterator = iter(loader)
        first = [next(iterator) for _ in range(2)]
        loop = Lookahead(iterator, names_samples=True)
        batch = loop.take()
        rows = batch[0] if isinstance(batch, list) else batch
        assert loop.describe(range(2, 3)).endswith(f"samples of 2: {rows.tolist()}")
        del first


def test_indices_are_kept_if_somebody_asks() -> None:
    loader = DataLoader(VECTOR, 3, shuffle=True, num_workers=2)
    next(iterator := iter(loader))
    assert len(iterator._recent) == 0 and iterator.keep_indices()(0) is None


def test_rows_that_are_gone_are_not_named() -> None:
    sampler = torch.utils.data.BatchSampler(range(9), 4, False)
    blocks: Any = [(torch.arange(5, 8), 5), (torch.arange(8, 9), 8), ((20, 3), 9)]
    found = [find_rows(blocks, SizeWatch(sampler), number) for number in range(5)]
    assert found == [None, None, [8, 20, 21, 22], None, None]


def test_an_infinite_norm_is_no_spike() -> None:
    guard = NormGuard(FACTOR, clips=False)
    guard.name = lambda: "window"
    for norm in [1.0] * 20 + [INF, math.nan, 4.9, 5.1]:
        flag, limit = guard.watch(torch.tensor(norm, dtype=torch.float64))
    assert flag == 1.0 and limit == 5.0
    with pytest.warns(UserWarning, match=r"norm 5\.1 of window is above 5, 5 times the median"):
        guard.settle()
    assert guard.spikes == 1


def test_a_warning_that_is_an_error_comes_when_all_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    run, done = warmed(), []
    monkeypatch.setattr(run.stepper._ranks, "finish_window", lambda: done.append(True))
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="is above"):
        warnings.simplefilter("error")
        run.micro(3, spoil=1e4)
    assert done and run.stepper.skipped == run.stepper.spikes == 1


def test_norms_are_saved() -> None:
    for steps in (5, 200):
        run, other = warmed(steps), Run(1, max_norm_spike=FACTOR)
        other.stepper.load_state_dict(run.stepper.state_dict())
        other.model.load_state_dict(run.model.state_dict())
        other.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
        for i in range(30):
            for each in (run, other):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    each.micro(i, spoil=1e4 if i == 20 else 1.0)
            assert run.stepper.state_dict() == other.stepper.state_dict()
        assert run.stepper.spikes == 1
    plain = Run(1)
    plain.stepper.load_state_dict(run.stepper.state_dict())  # without a guard the norms are left
    run.stepper.load_state_dict(plain.stepper.state_dict())  # and without norms it begins anew
    assert plain.stepper.spikes == run.stepper.spikes == 0
    older = plain.stepper.state_dict()
    del older["norms"]  # as before there were guards
    run.stepper.load_state_dict(older)


def test_bad_arguments() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    with pytest.raises(ValueError, match=r"max_norm_spike must be a number >= 1, got 0\.5"):
        Stepper(optimizer, max_norm_spike=0.5)
    with pytest.raises(ValueError, match="on_spike must be one of 'skip', 'clip', got 'stop'"):
        Stepper(optimizer, max_norm_spike=2, on_spike="stop")
    state = Stepper(optimizer, max_norm_spike=2).state_dict()
    for norms, error in (({"norms": 3, "spikes": 0}, TypeError), ({"norms": []}, ValueError)):
        with pytest.raises(error, match=r"state\['norms'\]"):
            Stepper(optimizer, max_norm_spike=2).load_state_dict({**state, "norms": norms})
