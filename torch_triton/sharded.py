"""Rows that are spread over devices, as a `DTensor`: each device computes those it has, and no device asks another."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from rlscan.spec.calls import Call
from rlscan.spec.geometry import axes_of
from rlscan.torch_triton._private import is_transformed
from rlscan.torch_triton.arrays import Outs

Layout = tuple[Any, list[int | None]]
"""A mesh of devices, and which axis of the outputs each of its dimensions shards; None: it repeats all."""

INSTEAD = "redistribute it to Shard of a row axis, or to Replicate"


def local(call: Call) -> tuple[Layout, dict[str, torch.Tensor]]:
    """How the results are laid out, and what this device has of each array; a `TypeError` or `ValueError` where rows would have to be fetched."""
    mesh, sharded = layout = _layout(call)
    arrays = {}
    for name, array in call.arrays.items():
        whole = {axis: place for place, axis in enumerate(axes_of(call, name, array.ndim)) if axis is not None and array.shape[place] == call.shape[axis]}
        placements = [Shard(whole[axis]) if axis in whole else Replicate() for axis in sharded]
        # what all devices have is cut without communication; its gradient is put together again with some
        own = array if list(array.placements) == placements else array.redistribute(mesh, placements)
        # each device knows its rows' share of the gradient of what serves all rows
        summed = [Partial() if axis is not None and axis not in whole else placement for axis, placement in zip(sharded, placements, strict=True)]
        arrays[name] = own.to_local(grad_placements=summed)
    return layout, arrays


def gathered(call: Call, layout: Layout, results: Outs) -> Outs:
    """The results of all devices, of which this one has made `results`."""
    mesh, sharded = layout
    placements = [Replicate() if axis is None else Shard(axis) for axis in sharded]
    # rows may not divide evenly, so that the whole can't be told from the part
    shape, stride = torch.Size(call.shape), torch.empty(call.shape, device="meta").stride()
    return tuple(DTensor.from_local(result.contiguous(), mesh, placements, run_check=False, shape=shape, stride=stride) for result in results)


def _layout(call: Call) -> Layout:
    frame = call.recurrence.frame.name

    def wrong(kind: type[Exception], name: str, what: str) -> Exception:
        return kind(f"{call.recurrence.name}: {name} {what}")

    for name, array in call.arrays.items():
        if not isinstance(array, DTensor):
            plain = "is a torch.Tensor beside DTensors; wanted a DTensor too: distribute_tensor makes one, with Replicate where all need it"
            inside = "is inside of torch.func, beside DTensors, which have gradients by torch.autograd alone; call it on local tensors"
            raise wrong(TypeError, name, inside if is_transformed(array) else plain)
    mesh = call.arrays[frame].device_mesh
    sharded: list[int | None] = [None] * mesh.ndim
    first = {}
    for name, array in call.arrays.items():
        if array.device_mesh != mesh:
            raise wrong(ValueError, name, f"is on {array.device_mesh} and {frame} is on {mesh}; wanted one mesh")
        axes = axes_of(call, name, array.ndim)
        for dimension, placement in enumerate(array.placements):
            if placement.is_replicate():
                continue
            where = f"over dimension {dimension} of the mesh"
            # what PyTorch derives from Shard orders rows otherwise
            if type(placement) is not Shard:
                raise wrong(ValueError, name, f"is {placement!r} {where}; {INSTEAD}")
            axis, size = axes[placement.dim], array.shape[placement.dim]
            if axis is None or axis == call.time_axis:
                what = "actions, over which a sum is taken" if axis is None else "time, along which each step needs the one beside it"
                raise wrong(ValueError, name, f"is {placement!r} {where}, and that axis is {what}; {INSTEAD}")
            if size != call.shape[axis]:
                raise wrong(ValueError, name, f"is {placement!r} {where}, and has one element along that axis for all of {frame}; redistribute it to Replicate")
            if sharded[dimension] not in (None, axis):
                theirs = f"{first[dimension]} is sharded along axis {sharded[dimension]} of the results"
                raise wrong(ValueError, name, f"is {placement!r} {where}, along axis {axis} of the results, where {theirs}; wanted one")
            sharded[dimension] = axis
            first.setdefault(dimension, name)
    return mesh, sharded
