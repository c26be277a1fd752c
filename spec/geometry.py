"""Where the elements lie: every array of a call as strides over the same rows and steps.

Row axes that every array walks alike are one axis, so that almost every call has a single one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from rlscan.spec.calls import Call


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Strides in elements; a stride of 0 repeats.

    Attributes:
        row_sizes: of the merged row axes, at least one.
        steps: T.
        rows: strides along each row axis, for each array by name; `""` is the output.
        time: stride along time, for each array that has it.
        action: stride along the action axis, for each array that has it.
    """

    row_sizes: tuple[int, ...]
    steps: int
    rows: Mapping[str, tuple[int, ...]]
    time: Mapping[str, int]
    action: Mapping[str, int]

    @property
    def num_rows(self) -> int:
        return math.prod(self.row_sizes)

    @property
    def steps_are_contiguous(self) -> bool:
        """Neighbours in memory are neighbours in time, in the output and so in the arrays it is shaped like."""
        return self.time[""] == 1 or self.num_rows == 1 or self.steps == 1


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a row-major array."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def axes_of(call: Call, name: str, ndim: int) -> tuple[int | None, ...]:
    """Which axis of the outputs each axis of an array of the call is; None for that of actions."""
    kind = next(argument.shape for argument in call.recurrence.arguments if argument.name == name)
    if kind == "row":
        return tuple(axis for axis in range(len(call.shape)) if axis != call.time_axis)
    if kind == "actions":
        return (*range(ndim - 1), None)
    end = len(call.shape) if kind == "inputs" else call.frame_ndim
    return tuple(range(end - ndim, end))


def geometry(call: Call, arrays: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]], output: tuple[int, ...]) -> Geometry:
    """The geometry of a call whose arrays have these (shape, strides), and whose output these strides."""
    axes = [axis for axis in range(len(call.shape)) if axis != call.time_axis]
    rows: dict[str, tuple[int, ...]] = {"": tuple(output[axis] for axis in axes)}
    time: dict[str, int] = {"": output[call.time_axis]}
    action: dict[str, int] = {}
    for name, (shape, strides) in arrays.items():
        along = {axis: 0 if size == 1 else stride for axis, size, stride in zip(axes_of(call, name, len(shape)), shape, strides, strict=True)}
        rows[name] = tuple(along.get(axis, 0) for axis in axes)
        if call.time_axis in along:
            time[name] = along[call.time_axis]
        if None in along:
            action[name] = along[None]
    sizes = tuple(call.shape[axis] for axis in axes)
    sizes, rows = _merged(sizes, rows)
    return Geometry(sizes, call.steps, rows, time, action)


def _merged(sizes: tuple[int, ...], rows: dict[str, tuple[int, ...]]) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    kept = [axis for axis, size in enumerate(sizes) if size != 1]
    merged: list[int] = []
    strides: dict[str, list[int]] = {name: [] for name in rows}
    for axis in kept:
        if merged and all(strides[name][-1] == rows[name][axis] * sizes[axis] for name in rows):
            merged[-1] *= sizes[axis]
            for name in rows:
                strides[name][-1] = rows[name][axis]
        else:
            merged.append(sizes[axis])
            for name in rows:
                strides[name].append(rows[name][axis])
    if not merged:
        return (1,), dict.fromkeys(rows, (0,))
    return tuple(merged), {name: tuple(own) for name, own in strides.items()}
