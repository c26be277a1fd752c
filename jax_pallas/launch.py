"""From a checked call to launches: axes, tiles, grid."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from rlscan.jax_pallas import _scan_primitive as scan_primitive
from rlscan.jax_pallas import kernels
from rlscan.jax_pallas.arrays import compiled
from rlscan.jax_pallas.vectorised import differentiable
from rlscan.spec.calls import Call
from rlscan.spec.plan import Plan, plan
from rlscan.spec.program import program

# Rows are counted in int32, up to the end of the last program's.
MOST_ROWS = 2**31 - 1024


def by_kernels(call: Call, interpret: bool, chosen: Plan | None = None) -> tuple[jax.Array, ...]:
    """The outputs of a call that has elements, by the kernels."""
    return _launch(call, interpret, chosen or _plan(call))


def _plan(call: Call) -> Plan:
    num_rows = math.prod(call.row_shape)
    # as `spec.geometry` has it for row-major arrays
    steps_are_contiguous = math.prod(call.shape[call.time_axis + 1 :]) == 1 or num_rows == 1 or call.steps == 1
    if not scan_primitive.AVAILABLE:
        _say_that_it_is_slow()
    return plan("rows" if steps_are_contiguous else "columns", num_rows, call.steps, program(call.wiring).reads, exchange=scan_primitive.AVAILABLE)


@functools.cache
def _say_that_it_is_slow() -> None:
    warnings.warn(f"rlscan walks rows step by step instead of scanning them, which is slow: {scan_primitive.WHY}", RuntimeWarning, stacklevel=2)


@compiled
def _launch(call: Call, interpret: bool, chosen: Plan) -> tuple[jax.Array, ...]:
    return differentiable(call, functools.partial(_launches_or_nothing, interpret, chosen))


def _launches_or_nothing(interpret: bool, chosen: Plan, call: Call) -> tuple[jax.Array, ...]:
    def launches(operands: dict[str, dict[str, Any]]) -> tuple[jax.Array, ...]:
        return _launches(interpret, chosen, dataclasses.replace(call, **operands))

    return _mappable(launches)({"arrays": dict(call.arrays), "numbers": dict(call.numbers)})


def _mappable(function: Callable[[Any], tuple[jax.Array, ...]]) -> Callable[[Any], tuple[jax.Array, ...]]:
    """A function whose `jax.vmap` over nothing starts no kernel, which can't be started no times."""
    mappable = jax.custom_batching.custom_vmap(function)

    @mappable.def_vmap
    def _(axis_size: int, in_batched: list[Any], operands: Any) -> tuple[tuple[jax.Array, ...], tuple[bool, ...]]:
        axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched[0])
        mapped = jax.vmap(function, in_axes=(axes,), axis_size=axis_size)
        if axis_size == 0:
            results = tuple(jnp.zeros(like.shape, like.dtype) for like in jax.eval_shape(mapped, operands))
        else:
            results = _mappable(mapped)(operands)
        return results, (True,) * len(results)

    return mappable


def _launches(interpret: bool, chosen: Plan, call: Call) -> tuple[jax.Array, ...]:
    operands = {**call.arrays, **call.numbers}
    recurrence, wiring, code, dtype = call.recurrence, call.wiring, program(call.wiring), jnp.dtype(call.dtype)
    sizes, time, axes = _axes(call)
    used = dict.fromkeys((*code.sources, *code.edges, *([wiring.seed] if wiring.seed else ())))
    refs = {}
    for name in used:
        actions = operands[name].shape[-1:] if _kind(call, name) == "actions" else ()
        # no copy, for the elements stay in their order
        refs[name] = scan_primitive.addressable(jnp.reshape(operands[name], (*(sizes[axis] for axis in axes[name]), *actions)))
    special = kernels.Special(
        code=code,
        coefficients=kernels.device_function(recurrence.coefficients),
        outputs=kernels.device_function(recurrence.outputs or kernels.identity),
        seed=wiring.seed,
        plan=chosen,
        sizes=sizes,
        time=time,
        axes=axes,
        dtype=dtype,
        fades=call.fades,
        interpret=interpret,
    )

    shaped = scan_primitive.shapes_beside(operands.values())

    def run(which: str, *shapes: jax.ShapeDtypeStruct) -> tuple[jax.Array, ...]:
        call_kernel = pl.pallas_call(
            functools.partial(kernels.scan_kernel, which, special),
            out_shape=shapes,
            grid=(-(-special.num_rows // chosen.rows), chosen.segments),
            compiler_params=scan_primitive.compiler_params(num_warps=chosen.num_warps),
            interpret=interpret,
            name=f"rlscan_{recurrence.name}_{which}",
        )
        return tuple(call_kernel(refs, totals, nearest_ends))

    totals, nearest_ends = None, None
    segments = (special.num_rows, chosen.segments)
    if special.split and code.nearest:
        (nearest_ends,) = run("nearest", shaped(segments, jnp.int32))
    if special.split:
        totals = run("totals", *[shaped(segments, dtype)] * 2)
    return tuple(out.reshape(call.shape) for out in run("results", *[shaped(sizes, dtype)] * len(recurrence.output_names)))


def _axes(call: Call) -> tuple[tuple[int, ...], int, dict[str, tuple[int, ...]]]:
    """The axes that kernels see: their sizes, which of them is time, and which of them each operand has.

    Row axes side by side that every array has, or lacks, alike are one axis.
    """
    full = {name: _full_shape(call, name) for name in call.arrays}
    groups: list[list[int]] = []
    time = 0
    for axis, size in enumerate(call.shape):
        if axis == call.time_axis:
            time = len(groups)
            groups.append([axis])
        elif size != 1:
            before = groups[-1][-1] if groups else call.time_axis
            if before != call.time_axis and all((own[before] == 1) == (own[axis] == 1) for own in full.values()):
                groups[-1].append(axis)
            else:
                groups.append([axis])
    if len(groups) == 1:
        groups, time = [[], *groups], 1
    axes = {name: tuple(i for i, group in enumerate(groups) if any(own[axis] != 1 for axis in group)) for name, own in full.items()}
    return tuple(math.prod(call.shape[axis] for axis in group) for group in groups), time, axes | dict.fromkeys(call.numbers, ())


def _full_shape(call: Call, name: str) -> tuple[int, ...]:
    """A size for each axis of the outputs, 1 where the array repeats."""
    kind, shape = _kind(call, name), tuple(call.arrays[name].shape)
    if kind == "row":
        return (*shape[: call.time_axis], 1, *shape[call.time_axis :])
    if kind == "actions":
        shape = shape[:-1]
    features = len(call.shape) - call.frame_ndim if kind != "inputs" else 0
    return (1,) * (len(call.shape) - features - len(shape)) + shape + (1,) * features


def _kind(call: Call, name: str) -> str:
    return next(argument.shape for argument in call.recurrence.arguments if argument.name == name)
