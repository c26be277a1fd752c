"""How a problem is cut into programs. Both backends read the same plan, so that they add up in the same order."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Plan:
    """Tiles of one launch.

    Attributes:
        layout: `rows`: neighbours in memory are neighbours in time, a program scans tiles of rows x steps;
            `columns`: neighbours in memory are different rows, a program walks through time with a row in each lane.
        block_rows: rows (lanes) of a program.
        block_steps: steps of a tile, or steps loaded before the first is used.
        num_warps: of a program.
        segments: programs that share a row, each with an equal run of blocks.
        blocks: of `block_steps` in a segment.
    """

    layout: Literal["rows", "columns"]
    block_rows: int
    block_steps: int
    num_warps: int
    segments: int
    blocks: int


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Measured choices for one layout.

    Attributes:
        steps: the most steps of a block.
        lanes: elements of a tile, or rows side by side.
        programs: that are wanted; rows are split until there are so many.
        shortest: steps of a segment; shorter ones cost more in reading each other's totals than they gain.
        segments: the most that share a row, for each reads the totals of those before it one by one.
    """

    steps: int
    lanes: int
    programs: int
    shortest: int
    segments: int


# NVIDIA H200, 2026-11-29, float32 GAE at 4096 x 128 to 8 x 131072 (and V-trace for `steps` of columns: 16 fit GAE as well).
TUNING = {
    "rows": Tuning(steps=128, lanes=128, programs=4096, shortest=512, segments=128),
    "columns": Tuning(steps=8, lanes=32, programs=2048, shortest=32, segments=64),
}


@functools.cache
def plan(layout: Literal["rows", "columns"], num_rows: int, steps: int) -> Plan:
    """The plan for `num_rows` rows of `steps` steps."""
    best = TUNING[layout]
    block_steps = min(best.steps, max(16 if layout == "rows" else 1, power_of_two(steps)))
    block_rows = max(1, min(best.lanes // block_steps, power_of_two(num_rows))) if layout == "rows" else best.lanes
    blocks = -(-steps // block_steps)
    segments = max(1, min(best.programs // -(-num_rows // block_rows), steps // best.shortest, best.segments))
    per_segment = -(-blocks // segments)
    # one warp: scans across warps are added up in an order that differs from compiler to compiler
    return Plan(layout, block_rows, block_steps, 1, -(-blocks // per_segment), per_segment)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n, at least 1."""
    return 1 << max(0, n - 1).bit_length()
