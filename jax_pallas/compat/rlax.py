"""RLax: multistep returns and V-trace of one sequence, `[T]`, as there for `jax.vmap`, and λ a number or an array of each step.

Wrong in all of them: a discount of 0 is the only end of an episode, and a value array serves as V(s'_t) and as V(s_(t+1)), so that no episode can be
truncated; only `lambda_returns` can say so, by a λ of 0.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rlscan.jax_pallas import discounted_returns as _discounted_returns
from rlscan.jax_pallas import gae
from rlscan.jax_pallas import lambda_returns as _lambda_returns
from rlscan.jax_pallas import retrace as _retrace
from rlscan.jax_pallas import vtrace as _vtrace

__all__ = [
    "VTraceOutput",
    "discounted_returns",
    "lambda_returns",
    "n_step_bootstrapped_returns",
    "retrace",
    "truncated_generalized_advantage_estimation",
    "vtrace",
    "vtrace_td_error_and_advantage",
]

REPLACES = {
    "lambda_returns": "`from rlax import lambda_returns`",
    "discounted_returns": "`from rlax import discounted_returns`",
    "n_step_bootstrapped_returns": "`from rlax import n_step_bootstrapped_returns`",
    "truncated_generalized_advantage_estimation": "`from rlax import truncated_generalized_advantage_estimation`",
    "vtrace": "`from rlax import vtrace`",
    "vtrace_td_error_and_advantage": "`from rlax import vtrace_td_error_and_advantage`",
    "retrace": "`from rlax import retrace`",
}

Number = float | jax.Array


class VTraceOutput(NamedTuple):
    errors: jax.Array
    pg_advantage: jax.Array
    q_estimate: jax.Array


def lambda_returns(r_t: jax.Array, discount_t: jax.Array, v_t: jax.Array, lambda_: Number = 1.0, stop_target_gradients: bool = False) -> jax.Array:
    """TD(λ) returns.

    Wrong: a truncation is a λ of 0, which the caller has to think of. Repair: `truncated` of `rlscan.jax_pallas.lambda_returns`.
    """
    results = _lambda_returns(r_t, terminated=_never(r_t), next_values=v_t, gamma=discount_t, lam=lambda_)
    return lax.stop_gradient(results) if stop_target_gradients else results


def discounted_returns(r_t: jax.Array, discount_t: jax.Array, v_t: Number, stop_target_gradients: bool = False) -> jax.Array:
    """Discounted returns, with `v_t[-1]` or the number `v_t` beyond the window.

    Wrong: of `v_t` the last element alone is read, and nowhere else can an episode be truncated. Repair: `truncated` of
    `rlscan.jax_pallas.discounted_returns`.
    """
    results = _discounted_returns(r_t, terminated=_never(r_t), next_values=jnp.broadcast_to(jnp.asarray(v_t, r_t.dtype), r_t.shape), gamma=discount_t)
    return lax.stop_gradient(results) if stop_target_gradients else results


def n_step_bootstrapped_returns(
    r_t: jax.Array, discount_t: jax.Array, v_t: jax.Array, n: int, lambda_t: Number = 1.0, stop_target_gradients: bool = False
) -> jax.Array:
    """The first of the λ-returns of every window of `n` steps; windows that reach over the end bootstrap there.

    Wrong: no episode can be truncated. Repair: `truncated` of `rlscan.jax_pallas.lambda_returns`, on windows of your own.
    """
    steps = r_t.shape[0]
    window = jnp.arange(steps)[:, None] + jnp.arange(n)[None]
    inside, at = window < steps, jnp.minimum(window, steps - 1)

    def windows(of_step: jax.Array, beyond: float) -> jax.Array:
        return jnp.where(inside, of_step[at], jnp.asarray(beyond, of_step.dtype))

    results = _lambda_returns(
        windows(r_t, 0.0),
        terminated=jnp.zeros_like(inside),
        next_values=v_t[at],
        gamma=windows(discount_t, 1.0),
        lam=windows(_of_steps(lambda_t, r_t), 1.0),
    )[:, 0]
    return lax.stop_gradient(results) if stop_target_gradients else results


def truncated_generalized_advantage_estimation(
    r_t: jax.Array, discount_t: jax.Array, lambda_: Number, values: jax.Array, stop_target_gradients: bool = False
) -> jax.Array:
    """Advantages `[T]`, from values `[T+1]`.

    Wrong: where an episode is truncated, V of the first state of the next one is taken for V(s'). Repair: `truncated` and `final_values`, or
    `next_values`, of `rlscan.jax_pallas.gae`.
    """
    results = gae(r_t, values[:-1], terminated=_never(r_t), next_values=values[1:], gamma=discount_t, lam=lambda_).advantages
    return lax.stop_gradient(results) if stop_target_gradients else results


def vtrace(
    v_tm1: jax.Array,
    v_t: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    rho_tm1: jax.Array,
    lambda_: Number = 1.0,
    clip_rho_threshold: float = 1.0,
    stop_target_gradients: bool = True,
    sample_mask: jax.Array | None = None,
) -> jax.Array:
    """V-trace errors, which are the targets less V. A step that `sample_mask` leaves out hands the next error on.

    Wrong: a truncation can't be told, and ratios are clipped at 1 in the trace. Repair: `truncated` and `c_bar` of `rlscan.jax_pallas.vtrace`.
    """
    result = _vtrace(
        _log(rho_tm1),
        r_t,
        v_tm1,
        terminated=_never(r_t),
        next_values=v_t,
        valid=sample_mask,
        gamma=discount_t,
        lam=lambda_,
        rho_bar=clip_rho_threshold,
    )
    errors = result.vs - v_tm1
    if sample_mask is not None:
        # at steps that are left out the targets are 0
        errors = _discounted_returns(jnp.where(sample_mask, errors, jnp.zeros_like(errors)), terminated=sample_mask, gamma=1.0)
    return lax.stop_gradient(errors + v_tm1) - v_tm1 if stop_target_gradients else errors


def vtrace_td_error_and_advantage(
    v_tm1: jax.Array,
    v_t: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    rho_tm1: jax.Array,
    lambda_: Number = 1.0,
    clip_rho_threshold: float = 1.0,
    clip_pg_rho_threshold: float = 1.0,
    stop_target_gradients: bool = True,
    sample_mask: jax.Array | None = None,
) -> VTraceOutput:
    """V-trace errors, advantages and the action values that they are made of.

    Wrong: at a truncation the advantage bootstraps from V of the next episode's first state; and λ mixes V into what it bootstraps from, which it
    does not in the paper. Repair: `truncated` and `final_values` of `rlscan.jax_pallas.vtrace`, where λ stands in the trace only.
    """
    errors = vtrace(v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, clip_rho_threshold, stop_target_gradients, sample_mask)
    targets = errors + v_tm1
    # Each step is a row of two: the second is worth the target of the next step, and the first mixes this with V by λ.
    last = v_t[-1:]
    successors, following = jnp.concatenate([v_tm1[1:], last]), jnp.concatenate([targets[1:], last])
    nothing = jnp.zeros_like(r_t)
    q_estimate = _lambda_returns(
        jnp.stack([r_t, following], -1),
        terminated=jnp.stack([_never(r_t), ~_never(r_t)], -1),
        next_values=jnp.stack([successors, nothing], -1),
        gamma=jnp.stack([discount_t, nothing], -1),
        lam=jnp.stack([_of_steps(lambda_, r_t), nothing], -1),
    )[..., 0]
    # with every step a terminal one it is the bar times what q_estimate is more than V
    pg_advantage = _vtrace(_log(rho_tm1), q_estimate, v_tm1, terminated=~_never(r_t), next_values=nothing, pg_rho_bar=clip_pg_rho_threshold).pg_advantages
    return VTraceOutput(errors, pg_advantage, q_estimate)


def retrace(
    q_tm1: jax.Array,
    q_t: jax.Array,
    a_tm1: jax.Array,
    a_t: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    pi_t: jax.Array,
    mu_t: jax.Array,
    lambda_: Number,
    eps: float = 1e-8,
    stop_target_gradients: bool = True,
) -> jax.Array:
    """Retrace errors, which are the targets less Q. `q_tm1`, `q_t` and `pi_t` have an axis of actions behind time.

    Wrong: `eps` shrinks every ratio, those of rare actions most. Repair: `log_rhos` of `rlscan.jax_pallas.retrace`, which needs none.
    """
    taken = jnp.take_along_axis(q_tm1, a_tm1[:, None], -1)[:, 0]
    taken_next = jnp.take_along_axis(q_t, a_t[:, None], -1)[:, 0]
    log_rhos = jnp.log(jnp.take_along_axis(pi_t, a_t[:, None], -1)[:, 0]) - jnp.log(mu_t + eps)
    # The ratio and Q of a step's action are those of the step before it there. A target does not depend on its own.
    targets = _retrace(
        jnp.concatenate([jnp.zeros_like(log_rhos[:1]), log_rhos[:-1]]),
        r_t,
        jnp.concatenate([taken[:1], taken_next[:-1]]),
        next_q_values=q_t,
        next_policy=pi_t,
        terminated=_never(r_t),
        gamma=discount_t,
        lam=jnp.concatenate([jnp.zeros_like(log_rhos[:1]), _of_steps(lambda_, r_t)[:-1]]),
    ).targets
    return (lax.stop_gradient(targets) if stop_target_gradients else targets) - taken


def _never(r_t: jax.Array) -> jax.Array:
    return jnp.zeros(r_t.shape, bool)


def _log(ratio: jax.Array) -> jax.Array:
    """A ratio of exactly 0 has a gradient of 0, where that of its logarithm would make it NaN."""
    nothing = ratio == 0
    return jnp.where(nothing, jnp.asarray(-jnp.inf, ratio.dtype), jnp.log(jnp.where(nothing, jnp.ones_like(ratio), ratio)))


def _of_steps(number: Number, r_t: jax.Array) -> jax.Array:
    return jnp.broadcast_to(jnp.asarray(number, r_t.dtype), r_t.shape)
