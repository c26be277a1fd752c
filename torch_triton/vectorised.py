"""The whole-array path: PyTorch operations on any device, and NumPy's in the memory of CPU tensors that are not too large.

Time is cut into blocks. All blocks are composed step by step at once, then a carry goes from block to block, so a row of T steps
costs about 2 sqrt(T) operations instead of T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rlscan.spec import coefficients
from rlscan.spec.binding import bind
from rlscan.spec.calls import Call
from rlscan.spec.steps import Steps
from rlscan.torch_triton._private import is_empty
from rlscan.torch_triton.arrays import Functions, HostArrays, HostSteps, WholeTensors, are_readable

# NumPy's calls cost less, PyTorch's use all cores.
MANY = 1 << 20

# Arrays of the frame's size that a call holds at one time.
AT_ONCE = 8

# Steps of a block in NumPy, and the rows from which on steps are taken one by one: what a call costs is then little beside its work.
BLOCK = 8
ROWS = 1024


def by_whole_arrays(call: Call) -> tuple[torch.Tensor, ...]:
    """The outputs of a call."""
    if any(map(is_empty, call.arrays.values())):
        dtype = WholeTensors(call.dtype, call.device).dtype
        return tuple(torch.empty(call.shape, dtype=dtype, device=call.device) for _ in call.recurrence.output_names)
    if call.device.type == "cpu" and math.prod(call.shape) < MANY and are_readable(call.arrays.values()):
        with np.errstate(all="ignore"):
            # `ascontiguousarray` would give a number an axis
            return tuple(torch.from_numpy(np.asarray(output, order="C")) for output in _by_numpy(call))
    return tuple(output.contiguous() for output in by_torch(Steps(call, WholeTensors(call.dtype, call.device)), scan))


def by_torch(steps: Steps, scan: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The outputs by PyTorch's operations; `scan(alpha, beta, seed, backward)` gives the state at every step."""
    (alpha, beta), seed = steps.coefficients(), steps.seed()
    state = scan(alpha, beta, seed, steps.call.backward)
    return steps.outputs(state, steps.beside(state, seed, steps.call.backward))


def _by_numpy(call: Call) -> tuple[np.ndarray, ...]:
    # glibc keeps twice the largest block that was ever freed, and hands the rest back to the kernel, whose pages cost more than the sums on them.
    # So one block of what a call needs is freed, which nothing has touched.
    np.empty(AT_ONCE * math.prod(call.shape), call.dtype)
    steps = HostSteps(call, HostArrays(call.dtype))
    (alpha, beta), seed = steps.coefficients(), steps.seed()
    state = _host_scan(alpha, beta, seed, coefficients.finite_then, coefficients.finite_step, call.backward)
    if not np.isfinite(state.min()) or not np.isfinite(state.max()):
        state = _host_scan(alpha, beta, seed, coefficients.then, coefficients.step, call.backward)
    return steps.outputs(state, steps.beside(state, seed, call.backward) if call.wiring.needs_state_beyond else None)


def _host_scan(alpha: np.ndarray, beta: np.ndarray, seed: np.ndarray, then: Callable[..., Any], step: Callable[..., Any], backward: bool) -> np.ndarray:
    """The state at every step, in the memory order of `alpha`."""
    if alpha.ndim == 1:
        return _host_scan(alpha[:, None], beta[:, None], seed[None], then, step, backward)[:, 0]
    state = np.empty_like(alpha)
    turned = alpha.strides[0] < max(alpha.strides[1:])
    addend, factor, into = (_rows_last(alpha), _rows_last(beta), _spaced(alpha)) if turned else (alpha, beta, state)
    along = slice(None, None, -1 if backward else 1)
    _fill(into[along], addend[along], factor[along], seed, then, step)
    if turned:
        state[...] = into
    return state


def _rows_last(array: np.ndarray) -> np.ndarray:
    """A copy with the elements of a step side by side in memory."""
    copy = _spaced(array)
    # A few rows at a time: at strides that are powers of two, the cache lines of many would push each other out.
    for first in range(0, array.shape[1], 64):
        copy[:, first : first + 64] = array[:, first : first + 64]
    return copy


def _spaced(array: np.ndarray) -> np.ndarray:
    """An array of this shape, with rows last and with strides that are no powers of two."""
    *shape, last = array.shape
    return np.empty((*shape, last + 16), array.dtype)[..., :last]


def _fill(state: np.ndarray, alpha: np.ndarray, beta: np.ndarray, seed: np.ndarray, then: Callable[..., Any], step: Callable[..., Any]) -> None:
    """Writes the state at every step, from the first to the last."""
    length = len(alpha)
    blocks = length // BLOCK if length > 2 * BLOCK and seed.size < ROWS else 0
    if blocks:
        within = blocks * BLOCK
        into, addend, factor = (np.moveaxis(array[:within].reshape(blocks, BLOCK, *array.shape[1:]), 1, 0) for array in (state, alpha, beta))
        maps = [(addend[0], factor[0])]
        for one, other in zip(addend[1:], factor[1:], strict=True):
            maps.append(then(*maps[-1], one, other))
        ends = into[-1]
        _fill(ends, *maps[-1], seed, then, step)
        before = np.concatenate([seed[None], ends[:-1]])
        for place, pair in zip(into[:-1], maps[:-1], strict=True):
            place[...] = step(*pair, before)
        seed, state, alpha, beta = ends[-1], state[within:], alpha[within:], beta[within:]
    for place, addend, factor in zip(state, alpha, beta, strict=True):
        place[...] = seed = step(addend, factor, seed)


def scan(
    alpha: torch.Tensor,
    beta: torch.Tensor,
    seed: torch.Tensor,
    backward: bool,
    bound: Callable[..., Any] = lambda function: bind(function, Functions, torch.Tensor),
) -> torch.Tensor:
    """The state at every step."""
    then, step = bound(coefficients.then), bound(coefficients.step)
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
    return state.flip(0) if backward else state
