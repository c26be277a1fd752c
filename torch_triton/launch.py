"""From a checked call to launches: outputs, strides, tiles, grid."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from rlscan.spec.calls import Call
from rlscan.spec.geometry import Geometry, geometry
from rlscan.spec.plan import Plan, plan
from rlscan.spec.program import NUMBER, Program, program
from rlscan.spec.taps import wire
from rlscan.torch_triton.arrays import DTYPES


def launch(call: Call) -> tuple[torch.Tensor, ...]:
    """The outputs of a call, by the kernels."""
    call = _with_wide_numbers(call)
    dtype = DTYPES[call.dtype]
    frame = call.arrays[call.recurrence.frame.name]
    outs = tuple(torch.empty_like(frame, dtype=dtype, memory_format=torch.preserve_format) for _ in call.recurrence.output_names)
    if frame.numel() == 0:
        return outs
    place = geometry(call, {name: (tuple(array.shape), array.stride()) for name, array in call.arrays.items()}, outs[0].stride())
    chosen = plan("rows" if place.steps_are_contiguous else "columns", place.num_rows, place.steps, call.dtype == "float64")
    with torch.cuda.device(frame.device) if frame.is_cuda else contextlib.nullcontext():
        _launch(call, program(call.wiring), place, chosen, outs)
    return outs


def _with_wide_numbers(call: Call) -> Call:
    """Python numbers as 0-d tensors where 64 bits are computed: Triton passes a Python number in 32."""
    if call.dtype != "float64" or not call.numbers:
        return call
    arrays = dict(call.arrays)
    for name, number in call.numbers.items():
        arrays[name] = torch.full((), number, dtype=torch.float64, device=call.device)
    wiring = wire(call.recurrence, call.wiring.given)
    return Call(wiring, arrays, {}, call.shape, call.frame_ndim, call.time_axis, call.dtype, call.device)


def _launch(call: Call, code: Program, place: Geometry, chosen: Plan, outs: tuple[torch.Tensor, ...]) -> None:
    from rlscan.torch_triton import kernels

    recurrence, wiring = call.recurrence, call.wiring
    dtype, device = outs[0].dtype, outs[0].device
    edges = tuple(call.arrays[name] for name in code.edges)
    arrays = tuple(call.numbers[name] if at == NUMBER else call.arrays[name] for name, at in zip(code.sources, code.at, strict=True))
    nothing = (0,) * len(place.row_sizes)
    named = (*code.sources, *code.edges, wiring.seed or "", "")
    split = chosen.segments > 1
    totals = torch.empty((place.num_rows, chosen.segments, 2), dtype=dtype, device=device) if split else outs[0]
    nearest_ends = torch.empty((place.num_rows, chosen.segments), dtype=torch.int32, device=device) if split and code.nearest else outs[0]
    actions = [name for name in ("next_q_values", "next_policy") if name in place.action]
    constants: dict[str, Any] = dict(
        AT=code.at, EDGE=code.edge, FLAG=code.flag, BEHIND=code.behind, COEFFICIENTS=kernels.device_function(recurrence.coefficients),
        OUTPUTS=kernels.device_function(recurrence.outputs or kernels.identity), TAPS=code.coefficient_taps, CONSTANTS=code.coefficient_constants,
        OUTPUT_TAPS=code.output_taps, OUTPUT_CONSTANTS=code.output_constants, BEYOND=wiring.needs_state_beyond, VALIDITY=code.validity,
        VALID_TAPS=code.valid_taps, VALID_CONSTANTS=code.valid_constants, IS_NEAREST=code.nearest, BACKWARD=code.backward, SEEDED=wiring.seed is not None,
        SPLIT=split, COMPUTE=kernels.COMPUTE[dtype], BLOCK_ROWS=chosen.block_rows, BLOCK_STEPS=chosen.block_steps, num_warps=chosen.num_warps,
        num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    kernel = kernels.rows_kernel if chosen.layout == "rows" else kernels.columns_kernel
    passes = ("nearest",) * (split and code.nearest) + ("totals",) * split + ("results",)
    for name in passes:
        kernel[(-(-place.num_rows // chosen.block_rows), chosen.segments)](
            arrays, edges, call.arrays[wiring.seed] if wiring.seed else outs[0], outs, totals, nearest_ends, place.num_rows, place.steps, place.row_sizes,
            tuple(place.rows.get(array, nothing) for array in named), tuple(place.time.get(array, 0) for array in (*code.sources, *code.edges, "")),
            tuple(place.action[array] for array in actions), call.arrays[actions[0]].shape[-1] if actions else 1,
            chosen.segments, chosen.blocks, PASS=name, **constants,
        )  # fmt: skip
