"""Tianshou's GAE over the flat buffer: `_gae`, which was `_gae_return` before version 2."""

from __future__ import annotations

import numpy as np
import torch

from rlscan.torch_triton import gae
from rlscan.torch_triton.compat._shared import tensor_of

__all__ = ["gae_return"]

REPLACES = {
    "gae_return": "`from tianshou.algorithm.algorithm_base import _gae`",
}


def gae_return(v_s: np.ndarray, v_s_: np.ndarray, rew: np.ndarray, end_flag: np.ndarray, gamma: float, gae_lambda: float) -> np.ndarray:
    """Advantages `[T]` in float64, of episodes end to end.

    Wrong: there is one flag, so that V(s') must be 0 already at terminal states (`value_mask`), and what is there is read. Repair: `terminated` and
    `truncated` of `rlscan.torch_triton.gae`, with `next_values` as they are.
    """
    values, next_values, rewards = (tensor_of(x, np.float64) for x in (v_s, v_s_, rew))
    ended = tensor_of(end_flag)
    never = torch.zeros_like(ended)
    return gae(rewards, values, terminated=never, truncated=ended, next_values=next_values, gamma=gamma, lam=gae_lambda).advantages.numpy()
