"""Rows that are spread over the devices of a mesh: each device computes those it has, and no device asks another.

Along an explicit axis of a mesh JAX knows the sharding while it traces, and `jax.shard_map` splits the call. Along an automatic one only XLA does, later:
it splits whole-array operations by itself, and by `custom_partitioning` what it can't look into or would not split by rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from rlscan.spec.calls import Call
from rlscan.spec.geometry import axes_of

Axes = tuple[Hashable, ...]
"""For each axis of an array what it is, the same in all arrays; None for one that no device can have a part of."""

Outs = tuple[jax.Array, ...]


def _axes(call: Call, name: str) -> Axes:
    """Of an array, row axes by their numbers in the outputs."""
    shape = call.arrays[name].shape
    own = axes_of(call, name, len(shape))
    return tuple(axis if axis is not None and axis != call.time_axis and size == call.shape[axis] else None for axis, size in zip(own, shape, strict=True))


def _out_axes(call: Call) -> Axes:
    return _axes(call, call.recurrence.frame.name)


def _axes_of_outputs(call: Call) -> list[Axes]:
    """Of each output; one of which a row has but one has no time."""
    whole = _out_axes(call)
    of_rows = tuple(own for axis, own in enumerate(whole) if axis != call.time_axis)
    return [of_rows if name in call.recurrence.last_only else whole for name in call.recurrence.output_names]


def _of_own_rows(call: Call, arrays: dict[str, Any], numbers: dict[str, Any]) -> Call:
    return dataclasses.replace(call, arrays=arrays, numbers=numbers, shape=tuple(arrays[call.recurrence.frame.name].shape))


def on_explicit_axes(function: Callable[[Call], Outs], call: Call) -> Outs:
    """What `function` gives for a call, which is traced, on each device for its rows: those of the frame. Other arrays are laid out as it is."""
    frame = call.arrays[call.recurrence.frame.name]
    sharding = jax.typeof(frame).sharding
    mesh = sharding.mesh
    if AxisType.Explicit not in mesh.axis_types:
        return function(call)
    over = dict(zip(_out_axes(call), sharding.spec, strict=True)) | {None: None}
    specs = {name: PartitionSpec(*(over.get(axis) for axis in _axes(call, name))) for name in call.arrays}
    arrays = {name: jax.sharding.reshard(array, NamedSharding(mesh, specs[name])) for name, array in call.arrays.items()}

    def own(arrays: dict[str, Any], numbers: dict[str, Any]) -> Outs:
        return function(_of_own_rows(call, arrays, numbers))

    out = PartitionSpec(*(over[axis] for axis in _out_axes(call)))
    return jax.shard_map(own, mesh=mesh, in_specs=(specs, PartitionSpec()), out_specs=out)(arrays, dict(call.numbers))


def on_automatic_axes(function: Callable[[Call], Outs], call: Call) -> Outs:
    """What `function` gives for a call, on each device for its rows, whatever their sharding turns out to be when the program is compiled."""
    names, numbers = list(call.arrays), list(call.numbers)
    # the rule of `jax.vmap` outlives the trace that this call's own arrays belong to
    kind = dataclasses.replace(call, arrays={}, numbers={})

    def own(*operands: jax.Array) -> Outs:
        arrays = dict(zip(names, operands, strict=False))
        return function(_of_own_rows(kind, arrays, dict(zip(numbers, operands[len(names) :], strict=True))))

    axes = (*(_axes(call, name) for name in names), *((),) * len(numbers))
    return split_rows(own, axes, *_axes_of_outputs(call))(*call.arrays.values(), *call.numbers.values())


def vary_alike(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Inside `jax.shard_map`, arrays that vary over the devices where any of them does, by which JAX adds up the gradient of one that did not."""
    own = [_varying(x) for x in arrays]
    together = frozenset().union(*own)
    return [x if over == together else jax.lax.pcast(x, tuple(together - over), to="varying") for x, over in zip(arrays, own, strict=True)]


def _varying(x: jax.Array) -> frozenset[Any]:
    """The axes of a mesh over which it varies; the name of that differs from release to release."""
    kind = jax.typeof(x)
    return kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else kind.vma


def split_rows(function: Callable[..., Outs], axes: tuple[Axes, ...], *out_axes: Axes) -> Callable[..., Outs]:
    """`function` of arrays with these axes, which has no derivative, on each device for what it has; what all need is fetched."""
    # inside `jax.shard_map` rows are split already, and under `jax.vmap` over all of an explicit mesh there is nothing left to split: there a partitioner
    # would not find the devices
    kinds = jax.sharding.get_abstract_mesh().axis_types
    if AxisType.Manual in kinds or (kinds and AxisType.Auto not in kinds):
        return function
    on_each = custom_partitioning(function)

    def partition(mesh: Any, operands: Any, results: Any) -> Any:
        # where an array is on one device and the mesh has more, XLA names no axes of it: then each device has all rows
        spec = getattr(results[0].sharding, "spec", (None,) * len(out_axes[0]))
        over = {axis: names for axis, names in zip(out_axes[0], spec, strict=True) if axis is not None}

        def laid_out(own: Axes) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*(over.get(axis) for axis in own)))

        return mesh, function, tuple(map(laid_out, out_axes)), tuple(map(laid_out, axes))

    names: dict[Any, str] = {}
    alone: list[str] = []

    def factors(own: Axes) -> ArrayMapping:
        made = []
        for axis in own:
            if axis is None:
                alone.append(f"alone{len(alone)}")
                made.append(alone[-1])
            else:
                made.append(names.setdefault(axis, f"rows{len(names)}"))
        return ArrayMapping(*made)

    rule = SdyShardingRule(tuple(map(factors, axes)), tuple(map(factors, out_axes)), need_replication_factors=tuple(alone))
    on_each.def_partition(partition, sharding_rule=rule)

    @custom_vmap
    def batched(*operands: jax.Array) -> Outs:
        return on_each(*operands)

    @batched.def_vmap
    def _(axis_size: int, is_batched: list[bool], *operands: jax.Array) -> Any:
        """More rows, the first ones; where there are none, nothing is started, for a kernel can't be started no times."""
        new = object()
        more = tuple((new, *own) if batch else own for own, batch in zip(axes, is_batched, strict=True))
        each = jax.vmap(function, in_axes=[0 if batch else None for batch in is_batched])
        if axis_size == 0:
            outs = tuple(jnp.zeros(like.shape, like.dtype) for like in jax.eval_shape(each, *operands))
        else:
            outs = split_rows(each, more, *((new, *own) for own in out_axes))(*operands)
        return outs, (True,) * len(outs)

    return batched
