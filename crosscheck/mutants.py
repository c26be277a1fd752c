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
from rlscan.spec.calls import check, complete
from rlscan.spec.coefficients import at_most, bootstrap, cut, ends, gae, retrace, successor_value, times
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.spec.reference import NumPyArrays, loop
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


def step_in_bfloat16(addend: Array, factor: Array, state: Array) -> Array:
    """Rounded to nearest, ties to even: bfloat16 is the upper half of a float32."""
    right = xp.asarray(addend + times(factor, state), xp.float32)
    bits = right.view(xp.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1) & 0xFFFF0000).view(xp.float32)
    return xp.where(xp.isfinite(right), rounded, right).astype(xp.float64)


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


def _put_together_wrongly(arguments: dict[str, Any]) -> dict[str, Any]:
    """By doubling, as `factor * earlier + later`, which forgets what `later` was made with. What comes of it is handed over, to be left as it is."""
    axis, backward, addend = arguments.get("time_axis", -1), arguments.get("reverse", False), arguments["addend"]
    made, factor = (xp.moveaxis(x, axis, -1) for x in (addend, xp.broadcast_to(arguments["factor"], addend.shape)))
    made, factor = (x[..., ::-1] if backward else x for x in (made, factor))
    with xp.errstate(all="ignore"):
        if arguments.get("initial") is not None:
            made = xp.concatenate([made[..., :1] + factor[..., :1] * arguments["initial"][..., None], made[..., 1:]], axis=-1)
        reach = 1
        while reach < made.shape[-1]:
            made = xp.concatenate([made[..., :reach], factor[..., reach:] * made[..., :-reach] + made[..., reach:]], axis=-1)
            reach *= 2
    made = xp.moveaxis(made[..., ::-1] if backward else made, -1, axis)
    return arguments | {"addend": made, "factor": xp.zeros_like(made), "initial": None}


def _without_initial(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {"initial": None}


def advantage_without_lam(
    state: Array, state_beyond: Array, reward: Array, value: Array, next_value: Array, final_value: Array, terminated: Array, truncated: Array, gamma: Array
) -> tuple[Array, Array]:  # fmt: skip
    successor = successor_value(next_value, final_value, truncated) + cut(state_beyond, ends(terminated, truncated))
    return reward + bootstrap(gamma, terminated, successor) - value, state + value


def without_truncated_steps(
    reward: Array, value: Array, next_value: Array, final_value: Array, terminated: Array, truncated: Array, gamma: Array, lam: Array
) -> tuple[Array, Array]:
    addend, factor = gae(reward, value, next_value, final_value, terminated, truncated, gamma, lam)
    return cut(addend, truncated), factor


def advantage_without_lam_or_truncated_steps(
    state: Array, state_beyond: Array, reward: Array, value: Array, next_value: Array, final_value: Array, terminated: Array, truncated: Array, gamma: Array
) -> tuple[Array, Array]:  # fmt: skip
    advantage, target = advantage_without_lam(state, state_beyond, reward, value, next_value, final_value, terminated, truncated, gamma)
    return cut(advantage, truncated), target


def advantage_is_the_correction(state: Array, value: Array) -> tuple[Array, Array]:
    return value + state, state


def vtrace_advantage(successor: Array, log_rho: Array, reward: Array, value: Array, terminated: Array, gamma: Array, pg_rho_bar: Array) -> Array:
    return at_most(pg_rho_bar, xp.exp(log_rho)) * (reward + bootstrap(gamma, terminated, successor) - value)


def advantage_mixes_by_lam(
    state: Array, state_beyond: Array, log_rho: Array, reward: Array, value: Array, next_value: Array, final_value: Array,
    terminated: Array, truncated: Array, gamma: Array, lam: Array, pg_rho_bar: Array,
) -> tuple[Array, Array]:  # fmt: skip
    successor = successor_value(next_value, final_value, truncated) + times(lam, cut(state_beyond, ends(terminated, truncated)))
    return value + state, vtrace_advantage(successor, log_rho, reward, value, terminated, gamma, pg_rho_bar)


def advantage_of_the_next_episode(
    state: Array, state_beyond: Array, log_rho: Array, reward: Array, value: Array, next_value: Array, row_after: Array, last: Array,
    terminated: Array, gamma: Array, pg_rho_bar: Array,
) -> tuple[Array, Array]:  # fmt: skip
    successor = xp.where(last, next_value, row_after + state_beyond)
    return value + state, vtrace_advantage(successor, log_rho, reward, value, terminated, gamma, pg_rho_bar)


def targets_without_values(
    state: Array, state_beyond: Array, log_rho: Array, reward: Array, value: Array, next_value: Array, final_value: Array,
    terminated: Array, truncated: Array, gamma: Array, pg_rho_bar: Array,
) -> tuple[Array, Array]:  # fmt: skip
    successor = successor_value(next_value, final_value, truncated) + cut(state_beyond, ends(terminated, truncated))
    return state, vtrace_advantage(successor, log_rho, reward, value, terminated, gamma, pg_rho_bar)


def errors_and_mixed_advantage(
    state: Array,
    state_beyond: Array,
    log_rho: Array,
    reward: Array,
    value: Array,
    next_value: Array,
    final_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array,
    lam: Array,
    pg_rho_bar: Array,
) -> tuple[Array, Array]:
    _, advantage = advantage_mixes_by_lam(state, state_beyond, log_rho, reward, value, next_value, final_value, terminated, truncated, gamma, lam, pg_rho_bar)
    return state, advantage


def retrace_with_a_ratio(
    reward: Array, q_value: Array, expected_next_q: Array, log_rho: Array, next_log_rho: Array, next_lam: Array, last: Array,
    terminated: Array, truncated: Array, gamma: Array, c_bar: Array, rho_bar: Array,
) -> tuple[Array, Array]:  # fmt: skip
    addend, factor = retrace(reward, q_value, expected_next_q, next_log_rho, next_lam, last, terminated, truncated, gamma, c_bar)
    return at_most(rho_bar, xp.exp(log_rho)) * addend, factor


def returns_of_all_values(
    reward: Array, next_value: Array, final_value: Array, last: Array, terminated: Array, truncated: Array, gamma: Array
) -> tuple[Array, Array]:  # fmt: skip
    weight = xp.where(truncated | last, 1.0, 0.0)
    successor = successor_value(next_value, final_value, truncated)
    return reward + bootstrap(gamma, terminated, weight * successor), cut(gamma, truncated | last | terminated)


def factors_of_one_for_zero(addend: Array, factor: Array) -> tuple[Array, Array]:
    return addend, xp.where(factor == 0.0, 1.0, factor)


def reshaped_to_time_major(result: Array) -> Array:
    """Of `[N, T]` as it was computed, where `[T, N]` was wanted; with time last again."""
    return result.reshape(result.shape[::-1]).T


def reshaped_to_batch_major(result: Array) -> Array:
    """Likewise of `[T, N]`."""
    return result.T.reshape(result.shape)


def _with_last(arguments: dict[str, Any], last: Array) -> dict[str, Any]:
    """Another value behind the window, wherever it is said."""
    changed = {"bootstrap_value": last} if arguments.get("bootstrap_value") is not None else {}
    for name in ("next_values", "final_values"):
        if arguments.get(name) is not None:
            changed[name] = xp.concatenate([arguments[name][..., :-1], last[..., None]], axis=-1)[..., : arguments[name].shape[-1]]
    return arguments | changed


def _no_bootstrap(arguments: dict[str, Any]) -> dict[str, Any]:
    return _with_last(arguments, xp.zeros_like(arguments["rewards"][..., 0]))


def _last_value_as_bootstrap(arguments: dict[str, Any]) -> dict[str, Any]:
    return _with_last(arguments, arguments["values"][..., -1])


def _truncated_is_terminated(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {"terminated": _ended(arguments), "truncated": xp.zeros_like(arguments["truncated"])}


def _values_of_the_next_row(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {"next_values": xp.concatenate([arguments["values"][..., 1:], arguments["next_values"][..., -1:]], axis=-1)}


def _invalid_steps_are_zero(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {name: xp.where(arguments["valid"] != 0, arguments[name], 0.0) for name in ("rewards", "values") if arguments.get(name) is not None}


def _full_width_is_truncated(arguments: dict[str, Any]) -> dict[str, Any]:
    valid = arguments["valid"] != 0
    last = valid & (xp.cumsum(valid[..., ::-1], axis=-1)[..., ::-1] == 1)
    full = valid[..., -1:]
    return arguments | {"truncated": last & full, "terminated": last & ~full}


def _starts_are_ends(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "starts"} | {"terminated": arguments["starts"]}


def _ended(arguments: dict[str, Any]) -> Array:
    flags = [arguments[name] != 0 for name in ("terminated", "truncated") if arguments.get(name) is not None]
    return functools.reduce(xp.logical_or, flags)


def _ends_are_starts(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in ("terminated", "truncated")} | {"starts": _ended(arguments)}


def _resets_follow_ends(arguments: dict[str, Any]) -> dict[str, Any]:
    ended = _ended(arguments)
    return arguments | {"valid": ~xp.concatenate([xp.zeros_like(ended[..., :1]), ended[..., :-1]], axis=-1)}


def _of_other_steps(name: str, moved: Callable[[Array], Array]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The numbers of other steps, where each step has its own."""

    def handed(arguments: dict[str, Any]) -> dict[str, Any]:
        array = xp.asarray(arguments[name])
        return arguments | ({name: moved(array)} if array.ndim else {})

    return handed


def _of_the_step_before(array: Array) -> Array:
    return xp.concatenate([array[..., :1], array[..., :-1]], axis=-1)


def _of_the_step_after(array: Array) -> Array:
    return xp.concatenate([array[..., 1:], array[..., -1:]], axis=-1)


def _of_the_first_step(array: Array) -> Array:
    return xp.broadcast_to(array[..., :1], array.shape)


_NEXT_TO_NOTHING = 1e-300


def _no_discount_of_zero(arguments: dict[str, Any]) -> dict[str, Any]:
    """A product by next to nothing is next to nothing, unless it is NaN."""
    return arguments | {"gamma": xp.where(xp.asarray(arguments["gamma"]) == 0, _NEXT_TO_NOTHING, arguments["gamma"])}


def _nothing_for_next_to_nothing(result: Array) -> Array:
    return xp.where(xp.abs(result) < _NEXT_TO_NOTHING**0.5, 0.0, result)


def _gamma_and_lam_exchanged(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {"gamma": arguments["lam"], "lam": arguments["gamma"]}


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
        functions: for a recurrence's name, faulty coefficient and output functions; None in the place of one that is right.
        results: what becomes of each result, `[N, T]`, in the end.
    """

    name: str
    rule: str
    helpers: Mapping[Callable, Callable] = dataclasses.field(default_factory=dict)
    taps: Mapping[str, tuple[Source, ...]] = dataclasses.field(default_factory=dict)
    around: Mapping[str, Callable] = dataclasses.field(default_factory=dict)
    seed: str | None = None
    arguments: tuple[Callable[[dict[str, Any]], dict[str, Any]], tuple[str, ...]] | None = None
    spares: tuple[str, ...] = ()
    functions: Mapping[str, tuple[Callable | None, Callable | None]] = dataclasses.field(default_factory=dict)
    results: Callable[[Array], Array] | None = None

    def handed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the faulty caller hands over."""
        if self.arguments is None or not all(arguments.get(name) is not None for name in self.arguments[1]):
            return arguments
        return self.arguments[0](arguments)

    def and_also(self, other: Mutation) -> Mutation | None:
        """Both mistakes at once; None where they are made at the same place."""
        pairs = [(self.helpers, other.helpers), (self.taps, other.taps), (self.around, other.around), (self.functions, other.functions)]
        if any(set(one) & set(two) for one, two in pairs) or (self.seed and other.seed) or (self.results and other.results):
            return None
        helpers, taps, around, functions = ({**one, **two} for one, two in pairs)
        return Mutation(
            f"{self.name}; {other.name}",
            self.rule,
            helpers,
            taps,
            around,
            self.seed or other.seed,
            (lambda arguments: other.handed(self.handed(arguments)), ()),
            (*self.spares, *other.spares),
            functions,
            self.results or other.results,
        )


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

_FORWARD = tuple(name for name, recurrence in RECURRENCES.items() if recurrence.direction == "forward")

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
    Mutation("steps are put together wrongly", "formula", arguments=(_put_together_wrongly, ("addend", "factor"))),
    Mutation("the direction is ignored", "formula", arguments=(_forward_only, ("reverse",))),
)

_VALUES = {"next_value": (Read("values"),), "final_value": (Read("values"),)}

PUBLISHED = (
    Mutation(
        "steps are left out where truncated, and the advantage lacks lam",
        "B2",
        functions={"gae": (without_truncated_steps, advantage_without_lam_or_truncated_steps)},
    ),
    Mutation("the advantage lacks lam", "formula", functions={"gae": (None, advantage_without_lam)}),
    Mutation("steps are left out where truncated", "B2", functions={"gae": (without_truncated_steps, None)}),
    Mutation(
        "the flags of the step before are read",
        "B1",
        taps={name: (Read(name, "preceding", edge=False), Constant(False)) for name in ("terminated", "truncated")},
    ),
    Mutation(
        "the flags of the step after are read",
        "B1",
        taps={name: (Read(name, "following", edge=False), Constant(False)) for name in ("terminated", "truncated")},
    ),
    Mutation(
        "flags are ignored",
        "B1",
        taps={name: (Constant(False),) for name in ("terminated", "truncated", "previous_terminated", "previous_truncated", "start")},
    ),
    Mutation("truncation is passed as termination", "B2", arguments=(_truncated_is_terminated, ("terminated", "truncated"))),
    Mutation("truncation bootstraps from its own state", "B2", taps={"final_value": (Read("values"),)}),
    Mutation("the next row's value is the successor's", "B2", arguments=(_values_of_the_next_row, ("next_values", "values"))),
    Mutation("nothing is bootstrapped at the window's end", "B4", arguments=(_no_bootstrap, ("rewards",))),
    Mutation("the last step bootstraps from itself", "B4", arguments=(_last_value_as_bootstrap, ("values",))),
    Mutation("its own state's value is the successor's", "formula", taps=_VALUES),
    Mutation("rewards are one step late", "formula", taps={"reward": (Read("rewards", "preceding", edge=0.0),)}),
    Mutation("gamma and lam are exchanged", "formula", arguments=(_gamma_and_lam_exchanged, ("gamma", "lam"))),
    Mutation("gamma of the step before", "formula", arguments=(_of_other_steps("gamma", _of_the_step_before), ("gamma",))),
    Mutation("lam of the step before", "formula", arguments=(_of_other_steps("lam", _of_the_step_before), ("lam",))),
    Mutation("gamma of the step after", "formula", arguments=(_of_other_steps("gamma", _of_the_step_after), ("gamma",))),
    Mutation("lam of the step after", "formula", arguments=(_of_other_steps("lam", _of_the_step_after), ("lam",))),
    Mutation("gamma of the first step", "formula", arguments=(_of_other_steps("gamma", _of_the_first_step), ("gamma",))),
    Mutation("lam of the first step", "formula", arguments=(_of_other_steps("lam", _of_the_first_step), ("lam",))),
    Mutation("a discount of 0 multiplies", "B6", arguments=(_no_discount_of_zero, ("gamma",)), results=_nothing_for_next_to_nothing),
    Mutation("the policy-gradient advantage is the correction", "formula", functions={"vtrace": (None, advantage_is_the_correction)}),
    Mutation("the policy-gradient advantage mixes by lam", "formula", functions={"vtrace": (None, advantage_mixes_by_lam)}),
    Mutation("targets lack the value, and the advantage mixes by lam", "formula", functions={"vtrace": (None, errors_and_mixed_advantage)}),
    Mutation("targets lack the value", "formula", functions={"vtrace": (None, targets_without_values)}),
    Mutation(
        "the policy-gradient advantage reads across a truncation",
        "B2",
        taps={"row_after": (Read("values", "next", edge=0.0),)},
        functions={"vtrace": (None, advantage_of_the_next_episode)},
    ),
    Mutation("the TD error has a ratio", "formula", functions={"retrace": (retrace_with_a_ratio, None)}),
    Mutation("the expectation is one step late", "formula", taps={"expected_next_q": (Read("expected_next_q", "preceding", edge=0.0),)}),
    Mutation("a factor of 0 does not reset", "B6", functions={"affine_scan": (factors_of_one_for_zero, None)}),
    Mutation("the state is kept in bfloat16", "B11", around={"step": step_in_bfloat16}),
    Mutation("rows are reshaped to time-major", "formula", results=reshaped_to_time_major),
    Mutation("steps are reshaped to batch-major", "formula", results=reshaped_to_batch_major),
    # The two helpers by which all but the two successor values is selected, and the scan's own step.
    Mutation(
        "nothing is selected, all is multiplied",
        "B5",
        {coefficients.cut: masked, coefficients.times: product},
        around={"step": product_step},
    ),
    Mutation(
        "values are read where they weigh nothing",
        "B5",
        {coefficients.cut: masked, coefficients.times: product},
        around={"step": product_step},
        functions={"discounted_returns": (returns_of_all_values, None)},
    ),
    Mutation(
        "invalid steps are zero steps",
        "B8",
        taps=_AS_STORED,
        around={"skip": invalid_steps_add},
        arguments=(_invalid_steps_are_zero, ("valid",)),
    ),
    Mutation("rows of full width are truncated", "B2", arguments=(_full_width_is_truncated, ("valid", "terminated"))),
    Mutation("starts are read as ends", "B7", arguments=(_starts_are_ends, ("starts",))),
    Mutation("ends are read as starts", "B7", arguments=(_ends_are_starts, ("terminated",)), spares=("eligibility_traces",)),
    Mutation("the step after an end is taken for a reset", "B7", arguments=(_resets_follow_ends, ("terminated",))),
)
"""Mistakes made in public that are more than one of the above, or that only a caller or another definition makes. `spec.variants` says whose."""


@dataclasses.dataclass(frozen=True, eq=False)
class Mutant:
    """One recurrence with one mistake."""

    mutation: Mutation
    original: Recurrence
    recurrence: Recurrence

    def __str__(self) -> str:
        return f"{self.original.name}, {self.mutation.rule}: {self.mutation.name}"

    def arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return self.mutation.handed(arguments)

    def results(self, arguments: dict[str, Any]) -> tuple[Array, ...]:
        """By the loop, on NumPy arrays."""
        call = check(self.recurrence, complete(self.recurrence, self.arguments(arguments)), NumPyArrays())
        with exchanged(self.mutation.around), xp.errstate(all="ignore"):
            return tuple(self.given_back(result, arguments.get("time_axis", -1)) for result in loop(call))

    def given_back(self, result: Array, time_axis: int = -1) -> Array:
        if self.mutation.results is None or result.ndim != 2:
            return result
        return xp.moveaxis(self.mutation.results(xp.moveaxis(result, time_axis, -1)), -1, time_axis)


@functools.cache
def mutants(recurrence: Recurrence) -> tuple[Mutant, ...]:
    """Every mistake that can be made with `recurrence`."""
    return tuple(mutant for mutation in MUTATIONS if (mutant := mutated(recurrence, mutation)) is not None)


def mutated(recurrence: Recurrence, mutation: Mutation) -> Mutant | None:
    """The recurrence with this mistake; None where it can't be made."""
    faulty = _mutated(recurrence, mutation)
    return None if faulty is None else Mutant(mutation, recurrence, faulty)


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
    if recurrence.name in mutation.spares:
        return None
    made = recurrence
    if mutation.functions:
        if recurrence.name not in mutation.functions:
            return None
        faulty_coefficients, faulty_outputs = mutation.functions[recurrence.name]
        extra = (*made.extra_taps, *mutation.taps.items())
        made = dataclasses.replace(made, coefficients=faulty_coefficients or made.coefficients, outputs=faulty_outputs or made.outputs, extra_taps=extra)
    functions = [function for function in (made.coefficients, made.outputs) if function is not None]
    if mutation.helpers:
        if not any(helper in set(_helpers(function)) for function in functions for helper in mutation.helpers):
            return None
        faulty = [bind(function, xp, Array, replace=mutation.helpers) for function in functions]
        made = dataclasses.replace(made, coefficients=faulty[0], outputs=faulty[1] if made.outputs else None)
    if mutation.taps:
        names = {name for function in functions for name in parameters(function)}
        taps = {name: sources for name, sources in mutation.taps.items() if name in names}
        if not taps:
            return None
        made = dataclasses.replace(made, extra_taps=(*made.extra_taps, *taps.items()))
    needed = {"skip": "valid", "nothing_where_invalid": "valid", "not_a_reset": "autoreset", "expectation": "next_policy"}
    if not {needed[name] for name in mutation.around if name in needed} <= set(recurrence.argument_names):
        return None
    if mutation.seed is not None:
        if mutation.seed not in recurrence.argument_names:
            return None
        made = dataclasses.replace(made, seed=mutation.seed)
    if mutation.arguments is not None and not set(mutation.arguments[1]) <= set(recurrence.argument_names):
        return None
    return made


def _helpers(function: Any) -> Iterator[Any]:
    """The functions that `function` calls, and those that they call."""
    for name in function.__code__.co_names:
        helper = function.__globals__.get(name)
        if isinstance(helper, types.FunctionType):
            yield helper
            yield from _helpers(helper)
