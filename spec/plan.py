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


# Programs wanted before rows are split: about eight for each of an H200's 132 multiprocessors (H200, 2026-11-29).
WANTED_PROGRAMS = 1024
# A segment is at least this long: shorter ones cost more in reading each other's totals than they gain.
SHORTEST_SEGMENT = 1024


@functools.cache
def plan(layout: Literal["rows", "columns"], num_rows: int, steps: int, wide: bool) -> Plan:
    """The plan for `num_rows` rows of `steps` steps; `wide` where 64-bit numbers are computed."""
    if layout == "rows":
        block_steps = min(128, max(16, power_of_two(steps)))
        # one warp: scans across warps are added up in an order that differs from compiler to compiler
        block_rows, num_warps = max(1, min(512 // block_steps, power_of_two(-(-num_rows // (8 * WANTED_PROGRAMS))))), 1
    else:
        block_steps = min(8 if wide else 16, power_of_two(steps))
        block_rows, num_warps = (128, 4) if num_rows >= 128 * WANTED_PROGRAMS else (32, 1)
    programs = -(-num_rows // block_rows)
    blocks = -(-steps // block_steps)
    segments = max(1, min(WANTED_PROGRAMS // programs, steps // SHORTEST_SEGMENT))
    per_segment = -(-blocks // segments)
    return Plan(layout, block_rows, block_steps, num_warps, -(-blocks // per_segment), per_segment)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n, at least 1."""
    return 1 << max(0, n - 1).bit_length()
