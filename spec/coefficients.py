"""The arithmetic of every recurrence, written once, for any array library.

Each function is elementwise and takes what the names of its parameters say about one step of one row; `taps.py` says
where each name is read. `xp` is NumPy here; `binding.bind` gives a copy of a function in which it is `torch`,
`jax.numpy` or `triton.language`. So only what all four have is used: `+ - * /`, comparisons, `& |`, `xp.where`,
`xp.exp`, positional parameters, tuples and sibling functions (`tests/test_language.py` holds them to it).

What a rule says is not read is selected away before it meets any arithmetic, so that NaN and infinity there reach
no result. What is differentiated has no NaN in it, and the forms that are called `finite_` instead (`steps.FiniteSteps`).
"""

from __future__ import annotations

import numpy as xp

Array = xp.ndarray


def times(factor: Array, x: Array) -> Array:
    """`factor * x`, and 0 where the factor is 0, whatever `x` is: a zero factor is a hard cut (B6)."""
    return factor * xp.where(factor == 0.0, 0.0, x)


def finite_times(factor: Array, x: Array) -> Array:
    """`times` where both are finite: the same number, whose derivative by a factor of 0 is `x`."""
    return factor * x


def cut(factor: Array, where: Array) -> Array:
    """`factor`, and 0 at the places named."""
    return xp.where(where, 0.0, factor)


def ends(terminated: Array, truncated: Array) -> Array:
    """The episode ends with this step: nothing flows back over it (B1, B2)."""
    return terminated | truncated


def bootstrap(discount: Array, terminated: Array, successor: Array) -> Array:
    """The discounted value of the successor, 0 and unread at a terminal state (B1), which wins over truncation (B3)."""
    return times(cut(discount, terminated), successor)


def successor_value(next_value: Array, final_value: Array, truncated: Array) -> Array:
    """V of the true successor: where the episode was cut, of the state it was cut at (B2)."""
    return xp.where(truncated, final_value, next_value)


def at_most(bar: Array, ratio: Array) -> Array:
    """The clipped ratio; NaN stays NaN (B9), which `minimum` does not promise."""
    return xp.where(ratio > bar, bar, ratio)


def step(addend: Array, factor: Array, state: Array) -> Array:
    """One step of the recurrence: `addend + factor * state`.

    A zero factor cuts (B6), and an infinite one times 0 is 0, so that a product of factors that overflows in a
    scan, but never meets anything, changes nothing.
    """
    nothing = (factor == 0.0) | ((state == 0.0) & (factor == factor))
    return addend + cut(factor, nothing) * cut(state, nothing)


def then(first_addend: Array, first_factor: Array, second_addend: Array, second_factor: Array) -> tuple[Array, Array]:
    """The affine map `y -> second(first(y))` of two maps `y -> addend + factor * y`; associative (Blelloch 1990, 1.4.1).

    Only a factor that is 0 cuts: a product that underflows is kept at the smallest normal float32, so that NaN
    behind many small factors still arrives, and infinity with its sign (B9).
    """
    product = second_factor * first_factor
    same_sign = (first_factor < 0.0) == (second_factor < 0.0)
    smallest = xp.where(same_sign, product + 1.1754943508222875e-38, product - 1.1754943508222875e-38)
    kept = xp.where(product == 0.0, smallest, product)
    factor = xp.where((first_factor == 0.0) | (second_factor == 0.0), 0.0, kept)
    return step(second_addend, second_factor, first_addend), factor


def fading_step(addend: Array, factor: Array, state: Array) -> Array:
    """`step` for fewer operations, where factors lie in [0, 1] or are NaN: the same number comes of it."""
    return addend + times(factor, state)


def fading_then(first_addend: Array, first_factor: Array, second_addend: Array, second_factor: Array) -> tuple[Array, Array]:
    """`then` likewise."""
    product = second_factor * first_factor
    kept = xp.where(product == 0.0, 1.1754943508222875e-38, product)
    factor = xp.where((first_factor == 0.0) | (second_factor == 0.0), 0.0, kept)
    return fading_step(second_addend, second_factor, first_addend), factor


def finite_step(addend: Array, factor: Array, state: Array) -> Array:
    """`step` for fewer operations, where this is finite: a cut or an infinite factor in it would have made it NaN, if it met NaN or infinity."""
    return addend + factor * state


def finite_then(first_addend: Array, first_factor: Array, second_addend: Array, second_factor: Array) -> tuple[Array, Array]:
    """`then` likewise: where all states that come of it are finite, none of them met a product that should not have underflown."""
    return finite_step(second_addend, second_factor, first_addend), second_factor * first_factor


def skip(addend: Array, factor: Array, valid: Array) -> tuple[Array, Array]:
    """The recurrence's step where the step is a real transition, and no step at all elsewhere (B8)."""
    return xp.where(valid, addend, 0.0), xp.where(valid, factor, 1.0)


def nothing_where_invalid(output: Array, valid: Array) -> Array:
    """Outputs at steps that are no transitions are 0 (B8)."""
    return xp.where(valid, output, 0.0)


def not_a_reset(previous_terminated: Array, previous_truncated: Array) -> Array:
    """With next-step autoreset, the row after an ending step is the reset itself and no transition."""
    return ends(previous_terminated, previous_truncated) == False  # noqa: E712  (`~` of a constant flag is an integer)


def gae(
    reward: Array, value: Array, next_value: Array, final_value: Array, terminated: Array, truncated: Array, gamma: Array, lam: Array
) -> tuple[Array, Array]:
    successor = successor_value(next_value, final_value, truncated)
    td_error = reward + bootstrap(gamma, terminated, successor) - value
    return td_error, cut(times(gamma, lam), ends(terminated, truncated))


def gae_outputs(state: Array, value: Array) -> tuple[Array, Array]:
    return state, state + value


def vtrace(
    log_rho: Array, reward: Array, value: Array, next_value: Array, final_value: Array, terminated: Array, truncated: Array,
    gamma: Array, lam: Array, rho_bar: Array, c_bar: Array,
) -> tuple[Array, Array]:  # fmt: skip
    ratio = xp.exp(log_rho)
    successor = successor_value(next_value, final_value, truncated)
    td_error = at_most(rho_bar, ratio) * (reward + bootstrap(gamma, terminated, successor) - value)
    return td_error, cut(times(gamma, times(lam, at_most(c_bar, ratio))), ends(terminated, truncated))


def vtrace_outputs(
    state: Array, state_beyond: Array, log_rho: Array, reward: Array, value: Array, next_value: Array, final_value: Array,
    terminated: Array, truncated: Array, gamma: Array, pg_rho_bar: Array,
) -> tuple[Array, Array]:  # fmt: skip
    successor = successor_value(next_value, final_value, truncated) + cut(state_beyond, ends(terminated, truncated))
    advantage = reward + bootstrap(gamma, terminated, successor) - value
    return value + state, at_most(pg_rho_bar, xp.exp(log_rho)) * advantage


def retrace(
    reward: Array, q_value: Array, expected_next_q: Array, next_log_rho: Array, next_lam: Array, last: Array,
    terminated: Array, truncated: Array, gamma: Array, c_bar: Array,
) -> tuple[Array, Array]:  # fmt: skip
    td_error = reward + bootstrap(gamma, terminated, expected_next_q) - q_value
    next_trace = times(next_lam, at_most(c_bar, xp.exp(next_log_rho)))
    return td_error, cut(times(gamma, next_trace), ends(terminated, truncated) | last)


def retrace_outputs(
    state: Array, state_beyond: Array, log_rho: Array, reward: Array, q_value: Array, next_q_value: Array, expected_next_q: Array, last: Array,
    terminated: Array, truncated: Array, gamma: Array, rho_bar: Array,
) -> tuple[Array, Array]:  # fmt: skip
    successor = xp.where(ends(terminated, truncated) | last, expected_next_q, next_q_value + state_beyond)
    advantage = reward + bootstrap(gamma, terminated, successor) - q_value
    return q_value + state, at_most(rho_bar, xp.exp(log_rho)) * advantage


def expectation(total: Array, probability: Array, action_value: Array) -> Array:
    """One more action in `sum_a pi(a|s) Q(s, a)`; the value of an action that is never taken is not read."""
    return total + times(probability, action_value)


def lambda_returns(
    reward: Array, next_value: Array, final_value: Array, last: Array, terminated: Array, truncated: Array, gamma: Array, lam: Array
) -> tuple[Array, Array]:
    trace = cut(lam, truncated | last)
    successor = successor_value(next_value, final_value, truncated)
    return reward + bootstrap(gamma, terminated, times(1.0 - trace, successor)), cut(times(gamma, trace), terminated)


def discounted_returns(
    reward: Array, next_value: Array, final_value: Array, last: Array, terminated: Array, truncated: Array, gamma: Array
) -> tuple[Array, Array]:
    cut_here = truncated | last
    successor = xp.where(cut_here, successor_value(next_value, final_value, truncated), 0.0)
    return reward + bootstrap(gamma, terminated, successor), cut(gamma, cut_here | terminated)


def eligibility_traces(
    input: Array, first: Array, previous_terminated: Array, previous_truncated: Array, previous_gamma: Array, previous_lam: Array
) -> tuple[Array, Array]:
    decay = cut(times(previous_gamma, previous_lam), ends(previous_terminated, previous_truncated))
    return input, xp.where(first, 1.0, decay)


def episodic_prefix_sum(input: Array, first: Array, start: Array, previous_terminated: Array, previous_truncated: Array) -> tuple[Array, Array]:
    ended = ends(previous_terminated, previous_truncated)
    carried = xp.where(first | (ended == False), 1.0, 0.0)  # noqa: E712  (`~` of a constant flag is an integer)
    return input, cut(carried, start)


def affine_scan(addend: Array, factor: Array) -> tuple[Array, Array]:
    return addend, factor
