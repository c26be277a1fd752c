"""Functions of other libraries, as `conform` is to call them: those that are installed, and of scripts that can't be imported their published formula."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlscan.crosscheck.conformance import conform
from rlscan.crosscheck.reading import Framework, Layout
from rlscan.crosscheck.verdicts import Report

CONVENTIONS = ("formula", "per-step", *(f"B{number}" for number in range(1, 9)))
"""What is asked of peers. Sizes, types and NaN inside are those of whatever calls them as much as theirs."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """One function.

    Attributes:
        library: for people.
        package: by which its version is known; None for a formula restated from scripts, which can't be imported.
        path: where it is imported from, `module:name`.
        called: what calls it with our arguments, where its own signature does not do.
        compiled: by `jax.jit`, without which hundreds of calls take long.
    """

    library: str
    package: str | None
    path: str
    op: str
    framework: Framework
    layout: Layout
    called: Callable[[Callable], Callable] | None = None
    adapter: Mapping[str, str | None] | None = None
    compiled: bool = False

    @property
    def name(self) -> str:
        version = f" {importlib.metadata.version(self.package)}" if self.package else ", its published formula"
        return f"{self.library}{version}: {self.path.partition(':')[2]}"

    def missing(self) -> str | None:
        """Why it can't be called."""
        try:
            self.function()
        except (ImportError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def function(self) -> Callable:
        module, _, name = self.path.partition(":")
        function = getattr(importlib.import_module(module), name)
        if self.called:
            function = self.called(function)
        return importlib.import_module("jax").jit(function) if self.compiled else function

    def report(self) -> Report:
        return conform(self.function(), self.op, framework=self.framework, layout=self.layout, adapter=self.adapter, rules=CONVENTIONS, name=self.name)


def _with_last_axis(x: Any) -> Any:
    """As TorchRL has arrays; a number is one."""
    return x[..., None] if hasattr(x, "shape") else x


def torchrl_gae(function: Callable) -> Callable:
    def called(rewards: Any, values: Any, next_values: Any, done: Any, terminated: Any, gamma: float, lam: float) -> Any:
        return function(*map(_with_last_axis, (gamma, lam, values, next_values, rewards, done, terminated)))

    return called


def torchrl_vtrace(function: Callable) -> Callable:
    def called(log_pi: Any, log_mu: Any, rewards: Any, values: Any, next_values: Any, done: Any, terminated: Any, gamma: float) -> Any:
        return function(*map(_with_last_axis, (gamma, log_pi, log_mu, values, next_values, rewards, done, terminated)))

    return called


def tianshou_gae(function: Callable) -> Callable:
    def called(values: Any, next_values: Any, rewards: Any, done: Any, terminated: Any, gamma: float, lam: float) -> Any:
        # as its caller does, by `value_mask`
        return function(values, next_values * np.logical_not(terminated), rewards, done, gamma, lam)

    return called


def rllib_targets(function: Callable) -> Callable:
    def called(rewards: Any, values: Any, next_values: Any, terminated: Any, truncated: Any, gamma: float, lam: float) -> Any:
        # as its connector does: behind each end of an episode, or of the window, a row for V of the last state
        ended = np.logical_or(terminated, truncated)
        ended[-1:] = True
        step = np.repeat(np.arange(len(rewards)), 1 + ended)
        appended = np.append(False, step[1:] == step[:-1])[: len(step)]
        arranged = np.where(appended, next_values[step], values[step]), np.where(appended, 0.0, rewards[step])
        targets = function(*arranged, terminated[step], np.logical_or(ended[step], appended), gamma, lam)
        return {"value_targets": targets[~appended]}

    return called


def sb3_buffer(buffer_type: Callable) -> Callable:
    from gymnasium.spaces import Box, Discrete

    def called(rewards: Any, values: Any, episode_starts: Any, last_values: Any, dones: Any, gamma: float, gae_lambda: float) -> Any:
        torch = importlib.import_module("torch")
        steps, rows = rewards.shape
        made = buffer_type(max(steps, 1), Box(0, 1, (1,)), Discrete(2), "cpu", gae_lambda, gamma, rows)
        made.buffer_size = steps
        made.rewards, made.values, made.episode_starts = rewards, values, episode_starts.astype(rewards.dtype)
        made.advantages = np.zeros_like(rewards)
        made.compute_returns_and_advantage(torch.from_numpy(last_values), dones)
        return made.advantages, made.returns

    return called


def purejaxrl_gae(function: Callable) -> Callable:
    def called(rewards: Any, values: Any, done: Any, bootstrap_value: Any, gamma: Any, lam: Any) -> Any:
        return function(types.SimpleNamespace(reward=rewards, value=values, done=done), bootstrap_value, gamma, lam)

    return called


TORCHRL, RLAX, FORMULAS = "torchrl.objectives.value.functional", "rlax", "rlscan.crosscheck.formulas"
RLLIB_TARGETS, RLLIB_VTRACE = "ray.rllib.utils.postprocessing.value_predictions", "ray.rllib.algorithms.impala.torch.vtrace_torch_v2"

PEERS = (
    Peer("TorchRL", "torchrl", f"{TORCHRL}:generalized_advantage_estimate", "gae", "torch", "batch", torchrl_gae),
    Peer("TorchRL", "torchrl", f"{TORCHRL}:vtrace_advantage_estimate", "vtrace", "torch", "batch", torchrl_vtrace),
    Peer("Stable-Baselines3", "stable-baselines3", "stable_baselines3.common.buffers:RolloutBuffer", "gae", "numpy", "time", sb3_buffer),
    Peer("Tianshou", "tianshou", "tianshou.algorithm.algorithm_base:_gae", "gae", "numpy", "row", tianshou_gae),
    Peer("RLlib", "ray", f"{RLLIB_TARGETS}:compute_value_targets", "gae", "numpy", "row", rllib_targets),
    Peer("RLlib", "ray", f"{RLLIB_VTRACE}:vtrace_torch", "vtrace", "torch", "time"),
    Peer("rlax", "rlax", f"{RLAX}:truncated_generalized_advantage_estimation", "gae", "jax", "row", compiled=True),
    Peer("rlax", "rlax", f"{RLAX}:vtrace", "vtrace", "jax", "row", compiled=True),
    Peer("rlax", "rlax", f"{RLAX}:lambda_returns", "lambda_returns", "jax", "row", compiled=True),
    Peer("rlax", "rlax", f"{RLAX}:discounted_returns", "discounted_returns", "jax", "row", compiled=True),
    Peer("Brax", "brax", "brax.training.agents.ppo.losses:compute_gae", "gae", "jax", "time", compiled=True),
    Peer("CleanRL", None, f"{FORMULAS}:cleanrl_gae", "gae", "numpy", "time"),
    Peer("PureJaxRL", None, f"{FORMULAS}:purejaxrl_gae", "gae", "numpy", "time", purejaxrl_gae),
    Peer("verl before whitening", None, f"{FORMULAS}:verl_unwhitened", "gae", "numpy", "batch", adapter={"valid": "mask"}),
)
