"""A wired call as the flat tuples of numbers that a kernel is specialised for, the same for both backends."""

from __future__ import annotations

import dataclasses
import functools
import math

from rlscan.spec.arguments import ARGUMENTS
from rlscan.spec.geometry import Geometry
from rlscan.spec.taps import STATE, STATE_BEYOND, Constant, Outside, Read, Wiring

# How a read finds its place.
STEP, NEAREST, FOLLOWING, PRECEDING, ROW, NUMBER, ACTIONS = range(7)
AT = {"step": STEP, "next": NEAREST, "previous": NEAREST, "following": FOLLOWING, "preceding": PRECEDING, "row": ROW, "number": NUMBER, "actions": ACTIONS}

# What a parameter is that is no read.
OUTSIDE, STATE_TAP, STATE_BEYOND_TAP, FLAG_CONSTANT, NUMBER_CONSTANT, LAST = range(-1, -7, -1)

# Strides that are known when a kernel is compiled.
STRIDE_0, STRIDE_1 = -1, -2

ALL_VALID, VALID_GIVEN, VALID_DERIVED = range(3)


@dataclasses.dataclass(frozen=True)
class Program:
    """What is known before a launch.

    Attributes:
        at: for each read, one of the places above.
        edge: for each read, the number of the edge that holds outside the window, or -1 for 0.
        flag: for each read, whether it is a flag.
        behind: for each read that trails the scan (its place was passed by the scan before t), the read of the same array
            at t, so that a scan that walks step by step need not load it again; else -1.
        edges: arguments without time that edges are read from; for a read over actions, its weights.
        coefficient_taps, output_taps: for each parameter, its read or one of the codes above.
        coefficient_constants, output_constants: the value of each parameter that is a constant.
        valid_taps: the reads that say what is valid.
        last_only: for each output, whether a row has one, that of the scan's last step.
    """

    sources: tuple[str, ...]
    at: tuple[int, ...]
    edge: tuple[int, ...]
    flag: tuple[bool, ...]
    behind: tuple[int, ...]
    edges: tuple[str, ...]
    coefficient_taps: tuple[int, ...]
    coefficient_constants: tuple[float, ...]
    output_taps: tuple[int, ...]
    output_constants: tuple[float, ...]
    validity: int
    valid_taps: tuple[int, ...]
    valid_constants: tuple[float, ...]
    nearest: bool
    backward: bool
    last_only: tuple[bool, ...]

    @property
    def loaded(self) -> list[int]:
        """The reads that are loaded at each step: what trails the scan is in registers."""
        return [i for i, (at, behind) in enumerate(zip(self.at, self.behind, strict=True)) if at not in (ROW, NUMBER) and behind < 0]

    @property
    def trails(self) -> list[int]:
        """The reads that trail the scan: each has at a step what another has at the step before."""
        return [i for i, (at, behind) in enumerate(zip(self.at, self.behind, strict=True)) if behind >= 0 and at != NEAREST]

    @property
    def reads(self) -> int:
        """How many elements are loaded at each step: an expectation is made of two."""
        return len(self.loaded) + sum(self.at[i] == ACTIONS for i in self.loaded)

    @property
    def flags(self) -> int:
        """How many of these are flags."""
        return sum(self.flag[i] for i in self.loaded)

    @property
    def outputs(self) -> int:
        return len(self.last_only)


@functools.cache
def program(wiring: Wiring) -> Program:
    arguments = {argument.name: argument for argument in wiring.recurrence.arguments}
    backward = wiring.recurrence.direction == "backward"
    trailing = ("next", "previous", "following" if backward else "preceding")
    reads = tuple(dict.fromkeys((*wiring.reads, *(Read(read.source) for read in wiring.reads if read.at in trailing))))
    edges = tuple(dict.fromkeys(read.edge for read in reads if isinstance(read.edge, str)))
    for read in reads:
        if not isinstance(read.edge, str) and read.edge:
            raise TypeError(f"{wiring.recurrence.name}: {read} has an edge that kernels do not know; wanted an argument, 0 or False")

    def code(tap: int | Constant | Outside | str) -> int:
        if isinstance(tap, Constant):
            return FLAG_CONSTANT if isinstance(tap.value, bool) else NUMBER_CONSTANT
        if isinstance(tap, Outside):
            # what lies outside is behind the scan's first step, or beyond its last
            return OUTSIDE if (tap.at == "next") == backward else LAST
        return {STATE: STATE_TAP, STATE_BEYOND: STATE_BEYOND_TAP}[tap] if isinstance(tap, str) else tap

    def constants(taps: tuple[int | Constant | Outside | str, ...]) -> tuple[float, ...]:
        return tuple(float(tap.value) if isinstance(tap, Constant) else 0.0 for tap in taps)

    output_taps = wiring.outputs if wiring.recurrence.outputs else (STATE,)
    return Program(
        sources=tuple(read.source for read in reads),
        at=tuple(AT[read.at] for read in reads),
        edge=tuple(edges.index(read.edge) if isinstance(read.edge, str) else -1 for read in reads),
        flag=tuple(arguments.get(read.source, ARGUMENTS.get(read.source)).flag for read in reads),  # type: ignore[union-attr]
        behind=tuple(reads.index(Read(read.source)) if read.at in trailing else -1 for read in reads),
        edges=edges,
        coefficient_taps=tuple(map(code, wiring.coefficients)),
        coefficient_constants=constants(wiring.coefficients),
        output_taps=tuple(map(code, output_taps)),
        output_constants=constants(output_taps),
        validity={"all": ALL_VALID, "given": VALID_GIVEN, "derived": VALID_DERIVED}[wiring.validity],
        valid_taps=tuple(map(code, wiring.valid_taps)),
        valid_constants=constants(wiring.valid_taps),
        nearest=wiring.neighbour != "none",
        backward=backward,
        last_only=tuple(name in wiring.recurrence.last_only for name in wiring.recurrence.output_names),
    )


@dataclasses.dataclass(frozen=True)
class Strides:
    """The strides of a launch, each different one once, as `quotients * multiples`.

    What a kernel is compiled for is which strides are equal, and what powers of two divide them: that decides how many
    elements a thread loads at once, and so the order in which a tile is added up.

    Attributes:
        quotients, multiples: of the strides that are neither 0 nor 1.
        pattern: for each read, each edge, the seed and the output, a stride along each row axis and one along time; the
            number of a stride, or one of the codes above.
        actions: strides along the action axis, of the values and of the policy.
    """

    quotients: tuple[int, ...]
    multiples: tuple[int, ...]
    pattern: tuple[int, ...]
    actions: tuple[int, int]


def multiple(n: int) -> int:
    """The largest power of two up to 16 that divides n."""
    return math.gcd(n, 16)


def strides(code: Program, seed: str | None, place: Geometry) -> Strides:
    values: dict[int, int] = {}

    def number(stride: int) -> int:
        return {0: STRIDE_0, 1: STRIDE_1}[stride] if stride in (0, 1) else values.setdefault(stride, len(values))

    nothing = (0,) * len(place.row_sizes)
    pattern: list[int] = []
    for name in (*code.sources, *code.edges, seed, ""):
        along = (*place.rows.get(name, nothing), place.time.get(name, 0)) if name is not None else (*nothing, 0)
        pattern += map(number, along)
    weighted = next(((code.sources[i], code.edges[code.edge[i]]) for i, at in enumerate(code.at) if at == ACTIONS), None)
    actions = (number(place.action[weighted[0]]), number(place.action[weighted[1]])) if weighted else (STRIDE_0, STRIDE_0)
    multiples = tuple(map(multiple, values))
    return Strides(tuple(value // own for value, own in zip(values, multiples, strict=True)), multiples, tuple(pattern), actions)
