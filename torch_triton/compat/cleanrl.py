"""The loop of CleanRL's PPO scripts as a function."""

from __future__ import annotations

import torch

from rlscan.torch_triton import gae as _gae
from rlscan.torch_triton.compat._shared import one_step_early

__all__ = ["gae"]

REPLACES = {
    "gae": "CleanRL: the loop under `# bootstrap value if not done` of its PPO scripts",
}


def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    dones: torch.Tensor,
    next_value: torch.Tensor,
    next_done: torch.Tensor,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, from the scripts' own variables: `[T, N]`, `next_value` `[1, N]` or `[N]`, `next_done` `[N]`.

    `dones[t]` says that step t is the first of an episode.

    Wrong: a truncation is a termination, and V of the state it cut off at is taken for 0. Repair: store `terminated`, `truncated` and V of
    `final_obs`, and pass them to `rlscan.torch_triton.gae` as `terminated`, `truncated` and `final_values`.
    """
    last_value = next_value.reshape(values.shape[1:])
    ended = one_step_early(dones, next_done)
    result = _gae(rewards, values, terminated=ended, bootstrap_value=last_value, gamma=gamma, lam=gae_lambda, time_axis=0)
    return result.advantages, result.returns
