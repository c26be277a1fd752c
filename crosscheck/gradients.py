"""Gradients before the backends: problems of the same scenarios, each with gradients that come in for the results.

The oracle is the loop in float64, differentiated as it runs (`spec.derivative`); the bound is derived (`spec.gradient_bound`). What no rule lets be read has
a gradient of exactly 0, and so a bound of 0, whatever is planted there.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlscan.crosscheck.backends import BACKENDS, Backend, Device
from rlscan.crosscheck.compare import PAIRS, Pair, Place, Tally, worst_of
from rlscan.crosscheck.draw import FORMS, Variant, variants
from rlscan.crosscheck.mutants import Mutant, exchanged
from rlscan.crosscheck.scenarios import LAYOUTS, SCENARIOS, Extent, Problem, covering, drawn
from rlscan.spec.derivative import differentiated, gradients
from rlscan.spec.gradient_bound import gradient_bound
from rlscan.spec.recurrences import Recurrence

RULES = ("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8")
"""Whose problems are differentiated."""


@dataclasses.dataclass(frozen=True, eq=False)
class GradientProblem:
    """The gradients of one call, by all its floating arrays."""

    problem: Problem

    def __str__(self) -> str:
        return f"gradients of {self.problem}"

    @functools.cached_property
    def cotangents(self) -> tuple[np.ndarray, ...]:
        """What comes in for each result. It depends on the name and the shape alone."""
        call = self.problem.call
        return tuple(
            np.random.default_rng(zlib.crc32(name.encode())).normal(size=call.shape).astype(call.dtype) for name in self.problem.recurrence.output_names
        )

    @functools.cached_property
    def oracle(self) -> Mapping[str, np.ndarray]:
        return gradients(self.problem.call, self.cotangents)

    @functools.cached_property
    def limits(self) -> Mapping[str, np.ndarray]:
        return gradient_bound(self.problem.call, self.cotangents)

    def time_axis(self, name: str) -> int | None:
        """Of an argument; None where it has no time, or the same for all of it."""
        call = self.problem.call
        (argument,) = (argument for argument in self.problem.recurrence.arguments if argument.name == name)
        if argument.shape != "parameter":
            return None if argument.shape == "row" else call.time_axis
        # a parameter has the last axes of the frame
        axis = call.time_axis - call.frame_ndim + call.arrays[name].ndim
        return axis if axis >= 0 else None

    def worst_place(self, found: Mapping[str, np.ndarray]) -> Place:
        """Where the gradients are furthest from the oracle; their shapes must be right."""
        found = self.counted(found)
        return worst_of(self.problem, ((name, self.time_axis(name), found[name], self.oracle[name], self.limits[name]) for name in self.oracle))

    def counted(self, found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The gradients, in which 0 by a number that is not finite counts as the oracle's: such a number may be taken for a constant."""
        constant = {name: ~np.isfinite(self.problem.arguments[name]) & (gradient == 0) for name, gradient in found.items()}
        return {name: np.where(constant[name], self.oracle[name].astype(gradient.dtype), gradient) for name, gradient in found.items()}

    def wrong(self, found: Mapping[str, np.ndarray]) -> str | None:
        """What is wrong with gradients, if anything."""
        if misshapen := self.misshapen(found):
            return misshapen
        place = self.worst_place(found)
        return None if place.distance <= 1 else f"{self}: {place.distance:.3g} times the bound; {place}"

    def misshapen(self, found: Mapping[str, np.ndarray]) -> str | None:
        if set(found) != set(self.oracle):
            return f"{self}: gave gradients by {', '.join(found) or 'nothing'}, wanted them by {', '.join(self.oracle)}"
        for name, gradient in found.items():
            argument = self.problem.arguments[name]
            if gradient.shape != argument.shape or gradient.dtype != argument.dtype:
                return f"{self}: that by {name} is {gradient.dtype}{list(gradient.shape)}, wanted {argument.dtype}{list(argument.shape)}"
        return None


@dataclasses.dataclass(frozen=True)
class Differentiated(Extent):
    """Little of everything: JAX compiles for seconds what it differentiates, anew for every variant and shape.

    Attributes:
        most: how many variants of each kind, unless all are wanted.
    """

    most: int | None = 1

    def variants(self, recurrence: Recurrence, *forms: Any) -> tuple[Variant, ...]:
        """The parameters are arrays, for numbers have no gradient."""
        every = variants(recurrence, ("per step",))
        if self.full:
            return covering(every)
        # and some without steps that are none, and with resets
        unmasked = [variant for variant in every if not variant.is_masked]
        with_resets = [variant for variant in unmasked if ("autoreset", "next_step") in variant.options]
        kinds = [kind for kind in (every, unmasked, with_resets) if kind]
        return tuple(dict.fromkeys(chosen for kind in kinds for chosen in _with_every_choice(kind)[: self.most]))


def _with_every_choice(every: Sequence[Variant]) -> tuple[Variant, ...]:
    """As few of the variants as have every argument and every option in one of them, the one with most of them first."""

    def choices(variant: Variant) -> set[str]:
        return {*variant.given, *map(str, variant.options)}

    chosen, missing = [], set().union(*map(choices, every))
    while missing or not chosen:
        chosen.append(max(every, key=lambda variant: len(choices(variant) & missing)))
        missing -= choices(chosen[-1])
    return tuple(chosen)


def _random(recurrence: Recurrence, extent: Extent) -> Iterator[Problem]:
    for number, variant in enumerate(extent.variants(recurrence)):
        yield drawn("random", recurrence, variant, extent, number)
    if extent.full:
        yield from formed(recurrence, extent)


def formed(recurrence: Recurrence, extent: Extent) -> Iterator[Problem]:
    """In every layout, in float64 too, and with parameters that are the same for many steps, whose gradients are sums."""
    every = _with_every_choice(variants(recurrence, ("per step",)))
    for number, (layout, dtype, form) in enumerate(itertools.product(LAYOUTS, ("float32", "float64"), FORMS[1:])):
        variant = dataclasses.replace(every[-1 - number % len(every)], form=form)
        yield drawn("random", recurrence, variant, extent, number, layout, dtype)


def gradient_problems(recurrence: Recurrence, extent: Differentiated, scenario: str) -> Iterator[GradientProblem]:
    """Those of a scenario, also without what is planted: NaN is a constant in what is differentiated, and hides that it is read."""
    problems = _random if scenario == "random" else SCENARIOS[scenario].problems if scenario in RULES else None
    for problem in problems(recurrence, extent) if problems else ():
        yield GradientProblem(problem)
        if problem.clean is not None:
            yield GradientProblem(dataclasses.replace(problem, label=f"nothing planted; {problem.label}", arguments=problem.clean, clean=None))


def compare_gradients(
    recurrences: Iterable[Recurrence],
    backends: Sequence[Backend],
    extent: Extent,
    device: Device = "cpu",
    scenarios: Iterable[str] = tuple(SCENARIOS),
    progress: Callable[[str], None] = lambda done: None,
) -> tuple[list[Tally], list[Pair]]:
    """As `compare.compare` does with results. An operation that has no problem in these scenarios is left out."""
    tallies, pairs = [], []
    scenarios, few = tuple(scenarios), Differentiated(extent.full, extent.seed)
    for recurrence in recurrences:
        progress(f"{recurrence.name}, gradients")
        mine = {backend.name: Tally(recurrence.name, backend.name) for backend in backends}
        of_these = [Pair(recurrence.name, one, other) for one, other in PAIRS if one in mine and other in mine]
        for problem in (problem for name in scenarios for problem in gradient_problems(recurrence, few, name)):
            found = {backend.name: _attempt(problem, backend, device, mine[backend.name]) for backend in backends}
            for pair in of_these:
                one, other = found[pair.first_backend], found[pair.second_backend]
                if one is not None and other is not None:
                    pair.problems += 1
                    for name, limit in problem.limits.items():
                        pair.count(problem, one[name], other[name], limit)
        tallies += [tally for tally in mine.values() if tally.problems]
        pairs += [pair for pair in of_these if pair.problems]
    return tallies, pairs


def _attempt(problem: GradientProblem, backend: Backend, device: Device, tally: Tally) -> dict[str, np.ndarray] | None:
    """The gradients if they have the right form, counted."""
    tally.problems += 1
    try:
        with np.errstate(all="ignore"):
            found = backend.gradients(problem.problem, problem.cotangents, device)
    except Exception as error:  # any failure of a backend is a finding, and the others go on
        tally.fail(f"{problem}: {type(error).__name__}: {error}")
        return None
    if fault := problem.wrong(found):
        tally.fail(fault)
    if problem.misshapen(found):
        return None
    tally.elements += sum(gradient.size for gradient in found.values())
    tally.undecided += sum(int(np.isinf(limit).sum()) for limit in problem.limits.values())
    tally.see(problem.worst_place(found))
    return problem.counted(found)


@functools.cache
def _known_problems(recurrence: Recurrence, extent: Differentiated, scenario: str) -> tuple[GradientProblem, ...]:
    return tuple(gradient_problems(recurrence, extent, scenario))


def gradient_rejection(mutant: Mutant, extent: Differentiated, backend: Backend = BACKENDS["numpy"], device: Device = "cpu") -> str | None:
    """What is said of the first problem in which the gradients of a mutant are wrong; None if they never are."""
    rule = mutant.mutation.rule
    for name in sorted(("random", *RULES), key=lambda name: name != rule):
        for problem in _known_problems(mutant.original, extent, name):
            # before the coefficients are made faulty, for the oracle uses them too
            assert len(problem.limits) == len(problem.oracle)
            faulty = dataclasses.replace(problem.problem, arguments=mutant.arguments(problem.problem.arguments))
            with exchanged(mutant.mutation.around):
                found = backend.gradients(faulty, problem.cotangents, device, mutant.recurrence)
            # what the faulty caller leaves out has no influence
            nothing = {name: np.zeros_like(problem.problem.arguments[name]) for name in differentiated(problem.problem.call)}
            if fault := problem.wrong(nothing | found):
                return fault
    return None
