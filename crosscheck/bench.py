"""Times every implementation that agrees with the oracle, beside a copy of the same bytes in the same run."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib
import itertools
import multiprocessing
import os
import pickle
import platform
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlscan.crosscheck import report
from rlscan.crosscheck.backends import Device, as_tuple
from rlscan.crosscheck.baselines import BASELINES, Baseline
from rlscan.crosscheck.engines import ENGINES, Engine, Function
from rlscan.crosscheck.ppo import NETWORKS, Update, measure, network_name
from rlscan.crosscheck.workloads import (
    CALL,
    LAYOUTS,
    ON_CPU,
    OPS,
    TARGETS,
    Layout,
    Limits,
    Target,
    Workload,
    arguments,
    at_shapes,
    bytes_moved,
    groups,
    oracle,
    quick,
    sampled,
    worst,
)

KIND = "benchmark"
"""By which a JSON file says what it is."""

RLSCAN, PLAIN, NUMPY = "rlscan", "plain Triton kernel", "NumPy loop"
"""Implementations that others are compared with."""

PACKAGES = {"torch": "rlscan.torch_triton", "jax": "rlscan.jax_pallas"}

LONGEST_S = 60
"""Seconds that one implementation has for everything, compilation included."""


@dataclasses.dataclass
class Row:
    """One implementation on one workload.

    Attributes:
        implementation: `RLSCAN`, or the name of a baseline.
        options: of the workload, in words.
        size: bytes that must be read and written.
        distance: the largest from the oracle, in units of the bound.
        checked: the fraction of the steps that the oracle computed.
        failure: why it was not timed.
        us, low, high: median, 10th and 90th percentile, by `method`.
        copy_us: a copy of as many bytes, by the same method.
        trace_us: by the device's trace, where that is another method.
        timed: when.
    """

    group: str
    implementation: str
    framework: str
    device: str
    op: str
    layout: Layout
    rows: int
    steps: int
    options: str
    target: str | None
    size: int = 0
    distance: float | None = None
    checked: float = 0.0
    failure: str | None = None
    method: str = ""
    us: float | None = None
    low: float | None = None
    high: float | None = None
    copy_us: float | None = None
    trace_us: float | None = None
    timed: str = ""

    @property
    def fraction(self) -> float | None:
        """Of copy speed."""
        return self.copy_us / self.us if self.us and self.copy_us else None

    @property
    def traced(self) -> float | None:
        """µs, by the one method that JAX has too."""
        return self.us if self.method == "trace" else self.trace_us

    @property
    def place(self) -> tuple[Any, ...]:
        """What it has in common with the same in another framework."""
        return self.device, self.op, self.rows, self.steps, self.layout, self.options

    @property
    def key(self) -> str:
        options = f" {self.options}" if self.options else ""
        return f"{self.implementation} {self.framework} {self.device}: {self.op} {self.rows}x{self.steps} {self.layout}{options}"


@dataclasses.dataclass
class HostCall:
    """Host time of a warm call."""

    implementation: str
    framework: str
    op: str
    rows: int
    steps: int
    us: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Counters:
    """What the device did in one kernel of a row.

    Attributes:
        where: the row's key.
        kernel: which of its kernels, which run one after another.
        us: at the base clock.
        dram: of the peak throughput of the device's memory.
        issue: of the cycles in which an instruction could be issued, those in which one was.
        warps: on a multiprocessor at a time.
        instructions: for each step of each row.
        waits: what a warp that issues nothing waits for most often.
    """

    where: str
    kernel: str
    us: float
    dram: float
    issue: float
    warps: float
    registers: int
    instructions: float
    waits: str


@dataclasses.dataclass
class Found:
    """All of a run."""

    header: dict[str, Any]
    rows: list[Row] = dataclasses.field(default_factory=list)
    calls: list[HostCall] = dataclasses.field(default_factory=list)
    updates: list[Update] = dataclasses.field(default_factory=list)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    counters: list[Counters] = dataclasses.field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"kind": KIND, **dataclasses.asdict(self)}

    def continued(self, header: dict[str, Any], skipped: dict[str, str]) -> Found:
        """To be added to by another run; a `ValueError` if that is not made with the same, and in the same place."""
        for name in ("device", "driver", "cpu", "versions"):
            if self.header[name] != header[name]:
                raise ValueError(f"was made with {name} {self.header[name]}, and this is {header[name]}")
        return dataclasses.replace(self, header=self.header | {"command": f"{self.header['command']}; {header['command']}"}, skipped=self.skipped | skipped)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Found:
        rows, calls = [Row(**row) for row in data["rows"]], [HostCall(**call) for call in data["calls"]]
        updates, counters = [Update(**update) for update in data["updates"]], [Counters(**one) for one in data.get("counters", [])]
        return Found(data["header"], rows, calls, updates, data["skipped"], counters)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One thing to time."""

    group: str
    workload: Workload
    framework: str
    device: Device
    implementation: str = RLSCAN

    def row(self) -> Row:
        workload = self.workload
        options = ", ".join(workload.extras)
        where = (workload.op, workload.layout, workload.rows, workload.steps, options, workload.target)
        return Row(self.group, self.implementation, self.framework, self.device, *where)

    def prepared(self, name: str, array: np.ndarray) -> np.ndarray:
        """An argument as the implementation wants it."""
        baseline = BASELINES.get(self.implementation)
        return array.astype(baseline.flags) if baseline and array.dtype == bool else array

    def operation(self) -> Callable[..., Any]:
        return functools.partial(getattr(importlib.import_module(PACKAGES[self.framework]), self.workload.op), **self.workload.numbers())

    def operands(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """What the function is given."""
        if self.workload.wanted and self.framework == "jax":
            return forward_in_jax(self.workload, self.operation(), arrays)
        return dict(arrays)

    def function(self) -> Function:
        if self.implementation in BASELINES:
            return BASELINES[self.implementation].make(self.device)
        if self.workload.wanted:
            return backward_in_torch(self.workload, self.operation()) if self.framework == "torch" else backward_in_jax(self.workload)
        operation = self.operation()

        def rlscan(operands: Mapping[str, Any]) -> tuple:
            results = operation(**operands)
            return as_tuple(results)

        return rlscan


class Bench:
    """Measures entry after entry; consecutive entries of one workload share its arrays and the oracle's word.

    Attributes:
        folder: where `prepare` left what the oracle says, if it did.
        quick: take everything once, to have it compiled.
    """

    def __init__(self, folder: Path | None = None, quick: bool = False) -> None:
        self.folder, self.quick = folder, quick
        self.engines: dict[tuple[str, Device], Engine] = {}
        self.last: tuple[Workload, dict[str, np.ndarray], Limits] | None = None

    def engine(self, framework: str, device: Device) -> Engine:
        key = framework, device
        if key not in self.engines:
            self.engines[key] = ENGINES[framework](device, self.quick)
        return self.engines[key]

    def problem(self, workload: Workload) -> tuple[dict[str, np.ndarray], Limits]:
        if self.last is None or self.last[0] != workload:
            made = arguments(workload)
            self.last = workload, made, self._limits(workload, made)
        return self.last[1], self.last[2]

    def _limits(self, workload: Workload, made: dict[str, np.ndarray]) -> Limits:
        kept = self.folder and self.folder / f"{workload}.pickle"
        if kept and kept.exists():
            return pickle.loads(kept.read_bytes())
        limits = oracle(workload, made)
        if kept:
            # whoever reads it must not find half of it
            part = kept.with_suffix(f".{os.getpid()}")
            part.write_bytes(pickle.dumps(limits))
            part.replace(kept)
        return limits

    def row(self, entry: Entry) -> Row:
        """Checked, and timed if it agrees."""
        row = entry.row()
        row.timed = report.now()
        try:
            with capped(LONGEST_S):
                self._measure(entry, row)
        except Exception as error:  # a baseline that fails is a finding, and the others go on
            row.failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else 'no message'}"
            row.us = row.low = row.high = None
        return row

    def _measure(self, entry: Entry, row: Row) -> None:
        engine = self.engine(entry.framework, entry.device)
        function, operands = self._checked(entry, row)
        if row.failure:
            return
        # gradients are compared with JAX's, which are timed by no other method
        timing = (engine.trace_time if entry.workload.wanted else engine.device_time)(function, operands)
        row.us, row.low, row.high, row.method = timing.us, timing.low, timing.high, timing.method
        row.copy_us = self._copier(entry).copy_time(row.size, timing.method).us
        if timing.method == "events" and entry.implementation == RLSCAN:
            row.trace_us = engine.trace_time(function, operands).us

    def _checked(self, entry: Entry, row: Row) -> tuple[Function, dict[str, Any]]:
        """The function and its arrays, once it is known whether the results agree."""
        workload, engine = entry.workload, self.engine(entry.framework, entry.device)
        made, limits = self.problem(workload)
        operands = entry.operands({name: engine.place(workload.laid_out(entry.prepared(name, array))) for name, array in made.items()})
        function = entry.function()
        row.size, row.checked = bytes_moved(workload, made), sampled(workload)
        row.distance = worst(workload, [as_numpy(result) for result in engine.compiled(function)(operands)], limits)
        if not row.distance <= 1:
            row.failure = f"does not agree with the oracle: {row.distance:.3g} times the bound"
        return function, operands

    def calls(self, device: Device) -> list[HostCall]:
        """Host time of a warm call: rlscan, and the plain kernel's wrapper."""
        found = []
        for framework, implementation in (("torch", RLSCAN), ("torch", PLAIN), ("jax", RLSCAN)):
            engine = self.engine(framework, device)
            if engine.missing(device):
                continue
            entry = Entry("calls", CALL, framework, device, implementation)
            row = entry.row()
            function, operands = self._checked(entry, row)
            if row.failure is None:
                timed = {implementation: function}
                if (framework, implementation) == ("torch", RLSCAN):
                    timed |= parts_of_a_call(CALL, operands)
                for name, one in timed.items():
                    timing = engine.host_time(one, operands)
                    found.append(HostCall(name, framework, CALL.op, CALL.rows, CALL.steps, timing.us, timing.low, timing.high))
        return found

    def _copier(self, entry: Entry) -> Engine:
        """The driver's own copy, for both frameworks."""
        return self.engine("numpy" if entry.device == "cpu" else "torch", entry.device)


def parts_of_a_call(workload: Workload, operands: Mapping[str, Any]) -> dict[str, Function]:
    """What a call in PyTorch that was made before is made of, one by one; what is left is between them."""
    from rlscan.torch_triton.repeated import find

    recurrence = workload.recurrence
    arguments = {**recurrence.defaults, **workload.numbers(), **operands}
    again = find(recurrence, arguments)
    if again is None:
        raise RuntimeError(f"{workload}: the call was made before and is not found again")
    prepared, given = again
    passed = prepared.passed(given, tuple(new() for new in prepared.news))
    parts: dict[str, Function] = {
        "finding it again": lambda _: find(recurrence, arguments) or (),
        "allocating the results": lambda _: tuple(new() for new in prepared.news),
        "starting the kernel": lambda _: prepared.start(passed) or (),
    }
    return {f"{RLSCAN}, of it {name}": part for name, part in parts.items()}


def as_numpy(result: Any) -> np.ndarray:
    return np.asarray(result.detach().cpu() if hasattr(result, "detach") else result)


@contextlib.contextmanager
def capped(seconds: int) -> Iterator[None]:
    """A `TimeoutError` after so long, where there are signals; inside one call of a compiler only when that returns."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def use_caches(folder: Path) -> None:
    """Let JAX, which is not imported yet, keep what it compiles; Triton and inductor do so by themselves."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def prepare_all(wanted: Sequence[Entry], jobs: int, folder: Path, progress: Callable[[str], None]) -> None:
    """Warm the compilers' caches and ask the oracle about every workload, by so many processes at a time. What they time is dropped."""
    together: dict[tuple[str, Workload], list[Entry]] = {}
    # baselines first, for which a compiler may take a minute
    for entry in sorted(wanted, key=lambda entry: entry.implementation == RLSCAN):
        together.setdefault((entry.implementation, entry.workload), []).append(entry)
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(prepare, part, folder) for part in together.values()]
        for done in concurrent.futures.as_completed(waiting):
            # what fails there fails again where it is counted
            for _ in done.result() if done.exception() is None else ():
                progress("compiling")


def prepare(some: Sequence[Entry], folder: Path) -> list[Row]:
    bench = Bench(folder, quick=True)
    return [bench.row(entry) for entry in some]


def header(device: Device, command: Sequence[str], date: str) -> dict[str, Any]:
    """Where and with what a run was made."""
    return {
        "date": date,
        "device": report.device_name(device),
        "driver": driver(),
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": " ".join(command),
        "versions": report.versions(("rlscan", "numpy", "torch", "triton", "jax", "torchrl")),
    }


def driver() -> str:
    """Of the NVIDIA GPU, if there is one."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()[0].strip()
    return "none"


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What was measured for a target at one place.

    Attributes:
        measured: in the target's terms: a fraction, µs beyond the copy, or a ratio; None if it could not be timed.
    """

    target: Target
    where: str
    measured: float | None

    @property
    def reached(self) -> bool:
        if self.measured is None:
            return False
        target = self.target
        if target.fraction is not None:
            return self.measured >= target.fraction
        return self.measured <= ((target.ratio if target.within_us is None else target.within_us) or 0)

    @property
    def distance(self) -> float:
        """From the target, so that the worst of several can be named; positive where it was missed."""
        if self.measured is None:
            return float("inf")
        return (self.target.fraction or 0) - self.measured if self.target.fraction is not None else self.measured


def judged(row: Row) -> Judgement | None:
    """A row against the target of its own."""
    target = TARGETS.get(row.target or "")
    if target is None or target.ratio is not None or row.implementation != RLSCAN:
        return None
    if row.us is None or row.copy_us is None:
        return Judgement(target, row.key, None)
    return Judgement(target, row.key, row.fraction if target.fraction is not None else row.us - row.copy_us)


def judgements(found: Found) -> list[Judgement]:
    """Of every target that was measured, row by row."""
    every = [judgement for row in found.rows if (judgement := judged(row))]
    return every + _twins(found) + _on_cpu(found) + _calls(found)


def _twins(found: Found) -> list[Judgement]:
    torch = {row.place: row for row in found.rows if row.implementation == RLSCAN and row.framework == "torch"}
    pairs = [(row, torch[row.place]) for row in found.rows if row.implementation == RLSCAN and row.framework == "jax" and row.place in torch]
    # what was timed by something else is not compared; what failed was timed by nothing
    pairs = [(jax, twin) for jax, twin in pairs if jax.device != "cpu" and jax.method in ("trace", "")]
    return [Judgement(TARGETS["twins"], jax.key, jax.traced / twin.traced if jax.traced and twin.traced else None) for jax, twin in pairs]


def _on_cpu(found: Found) -> list[Judgement]:
    loops = {(row.rows, row.steps): row.us for row in found.rows if row.implementation == NUMPY and row.us}
    rows = [row for row in found.rows if row.target == "cpu" and row.implementation == RLSCAN and (row.rows, row.steps) in loops]
    return [Judgement(TARGETS["cpu"], row.key, row.us / loops[row.rows, row.steps] if row.us else None) for row in rows]


def _calls(found: Found) -> list[Judgement]:
    us = {call.implementation: call.us for call in found.calls if call.framework == "torch"}
    return [Judgement(TARGETS["call"], str(CALL), us[RLSCAN] / us[PLAIN])] if us.keys() >= {RLSCAN, PLAIN} else []


def backward_in_torch(workload: Workload, operation: Callable[..., Any]) -> Function:
    """What autograd does on the way back, of a graph that is made once, without its engine, which takes longer on the host."""
    order = [argument.name for argument in workload.recurrence.arguments if argument.name in workload.given]
    kept: list[Any] = [None, None]

    def backward(operands: Mapping[str, Any]) -> tuple:
        import torch

        if kept[0] is not operands:
            at = {name: operands[name].clone().requires_grad_() for name in workload.wanted}
            results = operation(**{name: operands[name] for name in workload.given} | at)
            kept[:] = operands, as_tuple(results)
        with torch.no_grad():
            made = kept[1][0].grad_fn.apply(*workload.came_in(operands))
        found = dict(zip(order, made[-len(order) :], strict=True))
        return tuple(found[name] for name in workload.wanted)

    return backward


def forward_in_jax(workload: Workload, operation: Callable[..., Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What there is on the way back: the gradients that come in, and what `jax.vjp` kept."""
    import jax

    @jax.jit
    def kept(given: Mapping[str, Any], at: Mapping[str, Any]) -> Any:
        return jax.vjp(lambda at: as_tuple(operation(**given, **at)), at)[1]

    given = {name: arrays[name] for name in workload.given if name not in workload.wanted}
    return {"pull": kept(given, {name: arrays[name] for name in workload.wanted}), "came in": tuple(workload.came_in(arrays))}


def backward_in_jax(workload: Workload) -> Function:
    """What is pulled back alone."""

    def backward(operands: Mapping[str, Any]) -> tuple:
        (found,) = operands["pull"](operands["came in"])
        return tuple(found[name] for name in workload.wanted)

    return backward


@dataclasses.dataclass
class Plan:
    """What a run is to do.

    Attributes:
        entries: to be timed, in this order.
        calls: whether to time the host's side of a warm call.
        updates: the frameworks in which a PPO update is timed.
        skipped: what is not there, with the reason.
    """

    device: Device
    entries: list[Entry]
    calls: bool
    updates: tuple[str, ...]
    skipped: dict[str, str]

    def work(self, jobs: int) -> int:
        """Steps of the progress bar."""
        return len(self.entries) * (2 if jobs > 1 else 1) + self.calls + len(self.updates) * len(NETWORKS)


GROUPS = (*groups(), "cpu", "baselines", "calls", "ppo")
ON_A_CPU = ("cpu", "baselines", "ppo")
"""What is done on a device of either kind if nothing else is asked for; a GPU takes all groups."""


def plan(options: Any, device: Device) -> Plan:
    """What the command line asks for."""
    reasons = {name: ENGINES[name].missing(device) for name in options.backends or PACKAGES}
    skipped = {name: reason for name, reason in reasons.items() if reason}
    frameworks = tuple(name for name in reasons if name not in skipped)
    wanted = set(options.groups or (GROUPS if device == "cuda" else ON_A_CPU))
    table = quick() if options.quick else groups()
    if options.shapes:
        wanted, table = {"chosen", "baselines"}, at_shapes(options.shapes)
    if not options.baselines:
        wanted.discard("baselines")
    found = [Entry(group, workload, framework, device) for group in table if group in wanted for workload in table[group] for framework in frameworks]
    if "cpu" in wanted:
        here = [name for name in frameworks if ENGINES[name].missing("cpu") is None]
        found += [Entry("cpu", workload, framework, "cpu") for workload in ON_CPU for framework in here]
    if "baselines" in wanted:
        every = [baseline for baseline in BASELINES.values() if baseline.framework in (*frameworks, "numpy")]
        skipped |= {baseline.name: reason for baseline in every if (reason := baseline.missing())}
        found += baseline_entries([baseline for baseline in every if baseline.name not in skipped], options.shapes, device, "cpu" in wanted)
    layouts = LAYOUTS if options.layout == "both" else (options.layout,)
    found = [entry for entry in found if entry.workload.layout in layouts and entry.workload.op in (options.ops or OPS)]
    calls = "calls" in wanted and device == "cuda" and "torch" in frameworks
    return Plan(device, found, calls, frameworks if "ppo" in wanted else (), skipped)


def baseline_entries(every: Sequence[Baseline], shapes: Sequence[tuple[int, int]] | None, device: Device, with_cpu: bool) -> list[Entry]:
    """The baselines at their own shapes on the device, and at those of the CPU's targets."""
    found = []
    for baseline in every:
        on_device = baseline.on_gpu if device == "cuda" else baseline.on_cpu
        at = [Workload("gae", *shape, baseline.layout) for shape in (shapes or (baseline.shapes if device == "cuda" else ())) if shape[1] <= baseline.longest]
        found += [Entry("baselines", workload, baseline.framework, device, baseline.name) for workload in at if on_device]
        # the loop in NumPy is the CPU's own baseline, whatever the device
        here = [dataclasses.replace(workload, target=None) for workload in ON_CPU if workload.layout == baseline.layout]
        found += [Entry("baselines", workload, baseline.framework, "cpu", baseline.name) for workload in here if with_cpu and baseline.on_cpu]
    return found


def run(wanted: Plan, found: Found, jobs: int, folder: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """Adds to `found` what it has not, and hands over before it begins and after each part."""
    yield
    # in two groups the same has two targets
    have = {(row.group, row.key) for row in found.rows}
    missing = [entry for entry in wanted.entries if (entry.group, entry.row().key) not in have]
    if jobs > 1:
        prepare_all(missing, jobs, folder, progress)
    bench = Bench(folder)
    for entry in missing:
        progress(f"{entry.framework}, {entry.workload}")
        found.rows.append(bench.row(entry))
        yield
    if wanted.calls and not found.calls:
        progress("warm calls")
        found.calls += bench.calls(wanted.device)
        yield
    updated = {(update.framework, update.network) for update in found.updates}
    for framework, hidden in itertools.product(wanted.updates, NETWORKS):
        if (framework, network_name(hidden)) not in updated:
            progress(f"PPO in {framework}")
            found.updates.append(measure(framework, wanted.device, hidden))
            yield
