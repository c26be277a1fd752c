"""From a checked call to launches: outputs, strides, tiles, grid."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import torch

from rlscan.spec.calls import Call
from rlscan.spec.geometry import Geometry, geometry
from rlscan.spec.plan import Plan, plan
from rlscan.spec.program import ACTIONS, NUMBER, Program, program, strides
from rlscan.spec.taps import wire
from rlscan.torch_triton.arrays import DTYPES


def launch(call: Call) -> tuple[torch.Tensor, ...]:
    """The outputs of a call, by the kernels."""
    call = _with_wide_numbers(call)
    frame = call.arrays[call.recurrence.frame.name]
    outs = tuple(torch.empty_like(frame, dtype=DTYPES[call.dtype], memory_format=torch.preserve_format) for _ in call.recurrence.output_names)
    if frame.numel() == 0:
        return outs
    with torch.cuda.device(frame.device) if frame.is_cuda else contextlib.nullcontext():
        for one in launches(call, outs):
            one.kernel[one.grid](**one.arguments, **one.constants, **one.options)
    return outs


@dataclasses.dataclass(frozen=True)
class Launch:
    """One kernel launch: what it is given, what it is compiled for, and how."""

    kernel: Any
    grid: tuple[int, int]
    arguments: dict[str, Any]
    constants: dict[str, Any]
    options: dict[str, Any]


def launches(call: Call, outs: tuple[torch.Tensor, ...], chosen: Plan | None = None) -> list[Launch]:
    """The launches that fill `outs`."""
    place = geometry(call, {name: (tuple(array.shape), array.stride()) for name, array in call.arrays.items()}, outs[0].stride())
    code = program(call.wiring)
    chosen = chosen or plan("rows" if place.steps_are_contiguous else "columns", place.num_rows, place.steps, call.dtype == "float64")
    passes = ["results"]
    if chosen.segments > 1:
        passes = ["nearest"] * code.nearest + ["totals", "results"]
    arguments = _arguments(call, code, place, chosen, outs)
    constants = _constants(call, code, place, chosen, outs[0].dtype)
    # contraction would round differently from JAX's pipeline, which never contracts
    options = {"num_warps": chosen.num_warps, "num_stages": 1, "enable_fp_fusion": False}
    kernel = _kernels().rows_kernel if chosen.layout == "rows" else _kernels().columns_kernel
    grid = (-(-place.num_rows // chosen.block_rows), chosen.segments)
    return [Launch(kernel, grid, arguments, {"PASS": name, **constants}, options) for name in passes]


def _kernels() -> Any:
    from rlscan.torch_triton import kernels  # imports triton, which only kernels need

    return kernels


def _with_wide_numbers(call: Call) -> Call:
    """Python numbers as 0-d tensors where 64 bits are computed: Triton passes a Python number in 32."""
    if call.dtype != "float64" or not call.numbers:
        return call
    arrays = dict(call.arrays)
    for name, number in call.numbers.items():
        arrays[name] = torch.full((), number, dtype=torch.float64, device=call.device)
    return dataclasses.replace(call, wiring=wire(call.recurrence, call.wiring.given), arrays=arrays, numbers={})


def _arguments(call: Call, code: Program, place: Geometry, chosen: Plan, outs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    out, seed = outs[0], call.wiring.seed
    split = chosen.segments > 1
    return {
        "arrays": tuple(call.numbers[name] if at == NUMBER else call.arrays[name] for name, at in zip(code.sources, code.at, strict=True)),
        "edges": tuple(call.arrays[name] for name in code.edges),
        "seed": call.arrays[seed] if seed else out,
        "outs": outs,
        "totals": out.new_empty((place.num_rows, chosen.segments, 2)) if split else out,
        "nearest_ends": out.new_empty((place.num_rows, chosen.segments), dtype=torch.int32) if split and code.nearest else out,
        "num_rows": place.num_rows,
        "steps": place.steps,
        "row_sizes": place.row_sizes[1:],
        "strides": strides(code, seed, place).values,
        "num_actions": next((call.arrays[name].shape[-1] for name, at in zip(code.sources, code.at, strict=True) if at == ACTIONS), 1),
        "segments": chosen.segments,
        "blocks": chosen.blocks,
    }


def _constants(call: Call, code: Program, place: Geometry, chosen: Plan, dtype: torch.dtype) -> dict[str, Any]:
    kernels, wiring = _kernels(), call.wiring
    along = strides(code, wiring.seed, place)
    return {
        "PATTERN": along.pattern,
        "ACTION_STRIDES": along.actions,
        "AT": code.at,
        "EDGE": code.edge,
        "FLAG": code.flag,
        "BEHIND": code.behind,
        "COEFFICIENTS": kernels.device_function(wiring.recurrence.coefficients),
        "OUTPUTS": kernels.device_function(wiring.recurrence.outputs or kernels.identity),
        "TAPS": code.coefficient_taps,
        "CONSTANTS": code.coefficient_constants,
        "OUTPUT_TAPS": code.output_taps,
        "OUTPUT_CONSTANTS": code.output_constants,
        "BEYOND": wiring.needs_state_beyond,
        "VALIDITY": code.validity,
        "VALID_TAPS": code.valid_taps,
        "VALID_CONSTANTS": code.valid_constants,
        "IS_NEAREST": code.nearest,
        "BACKWARD": code.backward,
        "SEEDED": wiring.seed is not None,
        "SPLIT": chosen.segments > 1,
        "COMPUTE": kernels.COMPUTE[dtype],
        "BLOCK_ROWS": chosen.block_rows,
        "BLOCK_STEPS": chosen.block_steps,
    }
