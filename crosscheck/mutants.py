"""Definitions with one rule broken, which the crosscheck must reject: a comparison that nothing fails says nothing.

No recurrence is written again. A mutation puts a faulty helper into the coefficient functions, reads a tap at another
place, or hands over the arguments as a caller who has the rule wrong would. Each applies to every recurrence that uses the helper, the
tap or the argument, and a mutant is a `Recurrence` that any backend runs:

    for mutant in mutants(recurrence):
        print(mutant, rejection(mutant, Extent()))
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as xp

from rlscan.crosscheck.backends import BACKENDS, Backend, Device
from rlscan.crosscheck.compare import wrong
from rlscan.crosscheck.scenarios import SCENARIOS, Extent
from rlscan.spec import coefficients
from rlscan.spec.binding import bind
from rlscan.spec.coefficients import cut, times
from rlscan.spec.recurrences import Recurrence
from rlscan.spec.taps import Constant, Read, Source, parameters

Array = xp.ndarray


def product(factor: Array, x: Array) -> Array:
    return factor * x


def masked(factor: Array, where: Array) -> Array:
    return factor * xp.where(where, 0.0, 1.0)


def only_truncated(terminated: Array, truncated: Array) -> Array:
    return truncated


def only_terminated(terminated: Array, truncated: Array) -> Array:
    return terminated


def bootstrap_of_terminal_states(discount: Array, terminated: Array, successor: Array) -> Array:
    return times(discount, successor)


def bootstrap_without_nan(discount: Array, terminated: Array, successor: Array) -> Array:
    return times(cut(discount, terminated), xp.where(successor == successor, successor, 0.0))


def value_after_reset(next_value: Array, final_value: Array, truncated: Array) -> Array:
    return next_value


def nothing_at_truncation(next_value: Array, final_value: Array, truncated: Array) -> Array:
    return xp.where(truncated, 0.0, next_value)


def mixed_by_product(next_value: Array, final_value: Array, truncated: Array) -> Array:
    return next_value * xp.where(truncated, 0.0, 1.0) + final_value * xp.where(truncated, 1.0, 0.0)


def at_most_without_nan(bar: Array, ratio: Array) -> Array:
    return xp.where(ratio <= bar, ratio, bar)


def not_clipped(bar: Array, ratio: Array) -> Array:
    return ratio


def without_zero_probability(total: Array, probability: Array, action_value: Array) -> Array:
    return total + probability * action_value


def product_step(addend: Array, factor: Array, state: Array) -> Array:
    return addend + factor * state


def cut_where_invalid(addend: Array, factor: Array, valid: Array) -> tuple[Array, Array]:
    return xp.where(valid, addend, 0.0), xp.where(valid, factor, 0.0)


def invalid_steps_add(addend: Array, factor: Array, valid: Array) -> tuple[Array, Array]:
    return addend, factor


def outputs_everywhere(output: Array, valid: Array) -> Array:
    return output


def never_a_reset(previous_terminated: Array, previous_truncated: Array) -> Array:
    return previous_terminated == previous_terminated


def _truncation_wins(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {"terminated": (arguments["terminated"] != 0) & (arguments["truncated"] == 0)}


def _all_valid(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {"valid": xp.ones_like(arguments["valid"])}


def _forward_only(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {"reverse": False}


def _without_initial(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {"initial": None}


@dataclasses.dataclass(frozen=True, eq=False)
class Mutation:
    """One mistake.

    Attributes:
        name: what is done wrong.
        rule: the id of the boundary rule that it breaks, or `formula`.
        helpers: faulty helpers of the coefficient functions, in the place of the right ones.
        taps: other places that parameters are read at.
        around: faulty functions of the scan, which no recurrence can bring along: only the loop can be given others.
        seed: another argument as the state beyond the window.
        arguments: what the caller gets wrong, and the arguments that this takes.
        spares: the recurrences in which it changes no result, and so is no mistake.
    """

    name: str
    rule: str
    helpers: Mapping[Callable, Callable] = dataclasses.field(default_factory=dict)
    taps: Mapping[str, tuple[Source, ...]] = dataclasses.field(default_factory=dict)
    around: Mapping[str, Callable] = dataclasses.field(default_factory=dict)
    seed: str | None = None
    arguments: tuple[Callable[[dict[str, Any]], dict[str, Any]], tuple[str, ...]] | None = None
    spares: tuple[str, ...] = ()


_PREVIOUS_AT_ONCE = {f"previous_{name}": (Read(name), Constant(False)) for name in ("terminated", "truncated")}
_AS_STORED = {
    "next_value": (Read("next_values"), Read("values", "following", edge="bootstrap_value"), Read("bootstrap_value", "row"), Constant(0.0)),
    "next_log_rho": (Read("log_rhos", "following", edge=0.0),),
    "next_q_value": (Read("q_values", "following", edge=0.0),),
    "next_lam": (Read("lam", "following", edge=0.0),),
    "previous_terminated": (Read("terminated", "preceding", edge=False), Constant(False)),
    "previous_truncated": (Read("truncated", "preceding", edge=False), Constant(False)),
    "previous_gamma": (Read("gamma", "preceding", edge=0.0),),
    "previous_lam": (Read("lam", "preceding", edge=0.0),),
}

_FORWARD = ("eligibility_traces", "episodic_prefix_sum")

MUTATIONS = (
    Mutation("the value of a terminal state is read", "B1", {coefficients.bootstrap: bootstrap_of_terminal_states}),
    Mutation("termination does not cut", "B1", {coefficients.ends: only_truncated}),
    Mutation("termination shows one step late", "B1", taps={"terminated": (Read("terminated", "preceding", edge=False), Constant(False))}),
    Mutation("truncation does not cut", "B2", {coefficients.ends: only_terminated}),
    Mutation("truncation is ignored", "B2", taps={"truncated": (Constant(False),)}),
    Mutation("truncation is taken for termination", "B2", {coefficients.successor_value: nothing_at_truncation}),
    Mutation("truncation bootstraps from the reset observation", "B2", {coefficients.successor_value: value_after_reset}),
    Mutation("truncation shows one step late", "B2", taps={"truncated": (Read("truncated", "preceding", edge=False), Constant(False))}),
    # A forward recurrence only asks whether the episode ended.
    Mutation(
        "truncation wins over termination",
        "B3",
        arguments=(_truncation_wins, ("terminated", "truncated")),
        spares=_FORWARD,
    ),
    Mutation("the bootstrap is also carried in from beyond the window", "B4", seed="bootstrap_value", spares=("lambda_returns", "discounted_returns")),
    Mutation("the end of the window goes unnoticed", "B4", taps={"last": (Constant(False),)}),
    Mutation("what flows in is dropped", "B4", arguments=(_without_initial, ("initial",))),
    # A factor of 1 has nothing in it that a product could let through.
    Mutation("masks multiply", "B5", {coefficients.cut: masked}, spares=("episodic_prefix_sum",)),
    Mutation("the two successor values are mixed by products", "B5", {coefficients.successor_value: mixed_by_product}),
    Mutation("a zero factor multiplies", "B6", {coefficients.times: product}),
    Mutation("actions of probability 0 are read", "B6", around={"expectation": without_zero_probability}),
    Mutation("the reset shows at the ending step", "B7", taps=_PREVIOUS_AT_ONCE),
    Mutation("a start shows one step late", "B7", taps={"start": (Read("starts", "previous", edge=False), Constant(False))}),
    Mutation("the discount of t decays into t", "B7", taps={"previous_gamma": (Read("gamma"),)}),
    Mutation("the first step decays what flows in", "B7", taps={"first": (Constant(False),)}, spares=("episodic_prefix_sum",)),
    Mutation("invalid steps count", "B8", arguments=(_all_valid, ("valid",))),
    Mutation("neighbours are read as they are stored", "B8", taps=_AS_STORED, spares=("discounted_returns",)),
    Mutation("a zero factor multiplies the state", "B6", around={"step": product_step}),
    Mutation("invalid steps cut", "B8", around={"skip": cut_where_invalid}),
    Mutation("invalid steps add", "B8", around={"skip": invalid_steps_add}),
    Mutation("outputs at invalid steps are left", "B8", around={"nothing_where_invalid": outputs_everywhere}),
    Mutation("a reset is a transition", "B8", around={"not_a_reset": never_a_reset}),
    Mutation("a clip drops NaN", "B9", {coefficients.at_most: at_most_without_nan}),
    Mutation("a value that is NaN counts as 0", "B9", {coefficients.bootstrap: bootstrap_without_nan}),
    Mutation("ratios are not clipped", "formula", {coefficients.at_most: not_clipped}),
    Mutation("lam is missing", "formula", taps={"lam": (Constant(1.0),), "next_lam": (Constant(1.0),), "previous_lam": (Constant(1.0),)}),
    Mutation("the trace has this action's ratio", "formula", taps={"next_log_rho": (Read("log_rhos"),)}),
    Mutation("the trace has this step's lam", "formula", taps={"next_lam": (Read("lam"),)}),
    Mutation("factors are one step late", "formula", taps={"factor": (Read("factor", "preceding", edge=1.0),)}),
    Mutation("the direction is ignored", "formula", arguments=(_forward_only, ("reverse",))),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Mutant:
    """One recurrence with one mistake."""

    mutation: Mutation
    original: Recurrence
    recurrence: Recurrence

    def __str__(self) -> str:
        return f"{self.original.name}, {self.mutation.rule}: {self.mutation.name}"

    def arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the faulty caller hands over."""
        if self.mutation.arguments is None or not all(arguments.get(name) is not None for name in self.mutation.arguments[1]):
            return arguments
        return self.mutation.arguments[0](arguments)


@functools.cache
def mutants(recurrence: Recurrence) -> tuple[Mutant, ...]:
    """Every mistake that can be made with `recurrence`."""
    return tuple(Mutant(mutation, recurrence, faulty) for mutation in MUTATIONS if (faulty := _mutated(recurrence, mutation)) is not None)


def rejection(mutant: Mutant, extent: Extent, backend: Backend = BACKENDS["numpy"], device: Device = "cpu") -> str | None:
    """What the crosscheck says of the first problem in which the mutant is wrong; None if it is never."""
    rule = mutant.mutation.rule
    for name in sorted(SCENARIOS, key=lambda name: name != rule):
        for problem in SCENARIOS[name].problems(mutant.original, extent):
            # before the coefficients are made faulty, for the oracle uses them too
            assert len(problem.limits) == len(problem.oracle)
            faulty = dataclasses.replace(problem, arguments=mutant.arguments(problem.arguments))
            with exchanged(mutant.mutation.around):
                results = backend.run(faulty, device, mutant.recurrence)
            if fault := wrong(problem, results):
                return fault
    return None


@contextlib.contextmanager
def exchanged(functions: Mapping[str, Callable]) -> Iterator[None]:
    """The functions of `coefficients` by these names, for a while."""
    right = {name: getattr(coefficients, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(coefficients, name, function)
        yield
    finally:
        for name, function in right.items():
            setattr(coefficients, name, function)


def _mutated(recurrence: Recurrence, mutation: Mutation) -> Recurrence | None:
    functions = [function for function in (recurrence.coefficients, recurrence.outputs) if function is not None]
    names = {name for function in functions for name in parameters(function)}
    if recurrence.name in mutation.spares:
        return None
    if mutation.helpers:
        if not any(helper in set(_helpers(function)) for function in functions for helper in mutation.helpers):
            return None
        faulty = [bind(function, xp, Array, replace=mutation.helpers) for function in functions]
        return dataclasses.replace(recurrence, coefficients=faulty[0], outputs=faulty[1] if recurrence.outputs else None)
    if mutation.taps:
        taps = {name: sources for name, sources in mutation.taps.items() if name in names}
        return dataclasses.replace(recurrence, extra_taps=(*recurrence.extra_taps, *taps.items())) if taps else None
    if mutation.around:
        needed = {"skip": "valid", "nothing_where_invalid": "valid", "not_a_reset": "autoreset", "expectation": "next_policy"}
        return recurrence if {needed[name] for name in mutation.around if name in needed} <= set(recurrence.argument_names) else None
    if mutation.seed is not None:
        return dataclasses.replace(recurrence, seed=mutation.seed) if mutation.seed in recurrence.argument_names else None
    assert mutation.arguments is not None
    return recurrence if set(mutation.arguments[1]) <= set(recurrence.argument_names) else None


def _helpers(function: Any) -> Iterator[Any]:
    """The functions that `function` calls, and those that they call."""
    for name in function.__code__.co_names:
        helper = function.__globals__.get(name)
        if isinstance(helper, types.FunctionType):
            yield helper
            yield from _helpers(helper)
