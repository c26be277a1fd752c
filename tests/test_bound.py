"""The derived bound holds in any order of evaluation, and is no larger than it must be."""

import functools

import numpy as np
import pytest

from rlscan.crosscheck.draw import FORMS, draw, variants
from rlscan.spec import coefficients
from rlscan.spec.bound import arithmetic_of, bound, distance
from rlscan.spec.calls import check
from rlscan.spec.recurrences import RECURRENCES
from rlscan.spec.reference import NumPyArrays, Steps, loop

each_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)


def maps_in_scan_order(steps, backward):
    """The affine maps of the steps, the first to be applied first."""
    alpha, beta = steps.coefficients()
    return (alpha[::-1], beta[::-1]) if backward else (alpha, beta)


def outputs(call, dtype, scan):
    """The outputs when the states are made by `scan(alpha, beta, seed)`."""
    steps = Steps(call, dtype)
    alpha, beta = maps_in_scan_order(steps, call.backward)
    seed = steps.seed()[None]
    states = scan(alpha, beta, seed) if call.steps else alpha
    beyond = np.concatenate([seed, states[:-1]]) if call.steps else alpha
    return steps.outputs(*((states[::-1], beyond[::-1]) if call.backward else (states, beyond)))


def tree(alpha, beta):
    """All prefixes, by doubling."""
    reach = 1
    while reach < len(alpha):
        addend, factor = coefficients.then(alpha[:-reach], beta[:-reach], alpha[reach:], beta[reach:])
        alpha, beta, reach = np.concatenate([alpha[:reach], addend]), np.concatenate([beta[:reach], factor]), 2 * reach
    return alpha, beta


def chunks_of_trees(alpha, beta, seed, size):
    states = []
    for start in range(0, len(alpha), size):
        addend, factor = tree(alpha[start : start + size], beta[start : start + size])
        states.append(coefficients.step(addend, factor, seed))
        seed = states[-1][-1:]
    return np.concatenate(states)


def outward(alpha, beta, seed):
    """Each state from its own step outward to the seed: the order opposite to the loop's."""
    states = alpha.copy()
    addend, factor = alpha, beta
    for distance_back in range(1, len(alpha) + 1):
        states[distance_back - 1] = coefficients.step(addend[0], factor[0], seed[0])
        addend, factor = coefficients.then(alpha[:-distance_back], beta[:-distance_back], addend[1:], factor[1:])
    return states


SCANS = {
    "one tree": lambda alpha, beta, seed: chunks_of_trees(alpha, beta, seed, len(alpha)),
    "chunks of 16": functools.partial(chunks_of_trees, size=16),
    "outward": outward,
}


def agree(call, *evaluations):
    oracles, limits = loop(call), bound(call)
    for number, results in enumerate(evaluations):
        for name, result, oracle, limit in zip(call.recurrence.output_names, results, oracles, limits, strict=True):
            assert np.isfinite(limit).all(), name
            assert result.dtype == call.dtype
            worst = distance(result, oracle, limit).max(initial=0.0)
            assert worst <= 1, f"evaluation {number}, {name}: {worst}"


@each_recurrence
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_order_of_evaluation_stays_within_the_bound(recurrence, dtype):
    for number, variant in enumerate(variants(recurrence)):
        variant = variants(recurrence, [FORMS[number % len(FORMS)]])[number]
        call = check(recurrence, draw(recurrence, variant, (3, 67), dtype=dtype, seed=number), NumPyArrays())
        agree(call, loop(call, dtype), *(outputs(call, dtype, scan) for scan in SCANS.values()))


@each_recurrence
def test_long_rows_stay_within_the_bound(recurrence):
    arguments = draw(recurrence, variants(recurrence)[0], (2, 2000), seed=7)
    for name in ("gamma", "lam"):
        if name in arguments:
            arguments[name] = 1.0
    call = check(recurrence, arguments, NumPyArrays())
    agree(call, loop(call, "float32"), outputs(call, "float32", SCANS["one tree"]), outputs(call, "float32", SCANS["chunks of 16"]))


@each_recurrence
@pytest.mark.parametrize("time_axis", [0, 1, -1])
def test_the_bound_has_the_shape_of_the_outputs(recurrence, time_axis):
    variant = variants(recurrence)[-1]
    call = check(recurrence, draw(recurrence, variant, (3, 4, 5), time_axis), NumPyArrays())
    agree(call, loop(call, "float32"))
    assert [limit.shape for limit in bound(call)] == [(3, 4, 5)] * len(recurrence.output_names)


def test_features_and_actions_stay_within_the_bound():
    traces = RECURRENCES["eligibility_traces"]
    call = check(traces, draw(traces, variants(traces)[-1], (3, 20), features=(4,)), NumPyArrays())
    agree(call, loop(call, "float32"))
    retrace = RECURRENCES["retrace"]
    (variant,) = (variant for variant in variants(retrace) if variant.given == ("next_q_values", "next_policy"))
    call = check(retrace, draw(retrace, variant, (3, 20), actions=300), NumPyArrays())
    agree(call, loop(call, "float32"))


@each_recurrence
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_error_of_some_hundred_roundings_is_seen(recurrence, dtype):
    """The bound allows each step a few roundings of what is added up, and no more."""
    variant = variants(recurrence)[0]
    call = check(recurrence, draw(recurrence, variant, (50, 16), dtype=dtype), NumPyArrays())
    u = arithmetic_of(dtype).u
    for oracle, limit in zip(loop(call), bound(call), strict=True):
        off = oracle + 300 * u * np.abs(oracle).max(axis=-1, keepdims=True)
        assert (distance(off, oracle, limit).max(axis=-1) > 1).all()


def test_the_bound_does_not_grow_with_the_length_where_factors_decay():
    scan = RECURRENCES["affine_scan"]
    random = np.random.default_rng(0)

    def widest(steps):
        call = check(scan, {"addend": random.uniform(0.5, 1.0, (1, steps)).astype(np.float32), "factor": 0.9}, NumPyArrays())
        return bound(call)[0].max()

    assert widest(4000) == pytest.approx(widest(2000), rel=0.05)


def test_what_is_exact_has_no_error():
    scan = RECURRENCES["affine_scan"]
    addend = np.ones((1, 5), np.float32)
    (limit,) = bound(check(scan, {"addend": addend, "factor": np.zeros_like(addend)}, NumPyArrays()))
    assert (limit == 0).all()
    (limit,) = bound(check(scan, {"addend": addend, "factor": 1.0}, NumPyArrays()))
    assert limit[0, 0] == 0
    assert limit[0, 1] > 0


def test_kinds():
    """NaN and infinity must be where the oracle has them; where float32 overflows, nothing is promised."""
    scan = RECURRENCES["affine_scan"]
    addend = np.array([1.0, np.inf, 1.0, np.nan, 1.0, 1.0, 3e38, 3e38], np.float32)
    factor = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0], np.float32)
    call = check(scan, {"addend": addend, "factor": factor}, NumPyArrays())
    (oracle,), (limit,) = loop(call), bound(call)
    assert np.isfinite(limit).tolist() == [True, False, False, False, False, True, False, False]
    assert np.isnan(limit).tolist() == [False, True, True, True, True, False, False, False]
    with np.errstate(over="ignore"):
        assert (distance(loop(call, "float32")[0], oracle, limit) <= 1).all()
    for wrong in (np.zeros(8), np.where(np.isinf(oracle), -oracle, oracle), np.full(8, np.nan), np.full(8, np.inf)):
        assert (distance(wrong, oracle, limit) > 1).any()


def test_products_that_underflow_or_overflow_in_a_tree():
    """Factors from 1e-30 to 1e30: a product of some of them is out of range where the state never is."""
    scan = RECURRENCES["affine_scan"]
    down_and_up = np.array([1.0, 1e-30, 1e-30, 1e30, 1e30, 0.5], np.float32)[None]
    call = check(scan, {"addend": np.array([[1.0, 0, 0, 0, 0, 0]], np.float32), "factor": down_and_up}, NumPyArrays())
    with np.errstate(all="ignore"):
        (tree_result,), (limit,), (oracle,) = outputs(call, "float32", SCANS["outward"]), bound(call), loop(call)
    assert (distance(tree_result, oracle, limit) <= 1).all()
    up_before_nothing = np.array([1e30, 1e30, 1e30, 1.0], np.float32)[None]
    call = check(scan, {"addend": np.array([[0.0, 0, 0, 1]], np.float32), "factor": up_before_nothing}, NumPyArrays())
    with np.errstate(all="ignore"):
        agree(call, outputs(call, "float32", SCANS["one tree"]))


def test_a_comparison_that_rounding_can_turn_allows_either_branch():
    arithmetic = arithmetic_of("float32")
    third = arithmetic.operand(1.0) / 3.0
    chosen = arithmetic.where(third * 3.0 == 1.0, 5.0, 7.0)
    assert chosen.value == 5
    assert arithmetic.u * chosen.error >= 2
    assert arithmetic.where(third > 1.0, 5.0, 7.0).error == 0


def test_a_float64_scalar_beside_float32_arrays_counts_as_rounded():
    gae = RECURRENCES["gae"]
    arguments = draw(gae, variants(gae)[0], (2, 9)) | {"gamma": np.asarray(0.1), "lam": np.asarray(0.7)}
    call = check(gae, arguments, NumPyArrays())
    agree(call, loop(check(gae, arguments | {"gamma": np.asarray(0.1, np.float32), "lam": np.asarray(0.7, np.float32)}, NumPyArrays()), "float32"))
    assert call.dtype == "float32"
