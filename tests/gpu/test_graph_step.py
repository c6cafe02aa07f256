"""graph_step() on a CUDA device: losses and weights have the bits of a loop that calls the step."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import pytest
import torch
from helpers import bits
from torch import Tensor, nn

from fastloop import ArrayDataset, DataLoader, GradScaler, graph_step
from fastloop import transforms as T

COUNT, BATCH = 150, 16
IMAGES = torch.randint(256, (COUNT, 3, 36, 36), dtype=torch.uint8)
LABELS = torch.arange(COUNT) % 10
CROP = T.Compose([T.RandomCrop(32, 4), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, True)])
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "fused AdamW": lambda p, **more: torch.optim.AdamW(p, fused=True, capturable=True, **more),
    "SGD": lambda p, **more: torch.optim.SGD(p, momentum=0.9, **more),
    "Adam": lambda p, **more: torch.optim.Adam(p, capturable=True, **more),
}
LOADERS: dict[str, dict[str, Any]] = {
    "resident": {},
    "uploaded": {"num_workers": 2, "device": "cuda"},
    "transformed there": {"num_workers": 2, "device": "cuda", "transforms_on": "device"},
    "without workers": {"device": "cuda"},
}


def loader_of(kind: str, **more: Any) -> Any:
    data = ArrayDataset(IMAGES, LABELS, transform=CROP, seed=2)
    data = data.to("cuda") if kind == "resident" else data
    data.set_epoch(1)
    return DataLoader(data, BATCH, **LOADERS[kind], **more)


class Training:
    """A model, its optimizer and a scaler; ``step`` is a training step."""

    def __init__(self, kind: str = "SGD", lr: Any = 1e-2, is_scaled: bool = True) -> None:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()]
        self.model = nn.Sequential(*layers, nn.Linear(8 * 30 * 30, 10)).cuda()
        self.optimizer = OPTIMIZERS[kind](self.model.parameters(), lr=lr)
        self.scaler = GradScaler("cuda", enabled=is_scaled, init_scale=256.0)

    def step(self, batch: Any) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        if self.scaler.is_enabled():
            self.scaler.unscale_and_clip_(self.optimizer, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()

    def weights(self) -> list[bytes]:
        return [bits(tensor.detach().cpu()) for tensor in self.model.state_dict().values()]


def windows(batches: Iterable[Any], accumulate: int = 1, **_: Any) -> Iterator[Any]:
    if accumulate == 1:
        yield from batches
        return
    iterator = iter(batches)
    while window := list(islice(iterator, accumulate)):
        yield window


@pytest.fixture(autouse=True)
def fixed_kernels() -> Any:
    """cuDNN may choose another one for each run."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


def run_both(ours: Training, plain: Training, kind: str, epochs: int = 3, **more: Any) -> Any:
    steps, eager = graph_step(ours.step, loader_of(kind), **more), loader_of(kind)
    for _ in range(epochs):
        found = list(steps)  # results may be kept
        expected = [plain.step(batch) for batch in windows(eager, **more)]
        assert [loss.item() for loss in found] == [loss.item() for loss in expected]
        assert ours.weights() == plain.weights()
    return steps


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("optimizer", ["fused AdamW", "SGD"])
def test_losses_and_weights_are_those_of_the_loop(kind: str, optimizer: str) -> None:
    is_scaled = optimizer == "fused AdamW"  # torch's scaler asks the device before other steps
    pair = [Training(optimizer, is_scaled=is_scaled) for _ in range(2)]
    steps = run_both(pair[0], pair[1], kind)
    whole = COUNT // BATCH
    # Of the whole batches three are for the warm-up; the first short batch is called.
    assert steps.reason == "" and steps.replays == 3 * whole - 3 + 2
    assert sum(steps.stats().values()) == 3 * whole + 3


@pytest.mark.parametrize(("accumulate", "replays"), [(2, 4 * 5 - 3 - 1), (4, 4 * 3 - 3)])
def test_a_window_is_one_step(accumulate: int, replays: int) -> None:
    """Also a short last window, which has a graph of its own. The warm-up has three windows."""

    class Windows(Training):
        def step(self, batch: Any) -> Tensor:
            losses = []
            for x, y in batch:
                losses.append(nn.functional.cross_entropy(self.model(x), y) / len(batch))
                self.scaler.scale(losses[-1]).backward()
            self.scaler.unscale_and_clip_(self.optimizer, 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            return torch.stack(losses).detach().sum()

    steps = run_both(
        Windows("fused AdamW"), Windows("fused AdamW"), "resident", 4, accumulate=accumulate
    )
    assert steps.reason == "" and steps.replays == replays


def test_a_window_that_the_host_ends_is_refused() -> None:
    class Counts(Training):
        calls = 0

        def step(self, batch: Any) -> Tensor:
            self.calls += not torch.cuda.is_current_stream_capturing()
            loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            loss.backward()
            if self.calls % 3 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss.detach()

    with pytest.warns(RuntimeWarning, match="pass accumulate="):
        steps = run_both(Counts(), Counts(), "resident")
    assert steps.replays == 0


@pytest.mark.parametrize("max_graphs", [2, 16])
def test_padded_lengths_share_one_pool(max_graphs: int) -> None:
    """The largest is captured first, so all other graphs find room in its memory."""
    draws = torch.Generator().manual_seed(3)
    lengths = [256] * 5 + (torch.randint(1, 5, (55,), generator=draws) * 64).tolist()
    batches = [torch.randn(64, n, 256, generator=draws).cuda() for n in lengths]

    def training() -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
        torch.manual_seed(0)
        hidden = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.ReLU())]
        model = nn.Sequential(*hidden).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)

        def step(batch: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, step

    (model, step), (expected, plain) = training(), training()
    wanted = [plain(batch).item() for batch in batches]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    steps = graph_step(step, batches, max_graphs=max_graphs)
    assert [loss.item() for loss in steps] == wanted and steps.reason == ""
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b)
    stats = steps.stats()
    assert len([how for how in stats if "replayed" in how]) == min(max_graphs, 4), stats
    torch.cuda.empty_cache()
    largest = 64 * 256 * 256 * 4 * 17  # bytes of activations; all four lengths have 2.5 times that
    assert torch.cuda.memory_reserved() - before < 2 * largest


def test_a_step_that_waits_is_called() -> None:
    ours, plain = Training(is_scaled=False), Training(is_scaled=False)
    step = ours.step

    def asks(batch: Any) -> Tensor:
        loss = step(batch)
        assert loss.item() >= 0
        return loss

    ours.step = asks  # type: ignore[method-assign]
    with pytest.warns(RuntimeWarning, match="cannot be captured"):
        steps = run_both(ours, plain, "resident")
    assert steps.replays == 0 and "cannot be captured" in steps.reason
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_a_learning_rate() -> None:
    """Of numbers it ends the graph; a tensor may change."""
    for as_tensor in (True, False):
        rates = [torch.tensor(1e-2, device="cuda") if as_tensor else 1e-2 for _ in range(2)]
        ours, plain = (Training("Adam", rate, is_scaled=False) for rate in rates)
        steps, eager = graph_step(ours.step, loader_of("resident")), loader_of("resident")
        for epoch in range(3):
            for each in (ours, plain):
                group = each.optimizer.param_groups[0]
                if as_tensor:
                    group["lr"].fill_(1e-2 / (1 + epoch))
                else:
                    group["lr"] = 1e-2 / (1 + epoch)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                found = [loss.item() for loss in steps]
            assert found == [plain.step(batch).item() for batch in eager]
        assert ours.weights() == plain.weights()
        assert (steps.reason == "") is as_tensor, steps.reason


def test_the_host_never_waits(waits_are: Callable[[str], AbstractContextManager[None]]) -> None:
    """But for the capture, which torch's own context waits for."""
    ours = Training("fused AdamW")
    steps = graph_step(ours.step, loader_of("transformed there"))
    for _ in range(2):  # the short batch is captured in the second epoch
        list(steps)
    with waits_are("error"):
        found = list(steps)
    assert len(found) == -(-COUNT // BATCH) and steps.reason == ""
