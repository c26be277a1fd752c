"""Rollouts from real Gymnasium environments, as the arguments of every recurrence.

Random arrays have no opinion about which value belongs to which step; an environment has. `collect` runs a vectorised
environment in one of Gymnasium's three autoreset modes and keeps, beside what a training loop would store, the value of the
TRUE successor of every step. With that at hand the other ways of saying where a bootstrap comes from can be checked.

What `values[t + 1]` is where the episode ended with row t:

- `same_step`: the environment is reset within row t, and the final observation is in `infos["final_obs"]`. Row t + 1 is the first
  step of the next episode, so `values[t + 1]` is V of the reset observation and wrong as a bootstrap.
- `next_step`: row t returns the final observation. Row t + 1 is the reset: the action is ignored, the reward is 0, no flag is
  raised and `valid` is False. Its observation is still the final one, so `values[t + 1]` is the right bootstrap. Row t + 2 is the
  first step of the next episode.
- `disabled`: row t returns the final observation, and the caller resets. From then on as `same_step`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

AUTORESET_MODES = ("same_step", "next_step", "disabled")

# Long enough for episodes of different lengths, short enough for many of them in a window. CartPole under a random policy
# falls after 10 to 40 steps, so that steps of all kinds occur: terminated, truncated, and both at once. The other two only
# ever run into the limit, all environments at the same step; Pendulum's rewards differ from step to step.
TIME_LIMITS = {"CartPole-v1": 25, "Acrobot-v1": 30, "Pendulum-v1": 25}

# Pendulum wants a torque; the policies choose one of these.
TORQUES = np.array([-2.0, 0.0, 2.0], dtype=np.float32)

GAMMA = 0.99
LAM = 0.95

# Which ways there are to say what lies behind a step. `next_step` needs the rows of that autoreset mode.
_VALUE_SOURCES = ("next_values", "final_values", "next_step")
SOURCES = {
    "gae": _VALUE_SOURCES,
    "vtrace": _VALUE_SOURCES,
    "retrace": ("expected_next_q", "next_q_values"),
    "lambda_returns": _VALUE_SOURCES,
    "discounted_returns": _VALUE_SOURCES,
    "eligibility_traces": ("flags",),
    "episodic_prefix_sum": ("flags", "starts"),
    "affine_scan": ("factor",),
}


@dataclass(frozen=True)
class Rollout:
    """One window of `T` steps of `N` environments, time-major. Floating arrays are float32, flags are bool.

    Attributes:
        environment: Gymnasium's name of the environment.
        autoreset: one of `AUTORESET_MODES`.
        observations: s_t, `[T, N, D]`.
        actions: index of a_t, drawn from the behaviour policy, `[T, N]`.
        rewards: r_t, `[T, N]`.
        values: V(s_t), `[T, N]`; on a reset row V of the final observation of the episode before.
        next_values: V(s'_t) of the true successor, `[T, N]`, also where the episode ends.
        bootstrap_value: V(s'_(T-1)), `[N]`.
        final_values: V(s'_t) where truncated, NaN elsewhere, `[T, N]`: what must not be read is poison.
        terminated: s'_t is terminal, `[T, N]`.
        truncated: the time limit was reached with this step, `[T, N]`.
        valid: False on the reset rows of `next_step`, `[T, N]`; None in the other modes, where every row is a transition.
        starts: step t is the first of its episode, `[T, N]`; never a reset row.
        policy: pi(.|s_t), `[T, N, A]`: not what `retrace` takes, and what it is wrongly given in public.
        log_rhos: log pi(a_t|s_t) - log mu(a_t|s_t), target over behaviour, `[T, N]`.
        q_values: Q(s_t, a_t), `[T, N]`.
        next_q_values: Q(s'_t, .), `[T, N, A]`.
        next_policy: pi(.|s'_t), `[T, N, A]`.
        expected_next_q: sum over a of pi(a|s'_t) Q(s'_t, a), `[T, N]`.
    """

    environment: str
    autoreset: str
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    values: np.ndarray
    next_values: np.ndarray
    bootstrap_value: np.ndarray
    final_values: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray | None
    starts: np.ndarray
    policy: np.ndarray
    log_rhos: np.ndarray
    q_values: np.ndarray
    next_q_values: np.ndarray
    next_policy: np.ndarray
    expected_next_q: np.ndarray


def collect(environment: str = "CartPole-v1", autoreset: str = "same_step", num_envs: int = 16, num_steps: int = 128, seed: int = 0) -> Rollout:
    """Run `environment` under a random softmax policy and keep a window of `num_steps` rows.

    The window opens after as many rows as the time limit has, so that it starts inside an episode for some environments and,
    in `next_step`, on a reset row for those whose episode ran into the limit. The same arguments give the same rollout.

    Args:
        environment: a name in `TIME_LIMITS`.
        autoreset: one of `AUTORESET_MODES`.
        num_envs: N.
        num_steps: T.
        seed: of the environments, the networks and the actions.

    Raises:
        ImportError: Gymnasium is not installed.
        ValueError: `environment` or `autoreset` is none of those known.
    """
    if environment not in TIME_LIMITS:
        raise ValueError(f"environment is {environment!r}, wanted one of {', '.join(TIME_LIMITS)}")
    if autoreset not in AUTORESET_MODES:
        raise ValueError(f"autoreset is {autoreset!r}, wanted one of {', '.join(AUTORESET_MODES)}")
    gymnasium = _import_gymnasium()
    limit = TIME_LIMITS[environment]

    def make_one() -> Any:
        return gymnasium.make(environment, max_episode_steps=limit, disable_env_checker=True)

    envs = gymnasium.vector.SyncVectorEnv([make_one] * num_envs, autoreset_mode=gymnasium.vector.AutoresetMode[autoreset.upper()])
    num_features = envs.single_observation_space.shape[0]
    num_actions = len(TORQUES) if environment == "Pendulum-v1" else int(envs.single_action_space.n)

    random = np.random.default_rng(seed)
    value_network = _network(random, num_features, 1)
    q_network = _network(random, num_features, num_actions)
    behaviour_network = _network(random, num_features, num_actions)
    target_network = _network(random, num_features, num_actions)

    # One number for each transition, not for each row: the modes then see the same episodes, one with reset rows in between.
    draws = random.random((num_envs, limit + num_steps))
    transitions = np.zeros(num_envs, dtype=np.int64)
    everyone = np.arange(num_envs)

    observation, _ = envs.reset(seed=seed)
    is_first = np.ones(num_envs, dtype=bool)
    is_reset_row = np.zeros(num_envs, dtype=bool)
    rows: list[dict[str, np.ndarray]] = []
    for _ in range(limit + num_steps):
        action = _sample(_softmax(behaviour_network(observation)), draws[everyone, transitions])
        transitions += ~is_reset_row
        next_observation, reward, terminated, truncated, infos = envs.step(TORQUES[action, None] if environment == "Pendulum-v1" else action)
        ended = terminated | truncated
        successor = next_observation
        if autoreset == "same_step" and ended.any():
            successor = _with_final_observations(next_observation, infos)
        if autoreset == "disabled" and ended.any():
            next_observation, _ = envs.reset(options={"reset_mask": ended})
        rows.append(
            {
                "observation": observation,
                "action": action,
                "reward": reward,
                "successor": successor,
                "terminated": terminated,
                "truncated": truncated,
                "valid": ~is_reset_row,
                "starts": is_first,
            }
        )
        observation = next_observation
        is_first, is_reset_row = (is_reset_row, ended) if autoreset == "next_step" else (ended, is_reset_row)
    envs.close()

    window = {name: np.stack([row[name] for row in rows[limit:]]) for name in rows[0]}
    observations, successors, actions = window["observation"], window["successor"], window["action"]
    next_values = value_network(successors)[..., 0].astype(np.float32)
    next_q_values = q_network(successors).astype(np.float32)
    next_policy = _softmax(target_network(successors)).astype(np.float32)
    policy = _softmax(target_network(observations))
    log_ratios = np.log(policy) - np.log(_softmax(behaviour_network(observations)))
    return Rollout(
        environment=environment,
        autoreset=autoreset,
        observations=observations.astype(np.float32),
        actions=actions,
        rewards=window["reward"].astype(np.float32),
        values=value_network(observations)[..., 0].astype(np.float32),
        next_values=next_values,
        bootstrap_value=next_values[-1],
        final_values=np.where(window["truncated"], next_values, np.float32(np.nan)),
        terminated=window["terminated"],
        truncated=window["truncated"],
        valid=window["valid"] if autoreset == "next_step" else None,
        starts=window["starts"],
        policy=policy.astype(np.float32),
        log_rhos=_taken(log_ratios, actions).astype(np.float32),
        q_values=_taken(q_network(observations), actions).astype(np.float32),
        next_q_values=next_q_values,
        next_policy=next_policy,
        expected_next_q=(next_q_values.astype(np.float64) * next_policy).sum(axis=-1).astype(np.float32),
    )


def sources_for(rollout: Rollout, op_name: str) -> tuple[str, ...]:
    """Names of the sources that `arguments_for` offers for this operation on this rollout."""
    if op_name not in SOURCES:
        raise ValueError(f"op_name is {op_name!r}, wanted one of {', '.join(SOURCES)}")
    return tuple(source for source in SOURCES[op_name] if source != "next_step" or rollout.autoreset == "next_step")


def arguments_for(rollout: Rollout, op_name: str, source: str, *, poison: bool = False) -> dict[str, Any]:
    """Keyword arguments that run the operation `op_name` on this rollout (`time_axis` is 0, `gamma` and `lam` are included).

    Args:
        rollout: what `collect` returned.
        op_name: a name in `SOURCES`.
        source: one of `sources_for(rollout, op_name)`. For the operations with values: `next_values`; `final_values`, which is
            `bootstrap_value` with `final_values`; `next_step`, which is `bootstrap_value` with `autoreset="next_step"`. For
            `retrace` the two forms of the expected next Q; for `episodic_prefix_sum` flags at the end or at the start.
        poison: put NaN (and raised flags on reset rows) into every place that is not read according to the boundary rules.
            The results must not change.
    """
    if source not in sources_for(rollout, op_name):
        raise ValueError(f"source is {source!r}, wanted one of {', '.join(sources_for(rollout, op_name))} for {op_name} on a {rollout.autoreset} rollout")
    ended = rollout.terminated | rollout.truncated
    if op_name == "affine_scan":
        factor = np.where(ended, np.float32(0), np.float32(GAMMA))
        return {"addend": rollout.rewards.copy(), "factor": factor, "reverse": True, "time_axis": 0}
    if op_name == "episodic_prefix_sum" and source == "starts":
        arguments: dict[str, Any] = {"inputs": rollout.rewards, "starts": rollout.starts}
    else:
        arguments = _own_arguments(rollout, op_name) | _source_arguments(rollout, source)
        arguments |= {"terminated": rollout.terminated, "truncated": rollout.truncated}
    if rollout.valid is not None:
        arguments["valid"] = rollout.valid
    # Copies, so that a caller who changes an argument changes nothing else.
    arguments = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    if poison:
        _poison(rollout, source, arguments)
    return arguments | {"time_axis": 0}


def _own_arguments(rollout: Rollout, op_name: str) -> dict[str, Any]:
    """What the operation takes whatever the source. The bars of the off-policy ones differ, so that a swapped one shows."""
    discounts = {"gamma": GAMMA, "lam": LAM}
    on_policy = {"rewards": rollout.rewards, "values": rollout.values}
    off_policy = {"log_rhos": rollout.log_rhos, "rewards": rollout.rewards}
    return {
        "gae": on_policy | discounts,
        "vtrace": off_policy | {"values": rollout.values, "rho_bar": 1.2, "c_bar": 1.0, "pg_rho_bar": 1.5} | discounts,
        "retrace": off_policy | {"q_values": rollout.q_values, "c_bar": 1.0, "rho_bar": 1.2} | discounts,
        "lambda_returns": {"rewards": rollout.rewards} | discounts,
        "discounted_returns": {"rewards": rollout.rewards, "gamma": GAMMA},
        "eligibility_traces": {"inputs": rollout.observations} | discounts,
        "episodic_prefix_sum": {"inputs": rollout.rewards},
    }[op_name]


def _source_arguments(rollout: Rollout, source: str) -> dict[str, Any]:
    """The arguments that say what lies behind each step."""
    window = {"values": rollout.values, "bootstrap_value": rollout.bootstrap_value}
    return {
        "next_values": {"next_values": rollout.next_values},
        "final_values": window | {"final_values": rollout.final_values},
        "next_step": window | {"autoreset": "next_step"},
        "expected_next_q": {"expected_next_q": rollout.expected_next_q},
        "next_q_values": {"next_q_values": rollout.next_q_values, "next_policy": rollout.next_policy},
        "flags": {},
    }[source]


def _poison(rollout: Rollout, source: str, arguments: dict[str, Any]) -> None:
    """Overwrite in `arguments` all that the boundary rules say is not read."""
    is_reset_row = np.zeros_like(rollout.terminated) if rollout.valid is None else ~rollout.valid
    behind_truncation = np.zeros_like(is_reset_row)
    behind_truncation[1:] = (rollout.truncated & ~rollout.terminated)[:-1]
    for name, value in arguments.items():
        if not isinstance(value, np.ndarray) or name == "valid":
            continue
        if value.dtype == bool:
            value[is_reset_row] = True
        elif name == "bootstrap_value":
            value[is_reset_row[-1] | rollout.terminated[-1]] = np.nan
        elif name == "values" and source == "next_step":
            value[is_reset_row & ~behind_truncation] = np.nan
        elif name in ("next_values", "final_values", "expected_next_q", "next_q_values", "next_policy"):
            value[is_reset_row | rollout.terminated] = np.nan
        else:
            value[is_reset_row] = np.nan


def _import_gymnasium() -> ModuleType:
    """Gymnasium, imported when it is used and not before: nothing else here needs it."""
    try:
        return importlib.import_module("gymnasium")
    except ImportError as error:
        raise ImportError("collecting rollouts needs Gymnasium: pip install 'rlscan[crosscheck]'") from error


def _with_final_observations(next_observation: np.ndarray, infos: dict[str, Any]) -> np.ndarray:
    """`next_observation` with the rows of environments that were just reset replaced by their final observations.

    `infos["final_obs"]` is an array of objects that is None where `infos["_final_obs"]` is False.
    """
    successor = next_observation.copy()
    for index in np.flatnonzero(infos["_final_obs"]):
        successor[index] = infos["final_obs"][index]
    return successor


def _network(random: np.random.Generator, num_inputs: int, num_outputs: int) -> Callable[[np.ndarray], np.ndarray]:
    """A small fixed network with one hidden layer of tanh, wide enough in its weights for outputs of order one."""
    hidden_weights = 3 * random.normal(size=(num_inputs, 16))
    hidden_bias = random.normal(size=16)
    weights = random.normal(size=(16, num_outputs)) / 4
    bias = random.normal(size=num_outputs) / 4

    def evaluate(observations: np.ndarray) -> np.ndarray:
        hidden = np.tanh(observations.astype(np.float64) @ hidden_weights + hidden_bias)
        return hidden @ weights + bias

    return evaluate


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _sample(policy: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """One action index a row, by inverting the cumulative distribution at `draw` in [0, 1)."""
    # The last cumulative sum is 1 up to rounding, so it is left out: it would allow an index one too high.
    return (policy.cumsum(axis=-1)[:, :-1] <= draw[:, None]).sum(axis=-1)


def _taken(table: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Entry of the action taken, `[.., A]` and `[..]` to `[..]`."""
    return np.take_along_axis(table, actions[..., None], axis=-1)[..., 0]
