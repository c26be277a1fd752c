"""Measures on the GPU at hand what `rlscan.spec.plan.Tuning` decides, one choice after another."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rlscan.spec.plan import MEASURED, Tuning, plan

Problem = tuple[str, int, int]
"""A layout, rows, steps."""

Timer = Callable[[Problem, Tuning], float]

LEAST_GAIN = 0.02
"""By which something else has to be faster to be preferred: less is noise."""

LONG: tuple[Problem, ...] = (("rows", 16384, 512), ("rows", 4096, 2048))
SHORT: tuple[Problem, ...] = (("rows", 16384, 128), ("rows", 32768, 32))
COLUMNS: tuple[Problem, ...] = (("columns", 16384, 512), ("columns", 4096, 2048), ("columns", 4096, 128))
FEW: tuple[Problem, ...] = (("rows", 64, 32768), ("rows", 8, 131072), ("rows", 1, 4194304), ("columns", 64, 32768), ("columns", 8, 131072))

# What decides which problems; in this order, for the first ones decide most.
CHOICES: tuple[tuple[str, tuple[Any, ...], tuple[Problem, ...]], ...] = (
    ("lanes", tuple((first, 128) for first in (32, 64, 128, 256)), LONG),
    ("lanes", tuple((64, second) for second in (32, 64, 128, 256)), SHORT),
    ("positions", ((1, 8), (2, 8), (4, 8), (2, 16), (4, 16), (8, 16)), COLUMNS),
    ("warps", (512, 1024, 2048, 4096), COLUMNS),
    ("narrow", tuple((2048, most) for most in (2048, 8192, 32768)), COLUMNS),
    ("split", (512, 1024, 2048, 4096), FEW),
    ("shortest", (256, 512, 1024, 2048), FEW),
)


def tuned(timer: Timer, choices: Iterable[tuple[str, tuple[Any, ...], tuple[Problem, ...]]] = CHOICES, start: Tuning = MEASURED) -> Tuning:
    """What is fastest, by the geometric mean over the problems that a choice is about."""
    best = start
    for name, values, problems in choices:
        before = getattr(best, name)
        candidates = [best]
        for value in values:
            if isinstance(value, tuple):
                # of a pair one is varied, and the other is what was found before
                varied = [len({other[i] for other in values}) > 1 for i in range(2)]
                value = tuple(mine if vary else theirs for mine, theirs, vary in zip(value, before, varied, strict=True))
            candidates.append(dataclasses.replace(best, **{name: value}))
        taken = [math.exp(sum(math.log(timer(problem, one)) for problem in problems) / len(problems)) for one in dict.fromkeys(candidates)]
        fastest = min(range(len(taken)), key=taken.__getitem__)
        if taken[fastest] < taken[0] * (1 - LEAST_GAIN):
            best = list(dict.fromkeys(candidates))[fastest]
    return best


def gpu_timer() -> Timer:
    """The time of GAE on the current CUDA device by PyTorch, in seconds; a `RuntimeError` where there is none."""
    import torch

    from rlscan.crosscheck.engines import ENGINES
    from rlscan.crosscheck.workloads import Workload, arguments
    from rlscan.spec.calls import check
    from rlscan.spec.program import program
    from rlscan.spec.recurrences import RECURRENCES
    from rlscan.torch_triton.arrays import Tensors
    from rlscan.torch_triton.launch import Prepared

    if not torch.cuda.is_available():
        raise RuntimeError("there is no CUDA device to measure on")
    engine = ENGINES["torch"]("cuda")
    taken: dict[tuple[Problem, Any], float] = {}

    def time(problem: Problem, tuning: Tuning) -> float:
        layout, rows, steps = problem
        axis = -1 if layout == "rows" else 0
        given = {name: torch.from_numpy(array).cuda() for name, array in arguments(Workload("gae", rows, steps)).items()}
        given = {name: array.mT.contiguous() if array.ndim == 2 and axis == 0 else array for name, array in given.items()}
        call = check(RECURRENCES["gae"], {**RECURRENCES["gae"].defaults, **given, "time_axis": axis}, Tensors())
        code = program(call.wiring)
        chosen = plan(layout, rows, steps, code.reads, code.outputs, itemsize=4, flags=code.flags, tuning=tuning)  # type: ignore[arg-type]
        if (problem, chosen) not in taken:
            prepared = Prepared(call, chosen)
            taken[problem, chosen] = engine.device_time(lambda arrays: prepared({**arrays, **call.numbers}), call.arrays).us
        return taken[problem, chosen]

    return time


def write(file: Path, tuning: Tuning, header: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**header, "tuning": dataclasses.asdict(tuning)}, indent=1) + "\n", encoding="utf-8")
