"""NaN and infinity: wherever a rule lets nothing be read they change nothing, and inside an episode they reach what depends on them."""

import numpy as np
import pytest

from rlscan.crosscheck.draw import defaults, draw, variants
from rlscan.crosscheck.scenarios import SCENARIOS, Extent, Problem
from rlscan.spec.bound import distance
from rlscan.spec.plan import plan
from rlscan.spec.recurrences import RECURRENCES

each_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)
each_rule = pytest.mark.parametrize("rule", ["B1", "B2", "B3", "B5", "B6", "B7", "B8"])


class Small(Extent):
    """For kernels that are interpreted."""

    rows, steps = 2, 19


def chosen(recurrence, rule, implementation):
    """Problems of a rule: all that a quick crosscheck has, or a few where each takes a tenth of a second or more."""
    if implementation.name == "jax":
        return list(SCENARIOS[rule].problems(recurrence, Small()))[:1]
    if implementation.is_interpreted:
        return list(SCENARIOS[rule].problems(recurrence, Small()))[::3]
    return list(SCENARIOS[rule].problems(recurrence, Extent()))


@each_recurrence
@each_rule
@pytest.mark.parametrize("implementation", ["reference", "torch", "triton"], indirect=True)
def test_what_no_rule_lets_be_read_changes_nothing(implementation, recurrence, rule):
    for problem in chosen(recurrence, rule, implementation):
        check_against_clean(implementation, problem)


@each_recurrence
@pytest.mark.parametrize("implementation", ["jax"], indirect=True)
def test_nothing_crosses_a_boundary_in_jax(implementation, recurrence):
    for problem in chosen(recurrence, "B5", implementation):
        check_against_clean(implementation, problem)


def check_against_clean(implementation, problem):
    """The results are those of the arguments without poison, not only those of an oracle that may have swallowed it too."""
    clean = Problem("clean", problem.label, problem.recurrence, problem.clean, problem.dtype)
    touched = np.zeros(clean.call.shape, bool)
    if problem.untouched is not None:
        features = (1,) * (len(clean.call.shape) - problem.untouched.ndim)
        touched |= np.moveaxis(~problem.untouched, 0, clean.call.time_axis).reshape(*clean.call.shape[: problem.untouched.ndim], *features)
    for name, result, oracle, limit in zip(problem.recurrence.output_names, implementation.run(problem), clean.oracle, clean.limits, strict=True):
        place = np.where(touched, 0, distance(result, oracle, limit))
        assert place.max(initial=0.0) <= 1, f"{problem}: {name}{list(np.argwhere(place > 1)[0])}"
        assert np.isfinite(result[~touched]).all()


@each_recurrence
@pytest.mark.parametrize("implementation", ["torch", "triton"], indirect=True)
def test_poison_inside_reaches_what_the_oracle_says(implementation, recurrence):
    for problem in chosen(recurrence, "B9", implementation):
        implementation.assert_right(problem)


def long_row(recurrence, steps, time_axis=-1, rows=1, **changes):
    """Nothing ends, and all numbers are small and the same."""
    shape = (rows, steps) if time_axis == -1 else (steps, rows)
    variant = min(variants(recurrence), key=lambda variant: len(variant.given))
    arguments = draw(recurrence, variant, shape, time_axis, seed=2)
    kinds = {argument.name: argument for argument in recurrence.arguments}
    for name, x in arguments.items():
        if isinstance(x, np.ndarray):
            x[...] = 0 if kinds[name].flag else 0.125
    return arguments | {name: x for name, x in changes.items() if name in recurrence.argument_names}


def far_end(recurrence, arguments):
    """The array whose number at one end of the row reaches the whole row, and the index of that end."""
    backward = recurrence.direction == "backward" or arguments.get("reverse")
    name = recurrence.frame.name
    return np.moveaxis(arguments[name], arguments["time_axis"], 0), -1 if backward else 0


# Steps of a tile, of two rows in both layouts; a product of 300 factors of 0.05 is 1e-390.
(TILE,) = {plan(layout, 2, 300, reads=2, outputs=1, itemsize=4).block_steps for layout in ("rows", "columns")}
LENGTHS = [(layout, axis, steps) for layout, axis in (("batch-major", -1), ("time-major", 0)) for steps in (TILE, TILE + 1, 300)]


@each_recurrence
@pytest.mark.parametrize(("layout", "time_axis", "steps"), LENGTHS)
@pytest.mark.parametrize("implementation", ["reference", "torch", "triton"], indirect=True)
def test_nan_arrives_behind_small_factors(implementation, recurrence, layout, time_axis, steps):
    arguments = long_row(recurrence, steps, time_axis, rows=2, gamma=0.05, lam=0.5, factor=0.05)
    numbers, end = far_end(recurrence, arguments)
    numbers[end] = np.nan
    for result in implementation.call(recurrence, defaults(recurrence) | arguments):
        assert np.isnan(result).all(), f"finite at {np.argwhere(~np.isnan(result))[:3].tolist()}"


@each_recurrence
@pytest.mark.parametrize("implementation", ["jax"], indirect=True)
def test_nan_arrives_behind_small_factors_in_jax(implementation, recurrence):
    test_nan_arrives_behind_small_factors(implementation, recurrence, "batch-major", -1, 300)


@each_recurrence
@pytest.mark.parametrize("implementation", ["torch", "triton"], indirect=True)
@pytest.mark.parametrize("cut", [TILE - 1, TILE, TILE + 1, 200])
def test_nan_stops_at_a_cut_wherever_tiles_meet(implementation, recurrence, cut):
    """One NaN, and a cut between it and a part of the row."""
    arguments = long_row(recurrence, 260, gamma=0.9, lam=0.9)
    backward = recurrence.direction == "backward"
    if "terminated" in recurrence.argument_names:
        arguments.pop("starts", None)
        arguments["terminated"] = np.zeros((1, 260), bool)
        arguments["terminated"][0, cut] = True
    else:
        arguments["factor"] = np.full((1, 260), 0.9, np.float32)
        arguments["factor"][0, cut + 1] = 0
    numbers, end = far_end(recurrence, arguments)
    numbers[end] = np.nan
    for result in implementation.call(recurrence, defaults(recurrence) | arguments):
        reached = np.isnan(result[0])
        wanted = np.arange(260) > cut if backward else np.arange(260) <= cut
        np.testing.assert_array_equal(reached, wanted)


@pytest.mark.parametrize("op", ["vtrace", "retrace", "affine_scan"])
@pytest.mark.parametrize("steps", [128, 300])
@pytest.mark.parametrize("implementation", ["reference", "torch", "triton", "jax"], indirect=True)
def test_factors_whose_product_overflows_meet_nothing(implementation, op, steps):
    """Factors of 4, of which 64 overflow float32, and nothing to multiply until the last step of the scan: 0, and not inf * 0."""
    recurrence = RECURRENCES[op]
    arguments = long_row(recurrence, steps, gamma=1.0, lam=1.0, c_bar=None, rho_bar=None, pg_rho_bar=None, factor=4.0)
    for name, x in arguments.items():
        if isinstance(x, np.ndarray):
            x[...] = np.log(4) if name == "log_rhos" else 0
    numbers, end = far_end(recurrence, arguments)
    opposite = 0 if end == -1 else -1
    numbers[opposite] = 1.0
    problem = Problem("overflow", "", recurrence, defaults(recurrence) | arguments)
    assert all(np.isfinite(oracle).all() and np.isfinite(limit).all() for oracle, limit in zip(problem.oracle, problem.limits, strict=True))
    implementation.assert_right(problem)
    for result in implementation.run(problem):
        assert np.count_nonzero(result) == 1
        assert result[0, opposite] != 0


SIGNS = [("reference", 300), ("torch", 300), ("triton", 16), ("triton", 300)]


@pytest.mark.parametrize(("implementation", "steps"), SIGNS, indirect=["implementation"])
def test_infinity_keeps_its_sign_behind_negative_factors(implementation, steps):
    """Which sign an infinity has depends on how many negative factors are before it, also where their product underflows."""
    arguments = {"addend": np.zeros((1, steps), np.float32), "factor": -0.05, "reverse": False, "time_axis": -1}
    arguments["addend"][0, 0] = np.inf
    (result,) = implementation.call(RECURRENCES["affine_scan"], arguments)
    np.testing.assert_array_equal(result[0], np.where(np.arange(steps) % 2, -np.inf, np.inf))


@pytest.mark.parametrize("recurrence", [recurrence for recurrence in RECURRENCES.values() if "valid" in recurrence.argument_names], ids=lambda r: r.name)
@pytest.mark.parametrize("time_axis", [0, -1])
@pytest.mark.parametrize("implementation", ["reference", "torch", "triton"], indirect=True)
def test_rows_without_a_valid_step_are_0(implementation, recurrence, time_axis):
    variant = next(variant for variant in variants(recurrence) if variant.gives("valid"))
    arguments = draw(recurrence, variant, (3, 3), time_axis)
    arguments |= {name: np.full_like(x, np.nan) for name, x in arguments.items() if isinstance(x, np.ndarray) and x.dtype == np.float32}
    arguments["valid"][...] = False
    for result in implementation.call(recurrence, arguments):
        np.testing.assert_array_equal(result, np.zeros((3, 3)))


@pytest.mark.parametrize("bar", [1.0, None])
@pytest.mark.parametrize("implementation", ["reference", "torch", "triton"], indirect=True)
def test_ratios_at_the_ends_of_the_range(implementation, bar):
    """log_rhos of -inf is a ratio of 0, which cuts the trace; +inf is clipped, or infinite where nothing clips; NaN stays NaN."""
    recurrence = RECURRENCES["vtrace"]
    arguments = long_row(recurrence, 4, gamma=0.5, rho_bar=bar, c_bar=bar, pg_rho_bar=bar)
    arguments["log_rhos"][...] = [[-np.inf, np.inf, np.nan, 0]]
    problem = Problem("ratios", "", recurrence, defaults(recurrence) | arguments)
    implementation.assert_right(problem)
    vs, advantages = implementation.run(problem)
    # The ratio of step 0 is 0: nothing of what is behind is read, though it is NaN.
    assert vs[0, 0] == arguments["values"][0, 0]
    assert np.isnan(vs[0, 1:3]).all()
    assert np.isfinite(vs[0, 3])
    assert np.isnan(advantages[0, 1:3]).all()
