"""PureJaxRL: the `_calculate_gae` inside its PPO scripts as a function."""

from __future__ import annotations

from typing import Any

import jax

from rlscan.jax_pallas import gae as _gae

__all__ = ["gae"]

REPLACES = {
    "gae": "PureJaxRL: `_calculate_gae` in its PPO scripts",
}


def gae(traj_batch: Any, last_val: jax.Array, gamma: float | jax.Array, gae_lambda: float | jax.Array) -> tuple[jax.Array, jax.Array]:
    """Advantages and targets, `[T, N]`, from the scripts' own transitions, of which `reward`, `value` and `done` are read.

    Wrong: a truncation is a termination, and V of the state it cut off at is taken for 0. Repair: `terminated`, `truncated` and `final_values` of
    `rlscan.jax_pallas.gae`.
    """
    result = _gae(traj_batch.reward, traj_batch.value, terminated=traj_batch.done, bootstrap_value=last_val, gamma=gamma, lam=gae_lambda, time_axis=0)
    return result.advantages, result.returns
