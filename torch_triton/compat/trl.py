"""TRL: the advantages of its `PPOTrainer` as a function."""

from __future__ import annotations

import torch

from rlscan.torch_triton import gae as _gae
from rlscan.torch_triton.compat._shared import masked_whiten

__all__ = ["gae"]

REPLACES = {
    "gae": "TRL: the loop over `gen_length` in `PPOTrainer.train`, with the whitening behind it",
}


@torch.no_grad()
def gae(rewards: torch.Tensor, values: torch.Tensor, padding_mask: torch.Tensor, gamma: float = 1.0, lam: float = 0.95) -> tuple[torch.Tensor, torch.Tensor]:
    """Whitened advantages, 0 at padding, and returns, `[N, T]`, from the trainer's own variables.

    Wrong: padding counts as steps, which the trainer fills with zeros, so that γλ decays over it; and a response that was cut counts as finished.
    Repair: `valid=~padding_mask` and V of the last state as `bootstrap_value` of `rlscan.torch_triton.gae`.
    """
    padding, beyond = padding_mask != 0, values.new_zeros(values.shape[0])
    result = _gae(rewards, values, terminated=torch.zeros_like(rewards), bootstrap_value=beyond, gamma=gamma, lam=lam)
    return torch.where(padding, 0.0, masked_whiten(result.advantages, ~padding, floor=0.0)), result.returns
