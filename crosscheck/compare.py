"""Runs the problems on the backends, and counts what agrees with the oracle and with each other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rlscan.crosscheck.backends import Backend, Device
from rlscan.crosscheck.scenarios import SCENARIOS, Extent, Problem
from rlscan.spec.bound import distance
from rlscan.spec.recurrences import Recurrence

TWINS = ("triton", "pallas")
PAIRS = (("torch", "jax"), TWINS)
"""Which backends are compared with each other."""

MOST_FAILURES = 20
"""Of one operation and backend, that are described; all are counted."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a result, or a gradient, is furthest from the oracle, in units of the bound.

    Attributes:
        output: its name, or that of the argument that the gradient is taken by.
        t: -1 where there is no time.
    """

    distance: float
    scenario: str
    label: str
    output: str
    row: tuple[int, ...]
    t: int
    result: float
    oracle: float
    bound: float

    @property
    def where(self) -> str:
        return f"{self.scenario}: {self.output}, row {', '.join(map(str, self.row)) or '-'}, t {'-' if self.t < 0 else self.t}"

    def __str__(self) -> str:
        return f"{self.where}: {self.result!r}, oracle {self.oracle!r}"


@dataclasses.dataclass
class Tally:
    """What one backend did with one operation.

    Attributes:
        problems, elements: how many were compared.
        undecided: elements about which nothing is promised.
        worst: the place with the largest distance; at most 1 where all is right.
        failures: descriptions of the first problems that failed.
        failed: how many did.
    """

    op: str
    backend: str
    problems: int = 0
    elements: int = 0
    undecided: int = 0
    worst: Place | None = None
    failed: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)

    @property
    def about(self) -> tuple[str, ...]:
        return self.op, self.backend

    def fail(self, what: str) -> None:
        self.failed += 1
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(what)

    def add(self, other: Tally) -> None:
        """Count what another run of the same operation and backend found."""
        self.problems += other.problems
        self.elements += other.elements
        self.undecided += other.undecided
        self.failed += other.failed
        self.failures = [*self.failures, *other.failures][:MOST_FAILURES]
        if other.worst is not None:
            self.see(other.worst)

    def see(self, place: Place) -> None:
        if self.worst is None or place.distance > self.worst.distance:
            self.worst = place


@dataclasses.dataclass
class Pair:
    """How far two backends are from each other on one operation.

    Attributes:
        worst: distance in units of the bound.
        differing_bits: elements that are not the same bit for bit.
        ulps: between those, in units of the last place.
        must_be_equal: the twins on one GPU.
        first: the first problem in which they differ.
    """

    op: str
    first_backend: str
    second_backend: str
    problems: int = 0
    elements: int = 0
    worst: float = 0.0
    differing_bits: int = 0
    ulps: float = 0.0
    must_be_equal: bool = False
    first: str | None = None

    @property
    def about(self) -> tuple[str, ...]:
        return self.op, self.first_backend, self.second_backend

    def count(self, problem: object, one: np.ndarray, other: np.ndarray, limit: np.ndarray) -> None:
        """Two arrays of one problem."""
        self.elements += one.size
        differ, ulps = differing_bits(one, other)
        if differ and self.first is None:
            self.first = str(problem)
        self.differing_bits += differ
        self.ulps = max(self.ulps, ulps)
        self.worst = max(self.worst, float(distance(one, other, limit).max(initial=0.0)))

    def add(self, other: Pair) -> None:
        """Count what another run of the same operation and backends found."""
        self.problems += other.problems
        self.elements += other.elements
        self.worst = max(self.worst, other.worst)
        self.differing_bits += other.differing_bits
        self.ulps = max(self.ulps, other.ulps)
        self.first = self.first or other.first


@dataclasses.dataclass
class Report:
    """Everything a run found.

    Attributes:
        header: where and with what it was made.
        tallies, pairs: of results.
        gradients, gradient_pairs: of gradients.
    """

    header: dict[str, Any]
    tallies: list[Tally]
    pairs: list[Pair]
    gradients: list[Tally] = dataclasses.field(default_factory=list)
    gradient_pairs: list[Pair] = dataclasses.field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Something was compared for each operation and backend, and nothing disagrees."""
        differ = any(pair.must_be_equal and pair.differing_bits for pair in self.pairs)
        tallies = [*self.tallies, *self.gradients]
        return bool(tallies) and all(tally.problems and not tally.failed for tally in tallies) and not differ

    def as_json(self) -> dict[str, Any]:
        return {"agrees": self.agrees, **dataclasses.asdict(self)}

    @staticmethod
    def together(header: dict[str, Any], parts: Sequence[Report]) -> Report:
        """One report of parts that have operations and backends in common."""
        found = Report(header, [], [])
        for part in parts:
            _merge(found.tallies, part.tallies)
            _merge(found.pairs, part.pairs)
            _merge(found.gradients, part.gradients)
            _merge(found.gradient_pairs, part.gradient_pairs)
        return found

    @staticmethod
    def from_json(data: dict[str, Any]) -> Report:
        def place(found: dict[str, Any] | None) -> Place | None:
            return Place(**{**found, "row": tuple(found["row"])}) if found else None

        # reports of releases that compared no gradients have none
        tallies, gradients = ([Tally(**tally | {"worst": place(tally["worst"])}) for tally in data.get(name, [])] for name in ("tallies", "gradients"))
        pairs, gradient_pairs = ([Pair(**pair) for pair in data.get(name, [])] for name in ("pairs", "gradient_pairs"))
        return Report(data["header"], tallies, pairs, gradients, gradient_pairs)


def _merge(found: list[Any], more: Iterable[Any]) -> None:
    """Tallies or pairs, those of one operation and the same backends together."""
    for one in more:
        same = next((other for other in found if other.about == one.about), None)
        if same is None:
            found.append(dataclasses.replace(one))
        else:
            same.add(one)


def worst_place(problem: Problem, results: Sequence[np.ndarray]) -> Place:
    """The place where `results` are furthest from the oracle; their shapes must be right."""
    axes = [problem.call.time_axis] * len(problem.oracle)
    return worst_of(problem, zip(problem.recurrence.output_names, axes, results, problem.oracle, problem.limits, strict=True))


def worst_of(problem: Problem, compared: Iterable[tuple[str, int | None, np.ndarray, np.ndarray, np.ndarray]]) -> Place:
    """The same of any arrays, each with its name, its time axis, the oracle's and the limits."""
    places = []
    for name, axis, result, oracle, limit in compared:
        gap = distance(result, oracle, limit)
        if not gap.size:
            places.append(Place(0.0, problem.scenario, problem.label, name, (), -1, math.nan, math.nan, math.nan))
            continue
        index = tuple(int(i) for i in np.unravel_index(np.argmax(gap), gap.shape))
        row, t = (index, -1) if axis is None else (index[:axis] + index[axis + 1 :], index[axis])
        numbers = (float(array[index]) for array in (result, oracle, limit))
        places.append(Place(float(gap[index]), problem.scenario, problem.label, name, row, t, *numbers))
    return max(places, key=lambda place: place.distance)


def wrong(problem: Problem, results: Sequence[np.ndarray]) -> str | None:
    """What is wrong with results, if anything: their number, shapes and dtypes, their distance from the oracle, and what is known otherwise."""
    if len(results) != len(problem.oracle):
        return f"{problem}: gave {len(results)} results, wanted {len(problem.oracle)}"
    for name, result, oracle in zip(problem.recurrence.output_names, results, problem.oracle, strict=True):
        if result.shape != oracle.shape or result.dtype != problem.call.dtype:
            return f"{problem}: {name} is {result.dtype}{list(result.shape)}, wanted {problem.call.dtype}{list(oracle.shape)}"
    place = worst_place(problem, results)
    if not place.distance <= 1:
        return f"{problem}: {place.distance:.3g} times the bound; {place}"
    mismatches = problem.known(tuple(results)) if problem.known else []
    return f"{problem}: {'; '.join(mismatches)}" if mismatches else None


def compare(
    recurrences: Iterable[Recurrence],
    backends: Sequence[Backend],
    extent: Extent,
    device: Device = "cpu",
    scenarios: Iterable[str] = tuple(SCENARIOS),
    progress: Callable[[str], None] = lambda done: None,
    header: dict[str, Any] | None = None,
) -> Report:
    """All problems of the scenarios on all backends. `progress` is called before each pair of operation and scenario.

    A `RuntimeError` says why a backend can't run on the device.
    """
    for backend in backends:
        if reason := backend.missing(device):
            raise RuntimeError(f"{backend.name} can't run on {device}: {reason}")
    report = Report(header or {}, [], [])
    scenarios = tuple(scenarios)
    for recurrence in recurrences:
        tallies = {backend.name: Tally(recurrence.name, backend.name) for backend in backends}
        pairs = [
            Pair(recurrence.name, one, other, must_be_equal=device == "cuda" and (one, other) == TWINS)
            for one, other in PAIRS
            if one in tallies and other in tallies
        ]
        for name in scenarios:
            progress(f"{recurrence.name}, {name}")
            for problem in SCENARIOS[name].problems(recurrence, extent):
                if problem.copies > 1 and device == "cpu":
                    continue
                results = {backend.name: _attempt(problem, backend, device, tallies[backend.name]) for backend in backends}
                for pair in pairs:
                    one, other = results[pair.first_backend], results[pair.second_backend]
                    if one is not None and other is not None and _laid_out_alike(problem):
                        pair.problems += 1
                        for mine, theirs, limit in zip(one, other, problem.limits, strict=True):
                            pair.count(problem, mine, theirs, limit)
        report.tallies += tallies.values()
        report.pairs += pairs
    return report


def _laid_out_alike(problem: Problem) -> bool:
    """JAX's arrays have no strides: what PyTorch walks as it lies in memory is another problem there, with another order of additions."""
    return all(x.flags.c_contiguous for x in problem.arguments.values() if isinstance(x, np.ndarray))


def _attempt(problem: Problem, backend: Backend, device: Device, tally: Tally) -> tuple[np.ndarray, ...] | None:
    """The results if they have the right form, counted."""
    tally.problems += 1
    try:
        # Triton's interpreter computes with NumPy, which would warn of every planted infinity.
        with np.errstate(all="ignore"):
            results, same = (backend.run(problem, device), True) if problem.copies == 1 else backend.run_copies(problem, device)
    except Exception as error:  # any failure of a backend is a finding, and the others go on
        tally.fail(f"{problem}: {type(error).__name__}: {error}")
        return None
    if fault := wrong(problem, results):
        tally.fail(fault)
    elif not same:
        tally.fail(f"{problem}: {problem.copies} rows that should be the same are not")
    if [(result.shape, result.dtype) for result in results] != [(oracle.shape, np.dtype(problem.call.dtype)) for oracle in problem.oracle]:
        return None
    tally.elements += problem.copies * sum(result.size for result in results)
    tally.undecided += sum(int(np.isinf(limit).sum()) for limit in problem.limits)
    tally.see(worst_place(problem, results))
    return results


def differing_bits(one: np.ndarray, other: np.ndarray) -> tuple[int, float]:
    """How many elements differ in any bit, all NaN counting as one, and the largest number of floats between two of them."""
    whole = np.dtype(f"i{one.itemsize}")
    differ = (one.view(whole) != other.view(whole)) & ~(np.isnan(one) & np.isnan(other))
    if not differ.any():
        return 0, 0.0
    # As integers, with the negative ones turned around, neighbouring floats are neighbours.
    ordered = [np.where(bits < 0, np.iinfo(whole).min - bits, bits).astype(np.int64) for bits in (one.view(whole)[differ], other.view(whole)[differ])]
    # Unsigned, for two numbers of opposite sign can be further apart than an integer reaches.
    apart = np.maximum(*ordered).view(np.uint64) - np.minimum(*ordered).view(np.uint64)
    return int(differ.sum()), float(apart.max())
