"""The reads of a call as whole arrays `[T, rows..]`, for any array library that works on whole arrays."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rlscan.spec import coefficients
from rlscan.spec.arguments import Argument
from rlscan.spec.binding import bind
from rlscan.spec.calls import Call
from rlscan.spec.taps import STATE, STATE_BEYOND, Constant, Outside, Read


class WholeArrays(Protocol):
    """What is asked of an array library here: NumPy's names, and what differs.

    `xp` has `where`, `exp`, `broadcast_to`, `moveaxis`, and arrays have `reshape`.
    """

    xp: Any
    array_type: Any

    def number(self, x: Any) -> Any:
        """A floating array or a Python number, in the dtype computed in."""

    def flag(self, x: Any) -> Any:
        """The array as booleans: nonzero is True."""

    def constant(self, value: float | bool) -> Any:
        """A 0-d array: a flag, or a number in the dtype computed in."""

    def folded(self, function: Callable[..., Any], total: Any, *arrays: Any) -> Any:
        """`function(total, *elements)` again and again, for each place along the last axis of the arrays, which is not empty."""

    def numbered(self, length: int) -> Any:
        """0 .. length-1, as integers."""

    def joined(self, first: Any, second: Any) -> Any:
        """One behind the other along the first axis, in a new array."""

    def take(self, array: Any, place: Any) -> Any:
        """`array[place]` along the first axis, element by element."""

    def nearest(self, place: Any, backward: bool) -> Any:
        """The running minimum of `place` from the last step to the first, or the running maximum from the first."""


def folded(function: Callable[..., Any], total: Any, *arrays: Any) -> Any:
    """`WholeArrays.folded`, where operations are carried out one by one anyway."""
    for place in range(arrays[0].shape[-1]):
        total = function(total, *(array[..., place] for array in arrays))
    return total


def beside(joined: Callable[[Any, Any], Any], array: Any, edge: Any, backward: bool) -> Any:
    """What an array has one step before in the scan, and `edge`, which has a time axis too, where the scan begins."""
    return joined(array[1:], edge) if backward else joined(edge, array[:-1])


class PlacesInNumPy:
    """What has to do with places and not with numbers, in NumPy."""

    folded = staticmethod(folded)

    def numbered(self, length: int) -> np.ndarray:
        return np.arange(length)

    def joined(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.concatenate([first, second])

    def take(self, array: np.ndarray, place: np.ndarray) -> np.ndarray:
        return np.take_along_axis(array, place, 0)

    def nearest(self, place: np.ndarray, backward: bool) -> np.ndarray:
        return np.minimum.accumulate(place[::-1])[::-1] if backward else np.maximum.accumulate(place)


class Steps:
    """Every tap of a call, read.

    Attributes:
        shape: `(T, rows..)`.
        valid: flags of that shape, or None where every step is valid.
    """

    def __init__(self, call: Call, library: WholeArrays) -> None:
        self.call, self.library = call, library
        self.shape = (call.steps, *call.row_shape)
        self.arguments = {argument.name: argument for argument in call.recurrence.arguments}
        # Where the neighbours are not the stored ones: for each step, which.
        self.places: dict[str, Any] = {}
        self.valid: Any = None
        if call.wiring.validity == "given":
            self.valid = self.tap(call.wiring.valid_taps[0])
        elif call.wiring.validity == "derived":
            self.valid = self.bound(coefficients.not_a_reset)(*map(self.tap, call.wiring.valid_taps))
        if self.valid is not None:
            self.valid = library.xp.broadcast_to(self.valid, self.shape)
        if call.wiring.neighbour != "none":
            self.places[call.wiring.neighbour] = self.nearest_valid_steps()

    def bound(self, function: Any) -> Any:
        return bind(function, self.library.xp, self.library.array_type)

    def expectation(self, weights: Any, values: Any) -> Any:
        """Over the last axis."""
        return self.library.folded(self.bound(coefficients.expectation), self.library.constant(0.0), weights, values)

    def numbers(self) -> Any:
        """t, at every step of every row."""
        return self.library.xp.broadcast_to(self.library.numbered(self.call.steps).reshape((-1,) + (1,) * len(self.call.row_shape)), self.shape)

    def beside(self, array: Any, edge: Any, backward: bool) -> Any:
        """What is stored at t-1, or at t+1 in a backward recurrence, and `edge` outside the window."""
        edge = self.library.xp.broadcast_to(edge, (1, *self.call.row_shape))[: self.call.steps]
        return beside(self.library.joined, array, edge, backward)

    def nearest_valid_steps(self) -> Any:
        """For each step, the nearest valid one after it, else T, or before it, else -1."""
        backward = self.call.wiring.neighbour == "next"
        nowhere = self.library.numbered(1) + (self.call.steps if backward else -1)
        valid = self.library.xp.where(self.valid, self.numbers(), nowhere)
        return self.library.nearest(self.beside(valid, nowhere, backward), backward)

    def array(self, name: str) -> Any:
        """The argument as `[T, rows..]`, or `[rows..]` if it has no time; flags as they are, not yet as booleans."""
        call, argument, array = self.call, self.arguments[name], self.call.arrays[name]
        array = self.library.flag(array) if argument.flag else self.library.number(array)
        if argument.shape == "row" or (argument.shape == "parameter" and tuple(array.shape) == ()):
            return array
        frame = call.shape[: call.frame_ndim]
        if argument.shape == "parameter":
            array = self.library.xp.broadcast_to(array, frame)
        if argument.shape != "inputs":
            features = (1,) * (len(call.shape) - call.frame_ndim)
            array = array.reshape(tuple(array.shape[: call.frame_ndim]) + features + tuple(array.shape[call.frame_ndim :]))
        return self.library.xp.moveaxis(array, call.time_axis, 0)

    def tap(self, tap: int | Constant | Outside | str) -> Any:
        if isinstance(tap, Constant):
            return self.library.constant(tap.value)
        if isinstance(tap, Outside):
            place = self.places[tap.at] if tap.at in self.places else self.numbers() + (1 if tap.at == "next" else -1)
            return (place < 0) | (place >= self.call.steps)
        assert isinstance(tap, int)
        return self.read(self.call.wiring.reads[tap])

    def read(self, read: Read) -> Any:
        library = self.library
        if read.at == "number":
            return library.number(self.call.numbers[read.source])
        array = self.array(read.source)
        if read.at in ("row", "step"):
            return array
        if read.at == "actions":
            assert isinstance(read.edge, str)
            return self.expectation(self.array(read.edge), array)
        edge = self.array(read.edge) if isinstance(read.edge, str) else library.constant(read.edge)  # type: ignore[arg-type]
        array = library.xp.broadcast_to(array, self.shape)
        if read.at not in self.places:
            return self.beside(array, edge, read.at == "following")
        place = self.places[read.at]
        inside = (place >= 0) & (place < self.call.steps)
        return library.xp.where(inside, library.take(array, library.xp.where(inside, place, 0)), edge)

    def coefficients(self) -> tuple[Any, Any]:
        """alpha and beta of every step; those of no step at all where it is not valid."""
        pair = self.bound(self.call.recurrence.coefficients)(*map(self.tap, self.call.wiring.coefficients))
        if self.valid is not None:
            pair = self.bound(coefficients.skip)(*pair, self.valid)
        alpha, beta = (self.library.xp.broadcast_to(self.library.number(array), self.shape) for array in pair)
        return alpha, beta

    def seed(self) -> Any:
        """The state beyond the window, `[rows..]`."""
        seed = self.call.wiring.seed
        return self.library.xp.broadcast_to(self.library.constant(0.0) if seed is None else self.array(seed), self.call.row_shape)

    def outputs(self, state: Any, state_beyond: Any) -> tuple[Any, ...]:
        """The results from the state at every step and at the one before it in the scan, with time where the caller has it."""
        function, outputs = self.call.recurrence.outputs, (state,)
        if function is not None:
            known = {STATE: state, STATE_BEYOND: state_beyond}
            made = self.bound(function)(*(known[tap] if isinstance(tap, str) else self.tap(tap) for tap in self.call.wiring.outputs))
            outputs = made if isinstance(made, tuple) else (made,)
        last, only = 0 if self.call.backward else -1, self.call.recurrence.last_only
        named = dict(zip(self.call.recurrence.output_names, outputs, strict=True))
        if self.valid is not None:
            nothing = self.bound(coefficients.nothing_where_invalid)
            named = {name: output if name in only else nothing(output, self.valid) for name, output in named.items()}
        return tuple(output[last] if name in only else self.library.xp.moveaxis(output, 0, self.call.time_axis) for name, output in named.items())


# What protects from NaN and infinity, and what takes its place where there are none.
FINITE = {
    coefficients.times: coefficients.finite_times,
    coefficients.step: coefficients.finite_step,
    coefficients.then: coefficients.finite_then,
}

# What counts as infinite, so that a sum of a few others is finite.
INFINITE = {"float32": 2.0**124, "float64": 2.0**1020}


class _FiniteFunctions:
    """An array library's, with an exponential that does not overflow: beyond, it is constant."""

    def __init__(self, xp: Any, dtype: str) -> None:
        self.xp, self.top = xp, math.log(INFINITE[dtype])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.xp, name)

    def exp(self, x: Any) -> Any:
        return self.xp.exp(self.xp.where(x < self.top, x, self.top))


_finite_functions = functools.cache(_FiniteFunctions)

FAR = 2.0**20
"""Times its highest value, a number counts as infinite in what is differentiated."""


@dataclasses.dataclass(frozen=True)
class Finite:
    """What makes numbers finite, in the functions of an array library: what is not is replaced by 0, which is a constant, and what protects from it by plain
    arithmetic. Then 0 times anything is 0, and every rule of differentiation holds as it stands, in any direction and as often as one likes.
    """

    xp: Any
    array_type: Any
    dtype: str

    def bound(self, function: Any) -> Any:
        return bind(function, _finite_functions(self.xp, self.dtype), self.array_type, replace=FINITE)

    def number(self, x: Any, logarithm: bool = False, most: float | None = None) -> Any:
        """`x`, and a constant where it is not finite: 0, or for logarithms the largest and the least number."""
        where, most = self.xp.where, most or INFINITE[self.dtype]
        if logarithm:
            return where(x == x, where(x > most, most, where(x < -most, -most, x)), 0.0)
        return where(self.xp.abs(x) < most, x, 0.0)

    def given(self, x: Any, argument: Argument) -> Any:
        """What was given for an argument."""
        # what is far beyond its range is nothing that is read, and products of such numbers would overflow
        most = None if argument.high is None else FAR * argument.high
        return x if argument.flag else self.number(x, argument.logarithm, most)


class FiniteSteps(Steps):
    """The taps of what a call is differentiated as: a call in which every number is finite, and which is the same wherever they are."""

    @functools.cached_property
    def made_finite(self) -> Finite:
        return Finite(self.library.xp, self.library.array_type, self.call.dtype)

    def bound(self, function: Any) -> Any:
        return self.made_finite.bound(function)

    def finite(self, x: Any) -> Any:
        return self.made_finite.number(x)

    def array(self, name: str) -> Any:
        return self.made_finite.given(super().array(name), self.arguments[name])

    def expectation(self, weights: Any, values: Any) -> Any:
        return self.finite(self.bound(coefficients.expectation)(self.library.constant(0.0), weights, values).sum(-1))

    def coefficients(self) -> tuple[Any, Any]:
        alpha, beta = super().coefficients()
        return self.finite(alpha), self.finite(beta)
