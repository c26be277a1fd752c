"""RLlib: `compute_value_targets` (`ray.rllib.utils.postprocessing.value_predictions`) and `vtrace_torch` (IMPALA, APPO)."""

from __future__ import annotations

import numpy as np
import torch

from rlscan.torch_triton import gae, vtrace
from rlscan.torch_triton.compat._shared import tensor_of

__all__ = ["compute_value_targets", "vtrace_torch"]

REPLACES = {
    "compute_value_targets": "`from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets`",
    "vtrace_torch": "`from ray.rllib.algorithms.impala.torch.vtrace_torch_v2 import vtrace_torch`",
}


def compute_value_targets(values: np.ndarray, rewards: np.ndarray, terminateds: np.ndarray, truncateds: np.ndarray, gamma: float, lambda_: float) -> np.ndarray:
    """Value targets `[T]` in float32, of episodes end to end, each with a row appended for the value of its last state.

    Wrong: the appended rows have targets too, which only a mask keeps out of the loss. Repair: leave them out and pass their values to
    `rlscan.torch_triton.gae` as `next_values`.
    """
    given = (tensor_of(x, np.float64) for x in (rewards, values))
    ended, cut = tensor_of(terminateds), tensor_of(truncateds)
    # here the row after a truncated step, which has V of the state it was cut at, is a row like any other
    following = tensor_of(np.append(values[1:], 0.0)[: len(values)], np.float64)
    targets = gae(*given, terminated=ended, truncated=cut, next_values=following, gamma=gamma, lam=lambda_).returns
    return targets.to(torch.float32).numpy()


@torch.no_grad()
def vtrace_torch(
    *,
    target_action_log_probs: torch.Tensor,
    behaviour_action_log_probs: torch.Tensor,
    discounts: torch.Tensor,
    rewards: torch.Tensor,
    values: torch.Tensor,
    bootstrap_values: torch.Tensor,
    clip_rho_threshold: float | torch.Tensor | None = 1.0,
    clip_pg_rho_threshold: float | torch.Tensor | None = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """V-trace targets and advantages `[T, B]`, without gradients. `discounts` are 0 where an episode ends.

    Wrong: a discount of 0 can't say that an episode was truncated, so V(s') is 0 there. Repair: `terminated`, `truncated` and `final_values` of
    `rlscan.torch_triton.vtrace`, with `gamma` a number.
    """
    rho_bar, pg_rho_bar = (None if bar is None else float(bar) for bar in (clip_rho_threshold, clip_pg_rho_threshold))
    result = vtrace(
        target_action_log_probs - behaviour_action_log_probs,
        rewards,
        values,
        terminated=torch.zeros_like(rewards),
        bootstrap_value=bootstrap_values,
        gamma=discounts,
        rho_bar=rho_bar,
        pg_rho_bar=pg_rho_bar,
        time_axis=0,
    )
    return result.vs, result.pg_advantages
