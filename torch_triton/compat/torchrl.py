"""TorchRL's value functions (`torchrl.objectives.value.functional`), and `GAE` as a module.

Arrays are `[*B, T, *F]` with the time at `time_dim`, and `done` holds wherever `terminated` does.
"""

from __future__ import annotations

from typing import Any

import torch

from rlscan.torch_triton import gae, lambda_returns, vtrace
from rlscan.torch_triton.compat._shared import one_step

__all__ = [
    "generalized_advantage_estimate",
    "td_lambda_return_estimate",
    "vec_generalized_advantage_estimate",
    "vec_td_lambda_return_estimate",
    "vtrace_advantage_estimate",
]

REPLACES = {
    "generalized_advantage_estimate": "`from torchrl.objectives.value.functional import generalized_advantage_estimate`",
    "vec_generalized_advantage_estimate": "`from torchrl.objectives.value.functional import vec_generalized_advantage_estimate`",
    "td_lambda_return_estimate": "`from torchrl.objectives.value.functional import td_lambda_return_estimate`",
    "vec_td_lambda_return_estimate": "`from torchrl.objectives.value.functional import vec_td_lambda_return_estimate`",
    "vtrace_advantage_estimate": "`from torchrl.objectives.value.functional import vtrace_advantage_estimate`",
}


def generalized_advantage_estimate(
    gamma: float | torch.Tensor,
    lmbda: float | torch.Tensor,
    state_value: torch.Tensor,
    next_state_value: torch.Tensor,
    reward: torch.Tensor,
    done: torch.Tensor,
    terminated: torch.Tensor | None = None,
    *,
    time_dim: int = -2,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and value targets.

    Wrong: without `terminated` every truncation is a termination. Repair: pass both flags.
    """
    terminated = done if terminated is None else terminated
    result = gae(reward, state_value, terminated=terminated, truncated=done, next_values=next_state_value, gamma=gamma, lam=lmbda, time_axis=time_dim)
    return result.advantages, result.returns


vec_generalized_advantage_estimate = generalized_advantage_estimate
"""The same: what TorchRL cuts off where its powers of γλ fall below 1e-7 is computed here."""


def td_lambda_return_estimate(
    gamma: float | torch.Tensor,
    lmbda: float | torch.Tensor,
    next_state_value: torch.Tensor,
    reward: torch.Tensor,
    done: torch.Tensor,
    terminated: torch.Tensor | None = None,
    rolling_gamma: bool | None = None,
    *,
    time_dim: int = -2,
) -> torch.Tensor:
    """TD(λ) returns. `rolling_gamma=False`, which discounts all that follows a step by that step's own γ and λ, is no recurrence in time, and is refused.

    Wrong: without `terminated` every truncation is a termination. Repair: pass both flags.
    """
    if rolling_gamma is not None and not rolling_gamma:
        raise NotImplementedError("rolling_gamma is False; wanted True or None: with False each step has a recurrence of its own")
    terminated = done if terminated is None else terminated
    return lambda_returns(reward, terminated=terminated, truncated=done, next_values=next_state_value, gamma=gamma, lam=lmbda, time_axis=time_dim)


vec_td_lambda_return_estimate = td_lambda_return_estimate
"""The same."""


def vtrace_advantage_estimate(
    gamma: float | torch.Tensor,
    log_pi: torch.Tensor,
    log_mu: torch.Tensor,
    state_value: torch.Tensor,
    next_state_value: torch.Tensor,
    reward: torch.Tensor,
    done: torch.Tensor,
    terminated: torch.Tensor | None = None,
    rho_thresh: float | torch.Tensor = 1.0,
    c_thresh: float | torch.Tensor = 1.0,
    time_dim: int = -2,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and V-trace targets, in this order, with one bar for the TD error and the advantage.

    Wrong: there is no λ, and no bar of the advantage's own. Repair: `lam` and `pg_rho_bar` of `vtrace`.
    """
    terminated = done if terminated is None else terminated
    log_rhos = log_pi - log_mu
    rho_bar, c_bar = float(rho_thresh), float(c_thresh)
    vs = vtrace(
        log_rhos,
        reward,
        state_value,
        terminated=terminated,
        truncated=done,
        next_values=next_state_value,
        gamma=gamma,
        rho_bar=rho_bar,
        c_bar=c_bar,
        time_axis=time_dim,
    ).vs
    following = torch.cat([vs.transpose(0, time_dim)[1:], next_state_value.transpose(0, time_dim)[-1:]]).transpose(0, time_dim)
    # V(s') that the caller gives and V of the next step may come from two networks
    successors = torch.where(done != 0, next_state_value, following)
    advantages = one_step(log_rhos, reward, state_value, successors, terminated=terminated, gamma=gamma, bar=rho_bar, time_axis=time_dim)
    return advantages, vs


def __getattr__(name: str) -> Any:
    if name == "GAE":
        from rlscan.torch_triton.compat._torchrl_module import GAE

        return GAE
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
