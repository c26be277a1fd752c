"""The derivative of the loop, by reverse-mode differentiation in NumPy: what the gradients of everything else are compared with.

The loop, the reads and the coefficient functions run as they are, on `Taped` arrays that remember what they were made of. No derivative of a recurrence is
written here: only those of sums, products, selections and moved elements. What is differentiated is the call that `FlowingSteps` says.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rlscan.spec.calls import Call
from rlscan.spec.reference import WholeNumPyArrays, by_steps
from rlscan.spec.steps import FiniteSteps, Steps, WholeArrays

Pull = Callable[[Any], Any]
"""From the gradient of a result to what it adds to that of one operand."""

_order = itertools.count()


class Numbers(WholeArrays, Protocol):
    """An array library to differentiate in."""

    def summed(self, array: Any, function: Callable[[np.ndarray], np.ndarray]) -> Any:
        """`function(array)`, each element of which is a sum of elements of `array`, or 0."""

    def stacked(self, arrays: Sequence[Any]) -> Any:
        """Arrays of one shape, along a new first axis."""


class NumPyNumbers(WholeNumPyArrays):
    """NumPy's arrays."""

    def summed(self, array: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return function(array)

    def stacked(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(arrays)


class Taped:
    """An array, and how its gradient adds to those of what it was made of."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tape: Tape, value: Any, made_of: Sequence[tuple[Taped, Pull]] = (), wanted: bool = False) -> None:
        self.tape, self.value = tape, value
        self.made_of = [(operand, pull) for operand, pull in made_of if operand.wanted]
        self.wanted = wanted or bool(self.made_of)
        # operands come before their results
        self.number = next(_order)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def reshape(self, shape: tuple[int, ...]) -> Taped:
        return Taped(self.tape, self.value.reshape(shape), [(self, lambda g: g.reshape(self.shape))])

    def __getitem__(self, index: Any) -> Taped:
        def placed(g: np.ndarray) -> np.ndarray:
            whole = np.zeros(self.shape, g.dtype)
            whole[index] = g
            return whole

        return Taped(self.tape, self.value[index], [(self, lambda g: self.tape.inner.summed(g, placed))])

    def sum(self, axis: int) -> Taped:
        axis %= len(self.shape)
        value = self.tape.inner.summed(self.value, lambda array: array.sum(axis))
        kept = (*self.shape[:axis], 1, *self.shape[axis + 1 :])
        return Taped(self.tape, value, [(self, lambda g: self.tape.inner.xp.broadcast_to(g.reshape(kept), self.shape))])

    def __add__(self, other: Any) -> Taped:
        return self.tape.elementwise(operator.add, (self, other), lambda g: g, lambda g: g)

    def __mul__(self, other: Any) -> Taped:
        other = self.tape.lifted(other)
        return self.tape.elementwise(operator.mul, (self, other), lambda g: g * other.value, lambda g: g * self.value)

    def __truediv__(self, other: Any) -> Taped:
        other = self.tape.lifted(other)
        quotient = self.value / other.value
        return self.tape.elementwise(operator.truediv, (self, other), lambda g: g / other.value, lambda g: -(g * quotient) / other.value)

    def __neg__(self) -> Taped:
        return self.tape.elementwise(operator.neg, (self,), lambda g: -g)

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: Any) -> Taped:
        return self + -self.tape.lifted(other)

    def __rsub__(self, other: Any) -> Taped:
        return -self + other

    def __rtruediv__(self, other: Any) -> Taped:
        return self.tape.lifted(other) / self

    def __eq__(self, other: object) -> Any:
        return self.value == self.tape.lifted(other).value

    def __ne__(self, other: object) -> Any:
        return self.value != self.tape.lifted(other).value

    def __lt__(self, other: Any) -> Any:
        return self.value < self.tape.lifted(other).value

    def __le__(self, other: Any) -> Any:
        return self.value <= self.tape.lifted(other).value

    def __gt__(self, other: Any) -> Any:
        return self.value > self.tape.lifted(other).value

    def __ge__(self, other: Any) -> Any:
        return self.value >= self.tape.lifted(other).value


class Tape:
    """An array library for `steps.Steps`: another one, whose numbers remember what they were made of. Flags and places are those of the other."""

    array_type = Taped

    def __init__(self, inner: Numbers) -> None:
        self.inner = inner
        self.flag, self.folded, self.numbered, self.nearest = inner.flag, inner.folded, inner.numbered, inner.nearest

    @property
    def xp(self) -> Tape:
        return self

    def lifted(self, x: Any) -> Taped:
        return x if isinstance(x, Taped) else Taped(self, self.inner.number(x))

    number = lifted

    def constant(self, value: float | bool) -> Any:
        return self.inner.constant(value) if isinstance(value, bool) else self.lifted(value)

    def elementwise(self, function: Callable[..., Any], operands: Sequence[Any], *pulls: Pull) -> Taped:
        lifted = [self.lifted(x) for x in operands]

        def to_the_shape_of(operand: Taped, pull: Pull) -> Pull:
            return lambda g: self.unbroadcast(pull(g), operand.shape)

        made_of = [(operand, to_the_shape_of(operand, pull)) for operand, pull in zip(lifted, pulls, strict=True)]
        return Taped(self, function(*(operand.value for operand in lifted)), made_of)

    def unbroadcast(self, g: Any, shape: tuple[int, ...]) -> Any:
        """Summed over the axes along which an array of `shape` was repeated."""
        if g.shape == shape:
            return g
        more = len(g.shape) - len(shape)
        axes = (*range(more), *(more + axis for axis, size in enumerate(shape) if size == 1 and g.shape[more + axis] != 1))
        return self.inner.summed(g, lambda array: array.sum(axes)).reshape(shape)

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        where = self.inner.xp.where
        if not isinstance(yes, Taped) and not isinstance(no, Taped):
            return where(condition, yes, no)
        zero = self.inner.constant(0.0)
        return self.elementwise(lambda yes, no: where(condition, yes, no), (yes, no), lambda g: where(condition, g, zero), lambda g: where(condition, zero, g))

    def exp(self, x: Any) -> Taped:
        exponential = self.inner.xp.exp(x.value)
        return self.elementwise(lambda _: exponential, (x,), lambda g: g * exponential)

    def abs(self, x: Any) -> Taped:
        return self.where(x < 0.0, -x, x)

    def broadcast_to(self, array: Any, shape: tuple[int, ...]) -> Any:
        if not isinstance(array, Taped):
            return self.inner.xp.broadcast_to(array, shape)
        return self.elementwise(lambda value: self.inner.xp.broadcast_to(value, shape), (array,), lambda g: g)

    def moveaxis(self, array: Any, source: int, destination: int) -> Any:
        move = self.inner.xp.moveaxis
        if not isinstance(array, Taped):
            return move(array, source, destination)
        return Taped(self, move(array.value, source, destination), [(array, lambda g: move(g, destination, source))])

    def joined(self, first: Any, second: Any) -> Any:
        if not isinstance(first, Taped) and not isinstance(second, Taped):
            return self.inner.joined(first, second)
        first, second = self.lifted(first), self.lifted(second)
        length = first.shape[0]
        return Taped(self, self.inner.joined(first.value, second.value), [(first, lambda g: g[:length]), (second, lambda g: g[length:])])

    def stacked(self, arrays: Sequence[Taped]) -> Taped:
        def picked(place: int) -> Pull:
            return lambda g: g[place]

        value = self.inner.stacked([array.value for array in arrays])
        return Taped(self, value, [(array, picked(place)) for place, array in enumerate(arrays)])

    def take(self, array: Any, place: np.ndarray) -> Any:
        if not isinstance(array, Taped):
            return self.inner.take(array, place)

        def scattered(g: np.ndarray) -> np.ndarray:
            whole = np.zeros(array.shape, g.dtype)
            np.add.at(whole, (place, *np.indices(place.shape)[1:]), g)
            return whole

        return Taped(self, self.inner.take(array.value, place), [(array, lambda g: self.inner.summed(g, scattered))])

    def gradients(self, results: Sequence[Taped], cotangents: Sequence[Any], wanted: Sequence[Taped]) -> list[Any]:
        """Of the sum of all results times their cotangents, by each of the arrays that are wanted."""
        arrived: dict[int, list[Any]] = {}
        for result, cotangent in zip(results, cotangents, strict=True):
            arrived.setdefault(result.number, []).append(self.inner.number(cotangent))
        for node in sorted(_behind(results), key=lambda node: -node.number):
            if node.made_of and node.number in arrived:
                g = self._total(arrived.pop(node.number))
                for operand, pull in node.made_of:
                    arrived.setdefault(operand.number, []).append(pull(g))
        nothing = self.inner.constant(0.0)
        return [self._total(arrived[array.number]) if array.number in arrived else self.inner.xp.broadcast_to(nothing, array.shape) for array in wanted]

    def _total(self, parts: Sequence[Any]) -> Any:
        return parts[0] if len(parts) == 1 else self.inner.summed(self.inner.stacked(parts), lambda array: array.sum(0))


class FlowingSteps(FiniteSteps):
    """The taps of what the oracle differentiates: the call of `FiniteSteps`, in which what flows to a number that is not finite arrives there.

    An implementation may as well take that number for the constant 0 that stands in its place. To what a rule says is not read, nothing flows.
    """

    def array(self, name: str) -> Any:
        given, finite = Steps.array(self, name), super().array(name)
        return Taped(given.tape, finite.value, [(given, lambda g: g)]) if isinstance(given, Taped) else finite


# Tapes are the same where their numbers are, so that functions are bound to each once.
_tape_of = functools.cache(Tape)
_numpy_numbers = functools.cache(NumPyNumbers)


def _behind(results: Sequence[Taped]) -> list[Taped]:
    """All that the results were made of, and they themselves."""
    found, waiting = {}, list(results)
    while waiting:
        node = waiting.pop()
        if node.number not in found:
            found[node.number] = node
            waiting += [operand for operand, _ in node.made_of]
    return list(found.values())


def differentiated(call: Call) -> tuple[str, ...]:
    """The arguments that a gradient is taken by: all floating arrays but flags."""
    return tuple(argument.name for argument in call.recurrence.arguments if argument.name in call.arrays and not argument.flag)


def pulled_back(
    call: Call,
    cotangents: Sequence[np.ndarray],
    inner: Numbers,
    outputs: Callable[[FiniteSteps, Tape], Sequence[Taped]],
    kind: type[FiniteSteps] = FlowingSteps,
) -> dict[str, Any]:
    """The gradient, in the numbers of `inner`, of the sum of the outputs times the cotangents, by each of the arguments."""
    tape = _tape_of(inner)
    leaves = {name: Taped(tape, inner.number(call.arrays[name]), wanted=True) for name in differentiated(call)}
    results = outputs(kind(dataclasses.replace(call, arrays={**call.arrays, **leaves}), tape), tape)
    return dict(zip(leaves, tape.gradients(results, cotangents, list(leaves.values())), strict=True))


def gradients(call: Call, cotangents: Sequence[np.ndarray], dtype: Any = np.float64, kind: type[FiniteSteps] = FlowingSteps) -> Mapping[str, np.ndarray]:
    """The gradient by each floating argument, when these gradients come in for the outputs.

    Args:
        call: a checked call on NumPy arrays.
        cotangents: one array for each output, of its shape.
        dtype: that is computed in.
        kind: what says which call is differentiated.
    """
    if 0 in call.shape:
        return {name: np.zeros(call.arrays[name].shape, dtype) for name in differentiated(call)}

    def outputs(taps: FiniteSteps, tape: Tape) -> Sequence[Taped]:
        return by_steps(taps, tape.stacked, taps.finite)

    with np.errstate(all="ignore"):
        return pulled_back(call, cotangents, _numpy_numbers(np.dtype(dtype), call.dtype), outputs, kind)
