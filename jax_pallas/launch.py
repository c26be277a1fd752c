"""From a checked call to launches: axes, tiles, grid."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from rlscan.jax_pallas import _scan_primitive as scan_primitive
from rlscan.jax_pallas import kernels
from rlscan.jax_pallas.arrays import compiled
from rlscan.jax_pallas.sharded import on_automatic_axes
from rlscan.jax_pallas.vectorised import differentiable
from rlscan.spec.calls import Call
from rlscan.spec.geometry import axes_of
from rlscan.spec.plan import Plan, plan
from rlscan.spec.program import ACTIONS, program

# Rows are counted in int32, up to the end of the last program's.
MOST_ROWS = 2**31 - 1024


def by_kernels(call: Call, interpret: bool, chosen: Plan | None = None) -> tuple[jax.Array, ...]:
    """The outputs of a call that has elements, by the kernels."""
    return _launch(call, interpret, chosen)


def _plan(call: Call) -> Plan:
    num_rows = math.prod(call.row_shape)
    # as `spec.geometry` has it for row-major arrays
    steps_are_contiguous = math.prod(call.shape[call.time_axis + 1 :]) == 1 or num_rows == 1 or call.steps == 1
    if not scan_primitive.AVAILABLE:
        _say_that_it_is_slow()
    layout, code = "rows" if steps_are_contiguous else "columns", program(call.wiring)
    # of a multiprocessor's memory, XLA gives most to shared memory where a kernel has any
    moved = code.reads, code.outputs, jnp.dtype(call.dtype).itemsize, code.flags
    return plan(layout, num_rows, call.steps, *moved, exchange=scan_primitive.AVAILABLE, cached=False)


@functools.cache
def _say_that_it_is_slow() -> None:
    warnings.warn(f"rlscan walks rows step by step instead of scanning them, which is slow: {scan_primitive.WHY}", RuntimeWarning, stacklevel=2)


@compiled
def _launch(call: Call, interpret: bool, chosen: Plan | None) -> tuple[jax.Array, ...]:
    # a plan is that of one call, and not of its adjoint
    return differentiable(call, Kernels(interpret, chosen), Kernels(interpret))


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The outputs of a call by the kernels.

    Attributes:
        interpret: in Pallas' interpret mode.
        chosen: the plan; None: the one for the call.
    """

    interpret: bool
    chosen: Plan | None = None

    def __call__(self, call: Call) -> tuple[jax.Array, ...]:
        # XLA can't look into a kernel, and would give every device all rows
        return on_automatic_axes(functools.partial(_launches, self.interpret, self.chosen), call)


def _launches(interpret: bool, chosen: Plan | None, call: Call) -> tuple[jax.Array, ...]:
    chosen = chosen or _plan(call)
    operands = {**call.arrays, **call.numbers}
    recurrence, wiring, code, dtype = call.recurrence, call.wiring, program(call.wiring), jnp.dtype(call.dtype)
    sizes, time, axes = _axes(call)
    used = dict.fromkeys((*code.sources, *code.edges, *([wiring.seed] if wiring.seed else ())))
    refs = {}
    for name in used:
        actions = operands[name].shape[-1:] if name in call.arrays and None in axes_of(call, name, operands[name].ndim) else ()
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
        return tuple(call_kernel(refs, totals, nearest_ends, expectations))

    totals, nearest_ends, expectations = None, None, ()
    segments = (special.num_rows, chosen.slots)
    if special.split and code.nearest:
        (nearest_ends,) = run("nearest", shaped(segments, jnp.int32))
    if special.split:
        steps_of_rows = (special.num_rows, special.steps) if special.contiguous else (special.steps, special.num_rows)
        addend, factor, *expectations = run("totals", *[shaped(segments, dtype)] * 2, *[shaped(steps_of_rows, dtype)] * code.at.count(ACTIONS))
        totals = addend, factor
    of_outputs = [(((special.num_rows,), call.row_shape) if last_only else (sizes, call.shape)) for last_only in code.last_only]
    outs = run("results", *(shaped(own, dtype) for own, _ in of_outputs))
    return tuple(out.reshape(shape) for out, (_, shape) in zip(outs, of_outputs, strict=True))


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
    shape = call.arrays[name].shape
    own = dict(zip(axes_of(call, name, len(shape)), shape, strict=True))
    return tuple(own.get(axis, 1) for axis in range(len(call.shape)))
