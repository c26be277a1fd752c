"""How a problem is cut into programs. Both backends read the same plan, so that they add up in the same order."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import Any, Literal

WARP = 32

AT_ONCE = 4
"""Neighbouring steps that are loaded at once: four of four bytes are the widest load."""

BEFORE_AT_ONCE = 8
"""Segments of which a position reads the totals before any of them is used."""

PROGRAMS = 128
"""About as many as large GPUs have multiprocessors."""

MOST_STEPS = 2**31 - 2**21
"""Of a row: kernels count them in 32 bits, up to the end of the last segment's last tile."""


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n, at least 1."""
    return 1 << max(0, n - 1).bit_length()


@dataclasses.dataclass(frozen=True)
class Plan:
    """Tiles of one launch: rows x positions x steps. A thread has the steps of one position, which are neighbours in time.

    Attributes:
        layout: `rows`: neighbours in memory are neighbours in time, and so are neighbouring lanes; `columns`: both are different rows.
        rows: of a program.
        positions: of a row in a tile.
        steps: of a position.
        segments: programs that share a row, each with an equal run of tiles.
        blocks: tiles of a segment, one after another.
        abreast: times fewer warps than lanes need, where neighbours in memory are rows: a thread then has so many of them, which Triton loads at once where
            strides allow.
        band: rows whose lanes are neighbours, before the next position: 1 where steps are contiguous; where rows are, the more there are the fewer pieces of
            memory a warp reads, and where a warp has all positions of its band, nothing is exchanged between warps.
        turn: tiles of one turn of the loop over tiles; it divides their number. Of two, what was loaded ahead stays in its registers until it is scanned. From
            one turn to the next it is moved to others, and to be moved it is waited for.
        reread: whether what trails the scan is read again by each position, at the step before its first, and not handed on by the position before.
    """

    layout: Literal["rows", "columns"]
    rows: int
    positions: int
    steps: int
    segments: int
    blocks: int
    abreast: int = 1
    turn: int = 1
    band: int = 1
    reread: bool = False

    def __post_init__(self) -> None:
        if self.layout == "rows" and self.band > 1:
            raise ValueError(f"rows whose steps are contiguous have a band of 1, and not {self.band}")
        if self.rows % self.band:
            raise ValueError(f"{self.rows} rows are no whole bands of {self.band}")
        if self.blocks % self.turn:
            raise ValueError(f"{self.blocks} tiles are no whole turns of {self.turn}")

    @property
    def ahead(self) -> bool:
        """Whether the next tile is loaded before the one that is scanned is done."""
        return self.blocks > 1

    @property
    def block_steps(self) -> int:
        """Steps of each row in a tile."""
        return self.positions * self.steps

    @property
    def slots(self) -> int:
        """Of a row, for what its segments leave each other: so many that neighbours are loaded at once."""
        return -(-self.segments // AT_ONCE) * AT_ONCE

    def whole(self, steps: int) -> bool:
        """Whether rows of so many steps fill all tiles of all segments, so that no step need be compared with the window's end."""
        return steps == self.segments * self.blocks * self.block_steps

    @property
    def num_warps(self) -> int:
        return max(1, self.rows * self.positions // (WARP * self.abreast))


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Measured choices.

    Attributes:
        lanes: of a program, where steps are contiguous; some of rows that are several tiles, and some of rows that are one.
        warps: of 32 lanes that are wanted where rows are contiguous: positions are added until there are so many.
        positions: the fewest and the most of these, where rows are long enough; `Columns` has more of it.
        reads_of_eight: of a step, up to which a thread has eight steps of contiguous ones, and up to which it has them where programs are few.
        narrow: from so many contiguous rows on there are enough programs that none shares a row, and from so many on enough that threads can have more to do.
        split: rows are split over programs until these have so many warps, of a position of a row each lane.
        shortest: steps of a segment; shorter ones cost more in reading each other's totals than they gain.
        segments: the most that share a row.
    """

    lanes: tuple[int, int]
    warps: int
    positions: tuple[int, int]
    reads_of_eight: tuple[int, int]
    narrow: tuple[int, int]
    split: int
    shortest: int
    segments: int


# NVIDIA H200, 2026-11-30, float32 GAE at 32768 x 8 to 1 x 4194304 and the other recurrences at 16384 x 512 and 4096 x 2048. Other GPUs of compute
# capability 8 and more have warps, registers and bytes in a load alike; what differs, multiprocessors and bandwidth, is what `rlscan-crosscheck tune` is for.
MEASURED = Tuning(lanes=(64, 128), warps=2048, positions=(2, 16), reads_of_eight=(3, 4), narrow=(2048, 8192), split=2048, shortest=512, segments=2048)


MOST = {"lanes": 1024, "positions": 16, "segments": 32768}
"""What programs and a launch can have of these."""


def tuning_file() -> Path:
    """Where `rlscan-crosscheck tune` puts what it measured on this machine: the file that `RLSCAN_TUNING` names, or one in the user's configuration."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(os.environ.get("RLSCAN_TUNING") or Path(home) / "rlscan" / "tuning.json")


def as_tuning(numbers: dict[str, Any]) -> Tuning:
    """What `dataclasses.asdict` undoes; a `TypeError` or a `ValueError` if it is something else."""
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in numbers.items()}
    made = Tuning(**given)
    for field in dataclasses.fields(Tuning):
        one, other = getattr(made, field.name), getattr(MEASURED, field.name)
        (whole, wanted) = (x if isinstance(x, tuple) else (x,) for x in (one, other))
        if isinstance(one, tuple) != isinstance(other, tuple) or len(whole) != len(wanted) or not all(type(x) is int and x > 0 for x in whole):
            raise ValueError(f"{field.name} is {one!r}; wanted something like {other!r}")
        if field.name != "reads_of_eight" and any(power_of_two(x) != x for x in whole):
            raise ValueError(f"{field.name} is {one!r}; wanted powers of two, like {other!r}")
        if field.name in MOST and max(whole) > MOST[field.name]:
            raise ValueError(f"{field.name} is {one!r}; wanted at most {MOST[field.name]}")
    return made


def _in_use() -> Tuning:
    file = tuning_file()
    if not file.is_file():
        return MEASURED
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not isinstance(found.get("tuning"), dict):
            raise ValueError("it has no numbers under 'tuning'")
        return as_tuning(found["tuning"])
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is no tuning of this release; delete it, and run rlscan-crosscheck tune for another: {error}") from None


TUNING = _in_use()


@functools.cache
def plan(
    layout: Literal["rows", "columns"],
    num_rows: int,
    steps: int,
    reads: int,
    outputs: int,
    itemsize: int,
    flags: int = 0,
    exchange: bool = True,
    cached: bool = True,
    tuning: Tuning = TUNING,
) -> Plan:
    """The plan for `num_rows` rows of `steps` steps, with so many reads at each step, and so many outputs, in numbers of `itemsize` bytes; `flags` of the
    reads are of one byte.

    Without `exchange`, it is one in which no position needs to know of another. Without `cached`, there is little cache beside shared memory.
    """
    if steps > MOST_STEPS:
        raise ValueError(f"rows have {steps} steps; wanted at most {MOST_STEPS}, which kernels can count")
    if not exchange:
        each = min(8, power_of_two(steps))
        return Plan("columns", WARP, 1, each, 1, -(-steps // each))
    width: Width = "few" if num_rows < tuning.narrow[0] else "narrow" if num_rows < tuning.narrow[1] else "wide"
    columns = Columns() if layout == "rows" else _columns(reads, outputs, itemsize, width)
    if layout == "rows":
        # the more steps a thread has, the fewer there are to be scanned over lanes; they cost registers, which few programs have to spare
        most_reads = tuning.reads_of_eight[0] if num_rows * WARP >= tuning.split * tuning.lanes[0] else tuning.reads_of_eight[1]
        each = 2 * AT_ONCE if steps >= 2 * WARP * AT_ONCE and reads <= most_reads else AT_ONCE
        positions = min(WARP, power_of_two(-(-steps // each)))
        lanes = tuning.lanes[steps <= positions * each]
        rows = max(WARP, min(lanes, positions * power_of_two(num_rows))) // positions
    else:
        # below that not every multiprocessor has a program
        rows = min(WARP // 2 if width == "narrow" and num_rows < PROGRAMS * WARP else columns.rows, power_of_two(num_rows))
        fewest, most = tuning.positions
        positions = max(fewest, min(int(most * columns.most), power_of_two(tuning.warps * columns.wanted * WARP // num_rows)))
        if num_rows < WARP:
            # where rows are too few for all lanes of a warp, these are more positions
            positions = min(WARP, positions * WARP // rows)
        each = min(columns.steps, power_of_two(-(-steps // 4)))
        positions = min(positions, power_of_two(-(-steps // each)))
    blocks = -(-steps // (positions * each))
    segments = 1
    if layout == "rows" or width == "few":
        warps = -(-num_rows // rows) * rows * positions // WARP
        segments = max(1, min(tuning.split // max(1, warps), steps // tuning.shortest, tuning.segments))
    per_segment = -(-blocks // segments)
    if layout == "rows":
        # two tiles are all that the program has; with three outputs it is slower
        turn = 2 if per_segment == 2 and outputs <= 2 else 1
    else:
        # one empty tile of few costs more than it saves
        turn = 1 if per_segment % columns.turn and per_segment < 8 else columns.turn
    per_segment += -per_segment % turn
    band = 1 if layout == "rows" else rows
    # where lanes of several warps hand something on, each of them waits for all; one more load waits for nothing, and a cache has what it reads
    reread = layout == "columns" and positions > 1
    made = Plan(layout, rows, positions, each, -(-blocks // per_segment), per_segment, columns.abreast, turn, band, reread)
    return made if cached or layout == "rows" else _with_little_cache(made, num_rows, reads, outputs, itemsize, flags, width)


Width = Literal["few", "narrow", "wide"]
"""Of contiguous rows, how many there are."""


@dataclasses.dataclass(frozen=True)
class Columns:
    """Of contiguous rows, what depends on the registers that a thread takes; measured as `MEASURED` is, for no formula says how many they are.

    Attributes:
        wanted, most: times as many positions as `Tuning` has it.
        rows: the most of a program.
        steps, abreast, turn: of the plan.
    """

    wanted: int = 1
    most: float = 1
    rows: int = WARP
    steps: int = 8
    abreast: int = 1
    turn: int = 1


def _columns(reads: int, outputs: int, itemsize: int, width: Width) -> Columns:
    if itemsize > 4:
        return Columns(most=0.5, rows=WARP // 2 if width == "narrow" else WARP)
    if reads > 5:
        return Columns(steps=4)
    few = width == "few"
    if reads <= 2:
        return Columns(rows=WARP // 2) if few else Columns(wanted=2, most=2, abreast=2)
    if outputs > 2:
        return Columns()
    if reads == 3:
        return Columns(rows=WARP // 2 if few else WARP, turn=1 if width == "narrow" and outputs == 2 else 2)
    if reads == 4:
        return {"wide": Columns(), "narrow": Columns(steps=4), "few": Columns(abreast=2)}[width]
    return {"wide": Columns(rows=2 * WARP, abreast=2), "narrow": Columns(steps=4, turn=2), "few": Columns(rows=WARP // 2, steps=4)}[width]


def _with_little_cache(made: Plan, num_rows: int, reads: int, outputs: int, itemsize: int, flags: int, width: Width) -> Plan:
    """The plan for where there is little cache beside shared memory, which adds up in the same order; measured as `Columns` are.

    What a program leaves of a sector is not at hand when its neighbour wants it, so it takes whole sectors. Loads under way are kept in lines of the cache:
    where rows are many, a program either fills these with flags of twice as many rows, or leaves shared memory, and with it all of the cache, alone.
    """
    # more positions there are only with a tuning by which fewer rows are many, and were not measured
    many = width == "wide" and itemsize <= 4 and made.positions <= WARP // 2
    if many and reads > 2:
        if made.blocks <= 2:
            # there are too few tiles to load one while another is waited for: what hides that are more warps than bands have
            return made
        rows = 2 * WARP if reads > 5 else WARP
        # within a warp handing on is cheap, and loads for two outputs are what it has registers to spare for
        return dataclasses.replace(made, rows=rows, abreast=2, turn=1, band=min(rows, 2 * WARP // made.positions), reread=made.reread and outputs == 2)
    if many and not flags:
        return dataclasses.replace(made, abreast=1)
    if made.segments > 1:
        # there are more programs of fewer rows, and two tiles a turn lose more registers than they save waiting
        return dataclasses.replace(made, turn=1)
    rows = 2 * WARP if many else max(made.rows, min(WARP, power_of_two(num_rows)))
    two = flags and reads <= 2 and outputs <= 2 and itemsize <= 4 and made.blocks % 2 == 0
    return dataclasses.replace(made, rows=rows, turn=2 if two else made.turn, band=rows)
