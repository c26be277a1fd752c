"""The whole-array path: `jax.lax` on any device, for CPUs above all.

On a CPU the scan is a loop over time; elsewhere it is a tree, because there a step costs as much as a launch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rlscan.jax_pallas.arrays import WholeArrays, compiled
from rlscan.spec import coefficients
from rlscan.spec.binding import bind
from rlscan.spec.calls import Call
from rlscan.spec.steps import Steps

# Steps of a CPU's loop between two looks at its condition: beyond this, programs grow and gain nothing.
UNROLL = 8

# Rows that are turned at a time on a CPU, and how often at most, which keeps programs small.
ROWS, TURNS = 64, 32

then = bind(coefficients.then, jnp, jax.Array)
step = bind(coefficients.step, jnp, jax.Array)


class DifferentiableSteps(Steps):
    """What a rule selects away may be NaN, and the product of NaN with a gradient of 0 is NaN. Functions of elements are therefore
    differentiated forward, whatever is asked for: what is selected away has a derivative of exactly 0 there, and is selected away itself."""

    def apply(self, function: Any, *taps: Any) -> Any:
        elementwise = jax.custom_jvp(function)

        @elementwise.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            made = elementwise(*primals)
            total = jax.tree.map(jnp.zeros_like, made)
            for i, (tap, tangent) in enumerate(zip(primals, tangents, strict=True)):
                if jnp.issubdtype(tap.dtype, jnp.floating):
                    of_one = functools.partial(_with_one, function, primals, i)
                    derivatives = jax.jvp(of_one, (tap,), (jnp.ones_like(tap),))[1]
                    total = jax.tree.map(functools.partial(_add_product, tangent), total, derivatives)
            return made, total

        return elementwise(*taps)


def _add_product(tangent: jax.Array, total: jax.Array, slope: jax.Array) -> jax.Array:
    # Where it is NaN or infinite so is the value, which nobody may read; and read backwards, this line has only the slope to tell by.
    slope = jnp.where(jnp.isfinite(slope), slope, jnp.zeros((), slope.dtype))
    return total + slope * jnp.broadcast_to(tangent, slope.shape)


def _with_one(function: Callable[..., Any], taps: tuple[Any, ...], i: int, x: jax.Array) -> Any:
    return function(*taps[:i], x, *taps[i + 1 :])


@compiled
def by_whole_arrays(call: Call) -> tuple[jax.Array, ...]:
    """The outputs of a call."""
    steps = DifferentiableSteps(call, WholeArrays(call.dtype))
    alpha, beta = steps.coefficients()
    seed = steps.seed()
    loop = functools.partial(_turned_loop if call.time_axis == len(call.row_shape) == 1 else _loop, backward=call.backward)
    tree = functools.partial(_tree, backward=call.backward)
    state = lax.platform_dependent(alpha, beta, seed, cpu=loop, default=tree)
    return steps.outputs(state, steps.beside(state, seed, call.backward))


def _turned_loop(alpha: jax.Array, beta: jax.Array, seed: jax.Array, backward: bool) -> jax.Array:
    """The state at every step of batch-major arrays.

    Coefficients and outputs are computed in the caller's order, and turned in between: else XLA reads all arguments against theirs.
    """
    alpha, beta = map(_turned, lax.optimization_barrier((alpha.T, beta.T)))
    return lax.optimization_barrier(lax.optimization_barrier(_loop(alpha, beta, seed, backward)).T).T


def _loop(alpha: jax.Array, beta: jax.Array, seed: jax.Array, backward: bool) -> jax.Array:
    """The state at every step."""

    def body(state: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        state = step(*pair, state)
        return state, state

    return lax.scan(body, seed, (alpha, beta), reverse=backward, unroll=UNROLL)[1]


def _turned(array: jax.Array) -> jax.Array:
    """The transpose, by few rows at a time: at strides that are powers of two, the cache lines of many would push each other out."""
    rows = array.shape[0]
    width = max(ROWS, -(-rows // TURNS))
    return lax.optimization_barrier(jnp.concatenate([array[first : first + width].T for first in range(0, rows, width)], 1))


def _tree(alpha: jax.Array, beta: jax.Array, seed: jax.Array, backward: bool) -> jax.Array:
    """The state at every step."""
    addend, factor = lax.associative_scan(lambda first, second: then(*first, *second), (alpha, beta), reverse=backward)
    return step(addend, factor, seed[None])
