"""graph_step() over a stand-in for torch's CUDA graphs. Losses and weights are those of a plain
loop."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from helpers import bits
from recorded_graphs import Rig
from torch import Tensor, nn
from torch.amp import GradScaler

import fastloop
import fastloop.step.graph as graphs
from fastloop import ArrayDataset, DataLoader, GraphStep, graph_step

COUNT, BATCH = 30, 8
DATA = torch.randn(COUNT, 5, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    made = Rig()
    monkeypatch.setattr(graphs, "cuda", made)
    monkeypatch.setattr(graphs, "_DEVICES", ("cpu",))
    return made


class Training:
    """A model and its step, which is told by `rig` that a capture goes on."""

    def __init__(self, rig: Rig | None = None, lr: float = 0.1) -> None:
        torch.manual_seed(1)
        self.rig, self.model = rig, nn.Linear(5, 3)
        # A fused optimizer, because torch's scaler asks the device before all others step.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr, momentum=0.9, fused=True)
        self.scaler = GradScaler("cpu", init_scale=16.0)
        self.fails, self.calls = False, 0

    def step(self, batch: Any) -> Tensor:
        self.calls += 1
        loss = self.backward(batch)
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if self.fails and self.rig and self.rig.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss

    def backward(self, batch: Any) -> Tensor:
        loss = self.model(batch[0]).square().mean()
        self.scaler.scale(loss).backward()
        return loss.detach()

    def weights(self) -> list[bytes]:
        return [bits(parameter) for parameter in self.model.parameters()]


def loader(**more: Any) -> Any:
    return DataLoader(ArrayDataset(DATA), BATCH, **more)


def run_both(
    ours: Training,
    batches: Callable[[], Iterable[Any]] = loader,
    step: str = "step",
    epochs: int = 3,
    **more: Any,
) -> GraphStep:
    """Train with and without graphs: losses and weights have the same bits."""
    plain = type(ours)()
    steps = graph_step(getattr(ours, step), batches(), **more)
    by_hand = graph_step(getattr(plain, step), batches(), **more)  # on the CPU: plain calls
    by_hand.reason = "by hand"
    for _ in range(epochs):
        expected, found = list(by_hand), list(steps)
        assert list(map(bits, found)) == list(map(bits, expected))
        assert ours.weights() == plain.weights()
    return steps


def test_losses_and_weights_are_those_of_the_loop(rig: Rig) -> None:
    ours = Training(rig)
    steps = run_both(ours)
    # Of 9 whole batches 3 are for the warm-up; of 3 short ones the first is called.
    assert steps.reason == "" and steps.replays == 6 + 2 and ours.calls == 3 + 1 + 2
    assert steps.stats() == {
        "called: warm-up": 3,
        "called: the first batch of its shape": 1,
        "replayed for [8, 5]": 6,
        "replayed for [6, 5]": 2,
    }
    assert rig.current is rig.main


def test_the_order_is_torchs(rig: Rig) -> None:
    run_both(Training(rig), epochs=2, warmup=2)
    aside = ["side waits for main", "main waits for side"]
    replay = ["replay on main"]
    captured = ["captured on side", *replay]
    assert rig.events == [*aside * 2, *captured, *aside, *replay * 3, *captured]


def test_warm_up_steps_run_on_the_side_stream(rig: Rig) -> None:
    seen = []
    for _ in graph_step(lambda batch: seen.append(rig.current.name), loader(), warmup=2):
        pass
    assert seen == ["side", "side", "side", "side"]  # two, the capture, and the short batch


def padded() -> list[Any]:
    """Batches of four lengths; the last comes once."""
    lengths = [3, 3, 5, 3, 7, 5, 5, 3, 7, 9, 7, 3, 5]
    draws = torch.Generator().manual_seed(2)
    return [(torch.randn(length, 5, generator=draws),) for length in lengths]


def test_padded_lengths_have_a_graph_each_in_one_pool(rig: Rig) -> None:
    steps = run_both(Training(rig), padded, epochs=1)
    assert steps.stats() == {
        "called: warm-up": 3,  # 3, 3, 5
        "called: the first batch of its shape": 2,  # 7 and 9
        "replayed for [3, 5]": 3,
        "replayed for [5, 5]": 3,
        "replayed for [7, 5]": 2,
    }
    assert len(rig.pools) == 3 and len(set(rig.pools)) == 1
    run_both(Training(rig), padded, epochs=1)
    assert len(set(rig.pools)) == 2  # another GraphStep may run at the same time


def test_shapes_beyond_max_graphs_are_called(rig: Rig) -> None:
    steps = run_both(Training(rig), padded, epochs=2, max_graphs=2)
    stats = steps.stats()
    assert steps.reason == "" and len(rig.graphs) == 2
    assert stats["called: max_graphs=2 shapes have a graph"] == 2 + 4
    assert stats["replayed for [3, 5]"] == 3 + 5 and stats["replayed for [5, 5]"] == 3 + 4
    assert sum(stats.values()) == 26


def test_a_number_that_always_changes_fills_no_memory(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "_FEW_SHAPES", 10)
    steps = graph_step(lambda batch: batch[0] * 1, [(torch.ones(2), i) for i in range(35)])
    list(steps)
    assert steps.stats() == {"called: warm-up": 3, "called: the first batch of its shape": 32}
    assert len(steps._seen) <= 10


def test_numbers_of_other_types_are_other_shapes(rig: Rig) -> None:
    """1 equals True, but a step may tell them apart."""
    batches = [(torch.ones(2), n) for n in (1, 1, True, 1, True, True)]
    steps = graph_step(lambda batch: batch[0] + (type(batch[1]) is bool), batches, warmup=1)
    assert [found[0].item() for found in steps] == [1, 1, 2, 1, 2, 2]
    assert steps.replays == 4


class Windows(Training):
    """Steps that take a window of batches, or should."""

    index = 0  # of the last batch, from 1

    def whole(self, window: list[Any]) -> Tensor:
        losses = [self.backward(batch) for batch in window]
        self.finish()
        return torch.stack(losses)

    def finish(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def counted(self) -> Iterator[Any]:
        for batch in loader(drop_last=True):
            self.index += 1
            yield batch

    def by_index(self, batch: Any, size: int, is_kept: bool) -> Tensor:
        """The host decides where a window ends, which no graph sees."""
        loss = self.backward(batch)
        if self.index % size == 0:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=not is_kept)
        return loss


@pytest.mark.parametrize("accumulate", [2, 3, 4, 5])
def test_a_window_is_one_step(rig: Rig, accumulate: int) -> None:
    """An epoch has four batches, of which the last is short."""
    steps = run_both(Windows(rig), step="whole", epochs=4, accumulate=accumulate, warmup=2)
    windows = -(-4 // accumulate)
    assert len(steps) == windows and steps.reason == "" and steps.replays >= 4 * windows - 4


def test_the_last_window_may_be_short() -> None:
    steps = graph_step(list, range(7), accumulate=3)
    assert [*steps] == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize(
    ("size", "index", "warmup"), [(2, 0, 3), (3, 0, 3), (4, 0, 3), (5, 0, 3), (8, 0, 3), (2, 1, 2)]
)
def test_a_window_that_the_host_ends_is_refused(
    rig: Rig, size: int, index: int, warmup: int, is_kept: bool
) -> None:
    ours, plain = Windows(rig), Windows()
    ours.index = plain.index = index
    steps = graph_step(lambda batch: ours.by_index(batch, size, is_kept), [], warmup=warmup)
    with pytest.warns(RuntimeWarning, match=r"pass accumulate= for windows") as caught:
        for _ in range(4):
            expected = [plain.by_index(batch, size, is_kept) for batch in plain.counted()]
            steps._loader = ours.counted()
            assert list(map(bits, steps)) == list(map(bits, expected))
            assert ours.weights() == plain.weights()
    assert len(caught) == 1 and caught[0].filename == __file__ and steps.replays == 0


def test_an_optimizer_that_some_calls_leave_out_is_refused(rig: Rig) -> None:
    pair, calls = [torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1) for _ in range(2)], []

    def step(batch: Tensor) -> Tensor:
        calls.append(batch)
        for optimizer in pair[: len(calls) % 2 + 1]:
            optimizer.step()
        return batch * 2

    with pytest.warns(RuntimeWarning, match="the same optimizers as all other calls"):
        list(graph_step(step, [torch.ones(2)] * 2, warmup=1))


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("is_kept", [False, True])
def test_gradients_may_be_zeroed_anywhere(rig: Rig, is_first: bool, is_kept: bool) -> None:
    class Zeroes(Training):
        def step(self, batch: Any) -> Tensor:
            if is_first:
                self.optimizer.zero_grad(set_to_none=not is_kept)
            loss = self.backward(batch)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if not is_first:
                self.optimizer.zero_grad(set_to_none=not is_kept)
            return loss

    assert run_both(Zeroes(rig)).replays == 8


def test_a_later_shape_that_cannot_be_captured_ends_all_graphs(rig: Rig) -> None:
    class Waits(Training):
        def step(self, batch: Any) -> Tensor:
            loss = super().step(batch)
            return loss if len(batch[0]) == BATCH else torch.tensor(loss.item())

    with pytest.warns(RuntimeWarning, match="not permitted when stream is capturing"):
        steps = run_both(Waits(rig))
    assert steps.replays == 3 and len(steps._graphs) == 0
    calls = {how: n for how, n in steps.stats().items() if "cannot be captured" in how}
    assert [*calls.values()] == [1 + 4]


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_capture_that_fails_is_told_once_and_changes_nothing(rig: Rig) -> None:
    why = "cannot be captured: RuntimeError: operation not permitted when stream is capturing"
    with pytest.warns(RuntimeWarning, match=why) as caught:
        ours = Training(rig)
        ours.fails = True
        steps = run_both(ours)
    assert len(caught) == 1 and why in steps.reason and steps.replays == 0
    assert caught[0].filename == __file__
    assert rig.current is rig.main


def test_an_optimizer_that_refuses_a_capture_keeps_nothing_of_its_scaler(rig: Rig) -> None:
    """torch's scaler hands a fused optimizer its scale by attributes, as long as step() runs."""

    def refuse(*_: object) -> None:
        if rig.capturing:
            raise RuntimeError("Attempting CUDA graph capture of step() for an instance of Adam")

    ours = Training(rig)
    ours.optimizer.register_step_pre_hook(refuse)
    with pytest.warns(RuntimeWarning, match="an instance of Adam"):
        assert run_both(ours).replays == 0


def test_an_interrupt_in_a_capture_keeps_nothing_of_the_capture(rig: Rig) -> None:
    def interrupt(*_: object) -> None:
        if rig.capturing:
            raise KeyboardInterrupt

    plain, ours = Training(), Training(rig)
    handle = ours.optimizer.register_step_pre_hook(interrupt)
    batches = [*loader(), *loader()]
    steps = graph_step(ours.step, batches)
    with pytest.raises(KeyboardInterrupt):
        list(steps)
    handle.remove()
    taken = ours.calls - 1
    ours.step(batches[taken])
    for batch in batches[: taken + 1]:
        plain.step(batch)
    assert ours.weights() == plain.weights()


def test_groups_of_an_optimizer_may_hold_any_object(rig: Rig) -> None:
    ours = Training(rig)
    ours.optimizer.param_groups[0]["plan"] = {"no": "hash"}
    assert run_both(ours).replays > 0


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
    assert steps.replays == 4 and ours.weights() == plain.weights()


def test_a_learning_rate_that_is_a_tensor_may_change(rig: Rig) -> None:
    ours = Training(rig)
    ours.optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    steps = graph_step(ours.step, loader())
    list(steps)
    ours.optimizer.param_groups[0]["lr"].fill_(0.05)
    list(steps)
    assert steps.reason == "" and steps.replays == 4


def test_results_and_batches_of_any_structure(rig: Rig) -> None:
    """Numbers are part of the graph, so a batch with others is not replayed."""
    batches = [{"x": torch.full((2,), float(i)), "n": min(i, 5), "name": "a"} for i in range(7)]

    def step(batch: Any) -> Any:
        return {"sum": batch["x"].sum() * batch["n"], "n": batch["n"]}

    alike = [{**batch, "n": 5} for batch in batches]
    steps = graph_step(step, alike, warmup=1)
    found = list(steps)
    assert [each["sum"].item() for each in found] == [2.0 * 5 * i for i in range(7)]
    assert {each["n"] for each in found} == {5} and steps.replays == 6
    steps = graph_step(step, batches, warmup=1)
    assert [each["sum"].item() for each in steps] == [2.0 * i * min(i, 5) for i in range(7)]
    assert steps.replays == 1 and steps.reason == ""  # n is 5 twice


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
        steps = run_both(Training(rig))
    assert steps.replays == 0


def test_its_length_is_the_loaders() -> None:
    assert len(graph_step(torch.sum, DataLoader(DATA, BATCH))) == 4
    assert len(graph_step(torch.sum, DataLoader(DATA, BATCH), accumulate=3)) == 2
    with pytest.raises(TypeError, match="no len"):
        len(graph_step(torch.sum, iter(DATA)))


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="step must be a function of a batch, got 3"):
        graph_step(3, [])  # type: ignore[arg-type]
    for name in ("warmup", "max_graphs", "accumulate"):
        with pytest.raises(ValueError, match=f"{name} must be an int >= 1, got 0"):
            graph_step(print, [], **{name: 0})
    assert isinstance(fastloop.graph_step(print, []), fastloop.GraphStep)
