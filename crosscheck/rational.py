"""The loop in exact arithmetic: fractions instead of floating numbers, through the same reads and the same coefficient functions."""

from __future__ import annotations

import decimal
import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from rlscan.spec import steps
from rlscan.spec.calls import Call
from rlscan.spec.reference import by_steps

DIGITS = 50
"""Of an exponential that is no fraction: far more than float64 has, so that what is rounded to it comes out the same on any machine."""


def _operator(function: Callable[[Any, Any], Any]) -> Callable[[Rational, Any], Any]:
    def method(self: Rational, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented  # NumPy then takes its elements
        result = function(self.value, _rational(other).value)
        return result if isinstance(result, bool) else Rational(result)

    return method


class Rational:
    """A fraction, or NaN or an infinity. What meets it becomes one without rounding, where two floating numbers would be rounded."""

    __slots__ = ("value",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, x: Fraction | float) -> None:
        self.value = x if isinstance(x, Fraction) or not math.isfinite(x) else Fraction(x)

    __add__ = __radd__ = _operator(operator.add)
    __mul__ = __rmul__ = _operator(operator.mul)
    __sub__, __rsub__ = _operator(operator.sub), _operator(lambda x, y: y - x)
    __eq__, __ne__ = _operator(operator.eq), _operator(operator.ne)
    __lt__, __le__, __gt__, __ge__ = map(_operator, (operator.lt, operator.le, operator.gt, operator.ge))

    def exp(self) -> Rational:
        """Exact where it is a number; else that of `DIGITS` digits."""
        if self.value == 0:
            return Rational(1)
        if not isinstance(self.value, Fraction):
            return Rational(math.exp(self.value))
        with decimal.localcontext(prec=DIGITS):
            return Rational(Fraction((decimal.Decimal(self.value.numerator) / self.value.denominator).exp()))


def _rational(x: Any) -> Rational:
    return x if isinstance(x, Rational) else Rational(x)


_lifted = np.frompyfunc(_rational, 1, 1)
_exponential = np.frompyfunc(Rational.exp, 1, 1)


def _array(x: Any) -> np.ndarray:
    # of an array without axes NumPy gives the element itself
    return np.asarray(_lifted(x), object)


class RationalArrays(steps.PlacesInNumPy):
    """An array library for `steps.Steps`, and its functions: NumPy's arrays of objects."""

    array_type = np.ndarray
    broadcast_to, moveaxis = staticmethod(np.broadcast_to), staticmethod(np.moveaxis)

    @property
    def xp(self) -> RationalArrays:
        return self

    def where(self, condition: Any, yes: Any, no: Any) -> np.ndarray:
        selected = np.where(condition, yes, no)
        return _array(selected) if selected.dtype.kind in "fO" else selected

    def exp(self, x: Any) -> np.ndarray:
        return np.asarray(_exponential(x), object)

    def number(self, x: Any) -> np.ndarray:
        return _array(x)

    def flag(self, x: np.ndarray) -> np.ndarray:
        return x != 0

    def constant(self, value: float | bool) -> np.ndarray:
        return np.asarray(value) if isinstance(value, bool) else _array(value)


_ARRAYS = RationalArrays()


def loop(call: Call) -> tuple[np.ndarray, ...]:
    """The outputs of a checked call, as arrays of `Rational`."""

    def stacked(states: Sequence[Any]) -> np.ndarray:
        return np.stack(states) if states else np.empty(taps.shape, object)

    with np.errstate(all="ignore"):
        taps = steps.Steps(call, _ARRAYS)
        return by_steps(taps, stacked)
