"""Rollouts of real environments: what was collected is what it says, and every way of giving the bootstrap gives one result."""

import dataclasses
import inspect
import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from rlscan.crosscheck import rollouts
from rlscan.spec import reference

pytest.importorskip("gymnasium")

ENVIRONMENTS = tuple(rollouts.TIME_LIMITS)
MODES = rollouts.AUTORESET_MODES
EPS = float(np.finfo(np.float32).eps)
CARTPOLE_LIMIT = rollouts.TIME_LIMITS["CartPole-v1"]

each_rollout = pytest.mark.parametrize(("environment", "autoreset"), list(itertools.product(ENVIRONMENTS, MODES)))
each_mode = pytest.mark.parametrize("autoreset", MODES)
# With row 0 a reset row, the episodes of `next_step` end in row LIMIT: windows whose last row is inside an episode, ends one, and is a reset row.
each_end_of_window = pytest.mark.parametrize("beyond", [0, 1, 2])


@pytest.fixture(scope="module")
def collected():
    return {(environment, autoreset): rollouts.collect(environment, autoreset) for environment, autoreset in itertools.product(ENVIRONMENTS, MODES)}


def fields_of(rollout):
    return {field.name: getattr(rollout, field.name) for field in dataclasses.fields(rollout)}


def reset_rows_of(rollout):
    return np.zeros(rollout.rewards.shape, dtype=np.bool_) if rollout.valid is None else ~rollout.valid


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def episodes_of(rollout, env):
    """The transitions of one environment, cut behind every end, as lists of rows. What is left at the window's end comes last."""
    episodes, rows = [], []
    for t in range(rollout.rewards.shape[0]):
        if rollout.valid is None or rollout.valid[t, env]:
            rows.append(t)
            if rollout.terminated[t, env] or rollout.truncated[t, env]:
                episodes.append(rows)
                rows = []
    return [*episodes, rows] if rows else episodes


def all_episodes_of(rollout):
    return [(env, rows) for env in range(rollout.rewards.shape[1]) for rows in episodes_of(rollout, env)]


def gae_by_episodes(rollout):
    """Advantages from the definition, an episode at a time, with the true next values and nothing else."""
    advantages = np.zeros(rollout.rewards.shape)
    for env, rows in all_episodes_of(rollout):
        carry = 0.0
        for t in reversed(rows):
            behind = 0.0 if rollout.terminated[t, env] else float(rollout.next_values[t, env])
            carry = float(rollout.rewards[t, env]) + rollouts.GAMMA * behind - float(rollout.values[t, env]) + rollouts.GAMMA * rollouts.LAM * carry
            advantages[t, env] = carry
    return advantages


def in_float64(arguments) -> dict[str, Any]:
    """So that results may be compared with a loop in float64 up to a few roundings of float64."""
    return {name: value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype == np.float32 else value for name, value in arguments.items()}


@each_rollout
def test_shapes_and_types(collected, environment, autoreset):
    rollout = collected[environment, autoreset]
    steps, actions = (128, 16), {"CartPole-v1": 2, "Acrobot-v1": 3, "Pendulum-v1": 3}[environment]
    for name in ("rewards", "values", "next_values", "final_values", "log_rhos", "q_values", "expected_next_q"):
        array = getattr(rollout, name)
        assert (array.shape, array.dtype) == (steps, np.float32), name
        assert name == "final_values" or np.isfinite(array).all(), name
    for name in ("terminated", "truncated", "starts"):
        assert (getattr(rollout, name).shape, getattr(rollout, name).dtype) == (steps, np.bool_), name
    assert rollout.bootstrap_value.shape == (16,)
    assert rollout.next_q_values.shape == rollout.next_policy.shape == (*steps, actions)
    assert rollout.next_q_values.dtype == rollout.next_policy.dtype == np.float32
    np.testing.assert_allclose(rollout.next_policy.sum(axis=-1), 1, rtol=actions * EPS)
    assert set(np.unique(rollout.actions)) == set(range(actions))
    assert (rollout.valid is not None) == (autoreset == "next_step")


@each_mode
def test_cartpole_has_steps_of_every_kind(collected, autoreset):
    rollout = collected["CartPole-v1", autoreset]
    assert (rollout.terminated & ~rollout.truncated).sum() > 5
    assert (rollout.truncated & ~rollout.terminated).sum() > 5
    assert (rollout.terminated & rollout.truncated).any()
    assert (rollout.log_rhos > 0).sum() > 100, "ratios above 1 are what the bars clip"
    assert (rollout.log_rhos < 0).sum() > 100
    if rollout.valid is not None:
        assert not rollout.valid[0].all(), "some windows open on a reset row"
        assert rollout.valid[0].any()


@pytest.mark.parametrize("environment", ["Acrobot-v1", "Pendulum-v1"])
@each_mode
def test_the_others_only_truncate(collected, environment, autoreset):
    rollout = collected[environment, autoreset]
    assert not rollout.terminated.any()
    assert rollout.truncated.any()


@each_rollout
def test_next_values_are_those_of_the_true_successor(collected, environment, autoreset):
    rollout = collected[environment, autoreset]
    ended = rollout.terminated | rollout.truncated
    inside = ~ended[:-1]
    np.testing.assert_array_equal(rollout.next_values[:-1][inside], rollout.values[1:][inside])
    np.testing.assert_array_equal(rollout.bootstrap_value, rollout.next_values[-1])
    np.testing.assert_array_equal(rollout.final_values, np.where(rollout.truncated, rollout.next_values, np.nan))
    behind_an_end = rollout.next_values[:-1][ended[:-1]], rollout.values[1:][ended[:-1]]
    if autoreset == "next_step":
        # What makes `values[t + 1]` the right bootstrap there: the reset row still holds the final observation.
        np.testing.assert_array_equal(*behind_an_end)
    else:
        assert (behind_an_end[0] != behind_an_end[1]).mean() > 0.9, "the value of the reset observation is another one"


@each_rollout
def test_action_values_and_policy_are_those_of_the_true_successor(collected, environment, autoreset):
    rollout = collected[environment, autoreset]
    ended = rollout.terminated | rollout.truncated
    # That holds on reset rows too: what the reset returns is the observation of the row behind.
    t, env = np.nonzero(~ended[:-1])
    np.testing.assert_array_equal(rollout.next_q_values[t, env, rollout.actions[t + 1, env]], rollout.q_values[t + 1, env])
    np.testing.assert_array_equal(rollout.next_policy[t, env], rollout.policy[t + 1, env])
    if autoreset != "next_step":
        t, env = np.nonzero(ended[:-1])
        assert (rollout.next_policy[t, env] != rollout.policy[t + 1, env]).mean() > 0.9


@each_rollout
def test_ratios_are_target_over_behaviour(collected, environment, autoreset):
    """Under the behaviour policy the mean of pi/mu is 1, and that of mu/pi is not. Four standard errors; the seed is fixed."""
    rollout = collected[environment, autoreset]
    ratios = np.exp(rollout.log_rhos[~reset_rows_of(rollout)].astype(np.float64))
    for values, is_one in ((ratios, True), (1 / ratios, False)):
        assert (abs(values.mean() - 1) < 4 * values.std() / np.sqrt(values.size)) == is_one
    taken = np.take_along_axis(rollout.policy, rollout.actions[..., None], axis=-1)[..., 0]
    behaviour = taken * np.exp(-rollout.log_rhos)
    assert ((behaviour > 0) & (behaviour < 1)).all()


@each_rollout
def test_the_policy_of_the_wrong_state_gives_other_targets(collected, environment, autoreset):
    rollout = collected[environment, autoreset]
    arguments = rollouts.arguments_for(rollout, "retrace", "next_q_values")
    right, wrong = reference.retrace(**arguments), reference.retrace(**arguments | {"next_policy": rollout.policy})
    assert np.abs(right.targets - wrong.targets).max() > 0.01 * np.abs(right.targets).max()


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_reset_rows_follow_the_ends_and_hold_nothing(collected, environment):
    rollout = collected[environment, "next_step"]
    ended = rollout.terminated | rollout.truncated
    is_reset_row = reset_rows_of(rollout)
    np.testing.assert_array_equal(is_reset_row[1:], ended[:-1])
    assert not ended[is_reset_row].any()
    assert (rollout.rewards[is_reset_row] == 0).all()
    np.testing.assert_array_equal(rollout.starts[1:], is_reset_row[:-1])


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("autoreset", ["same_step", "disabled"])
def test_starts_follow_the_ends(collected, environment, autoreset):
    rollout = collected[environment, autoreset]
    np.testing.assert_array_equal(rollout.starts[1:], (rollout.terminated | rollout.truncated)[:-1])


@each_rollout
def test_no_episode_is_longer_than_the_limit(collected, environment, autoreset):
    rollout = collected[environment, autoreset]
    limit = rollouts.TIME_LIMITS[environment]
    for env in range(16):
        episodes = episodes_of(rollout, env)
        assert max(len(rows) for rows in episodes) <= limit
        for rows in episodes[1:-1]:
            assert rollout.truncated[rows[-1], env] == (len(rows) == limit)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_resetting_by_hand_is_same_step(collected, environment):
    """The caller's own resets give the same window, so `final_obs` was read rightly."""
    disabled, same_step = (fields_of(collected[environment, autoreset]) for autoreset in ("disabled", "same_step"))
    for name in disabled.keys() - {"autoreset"}:
        np.testing.assert_array_equal(disabled[name], same_step[name], err_msg=name)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_next_step_is_same_step_with_reset_rows(collected, environment):
    """Whole episodes are equal transition by transition; the two windows open at other steps, so look for each in the other."""
    next_step, same_step = collected[environment, "next_step"], collected[environment, "same_step"]
    for env in range(16):
        known = {}
        for rows in episodes_of(same_step, env):
            known[same_step.observations[rows[0], env].tobytes()] = rows
        shared = 0
        for rows in episodes_of(next_step, env)[1:-1]:
            others = known.get(next_step.observations[rows[0], env].tobytes())
            if others is None or len(others) != len(rows):
                continue
            shared += 1
            for name in ("rewards", "values", "next_values", "terminated", "truncated", "log_rhos", "q_values", "expected_next_q"):
                np.testing.assert_array_equal(getattr(next_step, name)[rows, env], getattr(same_step, name)[others, env], err_msg=name)
        assert shared >= 2


@each_mode
def test_same_seed_same_rollout(autoreset):
    first, again, other = (fields_of(rollouts.collect("CartPole-v1", autoreset, num_envs=3, num_steps=40, seed=seed)) for seed in (7, 7, 8))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name], err_msg=name)
    assert not np.array_equal(first["values"], other["values"])


@each_rollout
def test_gae_of_the_reference_is_that_of_the_episodes(collected, environment, autoreset):
    rollout = collected[environment, autoreset]
    wanted = gae_by_episodes(rollout)
    size = np.abs(rollout.rewards).max() + 2 * np.abs(rollout.next_values).max()
    # At most TIME_LIMIT steps of about ten roundings each, of sums of at most TIME_LIMIT addends.
    limit = rollouts.TIME_LIMITS[environment]
    bound = 10 * limit * np.finfo(np.float64).eps * limit * size
    for source in rollouts.sources_for(rollout, "gae"):
        got = reference.gae(**in_float64(rollouts.arguments_for(rollout, "gae", source)))
        np.testing.assert_allclose(got.advantages, wanted, rtol=0, atol=bound, err_msg=source)
        np.testing.assert_allclose(got.returns, np.where(wanted != 0, wanted + rollout.values, 0), rtol=0, atol=2 * bound, err_msg=source)


@each_rollout
@pytest.mark.parametrize("op_name", rollouts.SOURCES)
def test_arguments_are_those_of_the_public_function(collected, environment, autoreset, op_name):
    for source in rollouts.sources_for(collected[environment, autoreset], op_name):
        arguments = rollouts.arguments_for(collected[environment, autoreset], op_name, source)
        parameters = inspect.signature(getattr(reference, op_name)).parameters
        assert arguments.keys() <= parameters.keys()
        assert arguments["time_axis"] == 0
        assert {"gamma", "lam"} & parameters.keys() <= arguments.keys()


@each_mode
@pytest.mark.parametrize("op_name", [name for name, sources in rollouts.SOURCES.items() if len(sources) > 1 and name != "retrace"])
@each_end_of_window
def test_every_source_gives_the_same(autoreset, op_name, beyond):
    for environment in ("CartPole-v1", "Pendulum-v1"):
        rollout = rollouts.collect(environment, autoreset, num_steps=CARTPOLE_LIMIT + beyond)
        results = [
            as_tuple(getattr(reference, op_name)(**rollouts.arguments_for(rollout, op_name, source))) for source in rollouts.sources_for(rollout, op_name)
        ]
        assert len(results) >= 2
        for other in results[1:]:
            for wanted, got in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_the_windows_end_in_each_way():
    """What `each_end_of_window` is meant to bring about."""
    limit = rollouts.TIME_LIMITS["Pendulum-v1"]
    windows = [rollouts.collect("Pendulum-v1", "next_step", num_steps=limit + beyond) for beyond in (0, 1, 2)]
    assert all(reset_rows_of(window)[0].all() for window in windows)
    assert [(window.truncated[-1].all(), reset_rows_of(window)[-1].all()) for window in windows] == [(False, False), (True, False), (False, True)]


@each_mode
@pytest.mark.parametrize("op_name", rollouts.SOURCES)
@each_end_of_window
def test_what_is_not_read_changes_nothing(autoreset, op_name, beyond):
    for environment in ("CartPole-v1", "Pendulum-v1"):
        rollout = rollouts.collect(environment, autoreset, num_steps=CARTPOLE_LIMIT + beyond)
        for source in rollouts.sources_for(rollout, op_name):
            clean, poisoned = (
                as_tuple(getattr(reference, op_name)(**rollouts.arguments_for(rollout, op_name, source, poison=poison))) for poison in (False, True)
            )
            for wanted, got in zip(clean, poisoned, strict=True):
                assert np.isfinite(wanted).all()
                np.testing.assert_array_equal(got, wanted, err_msg=source)


@each_mode
def test_poison_is_there(autoreset):
    """The test above shows nothing unless the arguments do differ."""
    rollout = rollouts.collect("CartPole-v1", autoreset)
    is_reset_row = reset_rows_of(rollout)
    arguments = rollouts.arguments_for(rollout, "gae", "next_values", poison=True)
    np.testing.assert_array_equal(np.isnan(arguments["next_values"]), rollout.terminated | is_reset_row)
    np.testing.assert_array_equal(np.isnan(arguments["rewards"]), is_reset_row)
    assert np.isfinite(rollout.next_values).all(), "the rollout itself is left as it was"
    if autoreset == "next_step":
        values = rollouts.arguments_for(rollout, "gae", "next_step", poison=True)["values"]
        bootstraps_a_truncation = np.zeros_like(is_reset_row)
        bootstraps_a_truncation[1:] = (rollout.truncated & ~rollout.terminated)[:-1]
        np.testing.assert_array_equal(np.isnan(values), is_reset_row & ~bootstraps_a_truncation)


@each_rollout
def test_both_forms_of_the_expected_next_q_agree(collected, environment, autoreset):
    rollout = collected[environment, autoreset]
    form, other = (reference.retrace(**in_float64(rollouts.arguments_for(rollout, "retrace", source))) for source in rollouts.SOURCES["retrace"])
    # `expected_next_q` was rounded to float32 once; an error there is carried over at most TIME_LIMIT steps.
    bound = EPS * rollouts.TIME_LIMITS[environment] * np.abs(rollout.next_q_values).max()
    np.testing.assert_allclose(form.targets, other.targets, rtol=0, atol=bound)
    np.testing.assert_allclose(form.advantages, other.advantages, rtol=0, atol=2 * bound)


@each_rollout
def test_affine_scan_is_the_discounted_sum_of_the_episodes(collected, environment, autoreset):
    rollout = collected[environment, autoreset]
    scanned = reference.affine_scan(**rollouts.arguments_for(rollout, "affine_scan", "factor"))
    for env, rows in all_episodes_of(rollout):
        total = np.float32(0)
        for t in reversed(rows):
            total = rollout.rewards[t, env] + np.float32(rollouts.GAMMA) * total
        size = np.abs(rollout.rewards[rows, env]).sum()
        assert abs(scanned[rows[0], env] - total) <= 2 * len(rows) * EPS * size


@each_rollout
def test_traces_are_those_of_the_episodes(collected, environment, autoreset):
    rollout = collected[environment, autoreset]
    traces = reference.eligibility_traces(**in_float64(rollouts.arguments_for(rollout, "eligibility_traces", "flags", poison=True)))
    assert traces.shape == rollout.observations.shape
    assert (traces[reset_rows_of(rollout)] == 0).all()
    for env, rows in all_episodes_of(rollout):
        trace = np.zeros(rollout.observations.shape[-1])
        size = np.abs(rollout.observations[rows, env]).sum(axis=0)
        for t in rows:
            trace = rollout.observations[t, env] + rollouts.GAMMA * rollouts.LAM * trace
            # Three roundings a step, on each side.
            assert (np.abs(traces[t, env] - trace) <= 6 * len(rows) * np.finfo(np.float64).eps * size).all()


def test_prefix_sums_count_the_steps_of_episodes(collected):
    """CartPole pays 1 a step, so a running sum is the number of steps so far."""
    for autoreset in MODES:
        rollout = collected["CartPole-v1", autoreset]
        sums = reference.episodic_prefix_sum(**rollouts.arguments_for(rollout, "episodic_prefix_sum", "flags"))
        for env, rows in all_episodes_of(rollout):
            np.testing.assert_array_equal(sums[rows, env], np.arange(1, len(rows) + 1))


def test_unknown_names_are_refused(collected):
    rollout = collected["CartPole-v1", "same_step"]
    with pytest.raises(ValueError, match=r"environment is 'Pong', wanted one of CartPole-v1"):
        rollouts.collect("Pong")
    with pytest.raises(ValueError, match=r"autoreset is 'never', wanted one of same_step"):
        rollouts.collect("CartPole-v1", "never")
    with pytest.raises(ValueError, match=r"op_name is 'sarsa', wanted one of gae"):
        rollouts.sources_for(rollout, "sarsa")
    with pytest.raises(ValueError, match=r"source is 'next_step', wanted one of next_values, final_values for gae on a same_step rollout"):
        rollouts.arguments_for(rollout, "gae", "next_step")


def test_gymnasium_is_imported_when_used_and_its_absence_explained(monkeypatch):
    code = "import sys, rlscan.crosscheck.rollouts; sys.exit('gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"pip install 'rlscan\[crosscheck\]'"):
        rollouts.collect("CartPole-v1")
