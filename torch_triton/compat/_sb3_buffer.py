"""Apart from `sb3.py`, because it needs the library."""

from __future__ import annotations

import numpy as np
import torch

try:
    from stable_baselines3.common import buffers  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(f"rlscan.torch_triton.compat.sb3's buffers need stable-baselines3, which can't be imported ({error})") from error

from rlscan.torch_triton.compat.sb3 import compute_returns_and_advantage


class _ByRlscan:
    """What both buffers compute."""

    rewards: np.ndarray
    values: np.ndarray
    episode_starts: np.ndarray
    gamma: float
    gae_lambda: float

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: np.ndarray) -> None:
        last = last_values.detach().cpu().numpy().flatten()
        self.returns, self.advantages = compute_returns_and_advantage(self.rewards, self.values, self.episode_starts, last, dones, self.gamma, self.gae_lambda)


class RolloutBuffer(_ByRlscan, buffers.RolloutBuffer):
    """SB3's buffer with advantages and returns by rlscan: `PPO(.., rollout_buffer_class=RolloutBuffer)`."""


class DictRolloutBuffer(_ByRlscan, buffers.DictRolloutBuffer):
    """The same where observations are dictionaries."""
