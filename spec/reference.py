"""The recurrences one step at a time, in float64: what everything else is compared with.

The public functions are those of the backends, on NumPy arrays. `run` is the loop behind all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlscan.spec import coefficients, steps
from rlscan.spec.calls import Call, check, complete
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.spec.signatures import public_function

__all__ = ["run", *RECURRENCES]  # pyright: ignore[reportUnsupportedDunderAll]


class NumPyArrays:
    """What the validator asks, of NumPy arrays."""

    name, maker = "numpy.ndarray", "numpy.asarray"

    def is_array(self, x: Any) -> bool:
        return isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray)  # a mask is none of ours: pass `valid`

    def shape(self, x: np.ndarray) -> tuple[int, ...]:
        return x.shape

    def dtype(self, x: np.ndarray) -> str:
        return x.dtype.name

    def device(self, x: np.ndarray) -> None:
        return None

    def not_dense(self, x: np.ndarray) -> None:
        return None

    def is_traced(self, x: Any) -> bool:
        return False


class WholeNumPyArrays(steps.PlacesInNumPy):
    """Whole-array work in NumPy, with numbers first rounded to the dtype that a backend would compute in."""

    xp, array_type = np, np.ndarray

    def __init__(self, dtype: Any, numbers_in: str) -> None:
        self.dtype, self.numbers_in = dtype, numbers_in

    def number(self, x: Any) -> np.ndarray:
        return np.asarray(x, self.numbers_in if type(x) in (int, float) else None).astype(self.dtype)

    def flag(self, x: np.ndarray) -> np.ndarray:
        return x != 0

    def constant(self, value: float | bool) -> np.ndarray:
        return np.asarray(value, bool if isinstance(value, bool) else self.dtype)


def Steps(call: Call, dtype: Any = np.float64) -> steps.Steps:  # noqa: N802
    return steps.Steps(call, WholeNumPyArrays(dtype, call.dtype))


def loop(call: Call, dtype: Any = np.float64) -> tuple[np.ndarray, ...]:
    """The outputs of a checked call, by the recurrence as it is written."""
    taps = Steps(call, dtype)

    def stacked(states: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(states) if states else np.empty(taps.shape, dtype)

    return by_steps(taps, stacked)


def by_steps(taps: steps.Steps, stacked: Callable[[Sequence[Any]], Any], kept: Callable[[Any], Any] = lambda state: state) -> tuple[Any, ...]:
    """The outputs in any array library, which has the states of all steps `stacked`; of each state there remains what is `kept`."""
    (alpha, beta), step = taps.coefficients(), taps.bound(coefficients.step)
    states, beyond, carried = [], [], taps.seed()
    backward = taps.call.backward
    for t in reversed(range(taps.call.steps)) if backward else range(taps.call.steps):
        beyond.append(carried)
        carried = kept(step(alpha[t], beta[t], carried))
        states.append(carried)
    return taps.outputs(*(stacked(each[::-1] if backward else each) for each in (states, beyond)))


def run(recurrence: Recurrence, arguments: Mapping[str, Any]) -> Any:
    """The results of `recurrence` on NumPy arrays, in float64."""
    call = check(recurrence, complete(recurrence, arguments), NumPyArrays())
    with np.errstate(all="ignore"):
        return call.recurrence.pack(loop(call))


for _recurrence in RECURRENCES.values():
    globals()[_recurrence.name] = public_function(_recurrence, run, __name__)
