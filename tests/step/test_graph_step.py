"""graph_step() over a stand-in for torch's CUDA graphs: what is captured does not run, and what it
is replayed on is what then lies in its memory. Losses and weights are those of a plain loop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from helpers import bits
from torch import Tensor, nn
from torch.amp.grad_scaler import OptState

import fastloop
import fastloop.step.graph as graphs
from fastloop import ArrayDataset, DataLoader, GradScaler, graph_step

COUNT, BATCH = 30, 8
DATA = torch.randn(COUNT, 5, generator=torch.Generator().manual_seed(0))


class Stream:
    def __init__(self, rig: Any, name: str) -> None:
        self.rig, self.name, self.device = rig, name, torch.device("cpu")

    def wait_stream(self, other: Any) -> None:
        self.rig.events.append(f"{self.name} waits for {other.name}")


class Graph:
    def __init__(self, rig: Any) -> None:
        self.rig = rig
        self.calls: list[Callable[[], object]] = []

    def replay(self) -> None:
        assert self.rig.capturing is None
        self.rig.events.append(f"replay on {self.rig.current.name}")
        for call in self.calls:
            call()


class Rig:
    """Takes the place of torch.cuda, for tensors of the CPU."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.main = self.current = Stream(self, "main")
        self.capturing: Graph | None = None
        self.CUDAGraph = lambda: Graph(self)
        self.Stream = lambda device: Stream(self, "side")
        self.current_stream = lambda device: self.current
        self.is_available = lambda: True

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph: Graph, *, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        self.capturing, before, self.current = graph, self.current, stream
        try:
            yield
        finally:
            self.capturing = None
        self.events.append(f"captured on {stream.name}")
        self.current = before  # which torch leaves out where the capture fails


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    made = Rig()
    monkeypatch.setattr(graphs, "cuda", made)
    monkeypatch.setattr(graphs, "_DEVICES", ("cpu",))
    return made


class Training:
    """A model and its step; the step is `graphed` if a rig is given."""

    def __init__(self, rig: Rig | None = None, lr: float = 0.1) -> None:
        torch.manual_seed(1)
        self.rig, self.model = rig, nn.Linear(5, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr, momentum=0.9)
        self.scaler = GradScaler("cpu", init_scale=16.0)
        self.out, self.fails, self.calls = torch.full((), -1.0), False, 0

    def train(self, batch: Any) -> Tensor:
        (x,) = batch
        loss = self.model(x).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_and_clip_(self.optimizer, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()

    def step(self, batch: Any) -> Tensor:
        self.calls += 1
        if self.rig is None or self.rig.capturing is None:
            return self.train(batch)
        self.rig.capturing.calls.append(lambda: self.out.copy_(self.train(batch)))
        if self.fails:  # in the middle, with gradients that were never computed
            self.model.weight.grad = torch.full_like(self.model.weight, 1e9)
            self.scaler._per_optimizer_states[id(self.optimizer)]["stage"] = OptState.UNSCALED
            raise RuntimeError("operation not permitted when stream is capturing")
        return self.out

    def weights(self) -> list[bytes]:
        return [bits(parameter) for parameter in self.model.parameters()]


def loader(**more: Any) -> Any:
    return DataLoader(ArrayDataset(DATA), BATCH, **more)


def run_both(rig: Rig, epochs: int = 3, **more: Any) -> tuple[Training, Any]:
    """Train with and without the graph: losses and weights have the same bits."""
    plain, ours = Training(), Training(rig)
    ours.fails = more.pop("fails", False)
    steps = graph_step(ours.step, loader(), **more)
    for _ in range(epochs):
        expected = [plain.step(batch) for batch in loader()]
        found = list(steps)
        assert list(map(bits, found)) == list(map(bits, expected))
        assert ours.weights() == plain.weights()
    return ours, steps


def test_losses_and_weights_are_those_of_the_loop(rig: Rig) -> None:
    ours, steps = run_both(rig)
    # Of 12 batches 3 are short, 3 are for the warm-up; one call is the capture.
    assert steps.reason == "" and steps.replays == 6 and ours.calls == 3 + 3 + 1
    assert rig.current is rig.main


def test_the_order_is_torchs(rig: Rig) -> None:
    run_both(rig, epochs=2, warmup=2)
    aside = ["side waits for main", "main waits for side"]
    replay = ["replay on main"]
    captured = ["captured on side", *replay]
    assert rig.events == [*aside * 2, *captured, *aside, *replay * 3, *aside]


def test_warm_up_steps_run_on_the_side_stream(rig: Rig) -> None:
    seen = []
    for _ in graph_step(lambda batch: seen.append(rig.current.name), loader(), warmup=2):
        pass
    assert seen == ["side", "side", "side", "side"]  # two, the capture, and the short batch


def test_no_short_batch_is_captured(rig: Rig) -> None:
    """Not even where the warm-up is over when it comes."""
    _, steps = run_both(rig, epochs=2, warmup=3)
    assert steps.replays == 3


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_capture_that_fails_is_told_once_and_changes_nothing(rig: Rig) -> None:
    why = "cannot be captured: RuntimeError: operation not permitted when stream is capturing"
    with pytest.warns(RuntimeWarning, match=why) as caught:
        _, steps = run_both(rig, fails=True)
    assert len(caught) == 1 and why in steps.reason and steps.replays == 0
    assert caught[0].filename == __file__
    assert rig.current is rig.main


def test_a_learning_rate_that_changes_ends_the_graph(rig: Rig) -> None:
    plain, ours = Training(), Training(rig)
    steps = graph_step(ours.step, loader())
    for epoch in range(3):
        for each in (plain, ours):
            each.optimizer.param_groups[0]["lr"] = (0.1, 0.1, 0.05)[epoch]
        expected = [plain.step(batch) for batch in loader()]
        if epoch == 2:
            with pytest.warns(RuntimeWarning, match=r"an optimizer's lr has become 0\.05"):
                found = list(steps)
        else:
            found = list(steps)
        assert list(map(bits, found)) == list(map(bits, expected))
    assert steps.replays == 3 and ours.weights() == plain.weights()


def test_a_learning_rate_that_is_a_tensor_may_change(rig: Rig) -> None:
    ours = Training(rig)
    ours.optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    steps = graph_step(ours.step, loader())
    list(steps)
    ours.optimizer.param_groups[0]["lr"].fill_(0.05)
    list(steps)
    assert steps.reason == "" and steps.replays == 3


def test_results_and_batches_of_any_structure(rig: Rig) -> None:
    """Numbers are part of the graph, so a batch with others is not replayed."""
    batches = [{"x": torch.full((2,), float(i)), "n": min(i, 5), "name": "a"} for i in range(7)]
    out = {"sum": torch.zeros(()), "n": 0}

    def step(batch: Any) -> Any:
        if rig.capturing is None:
            return {"sum": batch["x"].sum() * batch["n"], "n": batch["n"]}
        call = lambda: out["sum"].copy_(batch["x"].sum() * batch["n"])  # type: ignore[attr-defined]  # noqa: E731
        rig.capturing.calls.append(call)
        return {**out, "n": batch["n"]}

    alike = [{**batch, "n": 5} for batch in batches]
    steps = graph_step(step, alike, warmup=1)
    found = list(steps)
    assert [each["sum"].item() for each in found] == [2.0 * 5 * i for i in range(7)]
    assert {each["n"] for each in found} == {5} and steps.replays == 6
    steps = graph_step(step, batches, warmup=1)
    assert [each["sum"].item() for each in steps] == [2.0 * i * min(i, 5) for i in range(7)]
    assert steps.replays == 0 and steps.reason == ""


def test_batches_of_the_cpu_are_plain_calls() -> None:
    plain, ours = Training(), Training()
    steps = graph_step(ours.step, loader())
    found, expected = list(steps), [plain.step(batch) for batch in loader()]
    assert list(map(bits, found)) == list(map(bits, expected))
    rule = "batch[0] must be a dense tensor on a CUDA device or a number, got cpu"
    assert steps.reason == rule


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ([1, "a"], "a batch holds no tensor"),
        ([torch.ones(2), object()], r"batch\[1\] must be .*, got object"),
        ([torch.ones(2).to_sparse()], r"batch\[0\] must be a dense tensor"),
    ],
)
def test_what_no_graph_takes(rig: Rig, batch: Any, reason: str) -> None:
    steps = graph_step(lambda batch: batch, [batch, batch])
    with pytest.warns(RuntimeWarning, match=reason):
        assert list(steps) == [batch, batch]


def test_a_torch_whose_scaler_is_another(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "difference", lambda group: f"{group} is another")
    with pytest.warns(RuntimeWarning, match="scaler is another"):
        _, steps = run_both(rig)
    assert steps.replays == 0


def test_its_length_is_the_loaders() -> None:
    assert len(graph_step(torch.sum, DataLoader(DATA, BATCH))) == 4
    with pytest.raises(TypeError, match="no len"):
        len(graph_step(torch.sum, iter(DATA)))


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="step must be a function of a batch, got 3"):
        graph_step(3, [])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="warmup must be an int >= 1, got 0"):
        graph_step(print, [], warmup=0)
    assert isinstance(fastloop.graph_step(print, []), fastloop.GraphStep)
