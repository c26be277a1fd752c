"""The recurrences one step at a time, in float64: what everything else is compared with.

The public functions are those of the backends, on NumPy arrays. `run` is the loop behind all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlscan.spec import coefficients
from rlscan.spec.calls import Call, check
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.spec.signatures import public_function
from rlscan.spec.taps import STATE, STATE_BEYOND, Constant, Outside, Read


class NumPyArrays:
    """What the validator asks, of NumPy arrays."""

    name = "numpy.ndarray"

    def is_array(self, x: Any) -> bool:
        return isinstance(x, np.ndarray)

    def shape(self, x: np.ndarray) -> tuple[int, ...]:
        return x.shape

    def dtype(self, x: np.ndarray) -> str:
        return x.dtype.name

    def device(self, x: np.ndarray) -> None:
        return None


class Steps:
    """The reads of a call, each as an array `[T, rows..]`."""

    def __init__(self, call: Call, dtype: Any = np.float64) -> None:
        self.call, self.dtype = call, dtype
        self.shape = (call.steps, *call.row_shape)
        kinds = {argument.name: argument for argument in call.recurrence.arguments}
        self.kinds = kinds
        self.valid = np.ones(self.shape, bool)
        if call.wiring.validity == "given":
            self.valid = self.tap(call.wiring.valid_taps[0])
        elif call.wiring.validity == "derived":
            self.valid = np.broadcast_to(coefficients.not_a_reset(*map(self.tap, call.wiring.valid_taps)), self.shape)
        self.neighbour = self.nearest_valid_steps()

    def nearest_valid_steps(self) -> np.ndarray:
        """For each step, the next (or previous) valid one; T or -1 where there is none."""
        steps = self.call.steps
        nearest = np.full(self.shape, steps if self.call.wiring.neighbour == "next" else -1)
        if self.call.wiring.neighbour == "next":
            for t in reversed(range(steps - 1)):
                nearest[t] = np.where(self.valid[t + 1], t + 1, nearest[t + 1])
        else:
            for t in range(1, steps):
                nearest[t] = np.where(self.valid[t - 1], t - 1, nearest[t - 1])
        return nearest

    def array(self, name: str) -> np.ndarray:
        """The argument as `[T, rows..]`, or `[rows..]` if it has no time."""
        call, argument, array = self.call, self.kinds[name], self.call.arrays[name]
        array = array != 0 if argument.flag else array.astype(self.dtype)
        if argument.shape == "row":
            return array
        frame = call.shape[: call.frame_ndim]
        if argument.shape == "parameter":
            array = np.broadcast_to(array, frame)
        if argument.shape != "inputs":
            array = array.reshape(array.shape[: call.frame_ndim] + (1,) * (len(call.shape) - call.frame_ndim) + array.shape[call.frame_ndim :])
        return np.moveaxis(array, call.time_axis, 0)

    def tap(self, tap: int | Constant | Outside | str) -> Any:
        if isinstance(tap, Constant):
            return np.asarray(tap.value, bool if isinstance(tap.value, bool) else self.dtype)
        if isinstance(tap, Outside):
            return self.neighbour == (self.call.steps if tap.at == "next" else -1)
        assert isinstance(tap, int)
        return self.read(self.call.wiring.reads[tap])

    def read(self, read: Read) -> np.ndarray:
        if read.at == "number":
            return np.asarray(self.call.numbers[read.source], self.call.dtype).astype(self.dtype)
        array = self.array(read.source)
        if read.at in ("row", "step"):
            return array
        if read.at == "actions":
            assert isinstance(read.edge, str)
            probabilities, total = self.array(read.edge), np.zeros(self.shape, self.dtype)
            for action in range(array.shape[-1]):
                total = coefficients.expectation(total, probabilities[..., action], array[..., action])
            return total
        edge = self.array(read.edge) if isinstance(read.edge, str) else np.asarray(read.edge, array.dtype)
        array = np.broadcast_to(array, self.shape)
        t = np.arange(self.call.steps).reshape(-1, *[1] * (len(self.shape) - 1))
        place = {"next": self.neighbour, "previous": self.neighbour, "following": t + 1, "preceding": t - 1}[read.at]
        place = np.broadcast_to(place, self.shape)
        inside = (place >= 0) & (place < self.call.steps)
        return np.where(inside, np.take_along_axis(array, np.clip(place, 0, max(self.call.steps - 1, 0)), 0) if self.call.steps else array, edge)


def loop(call: Call, dtype: Any = np.float64) -> tuple[np.ndarray, ...]:
    """The outputs of a checked call, by the recurrence as it is written."""
    steps, wiring = Steps(call, dtype), call.wiring
    alpha, beta = coefficients.skip(*(np.broadcast_to(array, steps.shape) for array in call.recurrence.coefficients(*map(steps.tap, wiring.coefficients))), steps.valid)
    state = np.zeros(call.row_shape, dtype) if wiring.seed is None else steps.array(wiring.seed)
    states, beyond = np.empty(steps.shape, dtype), np.empty(steps.shape, dtype)
    for t in reversed(range(call.steps)) if call.backward else range(call.steps):
        beyond[t] = state
        state = coefficients.step(alpha[t], beta[t], state)
        states[t] = state
    outputs: tuple = (states,)
    if call.recurrence.outputs is not None:
        known = {STATE: states, STATE_BEYOND: beyond}
        outputs = call.recurrence.outputs(*(known[tap] if isinstance(tap, str) else steps.tap(tap) for tap in wiring.outputs))
    return tuple(np.moveaxis(coefficients.nothing_where_invalid(output, steps.valid), 0, call.time_axis) for output in outputs)


def run(recurrence: Recurrence, arguments: Mapping[str, Any]) -> Any:
    """The results of `recurrence` on NumPy arrays, in float64."""
    call = check(recurrence, arguments, NumPyArrays())
    with np.errstate(all="ignore"):
        return call.recurrence.pack(loop(call))


gae = public_function(RECURRENCES["gae"], run, __name__)
vtrace = public_function(RECURRENCES["vtrace"], run, __name__)
retrace = public_function(RECURRENCES["retrace"], run, __name__)
lambda_returns = public_function(RECURRENCES["lambda_returns"], run, __name__)
discounted_returns = public_function(RECURRENCES["discounted_returns"], run, __name__)
eligibility_traces = public_function(RECURRENCES["eligibility_traces"], run, __name__)
episodic_prefix_sum = public_function(RECURRENCES["episodic_prefix_sum"], run, __name__)
affine_scan = public_function(RECURRENCES["affine_scan"], run, __name__)
