"""What the Python tests share: comparison with torch's loader bit for bit, samplers of every
kind, a source that is slow to read, and scripts run in a process of their own."""

import gc
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fork_server
import numpy as np
import torch
import torch.utils.data
from time_limits import limit
from torch.distributed import TCPStore
from torch.utils.data import (
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

TorchLoader = torch.utils.data.DataLoader
N = 50  # samples of the small datasets: more than one block of 32, no multiple of 7 or 32


# ---- comparing


def bits(tensor: torch.Tensor) -> bytes:
    if tensor.numel() == 0 or tensor.is_meta:
        return b""
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(ours: Any, theirs: Any, where: str = "batch") -> None:
    """Same container types, dict order, dtypes, shapes, and every bit."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), where
        assert ours.requires_grad == theirs.requires_grad, where
        assert bits(ours) == bits(theirs), where
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs), where
        for key, value in ours.items():
            assert_same(value, theirs[key], f"{where}[{key!r}]")
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), where
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    else:
        assert ours == theirs, where


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or its exception as ("raised", type, text)."""
    try:
        return call()
    except Exception as error:
        return "raised", type(error), str(error)


def epoch(loader: Iterable[Any], seed: int = 3) -> list[Any]:
    torch.manual_seed(seed)
    return list(loader)


def trace(
    loader: Any,
    generator: torch.Generator | None = None,
    epochs: int = 2,
    stop: int | None = None,
    body: Callable[[], object] = lambda: None,
    seed: int = 3,
) -> list[tuple[str, Any, bytes, bytes]]:
    """(moment, batch, state of torch's generator, state of `generator`) after iter(), after each
    next() and at the end of every epoch; `body` runs after each batch, `stop` batches at most."""
    torch.manual_seed(seed)
    moments: list[tuple[str, Any, bytes, bytes]] = []

    def note(moment: str, batch: Any = None) -> None:
        given = b"" if generator is None else bits(generator.get_state())
        moments.append((moment, batch, bits(torch.get_rng_state()), given))

    for e in range(epochs):
        iterator = iter(loader)
        note(f"epoch {e}: iter()")
        taken = 0
        while taken != stop:
            try:
                batch = next(iterator)
            except StopIteration:
                break
            note(f"epoch {e}: batch {taken}", batch)
            taken += 1
            body()
        del iterator
        note(f"epoch {e}: end")
    return moments


def assert_same_trace(ours: list[Any], theirs: list[Any]) -> None:
    assert [moment for moment, *_ in ours] == [moment for moment, *_ in theirs]
    for (moment, batch, state, given), (_, batch2, state2, given2) in zip(
        ours, theirs, strict=True
    ):
        assert_same(batch, batch2, moment)
        assert state == state2, f"{moment}: torch's random state differs"
        assert given == given2, f"{moment}: the generator's state differs"


@contextmanager
def collector_off() -> Iterator[None]:
    """What dies in this block does so with its last reference."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def random_states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tobytes(), bits(torch.get_rng_state())


# ---- data


def open_files() -> int:
    """How many descriptors are open once garbage is gone."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def small_dataset(n: int = N) -> TensorDataset:
    generator = torch.Generator().manual_seed(n)
    return TensorDataset(torch.randn(n, 3, generator=generator), torch.arange(n) * 10)


def labels(batches: Iterable[Any]) -> list[list[int]]:
    """Which rows of a small dataset the batches hold."""
    return [(batch[1] // 10).tolist() for batch in batches]


def in_fives(n: int = N) -> list[list[int]]:
    return [list(range(i, min(i + 5, n))) for i in range(0, n, 5)]


def loader_of(workers: int, **kwargs: Any) -> Any:
    """Our loader over the small dataset, in fives."""
    from fastloop import DataLoader

    kwargs = {"batch_size": 5, "path": "array", **kwargs}
    return DataLoader(small_dataset(), num_workers=workers, **kwargs)


def slow_array(folder: Path, rows: int = 32, row_bytes: int = 1 << 20) -> np.ndarray:
    """A mapped array that takes about 25 ns a byte to gather: it is read through the kernel, one
    byte a piece, because its rows run backwards."""
    path = folder / f"slow-{rows}-{row_bytes}.bin"
    if not path.exists():
        path.write_bytes(np.arange(rows, dtype=np.uint8).repeat(row_bytes).tobytes())
    return np.memmap(path, np.uint8, "r", shape=(rows, row_bytes))[:, ::-1]


# ---- samplers

Kind = Callable[[int, torch.Generator], dict[str, Any]]


def _distributed(**kwargs: Any) -> Kind:
    return lambda n, g: {"sampler": DistributedSampler(range(n), **kwargs)}


# The arguments of a loader over n samples: everything torch draws indices with.
SAMPLERS: dict[str, Kind] = {
    "sequential": lambda n, g: {},
    "shuffle": lambda n, g: {"shuffle": True},
    "shuffle-generator": lambda n, g: {"shuffle": True, "generator": g},
    "generator-only": lambda n, g: {"generator": g},
    "random-generator": lambda n, g: {"sampler": RandomSampler(range(n), generator=g)},
    "random-default-generator": lambda n, g: {
        "sampler": RandomSampler(range(n), generator=torch.default_generator)
    },
    "replacement": lambda n, g: {"sampler": RandomSampler(range(n), True, generator=g)},
    "replacement-no-generator": lambda n, g: {"sampler": RandomSampler(range(n), True)},
    "replacement-default-generator": lambda n, g: {
        "sampler": RandomSampler(range(n), True, 64, torch.default_generator)
    },
    "fewer-samples": lambda n, g: {"sampler": RandomSampler(range(n), False, n // 3, g)},
    "more-samples": lambda n, g: {"sampler": RandomSampler(range(n), False, 2 * n + 7, g)},
    "twice-samples": lambda n, g: {"sampler": RandomSampler(range(n), False, 2 * n, g)},
    "subset": lambda n, g: {"sampler": SubsetRandomSampler(list(range(0, n, 3)), g)},
    "subset-tensor": lambda n, g: {"sampler": SubsetRandomSampler(torch.arange(-n, 0, 2))},
    "subset-array": lambda n, g: {
        "sampler": SubsetRandomSampler(np.arange(0, n, 2, dtype=np.int32))
    },
    "subset-empty": lambda n, g: {"sampler": SubsetRandomSampler([])},
    "weighted": lambda n, g: {"sampler": WeightedRandomSampler(range(1, n + 1), 2 * n, True, g)},
    "weighted-once": lambda n, g: {"sampler": WeightedRandomSampler([1.0] * n, n // 2, False)},
    "distributed": _distributed(num_replicas=3, rank=1),
    "distributed-drop": _distributed(num_replicas=3, rank=2, drop_last=True, seed=5),
    "distributed-in-order": _distributed(num_replicas=4, rank=0, shuffle=False),
    "distributed-many": _distributed(num_replicas=3 * N, rank=2 * N + 1),
    "user": lambda n, g: {"sampler": ListSampler(range(n - 1, -1, -1))},
    "user-drawing": lambda n, g: {"sampler": DrawingSampler(n)},
}


class ListSampler(Sampler[Any]):
    """Yields what it was given."""

    def __init__(self, items: Iterable[Any], convert: Callable[[Any], Any] = lambda i: i) -> None:
        self.items = list(items)
        self.convert = convert

    def __repr__(self) -> str:
        return f"ListSampler({self.items})"  # the same in each process: tests are named by it

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            yield self.convert(item)

    def __len__(self) -> int:
        return len(self.items)


class DrawingSampler(Sampler[int]):
    """Draws each index from torch's own generator when it is asked for it."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.n):
            yield int(torch.randint(self.n, ()))

    def __len__(self) -> int:
        return self.n


class ShufflingSampler(Sampler[Any]):
    """Draws already in __iter__, before the first item is asked for."""

    def __init__(self, n: int, size: int | None = None) -> None:
        self.n, self.size, self.calls = n, size, 0

    def __iter__(self) -> Iterator[Any]:
        self.calls += 1
        indices = torch.randperm(self.n).tolist()
        if self.size is None:
            return iter(indices)
        return iter([indices[i : i + self.size] for i in range(0, self.n, self.size)])

    def __len__(self) -> int:
        return self.n


class SamplerError(Exception):
    pass


class FailingSampler(Sampler[int]):
    """Yields 0 to n - 1 and raises in the place of `at`, after which it can go on."""

    def __init__(self, n: int, at: int, error: type[BaseException] = SamplerError) -> None:
        self.n, self.at, self.error = n, at, error

    def __iter__(self) -> Iterator[int]:
        return map(self.check, range(max(self.n, self.at + 1)))

    def check(self, i: int) -> int:
        if i == self.at:
            raise self.error("no more")
        return i

    def __len__(self) -> int:
        return self.n


# ---- processes of their own


# torch's, where there are fewer CPUs than workers; Python's from 3.12 on, where a process of
# several threads forks, as all do that use CUDA.
QUIET = "ignore:This DataLoader will create,ignore:This process (pid="


_servers: dict[tuple[str, str], tuple[str, Any]] = {}


HERE = Path(__file__).parent


def _environment() -> dict[str, str]:
    paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": QUIET}


def _forked(env: dict[str, str], trains: bool = False) -> tuple[list[str], dict[str, str]]:
    """The words before a program that the fork server runs, and its environment."""
    imports = "torch.utils.data" + trains * " torch._dynamo"
    address = {fork_server.ADDRESS: _server(env["PYTHONPATH"], imports)}
    return [sys.executable, "-S", str(HERE / "fork_server.py")], {**env, **address}


def _server(paths: str, imports: str) -> str:
    """The address of one that lives: if it was killed, only the scripts it had are lost."""
    key = paths, imports
    if key not in _servers or _servers[key][1].poll() is not None:
        env = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": QUIET}
        _servers[key] = fork_server.start_server(env, imports)
    return _servers[key][0]


PROGRAMS = HERE.parent / "programs"


def run_script(
    folder: Path,
    program: str | Path,
    *args: object,
    returncode: int = 0,
    stderr: str = "",
    timeout: float = 300,
    is_fresh: bool = False,
    trains: bool = False,
) -> str:
    """Run a program, given as a file or as its text, in `folder`, and return what it prints. With
    `is_fresh` torch is not imported before the program imports it. With `trains` torch._dynamo is
    there, too, which optimizers import for a second; a Ctrl-C then ends Python with code 1.

    It must end by itself with `returncode` and write nothing to stderr, or something that
    contains `stderr`."""
    script = program if isinstance(program, Path) else folder / "script.py"
    if isinstance(program, str):
        script.write_text(program)
    done = run_file(script, *args, cwd=folder, timeout=timeout, is_fresh=is_fresh, trains=trains)
    report = f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == returncode, report
    assert (stderr in done.stderr) if stderr else done.stderr == "", report
    return done.stdout


def run_program(folder: Path, name: str, *args: object, **options: Any) -> str:
    """Run tests/programs/`name`.py in `folder` and return what it prints; options of run_script."""
    return run_script(folder, PROGRAMS / f"{name}.py", *args, **options)


def run_file(
    program: Path,
    *args: object,
    cwd: Path,
    timeout: float,
    is_fresh: bool = False,
    trains: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in `timeout` seconds of an idle machine at most; as `run_script`,
    but no end of it is an error."""
    command, env = [sys.executable, *fork_server.FLAGS], _environment()
    if not is_fresh:
        command, env = _forked(env, trains)
    return subprocess.run(
        [*command, program, *map(str, args)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=limit(timeout),
    )


def run_ranks(folder: Path, script: str, *args: str, ranks: int = 2) -> list[str]:
    """Runs a script of this folder in so many processes, as torchrun does, and returns what each
    prints. All must end by themselves, with code 0."""
    # Here, as in torchrun itself: a port that rank 0 is to open may be another's by then.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
    }
    command, env = _forked({**_environment(), **shared}, trains=True)
    processes = [
        subprocess.Popen(
            [*command, HERE / script, *args],
            cwd=folder,
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=limit(300))[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    report = "\n".join(f"rank {rank}:\n{output}" for rank, output in enumerate(outputs))
    assert [process.returncode for process in processes] == [0] * ranks, report
    return outputs


def leave_100_bytes(monkeypatch: Any) -> None:
    """Let cuda:0 be there, and have so much free memory, of which torch has cached 40."""
    there = SimpleNamespace(device=torch.device("cuda", 0))
    monkeypatch.setattr(torch, "empty", lambda *_, device: there)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda of: (60, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda of: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda of: 30)
