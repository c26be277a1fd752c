"""How time is taken in each framework: on the device with a cold L2, and of a warm call on the host.

An implementation is a function from arrays by name to a tuple of arrays. Three ways to time it on a GPU:

- `events` (PyTorch): CUDA events before and after each call, behind a write of several times the L2. The write is long enough
  for the host to queue a call meanwhile, so that the device need not wait for the host. An interval contains the start of the first
  kernel and the gaps between kernels, a few µs in all, and so does that of the copy.
- `loop`: the time of many (write, call) in a row less that of as many (write, kernel over one number), divided by their number. JAX
  has no events, so there the loop is a `fori_loop` inside one jit. XLA would move a call out of it whose arguments stay the same, and
  leave out what nobody looks at: so each turn changes one number of one argument, in place, and the loop carries all results. In
  PyTorch the same loop is one CUDA graph. What it takes to start a kernel differs, some 5 µs in XLA's loop and 2 in a graph, and cancels
  out: this is what JAX and PyTorch are compared by. Where a call is several kernels, the starts of all but one are in it.
- `wall` (on a CPU): the clock, with warm caches.

The write leaves dirty lines in the L2, which whoever comes next has to evict. Between events that is part of each call, and of the
copy it is compared with; in a loop it cancels out, for there the call's own lines are evicted too.
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

LOOPED = {"torch": 50, "jax": 300}
"""Calls in a loop. Constant, for XLA asks the device whether to go on where it does not know how often; and many in JAX, for around its loop
the host takes some 600 µs (of an H200, 2026-11-30), which scatter by a tenth and more: 50 calls were told apart to 3 µs, 300 are to 0.5."""
FLUSHED = 8
"""Times the size of the L2 that is written between two calls: 400 MB on an H200, long enough for a slow host to queue the next one."""
PAGES = 2 * 4096
"""Bytes that the size of a copy is a multiple of: NVIDIA's copies sizes that no large power of two divides at two thirds of the speed."""
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

    def loop_time(self, function: Function, operands: Mapping[str, Any]) -> Timing:
        return self.wall_time(function, operands)

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
            taken = self.loop_time if method == "loop" else self.device_time
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

    def host_time(self, function: Function, operands: Mapping[str, Any]) -> Timing:
        """Of the host, for a warm call that nobody waits for."""
        function = self.compiled(function)
        taken = []
        for _ in range(2 if self.quick else 22):
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
        pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(self.repetitions(self._once(function, operands)))]
        for start, stop in pairs:
            self.buffer.zero_()
            start.record()
            function(operands)
            stop.record()
        cuda.synchronize()
        return Timing.of([start.elapsed_time(stop) / 1e3 for start, stop in pairs], "events")

    def loop_time(self, function: Function, operands: Mapping[str, Any]) -> Timing:
        if self.device == "cpu":
            return self.wall_time(function, operands)
        taken = np.array(self._looped(lambda: function(operands))) - self._with_one_number
        return Timing.of(list(taken), "loop")

    @functools.cached_property
    def _with_one_number(self) -> float:
        number = self.torch.ones(1, device=self.device)
        return float(np.median(self._looped(lambda: self.torch.neg(number))))

    def _looped(self, call: Callable[[], Any]) -> list[float]:
        """Seconds for a write and a call, each the mean over one replay of a graph."""
        cuda, graph = self.torch.cuda, self.torch.cuda.CUDAGraph()
        call()
        cuda.synchronize()
        # JAX may have threads of its own on the device
        with cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(LOOPED[self.name]):
                self.buffer.zero_()
                call()
        taken = []
        for _ in range(2 if self.quick else 12):
            start, stop = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            stop.record()
            cuda.synchronize()
            taken.append(start.elapsed_time(stop) / 1e3 / LOOPED[self.name])
        return taken[1:]

    def _once(self, function: Function, operands: Mapping[str, Any]) -> float:
        """Seconds for a warm call and what the host has to do for it."""
        for _ in range(2):
            self.finish(function(operands))
        start = time.perf_counter()
        self.finish(function(operands))
        return time.perf_counter() - start


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
    def buffer_size(self) -> int:
        """In numbers of 4 bytes. How large the L2 is torch knows, and JAX does not say."""
        if self.device == "cpu":
            return 1024
        torch = TorchEngine.missing(self.device) is None and importlib.import_module("torch")
        return FLUSHED * (torch.cuda.get_device_properties().L2_cache_size if torch else 128 * 2**20) // 4

    def place(self, array: np.ndarray) -> Any:
        return self.jax.device_put(array, self.where)

    def compiled(self, function: Function) -> Function:
        return self.jax.jit(function)

    def finish(self, results: Any) -> None:
        self.jax.block_until_ready(results)

    def copy(self, size: int) -> Function:
        """XLA copies what a loop carries twice."""
        return lambda operands: (operands["source"],)

    def device_time(self, function: Function, operands: Mapping[str, Any]) -> Timing:
        return self.loop_time(function, operands)

    def loop_time(self, function: Function, operands: Mapping[str, Any]) -> Timing:
        if self.device == "cpu":
            return self.wall_time(function, operands)
        taken = np.array(self.looped(function, operands)) - self._with_one_number
        return Timing.of(list(taken), "loop")

    @functools.cached_property
    def _with_one_number(self) -> float:
        return float(np.median(self.looped(lambda operands: (-operands["one"],), {"one": self.place(np.ones(1, np.float32))})))

    def looped(self, function: Function, operands: Mapping[str, Any]) -> list[float]:
        """Seconds for a write and a call, each the mean over one run of the loop."""
        loop = self.jax.jit(functools.partial(self._loop, function))

        def once() -> float:
            start = time.perf_counter()
            self.finish(loop(dict(operands)))
            return time.perf_counter() - start

        once()
        return [once() / LOOPED[self.name] for _ in range(self.repetitions(once()))]

    def _loop(self, function: Function, operands: Mapping[str, Any]) -> Any:
        jnp, lax = self.jax.numpy, self.jax.lax
        changed = next(name for name, array in operands.items() if array.dtype != bool)

        def body(i: Any, carried: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            array = carried[1]
            array = lax.dynamic_update_slice(array, jnp.full((1,) * array.ndim, i, array.dtype), (0,) * array.ndim)
            written, array = lax.optimization_barrier((jnp.full(self.buffer_size, i, np.int32), array))
            # results with names are not what the carried ones are
            return written, array, tuple(function({**operands, changed: array}))

        results = [jnp.zeros(result.shape, result.dtype) for result in self.jax.eval_shape(function, operands)]
        return lax.fori_loop(0, LOOPED[self.name], body, (jnp.zeros(self.buffer_size, np.int32), operands[changed], tuple(results)))


ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (TorchEngine, JaxEngine, NumPyEngine)}
