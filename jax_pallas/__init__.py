"""Credit assignment on JAX arrays: Pallas kernels on a GPU, `jax.lax` elsewhere."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import jax
from jax import lax
from jax.core import Tracer

from rlscan.jax_pallas.arrays import Arrays, compiled
from rlscan.jax_pallas.vectorised import by_whole_arrays
from rlscan.spec.calls import Call, check, complete
from rlscan.spec.plan import MOST_STEPS
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.spec.signatures import public_function

__all__ = ["run", *RECURRENCES]  # pyright: ignore[reportUnsupportedDunderAll]

_ARRAYS = Arrays()


def run(recurrence: Recurrence, arguments: Mapping[str, Any], method: Literal["kernels", "vectorised"] | None = None) -> Any:
    """The results of any declared recurrence.

    Works under `jax.jit`, `jax.vmap` and in `jax.lax` loops. Called outside, it is compiled once for all arrays of the same
    shapes and dtypes; another `gamma` is no other program.

    Args:
        recurrence: its declaration.
        arguments: by public name.
        method: the Pallas kernels, or whole-array `jax.lax`; None: the kernels on a GPU, `jax.lax` elsewhere, and where this JAX
            can't compile the kernels. Kernels run on a CPU only in Pallas' interpret mode, which is slow. They give first gradients too;
            other derivatives are computed by `jax.lax`.
    """
    arguments = complete(recurrence, arguments)
    if method not in (None, "kernels", "vectorised"):
        raise ValueError(f"method is {method!r}; wanted 'kernels', 'vectorised' or None")
    call = check(recurrence, arguments, _ARRAYS)
    _check_width(call)
    return call.recurrence.pack(_outputs(call, method))


def _outputs(call: Call, method: Literal["kernels", "vectorised"] | None) -> tuple[jax.Array, ...]:
    frame = call.arrays[call.recurrence.frame.name]
    if 0 in call.shape:
        # where it lies, and however it is spread, and each an array of its own
        return tuple(frame.astype(call.dtype).copy() for _ in call.recurrence.output_names)
    traced = any(isinstance(array, Tracer) for array in call.arrays.values())
    platform = jax.default_backend() if traced else next(iter(frame.devices())).platform
    if not all(isinstance(size, int) for size in call.shape):
        if method == "kernels":
            shape = f"has the symbolic shape {call.shape}, and kernels are planned for known sizes"
            raise NotImplementedError(f"{call.recurrence.name}: {call.recurrence.frame.name} {shape}; wanted method='vectorised', or None")
        return by_whole_arrays(call)
    if method == "kernels":
        from rlscan.jax_pallas.launch import by_kernels

        return by_kernels(call, platform == "cpu")
    if method == "vectorised" or platform != "gpu" or not _kernels_can_run(call):
        return by_whole_arrays(call)
    return _by_platform(call)


def _check_width(call: Call) -> None:
    """In 32-bit mode `jax.jit` reads arrays of 64 bits in 32, and says nothing."""
    if jax.dtypes.canonicalize_dtype("float64") == "float64":
        return
    for name, array in call.arrays.items():
        if array.dtype == "float64":
            what = f"{name} is float64, and jax_enable_x64 is off, so that JAX would compute in float32; wanted float32, or jax_enable_x64 on"
            raise TypeError(f"{call.recurrence.name}: {what}")


@compiled
def _by_platform(call: Call) -> tuple[jax.Array, ...]:
    """Decided when it is compiled: with a GPU at hand, `jax.jit` and `jax.default_device` may still choose the CPU."""
    from rlscan.jax_pallas.launch import by_kernels

    def kernels(operands: dict[str, dict[str, Any]]) -> tuple[jax.Array, ...]:
        return by_kernels(dataclasses.replace(call, **operands), False)

    def whole_arrays(operands: dict[str, dict[str, Any]]) -> tuple[jax.Array, ...]:
        return by_whole_arrays(dataclasses.replace(call, **operands))

    return lax.platform_dependent({"arrays": call.arrays, "numbers": call.numbers}, cuda=kernels, default=whole_arrays)


def _kernels_can_run(call: Call) -> bool:
    launch = _launch_module()
    return launch is not None and math.prod(call.row_shape) <= launch.MOST_ROWS and call.steps <= MOST_STEPS


@functools.cache
def _launch_module() -> Any:
    try:
        from rlscan.jax_pallas import launch
    except ImportError as error:
        what = f"JAX {jax.__version__} does not have what rlscan's Pallas kernels need ({error}); jax.lax takes their place"
        warnings.warn(what, RuntimeWarning, stacklevel=2)
        return None
    return launch


for _recurrence in RECURRENCES.values():
    globals()[_recurrence.name] = public_function(_recurrence, run, __name__, "jax.Array")
