"""From a checked call to launches: outputs, strides, tiles, grid."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from rlscan.spec.calls import Call
from rlscan.spec.geometry import Geometry, geometry
from rlscan.spec.plan import Plan, plan
from rlscan.spec.program import ACTIONS, NUMBER, Program, multiple, program, strides
from rlscan.spec.taps import wire
from rlscan.torch_triton import repeated
from rlscan.torch_triton.arrays import DTYPES


def by_kernels(call: Call, key: Any = None) -> tuple[torch.Tensor, ...]:
    """The outputs of a call, by the kernels; prepared for the next one of the same key."""
    if call.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(f"method is 'kernels' and the tensors are on {call.device}: set TRITON_INTERPRET=1 before triton is imported, or pass method=None")
    # a lazily negated tensor is not what it stores
    call = dataclasses.replace(call, arrays={name: array.resolve_neg() for name, array in call.arrays.items()})
    wide = _with_wide_numbers(call)
    prepared = Prepared(wide)
    if wide is call:
        repeated.keep(key, prepared)
    return prepared(wide.arrays, wide.numbers)


class Prepared:
    """A call of these shapes, strides and types, to be made again and again with other tensors and numbers.

    After its first run it keeps the compiled kernels and starts them without Triton's dispatcher, which takes longer
    than everything else on the way.
    """

    def __init__(self, call: Call, chosen: Plan | None = None) -> None:
        code = program(call.wiring)
        frame = call.arrays[call.recurrence.frame.name]
        like = torch.empty_like(frame, dtype=DTYPES[call.dtype], device="meta")
        self.empty = frame.numel() == 0
        self.frame, self.dtype = call.recurrence.frame.name, like.dtype
        self.outputs = len(call.recurrence.output_names)
        self.device = frame.device
        self.seed = call.wiring.seed
        self.sources = tuple((name, at == NUMBER) for name, at in zip(code.sources, code.at, strict=True))
        self.edges = code.edges
        self.launches: list[Launch] = []
        self.runners: list[Callable[..., Any]] = []
        if self.empty:
            return
        place = geometry(call, {name: (tuple(array.shape), array.stride()) for name, array in call.arrays.items()}, like.stride())
        chosen = chosen or plan("rows" if place.steps_are_contiguous else "columns", place.num_rows, place.steps, code.reads)
        self.totals = (2, place.num_rows, chosen.segments) if chosen.segments > 1 else None
        self.nearest_ends = (place.num_rows, chosen.segments) if chosen.segments > 1 and code.nearest else None
        self.launches = _launches(call, code, place, chosen)

    def __call__(self, arrays: Mapping[str, Any], numbers: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        outs = tuple([torch.empty_like(arrays[self.frame], dtype=self.dtype) for _ in range(self.outputs)])
        if not self.empty:
            same = self.device.type != "cuda" or torch.cuda.current_device() == self.device.index
            with contextlib.nullcontext() if same else torch.cuda.device(self.device):
                self.start(self.tensors(arrays, numbers, outs))
        return outs

    def tensors(self, arrays: Mapping[str, Any], numbers: Mapping[str, Any], outs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
        """The arguments that differ from call to call, in the order of the kernels' first parameters."""
        out = outs[0]
        return {
            "arrays": tuple([_number(numbers[name]) if is_number else arrays[name] for name, is_number in self.sources]),
            "edges": tuple([arrays[name] for name in self.edges]),
            "seed": arrays[self.seed] if self.seed else out,
            "outs": outs,
            "totals": out.new_empty(self.totals) if self.totals else out,
            "nearest_ends": out.new_empty(self.nearest_ends, dtype=torch.int32) if self.nearest_ends else out,
        }

    def start(self, tensors: dict[str, Any]) -> None:
        if self.runners:
            given = tensors.values()
            for runner, one in zip(self.runners, self.launches, strict=True):
                runner(*given, *one.rest)
            return
        compiled = [one.kernel[one.grid](**tensors, **one.sizes, **one.constants, **one.options) for one in self.launches]
        if None not in compiled:  # in Triton's interpreter nothing is compiled
            self.runners = [kernel[(*one.grid, 1)] for kernel, one in zip(compiled, self.launches, strict=True)]


@dataclasses.dataclass(frozen=True)
class Launch:
    """One kernel launch, but for the tensors.

    Attributes:
        sizes: numbers that are given at each launch.
        constants: what the kernel is compiled for.
        options: how it is compiled.
    """

    kernel: Any
    grid: tuple[int, int]
    sizes: dict[str, Any]
    constants: dict[str, Any]
    options: dict[str, Any]

    @functools.cached_property
    def rest(self) -> tuple[Any, ...]:
        """What follows the tensors in the order of the kernel's parameters."""
        named = {**self.sizes, **self.constants}
        return tuple(named[name] for name in self.kernel.arg_names if name in named)


def _launches(call: Call, code: Program, place: Geometry, chosen: Plan) -> list[Launch]:
    from rlscan.torch_triton import kernels  # imports triton, which only kernels need

    passes = ["results"]
    if chosen.segments > 1:
        passes = ["nearest"] * code.nearest + ["totals", "results"]
    along = strides(code, call.wiring.seed, place)
    num_actions = next((call.arrays[name].shape[-1] for name, at in zip(code.sources, code.at, strict=True) if at == ACTIONS), 1)
    sizes = {
        "num_rows": place.num_rows,
        "step_units": place.steps // multiple(place.steps),
        "row_sizes": place.row_sizes[1:],
        "strides": along.quotients,
        "num_actions": num_actions,
        "segments": chosen.segments,
        "blocks": chosen.blocks,
    }
    recurrence = call.recurrence
    constants = {
        "PATTERN": along.pattern,
        "MULTIPLES": along.multiples,
        "STEP_UNIT": multiple(place.steps),
        "ACTION_STRIDES": along.actions,
        "ACTIONS_AT_ONCE": math.gcd(num_actions, 4),
        "AT": code.at,
        "EDGE": code.edge,
        "FLAG": code.flag,
        "BEHIND": code.behind,
        "COEFFICIENTS": kernels.device_function(recurrence.coefficients),
        "OUTPUTS": kernels.device_function(recurrence.outputs or kernels.identity),
        "TAPS": code.coefficient_taps,
        "CONSTANTS": code.coefficient_constants,
        "OUTPUT_TAPS": code.output_taps,
        "OUTPUT_CONSTANTS": code.output_constants,
        "VALIDITY": code.validity,
        "VALID_TAPS": code.valid_taps,
        "VALID_CONSTANTS": code.valid_constants,
        "IS_NEAREST": code.nearest,
        "BACKWARD": code.backward,
        "SEEDED": call.wiring.seed is not None,
        "FADING": call.fades,
        "COMPUTE": kernels.COMPUTE[DTYPES[call.dtype]],
        "CONTIGUOUS": chosen.layout == "rows",
        "BLOCK_ROWS": chosen.rows,
        "POSITIONS": chosen.positions,
        "STEPS": chosen.steps,
        "WHOLE": place.steps % chosen.block_steps == 0,
        "ALL_ROWS": place.num_rows % chosen.rows == 0,
        "SPLIT": chosen.segments > 1,
        "AHEAD": chosen.blocks > 1,
    }
    # contraction would round differently from JAX's pipeline, which never contracts
    options = {"num_warps": chosen.num_warps, "num_stages": 1, "enable_fp_fusion": False}
    grid = (-(-place.num_rows // chosen.rows), chosen.segments)
    return [Launch(kernels.scan_kernel, grid, sizes, {"PASS": name, **constants}, options) for name in passes]


def _number(x: float | None) -> float:
    return math.inf if x is None else float(x)


def _with_wide_numbers(call: Call) -> Call:
    """Python numbers as 0-d tensors where 64 bits are computed: Triton passes a Python number in 32."""
    if call.dtype != "float64" or not call.numbers:
        return call
    arrays = dict(call.arrays)
    for name, number in call.numbers.items():
        arrays[name] = torch.full((), number, dtype=torch.float64, device=call.device)
    return dataclasses.replace(call, wiring=wire(call.recurrence, call.wiring.given), arrays=arrays, numbers={})
