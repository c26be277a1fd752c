"""verl: `compute_gae_advantage_return` (`verl.trainer.ppo.core_algos`)."""

from __future__ import annotations

import torch

from rlscan.torch_triton import gae
from rlscan.torch_triton.compat._shared import carried_over, masked_whiten

__all__ = ["compute_gae_advantage_return"]

REPLACES = {
    "compute_gae_advantage_return": "`from verl.trainer.ppo.core_algos import compute_gae_advantage_return`",
}


@torch.no_grad()
def compute_gae_advantage_return(
    token_level_rewards: torch.Tensor, values: torch.Tensor, response_mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Whitened advantages, and returns, `[N, T]`. Tokens outside the mask hand the next advantage on.

    Wrong: a response that was cut at the length limit counts as finished, with V of its last state taken for 0; and what masked tokens get is no result.
    Repair: V of the last state as `bootstrap_value` of `rlscan.torch_triton.gae`, with `valid=response_mask`, and whiten yourself.
    """
    valid = response_mask != 0
    following = torch.cat([carried_over(values, valid, -1)[:, 1:], torch.zeros_like(values[:, :1])], 1)
    # A masked token has the TD error V + 1 * 0 - V, and hands on all of the next advantage: it is no step, but has a result.
    result = gae(
        torch.where(valid, token_level_rewards, values),
        values,
        terminated=torch.zeros_like(valid),
        next_values=torch.where(valid, following, 0.0),
        gamma=torch.where(valid, torch.full_like(values, gamma), 1.0),
        lam=torch.where(valid, torch.full_like(values, lam), 1.0),
    )
    return masked_whiten(result.advantages, valid, floor=1e-8), result.returns
