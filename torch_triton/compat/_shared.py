"""What several conventions have in common."""

from __future__ import annotations

import numpy as np
import torch

from rlscan.torch_triton import discounted_returns, vtrace


def tensor_of(array: np.ndarray, dtype: type | None = None) -> torch.Tensor:
    """Of any view, which PyTorch does not take as it is if strides are negative or it can't be written to."""
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))


def one_step_early(starts: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Flags of ending steps, `[T, ..]`, from flags of the first step after each."""
    return torch.cat([starts[1:], last.to(starts.dtype)[None]])[: starts.shape[0]]


def one_step(
    log_rhos: torch.Tensor,
    rewards: torch.Tensor,
    values: torch.Tensor,
    successors: torch.Tensor,
    *,
    terminated: torch.Tensor,
    gamma: float | torch.Tensor,
    bar: float | None,
    time_axis: int,
) -> torch.Tensor:
    """`min(bar, w_t) (r_t + [~d_t] g_t N_t - V_t)`: where every step is cut, V-trace's advantage is that and no more."""
    everywhere = torch.ones_like(terminated)
    return vtrace(
        log_rhos,
        rewards,
        values,
        terminated=terminated,
        truncated=everywhere,
        next_values=successors,
        gamma=gamma,
        pg_rho_bar=bar,
        time_axis=time_axis,
    ).pg_advantages


def carried_over(results: torch.Tensor, valid: torch.Tensor, time_axis: int) -> torch.Tensor:
    """`results`, and at each step that is not valid that of the next one that is; 0 where there is none."""
    return discounted_returns(torch.where(valid, results, 0.0), terminated=valid, gamma=1.0, time_axis=time_axis)


def masked_whiten(x: torch.Tensor, mask: torch.Tensor, floor: float) -> torch.Tensor:
    """To mean 0 and variance 1 over what the mask selects; the same shift and scale elsewhere.

    Args:
        floor: what is added to the number of elements.
    """
    count = mask.sum().to(x.dtype)
    mean = torch.where(mask, x, 0.0).sum() / (count + floor)
    centred = x - mean
    variance = torch.where(mask, centred.square(), 0.0).sum() / (count + floor) * (count / (count - 1))
    return centred * torch.rsqrt(variance + 1e-8)
