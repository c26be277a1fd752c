"""What docs/conventions.md says to pass, if you come from another library, gives that library's numbers: each loop is its definition."""

import numpy as np
import pytest

from rlscan.crosscheck import formulas
from rlscan.spec import reference

N, T = 5, 12
GAMMA, LAM = 0.9, 0.8

# Each result is a sum of at most T terms of at most about ten roundings each, of numbers below 100.
BOUND = 10 * T * np.finfo(np.float64).eps * 100 * T


@pytest.fixture
def random():
    return np.random.default_rng(0)


def flags(random, rate=0.2):
    return random.random((N, T)) < rate


NEVER = np.zeros((N, T), bool)


def agree(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=BOUND)


def test_dreamer(random):
    """Rewards and flags arrive with record t+1; `last` also where `term`."""
    reward, boot, term = random.normal(size=(N, T)), random.normal(size=(N, T)), flags(random)
    last = flags(random) | term
    returns = boot.copy()
    for t in reversed(range(T - 1)):
        live, go_on = (1 - term[:, t + 1]) * GAMMA, (1 - last[:, t + 1]) * LAM
        returns[:, t] = reward[:, t + 1] + live * ((1 - go_on) * boot[:, t + 1] + go_on * returns[:, t + 1])
    ours = reference.lambda_returns(reward[:, 1:], terminated=term[:, 1:], truncated=last[:, 1:] & ~term[:, 1:], next_values=boot[:, 1:], gamma=GAMMA, lam=LAM)
    agree(ours, returns[:, :-1])


def test_pufferlib(random):
    """A hybrid of GAE and V-trace, on arriving records; its last column is 0."""
    rewards, values, log_ratio, dones = *random.normal(size=(3, N, T)), flags(random)
    advantages, last = np.zeros((N, T)), np.zeros(N)
    for t in reversed(range(T - 1)):
        rho, c, go_on = np.minimum(1.2, np.exp(log_ratio[:, t])), np.minimum(0.9, np.exp(log_ratio[:, t])), 1 - dones[:, t + 1]
        last = rho * (rewards[:, t + 1] + GAMMA * values[:, t + 1] * go_on - values[:, t]) + GAMMA * LAM * c * last * go_on
        advantages[:, t] = last
    ours = reference.vtrace(
        log_ratio[:, :-1], rewards[:, 1:], values[:, :-1], terminated=dones[:, 1:], next_values=values[:, 1:], gamma=GAMMA, lam=LAM, rho_bar=1.2, c_bar=0.9
    )
    agree(ours.vs - values[:, :-1], advantages[:, :-1])


def test_stoix(random):
    """A termination is a discount of 0, a truncation a flag of its own."""
    rewards, v_tm1, v_t = random.normal(size=(3, N, T))
    discounts, truncation = np.where(flags(random), 0, GAMMA), flags(random)
    advantages, last = np.zeros((N, T)), np.zeros(N)
    for t in reversed(range(T)):
        last = rewards[:, t] + discounts[:, t] * v_t[:, t] - v_tm1[:, t] + discounts[:, t] * LAM * (1 - truncation[:, t]) * last
        advantages[:, t] = last
    ours = reference.gae(rewards, v_tm1, next_values=v_t, gamma=discounts, truncated=truncation, terminated=NEVER, lam=LAM)
    agree(ours.advantages, advantages)


def test_rlax_lambda_returns(random):
    rewards, v_t = random.normal(size=(2, N, T))
    discounts, lambdas = np.where(flags(random), 0, GAMMA), np.where(flags(random), 0, LAM)
    ours = reference.lambda_returns(rewards, next_values=v_t, gamma=discounts, lam=lambdas, terminated=NEVER)
    agree(ours, formulas.rlax_lambda_returns(rewards, discounts, v_t, lambdas))


def test_verl(random):
    rewards, values, mask = *random.normal(size=(2, N, T)), flags(random, 0.7)
    ours = reference.gae(rewards, values, valid=mask, terminated=NEVER, bootstrap_value=np.zeros(N), gamma=GAMMA, lam=LAM)
    agree(ours.advantages, np.where(mask, formulas.verl_unwhitened(rewards, values, mask, GAMMA, LAM), 0))


def test_sb3(random):
    """`episode_starts` stands one step later, and the reward of a truncated step holds the value of its final observation."""
    rewards, values, final_values = random.normal(size=(3, T, N))
    terminated, truncated = flags(random).T, flags(random).T
    truncated &= ~terminated
    dones = terminated | truncated
    episode_starts = np.concatenate([np.zeros((1, N), bool), dones[:-1]])
    last_values = random.normal(size=N)
    stored = rewards + np.where(truncated, GAMMA * final_values, 0)
    advantages = formulas.sb3_compute_returns_and_advantage(stored, values, episode_starts, last_values, dones[-1], GAMMA, LAM)[1]
    same = {"gamma": GAMMA, "lam": LAM, "time_axis": 0, "bootstrap_value": last_values}
    shifted = np.concatenate([episode_starts[1:], dones[-1:]])
    agree(reference.gae(stored, values, terminated=shifted, **same).advantages, advantages)
    agree(reference.gae(rewards, values, terminated=terminated, truncated=truncated, final_values=final_values, **same).advantages, advantages)
