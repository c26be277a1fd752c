"""The whole-array path: PyTorch operations on any device, for CPU tensors above all.

Time is cut into blocks. All blocks are composed step by step at once, then a carry goes from block to block, so a row of
T steps costs about 2 sqrt(T) operations instead of T.
"""

from __future__ import annotations

import math

import torch

from rlscan.spec import coefficients
from rlscan.spec.calls import Call
from rlscan.spec.steps import Steps
from rlscan.torch_triton.arrays import WholeTensors


def by_whole_arrays(call: Call) -> tuple[torch.Tensor, ...]:
    """The outputs of a call."""
    library = WholeTensors(call.dtype, call.device)
    steps = Steps(call, library)
    frame = call.arrays[call.recurrence.frame.name]
    if frame.numel() == 0:
        return tuple(torch.empty(call.shape, dtype=library.dtype, device=call.device) for _ in call.recurrence.output_names)
    alpha, beta = steps.coefficients()
    state, beyond = _scan(steps, alpha, beta, steps.seed(), call.backward)
    return tuple(output.contiguous() for output in steps.outputs(state, beyond))


def _scan(steps: Steps, alpha: torch.Tensor, beta: torch.Tensor, seed: torch.Tensor, backward: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The state at every step, and the one before it in the scan."""
    then, step = steps.bound(coefficients.then), steps.bound(coefficients.step)
    if backward:
        alpha, beta = alpha.flip(0), beta.flip(0)
    length, rows = alpha.shape[0], alpha.shape[1:]
    block = max(1, math.isqrt(length))
    blocks = -(-length // block)
    spare = blocks * block - length
    addend = torch.cat([alpha, alpha.new_zeros((spare, *rows))]).reshape(blocks, block, *rows)
    factor = torch.cat([beta, beta.new_ones((spare, *rows))]).reshape(blocks, block, *rows)
    addends, factors = [addend[:, 0]], [factor[:, 0]]
    for k in range(1, block):
        a, b = then(addends[-1], factors[-1], addend[:, k], factor[:, k])
        addends.append(a)
        factors.append(b)
    carries = [seed]
    for c in range(blocks):
        carries.append(step(addends[-1][c], factors[-1][c], carries[-1]))
    state = step(torch.stack(addends, 1), torch.stack(factors, 1), torch.stack(carries[:-1]).unsqueeze(1))
    state = state.reshape(blocks * block, *rows)[:length]
    beyond = torch.cat([seed.unsqueeze(0), state[:-1]])
    return (state.flip(0), beyond.flip(0)) if backward else (state, beyond)
