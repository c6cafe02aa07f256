"""Loops under a changed torch: with torch alone, with fastloop's classes, and behind `patch()`, all
in one process, which imports fastloop anew after torch has worked alone.

`python torch_mutant_program.py CASE...` prints a line of JSON for each; without names, for all; for
"-", for each line that it reads. Cases are in torch_mutant_cases.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import math
import os
import select
import signal
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data
import torch_mutants
from time_limits import limit

HANGS_S = 90  # of two seconds, on a machine that does nothing else
SIGN = "fastloop does not know"


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 13

    def __getitem__(self, i: int) -> Any:
        if not 0 <= i < 13:
            raise IndexError(i)
        return {"x": torch.full((3,), i), "i": i}


class Drawn(Rows):
    def __getitem__(self, i: int) -> Any:
        info = sys.modules["torch.utils.data"].get_worker_info()
        seed = 0 if info is None else info.seed
        return super().__getitem__(i) | {"seed": seed, "drawn": torch.rand(2)}


class Stream:
    """An IterableDataset of the torch that is there."""

    def __iter__(self) -> Iterator[Any]:
        info = sys.modules["torch.utils.data"].get_worker_info()
        for i in range(5 + info.id):
            yield torch.tensor([info.id, i]), torch.rand(())


def stream() -> Any:
    base = sys.modules["torch.utils.data"].IterableDataset
    return type("StreamDataset", (Stream, base), {})()


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


class Loops:
    """Args: api: has DataLoader, GradScaler and clip_grad_norm_, and Stepper if fastloop's."""

    def __init__(self, api: Any, path: dict[str, str]) -> None:
        self.api, self.path = api, path
        self.loaders: list[Any] = []

    def load(self, dataset: Any, epochs: int = 1, **options: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(5)
        torch.manual_seed(7)
        loader = self.api.DataLoader(dataset, batch_size=4, generator=generator, **options)
        self.loaders.append(loader)
        found = [plain(list(loader)) for _ in range(epochs)]
        states = [generator.get_state(), torch.get_rng_state()]
        return [found, [zlib.crc32(state.numpy().tobytes()) for state in states]]

    def tensors(self) -> Any:
        return sys.modules["torch.utils.data"].TensorDataset(
            torch.arange(39.0).reshape(13, 3), torch.arange(13)
        )

    def arrays(self) -> Any:
        return [self.load(self.tensors(), 2, shuffle=True), self.load(self.tensors())]

    def array_workers(self) -> Any:
        return self.load(self.tensors(), 2, shuffle=True, num_workers=2)

    def samples(self) -> Any:
        return [self.load(Drawn(), 2, shuffle=True), self.load(Rows(), drop_last=True)]

    def processes(self) -> Any:
        workers = {"num_workers": 2, "persistent_workers": True}
        return self.load(Drawn(), 2, shuffle=True, **workers)

    def streams(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return self.load(stream(), 2, num_workers=2, persistent_workers=True)

    def threads(self) -> Any:
        return self.load(Rows(), 2, shuffle=True, num_workers=2, **self.path)

    def resumed(self) -> Any:
        """The second half of an epoch."""
        loaders = []
        for _ in range(2):
            torch.manual_seed(3)
            generator = torch.Generator().manual_seed(5)
            dataset = self.tensors()
            options = {"batch_size": 4, "shuffle": True, "generator": generator}
            loaders.append(self.api.DataLoader(dataset, **options))
        batches = iter(loaders[0])
        first = [next(batches) for _ in range(2)]
        if not self.path:
            return plain(list(batches))
        loaders[1].load_state_dict(loaders[0].state_dict())
        del first
        return plain(list(loaders[1]))

    def hooks(self) -> Any:
        """Transforms of torchvision ask, which is not installed here."""
        if self.path:
            from fastloop.compat.torch_parts import has_global_hooks

            has_global_hooks()
        return []

    def keyword(self) -> Any:
        return self.load(self.tensors(), added_later=3)

    # ---- steps

    def _model(self) -> list[Any]:
        return [torch.nn.Parameter(torch.arange(1.0, 1.0 + n) / 8) for n in (3, 4)]

    def scaler(self) -> Any:
        found = []
        for is_fused in (False, True):
            params = self._model()
            optimizer = torch.optim.SGD(params, lr=0.125, fused=is_fused)
            scaler = self.api.GradScaler("cpu", init_scale=64.0, growth_interval=2)
            for step, value in enumerate((0.5, math.inf, 0.25, 0.75, 1.0)):
                loss = sum((p * p).sum() for p in params) * value
                scaler.scale(loss).backward()
                if step == 3:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                grads = [p.grad for p in params]
                if value != math.inf:
                    found.append(plain([params, grads if not is_fused else 0]))
                found.append([scaler.get_scale(), plain(params)])
                optimizer.zero_grad()
            state = scaler.state_dict()
            names = ("scale", "growth_factor", "backoff_factor", "growth_interval")
            found.append([state[name] for name in (*names, "_growth_tracker")])
            other = self.api.GradScaler("cpu")
            other.load_state_dict(state)
            found.append(other.get_scale())
            if self.path:
                assert scaler.skipped_steps == 1, scaler.skipped_steps
                assert not scaler.last_step_skipped()
        return found

    def sparse_grads(self) -> Any:
        """Windows of two over an embedding, with a row that comes twice."""
        param = torch.nn.Parameter(torch.arange(8.0).reshape(4, 2))
        optimizer = torch.optim.SGD([param], lr=0.125)
        scaler = self.api.GradScaler("cpu", 8.0)
        stepper = self.api.Stepper(optimizer, 2, scaler=scaler) if self.path else None
        for i, factor in enumerate((0.5, 0.25, math.inf, 1.0)):
            rows = torch.nn.functional.embedding(torch.tensor([0, 2, 2]), param, sparse=True)
            if stepper is not None:
                with stepper.micro():
                    stepper.backward(rows.sum() * factor)
                continue
            scaler.scale(rows.sum() * factor / 2).backward()
            if i % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        return [scaler.get_scale(), plain(param)]

    def clip(self) -> Any:
        found = []
        for norm_type in (2.0, math.inf):
            params = self._model()
            for p in params:
                p.grad = p.detach() * 4
            norm = self.api.clip_grad_norm_(params, 0.5, norm_type)
            found.append(plain([norm, [p.grad for p in params]]))
        return found

    def torch_clip(self) -> Any:
        """By torch's own name, which patch() has fastloop serve."""
        return Loops(_Torch(), {}).clip()

    def stepper(self) -> Any:
        """Windows of two, under each kind of scaler."""
        found = []
        for scaler in (self.api.GradScaler("cpu", 8.0), torch.amp.GradScaler("cpu", 8.0)):
            for options in ({}, {"accum_dtype": torch.float64}):
                params = self._model()
                optimizer = torch.optim.SGD(params, lr=0.125)
                if self.path:
                    self._step(optimizer, params, scaler, options)
                else:
                    self._step_alone(optimizer, params, scaler)
                found.append([plain(params), scaler.get_scale()])
        return found

    FACTORS = (0.5, 0.25, math.inf, 1.0, 0.75, 0.5)

    def _step(self, optimizer: Any, params: Any, scaler: Any, options: Any) -> None:
        stepper = self.api.Stepper(optimizer, 2, scaler=scaler, max_norm=0.75, **options)
        for factor in stepper.iterate(self.FACTORS):
            with stepper.micro():
                stepper.backward(sum((p * p).sum() for p in params) * factor)
        assert (stepper.stepped, stepper.skipped) == (2, 1), (stepper.stepped, stepper.skipped)

    def _step_alone(self, optimizer: Any, params: Any, scaler: Any) -> None:
        for i, factor in enumerate(self.FACTORS):
            scaler.scale(sum((p * p).sum() for p in params) * factor / 2).backward()
            if i % 2:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(params, 0.75)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


LOADER_LOOPS = ("arrays", "array_workers", "samples", "processes", "streams", "threads", "resumed")
STEP_LOOPS = ("scaler", "clip", "stepper")
ROUNDED = ("clip", "stepper")  # fastloop's classes add up in double
ONLY_CLASSES = ("threads", "resumed", "stepper")
# Groups of the table without a loop. To import their parts would take longer than most loops.
WITHOUT_LOOPS = {"shards", "fsdp"}


class _Torch:
    @property
    def DataLoader(self) -> Any:  # noqa: N802
        return sys.modules["torch.utils.data"].DataLoader

    @property
    def GradScaler(self) -> Any:  # noqa: N802
        return torch.amp.GradScaler

    @property
    def clip_grad_norm_(self) -> Any:
        return torch.nn.utils.clip_grad_norm_


def attempt(loop: Callable[[], Any]) -> Any:
    try:
        return loop()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
        return f"raised {type(error).__name__}: {error} ({where})"


def is_near(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(is_near, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-6)
    return bool(ours == theirs)


def put_syntax(syntax: dict[str, str]) -> None:
    """Has fastloop's table know the torch that was edited as the newest release."""
    parts = sys.modules["fastloop.compat.torch_parts"]._PARTS
    for group, of_group in parts.items():
        known = (p._replace(syntax=syntax[p.path]) if p.syntax else p for p in of_group)
        parts[group] = tuple(known)


def unnoticed(parts: Any, groups: list[str]) -> list[str]:
    """Paths of functions that fastloop compares, and finds to be as it knows them."""
    every = [part for group in groups for part in parts.parts_of(group) if part.forms]
    return sorted({part.path for part in every if not parts._compare(part)})


def run_loops(loops: tuple[str, ...], syntax: dict[str, str]) -> dict[str, Any]:
    """Faults, and what fastloop has noticed."""
    alone = {name: attempt(getattr(Loops(_Torch(), {}), name)) for name in loops}
    report: dict[str, Any] = {"faults": [], "torch": [], "whys": []}
    for name, found in alone.items():
        if isinstance(found, str):
            report["torch"].append(f"{name}: {found}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import fastloop
        import fastloop.compat.torch_parts

        if syntax:
            put_syntax(syntax)
        compare(report, Loops(fastloop, {"path": "thread"}), "class", alone)
        fastloop.patch(verbose=False)
        compare(report, Loops(_Torch(), {}), "patch", alone)
        report["status"] = str(fastloop.patch_status())
        gc.collect()
    texts = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    report["warnings"] = [text for text in texts if SIGN in text]
    report["others"] = [text for text in texts if SIGN not in text]
    parts = sys.modules["fastloop.compat.torch_parts"]
    groups = [group for group in parts.GROUPS if group not in WITHOUT_LOOPS]
    report["unnoticed"] = unnoticed(parts, groups)
    report["differences"] = {g: parts.difference(g) for g in groups if parts.difference(g)}
    return report


def is_anew() -> bool:
    """Whether epochs cannot be resumed, but begin anew."""
    return bool(sys.modules["fastloop.compat.torch_parts"].difference("torch"))


def compare(report: dict[str, Any], loops: Loops, mode: str, alone: dict[str, Any]) -> None:
    for name, theirs in alone.items():
        if mode == "patch" and name in ONLY_CLASSES:
            continue
        start = len(loops.loaders)
        ours = attempt(getattr(loops, name))
        is_same = is_near(ours, theirs) if mode == "class" and name in ROUNDED else ours == theirs
        if name == "resumed" and mode == "class" and is_anew():  # as a warning says
            is_same = ours[-len(theirs) :] == theirs
        if not is_same:
            report["faults"].append(f"{mode} {name}: {str(ours)[:300]} and not {str(theirs)[:300]}")
        if mode == "class":
            found = attempt(lambda at=start: [loader.stats() for loader in loops.loaders[at:]])
            if isinstance(found, str):
                report["faults"].append(f"stats() {name}: {found}")
            else:
                report["whys"] += [f"{name} {stats.path}: {stats.why}" for stats in found]


def run_case(name: str) -> dict[str, Any]:
    import torch_mutant_cases as cases

    faulthandler.dump_traceback_later(HANGS_S - 5)
    case = cases.CASES[name]
    begin = sum(os.times()[:4])
    syntax = cases.known_syntax() if case.is_newer else {}
    case.apply()
    report = run_loops(case.loops, syntax)
    report["cpu_s"] = round(sum(os.times()[:4]) - begin, 2)
    return report


def run_forked(name: str) -> str:
    """As JSON, from a child: torch here stays what it is. Whatever the child has started ends with
    it, and it does after HANGS_S."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.close(reader)
        try:
            text = json.dumps(run_case(name))
        except BaseException:
            text = json.dumps({"broken": traceback.format_exc()})
        with os.fdopen(writer, "w") as file:
            file.write(text)
        os._exit(0)
    os.close(writer)
    text = read_until(reader, time.monotonic() + limit(HANGS_S))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return text or json.dumps({"broken": "it hung, or crashed"})


def read_until(reader: int, end: float) -> str:
    """All that is written; "" if writers stay."""
    found = b""
    with os.fdopen(reader, "rb", 0) as file:
        while select.select([file], [], [], max(0.0, end - time.monotonic()))[0]:
            chunk = file.read(1 << 16)
            if not chunk:
                return found.decode()
            found += chunk
    return ""


def main(names: list[str]) -> None:
    import torch_mutant_cases as cases

    torch.set_num_threads(1)
    Loops(_Torch(), {}).scaler()  # imports what its children then have
    torch_mutants.prepare()
    gc.collect()
    gc.freeze()  # collections of children look at what they make, not at torch
    given = (line.rstrip("\n") for line in sys.stdin) if names == ["-"] else names or cases.CASES
    for name in given:
        report = run_forked(name)
        print(json.dumps({"case": name} | json.loads(report)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
