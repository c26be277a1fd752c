"""What a benchmark found, as a table on a terminal."""

from __future__ import annotations

import sys

from rlscan.crosscheck.bench import Found, Row, reached

COLUMNS = ("group", "implementation", "framework", "operation", "layout", "rows x T", "options", "µs", "10-90 %", "copy µs", "of copy speed", "reached")


def cells(row: Row) -> tuple[str, ...]:
    framework = row.framework if row.device != "cpu" else f"{row.framework}, CPU"
    what = (row.group, row.implementation, framework, row.op, row.layout, f"{row.rows} x {row.steps}", row.options or "-")
    if row.us is None:
        return (*what, "-", "-", "-", row.failure or "-", mark(reached(row)))
    return (*what, number(row.us), f"{number(row.low)}-{number(row.high)}", number(row.copy_us), f"{row.fraction or 0:.2f}", mark(reached(row)))


def number(x: float | None) -> str:
    """Three digits."""
    if x is None:
        return "-"
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def mark(is_reached: bool | None) -> str:
    return {None: "-", True: "yes", False: "NO"}[is_reached]


def show(found: Found) -> None:
    """Print the tables."""
    from rich.console import Console

    from rlscan.crosscheck.report import table

    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table("Device time", COLUMNS, map(cells, found.rows), [reached(row) is False for row in found.rows]))
    for name, reason in found.skipped.items():
        console.print(f"{name} was skipped: {reason}", highlight=False, markup=False)
