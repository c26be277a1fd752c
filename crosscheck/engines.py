"""How time is taken in each framework: on the device with a cold L2, and of a warm call on the host.

An implementation is a function from arrays by name to a tuple of arrays. Three ways to time it:

- `events` (PyTorch on a GPU): CUDA events before and after each call. An interval contains the start of the first kernel and the gaps between
  kernels, a few µs in all, and so does that of the copy.
- `trace` (on a GPU): from the start of a call's first kernel to the end of its last, by the device's own clock, which NVIDIA's CUPTI records for
  PyTorch's profiler, whoever starts the kernels: JAX has no events, and the two frameworks are compared by this. To start the first kernel is not in
  it; gaps between kernels are.
- `wall` (on a CPU): the clock, with warm caches.

Before each call on a GPU several times the L2 is written, for as long as the host needs to queue the call, so that the device does not wait for it.
The write leaves dirty lines in the L2, which whoever comes next has to evict. That is part of each call, and of the copy it is compared with.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlscan.crosscheck.backends import Device

Function = Callable[[Mapping[str, Any]], tuple]
Event = tuple[float, float, str]
"""What the device did: start and end in µs, and the kernel's name."""

FLUSHED = 8
"""Times the size of the L2 that a write is long: 400 MB on an H200."""
WRITES = 4
"""At once, to see how long one takes."""
PAGES = 2 * 4096
"""Bytes that the size of a copy is a multiple of: NVIDIA's copies sizes that no large power of two divides at two thirds of the speed."""
HIDDEN = 3
"""Times as long as the host takes for a call the device is kept busy before it."""
ENOUGH_S = 0.3
"""Seconds for all repetitions of one measurement, beyond the fewest."""
FEWEST, MOST = 3, 40
CALLS = 50
"""Warm calls between two looks at the clock."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """µs: the median, and the 10th and 90th percentile."""

    us: float
    low: float
    high: float
    method: str

    @staticmethod
    def of(seconds: Sequence[float], method: str) -> Timing:
        low, middle, high = (float(x) for x in np.percentile(seconds, (10, 50, 90)) * 1e6)
        return Timing(round(middle, 3), round(low, 3), round(high, 3), method)


class Engine:
    """One framework on one device.

    Attributes:
        name: in reports, `torch` or `jax`.
        quick: take everything once, only to have it compiled.
    """

    name: str

    def __init__(self, device: Device, quick: bool = False) -> None:
        self.device: Device = device
        self.quick = quick
        self.copies: dict[tuple[str, int], Timing] = {}

    @classmethod
    def missing(cls, device: Device) -> str | None:
        """Why it can't run on this device."""
        return None

    def place(self, array: np.ndarray) -> Any:
        """The array on the device."""
        return array

    def compiled(self, function: Function) -> Function:
        """What a user would call again and again."""
        return function

    def finish(self, results: Any) -> None:
        """Wait for the results."""

    def device_time(self, function: Function, operands: Mapping[str, Any]) -> Timing:
        return self.wall_time(function, operands)

    def write(self) -> Any:
        """Start writing over what the L2 holds."""
        raise NotImplementedError(f"{self.name} on {self.device}")

    @functools.cached_property
    def write_us(self) -> float:
        """What a write takes."""
        self.finish(self.write())
        start = time.perf_counter()
        self.finish([self.write() for _ in range(WRITES)])
        return (time.perf_counter() - start) / WRITES * 1e6

    @functools.cached_property
    def writer(self) -> tuple[str, float]:
        """The kernel that writes, and the µs that it takes on the device, which are fewer than the host waits for where that is slow."""
        start, end, name = max(self.traced(self.write), key=lambda event: event[1] - event[0])
        return name, end - start

    def writes_and_calls(self, function: Function, operands: Mapping[str, Any]) -> tuple[int, int]:
        """How often to write before each call, so that the host is done with it before the device is; and how many calls there are to be."""
        if self.quick:
            return 1, 1
        writes = 1 + int(HIDDEN * self.host_time(function, operands, batches=3).us / self.write_us)
        return writes, self.repetitions((writes + 1) * self.write_us * 1e-6)

    def trace_time(self, function: Function, operands: Mapping[str, Any]) -> Timing:
        if self.device == "cpu":
            return self.wall_time(function, operands)
        if reason := TorchEngine.missing(self.device):
            raise RuntimeError(f"kernels are timed by PyTorch's profiler, and {reason}")
        compiled = self.compiled(function)
        self.finish(compiled(operands))
        if self.quick:
            return Timing.of([float("nan")], "trace")
        writes, calls = self.writes_and_calls(function, operands)

        def work() -> Any:
            results = None
            for _ in range(calls):
                for _ in range(writes):
                    self.write()
                results = compiled(operands)
            return results

        # a call may start a kernel of that name too, but none that takes half as long
        return Timing.of(between(self.traced(work), *self.writer, writes, calls), "trace")

    def traced(self, work: Callable[[], Any]) -> list[Event]:
        """All that the device does for it, in order."""
        torch = importlib.import_module("torch")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiler:
            self.finish(work())
            torch.cuda.synchronize()
        found = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        if not found:
            raise RuntimeError("PyTorch's profiler recorded nothing of the device; may CUPTI be used?")
        return sorted((event.time_range.start, event.time_range.end, event.name) for event in found)

    def copy(self, size: int) -> Function:
        """Copies half of `size` bytes to as many others."""
        target = np.zeros(size // 2, np.uint8)

        def copy(operands: Mapping[str, Any]) -> tuple:
            np.copyto(target, operands["source"])
            return (target,)

        return copy

    def copy_time(self, size: int, method: str) -> Timing:
        """Of a copy that moves `size` bytes, half of them read and half written."""
        size = -(-size // PAGES) * PAGES
        if (method, size) not in self.copies:
            taken = self.trace_time if method == "trace" else self.device_time
            self.copies[method, size] = taken(self.copy(size), {"source": self.place(np.zeros(size // 2, np.uint8))})
        return self.copies[method, size]

    def wall_time(self, function: Function, operands: Mapping[str, Any]) -> Timing:
        function = self.compiled(function)

        def once() -> float:
            start = time.perf_counter()
            self.finish(function(operands))
            return time.perf_counter() - start

        once()
        return Timing.of([once() for _ in range(self.repetitions(once()))], "wall")

    def host_time(self, function: Function, operands: Mapping[str, Any], batches: int = 22) -> Timing:
        """Of the host, for a warm call that nobody waits for."""
        function = self.compiled(function)
        taken = []
        for _ in range(2 if self.quick else batches):
            self.finish(function(operands))
            start = time.perf_counter()
            results: Any = None
            for _ in range(CALLS):
                results = function(operands)
            taken.append((time.perf_counter() - start) / CALLS)
            self.finish(results)
        return Timing.of(taken[2:] or taken, "host")

    def repetitions(self, once: float) -> int:
        return 1 if self.quick else int(min(MOST, max(FEWEST, ENOUGH_S / max(once, 1e-9))))


class NumPyEngine(Engine):
    name = "numpy"

    @classmethod
    def missing(cls, device: Device) -> str | None:
        return None if device == "cpu" else "NumPy runs on the CPU"


class TorchEngine(Engine):
    name = "torch"

    @classmethod
    def missing(cls, device: Device) -> str | None:
        if importlib.util.find_spec("torch") is None:
            return "torch is not installed"
        if device == "cuda" and not importlib.import_module("torch").cuda.is_available():
            return "torch sees no CUDA device"
        return None

    @functools.cached_property
    def torch(self) -> Any:
        return importlib.import_module("torch")

    @functools.cached_property
    def buffer(self) -> Any:
        cache = self.torch.cuda.get_device_properties().L2_cache_size
        return self.torch.empty(FLUSHED * cache, dtype=self.torch.uint8, device="cuda")

    def write(self) -> Any:
        self.buffer.zero_()

    def place(self, array: np.ndarray) -> Any:
        return self.torch.from_numpy(array).to(self.device)

    def finish(self, results: Any) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def copy(self, size: int) -> Function:
        target = self.torch.empty(size // 2, dtype=self.torch.uint8, device=self.device)
        return lambda operands: (target.copy_(operands["source"]),)

    def device_time(self, function: Function, operands: Mapping[str, Any]) -> Timing:
        if self.device == "cpu":
            return self.wall_time(function, operands)
        cuda = self.torch.cuda
        writes, calls = self.writes_and_calls(function, operands)
        pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(calls)]
        for start, stop in pairs:
            for _ in range(writes):
                self.write()
            start.record()
            function(operands)
            stop.record()
        cuda.synchronize()
        return Timing.of([start.elapsed_time(stop) / 1e3 for start, stop in pairs], "events")


class JaxEngine(Engine):
    name = "jax"

    @classmethod
    def missing(cls, device: Device) -> str | None:
        if importlib.util.find_spec("jax") is None:
            return "jax is not installed"
        try:
            importlib.import_module("jax").devices(device)
        except RuntimeError:
            return f"jax sees no {device} device"
        return None

    @functools.cached_property
    def jax(self) -> Any:
        return importlib.import_module("jax")

    @functools.cached_property
    def where(self) -> Any:
        return self.jax.devices(self.device)[0]

    @functools.cached_property
    def _write(self) -> Any:
        """How large the L2 is torch knows, and JAX does not say."""
        size = FLUSHED * importlib.import_module("torch").cuda.get_device_properties().L2_cache_size // 4
        return self.jax.jit(lambda: self.jax.numpy.zeros(size, np.int32))

    def write(self) -> Any:
        return self._write()

    def place(self, array: np.ndarray) -> Any:
        return self.jax.device_put(array, self.where)

    def compiled(self, function: Function) -> Function:
        return self.jax.jit(function)

    def finish(self, results: Any) -> None:
        self.jax.block_until_ready(results)

    def device_time(self, function: Function, operands: Mapping[str, Any]) -> Timing:
        return self.trace_time(function, operands)


def between(events: Sequence[Event], writer: str, write_us: float, writes: int, calls: int) -> list[float]:
    """Seconds from the start of the first kernel of a call to the end of its last, of so many calls with so many writes before each, for which the
    kernel `writer` takes about `write_us`."""
    after: list[list[Event]] = []
    for event in events:
        if event[2] == writer and event[1] - event[0] > write_us / 2:
            after.append([])
        elif after:
            after[-1].append(event)
        else:
            raise RuntimeError(f"{event[2]} ran before the first write")
    found = after[writes - 1 :: writes]
    if len(after) != writes * calls or not all(found) or sum(map(len, found)) != sum(map(len, after)):
        raise RuntimeError(f"of {calls} calls with {writes} writes before each, the profiler recorded {sum(map(bool, after))} behind {len(after)} writes")
    return [(max(end for _, end, _ in call) - call[0][0]) * 1e-6 for call in found]


ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (TorchEngine, JaxEngine, NumPyEngine)}
