"""brax: `compute_gae` (`brax.training.agents.ppo.losses`)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from rlscan.jax_pallas import gae

__all__ = ["compute_gae"]

REPLACES = {
    "compute_gae": "`from brax.training.agents.ppo.losses import compute_gae`",
}


def compute_gae(
    truncation: jax.Array,
    termination: jax.Array,
    rewards: jax.Array,
    values: jax.Array,
    bootstrap_value: jax.Array,
    lambda_: float | jax.Array = 1.0,
    discount: float | jax.Array = 0.99,
) -> tuple[jax.Array, jax.Array]:
    """Value targets and advantages, `[T, B]`, without gradients.

    Wrong: a truncated step is left out, with its own V for a target and an advantage of 0; and the advantage is that of one step to the next target, δ + γ
    A instead of δ + γλ A. Repair: `truncated` and `final_values` of `rlscan.jax_pallas.gae`, whose advantages are GAE's.
    """
    cut = truncation != 0
    # A step whose reward is V, with a discount of 0, has the TD error 0 and hands nothing on.
    steps = {
        "rewards": jnp.where(cut, values, rewards),
        "values": values,
        "terminated": termination,
        "gamma": jnp.where(cut, jnp.zeros_like(values), jnp.broadcast_to(jnp.asarray(discount, values.dtype), values.shape)),
        "time_axis": 0,
    }
    vs = gae(**steps, bootstrap_value=bootstrap_value, lam=lambda_).returns
    following = jnp.concatenate([vs[1:], bootstrap_value[None]])[: vs.shape[0]]
    advantages = gae(**steps, next_values=following, lam=0.0).advantages
    return lax.stop_gradient(vs), lax.stop_gradient(advantages)
