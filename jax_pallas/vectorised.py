"""The whole-array path: `jax.lax` on any device, for CPUs above all.

On a CPU the scan is a loop over time; elsewhere it is a tree, because there a step costs as much as a launch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rlscan.jax_pallas._derivative_primitives import linear, with_derivative
from rlscan.jax_pallas.arrays import WholeArrays, compiled
from rlscan.jax_pallas.sharded import split_rows
from rlscan.spec import coefficients
from rlscan.spec.adjoint import pulled_back_by, telling
from rlscan.spec.calls import Call
from rlscan.spec.derivative import differentiated
from rlscan.spec.steps import FiniteSteps, Steps

# Rows that are turned at a time on a CPU, and how often at most, which keeps programs small.
ROWS, TURNS = 64, 32

Step = Callable[..., jax.Array]
Values = Callable[[Call], tuple[jax.Array, ...]]


@compiled
def by_whole_arrays(call: Call) -> tuple[jax.Array, ...]:
    """The outputs of a call."""
    return differentiable(call, _by_whole_arrays)


def differentiable(call: Call, values: Values, kernels: Values | None = None) -> tuple[jax.Array, ...]:
    """What `values` gives for a call, with the derivative of `FiniteSteps`, which JAX finds by itself.

    Where `kernels`, which are hashable, are given, they give the gradients, by the outputs of the adjoint, if there is one.
    """

    derivative = Derivative.of(call, kernels)
    return tuple(with_derivative(_Outputs(values, derivative), [*call.arrays.values(), *map(jnp.asarray, call.numbers.values())]))


@dataclasses.dataclass(frozen=True)
class _Outputs:
    """Of all calls that a derivative is of."""

    of: Values
    by: Derivative

    def values(self, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
        return self.of(self.by.call(arrays))

    def derivative(self, arrays: Sequence[jax.Array], results: Sequence[jax.Array], tangents: Sequence[jax.Array | None]) -> Sequence[jax.Array]:
        of_arrays = {name: tangent for name, tangent in zip(self.by.names[0], tangents, strict=False) if tangent is not None}
        own = self.by.primals(self.by.call(arrays), results), [of_arrays[name] for name in self.by.floating]
        return linear(self.by, *own) if self.by.kernels else self.by.tangents(*own)


@dataclasses.dataclass(frozen=True)
class Derivative:
    """Of all calls that differ in nothing but the contents of their arrays and numbers, whose primals they are, with the result that tells the states.

    Attributes:
        kind: what they have in common.
        names: of arrays, then of numbers.
        floating: the arrays that have a tangent.
        kernels: what gives gradients, where it can.
        told: that result, if there is one that kernels make use of.
    """

    kind: tuple[Any, ...]
    names: tuple[tuple[str, ...], tuple[str, ...]]
    floating: tuple[str, ...]
    kernels: Values | None
    told: str | None

    @staticmethod
    def of(call: Call, kernels: Values | None) -> Derivative:
        kind = (call.wiring, call.shape, call.frame_ndim, call.time_axis, call.dtype, call.fades)
        told = telling(call.wiring, call.dtype) if kernels else None
        return Derivative(kind, (tuple(call.arrays), tuple(call.numbers)), differentiated(call), kernels, told.result if told else None)

    def primals(self, call: Call, results: Sequence[jax.Array]) -> list[Any]:
        # JAX sorts dictionaries
        arrays, numbers = self.names
        named = dict(zip(call.recurrence.output_names, results, strict=True))
        return [*(call.arrays[name] for name in arrays), *(call.numbers[name] for name in numbers), *([named[self.told]] if self.told else [])]

    def call(self, primals: Sequence[Any]) -> Call:
        wiring, shape, frame_ndim, time_axis, dtype, fades = self.kind
        arrays, numbers = self.names
        of_arrays, of_numbers = (dict(zip(arrays, primals, strict=False)), dict(zip(numbers, primals[len(arrays) :], strict=False)))
        return Call(wiring, of_arrays, of_numbers, shape, frame_ndim, time_axis, dtype, None, fades)

    def finite(self, call: Call, some: Sequence[str]) -> Callable[..., tuple[jax.Array, ...]]:
        """The outputs as a differentiable function of some of the arrays."""

        def outputs(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            steps = FiniteSteps(dataclasses.replace(call, arrays={**call.arrays, **dict(zip(some, arrays, strict=True))}), WholeArrays(call.dtype))
            # JAX must be told beforehand of what asks for devices, and sees into no primitive of ours
            return _by_steps(steps, finite=steps.finite, turned=self.kernels is None)

        return outputs

    def tangents(self, primals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> Sequence[jax.Array]:
        call = self.call(primals)
        return jax.jvp(self.finite(call, self.floating), [call.arrays[name] for name in self.floating], list(tangents))[1]

    def pulled_back(self, primals: Sequence[jax.Array], gradients: Sequence[jax.Array | None], wanted: Sequence[bool]) -> Sequence[jax.Array]:
        names = tuple(name for name, is_wanted in zip(self.floating, wanted, strict=True) if is_wanted)
        came_in = tuple(gradient is not None for gradient in gradients)
        return with_derivative(_PulledBack(self, names, came_in), [*primals, *(gradient for gradient in gradients if gradient is not None)])


@dataclasses.dataclass(frozen=True)
class _PulledBack:
    """Gradients by some arguments, from primals and from the gradients of those results that have one."""

    by: Derivative
    names: tuple[str, ...]
    came_in: tuple[bool, ...]

    def split(self, arrays: Sequence[jax.Array]) -> tuple[Sequence[jax.Array], list[jax.Array | None]]:
        count = len(arrays) - sum(self.came_in)
        rest = iter(arrays[count:])
        return arrays[:count], [next(rest) if is_there else None for is_there in self.came_in]

    def by_whole_arrays(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        primals, gradients = self.split(arrays)
        call = self.by.call(primals)
        results, pull = jax.vjp(self.by.finite(call, self.names), *(call.arrays[name] for name in self.names))
        return list(pull(tuple(jnp.zeros_like(result) if one is None else one for one, result in zip(gradients, results, strict=True))))

    def values(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        primals, gradients = self.split(arrays)
        call = self.by.call(primals)
        came_in = {name: one for name, one in zip(call.recurrence.output_names, gradients, strict=True) if one is not None}
        results = {self.by.told: primals[-1]} if self.by.told else None
        found = pulled_back_by(self.by.kernels, WholeArrays(call.dtype), call, came_in, self.names, results) if self.by.kernels else None
        return self.by_whole_arrays(arrays) if found is None else [found[name].astype(call.arrays[name].dtype) for name in self.names]

    def derivative(self, arrays: Sequence[jax.Array], results: Sequence[jax.Array], tangents: Sequence[jax.Array | None]) -> Sequence[jax.Array]:
        varied = [i for i, tangent in enumerate(tangents) if tangent is not None]

        def values(some: list[jax.Array]) -> list[jax.Array]:
            every = dict(enumerate(arrays)) | dict(zip(varied, some, strict=True))
            return self.by_whole_arrays(list(every.values()))

        return jax.jvp(values, ([arrays[i] for i in varied],), ([tangents[i] for i in varied],))[1]


def _by_whole_arrays(call: Call) -> tuple[jax.Array, ...]:
    return _by_steps(Steps(call, WholeArrays(call.dtype)))


def _by_steps(steps: Steps, finite: Callable[[jax.Array], jax.Array] = lambda state: state, turned: bool = True) -> tuple[jax.Array, ...]:
    """The outputs; `finite` is applied to all that the scan makes; `turned`: batch-major arrays may be, for a CPU's loop."""
    call = steps.call
    (alpha, beta), seed = steps.coefficients(), steps.seed()
    # Inside `jax.shard_map` what is carried from step to step has to vary over the devices where any of these does.
    seed = jnp.where(alpha[0] == beta[0], seed, seed)

    def then(*maps: jax.Array) -> tuple[jax.Array, ...]:
        addend, factor = steps.bound(coefficients.then)(*maps)
        return finite(addend), finite(factor)

    def step(*addend_factor_state: jax.Array) -> jax.Array:
        return finite(steps.bound(coefficients.step)(*addend_factor_state))

    loop = functools.partial(_turned_loop if turned and call.time_axis == len(call.row_shape) == 1 else _loop, step, backward=call.backward)
    tree = functools.partial(_tree, then, step, backward=call.backward)
    if not isinstance(call.steps, int):  # exported for any number of them, of which no tree can be made
        tree = loop
    state = lax.platform_dependent(alpha, beta, seed, cpu=loop, default=tree)
    return steps.outputs(state, steps.beside(state, seed, call.backward))


def _turned_loop(step: Step, alpha: jax.Array, beta: jax.Array, seed: jax.Array, backward: bool) -> jax.Array:
    """The state at every step of batch-major arrays.

    Coefficients and outputs are computed in the caller's order, and turned in between: else XLA reads all arguments against theirs.
    """
    # each behind its own: JAX 0.11 can't transpose one of several arrays that are not all differentiated
    alpha, beta = (_turned(lax.optimization_barrier(array.T)) for array in (alpha, beta))
    return lax.optimization_barrier(lax.optimization_barrier(_loop(step, alpha, beta, seed, backward)).T).T


def _loop(step: Step, alpha: jax.Array, beta: jax.Array, seed: jax.Array, backward: bool) -> jax.Array:
    """The state at every step."""

    def body(state: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        state = step(*pair, state)
        return state, state

    # unrolled, it takes a CPU two to ten times as long
    return lax.scan(body, seed, (alpha, beta), reverse=backward)[1]


def _turned(array: jax.Array) -> jax.Array:
    """The transpose."""
    if not isinstance(array.shape[0], int):  # exported for any number of rows
        return array.T
    return with_derivative(_Turned(), [array])[0]


@dataclasses.dataclass(frozen=True)
class _Turned:
    def values(self, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
        return split_rows(_turned_by_few, (("rows", None),), (None, "rows"))(*arrays)

    def derivative(self, arrays: Sequence[jax.Array], results: Sequence[jax.Array], tangents: Sequence[jax.Array | None]) -> Sequence[jax.Array]:
        return [tangent.T for tangent in tangents if tangent is not None]


def _turned_by_few(array: jax.Array) -> tuple[jax.Array]:
    """By few rows at a time: at strides that are powers of two, the cache lines of many would push each other out."""
    rows = array.shape[0]
    width = max(ROWS, -(-rows // TURNS))
    return (lax.optimization_barrier(jnp.concatenate([array[first : first + width].T for first in range(0, rows, width)], 1)),)


def _tree(then: Callable[..., tuple[jax.Array, ...]], step: Step, alpha: jax.Array, beta: jax.Array, seed: jax.Array, backward: bool) -> jax.Array:
    """The state at every step."""
    addend, factor = lax.associative_scan(lambda first, second: then(*first, *second), (alpha, beta), reverse=backward)
    return step(addend, factor, seed[None])
