"""From a checked call to launches: outputs, strides, tiles, grid."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from rlscan.spec.calls import Call
from rlscan.spec.geometry import Geometry, geometry
from rlscan.spec.plan import Plan, plan
from rlscan.spec.program import ACTIONS, Program, multiple, program, strides
from rlscan.spec.taps import wire
from rlscan.torch_triton._private import registers, starter
from rlscan.torch_triton.arrays import DTYPES, Outs, is_interpreted, like_of

MOST_REGISTERS = 128
"""Of a thread: with more, a multiprocessor's 65536 are too few for the 512 lanes that it takes to keep its memory busy."""

OVERLAPS_FROM = 90
"""The compute capability from which on a kernel can start while the one before it is at work."""

# A training loop has a handful of shapes, or rows of some hundred lengths; whoever has more pays for preparing them again.
MOST = 256


def by_kernels(call: Call, outs: Outs | None = None, keep: Callable[[Prepared], None] = lambda prepared: None) -> Outs:
    """The outputs of a call, by the kernels; what can be made again is given to `keep`."""
    if call.device.type != "cuda" and not is_interpreted():
        raise ValueError(f"method is 'kernels' and the tensors are on {call.device}: set TRITON_INTERPRET=1 before triton is imported, or pass method=None")
    if any(array.is_neg() for array in call.arrays.values()):
        # what is lazily negated is not what it stores
        call = call.with_arrays({name: array.resolve_neg() for name, array in call.arrays.items()})
    wide = _with_wide_numbers(call)
    facts = _facts(wide)
    known = _prepared.get(facts)
    prepared = known or Prepared(wide)
    arrays = {name: array.data_ptr() for name, array in wide.arrays.items()} if known else wide.arrays
    outs = prepared({**arrays, **wide.numbers}, outs)
    if prepared.repeats and not known:
        if len(_prepared) >= MOST:
            _prepared.clear()
        _prepared[facts] = prepared
    if wide is call and prepared.repeats:
        keep(prepared)
    return outs


# What was prepared for calls that are not kept by their arguments: those with gradients, and adjoints.
_prepared: dict[tuple[Any, ...], Prepared] = {}


def _facts(call: Call) -> tuple[Any, ...]:
    """All that a preparation depends on."""
    arrays = [(name, x.dtype, x.shape, x.stride(), x.data_ptr() & 15) for name, x in call.arrays.items()]
    return (call.wiring, call.shape, call.frame_ndim, call.time_axis, call.dtype, call.device, call.fades, *arrays)


class Prepared:
    """A call of these shapes, strides and types, to be made again and again with other tensors and numbers.

    After its first run it keeps the compiled kernels and starts them without Triton's dispatcher, which takes longer
    than everything else on the way.
    """

    def __init__(self, call: Call, chosen: Plan | None = None, overlap: bool | None = None) -> None:
        code = program(call.wiring)
        frame = call.arrays[call.recurrence.frame.name]
        self.like = like_of(call)
        self.empty = frame.numel() == 0
        self.device = frame.device
        new = functools.partial(torch.empty_strided, tuple(frame.shape), self.like.stride(), dtype=self.like.dtype, device=frame.device)
        of_rows = functools.partial(torch.empty, call.row_shape, dtype=self.like.dtype, device=frame.device)
        self.news = [of_rows if last_only else new for last_only in code.last_only]
        self.elsewhere = frame.is_cuda and torch.cuda.device_count() > 1
        self.sources, self.edges = code.sources, code.edges
        self.seed = call.wiring.seed
        self.launches: list[Launch] = []
        self.abreast: Callable[[], list[Launch]] | None = None
        self.runners: list[Callable[..., Any]] = []
        self.scratch: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        if self.empty:
            return
        place = geometry(call, {name: (tuple(array.shape), array.stride()) for name, array in call.arrays.items()}, self.like.stride())
        layout = "rows" if place.steps_are_contiguous else "columns"
        chosen = chosen or plan(layout, place.num_rows, place.steps, code.reads, code.outputs, self.like.dtype.itemsize, code.flags)
        if chosen.segments > 1:
            self.scratch["totals"] = (2, place.num_rows, chosen.slots), self.like.dtype
            if code.nearest:
                self.scratch["nearest_ends"] = (place.num_rows, chosen.slots), torch.int32
            if expectations := code.at.count(ACTIONS):
                self.scratch["expectations"] = (expectations, place.num_rows, place.steps), self.like.dtype
        overlap = chosen.segments > 1 and (overlaps(call.device) if overlap is None else overlap)
        self.launches = _launches(call, code, place, chosen, overlap)
        if layout == "columns" and chosen.abreast == 1 and chosen.num_warps > 1:
            self.abreast = functools.partial(_launches, call, code, place, dataclasses.replace(chosen, abreast=2), overlap)

    @property
    def repeats(self) -> bool:
        """Whether it can be made again; not in Triton's interpreter, where nothing is compiled."""
        return self.empty or bool(self.runners)

    def __call__(self, given: Mapping[str, Any], outs: Outs | None = None) -> Outs:
        """The outputs for these tensors and numbers by name; where it repeats, for these addresses and numbers."""
        if outs:
            # whoever saved them for a derivative is to know
            torch.autograd.graph.increment_version([out for out in outs if not out.is_inference()])
        else:
            outs = tuple([new() for new in self.news])
        if not self.empty:
            if self.elsewhere and torch.cuda.current_device() != self.device.index:
                with torch.cuda.device(self.device):
                    self.start(self.passed(given, outs))
            else:
                self.start(self.passed(given, outs))
        return outs

    def passed(self, given: Mapping[str, Any], outs: Outs) -> dict[str, Any]:
        """The arguments that differ from call to call, in the order of the kernels' first parameters."""
        # Once compiled, a kernel takes an address for a tensor, and doesn't ask the driver whose it is.
        to: tuple[Any, ...] = tuple([out.data_ptr() for out in outs]) if self.runners else outs
        first = to[0]
        passed = {
            "arrays": tuple([given[name] for name in self.sources]),
            "edges": tuple([given[name] for name in self.edges]),
            "seed": given[self.seed] if self.seed else first,
            "outs": to,
            "totals": first,
            "nearest_ends": first,
            "expectations": first,
        }
        for name, (shape, dtype) in self.scratch.items():
            passed[name] = torch.empty(shape, dtype=dtype, device=self.device)
        return passed

    def start(self, passed: dict[str, Any]) -> None:
        if self.runners:
            given = passed.values()
            for runner, one in zip(self.runners, self.launches, strict=True):
                runner(*given, *one.rest)
            return
        compiled = [one.started(passed) for one in self.launches]
        if None not in compiled:
            self.launches, compiled = roomier(self.launches, compiled, self.abreast, passed)
            self.runners = [starter(kernel, one.grid, self.device.index) for kernel, one in zip(compiled, self.launches, strict=True)]
        # it holds on to the tensors of this call
        self.abreast = None


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

    def started(self, passed: dict[str, Any]) -> Any:
        """The compiled kernel, once it was started."""
        return self.kernel[self.grid](**passed, **self.sizes, **self.constants, **self.options)


def roomier(launches: list[Launch], compiled: list[Any], other: Callable[[], list[Launch]] | None, passed: dict[str, Any]) -> tuple[list[Launch], list[Any]]:
    """The launches, or where a thread of the last one has more than `MOST_REGISTERS`, others of half as many warps, if they have fewer in all.

    They give the same bits. How many registers a thread has is known when the kernel is compiled, and not before; it is the same for all
    sizes that share a kernel.
    """
    one = registers(compiled[-1])
    if other is None or one is None or one[0] <= MOST_REGISTERS or torch.cuda.is_current_stream_capturing():
        return launches, compiled
    others = other()
    again = [launch.started(passed) for launch in others]
    two = registers(again[-1])
    return (others, again) if two is not None and two[0] < 2 * one[0] and two[1] <= one[1] else (launches, compiled)


def _launches(call: Call, code: Program, place: Geometry, chosen: Plan, overlap: bool) -> list[Launch]:
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
        "ONE_GROUP": num_actions == math.gcd(num_actions, 4),
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
        "LAST_ONLY": code.last_only,
        "IS_NEAREST": code.nearest,
        "BACKWARD": code.backward,
        "SEEDED": call.wiring.seed is not None,
        "FADING": call.fades,
        "COMPUTE": kernels.COMPUTE[DTYPES[call.dtype]],
        "CONTIGUOUS": chosen.layout == "rows",
        "BLOCK_ROWS": chosen.rows,
        "POSITIONS": chosen.positions,
        "STEPS": chosen.steps,
        "WHOLE": chosen.whole(place.steps),
        "ALL_ROWS": place.num_rows % chosen.rows == 0,
        "SPLIT": chosen.segments > 1,
        "AHEAD": chosen.ahead,
        "TURN": chosen.turn,
        "BAND": chosen.band,
        "REREAD": chosen.reread,
        "OVERLAP": overlap,
    }
    # contraction would round differently from JAX's pipeline, which never contracts
    options = {"num_warps": chosen.num_warps, "num_stages": 1, "enable_fp_fusion": False}
    grid = (-(-place.num_rows // chosen.rows), chosen.segments)
    early = {**options, "launch_pdl": True} if overlap else options
    return [Launch(kernels.scan_kernel, grid, sizes, {"PASS": name, **constants}, early if number else options) for number, name in enumerate(passes)]


def overlaps(device: torch.device) -> bool:
    """Whether a kernel can start while the one before it is at work (CUDA's programmatic dependent launch)."""
    if device.type != "cuda" or torch.version.cuda is None or is_interpreted():
        return False
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor >= OVERLAPS_FROM


def _with_wide_numbers(call: Call) -> Call:
    """Python numbers as 0-d tensors where 64 bits are computed: Triton passes a Python number in 32."""
    if call.dtype != "float64" or not call.numbers:
        return call
    arrays = dict(call.arrays)
    for name, number in call.numbers.items():
        arrays[name] = torch.full((), number, dtype=torch.float64, device=call.device)
    return dataclasses.replace(call, wiring=wire(call.recurrence, call.wiring.given), arrays=arrays, numbers={})
