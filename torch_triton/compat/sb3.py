"""Stable-Baselines3: what `RolloutBuffer.compute_returns_and_advantage` computes, and buffers that compute it so, `RolloutBuffer` and `DictRolloutBuffer`."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from rlscan.torch_triton import gae
from rlscan.torch_triton.compat._shared import one_step_early, tensor_of

__all__ = ["compute_returns_and_advantage"]

REPLACES = {
    "compute_returns_and_advantage": "Stable-Baselines3: the loop in `RolloutBuffer.compute_returns_and_advantage`",
}


def compute_returns_and_advantage(
    rewards: np.ndarray,
    values: np.ndarray,
    episode_starts: np.ndarray,
    last_values: np.ndarray,
    dones: np.ndarray,
    gamma: float = 0.99,
    gae_lambda: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns and advantages, from the buffer's arrays `[T, N]` and those of the last step, `[N]`.

    `episode_starts[t]` says that step t is the first of an episode, and `rewards` hold γ V(s') where an episode was truncated.

    Wrong: nothing in the numbers, but the rewards hold γ V(s') already, and can't be used with another γ or with newer values.
    Repair: the environment's rewards with `terminated`, `truncated` and `final_values` of `rlscan.torch_triton.gae`.
    """
    ended = one_step_early(tensor_of(episode_starts), tensor_of(dones))
    result = gae(
        tensor_of(rewards),
        tensor_of(values),
        terminated=ended,
        bootstrap_value=tensor_of(last_values),
        gamma=gamma,
        lam=gae_lambda,
        time_axis=0,
    )
    return result.returns.numpy(), result.advantages.numpy()


def __getattr__(name: str) -> Any:
    if name in ("RolloutBuffer", "DictRolloutBuffer"):
        return getattr(importlib.import_module("rlscan.torch_triton.compat._sb3_buffer"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
