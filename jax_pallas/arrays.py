"""What the spec asks about JAX arrays, and the compilation of calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from rlscan.jax_pallas.sharded import on_explicit_axes
from rlscan.spec.calls import Call

# Actions between two looks at a loop's condition: beyond this, programs grow and gain nothing.
UNROLL = 8


class Arrays:
    """What the validator asks."""

    name, maker = "jax.Array", "jax.numpy.asarray"

    def is_array(self, x: Any) -> bool:
        return isinstance(x, jax.Array)

    def shape(self, x: jax.Array) -> tuple[int, ...]:
        return tuple(x.shape)

    def dtype(self, x: jax.Array) -> str:
        return str(x.dtype)

    def device(self, x: jax.Array) -> Any:
        """None for a tracer, which is on no device yet, and for an array that is spread over several."""
        if isinstance(x, Tracer):
            return None
        devices = x.devices()
        return next(iter(devices)) if len(devices) == 1 else None

    def not_dense(self, x: jax.Array) -> None:
        return None

    def is_traced(self, x: Any) -> bool:
        return isinstance(x, Tracer)


def nonzero(flags: jax.Array) -> jax.Array:
    """Where flags are set. XLA takes the least numbers for 0 on a CPU, so their bits are looked at, all but the sign, which is shifted out."""
    if jnp.issubdtype(flags.dtype, jnp.floating):
        bits = lax.bitcast_convert_type(flags, f"uint{8 * flags.dtype.itemsize}")
        flags = bits + bits
    return flags.astype(bool)  # strict dtype promotion compares no boolean with an integer


class WholeArrays:
    """Whole-array work, in the dtype computed in."""

    xp, array_type = jnp, jax.Array

    def __init__(self, dtype: str) -> None:
        self.dtype = jnp.dtype(dtype)

    def number(self, x: Any) -> jax.Array:
        return jnp.asarray(x, self.dtype)

    def flag(self, x: jax.Array) -> jax.Array:
        return nonzero(x)

    def constant(self, value: float | bool) -> jax.Array:
        return jnp.asarray(value, bool if isinstance(value, bool) else self.dtype)

    def folded(self, function: Callable[..., jax.Array], total: jax.Array, *arrays: jax.Array) -> jax.Array:
        def one_more(place: Any, total: jax.Array) -> jax.Array:
            return function(total, *(lax.dynamic_index_in_dim(array, place, -1, keepdims=False) for array in arrays))

        # written out, a program grows with the number of places, and the time to compile it with its square
        first = one_more(0, total)
        rest = arrays[0].shape[-1] - 1
        return lax.fori_loop(1, 1 + rest, one_more, first, unroll=min(rest, UNROLL)) if rest else first

    def numbered(self, length: int) -> jax.Array:
        return jnp.arange(length, dtype=jnp.int32)

    def joined(self, first: jax.Array, second: jax.Array) -> jax.Array:
        return jnp.concatenate([first, second])

    def take(self, array: jax.Array, place: jax.Array) -> jax.Array:
        return jnp.take_along_axis(array, place, 0, mode="promise_in_bounds")

    def nearest(self, place: jax.Array, backward: bool) -> jax.Array:
        return lax.cummin(place, 0, reverse=True) if backward else lax.cummax(place, 0)


def compiled(function: Callable[..., tuple[jax.Array, ...]]) -> Callable[..., tuple[jax.Array, ...]]:
    """`function(call, *options)`, traced once for all calls that differ in nothing but the contents of their arrays and numbers.

    Inside, numbers are 0-d arrays of the dtype computed in.
    """

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def once(kind: tuple, options: tuple, arrays: dict[str, jax.Array], numbers: dict[str, Any]) -> tuple[jax.Array, ...]:
        wiring, shape, frame_ndim, time_axis, dtype, fades = kind
        return on_explicit_axes(lambda call: function(call, *options), Call(wiring, arrays, numbers, shape, frame_ndim, time_axis, dtype, None, fades))

    @functools.wraps(function)
    def call_once(call: Call, *options: Any) -> tuple[jax.Array, ...]:
        kind = (call.wiring, call.shape, call.frame_ndim, call.time_axis, call.dtype, call.fades)
        numbers = {name: np.dtype(call.dtype).type(number) if isinstance(number, float) else number for name, number in call.numbers.items()}
        return once(kind, options, dict(call.arrays), numbers)

    return call_once
