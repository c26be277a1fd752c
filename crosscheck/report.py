"""What a run found, as tables on a terminal and as a page."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rlscan.crosscheck.compare import Pair, Report, Tally
from rlscan.spec.rules import RULES

if TYPE_CHECKING:
    from rich.table import Table

BACKEND_COLUMNS = ("operation", "backend", "problems", "elements", "no promise", "worst / bound", "where", "result", "oracle", "failed")
PAIR_COLUMNS = ("operation", "backends", "problems", "elements", "worst / bound", "differing bits", "ulps", "first difference")

UNITS = (
    "`worst / bound` is the largest distance in units of the derived error bound. Where all is right it is at most 1 from the float64 oracle, and at most 2 "
    "between two backends. `no promise` counts elements that may overflow."
)

OF_GRADIENTS = (
    "Gradients are those of sums of results with random weights, by each floating argument; `where` names the argument. Their oracle is the loop, "
    "differentiated in float64. No two backends promise equal bits of them."
)


def header(device: str, backends: Iterable[str], scenarios: Iterable[str], full: bool, seed: int, date: str) -> dict[str, Any]:
    """Where and with what a run was made."""
    return {
        "date": date,
        "device": device_name(device),
        "backends": list(backends),
        "scenarios": list(scenarios),
        "extent": "full" if full else "quick",
        "seed": seed,
        "versions": versions(),
    }


def versions(packages: Iterable[str] = ("rlscan", "numpy", "torch", "triton", "jax", "gymnasium")) -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def device_name(device: str) -> str:
    """The device in words, from whichever framework has been imported already."""
    if device == "cuda":
        if "torch" in sys.modules:
            return str(sys.modules["torch"].cuda.get_device_name())
        if "jax" in sys.modules:
            return str(sys.modules["jax"].devices("cuda")[0].device_kind)
    return f"{device} ({platform.processor() or platform.machine()})"


def backend_row(tally: Tally) -> tuple[str, ...]:
    counts = (tally.op, tally.backend, str(tally.problems), str(tally.elements), str(tally.undecided))
    place = tally.worst
    if place is None:
        return (*counts, "-", "-", "-", "-", str(tally.failed))
    return (*counts, f"{place.distance:.3f}", place.where, f"{place.result:.9g}", f"{place.oracle:.9g}", str(tally.failed))


def pair_row(pair: Pair) -> tuple[str, ...]:
    counts = (pair.op, f"{pair.first_backend}, {pair.second_backend}", str(pair.problems), str(pair.elements))
    return (*counts, f"{pair.worst:.3f}", str(pair.differing_bits), f"{pair.ulps:.0f}", pair.first or "-")


def title_of(report: Report) -> str:
    """The header in a line or two."""
    made = report.header
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items())
    return f"{made['device']}; {versions}; {made['extent']} extent, seed {made['seed']}, {made['date']}"


def verdict(report: Report) -> str:
    if report.agrees:
        return "All agree."
    failed = sum(tally.failed for tally in (*report.tallies, *report.gradients))
    bits = sum(pair.differing_bits for pair in report.pairs if pair.must_be_equal)
    met_nothing = ", ".join(dict.fromkeys(tally.op for tally in report.tallies if not tally.problems))
    nothing = f"Nothing was compared for {met_nothing}: the chosen scenarios have no problem for it, in this extent and on this device."
    if not report.tallies and not report.gradients:
        return "Nothing was compared."
    if not failed and not bits:
        return nothing
    return f"{failed} problems failed; {bits} elements differ between the twins." + (f" {nothing}" if met_nothing else "")


def units(report: Report) -> str:
    return f"{UNITS} {OF_GRADIENTS}" if report.gradients else UNITS


def tables(report: Report) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]], list[bool]]]:
    """Those that have rows: the title, the columns, the rows, and which of these are faulty."""
    for tallies, pairs, of in ((report.tallies, report.pairs, "Backends"), (report.gradients, report.gradient_pairs, "Gradients of backends")):
        if tallies:
            yield f"{of} and the float64 oracle", BACKEND_COLUMNS, list(map(backend_row, tallies)), [bool(tally.failed) for tally in tallies]
        if pairs:
            faults = [pair.must_be_equal and bool(pair.differing_bits) for pair in pairs]
            yield f"{of} and each other", PAIR_COLUMNS, list(map(pair_row, pairs)), faults


def show(report: Report) -> None:
    """Print the tables."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(title_of(report), highlight=False)
    for title, columns, rows, faults in tables(report):
        console.print(table(title, columns, rows, faults))
    console.print(units(report).replace("`", ""), highlight=False)
    for tally in (*report.tallies, *report.gradients):
        for failure in tally.failures:
            console.print(tally.backend, style="red", end=" ")
            console.print(failure, highlight=False, markup=False, soft_wrap=True)
    console.print(verdict(report), style="green" if report.agrees else "red")


def table(title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]], faulty: Iterable[bool]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for column in columns:
        words = column in ("operation", "backend", "backends", "where", "first difference")
        table.add_column(column, justify="left" if words else "right", overflow="fold")
    for row, is_faulty in zip(rows, faulty, strict=True):
        table.add_row(*row, style="red" if is_faulty else None)
    return table


def page(report: Report) -> str:
    """A Markdown page."""
    made = report.header
    lines = [
        f"# Crosscheck on {made['device']}",
        f"{made['date']}, {made['extent']} extent, seed {made['seed']}. {verdict(report)}",
        units(report),
        markdown(("package", "version"), made["versions"].items()),
    ]
    for title, columns, rows, _ in tables(report):
        lines += [f"## {title}", markdown(columns, rows)]
    failures = [f"- {tally.backend}: {failure}" for tally in (*report.tallies, *report.gradients) for failure in tally.failures]
    if failures:
        lines += ["## Failures", "\n".join(failures)]
    rules = [(name, RULES[name].statement) for name in made["scenarios"] if name in RULES]
    if rules:
        lines += ["## Rules", markdown(("rule", "statement"), rules)]
    return "\n\n".join(lines) + "\n"


def markdown(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    columns = list(columns)
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *cells])
