"""How far a right result may lie from the oracle: derived, and valid for every order in which the scan may be evaluated.

`bound(call)` gives an absolute bound for each element of each output. No comparison has another tolerance.

Notation. u = eps/2 is the unit roundoff of the compute dtype, tiny its smallest normal number. An operation gives
`z (1 + d) + h` with `|d| <= u`, and `|h| <= tiny` where the result may be subnormal (GPUs and XLA may flush it to 0);
contracting `a + b * c` into one operation leaves out a rounding. All errors below are in units of u.

1. The coefficients. The functions of `coefficients.py` are run on `Rounded`, a float64 value with a bound on its error
   (running error analysis: Wilkinson; Higham 2002, section 3.3). With x^ = x + u ex and so on:

       z = x + y:   p = ex + ey;                       e = p + |z| + u p
       z = x * y:   p = |x| ey + |y| ex + u ex ey;     e = p + |z| + u p
       z = x / y:   p = (ex + |z| ey) / (|y| - u ey);  e = p + |z| + u p
       z = exp x:   p = |z| (e^(u ex) - 1) / u;        e = p + 4 (|z| + u p)
       where:       the value and the error of what is selected

   `|z| + u p` bounds the computed result before it is rounded, so nothing of higher order is left out. 4 u is 2 ulp, the
   documented accuracy of CUDA's `exp`; those of NumPy, torch and XLA are measured below it. A sum of A products
   p_a q_a, in any order, errs by (A + 1) sum |p_a q_a| / (1 - (A + 1) u). Where rounding can turn a comparison, the
   error of `where` also has the distance between the two branches: then the other one may have been selected.
   Arguments have no error; a 0-d float64 array that meets float32 data is rounded to float32.
   So the error of a TD error is relative to what was added up (r, gN and V) and not to what was left of it.

2. The scan, `y_t = alpha_t + beta_t y_(t+1)`, written backward; y_T is the seed. Let a = |alpha| + u e_alpha and
   b = |beta| + u e_beta, which bound the computed coefficients. P(t,m) is the product of b over t..m-1, and

       S_t = a_t + b_t S_(t+1)                         all that is added up at t
       Q(t,m) = P(t,m) S_m                             the part of S_t from m on, so that S_t >= Q(t,t+1) >= Q(t,t+2) >= ..

   (a) The errors of the coefficients, carried by the recurrence itself:

       G_t = e_alpha_t + b_t G_(t+1) + e_beta_t S_(t+1)

   (b) Every evaluation - a loop, a tree, chunks with a carry, look-back over chunks - is a binary tree over the maps of
   the steps t..T-1 and the seed: `then` of [t,m) and [m,n) is the addend `A1 + B1 A2` and the factor `B1 B2`. The term
   alpha_j P(t,j) is one tree of multiplications with j - t + 1 leaves and so has j - t roundings, whatever the order:

       M_t = sum_j (j - t) a_j P(t,j) = sum_(m>t) Q(t,m),     M_t = b_t (S_(t+1) + M_(t+1))

   (c) Each inner node has its own m in t+1..T, where its two parts meet, and adds once. The rounding of that addition is
   at most u |A1 + B1 A2|; but it is also at most |B1 A2|, for A1 is a number of the format and no further from the sum than
   that. On its way to the root it is multiplied by P(t,start of the node). So the additions err by at most

       W_t = sum_(m>t) min(S_t, Q(t,m)/u)

   which is T - t times S_t at most, and does not grow with T where factors decay. min(x, y) <= x^(1-p) y^p for any p in
   [0, 1] makes it a recurrence, with p = 1/ln(1/u) (the best choice for a constant factor):

       W_t <= min(n_t S_t, e S_t^(1-p) Z_t),     Z_t = b_t^p (S_(t+1)^p + Z_(t+1))

   where n_t counts the m with Q(t,m) > 0. In the loop's own order the additions err by M_t + S_t alone, and in a balanced tree
   by S_t log2(T): W is the price of allowing any order.

   (d) A term has at most 2 n_t roundings, so the sum of (b) and (c) is divided by 1 - 2 n_t u (Higham 2002, lemma 3.1).

   (e) Each node multiplies and adds once, and either may flush to 0: tiny at most, times the largest P(t,.). A product of
   factors that underflows is kept at tiny by `coefficients.then`, whatever its sign, which is off by 2 tiny at most; it meets
   at most X = max S behind it and the product of the factors before it. This is counted only where a product of
   neighbouring factors can be that small. So 2 n_t tiny (max P + K_t), K_t as in the code.

3. The outputs are functions of `Rounded` again, in which `state` and `state_beyond` carry their errors.

4. The oracle runs in float64, in the loop's order, and errs by no more than the same expression with its own u. So all
   is multiplied by 1 + u64/u: nothing for float32, 2 for float64.

Where the oracle is not finite, the bound is NaN, and a result agrees if it is NaN or infinity like the oracle. Where a
sum, or a product of neighbouring factors that meets anything but 0, may overflow the compute dtype (or is infinite), or a
term has 1/u roundings, nothing can be promised up to the next cut, and the bound is infinite: a tree may form inf - inf where
the loop does not. One promise is conditional: NaN behind a factor that is not 0 but is 0 in the compute dtype
(exp(-200) in float32) is cut off there.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlscan.spec import coefficients
from rlscan.spec.calls import Call
from rlscan.spec.steps import Steps, folded
from rlscan.spec.taps import Read

U64 = float(np.finfo(np.float64).eps) / 2

EXP_ERROR = 4.0
"""2 ulp in units of u: CUDA C++ Programming Guide, mathematical functions appendix."""


@dataclasses.dataclass(frozen=True, eq=False)
class Decided:
    """Truth values, and where rounding may have made them the other ones. Flags, which are sure, are plain arrays."""

    __array_ufunc__ = None

    value: np.ndarray
    unsure: np.ndarray

    def __and__(self, other: Decided | np.ndarray) -> Decided:
        other = _decided(other)
        return Decided(self.value & other.value, self.unsure | other.unsure)

    def __or__(self, other: Decided | np.ndarray) -> Decided:
        other = _decided(other)
        return Decided(self.value | other.value, self.unsure | other.unsure)

    __rand__, __ror__ = __and__, __or__

    def __eq__(self, other: bool) -> Decided:  # type: ignore[override]
        return Decided(self.value == other, self.unsure)


def _decided(condition: Decided | np.ndarray) -> Decided:
    return condition if isinstance(condition, Decided) else Decided(condition, np.zeros((), bool))


@dataclasses.dataclass(frozen=True, eq=False)
class Rounded:
    """Float64 values, and a bound in units of u on the error that the compute dtype makes of each."""

    __array_ufunc__ = None

    arithmetic: Arithmetic
    value: np.ndarray
    error: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def reach(self) -> np.ndarray:
        """What the computed value may be, at most, in absolute value."""
        return np.abs(self.value) + self.arithmetic.u * self.error

    @property
    def is_exactly_zero(self) -> np.ndarray:
        return (self.value == 0) & (self.error == 0)

    def each(self, function: Callable[[np.ndarray], np.ndarray]) -> Rounded:
        """Moved, repeated or picked by `function`."""
        return Rounded(self.arithmetic, function(self.value), function(self.error))

    def reshape(self, shape: tuple[int, ...]) -> Rounded:
        return self.each(lambda array: array.reshape(shape))

    def __getitem__(self, index: Any) -> Rounded:
        return self.each(lambda array: array[index])

    def sum(self, axis: int) -> Rounded:
        return self.arithmetic.summed(self, lambda array: array.sum(axis))

    def __add__(self, other: Any) -> Rounded:
        other = self.arithmetic.operand(other)
        exact = self.is_exactly_zero | other.is_exactly_zero
        return self.arithmetic.rounded(self.value + other.value, self.error + other.error, (self, other), exact)

    def __mul__(self, other: Any) -> Rounded:
        other = self.arithmetic.operand(other)
        inherited = np.abs(self.value) * other.error + np.abs(other.value) * self.error + self.arithmetic.u * self.error * other.error
        exact = self.is_exactly_zero | other.is_exactly_zero
        return self.arithmetic.rounded(self.value * other.value, inherited, (self, other), exact)

    def __truediv__(self, other: Any) -> Rounded:
        other = self.arithmetic.operand(other)
        value, room = self.value / other.value, np.abs(other.value) - self.arithmetic.u * other.error
        inherited = np.where(room > 0, (self.error + np.abs(value) * other.error) / room, np.inf)
        return self.arithmetic.rounded(value, inherited, (self, other), self.is_exactly_zero)

    def __neg__(self) -> Rounded:
        return Rounded(self.arithmetic, -self.value, self.error)

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: Any) -> Rounded:
        return self + -self.arithmetic.operand(other)

    def __rsub__(self, other: Any) -> Rounded:
        return -self + other

    def __rtruediv__(self, other: Any) -> Rounded:
        return self.arithmetic.operand(other) / self

    def __eq__(self, other: object) -> Decided:  # type: ignore[override]
        return self._compared(other, np.equal)

    def __ne__(self, other: object) -> Decided:  # type: ignore[override]
        return self._compared(other, np.not_equal)

    def __lt__(self, other: Any) -> Decided:
        return self._compared(other, np.less)

    def __le__(self, other: Any) -> Decided:
        return self._compared(other, np.less_equal)

    def __gt__(self, other: Any) -> Decided:
        return self._compared(other, np.greater)

    def __ge__(self, other: Any) -> Decided:
        return self._compared(other, np.greater_equal)

    def _compared(self, other: Any, comparison: np.ufunc) -> Decided:
        other = self.arithmetic.operand(other)
        error = sum(np.where(np.abs(x.value) > self.arithmetic.huge, 0.0, x.error) for x in (self, other))  # beyond the range it stays there
        return Decided(comparison(self.value, other.value), (error > 0) & (np.abs(self.value - other.value) <= self.arithmetic.u * error))


class Arithmetic:
    """The arithmetic of one compute dtype on `Rounded`: an array library for `steps.Steps`."""

    array_type = Rounded
    folded = staticmethod(folded)

    def __init__(self, dtype: str) -> None:
        limits = np.finfo(dtype)
        self.dtype, self.u, self.tiny, self.huge = dtype, float(limits.eps) / 2, float(limits.tiny), float(limits.max)

    @property
    def xp(self) -> Arithmetic:
        return self

    def number(self, x: Any) -> Rounded:
        """An argument. Python numbers are rounded to the compute dtype before the oracle sees them too."""
        return self.operand(np.asarray(x, self.dtype) if type(x) in (int, float) else x)

    def operand(self, x: Any) -> Rounded:
        """Numbers with the error of being held in the compute dtype; those below `tiny` may be read as 0."""
        if isinstance(x, Rounded):
            return x
        value = np.asarray(x, np.float64)
        held = value.astype(self.dtype).astype(np.float64)
        error = np.where(np.abs(value) < self.tiny, np.abs(value), np.abs(value - held))
        return Rounded(self, value, np.where(np.isfinite(value), error, 0.0) / self.u)

    def flag(self, x: np.ndarray) -> np.ndarray:
        return x != 0

    def constant(self, value: float | bool) -> Rounded | np.ndarray:
        return np.asarray(value) if isinstance(value, bool) else self.number(value)

    def numbered(self, length: int) -> np.ndarray:
        return np.arange(length)

    def joined(self, first: Any, second: Any) -> Any:
        if not isinstance(first, Rounded):
            return np.concatenate([first, second])
        return Rounded(self, np.concatenate([first.value, second.value]), np.concatenate([first.error, second.error]))

    def take(self, array: Any, place: np.ndarray) -> Any:
        return _each(array, lambda own: np.take_along_axis(own, place, 0))

    def nearest(self, place: np.ndarray, backward: bool) -> np.ndarray:
        return np.minimum.accumulate(place[::-1])[::-1] if backward else np.maximum.accumulate(place)

    def broadcast_to(self, array: Any, shape: tuple[int, ...]) -> Any:
        return _each(array, lambda own: np.broadcast_to(own, shape))

    def moveaxis(self, array: Any, source: int, destination: int) -> Any:
        return _each(array, lambda own: np.moveaxis(own, source, destination))

    def rounded(self, value: np.ndarray, inherited: np.ndarray, operands: tuple[Rounded, ...], exact: np.ndarray | bool = False, own: float = 1.0) -> Rounded:
        """The result of one operation, which itself errs by `own` u of it unless it is exact."""
        reach = np.abs(value) + self.u * inherited
        error = inherited + np.where(exact, 0.0, own * reach + np.where(reach < 2 * self.tiny, self.tiny / self.u, 0.0))
        # NaN and infinity have no error, but where an operand may be anything, so may they.
        unknown = functools.reduce(np.logical_or, (np.isinf(operand.error) for operand in operands))
        known = np.where(np.isfinite(value), np.where(reach + self.u * error <= self.huge, error, np.inf), 0.0)
        return Rounded(self, value, np.where(unknown, np.inf, known))

    def where(self, condition: Decided | np.ndarray, yes: Any, no: Any) -> Any:
        if not isinstance(condition, Decided):
            if not isinstance(yes, Rounded) and not isinstance(no, Rounded):
                return np.where(condition, yes, no)
            condition = _decided(condition)
        yes, no = self.operand(yes), self.operand(no)
        error = np.where(condition.value, yes.error, no.error)
        either = np.maximum(yes.error, no.error) + np.abs(yes.value - no.value) / self.u
        either = np.where(np.isnan(either), np.inf, either)
        return Rounded(self, np.where(condition.value, yes.value, no.value), np.where(condition.unsure, either, error))

    def summed(self, array: Rounded, function: Callable[[np.ndarray], np.ndarray]) -> Rounded:
        """Sums of elements, in any order: `function` gives them of a plain array."""
        magnitude, terms = (function(x) for x in (array.reach, np.where(array.is_exactly_zero, 0.0, 1.0)))
        additions = np.maximum(terms - 1, 0.0)
        room = 1 - additions * self.u
        own = np.where(room > 0, additions * (magnitude / room + self.tiny / self.u), np.inf)
        # no partial sum is larger
        error = function(array.error) + np.where(additions == 0, 0.0, np.where(magnitude / room <= self.huge, own, np.inf))
        return Rounded(self, function(array.value), error)

    def stacked(self, arrays: Sequence[Rounded]) -> Rounded:
        return Rounded(self, *(np.stack([getattr(array, part) for array in arrays]) for part in ("value", "error")))

    def exp(self, x: Any) -> Rounded:
        x = self.operand(x)
        value = np.exp(x.value)
        inherited = meet(value, np.expm1(self.u * x.error) / self.u)
        return self.rounded(value, inherited, (x,), np.isneginf(x.value) & (x.error == 0), own=EXP_ERROR)


@functools.cache
def arithmetic_of(dtype: str) -> Arithmetic:
    return Arithmetic(dtype)


def _each(array: Any, function: Callable[[np.ndarray], np.ndarray]) -> Any:
    return array.each(function) if isinstance(array, Rounded) else function(np.asarray(array))


def meet(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The product, and 0 where either is 0, whatever the other is."""
    return np.where((x == 0) | (y == 0), 0.0, x * y)


class _RoundedSteps(Steps):
    """The taps of a call as `Rounded`; the sum over actions may be taken in any order."""

    def read(self, read: Read) -> Any:
        total = super().read(read)
        if read.at != "actions":
            return total
        probabilities, values = self.array(str(read.edge)).value, self.array(read.source).value
        roundings, u = 1 + values.shape[-1], self.library.xp.u
        return Rounded(total.arithmetic, total.value, roundings / (1 - roundings * u) * np.abs(meet(probabilities, values)).sum(-1))


def bound(call: Call) -> tuple[np.ndarray, ...]:
    """For each output, how far each element may lie from `reference.loop(call)`: finite, NaN (by kind) or infinite (no promise)."""
    with np.errstate(all="ignore"):
        steps = _RoundedSteps(call, arithmetic_of(call.dtype))
        scanned = scan(*steps.coefficients(), steps.seed(), call.backward)
        return tuple(map(absolute, steps.outputs(scanned.state, scanned.beyond)))


def absolute(output: Rounded) -> np.ndarray:
    """The bound on the distance of two computations of a number: one in the compute dtype, and the oracle's."""
    error = output.arithmetic.u * (1 + U64 / output.arithmetic.u) * output.error
    return np.where(np.isfinite(output.value) | np.isinf(error), error, np.nan)


@dataclasses.dataclass(frozen=True, eq=False)
class Scanned:
    """The states of a scan, and those one step before them.

    Attributes:
        sums, sums_beyond: S, all that is added up in each.
        grown, grown_beyond: the largest product of neighbouring factors that something in each may be multiplied by, at least 1.
    """

    state: Rounded
    beyond: Rounded
    sums: np.ndarray
    sums_beyond: np.ndarray
    grown: np.ndarray
    grown_beyond: np.ndarray


def scan(alpha: Rounded, beta: Rounded, seed: Rounded, backward: bool) -> Scanned:
    """Section 2 above, in its notation."""
    arithmetic = alpha.arithmetic
    u, tiny, huge = arithmetic.u, arithmetic.tiny, arithmetic.huge
    p = 1 / math.log(1 / u)
    a, b = alpha.reach, beta.reach
    b_to_p = b**p
    nothing = np.zeros(seed.value.shape)

    y, s, g = seed.value, seed.reach, seed.error
    m, z, n = nothing, nothing, nothing
    # The smallest and the largest product of neighbouring factors that meets anything, the largest from t on, and max S.
    least, most, grown, largest, k = np.full(nothing.shape, np.inf), nothing, nothing + 1, s, nothing
    unknown = np.zeros(nothing.shape, bool)
    states, beyond, errors, errors_beyond, sums, sums_beyond, growth, growth_beyond = (np.empty(alpha.value.shape) for _ in range(8))
    error = g
    for t in reversed(range(len(a))) if backward else range(len(a)):
        beyond[t], errors_beyond[t], sums_beyond[t], growth_beyond[t] = y, error, s, grown
        y = coefficients.step(alpha.value[t], beta.value[t], y)
        bt, cut = b[t], b[t] == 0
        ends = cut | (s == 0)
        g = alpha.error[t] + meet(bt, g) + meet(beta.error[t], s)
        m = meet(bt, s + m)
        z = meet(b_to_p[t], s**p + z)
        n = np.where(ends, 0.0, 1 + n)
        least = np.where(ends, np.inf, bt * np.minimum(1.0, least))
        most = np.where(ends, 0.0, bt * np.maximum(1.0, most))
        grown = np.where(ends, 1.0, np.maximum(1.0, bt * grown))
        k = np.maximum(np.where(least < 4 * tiny, largest, 0.0), meet(bt, k))
        unknown = (most > huge / 4) | np.isinf(alpha.error[t]) | (np.isinf(beta.error[t]) & (s != 0)) | (unknown & ~cut)
        s = a[t] + meet(bt, s)
        largest = np.maximum(s, np.where(cut, 0.0, largest))
        additions = np.minimum(meet(n, s), math.e * s ** (1 - p) * z)
        spread = 1 - 2 * n * (u + 4 * U64)  # the evaluation of this bound rounds too
        error = g + (m + additions) / spread + meet(2 * n * tiny / u, grown + k)
        unknown = unknown | (np.isfinite(s) & (s > huge / 2)) | (spread <= 0)
        error = np.where(unknown, np.inf, np.where(np.isfinite(y), error, 0.0))
        states[t], errors[t], sums[t], growth[t] = y, error, s, grown
    return Scanned(Rounded(arithmetic, states, errors), Rounded(arithmetic, beyond, errors_beyond), sums, sums_beyond, growth, growth_beyond)


def distance(result: np.ndarray, oracle: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """How far each element of `result` is from the oracle, in units of the bound: at most 1 where they agree, 0 where nothing is promised."""
    with np.errstate(all="ignore"):
        result, oracle = np.asarray(result, np.float64), np.asarray(oracle, np.float64)
        gap = np.abs(result - oracle)
        near = np.where(gap == 0, 0.0, np.where(np.isnan(gap), np.inf, gap / limit))
        same_kind = (np.isnan(result) & np.isnan(oracle)) | (result == oracle)
        return np.where(np.isnan(limit), np.where(same_kind, 0.0, np.inf), np.where(np.isinf(limit), 0.0, near))
