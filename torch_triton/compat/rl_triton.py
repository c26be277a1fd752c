"""rl-triton: its functions over `[num_envs, seq_len]`, on any device and in any floating type.

`compute_eligibility_traces` and `compute_episodic_prefix_sum` are rlscan's own functions under other names (docs/conventions.md).
"""

from __future__ import annotations

from typing import Any

import torch

from rlscan.torch_triton import discounted_returns, gae, lambda_returns, retrace, vtrace
from rlscan.torch_triton.compat._shared import one_step

__all__ = ["compute_discounted_returns", "compute_gae", "compute_lambda_returns", "compute_retrace", "compute_vtrace"]

REPLACES = {
    "compute_gae": "`from rl_triton import compute_gae`",
    "compute_vtrace": "`from rl_triton import compute_vtrace`",
    "compute_retrace": "`from rl_triton import compute_retrace`",
    "compute_lambda_returns": "`from rl_triton import compute_lambda_returns`",
    "compute_discounted_returns": "`from rl_triton import compute_discounted_returns`",
}


def compute_gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    terminateds: torch.Tensor,
    truncateds: torch.Tensor | None = None,
    gamma: float = 0.99,
    lambda_: float = 0.95,
    bootstrap_values: torch.Tensor | None = None,
    last_value: torch.Tensor | None = None,
) -> torch.Tensor:
    """Advantages.

    Wrong: a bootstrap that is forgotten is 0 and no error. Repair: `bootstrap_value` and `final_values` of `rlscan.torch_triton.gae`, which it demands.
    """
    successor = _successor(rewards, truncateds, bootstrap_values, last_value)
    return gae(rewards, values, terminated=terminateds, gamma=gamma, lam=lambda_, **successor).advantages


def compute_vtrace(
    log_pi_target: torch.Tensor,
    log_pi_behavior: torch.Tensor,
    values: torch.Tensor,
    rewards: torch.Tensor,
    terminateds: torch.Tensor,
    truncateds: torch.Tensor | None = None,
    gamma: float = 0.99,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    bootstrap_values: torch.Tensor | None = None,
    last_value: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """V-trace targets and advantages.

    Wrong: a ratio that is NaN counts as `rho_bar` (here it stays NaN), and the advantage has no bar of its own. Repair: `pg_rho_bar` of
    `rlscan.torch_triton.vtrace`.
    """
    successor = _successor(rewards, truncateds, bootstrap_values, last_value)
    log_rhos = log_pi_target - log_pi_behavior
    result = vtrace(log_rhos, rewards, values, terminated=terminateds, gamma=gamma, rho_bar=rho_bar, c_bar=c_bar, pg_rho_bar=rho_bar, **successor)
    return result.vs, result.pg_advantages


def compute_retrace(
    action_probs_target: torch.Tensor,
    action_probs_behavior: torch.Tensor,
    q_values: torch.Tensor,
    next_q_values_all: torch.Tensor,
    actions: torch.Tensor,
    rewards: torch.Tensor,
    terminateds: torch.Tensor,
    truncateds: torch.Tensor,
    gamma: float,
    lambda_: float = 1.0,
    c_bar: float = 1.0,
    rho_bar: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Retrace targets and advantages.

    Wrong: one row of the policy serves for two states, s_t in the ratio and s'_t in the expectation, so that targets are wrong for any policy that
    depends on the state; and the advantage reads the next target over a truncation, and 0 at the window's end. Repair: `log_rhos` of the policy at s_t
    and `next_policy` at s'_t are two arguments of `rlscan.torch_triton.retrace`, whose advantages stop where the episode does.
    """
    taken = action_probs_target.gather(-1, actions[..., None])[..., 0]
    log_rhos = taken.log() - action_probs_behavior.log()
    targets = retrace(
        log_rhos,
        rewards,
        q_values,
        next_q_values=next_q_values_all,
        next_policy=action_probs_target,
        terminated=terminateds,
        truncated=truncateds,
        gamma=gamma,
        lam=lambda_,
        c_bar=c_bar,
    ).targets
    following = torch.cat([targets[:, 1:], torch.zeros_like(targets[:, :1])], 1)
    return targets, one_step(log_rhos, rewards, q_values, following, terminated=terminateds, gamma=gamma, bar=rho_bar, time_axis=-1)


def compute_lambda_returns(
    rewards: torch.Tensor,
    next_values: torch.Tensor,
    terminateds: torch.Tensor,
    truncateds: torch.Tensor | None = None,
    gamma: float = 0.99,
    lambda_: float = 0.95,
    bootstrap_values: torch.Tensor | None = None,
) -> torch.Tensor:
    """TD(λ) returns.

    Wrong: at the window's end V(s') has the weight 1 - λ, unless it is given a second time in the last column of `bootstrap_values`; and a step with both
    flags bootstraps. Repair: `rlscan.torch_triton.lambda_returns`, where it has the whole weight, and termination wins.
    """
    bootstraps = torch.zeros_like(rewards) if bootstrap_values is None else bootstrap_values
    ended, cut = _ended_and_cut(terminateds, truncateds)
    # one more step, which is worth what lies beyond the window
    return lambda_returns(
        torch.cat([rewards, bootstraps[:, -1:]], 1),
        terminated=torch.cat([ended, torch.ones_like(ended[:, :1])], 1),
        truncated=torch.cat([cut, torch.zeros_like(cut[:, :1])], 1),
        next_values=torch.cat([torch.where(cut, bootstraps, next_values), torch.zeros_like(next_values[:, :1])], 1),
        gamma=gamma,
        lam=lambda_,
    )[:, :-1]


def compute_discounted_returns(
    rewards: torch.Tensor,
    terminateds: torch.Tensor,
    truncateds: torch.Tensor | None = None,
    gamma: float = 0.99,
    bootstrap_values: torch.Tensor | None = None,
) -> torch.Tensor:
    """Discounted returns.

    Wrong: a step with both flags bootstraps. Repair: `rlscan.torch_triton.discounted_returns`, where termination wins.
    """
    bootstraps = torch.zeros_like(rewards) if bootstrap_values is None else bootstrap_values
    ended, cut = _ended_and_cut(terminateds, truncateds)
    return discounted_returns(rewards, terminated=ended, truncated=cut, next_values=bootstraps, gamma=gamma)


def _successor(
    rewards: torch.Tensor, truncateds: torch.Tensor | None, bootstrap_values: torch.Tensor | None, last_value: torch.Tensor | None
) -> dict[str, Any]:
    if last_value is not None and bootstrap_values is not None:
        raise ValueError("last_value was given beside bootstrap_values; pass one of them")
    if last_value is not None:
        bootstraps = torch.cat([torch.zeros_like(rewards[:, 1:]), last_value[:, None]], 1)
    else:
        bootstraps = torch.zeros_like(rewards) if bootstrap_values is None else bootstrap_values
    cuts = {} if truncateds is None else {"truncated": truncateds, "final_values": bootstraps}
    # the last one, and 0 where there are no steps
    return {"bootstrap_value": bootstraps[:, -1:].sum(1), **cuts}


def _ended_and_cut(terminateds: torch.Tensor, truncateds: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Where both flags are set, these two functions bootstrap."""
    ended = terminateds != 0
    cut = torch.zeros_like(ended) if truncateds is None else truncateds != 0
    return ended & ~cut, cut
