"""The named tuples that functions with two results return, by name: `from rlscan.spec.results import GAE`."""

from __future__ import annotations

from typing import Any

from rlscan.spec.recurrences import RECURRENCES


def __getattr__(name: str) -> Any:
    for recurrence in RECURRENCES.values():
        if recurrence.result == name:
            return recurrence.result_type
    raise AttributeError(f"no recurrence has a result {name!r}")
