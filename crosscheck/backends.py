"""What is compared: each backend takes a problem's NumPy arrays and gives NumPy arrays back.

Frameworks are imported when they are used. `missing` says why a backend can't run here.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from rlscan.crosscheck.scenarios import Problem
from rlscan.spec.calls import check
from rlscan.spec.derivative import differentiated, gradients
from rlscan.spec.recurrences import Recurrence
from rlscan.spec.reference import NumPyArrays, loop

Device = Literal["cpu", "cuda"]


class Backend:
    """One way to compute a recurrence.

    Attributes:
        name: on the command line and in reports.
        framework: the package that must be installed; None for NumPy.
    """

    name: str
    framework: str | None = None

    def missing(self, device: Device) -> str | None:
        """Why it can't run on this device; None if it can."""
        if self.framework is not None and importlib.util.find_spec(self.framework) is None:
            return f"{self.framework} is not installed: pip install 'rlscan[{self.framework}]'"
        return None

    def run(self, problem: Problem, device: Device, recurrence: Recurrence | None = None) -> tuple[np.ndarray, ...]:
        """The results, in the dtype that the backend returns; of another recurrence with the same arguments if one is given."""
        raise NotImplementedError

    def run_copies(self, problem: Problem, device: Device) -> tuple[tuple[np.ndarray, ...], bool]:
        """The results in the first of `problem.copies` rows, and whether all others are the same."""
        raise NotImplementedError

    def gradients(self, problem: Problem, cotangents: Sequence[np.ndarray], device: Device, recurrence: Recurrence | None = None) -> dict[str, np.ndarray]:
        """By each floating argument, when these gradients come in for the results; of another recurrence as in `run`."""
        raise NotImplementedError


class NumPyLoop(Backend):
    """The spec's own loop, in the dtype that a backend computes in: shows what rounding alone does."""

    name = "numpy"

    def missing(self, device: Device) -> str | None:
        return None if device == "cpu" else "NumPy runs on the CPU"

    def run(self, problem: Problem, device: Device, recurrence: Recurrence | None = None) -> tuple[np.ndarray, ...]:
        call = problem.call if recurrence is None else check(recurrence, problem.arguments, NumPyArrays())
        with np.errstate(all="ignore"):
            return loop(call, problem.call.dtype)

    def gradients(self, problem: Problem, cotangents: Sequence[np.ndarray], device: Device, recurrence: Recurrence | None = None) -> dict[str, np.ndarray]:
        call = problem.call if recurrence is None else check(recurrence, problem.arguments, NumPyArrays())
        return dict(gradients(call, cotangents, problem.call.dtype))


class Torch(Backend):
    """`rlscan.torch_triton`: what the public functions do, or the Triton kernels."""

    framework = "torch"

    def __init__(self, name: str, method: Literal["kernels"] | None) -> None:
        self.name, self.method = name, method

    def missing(self, device: Device) -> str | None:
        if reason := super().missing(device):
            return reason
        if device == "cuda":
            return None if importlib.import_module("torch").cuda.is_available() else "torch sees no CUDA device"
        if self.method == "kernels" and not importlib.import_module("rlscan.torch_triton.arrays").is_interpreted():
            return "Triton kernels run on a CPU only with TRITON_INTERPRET=1 in the environment"
        return None

    def run(self, problem: Problem, device: Device, recurrence: Recurrence | None = None) -> tuple[np.ndarray, ...]:
        package = importlib.import_module("rlscan.torch_triton")
        results = package.run(recurrence or problem.recurrence, _each_array(problem, tensor, device), method=self.method)
        return tuple(result.cpu().numpy() for result in as_tuple(results))

    def gradients(self, problem: Problem, cotangents: Sequence[np.ndarray], device: Device, recurrence: Recurrence | None = None) -> dict[str, np.ndarray]:
        package, torch = importlib.import_module("rlscan.torch_triton"), importlib.import_module("torch")
        arguments = _each_array(problem, tensor, device)
        at = {name: arguments[name].requires_grad_() for name in differentiated(problem.call)}
        results = as_tuple(package.run(recurrence or problem.recurrence, arguments | at, method=self.method))
        arriving = [tensor(cotangent, device, problem.dtype) for cotangent in cotangents]
        found = torch.autograd.grad(results, list(at.values()), arriving, allow_unused=True, materialize_grads=True)
        return {name: gradient.cpu().numpy() for name, gradient in zip(at, found, strict=True)}

    def run_copies(self, problem: Problem, device: Device) -> tuple[tuple[np.ndarray, ...], bool]:
        package = importlib.import_module("rlscan.torch_triton")

        def widened(array: np.ndarray, device: Device, dtype: str) -> Any:
            moved = tensor(array, device, dtype)
            return moved.expand(_widened(array.shape, problem))

        arguments = _each_array(problem, widened, device)
        # One that is really there; the others are read again and again at the same places.
        arguments[problem.recurrence.frame.name] = arguments[problem.recurrence.frame.name].contiguous()
        results = as_tuple(package.run(problem.recurrence, arguments, method=self.method))
        axis = _row_axis(problem)
        firsts = [result.narrow(axis, 0, 1) for result in results]
        same = all(bool((result == first).all()) for result, first in zip(results, firsts, strict=True))
        return tuple(first.cpu().numpy() for first in firsts), same


class Jax(Backend):
    """`rlscan.jax_pallas`: what the public functions do, or the Pallas kernels."""

    framework = "jax"

    def __init__(self, name: str, method: Literal["kernels"] | None) -> None:
        self.name, self.method = name, method

    def missing(self, device: Device) -> str | None:
        if reason := super().missing(device):
            return reason
        return None if device == "cpu" or self._device(device) is not None else "jax sees no CUDA device"

    def run(self, problem: Problem, device: Device, recurrence: Recurrence | None = None) -> tuple[np.ndarray, ...]:
        package, jax = importlib.import_module("rlscan.jax_pallas"), importlib.import_module("jax")
        with wide_numbers(problem.arguments.values()), jax.default_device(self._device(device)):
            arguments = {
                name: self.array(value, device, problem.dtype) if isinstance(value, np.ndarray) else value for name, value in problem.arguments.items()
            }
            results = package.run(recurrence or problem.recurrence, arguments, method=self.method)
            return tuple(np.asarray(result) for result in as_tuple(results))

    def gradients(self, problem: Problem, cotangents: Sequence[np.ndarray], device: Device, recurrence: Recurrence | None = None) -> dict[str, np.ndarray]:
        jax = importlib.import_module("jax")
        with wide_numbers(problem.arguments.values()), jax.default_device(self._device(device)):
            arrays = {name: self.array(x, device, problem.dtype) for name, x in problem.arguments.items() if isinstance(x, np.ndarray)}
            at = {name: arrays.pop(name) for name in differentiated(problem.call)}
            options = tuple((name, x) for name, x in problem.arguments.items() if not isinstance(x, np.ndarray))
            arriving = tuple(self.array(cotangent, device, problem.dtype) for cotangent in cotangents)
            found = _jax_gradients(recurrence or problem.recurrence, self.method, options)(at, arrays, arriving)
            return {name: np.asarray(gradient) for name, gradient in found.items()}

    def run_copies(self, problem: Problem, device: Device) -> tuple[tuple[np.ndarray, ...], bool]:
        package, jax = importlib.import_module("rlscan.jax_pallas"), importlib.import_module("jax")

        def widened(array: np.ndarray, device: Device, dtype: str) -> Any:
            return jax.numpy.broadcast_to(self.array(array, device, dtype), _widened(array.shape, problem))

        with jax.default_device(self._device(device)):
            results = as_tuple(package.run(problem.recurrence, _each_array(problem, widened, device), method=self.method))
            firsts = [jax.lax.slice_in_dim(result, 0, 1, axis=_row_axis(problem)) for result in results]
            same = all(bool((result == first).all()) for result, first in zip(results, firsts, strict=True))
            return tuple(map(np.asarray, firsts)), same

    def array(self, array: np.ndarray, device: Device, dtype: str) -> Any:
        """On a GPU the very memory that torch gets, where torch can share it."""
        jax = importlib.import_module("jax")
        if device == "cuda" and array.size and TORCH.missing("cuda") is None:
            return jax.dlpack.from_dlpack(tensor(array, device, dtype).contiguous())
        moved = jax.numpy.asarray(array)
        return moved.astype(dtype) if dtype == "bfloat16" and array.dtype == np.float32 else moved

    @staticmethod
    def _device(device: Device) -> Any:
        with contextlib.suppress(RuntimeError):
            return importlib.import_module("jax").devices(device)[0]
        return None


@functools.cache
def _jax_gradients(recurrence: Recurrence, method: str | None, options: tuple[tuple[str, Any], ...]) -> Callable[..., dict[str, Any]]:
    """Compiled once for all arrays of the same shapes."""
    package, jax = importlib.import_module("rlscan.jax_pallas"), importlib.import_module("jax")

    def gradients(at: dict[str, Any], rest: dict[str, Any], cotangents: tuple[Any, ...]) -> dict[str, Any]:
        def results(at: dict[str, Any]) -> tuple[Any, ...]:
            return as_tuple(package.run(recurrence, dict(options) | rest | at, method=method))

        return jax.vjp(results, at)[1](tuple(cotangents))[0]

    return jax.jit(gradients)


TORCH = Torch("torch", None)

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (NumPyLoop(), TORCH, Torch("triton", "kernels"), Jax("jax", None), Jax("pallas", "kernels"))
}


def _each_array(problem: Problem, convert: Callable[[np.ndarray, Device, str], Any], device: Device) -> dict[str, Any]:
    return {name: convert(x, device, problem.dtype) if isinstance(x, np.ndarray) else x for name, x in problem.arguments.items()}


def _row_axis(problem: Problem) -> int:
    """Of the only row in a problem that is to be given many times."""
    return 1 - problem.call.time_axis


def _widened(shape: tuple[int, ...], problem: Problem) -> tuple[int, ...]:
    """The shape of an argument with that row as many times as the problem says."""
    axis = _row_axis(problem) if len(shape) > 1 else 0
    return (*shape[:axis], problem.copies, *shape[axis + 1 :]) if shape else shape


def tensor(array: np.ndarray, device: Device, dtype: str) -> Any:
    """A torch tensor with the strides of `array`."""
    torch = importlib.import_module("torch")
    strides = tuple(stride // array.itemsize for stride in array.strides)
    reach = 1 + sum(stride * (size - 1) for stride, size in zip(strides, array.shape, strict=True)) if array.size else 0
    memory = torch.from_numpy(np.lib.stride_tricks.as_strided(array, (reach,), (array.itemsize,)).copy())
    if dtype == "bfloat16" and array.dtype == np.float32:
        memory = memory.to(torch.bfloat16)
    return memory.to(device).as_strided(array.shape, strides)


@functools.cache
def _x64() -> Any:
    jax = importlib.import_module("jax")
    return jax.enable_x64 if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental").enable_x64


@contextlib.contextmanager
def wide_numbers(arguments: Iterable[Any]) -> Iterator[None]:
    """JAX's x64 mode where an array needs it; JAX would cast it to 32 bits otherwise."""
    wide = any(isinstance(value, np.ndarray) and value.dtype.itemsize == 8 for value in arguments)
    with _x64()(True) if wide else contextlib.nullcontext():
        yield


def as_tuple(results: Any) -> tuple[Any, ...]:
    """What a public function gives, which is one array or several."""
    return tuple(results) if isinstance(results, tuple) else (results,)
