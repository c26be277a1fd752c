"""Two primitives, for what JAX has as functions of its own and forgets rules of:

- a function with a derivative of its own, as `jax.custom_jvp` has it, whose rule `jax.lax.scan` drops where it splits a loop for reverse mode, so that
  there is no second derivative of what has no rule but that one;
- a linear function whose transpose is a function of its own, as `jax.custom_derivatives.linear_call` has it, but with a rule for `jax.vmap` and with
  derivatives of both: what kernels need to give gradients where JAX finds by itself whatever else is asked for.

Whatever could be missing in another JAX is in `_register`; where that fails, `AVAILABLE` is False, `jax.custom_jvp` takes the place of the first, and JAX
transposes what it linearises.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend import core

from rlscan.jax_pallas.sharded import vary_alike

Arrays = Sequence[jax.Array]


class Differentiated(Protocol):
    """Hashable, for it is part of a compilation's key."""

    def values(self, arrays: Arrays) -> Arrays:
        """The results."""
        ...

    def derivative(self, arrays: Arrays, results: Arrays, tangents: Sequence[jax.Array | None]) -> Arrays:
        """The tangents of the results, from those of the arrays: all that can have one have."""
        ...


@dataclasses.dataclass(frozen=True)
class Mapped:
    """The same for one more axis, along which each array has it; None: it has not."""

    of: Differentiated
    axes: tuple[int | None, ...]

    def values(self, arrays: Arrays) -> Arrays:
        return jax.vmap(self.of.values, in_axes=(list(self.axes),))(list(arrays))

    def derivative(self, arrays: Arrays, results: Arrays, tangents: Sequence[jax.Array | None]) -> Arrays:
        # what is None is no leaf, and has no axis
        axes = [None if tangent is None else axis for axis, tangent in zip(self.axes, tangents, strict=True)]
        return jax.vmap(self.of.derivative, in_axes=(list(self.axes), 0, axes))(list(arrays), list(results), list(tangents))


_values_p = core.Primitive("rlscan_values")
_values_p.multiple_results = True


def with_derivative(of: Differentiated, arrays: Arrays) -> list[jax.Array]:
    """`of.values(arrays)`, with the derivative `of.derivative`."""
    # under `jax.disable_jit` arrays are looked at one by one, and not traced
    if AVAILABLE and not jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        # JAX looks into it for what asks for devices
        return _values_p.bind(*arrays, of=of, jaxpr=jax.make_jaxpr(lambda *own: list(of.values(own)))(*arrays))
    values = jax.custom_jvp(lambda *own: list(of.values(own)))

    @values.defjvp
    def _(own: Any, tangents: Any) -> Any:
        results = values(*own)
        return results, list(of.derivative(own, results, _of_numbers(own, tangents)))

    return values(*arrays)


def _of_numbers(arrays: Arrays, tangents: Sequence[Any]) -> list[Any]:
    """The tangents of what can have one."""
    return [tangent if jnp.issubdtype(x.dtype, jnp.inexact) else None for x, tangent in zip(arrays, tangents, strict=True)]


class Linear(Protocol):
    """Hashable, for it is part of a compilation's key."""

    def tangents(self, primals: Arrays, tangents: Arrays) -> Arrays:
        """Linear in the tangents, of which some primals have one, and differentiable as often as one likes."""
        ...

    def pulled_back(self, primals: Arrays, gradients: Sequence[jax.Array | None], wanted: Sequence[bool]) -> Arrays:
        """The transpose: from the gradients of the results, of which some may be missing, to those of the tangents that are wanted. Differentiable too."""
        ...


@dataclasses.dataclass(frozen=True)
class Batched:
    """The same for one more axis.

    Attributes:
        of: what it is done with.
        axes: along which axis each primal and each tangent has it; None: it has not.
    """

    of: Linear
    primal_axes: tuple[int | None, ...]
    tangent_axes: tuple[int | None, ...]

    def tangents(self, primals: Arrays, tangents: Arrays) -> Arrays:
        return jax.vmap(self.of.tangents, in_axes=(list(self.primal_axes), list(self.tangent_axes)))(list(primals), list(tangents))

    def pulled_back(self, primals: Arrays, gradients: Sequence[jax.Array | None], wanted: Sequence[bool]) -> Arrays:
        each = jax.vmap(functools.partial(self.of.pulled_back, wanted=tuple(wanted)), in_axes=(list(self.primal_axes), 0))
        made = each(list(primals), list(gradients))
        axes = [axis for axis, is_wanted in zip(self.tangent_axes, wanted, strict=True) if is_wanted]
        return [one.sum(0) if axis is None else jnp.moveaxis(one, 0, axis) for one, axis in zip(made, axes, strict=True)]


_tangents_p = core.Primitive("rlscan_tangents")
_tangents_p.multiple_results = True


def linear(of: Linear, primals: Arrays, tangents: Arrays) -> Arrays:
    """`of.tangents(primals, tangents)`, transposed by `of.pulled_back`."""
    if not AVAILABLE:
        return of.tangents(primals, tangents)
    # the gradients of all vary where one does
    return _tangents_p.bind(*vary_alike([*primals, *tangents]), of=of, count=len(primals))


def _of_tangents(*arrays: jax.Array, of: Linear, count: int) -> list[jax.Array]:
    return list(of.tangents(arrays[:count], arrays[count:]))


def _register() -> None:
    from jax.interpreters import ad, batching, mlir

    def shaped(*avals: Any, of: Linear, count: int) -> list[Any]:
        return list(jax.make_jaxpr(functools.partial(_of_tangents, of=of, count=count))(*avals).out_avals)

    def differentiated(arrays: Any, their_tangents: Any, of: Linear, count: int) -> Any:
        varied = [i for i, tangent in enumerate(their_tangents) if type(tangent) is not ad.Zero]

        def values(*some: jax.Array) -> list[jax.Array]:
            every = list(arrays)
            for i, x in zip(varied, some, strict=True):
                every[i] = x
            return _of_tangents(*every, of=of, count=count)

        results = _tangents_p.bind(*arrays, of=of, count=count)
        if all(i >= count for i in varied):
            # linear in these
            zeros = [ad.instantiate_zeros(tangent) for tangent in their_tangents[count:]]
            return results, _tangents_p.bind(*arrays[:count], *zeros, of=of, count=count)
        return results, jax.jvp(values, [arrays[i] for i in varied], [their_tangents[i] for i in varied])[1]

    def transposed(gradients: Any, *arrays: Any, of: Linear, count: int) -> list[Any]:
        wanted = [ad.is_undefined_primal(x) for x in arrays[count:]]
        came_in = [None if type(gradient) is ad.Zero else gradient for gradient in gradients]
        found = iter(of.pulled_back(arrays[:count], came_in, wanted))
        return [None] * count + [next(found) if is_wanted else None for is_wanted in wanted]

    def batched(arrays: Any, axes: Any, of: Linear, count: int) -> Any:
        own = [axis if isinstance(axis, int) else None for axis in axes]
        results = _tangents_p.bind(*arrays, of=Batched(of, tuple(own[:count]), tuple(own[count:])), count=count)
        return results, [0] * len(results)

    def evaluated(*arrays: jax.Array, of: Differentiated, jaxpr: Any) -> list[jax.Array]:
        return core.jaxpr_as_fun(jaxpr)(*arrays)

    def with_tangents(arrays: Any, their_tangents: Any, of: Differentiated, jaxpr: Any) -> Any:
        results = _values_p.bind(*arrays, of=of, jaxpr=jaxpr)
        own = [None if tangent is None else ad.instantiate_zeros(tangent) for tangent in _of_numbers(arrays, their_tangents)]
        return results, list(of.derivative(arrays, results, own))

    def mapped(arrays: Any, axes: Any, of: Differentiated, jaxpr: Any) -> Any:
        results = with_derivative(Mapped(of, tuple(axis if isinstance(axis, int) else None for axis in axes)), arrays)
        return results, [0] * len(results)

    _values_p.def_impl(evaluated)
    _values_p.def_abstract_eval(lambda *avals, of, jaxpr: list(jaxpr.out_avals))
    ad.primitive_jvps[_values_p] = with_tangents
    batching.primitive_batchers[_values_p] = mapped
    mlir.register_lowering(_values_p, mlir.lower_fun(evaluated, multiple_results=True))

    _tangents_p.def_impl(_of_tangents)
    _tangents_p.def_abstract_eval(shaped)
    ad.primitive_jvps[_tangents_p] = differentiated
    ad.primitive_transposes[_tangents_p] = transposed
    batching.primitive_batchers[_tangents_p] = batched
    mlir.register_lowering(_tangents_p, mlir.lower_fun(_of_tangents, multiple_results=True))


AVAILABLE = True
try:
    _register()
except Exception:  # as in `_scan_primitive`
    AVAILABLE = False
