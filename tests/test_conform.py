"""Functions of others under `conform`: what is right is found right, what is wrong is named, and nothing that a function does is a crash.

The formulas of other libraries here are their own loops, in their own words and layouts.
"""

import dataclasses
import functools
import importlib
import inspect
import json
import math
import re
import sys
import types
import xml.etree.ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest

from rlscan.crosscheck import cases, conform, conformance, page, rules_of
from rlscan.crosscheck.__main__ import main
from rlscan.crosscheck.conform_page import markdown
from rlscan.crosscheck.mutants import MUTATIONS, PUBLISHED, Mutant, mutated
from rlscan.crosscheck.reading import MEANINGS
from rlscan.crosscheck.verdicts import HOLDS, UNSAID, VIOLATED, Report, Witness, as_json
from rlscan.spec import reference
from rlscan.spec.recurrences import RECURRENCES
from rlscan.spec.rules import RULES
from rlscan.spec.variants import VARIANTS

MISTAKES = {mutation.name: mutation for mutation in (*MUTATIONS, *PUBLISHED)}
FINITE = ("formula", "per-step", "B1", "B2", "B3", "B4", "B7", "B8")


@pytest.fixture
def quick(monkeypatch):
    """Without the smallest window, which takes most of the time."""
    monkeypatch.setattr(conformance._Examination, "_smallest", lambda self, rule: None)


def witness_of(report, rule) -> Witness:
    witness = report[rule].witness
    assert witness is not None, str(report)
    return witness


def made_of(recurrence, names) -> Mutant | None:
    """With all these mistakes; None where they can't be made."""
    mistake = MISTAKES[names[0]]
    for name in names[1:]:
        both = mistake.and_also(MISTAKES[name])
        if both is None:
            return None
        mistake = both
    return mutated(recurrence, mistake)


def faulty_results(recurrence, names, arguments) -> dict[str, np.ndarray]:
    mutant = made_of(recurrence, names)
    assert mutant is not None, names
    return dict(zip(recurrence.output_names, mutant.results(arguments), strict=True))


# Loops of others


def cleanrl(rewards, values, dones, next_value, next_done, gamma, gae_lambda):
    advantages, lastgaelam = np.zeros_like(rewards), 0
    for t in reversed(range(len(rewards))):
        nextnonterminal = 1.0 - (next_done if t == len(rewards) - 1 else dones[t + 1])
        nextvalues = next_value.reshape(-1) if t == len(rewards) - 1 else values[t + 1]
        delta = rewards[t] + gamma * nextvalues * nextnonterminal - values[t]
        advantages[t] = lastgaelam = delta + gamma * gae_lambda * nextnonterminal * lastgaelam
    return advantages, advantages + values


def brax(truncation, termination, rewards, values, bootstrap_value, lambda_=1.0, discount=0.99):
    mask, following = 1 - truncation, np.concatenate([values[1:], bootstrap_value[None]])[: len(values)]
    deltas = (rewards + discount * (1 - termination) * following - values) * mask
    corrections, last = np.zeros_like(values), np.zeros_like(bootstrap_value)
    for t in reversed(range(len(rewards))):
        corrections[t] = last = deltas[t] + discount * (1 - termination[t]) * mask[t] * lambda_ * last
    vs = corrections + values
    following = np.concatenate([vs[1:], bootstrap_value[None]])[: len(values)]
    return vs, (rewards + discount * (1 - termination) * following - values) * mask


def all_ends_alike(rewards, values, next_values, terminated, truncated, gamma, lam):
    """[N, T], as PureJaxRL and CleanRL treat the two flags."""
    advantages, last = np.zeros_like(rewards), np.zeros(len(rewards))
    done = np.logical_or(terminated, truncated)
    for t in reversed(range(rewards.shape[1])):
        last = rewards[:, t] + gamma * next_values[:, t] * (1 - done[:, t]) - values[:, t] + gamma * lam * (1 - done[:, t]) * last
        advantages[:, t] = last
    return advantages


def counts_twice(rewards, values, dones, last_value, gamma, lam):
    advantages, last = np.zeros_like(rewards), last_value
    for t in reversed(range(rewards.shape[1])):
        following = last_value if t == rewards.shape[1] - 1 else values[:, t + 1]
        last = rewards[:, t] + gamma * following * (1 - dones[:, t]) - values[:, t] + gamma * lam * (1 - dones[:, t]) * last
        advantages[:, t] = last
    return advantages


def reads_flags_late(rewards, values, dones, last_value, gamma, lam):
    """CleanRL's loop, for the flags of observations, under a name that says the flags of transitions."""
    advantages, last = np.zeros_like(rewards), np.zeros_like(last_value)
    for t in reversed(range(rewards.shape[1])):
        goes_on = 1 - (dones[:, t + 1] if t < rewards.shape[1] - 1 else np.zeros_like(last_value))
        following = last_value if t == rewards.shape[1] - 1 else values[:, t + 1]
        last = rewards[:, t] + gamma * following * goes_on - values[:, t] + gamma * lam * goes_on * last
        advantages[:, t] = last
    return advantages


def bootstraps_from_its_own_state(rewards, values, dones, timeouts, last_value, final_values, gamma, lam):
    """[T, N], as rsl_rl and rl_games: the reward holds the value of the state before."""
    advantages, last = np.zeros_like(rewards), np.zeros_like(last_value)
    done = np.maximum(dones, timeouts)
    for t in reversed(range(len(rewards))):
        following = last_value if t == len(rewards) - 1 else values[t + 1]
        folded = rewards[t] + gamma * values[t] * timeouts[t] * (1 - dones[t])
        last = folded + gamma * following * (1 - done[t]) - values[t] + gamma * lam * (1 - done[t]) * last
        advantages[t] = last
    return advantages


def with_discounts(r_t, discount_t, v_t, lambda_):
    """[T], as rlax's lambda_returns."""
    returns, last = np.zeros_like(r_t), v_t[-1]
    for t in reversed(range(len(r_t))):
        returns[t] = last = r_t[t] + discount_t[t] * ((1 - lambda_) * v_t[t] + lambda_ * last)
    return returns


def with_masks(rews, vals, masks, gamma, lam):
    """[T, N], values one longer."""
    advantages, last = np.zeros_like(rews), 0
    for t in reversed(range(len(rews))):
        last = rews[t] + gamma * vals[t + 1] * masks[t] - vals[t] + gamma * lam * masks[t] * last
        advantages[t] = last
    return advantages


def rlax_vtrace(v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_=1.0, clip_rho_threshold=1.0, clip_pg_rho_threshold=1.0):
    """[T]: errors, and advantages that mix by lambda."""
    rho, c = np.minimum(clip_rho_threshold, rho_tm1), lambda_ * np.minimum(1.0, rho_tm1)
    td, errors, last = rho * (r_t + discount_t * v_t - v_tm1), np.zeros_like(r_t), 0.0
    for t in reversed(range(len(r_t))):
        errors[t] = last = td[t] + discount_t[t] * c[t] * last
    targets = errors + v_tm1
    bootstrap = np.concatenate([lambda_ * targets[1:] + (1 - lambda_) * v_tm1[1:], v_t[-1:]])
    return errors, np.minimum(clip_pg_rho_threshold, rho_tm1) * (r_t + discount_t * bootstrap - v_tm1)


def torchrl(gamma, lmbda, state_value, next_state_value, reward, done, terminated):
    """[N, T, 1], where `done` is either end."""
    advantage, last = np.zeros_like(reward), 0.0
    delta = reward + gamma * next_state_value * (1.0 - terminated) - state_value
    for t in reversed(range(reward.shape[1])):
        advantage[:, t] = last = delta[:, t] + gamma * lmbda * (1.0 - done[:, t]) * last
    return advantage, advantage + state_value


def verl(token_level_rewards, values, response_mask, gamma, lam):
    advantages, following, last = np.zeros_like(values), 0.0, 0.0
    for t in reversed(range(values.shape[1])):
        here = token_level_rewards[:, t] + gamma * following - values[:, t] + gamma * lam * last
        following = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * following
        advantages[:, t] = last = here * response_mask[:, t] + (1 - response_mask[:, t]) * last
    return advantages, advantages + values


def openrlhf(values, rewards, action_mask, gamma, lambd):
    values, rewards = values * action_mask, rewards * action_mask
    advantages, last = np.zeros_like(values), 0.0
    for t in reversed(range(values.shape[1])):
        following = values[:, t + 1] if t < values.shape[1] - 1 else 0.0
        advantages[:, t] = last = rewards[:, t] + gamma * following - values[:, t] + gamma * lambd * last
    return advantages, advantages + values


def bootstraps_nothing(rewards, dones, gamma, last_value):
    returns, last = np.zeros_like(rewards), 0.0
    for t in reversed(range(rewards.shape[1])):
        last = rewards[:, t] + gamma * (1 - dones[:, t]) * last
        returns[:, t] = last
    return returns


def resets_early(x, dones):
    sums, last = np.zeros_like(x), 0.0
    for t in range(x.shape[1]):
        last = x[:, t] + np.where(dones[:, t], 0.0, last)
        sums[:, t] = last
    return sums


MASKS = "nothing is selected, all is multiplied"
OTHERS = [
    (cleanrl, "gae", {"formula", "B1", "B4"}, {"B5", "B6"}, (MASKS,)),
    (brax, "gae", {"B1", "B4"}, {"formula", "B2"}, ("steps are left out where truncated, and the advantage lacks lam", MASKS)),
    (all_ends_alike, "gae", {"formula", "B1", "B3", "B4"}, {"B2"}, ("truncation is passed as termination", MASKS)),
    (counts_twice, "gae", {"formula", "B1"}, {"B4"}, ("the bootstrap is also carried in from beyond the window", MASKS)),
    (reads_flags_late, "gae", {"formula", "B4"}, {"B1"}, ("the flags of the step after are read", MASKS)),
    (bootstraps_from_its_own_state, "gae", {"formula", "B1", "B3", "B4"}, {"B2"}, ("truncation bootstraps from its own state",)),
    (with_discounts, "lambda_returns", {"formula", "B1", "B4"}, {"B5", "B6"}, (MASKS,)),
    (with_masks, "gae", {"formula", "B1", "B4"}, {"B5", "B6"}, (MASKS,)),
    (rlax_vtrace, "vtrace", {"B1", "B4"}, {"formula"}, ("targets lack the value, and the advantage mixes by lam",)),
    (torchrl, "gae", {"formula", "B1", "B2", "B3", "B4", "B9"}, {"B5", "B6"}, (MASKS,)),
    (verl, "gae", {"formula"}, {"B8"}, ("outputs at invalid steps are left",)),
    (openrlhf, "gae", {"formula"}, {"B8"}, ("invalid steps are zero steps", "outputs at invalid steps are left")),
    (bootstraps_nothing, "discounted_returns", {"formula", "B1"}, {"B4"}, ("nothing is bootstrapped at the window's end",)),
    (resets_early, "episodic_prefix_sum", {"formula"}, {"B1", "B7"}, ("the reset shows at the ending step",)),
]


@pytest.mark.parametrize(("function", "op", "holds", "violated", "behaves"), OTHERS, ids=[other[0].__name__ for other in OTHERS])
def test_loops_of_others(function, op, holds, violated, behaves, quick):
    report = conform(function, op)
    assert {rule for rule in holds if report[rule].status != HOLDS} == set()
    assert {rule for rule in violated if report[rule].status != VIOLATED} == set()
    assert not report.conforms
    assert any(set(behaves) <= set(names) for names in report.behaves), report.diagnosis
    for name in behaves:
        assert VARIANTS[name].says in report.diagnosis


# The table


def test_the_table_is_of_mutations():
    assert set(VARIANTS) <= set(MISTAKES)
    assert {mutation.name for mutation in PUBLISHED} <= set(VARIANTS)
    for name, variant in VARIANTS.items():
        assert variant.name == name
        assert any(mutated(recurrence, MISTAKES[name]) for recurrence in RECURRENCES.values()), name


FAULTS = [(case, faulty) for case in cases.load() if not case.is_gradient for faulty in case.wrong]

# These come of two mistakes.
PAIRS = {
    ("gae-truncation-final-obs", "no_cut_at_truncation"): ("the next row's value is the successor's", "truncation does not cut"),
    ("gae-packed-sequences", "segments_as_one"): ("the next row's value is the successor's", "truncation is ignored"),
}
# At step 0 the expectation at s_0 is read, which the function is not given: where along time the results can be the same.
ELSEWHERE = {"retrace_current_value": [1, 2]}


def but_for_what_is_not_given(case, faulty):
    at = ELSEWHERE.get(faulty)
    if at is None:
        return case
    expected, wrong = ({name: x[at] for name, x in results.items()} for results in (case.expected, case.wrong[faulty]))
    return dataclasses.replace(case, expected=expected, wrong={faulty: wrong}, at=np.array(at))


def mistakes_of(case, faulty) -> list[tuple[str, ...]]:
    """The known variants that are said to give this result."""
    if (case.id, faulty) in PAIRS:
        return [PAIRS[case.id, faulty]]
    claimed = [(name,) for name, variant in VARIANTS.items() if faulty in variant.cases]
    return [names for names in claimed if made_of(RECURRENCES[case.op], names) is not None]


@pytest.mark.parametrize(("case", "faulty"), FAULTS, ids=[f"{case.id}-{faulty}" for case, faulty in FAULTS])
def test_the_table_gives_the_faulty_results_of_public_reports(case, faulty):
    mistakes = mistakes_of(case, faulty)
    case = but_for_what_is_not_given(case, faulty)
    assert faulty in [cases.recognise(case, faulty_results(RECURRENCES[case.op], names, case.arguments)) for names in mistakes]


def as_function(recurrence, names, parameters):
    """A faulty function with these parameters."""

    def theirs(**arguments):
        return recurrence.pack(tuple(faulty_results(recurrence, names, arguments | {"time_axis": -1}).values()))

    theirs.__dict__["__signature__"] = inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in parameters])
    return theirs


def parameters_of(case):
    """Those that the case gives, and those that a call needs besides."""
    op = RECURRENCES[case.op]
    given = {*case.arguments, "terminated"} - {"time_axis"}
    if "starts" in given:
        given -= {"terminated"}
    given |= {"gamma", "lam"} & set(op.argument_names)
    return [name for name in op.argument_names if name in given]


@pytest.mark.parametrize(("case", "faulty"), FAULTS, ids=[f"{case.id}-{faulty}" for case, faulty in FAULTS])
def test_the_diagnosis_names_the_variant(case, faulty, quick):
    recurrence = RECURRENCES[case.op]
    results = []
    for mistakes in mistakes_of(case, faulty):
        rules = [*FINITE, *(MISTAKES[name].rule for name in mistakes)] if mistakes != (MASKS,) else None
        report = conform(as_function(recurrence, mistakes, parameters_of(case)), case.op, layout="batch", rules=rules)
        assert report.violated or not report.behaves
        # what is named gives the numbers of the report, whether or not it is by the same names
        results += [faulty_results(recurrence, names, case.arguments) for names in report.behaves]
    case = but_for_what_is_not_given(case, faulty)
    assert faulty in [cases.recognise(case, result) for result in results]


GAE = RECURRENCES["gae"]
SAID = ["rewards", "values", "terminated", "truncated", "valid", "gamma", "lam"]
WAYS = [[*SAID, "next_values"], [*SAID, "bootstrap_value", "final_values"]]
OF_GAE = [name for name in VARIANTS if made_of(GAE, (name,)) is not None]

# They need flags of first steps, or a product that is no select's.
SILENT = {"ends are read as starts", "masks multiply"}


@pytest.mark.parametrize("name", OF_GAE)
def test_each_variant_of_gae_is_named(name, quick):
    rules = [rule for rule in rules_of("gae") if rule not in ("B10", "B11")]
    reports = [conform(as_function(GAE, (name,), parameters), "gae", layout="batch", rules=rules) for parameters in WAYS]
    if name in SILENT:
        assert [report.violated for report in reports] == [(), ()]
    else:
        assert any((name,) in report.behaves for report in reports), [report.diagnosis for report in reports]


# Parameters for each step


def by_discounts_of_steps(rewards, dones, gamma):
    """Of one row or of many, and gamma a number or an array."""
    gamma, returns, following = np.broadcast_to(gamma, rewards.shape), np.zeros_like(rewards), np.zeros(rewards.shape[:-1])
    for t in reversed(range(rewards.shape[-1])):
        returns[..., t] = following = rewards[..., t] + np.where(dones[..., t], 0.0, gamma[..., t] * following)
    return returns


def by_the_discount_before(rewards, dones, gamma):
    gamma = np.broadcast_to(gamma, rewards.shape)
    return by_discounts_of_steps(rewards, dones, np.concatenate([gamma[..., :1], gamma[..., :-1]], axis=-1))


def by_the_first_discount(rewards, dones, gamma):
    """Takes an array, and reads one number of it."""
    return by_discounts_of_steps(rewards, dones, np.broadcast_to(gamma, rewards.shape)[..., :1])


def by_a_number_alone(rewards, dones, gamma):
    return by_discounts_of_steps(rewards, dones, float(gamma))


def by_lambda_of_steps(rewards, values, dones, bootstrap_value, gamma, lam):
    return reference.gae(rewards, values, terminated=dones, bootstrap_value=bootstrap_value, gamma=float(gamma), lam=lam).advantages


def test_gamma_and_lambda_of_each_step(quick):
    right = conform(by_discounts_of_steps, "discounted_returns", rules=["formula", "per-step"])
    assert {verdict.rule: verdict.status for verdict in right} == {"formula": HOLDS, "per-step": HOLDS}
    wrong = conform(by_the_discount_before, "discounted_returns", rules=["formula", "per-step"])
    assert wrong.violated == ("per-step",)
    assert wrong.behaves == (("gamma of the step before",),)
    shown = witness_of(wrong, "per-step")
    assert len(shown.arguments["gamma"]) == len(shown.arguments["rewards"]) > 1
    assert conform(by_the_first_discount, "discounted_returns", rules=["per-step"]).violated == ("per-step",)
    unsaid = conform(by_a_number_alone, "discounted_returns", rules=["per-step"])["per-step"]
    assert (unsaid.status, unsaid.note.partition(" (")[0]) == (UNSAID, "it takes gamma as a number only")
    # the one as a number, the other for each step
    report = conform(by_lambda_of_steps, "gae", rules=["formula", "per-step"])
    assert {verdict.rule: verdict.status for verdict in report} == {"formula": HOLDS, "per-step": HOLDS}
    assert report["per-step"].note.startswith("of lambda; gamma is taken as a number only (TypeError")


def by_a_padded_discount_before(rewards, dones, gamma):
    """Wrong for arrays that repeat a number, too."""
    if np.ndim(gamma):
        gamma = np.concatenate([np.ones_like(gamma[..., :1]), gamma[..., :-1]], axis=-1)
    return by_discounts_of_steps(rewards, dones, gamma)


def by_arrays_alone(rewards, dones, gamma):
    """As where gamma is a tensor always."""
    assert gamma.shape == rewards.shape
    return by_discounts_of_steps(rewards, dones, gamma)


def by_a_vector(rewards, dones, gamma):
    if np.ndim(gamma) > 1:
        raise TypeError("gamma is a number or [T]")
    return by_discounts_of_steps(rewards, dones, gamma)


def by_a_vector_before(rewards, dones, gamma):
    return by_a_vector(rewards, dones, np.concatenate([gamma[:1], gamma[:-1]]) if np.ndim(gamma) else gamma)


def by_a_vector_after(rewards, dones, gamma):
    return by_a_vector(rewards, dones, np.concatenate([gamma[1:], gamma[-1:]]) if np.ndim(gamma) else gamma)


def test_an_array_that_gives_numbers_gives_right_ones(quick):
    """What is wrong with it can't be excused by what is right with a number alone."""
    report = conform(by_a_padded_discount_before, "discounted_returns", rules=["formula", "per-step"])
    assert report.violated == ("per-step",)
    assert report.diagnosis.endswith("gives right numbers; handles numbers for each step as no known variant does: per-step violated.")
    vector = conform(by_a_vector, "discounted_returns", rules=["per-step"])["per-step"]
    assert (vector.status, vector.note) == (HOLDS, "of gamma, as [T]")
    for function, name in ((by_a_vector_before, "gamma of the step before"), (by_a_vector_after, "gamma of the step after")):
        report = conform(function, "discounted_returns", rules=["formula", "per-step"])
        assert report.behaves == ((name,),)
        shown = witness_of(report, "per-step")
        assert len(shown.arguments["gamma"]) == len(shown.arguments["rewards"]) > 1


def test_gamma_that_is_an_array_always(quick):
    report = conform(by_arrays_alone, "discounted_returns", rules=FINITE)
    assert report.conforms
    assert report.reading["gamma"] == "gamma of each step"
    assert {report["formula"].status, report["per-step"].status, report["B1"].status} == {HOLDS}


def test_what_is_unknown_for_each_step_hides_nothing_that_is_known(quick):
    def theirs(rewards, dones, gamma):
        gamma = np.full(np.shape(gamma), np.mean(gamma)) if np.ndim(gamma) else gamma
        return by_discounts_of_steps(np.concatenate([np.zeros_like(rewards[..., :1]), rewards[..., :-1]], axis=-1), dones, gamma)

    report = conform(theirs, "discounted_returns", rules=FINITE)
    assert report.behaves == (("rewards are one step late",),)
    assert "per-step violated" in report.diagnosis


def test_a_discount_of_0_that_multiplies_is_known_from_flags_that_do(quick):
    report = conform(by_discounts_of_steps, "discounted_returns", rules=[*FINITE, "B5", "B6"])
    assert report.behaves == (("a discount of 0 multiplies",),)


# What functions do besides


def test_what_is_random_only_where_an_episode_ends_is_a_fault():
    random = np.random.default_rng(0)

    def theirs(rewards, dones, gamma):
        return by_discounts_of_steps(rewards, dones, gamma) + np.where(dones, random.random(rewards.shape), 0.0)

    report = conform(theirs, "discounted_returns", rules=["formula", "B1"])
    assert report.faults == ("gives other results when it is called again with the same arguments",)
    assert "gives other results each time" in report.diagnosis


def test_results_in_memory_that_is_used_again_are_those_that_came():
    memory = {}

    def theirs(rewards, dones, gamma):
        assert rewards.ndim == 1
        made = memory.setdefault(rewards.shape, np.empty(rewards.shape))
        made[...] = by_discounts_of_steps(rewards, dones, gamma)
        return made

    assert conform(theirs, "discounted_returns", rules=FINITE).conforms


def test_what_a_test_runner_stops_by_is_a_finding():
    class Panic(BaseException):
        pass

    def panics(rewards, dones, gamma):
        if np.any(dones):
            raise Panic("of another language")
        return by_discounts_of_steps(rewards, dones, gamma)

    def skips(rewards, dones, gamma):
        pytest.skip("not here")

    assert witness_of(conform(panics, "discounted_returns", rules=["formula", "B1"]), "B1").raised == "Panic: of another language"
    assert conform(skips, "discounted_returns", rules=["formula"]).faults == ("has no results: Skipped: not here",)

    def interrupted(rewards, dones, gamma):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conform(interrupted, "discounted_returns", rules=["formula"])


def test_a_witness_tells_apart_what_came_and_what_is_right():
    def narrow(rewards, dones, gamma):
        return by_discounts_of_steps(rewards.astype(np.float32), dones, gamma)

    lines = witness_of(conform(narrow, "discounted_returns", rules=["formula", "B11"]), "B11").lines()
    (returns,) = (line for line in lines if line.startswith("returns"))
    came, right = re.findall(r"\[[^]]*\]", returns)
    assert came != right
    assert any(len(number) > 12 for number in re.findall(r"[-\d.]+", lines[0]))


def test_what_is_taken_for_granted_is_said():
    def theirs(rewards, dones):
        return by_discounts_of_steps(rewards, dones, 0.9)

    assert "no parameter says gamma, which was taken to be 1" in conform(theirs, "discounted_returns", rules=["formula"]).diagnosis
    assert conform(theirs, "discounted_returns", rules=["formula"], constants={"gamma": 0.9}).conforms


# What is right


@pytest.mark.parametrize("op", RECURRENCES)
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_our_own_functions_hold_every_rule(framework, op):
    module = {"numpy": "rlscan.spec.reference", "torch": "rlscan.torch_triton", "jax": "rlscan.jax_pallas"}[framework]
    if framework != "numpy":
        pytest.importorskip(framework)
    # JAX compiles for each size and type, which takes most of the time.
    rules = None if framework != "jax" or op == "affine_scan" else tuple(rule for rule in rules_of(op) if rule not in ("B10", "B11"))
    report = conform(getattr(importlib.import_module(module), op), op, framework=framework, rules=rules)
    assert report.violated == ()
    assert report.faults == ()
    assert report.conforms
    assert report.behaves == ()
    told = {verdict.rule for verdict in report if verdict.status == HOLDS}
    assert ("per-step" in told) == ("gamma" in RECURRENCES[op].argument_names)
    assert told >= ({"formula", "B1", "B2", "B3", "B4", "B5", "B8", "B9"} if op != "affine_scan" else {"formula", "B4", "B6", "B9", "B10", "B11"})
    assert {verdict.note for verdict in report if verdict.status == UNSAID} <= {
        "it is about operations that run forward over episodes",
        "it takes 2^31 elements to see, and is not tried",
        "the operation has no discount",
        "the operation has neither gamma nor lambda",
        "the operation knows no episodes",
        "the operation knows no episodes; what a factor of 0 cuts off is rule B6",
        "the operation knows no invalid steps",
    }


@pytest.mark.parametrize("layout", ["batch", "time"])
def test_our_own_functions_in_a_layout_that_is_said(layout):
    report = conform(reference.gae, "gae", layout=layout, rules=FINITE)
    assert report.conforms
    assert report.layout.startswith(layout)


def test_flags_of_segments():
    report = conform(reference.episodic_prefix_sum, "episodic_prefix_sum", adapter={"terminated": None, "truncated": None}, rules=("B7", "B1"))
    assert report.reading["starts"] == MEANINGS["starts"].says
    assert "terminated" not in report.reading
    assert report["B7"].status == HOLDS


# How a function is understood


def test_names_and_layouts_are_guessed():
    report = conform(cleanrl, "gae", rules=["formula"])
    assert report.layout == "time, [T, N]"
    assert report.reading["dones"] == MEANINGS["done before"].says
    assert report.reading["next_done"] == MEANINGS["done at last"].says
    assert report.reading["next_value"] == MEANINGS["bootstrap_value"].says
    assert report.reading["gae_lambda"] == MEANINGS["lam"].says
    assert list(report.outputs) == ["advantages", "returns"]
    report = conform(with_masks, "gae", rules=["formula"])
    assert report.reading["masks"] == MEANINGS["nonterminal"].says
    assert report.reading["vals"] == MEANINGS["values and bootstrap"].says
    assert list(report.outputs) == ["advantages"]
    report = conform(with_discounts, "lambda_returns", rules=["formula"])
    assert report.reading["discount_t"] == MEANINGS["discounts"].says
    assert report.reading["v_t"] == MEANINGS["next_values"].says
    assert report.layout == "time, [T, N]"

    def of_one_row(r_t, discount_t, v_t, lambda_):
        assert r_t.ndim == 1
        return with_discounts(r_t, discount_t, v_t, lambda_)

    assert conform(of_one_row, "lambda_returns", rules=["formula"]).layout == "row, [T], one row a call"


def test_the_order_of_results_is_found():
    def gae(rewards, values, dones, last_value, gamma, lam):
        result = reference.gae(rewards, values, terminated=dones, bootstrap_value=last_value, gamma=gamma, lam=lam)
        return {"value_targets": result.returns, "loss": np.float64(0), "adv": result.advantages}

    report = conform(gae, "gae", rules=FINITE)
    assert report.conforms
    assert report.outputs == {"advantages": "adv, by its numbers", "returns": "value_targets, by its numbers"}


def unnamed(p, q, e, z, g, k):
    return reference.gae(p, q, terminated=e, bootstrap_value=z, gamma=g, lam=k).advantages


NAMES = {"rewards": "p", "values": "q", "terminated": "e", "bootstrap_value": "z", "gamma": "g", "lam": "k"}


def test_an_adapter_says_what_names_do_not():
    with pytest.raises(ValueError, match=r"^the parameter p is not understood; wanted adapter=\{meaning: 'p'\}"):
        conform(unnamed, "gae")
    assert conform(unnamed, "gae", adapter=NAMES, rules=FINITE).conforms
    # the two in each other's place are found out
    assert not conform(unnamed, "gae", adapter=NAMES | {"gamma": "k", "lam": "g"}, rules=["formula"]).conforms

    def in_order(rewards, values, terminated, bootstrap_value, gamma, lam):
        return rewards, values, terminated, bootstrap_value, gamma, lam

    assert conform(unnamed, "gae", adapter=in_order, rules=FINITE).conforms

    def by_name(**arguments):
        return {theirs: arguments[ours] for ours, theirs in NAMES.items()}

    by_name.__dict__["__signature__"] = inspect.signature(in_order)
    assert conform(unnamed, "gae", adapter=by_name, rules=FINITE).conforms


def test_what_is_built_in_is_said():
    def gae(rewards, values, dones, last_value):
        return reference.gae(rewards, values, terminated=dones, bootstrap_value=last_value, gamma=0.5, lam=0.25).advantages

    assert conform(gae, "gae", constants={"gamma": 0.5, "lam": 0.25}, rules=FINITE).conforms
    assert conform(gae, "gae", rules=["formula"]).violated == ("formula",)


def test_an_axis_of_one_value_is_nothing():
    def with_axis(**arguments):
        return {name: x[..., None] if isinstance(x, np.ndarray) else x for name, x in arguments.items()}

    with_axis.__dict__["__signature__"] = inspect.signature(torchrl)
    assert conform(torchrl, "gae", layout="batch", adapter=with_axis, rules=FINITE).conforms

    def gae(rewards, values, dones, last_value, gamma, lam):
        return cleanrl(rewards, values, dones, last_value, dones[-1] * 0, gamma, lam)[0][..., None]

    assert conform(gae, "gae", layout="time", rules=["formula"])["formula"].status == HOLDS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"op": "gea"}, "op is 'gea'; wanted one of gae"),
        ({"framework": "tensorflow"}, "framework is 'tensorflow'; wanted numpy, torch or jax"),
        ({"layout": "rows"}, "layout is 'rows'; wanted one of batch, time, row"),
        ({"rules": ["B13"]}, "rules: B13 is not known"),
        ({"constants": {"lambda": 1.0}}, "constants: lambda is not known; wanted gamma or lam"),
        ({"constants": {"gamma": 2.0}}, "constants: gamma is 2.0; wanted a number in [0, 1]"),
        ({"constants": {"gamma": "1"}}, "constants: gamma is '1'; wanted a number in [0, 1]"),
        ({"rules": "B1"}, "rules is 'B1'; wanted a sequence of some of formula, per-step, B1"),
        ({"rules": []}, "rules is []; wanted a sequence of some of formula, per-step, B1"),
        ({"adapter": {"done!": "dones"}}, "adapter: done! is no meaning"),
        ({"adapter": {"q_values": "values"}}, "adapter: q_values is nothing that gae takes; wanted some of"),
        ({"adapter": {"truncated": "cuts"}}, "adapter: truncated is 'cuts'; wanted one of the function's parameters, rewards, values, dones"),
        ({"adapter": {"rewards": "values", "values": "values"}}, "adapter: rewards and values are both 'values'; wanted a parameter for each"),
    ],
)
def test_what_is_asked_wrongly_is_an_error(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        conform(cleanrl, **({"op": "gae"} | settings))


def test_what_is_no_function_is_an_error():
    with pytest.raises(TypeError, match=r"^function is 3; wanted one that can be called$"):
        conform(3, "gae")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"^adapter is 'dones'; wanted a mapping or a function$"):
        conform(cleanrl, "gae", adapter="dones")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"^constants is 1.0; wanted a mapping$"):
        conform(cleanrl, "gae", constants=1.0)  # pyright: ignore[reportArgumentType]


def test_names_are_the_same_in_every_run():
    class Estimator:
        def __call__(self, rewards, values, dones, last_value, gamma, lam):
            return right(rewards, values, dones, last_value, gamma, lam)

    assert conform(functools.partial(right, gamma=0.5), "gae", rules=["B1"]).name == "right"
    assert conform(Estimator(), "gae", rules=["B1"]).name.endswith("Estimator")


def test_greek_letters_are_understood():
    def gae(rewards, values, dones, last_value, γ, λ):
        return right(rewards, values, dones, last_value, γ, λ)

    assert conform(gae, "gae", rules=["formula", "B1"]).conforms


# Functions that are no functions


def right(rewards, values, dones, last_value, gamma, lam):
    return reference.gae(rewards, values, terminated=dones, bootstrap_value=last_value, gamma=gamma, lam=lam).advantages


def raises(rewards, values, dones, last_value, gamma, lam):
    raise RuntimeError("not today\nnor tomorrow")


def exits(rewards, values, dones, last_value, gamma, lam):
    sys.exit(3)


class Unspeakable(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("it can't be said")


def raises_what_has_no_words(rewards, values, dones, last_value, gamma, lam):
    raise Unspeakable


def refuses_nan(rewards, values, dones, last_value, gamma, lam):
    assert np.isfinite([*rewards.flat, *values.flat]).all(), "NaN in what is given"
    return right(rewards, values, dones, last_value, gamma, lam)


def raises_where_terminated(rewards, values, dones, last_value, gamma, lam):
    if dones.any():
        raise RuntimeError("not today")
    return right(rewards, values, dones, last_value, gamma, lam)


def of_another_shape(rewards, values, dones, last_value, gamma, lam):
    return right(rewards, values, dones, last_value, gamma, lam)[:, 1:]


def of_integers(rewards, values, dones, last_value, gamma, lam):
    return right(rewards, values, dones, last_value, gamma, lam).astype(int)


def of_nothing(rewards, values, dones, last_value, gamma, lam):
    return None


def of_words(rewards, values, dones, last_value, gamma, lam):
    return "advantages"


def overwrites(rewards, values, dones, last_value, gamma, lam):
    result = right(rewards, values, dones, last_value, gamma, lam)
    rewards[...] = 0
    return result


def at_random(rewards, values, dones, last_value, gamma, lam, random=np.random.default_rng(0)):  # noqa: B008
    return right(rewards, values, dones, last_value, gamma, lam) + random.normal()


def remembers(rewards, values, dones, last_value, gamma, lam, calls=[0]):  # noqa: B006
    calls[0] += 1
    return right(rewards, values, dones, last_value, gamma, lam) + calls[0]


def in_float32(rewards, values, dones, last_value, gamma, lam):
    return right(rewards.astype(np.float32), values.astype(np.float32), dones, last_value.astype(np.float32), gamma, lam)


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (raises, "has no results: RuntimeError: not today"),
        (exits, "has no results: SystemExit: 3"),
        (raises_what_has_no_words, "has no results: Unspeakable"),
        (of_another_shape, "has no results: wrong result: result is float64[16, 4]; wanted floating numbers of shape [16, 5]"),
        (of_integers, "has no results: wrong result: result is int64[16, 5]; wanted floating numbers of shape [16, 5]"),
        (of_nothing, "has no results: wrong result: result is object[]; wanted floating numbers of shape [16, 5]"),
        (of_words, "has no results: wrong result: result is <U10[]; wanted floating numbers of shape [16, 5]"),
        (overwrites, "changes its arguments: rewards"),
        (at_random, "gives other results when it is called again with the same arguments"),
        (remembers, "gives other results when it is called again with the same arguments"),
    ],
)
def test_faults_are_findings(function, fault):
    report = conform(function, "gae", layout="batch")
    assert fault in report.faults
    assert not report.conforms
    assert report.diagnosis.startswith(function.__name__)
    with pytest.raises(AssertionError, match=re.escape(fault)):
        report.require("B1")
    assert Report.from_json(json.loads(json.dumps(report.as_json(), allow_nan=False))) == report


def test_a_function_that_raises_somewhere_violates_that_rule():
    report = conform(raises_where_terminated, "gae", rules=FINITE)
    assert report.violated == ("B1",)
    assert report.behaves == ()
    assert report.diagnosis == "raises_where_terminated gives right numbers where it gives any; has no results on windows of B1: RuntimeError: not today."
    witness = witness_of(report, "B1")
    assert witness.raised == "RuntimeError: not today"
    assert witness.arguments["terminated"] == [True]
    assert witness.got == {}
    assert witness.right == {"advantages": [0.0]}


def test_a_function_that_refuses_nan_passes_none():
    report = conform(refuses_nan, "gae")
    assert report.violated == ("B5", "B6", "B9")
    assert (
        report.diagnosis == "refuses_nan gives right numbers where it gives any; has no results on windows of B5, B6, B9: AssertionError: NaN in what is given."
    )


def test_words_that_no_file_can_hold(tmp_path):
    def gae(rewards, values, dones, last_value, gamma, lam):
        if dones.any():
            raise RuntimeError("\x1b[31m \ud800")
        return {"adv\n": right(rewards, values, dones, last_value, gamma, lam)}

    report = conform(gae, "gae", rules=FINITE, name="gae\x07")
    assert report.name == "gae?"
    assert report.outputs == {"advantages": "adv?, by its numbers"}
    assert witness_of(report, "B1").raised == "RuntimeError: ?[31m ?"
    (tmp_path / "found.html").write_text(page([report]) + markdown([report]) + str(report), encoding="utf-8")


def test_types_are_looked_at():
    report = conform(in_float32, "gae", rules=["B11"])
    assert report.violated == ("B11",)
    assert witness_of(report, "B11").note == "arrays are float64"
    assert report.diagnosis == "in_float32 gives right numbers; violates B11 (arrays are float64)."
    assert conform(right, "gae", rules=["B11"]).conforms

    def of_booleans(rewards, values, dones, last_value, gamma, lam):
        return right(rewards, values, dones | (dones > 1), last_value, gamma, lam)

    assert witness_of(conform(of_booleans, "gae", rules=["B11"]), "B11").note == "flags are float32"

    def in_their_type(rewards, values, dones, last_value, gamma, lam):
        return cleanrl(rewards, values, dones * 0, last_value, last_value * 0, gamma, lam)[0]

    report = conform(in_their_type, "gae", layout="time", rules=["B11"])
    # 3 + 3/128 and less: sums of these have more than the 11 bits of float16, and not more than the 24 of float32
    assert witness_of(report, "B11").note == "arrays are float16"


def test_results_of_another_type_are_no_running_value_in_it():
    def rounded(rewards, dones, gamma):
        returns = reference.discounted_returns(rewards.astype(np.float64), terminated=dones, gamma=gamma)
        return returns.astype(np.float32)

    report = conform(rounded, "discounted_returns")
    assert report.behaves == ()
    assert report.diagnosis.endswith("rounded gives right numbers; violates B11 (arrays are float64).")


def test_a_list_of_numbers_is_a_result():
    def one_row(rewards, dones, gamma):
        returns, last = [], 0.0
        for reward, done in zip(reversed(rewards), reversed(dones), strict=True):
            last = reward + (0 if done else gamma * last)
            returns.insert(0, last)
        return returns

    report = conform(one_row, "discounted_returns", layout="row", rules=["formula", "B1"])
    assert report.conforms
    assert report.outputs == {"returns": "result, by its numbers"}


def test_what_has_no_masks_multiplies_by_none():
    def to_go(rewards, gamma):
        returns, last = np.zeros_like(rewards), 0.0
        for t in reversed(range(len(rewards))):
            returns[t] = last = rewards[t] + gamma * last
        return returns

    report = conform(to_go, "discounted_returns", rules=(*FINITE, "B5", "B6"))
    assert report.violated == ("B6",)
    assert report.behaves == (("a zero factor multiplies the state",),)


def test_sizes_are_looked_at():
    def reads_the_first(rewards, values, dones, last_value, gamma, lam):
        assert rewards[0, 0] == rewards[0, 0]
        return right(rewards, values, dones, last_value, gamma, lam)

    def reads_memory(rewards, values, dones, last_value, gamma, lam):
        memory = np.lib.stride_tricks.as_strided(rewards, rewards.shape, (8 * rewards.shape[1], 8))
        return right(memory, values, dones, last_value, gamma, lam)

    report = conform(reads_the_first, "gae", layout="batch", rules=["B10"])
    assert witness_of(report, "B10").note == "3 rows of 0 steps"
    assert report.diagnosis.endswith("reads_the_first gives right numbers; violates B10 (3 rows of 0 steps).")
    assert witness_of(conform(reads_memory, "gae", layout="batch", rules=["B10"]), "B10").note == "arrays that have every other element in memory"


def test_rows_in_each_other_s_place():
    def reshapes(rewards, dones, gamma):
        returns = reference.discounted_returns(np.ascontiguousarray(rewards.T), terminated=np.ascontiguousarray(dones.T), gamma=gamma)
        return returns.reshape(rewards.shape)

    report = conform(reshapes, "discounted_returns", layout="time", rules=FINITE)
    assert report.violated == ("formula",)
    assert report.diagnosis.endswith("reshapes reshapes results to [T, N] where they are to be transposed.")
    witness = witness_of(report, "formula")
    assert witness.note == "it shows only beside another row"
    assert len(witness.right["returns"]) == 2


def test_a_function_that_no_variant_explains():
    def halves(rewards, values, dones, last_value, gamma, lam):
        return right(rewards, values, dones, last_value, gamma, lam) / 3

    report = conform(halves, "gae", rules=FINITE)
    assert report.violated == ("formula",)
    assert report.behaves == ()
    assert "no known variant" in report.diagnosis
    assert report["B1"].status == UNSAID


# Witnesses


def test_windows_are_as_small_as_they_can_be():
    witness = witness_of(conform(counts_twice, "gae", rules=FINITE), "B4")
    assert witness.arguments == {"rewards": [0.0], "values": [0.0], "terminated": [False], "bootstrap_value": 1.0, "gamma": 0.5, "lam": 0.5}
    # once: 0 + 1/2; twice: and once more by gamma lambda
    assert witness.right == {"advantages": [0.5]}
    assert witness.got == {"advantages": [0.75]}
    witness = witness_of(conform(all_ends_alike, "gae", rules=FINITE), "B2")
    assert witness.arguments["truncated"] == [True]
    assert witness.arguments["next_values"] == [1.0]
    assert (witness.right, witness.got) == ({"advantages": [0.5]}, {"advantages": [0.0]})


def test_a_rule_is_required_in_a_suite_of_somebody():
    report = conform(counts_twice, "gae", rules=FINITE)
    for rule in FINITE:
        if rule != "B4":
            report.require(rule)
    with pytest.raises(AssertionError, match=r"(?s)counts_twice violates B4, window end: .*came \[0.75\], right \[0.5\].*counts the bootstrap twice"):
        report.require("B4")
    assert rules_of("gae") == ("formula", "per-step", *RULES)
    with pytest.raises(KeyError, match="B10 was not looked at; wanted one of formula, per-step, B1"):
        report.require("B10")


# Pages


class Elements(HTMLParser):
    """What a browser would take for elements, and that each is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        self.open += [tag] * (tag not in ("meta", "wbr"))

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def reports():
    evil = '<script>alert("1")</script>'

    def names(**arguments):
        if arguments["dones"].any():
            raise RuntimeError(evil)
        return {evil: right(**arguments)}

    names.__dict__["__signature__"] = inspect.signature(right)
    return [conform(counts_twice, "gae"), conform(names, "gae", name=evil), conform(at_random, "gae", rules=["formula", "B1"], name="x|y`*_")]


def test_the_page_is_one_file_of_which_nothing_runs(reports):
    text = page(reports)
    elements = Elements(text)
    assert elements.open == []
    assert "script" not in elements.seen
    assert not [name for name, _ in elements.attributes if name.startswith("on") or name in ("src", "href")]
    assert "://" not in text
    assert "url(" not in text
    assert text.count('&lt;script&gt;alert("1")&lt;/script&gt;'.replace('"', "&quot;")) > 2
    assert elements.seen.count("th") == 1 + len(reports) + 1 + len(rules_of("gae"))
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text


def test_the_drawing_shows_what_came_and_what_is_right(reports):
    drawings = re.findall(r"<svg.*?</svg>", page(reports), re.DOTALL)
    assert drawings
    for drawing in drawings:
        xml.etree.ElementTree.fromstring(drawing)
    (of_the_end,) = [drawing for drawing in re.findall(r"<svg.*?</svg>", page(reports[:1]), re.DOTALL) if ">0.75<" in drawing]
    words = ["".join(text.itertext()) for text in xml.etree.ElementTree.fromstring(of_the_end).iter("text")]
    assert words[words.index("advantages came") + 1] == "0.75"
    assert words[words.index("advantages right") + 1] == "0.5"
    assert "bootstrap_value = 1" in words
    assert of_the_end.count('class="wrong"') == 1
    assert any('class="terminated"' in drawing for drawing in drawings)


def test_the_table_in_markdown_holds_names_as_they_are(reports):
    text = markdown(reports)
    header = next(line for line in text.splitlines() if line.startswith("| rule"))
    assert "<script>" not in text.replace("    ", "")[: text.index("##")]
    assert header.count("|") - header.count("\\|") == 2 + len(reports)
    assert "| B4 window end | violated |" in text


def test_json_has_it_all(reports):
    data = json.loads(json.dumps(as_json(reports), allow_nan=False))
    assert [Report.from_json(report) for report in data["reports"][1:]] == reports[1:]
    # NaN in a window is none of what equals itself
    assert str(Report.from_json(data["reports"][0])) == str(reports[0])
    assert any(math.isnan(x) for x in np.ravel(witness_of(reports[0], "B5").got["advantages"]))


# The command


@pytest.fixture
def module(monkeypatch):
    theirs = types.ModuleType("theirs")
    theirs.__dict__.update(right=right, counts_twice=counts_twice, unnamed=unnamed, Nested=types.SimpleNamespace(right=right), number=3)
    monkeypatch.setitem(sys.modules, "theirs", theirs)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_command(module, tmp_path, capsys, quick):
    json_file, html_file = tmp_path / "found.json", tmp_path / "found.html"
    files = ["--json", str(json_file), "--html", str(html_file)]
    assert main(["conform", "theirs:right", "theirs:Nested.right", "--op", "gae", "--layout", "batch", "--rules", "formula,B1,B2,B4", *files]) == 0
    printed = capsys.readouterr().out
    assert "right does what rlscan does" in printed
    assert "can't be said" in printed
    assert [report["name"] for report in json.loads(json_file.read_text())["reports"]] == ["right", "Nested.right"]
    assert html_file.read_text().startswith("<!DOCTYPE html>")
    assert main(["report", str(json_file)]) == 0
    assert "| B4 window end | holds | holds |" in capsys.readouterr().out
    assert main(["report", str(json_file), "--to", str(tmp_path / "again.md")]) == 0
    assert (tmp_path / "again.html").read_text() == html_file.read_text()
    assert main(["conform", "theirs:counts_twice", "--op", "gae", "--rules", "B4,formula"]) == 1
    assert "counts_twice counts the bootstrap twice" in capsys.readouterr().out
    adapter = ",".join(f"{ours}={theirs}" for ours, theirs in NAMES.items())
    assert main(["conform", "theirs:unnamed", "--op", "gae", "--adapter", adapter, "--constants", "gamma=0.5", "--rules", "formula"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["theirs:nothing"], "theirs:nothing: module 'theirs' has no attribute 'nothing'"),
        (["nowhere_to_be_found:gae"], "nowhere_to_be_found:gae: No module named 'nowhere_to_be_found'"),
        (["theirs"], "theirs: is not like package.module:function"),
        (["theirs:unnamed"], "theirs:unnamed: the parameter p is not understood"),
        (["theirs:number"], "theirs:number: is no function"),
        (["raises_when_imported:gae"], "raises_when_imported:gae: NameError when it was imported: name 'nothing' is not defined"),
        (["exits_when_imported:gae"], "exits_when_imported:gae: SystemExit when it was imported: 1"),
        (["theirs:right", "--json", "found", "--html", "./found"], "--json and --html are both found; wanted two files"),
    ],
)
def test_the_command_refuses(module, tmp_path, monkeypatch, capsys, words, message):
    (tmp_path / "raises_when_imported.py").write_text("nothing\n")
    (tmp_path / "exits_when_imported.py").write_text("raise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["conform", *words, "--op", "gae"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"kind": "conformance"}', '{"kind": "conformance", "reports": [{"name": "gae"}]}'])
def test_what_is_no_report_is_not_rendered(tmp_path, capsys, text):
    file = tmp_path / "found.json"
    file.write_text(text)
    assert main(["report", str(file)]) == 2
    assert capsys.readouterr().err == f"can't read {file}: it is no JSON of a run, of a benchmark, of conform or of the tests\n"


def test_reports_are_frozen(reports):
    with pytest.raises(dataclasses.FrozenInstanceError):
        reports[0].name = "another"
