"""What was measured on a device before, to notice when it becomes slower: `pytest -m perf`."""

from __future__ import annotations

import json
from pathlib import Path

from rlscan.crosscheck.bench import RLSCAN, Entry, Found
from rlscan.crosscheck.workloads import Workload, quick

STORED = Path(__file__).parent / "data" / "ratios.json"
"""Fractions of copy speed by device and row."""

LOST = 0.1
"""Of a stored fraction, that counts as slower. A choice: it is to be more than what two runs on an idle GPU differ by."""


def load(path: Path = STORED) -> dict[str, dict[str, float]]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(stored, dict) or not all(isinstance(own, dict) for own in stored.values()):
        raise ValueError("has no fractions by device and row")
    return stored


def store(found: Found, path: Path = STORED) -> None:
    """Put the fractions of a run beside those that are there."""
    stored = load(path)
    mine = stored.setdefault(found.header["device"], {})
    mine |= {row.key: round(row.fraction, 3) for row in found.rows if row.implementation == RLSCAN and row.device != "cpu" and row.fraction}
    path.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def entries(frameworks: tuple[str, ...]) -> list[Entry]:
    """What `pytest -m perf` measures."""
    chosen: list[Workload] = [workload for workloads in quick().values() for workload in workloads]
    return [Entry("perf", workload, framework, "cuda") for workload in chosen for framework in frameworks]


def slower(key: str, fraction: float | None, stored: dict[str, float]) -> str | None:
    """What is wrong with a fraction, if anything."""
    if fraction is None:
        return f"{key}: was not timed"
    if fraction < (1 - LOST) * stored[key]:
        return f"{key}: {fraction:.2f} of copy speed, where {stored[key]:.2f} was measured before"
    return None
