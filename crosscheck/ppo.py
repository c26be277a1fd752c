"""What rlscan gains where it is used: one synthetic PPO update, with GAE by a loop over time and by rlscan.

An update collects a rollout of a network on random observations into storage, computes GAE, and goes over all minibatches several
times. The environment costs nothing, so the share of GAE is larger than it would be anywhere: what is gained here is an upper limit.

Amdahl's law says what the whole should gain, 1 / (1 - p + p / s), from the share p of GAE and its own gain s; both are taken from GAE
alone, between two looks at the clock. Numbers are float32, at each framework's default precision of matrix products.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlscan.crosscheck.backends import Device
from rlscan.crosscheck.baselines import BASELINES
from rlscan.crosscheck.engines import Function

LOOPS = {"torch": "eager loop", "jax": "lax.scan"}
NETWORKS = ((64, 64), (256, 256), (1024, 1024))
"""Hidden layers."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of one update."""

    envs: int
    steps: int
    epochs: int = 4
    minibatches: int = 8
    observation: int = 64
    actions: int = 8

    def __str__(self) -> str:
        return f"{self.envs} environments, {self.steps} steps, {self.epochs} epochs of {self.minibatches} minibatches"


SIZES: dict[Device, Sizes] = {"cuda": Sizes(4096, 128), "cpu": Sizes(8, 64, epochs=2, minibatches=2, observation=8, actions=2)}
REPEATED = 5

CLIP, VALUE_WEIGHT, RATE = 0.2, 0.5, 3e-4


@dataclasses.dataclass
class Update:
    """Seconds of one update and of GAE alone, by a loop over time and by rlscan."""

    framework: str
    device: str
    network: str
    sizes: str
    with_loop: float
    with_rlscan: float
    gae_by_loop: float
    gae_by_rlscan: float

    @property
    def share(self) -> float:
        """Of GAE in the update with the loop."""
        return self.gae_by_loop / self.with_loop

    @property
    def gain(self) -> float:
        return self.with_loop / self.with_rlscan

    @property
    def predicted(self) -> float:
        """The gain by Amdahl's law."""
        return 1 / (1 - self.share + self.share * self.gae_by_rlscan / self.gae_by_loop) if self.share < 1 else float("inf")


def measure(framework: str, device: Device, hidden: tuple[int, ...], sizes: Sizes | None = None) -> Update:
    sizes = sizes or SIZES[device]
    made: Callable[..., Workbench] = {"torch": _torch, "jax": _jax}[framework]
    seconds = [made(device, hidden, sizes, gae).seconds() for gae in (BASELINES[LOOPS[framework]].make(device), _rlscan(framework))]
    (with_loop, by_loop), (with_rlscan, by_rlscan) = seconds
    return Update(framework, device, network_name(hidden), str(sizes), with_loop, with_rlscan, by_loop, by_rlscan)


def network_name(hidden: tuple[int, ...]) -> str:
    """The sizes of its hidden layers."""
    return " x ".join(map(str, hidden))


def _rlscan(framework: str) -> Function:
    gae = importlib.import_module({"torch": "rlscan.torch_triton", "jax": "rlscan.jax_pallas"}[framework]).gae
    return lambda operands: tuple(gae(**operands, time_axis=0))


@dataclasses.dataclass(frozen=True)
class Workbench:
    """One update and its GAE alone, each of which returns when it is done."""

    update: Callable[[], Any]
    gae: Callable[[], Any]

    def seconds(self) -> tuple[float, float]:
        return _median(self.update), _median(self.gae)


def _median(call: Callable[[], Any]) -> float:
    taken = []
    for _ in range(REPEATED + 2):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken[2:]))


def _environment(sizes: Sizes) -> dict[str, np.ndarray]:
    """What the environments would give, time-major: observations (one more than steps), noise of actions, rewards and ends."""
    random = np.random.default_rng(0)
    frame = (sizes.steps, sizes.envs)
    return {
        "observations": random.standard_normal((sizes.steps + 1, sizes.envs, sizes.observation), np.float32),
        "noise": random.standard_normal((*frame, sizes.actions), np.float32),
        "rewards": random.standard_normal(frame, np.float32),
        "terminated": random.random(frame) < 0.01,
    }


def _torch(device: Device, hidden: tuple[int, ...], sizes: Sizes, gae: Function) -> Workbench:
    torch = importlib.import_module("torch")
    nn = torch.nn
    torch.manual_seed(0)
    given = {name: torch.from_numpy(array).to(device) for name, array in _environment(sizes).items()}
    widths = (sizes.observation, *hidden)
    layers = [layer for wide, narrow in itertools.pairwise(widths) for layer in (nn.Linear(wide, narrow), nn.Tanh())]
    # the last column is the value
    network = nn.Sequential(*layers, nn.Linear(widths[-1], sizes.actions + 1)).to(device)
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
    storage = {name: torch.zeros_like(given[name]) for name in ("noise", "rewards", "terminated")}
    storage |= {"actions": torch.zeros_like(given["noise"]), "values": torch.zeros_like(given["rewards"]), "log_probs": torch.zeros_like(given["rewards"])}

    @torch.no_grad()
    def collect() -> dict[str, Any]:
        for t in range(sizes.steps):
            out = network(given["observations"][t])
            storage["actions"][t] = out[:, :-1] + given["noise"][t]
            storage["log_probs"][t] = -0.5 * given["noise"][t].square().sum(-1)
            storage["values"][t] = out[:, -1]
            storage["rewards"][t], storage["terminated"][t] = given["rewards"][t], given["terminated"][t]
        beyond = network(given["observations"][-1])[:, -1]
        return {**{name: storage[name] for name in ("rewards", "values", "terminated")}, "bootstrap_value": beyond}

    def learn(advantages: Any, returns: Any) -> None:
        flat = [x.reshape(sizes.steps * sizes.envs, -1) for x in (given["observations"][:-1], storage["actions"], storage["log_probs"], advantages, returns)]
        for _ in range(sizes.epochs):
            for chosen in torch.randperm(len(flat[0]), device=device).chunk(sizes.minibatches):
                observations, actions, log_probs, advantage, target = (x[chosen] for x in flat)
                out = network(observations)
                ratio = (-0.5 * (actions - out[:, :-1]).square().sum(-1) - log_probs[:, 0]).exp()
                advantage = advantage[:, 0]
                policy_loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
                loss = policy_loss + VALUE_WEIGHT * (out[:, -1] - target[:, 0]).square().mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()

    def done(call: Callable[[], Any]) -> Callable[[], None]:
        def waited() -> None:
            call()
            if device == "cuda":
                torch.cuda.synchronize()

        return waited

    def estimate(window: Mapping[str, Any]) -> tuple:
        with torch.no_grad():
            return gae(window)

    window = collect()
    return Workbench(done(lambda: learn(*estimate(collect()))), done(lambda: estimate(window)))


def _jax(device: Device, hidden: tuple[int, ...], sizes: Sizes, gae: Function) -> Workbench:
    """Everything in one jit."""
    jax = importlib.import_module("jax")
    jnp, lax, tree = jax.numpy, jax.lax, jax.tree
    where = jax.devices(device)[0]
    given = jax.device_put(_environment(sizes), where)
    widths = (sizes.observation, *hidden, sizes.actions + 1)
    random = np.random.default_rng(0)
    layers = [(random.standard_normal(pair, np.float32) / np.float32(pair[0]) ** 0.5, np.zeros(pair[1], np.float32)) for pair in itertools.pairwise(widths)]
    weights = jax.device_put(layers, where)

    def network(weights: Any, x: Any) -> Any:
        for matrix, bias in weights[:-1]:
            x = jnp.tanh(x @ matrix + bias[(None,) * (x.ndim - 1)])
        return x @ weights[-1][0] + weights[-1][1][(None,) * (x.ndim - 1)]

    def collect(weights: Any, given: Any) -> tuple[dict[str, Any], Any]:
        def step(_: None, inputs: tuple[Any, Any]) -> tuple[None, tuple[Any, Any, Any]]:
            observation, noise = inputs
            out = network(weights, observation)
            return None, (out[:, :-1] + noise, -0.5 * jnp.square(noise).sum(-1), out[:, -1])

        _, (actions, log_probs, values) = lax.scan(step, None, (given["observations"][:-1], given["noise"]))
        window = {"rewards": given["rewards"], "values": values, "terminated": given["terminated"]}
        window["bootstrap_value"] = network(weights, given["observations"][-1])[:, -1]
        return window, (given["observations"][:-1], actions, log_probs)

    def loss(weights: Any, batch: Any) -> Any:
        observations, actions, log_probs, advantage, target = batch
        out = network(weights, observations)
        ratio = jnp.exp(-0.5 * jnp.square(actions - out[:, :-1]).sum(-1) - log_probs)
        policy_loss = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
        return policy_loss + VALUE_WEIGHT * jnp.square(out[:, -1] - target).mean()

    def adam(state: Any, gradient: Any) -> Any:
        weights, first, second, count = state
        count = count + 1
        first = tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
        size = RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        return tree.map(lambda w, m, v: w - size * m / (jnp.sqrt(v) + 1e-8), weights, first, second), first, second, count

    def learn(state: Any, batch: Any, key: Any) -> Any:
        flat = tree.map(lambda x: x.reshape(sizes.steps * sizes.envs, *x.shape[2:]), batch)

        def minibatch(state: Any, chosen: Any) -> tuple[Any, None]:
            return adam(state, jax.grad(loss)(state[0], tree.map(lambda x: x[chosen], flat))), None

        def epoch(state: Any, key: Any) -> tuple[Any, None]:
            order = jax.random.permutation(key, sizes.steps * sizes.envs).reshape(sizes.minibatches, -1)
            return lax.scan(minibatch, state, order)

        return lax.scan(epoch, state, jax.random.split(key, sizes.epochs))[0]

    @jax.jit
    def update(state: Any, given: Any, key: Any) -> Any:
        window, stored = collect(state[0], given)
        # the targets are constants
        advantages, returns = gae(window)
        return learn(state, (*stored, advantages, returns), key)

    zeros = tree.map(jnp.zeros_like, weights)
    state = jax.device_put((weights, zeros, zeros, np.float32(0)), where)
    key = jax.device_put(jax.random.PRNGKey(0), where)
    window = jax.jit(lambda weights, given: collect(weights, given)[0])(weights, given)
    alone = jax.jit(gae)
    finished = functools.partial(jax.block_until_ready)
    return Workbench(lambda: finished(update(state, given, key)), lambda: finished(alone(window)))
