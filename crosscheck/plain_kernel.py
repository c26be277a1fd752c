"""The published way to write GAE in Triton: a program holds one row, flags are float32, and a launch goes through `kernel[grid](...)`.

A baseline, for the kernel's time and for that of its wrapper on the host.
"""
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _then(later_addend, later_factor, addend, factor):
    return addend + factor * later_addend, factor * later_factor


@triton.jit
def _gae_kernel(rewards, values, terminated, bootstrap_value, advantages, returns, steps, gamma, lam, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    t = tl.arange(0, BLOCK)
    inside = t < steps
    place = row * steps + t
    reward = tl.load(rewards + place, mask=inside, other=0.0)
    value = tl.load(values + place, mask=inside, other=0.0)
    goes_on = 1.0 - tl.load(terminated + place, mask=inside, other=0.0)
    next_value = tl.load(values + place + 1, mask=t < steps - 1, other=0.0)
    next_value = tl.where(t == steps - 1, tl.load(bootstrap_value + row), next_value)
    # behind the row's end nothing is added, for everything that was loaded there is 0, and nothing comes back from there
    td_error = tl.where(inside, reward + gamma * next_value * goes_on - value, 0.0)
    advantage, _ = tl.associative_scan((td_error, gamma * lam * goes_on), 0, _then, reverse=True)
    tl.store(advantages + place, advantage, mask=inside)
    tl.store(returns + place, advantage + value, mask=inside)


def gae(operands: Mapping[str, Any], gamma: float = 0.99, lam: float = 0.95) -> tuple[torch.Tensor, torch.Tensor]:
    rewards = operands["rewards"].contiguous()
    values, terminated = operands["values"].contiguous(), operands["terminated"].contiguous()
    rows, steps = rewards.shape
    advantages, returns = torch.empty_like(rewards), torch.empty_like(rewards)
    block = triton.next_power_of_2(steps)
    launch: Any = _gae_kernel[(rows,)]
    launch(rewards, values, terminated, operands["bootstrap_value"], advantages, returns, steps, gamma, lam, BLOCK=block, num_warps=4)
    return advantages, returns
