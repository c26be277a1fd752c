"""What else computes GAE: small versions of how others do it, each checked and timed like rlscan.

Each takes the arrays of a plain call and gives advantages and returns. Nothing here is rlscan's own arithmetic, and nobody else's code.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlscan.crosscheck.backends import Device
from rlscan.crosscheck.engines import Function
from rlscan.crosscheck.workloads import Layout

GAMMA, LAM = 0.99, 0.95
"""The defaults of `gae`, which the workloads leave as they are."""

Operands = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Baseline:
    """One way to compute GAE.

    Attributes:
        name: in reports.
        framework: whose arrays it takes.
        layout: that it is written for.
        make: gives the function for a device; imports what it needs.
        longest: the most steps of a row that it is tried at.
        shapes: sizes on a GPU, rows and steps.
        on_gpu, on_cpu: where it is timed.
        flags: the dtype in which it wants its flags.
        package: that must be installed beside the framework.
    """

    name: str
    framework: str
    layout: Layout
    make: Callable[[Device], Function]
    shapes: tuple[tuple[int, int], ...] = ((4096, 128), (16384, 512))
    longest: int = 4096
    on_gpu: bool = True
    on_cpu: bool = True
    flags: str = "bool"
    package: str | None = None

    def missing(self) -> str | None:
        if self.package and importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed"
        return None


def _eager_loop(device: Device) -> Function:
    torch = importlib.import_module("torch")

    def loop(operands: Operands) -> tuple:
        rewards, values, terminated = (operands[name] for name in ("rewards", "values", "terminated"))
        advantages, advantage, next_value = torch.empty_like(rewards), 0.0, operands["bootstrap_value"]
        for t in reversed(range(len(rewards))):
            goes_on = 1.0 - terminated[t].float()
            td_error = rewards[t] + GAMMA * goes_on * next_value - values[t]
            advantages[t] = advantage = td_error + GAMMA * LAM * goes_on * advantage
            next_value = values[t]
        return advantages, advantages + values

    return loop


def _coefficients(torch: Any, operands: Operands) -> tuple[Any, Any]:
    """alpha and beta of GAE, batch-major."""
    values, goes_on = operands["values"], 1.0 - operands["terminated"].float()
    next_values = torch.cat([values[:, 1:], operands["bootstrap_value"][:, None]], 1)
    return operands["rewards"] + GAMMA * goes_on * next_values - values, GAMMA * LAM * goes_on


def _doubling(mode: str, device: Device) -> Function:
    """Hillis and Steele's scan: log2(T) times every step takes in the one as far behind as it has come."""
    torch = importlib.import_module("torch")

    def scan(operands: Operands) -> tuple:
        alpha, beta = _coefficients(torch, operands)
        reach, steps = 1, alpha.shape[1]
        while reach < steps:
            behind = torch.nn.functional.pad(alpha[:, reach:], (0, reach)), torch.nn.functional.pad(beta[:, reach:], (0, reach))
            alpha, beta = alpha + beta * behind[0], beta * behind[1]
            reach *= 2
        return alpha, alpha + operands["values"]

    return torch.compile(scan, dynamic=False, mode=mode)


def _torch_associative_scan(device: Device) -> Function:
    torch = importlib.import_module("torch")
    associative_scan = importlib.import_module("torch._higher_order_ops").associative_scan
    # the mode that becomes one kernel is for GPUs
    combine_mode = "pointwise" if device == "cuda" else "generic"

    def then(later: tuple[Any, Any], earlier: tuple[Any, Any]) -> tuple[Any, Any]:
        return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]

    def scan(operands: Operands) -> tuple:
        advantages, _ = associative_scan(then, _coefficients(torch, operands), 1, reverse=True, combine_mode=combine_mode)
        return advantages, advantages + operands["values"]

    return torch.compile(scan, dynamic=False)


def _plain_kernel(device: Device) -> Function:
    return importlib.import_module("rlscan.crosscheck.plain_kernel").gae


def _torchrl(device: Device) -> Function:
    torch = importlib.import_module("torch")
    estimate = importlib.import_module("torchrl.objectives.value.functional").vec_generalized_advantage_estimate

    def call(operands: Operands) -> tuple:
        values = operands["values"][..., None]
        next_values = torch.cat([values[:, 1:], operands["bootstrap_value"][:, None, None]], 1)
        flags = operands["terminated"][..., None]
        advantages, returns = estimate(GAMMA, LAM, values, next_values, operands["rewards"][..., None], flags, flags)
        return advantages[..., 0], returns[..., 0]

    return call


def _scanned(unroll: int, device: Device) -> Function:
    """`lax.scan` over time, as most JAX code has it."""
    lax, jnp = importlib.import_module("jax").lax, importlib.import_module("jax").numpy

    def scan(operands: Operands) -> tuple:
        def body(carried: tuple[Any, Any], step: tuple[Any, Any, Any]) -> tuple[Any, Any]:
            advantage, next_value = carried
            reward, value, goes_on = step
            td_error = reward + GAMMA * goes_on * next_value - value
            advantage = td_error + GAMMA * LAM * goes_on * advantage
            return (advantage, value), advantage

        last = operands["bootstrap_value"]
        steps = (operands["rewards"], operands["values"], 1.0 - operands["terminated"].astype(np.float32))
        _, advantages = lax.scan(body, (jnp.zeros_like(last), last), steps, reverse=True, unroll=unroll)
        return advantages, advantages + operands["values"]

    return scan


def _jax_associative_scan(device: Device) -> Function:
    lax, jnp = importlib.import_module("jax").lax, importlib.import_module("jax").numpy

    def then(later: tuple[Any, Any], earlier: tuple[Any, Any]) -> tuple[Any, Any]:
        return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]

    def scan(operands: Operands) -> tuple:
        values, goes_on = operands["values"], 1.0 - operands["terminated"].astype(np.float32)
        next_values = jnp.concatenate([values[1:], operands["bootstrap_value"][None]])
        alpha = operands["rewards"] + GAMMA * goes_on * next_values - values
        advantages, _ = lax.associative_scan(then, (alpha, GAMMA * LAM * goes_on), reverse=True)
        return advantages, advantages + values

    return scan


def _rlax(device: Device) -> Function:
    """Rlax's formula: one row, a discount of 0 where an episode ends, and T + 1 values; mapped over rows."""
    jax = importlib.import_module("jax")

    def one_row(rewards: Any, discounts: Any, values: Any) -> Any:
        td_errors = rewards + discounts * values[1:] - values[:-1]

        def body(advantage: Any, step: tuple[Any, Any]) -> tuple[Any, Any]:
            td_error, discount = step
            advantage = td_error + discount * LAM * advantage
            return advantage, advantage

        return jax.lax.scan(body, jax.numpy.zeros((), rewards.dtype), (td_errors, discounts), reverse=True)[1]

    def call(operands: Operands) -> tuple:
        values = operands["values"]
        discounts = GAMMA * (1.0 - operands["terminated"].astype(np.float32))
        beyond = jax.numpy.concatenate([values, operands["bootstrap_value"][:, None]], 1)
        advantages = jax.vmap(one_row)(operands["rewards"], discounts, beyond)
        return advantages, advantages + values

    return call


def _brax(device: Device) -> Function:
    """Brax's formula, whose advantage takes in the next target with the whole discount; that is GAE for lam = 1 alone."""
    lax, jnp = importlib.import_module("jax").lax, importlib.import_module("jax").numpy

    def call(operands: Operands) -> tuple:
        rewards, values, last = operands["rewards"], operands["values"], operands["bootstrap_value"]
        discounts = GAMMA * (1.0 - operands["terminated"].astype(np.float32))
        td_errors = rewards + discounts * jnp.concatenate([values[1:], last[None]]) - values

        def body(above: Any, step: tuple[Any, Any]) -> tuple[Any, Any]:
            td_error, discount = step
            above = td_error + discount * LAM * above
            return above, above

        targets = lax.scan(body, jnp.zeros_like(last), (td_errors, discounts), reverse=True)[1] + values
        return rewards + discounts * jnp.concatenate([targets[1:], last[None]]) - values, targets

    return call


def _numpy_loop(device: Device) -> Function:
    """Stable-Baselines3's form: a Python loop over time on arrays of all rows."""

    def loop(operands: Operands) -> tuple:
        rewards, values = operands["rewards"], operands["values"]
        goes_on = 1.0 - operands["terminated"].astype(np.float32)
        advantages, advantage, next_value = np.empty_like(rewards), np.float32(0), operands["bootstrap_value"]
        for t in reversed(range(len(rewards))):
            td_error = rewards[t] + GAMMA * next_value * goes_on[t] - values[t]
            advantages[t] = advantage = td_error + GAMMA * LAM * goes_on[t] * advantage
            next_value = values[t]
        return advantages, advantages + values

    return loop


BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        Baseline("eager loop", "torch", "time", _eager_loop),
        Baseline("torch.compile of a doubling scan", "torch", "batch", functools.partial(_doubling, "default"), on_cpu=False),
        Baseline("torch.compile of a doubling scan, reduce-overhead", "torch", "batch", functools.partial(_doubling, "reduce-overhead"), on_cpu=False),
        Baseline("torch associative_scan, compiled", "torch", "batch", _torch_associative_scan, on_cpu=False),
        Baseline(
            "plain Triton kernel",
            "torch",
            "batch",
            _plain_kernel,
            shapes=((4096, 128), (16384, 128), (16384, 512), (4096, 2048)),
            on_cpu=False,
            flags="float32",
        ),
        Baseline("TorchRL", "torch", "batch", _torchrl, package="torchrl"),
        Baseline("lax.scan", "jax", "time", functools.partial(_scanned, 1)),
        Baseline("lax.scan, unroll 16", "jax", "time", functools.partial(_scanned, 16)),
        Baseline("lax.associative_scan", "jax", "time", _jax_associative_scan),
        Baseline("rlax's formula", "jax", "batch", _rlax),
        Baseline("Brax's formula", "jax", "time", _brax),
        Baseline("NumPy loop", "numpy", "time", _numpy_loop, on_gpu=False),
    )
}
