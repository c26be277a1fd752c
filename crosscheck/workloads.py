"""What the benchmark measures, and what is to be reached there, as data; and the oracle's word on each.

Arguments are made batch-major, `[rows, T, ..]`, and laid out for a backend afterwards. The oracle runs on a sample: rows are
independent, and so are the stretches between two terminated steps, at which every long row is cut (`PIECE`).
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlscan.crosscheck.draw import defaults
from rlscan.spec.adjoint import STATES, incoming, pulled_back_by
from rlscan.spec.bound import bound, distance
from rlscan.spec.calls import Call, check
from rlscan.spec.derivative import gradients
from rlscan.spec.gradient_bound import gradient_bound
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.spec.reference import NumPyArrays, WholeNumPyArrays, loop

Layout = Literal["batch", "time"]

GIVEN = {
    "gae": ("rewards", "values", "terminated", "bootstrap_value"),
    "vtrace": ("log_rhos", "rewards", "values", "terminated", "bootstrap_value"),
    "retrace": ("log_rhos", "rewards", "q_values", "expected_next_q", "terminated"),
    "lambda_returns": ("rewards", "values", "terminated", "bootstrap_value"),
    "discounted_returns": ("rewards", "terminated"),
    "eligibility_traces": ("inputs", "terminated"),
    "episodic_prefix_sum": ("inputs", "terminated"),
    "affine_scan": ("addend", "factor"),
}
"""The arrays of a plain call; gamma, lam and the bars are numbers."""

PIECE = 4099
"""Steps between two certain ends in a long row. Odd, so that ends and the kernels' blocks do not fall together."""
LONG = 2 * PIECE
SAMPLED = 2**18
"""Steps that the oracle computes, at most."""

SECTOR = 32
"""Bytes that a GPU fetches at least."""

RATES = {"terminated": 1 / 256, "truncated": 1 / 64, "valid": 0.9}


@dataclasses.dataclass(frozen=True)
class Target:
    """What a row is to reach.

    Attributes:
        name: by which workloads refer to it.
        says: for people.
        fraction: of copy speed, at least.
        within_us: of the time of the copy, at most.
        ratio: to what `says` names, at most.
    """

    name: str
    says: str
    fraction: float | None = None
    within_us: float | None = None
    ratio: float | None = None

    @property
    def wanted(self) -> str:
        if self.fraction is not None:
            return f">= {self.fraction:.2f} of copy speed"
        if self.within_us is not None:
            return f"<= copy + {self.within_us:g} µs"
        return f"ratio <= {self.ratio:g}"


TARGETS = {
    target.name: target
    for target in (
        Target("large batch", "8M steps, batch-major", fraction=0.90),
        Target("large time", "8M steps, time-major", fraction=0.85),
        Target("medium", "2M steps, both layouts", fraction=0.85),
        Target("short", "T from 8 to 128, 4096 to 32768 rows", within_us=1.5),
        Target("64 x 32768", "64 rows of 32768 steps", fraction=0.70),
        Target("8 x 131072", "8 rows of 131072 steps", fraction=0.65),
        Target("1 x 4194304", "one row of 4194304 steps", fraction=0.60),
        Target("retrace", "Retrace with A = 4 and 18, T from 128 to 131072", fraction=0.85),
        Target("backward", "gradients at 16384 x 512, both layouts", fraction=0.80),
        Target("call", "host time of a warm torch call, gae 4096 x 128, over that of a wrapper that launches through Triton's dispatcher", ratio=0.45),
        Target("twins", "device time of JAX in one jit over that of the Triton twin", ratio=1.10),
        Target("cpu", "time on the CPU over that of the vectorised NumPy loop", ratio=1.0),
    )
}


@dataclasses.dataclass(frozen=True)
class Workload:
    """One operation at one size.

    Attributes:
        options: what is given beside the plain call's arrays, by argument name.
        actions: A, where Q and the policy are given for every action; else 0.
        target: the name of what is to be reached, if anything.
        wanted: the arguments by which gradients are taken, where gradients come in for all results; none: the results are.
    """

    op: str
    rows: int
    steps: int
    layout: Layout = "batch"
    options: tuple[str, ...] = ()
    actions: int = 0
    target: str | None = None
    wanted: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.op, f"{self.rows}x{self.steps}", f"{self.layout}-major", *self.extras])

    @property
    def extras(self) -> list[str]:
        """What is not as in a plain call, in words."""
        actions = [f"A = {self.actions}"] if self.actions else []
        return [*self.options, *actions, *([f"{BACKWARD}{' '.join(self.wanted)}"] if self.wanted else [])]

    @property
    def recurrence(self) -> Recurrence:
        return RECURRENCES[self.op]

    @property
    def time_axis(self) -> int:
        return 1 if self.layout == "batch" else 0

    @property
    def given(self) -> tuple[str, ...]:
        plain = GIVEN[self.op]
        if self.actions:
            plain = (*(name for name in plain if name != "expected_next_q"), "next_q_values", "next_policy")
        return (*plain, *self.options)

    def numbers(self) -> dict[str, Any]:
        """Whatever is no array."""
        return {name: value for name, value in defaults(self.recurrence).items() if name not in self.given} | {"time_axis": self.time_axis}

    def laid_out(self, array: np.ndarray) -> np.ndarray:
        """A batch-major argument as it lies in memory."""
        return array if self.layout == "batch" or array.ndim == 1 else np.ascontiguousarray(np.moveaxis(array, 1, 0))

    def as_batch_major(self, result: np.ndarray) -> np.ndarray:
        return result if self.layout == "batch" or result.ndim == 1 else np.moveaxis(result, 0, 1)

    def came_in(self, made: Mapping[str, Any]) -> list[Any]:
        """Of arguments the gradients that come in, for each result."""
        return [made[incoming(name)] for name in self.recurrence.output_names]


BACKWARD = "gradients by "
"""What a workload that is differentiated says of itself, before the arguments."""

OPS = tuple(GIVEN)
LAYOUTS: tuple[Layout, ...] = ("batch", "time")

LARGE, MEDIUM = ((16384, 512), (4096, 2048)), ((16384, 128), (4096, 512))
LONG_ROWS = ((64, 32768), (8, 131072), (1, 4194304))
OPTIONS = (("valid",), ("gamma",), ("truncated", "final_values"))
CALL = Workload("gae", 4096, 128, target="call")
ON_CPU = tuple(Workload("gae", rows, steps, layout, target="cpu") for rows, steps in ((8, 2048), (1024, 128)) for layout in LAYOUTS)


def _every(ops: Iterable[str], shapes: Iterable[tuple[int, int]], target: str | None, options: tuple[str, ...] = ()) -> list[Workload]:
    return [Workload(op, *shape, layout, options, target=target) for op in ops for shape in shapes for layout in LAYOUTS]


def groups() -> dict[str, tuple[Workload, ...]]:
    """The default workloads on a GPU, those first that matter most."""
    large = [dataclasses.replace(workload, target=f"large {workload.layout}") for workload in _every(OPS, LARGE, None)]
    short = [(rows, steps) for steps in (8, 16, 32, 64, 128) for rows in (4096, 8192, 16384, 32768)]
    long = [Workload(op, *shape, target=f"{shape[0]} x {shape[1]}") for shape in LONG_ROWS for op in ("gae", "vtrace", "eligibility_traces")]
    long += [Workload("gae", *shape, "time", target=f"{shape[0]} x {shape[1]}") for shape in LONG_ROWS[:2]]
    retrace = [
        Workload("retrace", size // steps, steps, actions=actions, target="retrace")
        for actions, size in ((4, 2**21), (18, 2**20))
        for steps in (128, 1024, 8192, 32768, 131072)
    ]
    options = [dataclasses.replace(workload, target=f"large {workload.layout}") for option in OPTIONS for workload in _every(["gae"], LARGE[:1], None, option)]
    backward = [dataclasses.replace(plain, wanted=wanted) for plain in _every(OPS, LARGE[:1], "backward") for wanted in ways_to_differentiate(plain)]
    return {
        "large": tuple(large),
        "medium": tuple(_every(OPS, MEDIUM, "medium")),
        "long": tuple(long),
        "retrace": tuple(retrace),
        "options": tuple(options),
        "short": tuple(_every(["gae"], short, "short")),
        "backward": tuple(backward),
    }


def ways_to_differentiate(workload: Workload) -> list[tuple[str, ...]]:
    """By what results are linear in, and by all floating arrays, where that is more: then the gradients depend on the states too."""
    arguments = {argument.name: argument for argument in workload.recurrence.arguments}
    floating = [name for name in workload.given if not arguments[name].flag]
    linear = [name for name in floating if not arguments[name].logarithm and arguments[name].shape != "parameter"]
    return [tuple(linear), *([tuple(floating)] if floating != linear else [])]


def quick() -> dict[str, tuple[Workload, ...]]:
    """One or two workloads of each group."""
    every = groups()
    few = {
        "large": [workload for workload in every["large"] if workload.op in ("gae", "vtrace") and workload.steps == 512],
        "medium": [workload for workload in every["medium"] if workload.op in ("gae", "affine_scan") and workload.steps == 128],
        "long": [workload for workload in every["long"] if workload.op == "gae" and workload.layout == "batch"],
        "retrace": [workload for workload in every["retrace"] if workload.actions == 4 and workload.steps in (128, 32768)],
        "options": [workload for workload in every["options"] if workload.layout == "batch"],
        "short": [workload for workload in every["short"] if workload.rows == 4096 and workload.steps in (16, 128)],
        "backward": [workload for workload in every["backward"] if workload.op == "gae"],
    }
    return {name: tuple(chosen) for name, chosen in few.items()}


def at_shapes(shapes: Iterable[tuple[int, int]]) -> dict[str, tuple[Workload, ...]]:
    """Plain calls at sizes that the user named, for which nothing is to be reached."""
    return {"chosen": tuple(_every(OPS, shapes, None))}


@functools.cache
def _pool(kind: str) -> np.ndarray:
    """Random numbers, of which all arrays are made. The size is prime, so that no two rows are alike."""
    random = np.random.default_rng(0)
    return random.standard_normal(4194301, np.float32) if kind == "normal" else random.random(4194301, np.float32)


def _drawn(kind: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    pool = _pool(kind)
    return np.resize(np.roll(pool, zlib.crc32(name.encode()) % pool.size), shape)


def arguments(workload: Workload) -> dict[str, np.ndarray]:
    """The arrays, batch-major."""
    frame = (workload.rows, workload.steps)
    made = {}
    for argument in workload.recurrence.arguments:
        name = argument.name
        if name not in workload.given:
            continue
        if argument.flag:
            made[name] = _drawn("uniform", name, frame) < RATES[name]
        elif argument.shape == "parameter":
            made[name] = 1 - _drawn("uniform", name, frame) / 10
        elif argument.shape == "actions":
            # a policy that is almost a distribution is enough for its time
            numbers = _drawn("uniform", name, (*frame, workload.actions))
            made[name] = numbers * np.float32(2 / workload.actions) if name == "next_policy" else numbers
        else:
            numbers = _drawn("normal", name, frame[:1] if argument.shape == "row" else frame)
            made[name] = numbers * np.float32(0.3) if name == "log_rhos" else numbers
    if workload.wanted:
        made |= {name: _drawn("normal", name, frame) for name in map(incoming, workload.recurrence.output_names)}
    if workload.steps > LONG:
        _cut(workload, made)
    return made


def _cut(workload: Workload, made: dict[str, np.ndarray]) -> None:
    """End an episode every `PIECE` steps."""
    if "terminated" in made:
        made["terminated"][:, PIECE - 1 :: PIECE] = True
    else:
        # the first step of a stretch, which a forward recurrence enters through its factor
        made["factor"][:, PIECE::PIECE] = 0.0
    if "valid" in made:
        made["valid"][:, PIECE - 1 :: PIECE] = True


@dataclasses.dataclass(frozen=True)
class Sample:
    """Stretches of one length in some rows, each a problem of its own."""

    rows: np.ndarray
    starts: np.ndarray
    length: int

    def of(self, array: np.ndarray) -> np.ndarray:
        """`[stretch, step, ..]` of a batch-major array, or the rows of one without time."""
        return array[self.rows] if array.ndim == 1 else array[self.rows[:, None], self.starts[:, None] + np.arange(self.length)]

    def __len__(self) -> int:
        return len(self.rows) * self.length


def samples(workload: Workload) -> tuple[Sample, ...]:
    """What the oracle computes: evenly spaced whole rows, or of long rows evenly spaced stretches, and those at the window's end."""
    if workload.steps <= LONG:
        # a derivative takes the oracle longer
        rows = _spread(workload.rows, SAMPLED // (64 if workload.wanted else 1) // workload.steps)
        return (Sample(rows, np.zeros_like(rows), workload.steps),)
    whole, rest = divmod(workload.steps, PIECE)
    pieces = _spread(workload.rows * whole, SAMPLED // PIECE)
    inside = Sample(pieces // whole, pieces % whole * PIECE, PIECE)
    if not rest:
        return (inside,)
    last = _spread(workload.rows, SAMPLED // rest)
    return inside, Sample(last, np.full_like(last, whole * PIECE), rest)


def _spread(size: int, most: int) -> np.ndarray:
    """Up to `most` of 0 .. size-1, the first and the last among them."""
    return np.unique(np.linspace(0, size - 1, max(1, min(size, most))).round().astype(np.int64))


Limits = list[tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]]
"""For each sample the oracle's results and their bounds."""


def oracle(workload: Workload, made: dict[str, np.ndarray]) -> Limits:
    numbers = workload.numbers() | {"time_axis": 1}
    found = []
    for sample in samples(workload):
        here = {name: sample.of(array) for name, array in made.items()}
        call = check(workload.recurrence, numbers | {name: here[name] for name in workload.given}, NumPyArrays())
        if workload.wanted:
            both = gradients(call, workload.came_in(here)), gradient_bound(call, workload.came_in(here))
            right, limits = (tuple(one[name] for name in workload.wanted) for one in both)
            found.append((right, limits))
            continue
        with np.errstate(all="ignore"):
            found.append((loop(call), bound(call)))
    return found


def worst(workload: Workload, results: Sequence[np.ndarray], limits: Limits) -> float:
    """The largest distance from the oracle in units of the bound; at most 1 where all agree."""
    furthest = 0.0
    for sample, (wanted, most) in zip(samples(workload), limits, strict=True):
        for result, right, limit in zip(results, wanted, most, strict=True):
            furthest = max(furthest, float(distance(sample.of(workload.as_batch_major(result)), right, limit).max(initial=0.0)))
    return furthest


def sampled(workload: Workload) -> float:
    """The fraction of all steps that the oracle computes."""
    return sum(map(len, samples(workload))) / (workload.rows * workload.steps)


def bytes_moved(workload: Workload, made: dict[str, np.ndarray]) -> int:
    """What must be read and written at least: each argument and each result once.

    Of `final_values`, which are read where truncated, the sectors that hold one. Of arguments that are differentiated, what their gradients depend on, and the
    result that tells the states where they depend on these.
    """
    result = 4 * workload.rows * workload.steps
    if workload.wanted:
        read = _differentiated(workload, made)
        return sum(made[name].nbytes for name in workload.wanted) + sum(made[name].nbytes for name in made if name in read) + result * (STATES in read)
    results = result * len(workload.recurrence.output_names)
    return results + sum(_touched(workload, name, made) for name in made)


def _differentiated(workload: Workload, made: dict[str, np.ndarray]) -> set[str]:
    """What the gradients are made of."""
    read: set[str] = set()

    def look(call: Call) -> Any:
        read.update(name for one in call.wiring.reads for name in (one.source, one.edge) if isinstance(name, str))
        # one row of zeros
        return [np.zeros(1 if name in call.recurrence.last_only else (1, workload.steps)) for name in call.recurrence.output_names]

    one = {name: made[name][:1] for name in workload.given}
    call = check(workload.recurrence, workload.numbers() | {"time_axis": 1} | one, NumPyArrays())
    arrived = dict.fromkeys(workload.recurrence.output_names, np.zeros((1, workload.steps)))
    pulled_back_by(look, WholeNumPyArrays(np.float64, call.dtype), call, arrived, workload.wanted, arrived)
    return read


def _touched(workload: Workload, name: str, made: dict[str, np.ndarray]) -> int:
    if name != "final_values":
        return made[name].nbytes
    flags = workload.laid_out(made["truncated"]).reshape(-1)
    in_a_sector = SECTOR // made[name].itemsize
    padded = np.pad(flags, (0, -flags.size % in_a_sector))
    return int(padded.reshape(-1, in_a_sector).any(1).sum()) * SECTOR
