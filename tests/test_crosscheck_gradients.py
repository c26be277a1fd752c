"""The gradients of the crosscheck: the oracle is right, its bound holds in any order and is no larger than it must be, and what is wrong is found."""

import dataclasses
import functools
import itertools
import json

import numpy as np
import pytest

from rlscan.crosscheck import __main__ as command
from rlscan.crosscheck.backends import BACKENDS, NumPyLoop
from rlscan.crosscheck.compare import Report
from rlscan.crosscheck.draw import draw, variants
from rlscan.crosscheck.gradients import RULES, Differentiated, GradientProblem, compare_gradients, formed, gradient_problems, gradient_rejection
from rlscan.crosscheck.mutants import mutants
from rlscan.crosscheck.report import page
from rlscan.crosscheck.scenarios import SCENARIOS, Extent, covering
from rlscan.crosscheck.unread import Window, unread
from rlscan.spec import coefficients
from rlscan.spec.bound import U64, arithmetic_of, bound, distance
from rlscan.spec.calls import check
from rlscan.spec.derivative import Numbers, NumPyNumbers, Tape, differentiated, gradients, pulled_back
from rlscan.spec.gradient_bound import gradient_bound
from rlscan.spec.recurrences import RECURRENCES
from rlscan.spec.reference import NumPyArrays, loop
from rlscan.spec.steps import Finite, FiniteSteps, Steps

each_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)

QUICK, ALL_VARIANTS = Differentiated(), Differentiated(most=None)


def checked(name, **arguments):
    return check(RECURRENCES[name], {"time_axis": -1} | arguments, NumPyArrays())


def cotangents_of(call, seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(size=call.shape).astype(call.dtype) for _ in call.recurrence.output_names]


# --- the oracle ---


def gae_of_two_steps(**flags):
    """Weights are 1 and 2 for the advantages, and 0 and 4 for the returns A + V."""
    call = checked(
        "gae",
        rewards=np.array([1.0, 2]),
        values=np.array([0.5, 1]),
        next_values=np.array([1.0, 3]),
        gamma=np.array([0.5, 0.5]),
        lam=np.array([0.5, 0.5]),
        **{"terminated": np.array([False, False])} | flags,
    )
    found = gradients(call, [np.array([1.0, 2]), np.array([0.0, 4])])
    return {name: gradient.tolist() for name, gradient in found.items()}


def test_gradients_of_gae_that_are_worked_out_by_hand():
    """δ = [1 + 1/2 - 1/2, 2 + 3/2 - 1] = [1, 2.5], so A_1 = 2.5. What arrives for A is [1, 2 + 4], so z = [1, 6 + 1/4] is the gradient of δ."""
    assert gae_of_two_steps() == {
        "rewards": [1, 6.25],  # z
        "values": [-1, -6.25 + 4],  # -z, and the returns' own V
        "next_values": [0.5, 3.125],  # g z
        "gamma": [1 * 1 + 0.5 * 2.5 * 1, 3 * 6.25],  # N z and, inside the window, l A_(t+1) z
        "lam": [0.5 * 2.5 * 1, 0],  # g A_(t+1) z
    }


def test_gradients_of_gae_at_a_boundary_that_are_worked_out_by_hand():
    """Nothing flows over the end of step 0, so z = [1, 6]; N_0 is read where it is a truncation."""
    truncated = gae_of_two_steps(truncated=np.array([True, False]))
    assert truncated == {"rewards": [1, 6], "values": [-1, -2], "next_values": [0.5, 3], "gamma": [1, 18], "lam": [0, 0]}
    for more in ({}, {"truncated": np.array([True, False])}):
        assert gae_of_two_steps(terminated=np.array([True, False]), **more) == truncated | {"next_values": [0, 3], "gamma": [0, 18]}


def test_gradients_of_arguments_that_are_repeated_are_sums():
    """G = [1 + g (2 + 4 g), 2 + 4 g] with g = 1/2 for all: 2 + 8 g, and 4; one row's own parameter has the sum over that row."""
    rewards, ends = np.array([[1.0, 2, 4]]), np.zeros((1, 3))
    for shape in ((), (1, 1)):
        call = checked("discounted_returns", rewards=rewards, terminated=ends, gamma=np.full(shape, 0.5))
        (by_gamma,) = (gradient for name, gradient in gradients(call, [np.array([[1.0, 1, 1]])]).items() if name == "gamma")
        assert by_gamma.shape == shape
        assert by_gamma.item() == (2 + 8 * 0.5) + 4


@each_recurrence
def test_the_oracle_has_the_slopes_of_central_differences(recurrence):
    """The distance of a central difference from the derivative is c h^2 + .. in exact arithmetic, and 4 c h^2 + .. with twice the step: so 3 c h^2 lie
    between the two, three times what one is off. Each value errs by what `bound` says of it, and by the sum that is made of it."""
    h = np.finfo(np.float64).eps ** (1 / 3)
    for number, variant in enumerate(covering(variants(recurrence, ("per step", "0-d", "per row")))):
        arguments = draw(recurrence, variant, (2, 5), dtype="float64", seed=number)
        call = check(recurrence, arguments, NumPyArrays())
        weights = cotangents_of(call)
        found = gradients(call, weights)
        assert set(found) == {name for name, x in arguments.items() if isinstance(x, np.ndarray) and x.dtype == np.float64}

        def value(arguments, weights=weights):
            call = check(recurrence, arguments, NumPyArrays())
            terms = np.concatenate([(weight * output).ravel() for weight, output in zip(weights, loop(call), strict=True)])
            error = sum((np.abs(weight) * limit).sum() for weight, limit in zip(weights, bound(call), strict=True))
            return terms.sum(), error + (terms.size + 1) * U64 * np.abs(terms).sum()

        for name, gradient in found.items():
            direction = np.random.default_rng(number).normal(size=arguments[name].shape)
            slopes, errors = [], []
            for step in (h, 2 * h):
                up, down = (value(arguments | {name: arguments[name] + sign * step * direction}) for sign in (1, -1))
                slopes.append((up[0] - down[0]) / (2 * step))
                errors.append((up[1] + down[1]) / (2 * step))
            off = abs((gradient * direction).sum() - slopes[0])
            assert off <= abs(slopes[1] - slopes[0]) + sum(errors), f"{variant}, {name}"


def planted(recurrence):
    for rule in RULES:
        for problem in gradient_problems(recurrence, ALL_VARIANTS, rule):
            clean = problem.problem.clean
            if clean is not None and problem.problem.untouched is None:
                yield rule, problem, clean


@each_recurrence
def test_what_is_not_read_has_a_gradient_of_exactly_0(recurrence):
    """By the rules as they are written down in `unread`, which shares nothing with the coefficients; and what stands there changes no gradient."""
    masked = 0
    for rule, problem, nothing_planted in planted(recurrence):
        arguments = problem.problem.arguments
        for arrays in (problem.oracle, problem.limits):
            window = Window(recurrence, arguments | dict(arrays))
            for name, mask in unread(recurrence, nothing_planted, rule).items():
                if name in arrays:
                    array = arrays[name] if window.kinds[name].shape == "row" else window.along_time(name)
                    assert (array[mask] == 0).all(), f"{problem}: {name}"
                    masked += mask.sum()
        clean = GradientProblem(dataclasses.replace(problem.problem, arguments=nothing_planted))
        for name, gradient in problem.oracle.items():
            # the gradient by a factor of 0 is what that factor keeps from being read
            same = arguments[name] != 0 if rule == "B6" else ...
            np.testing.assert_array_equal(gradient[same], clean.oracle[name][same], err_msg=f"{problem}: {name}")
    # a factor of 0 cuts affine_scan, whose addends are all read
    assert masked or recurrence.name == "affine_scan"


def test_rules_of_differentiation_that_no_recurrence_needs():
    """Quotients, absolute values, sums along an axis, and an element that is taken twice: x/y + |x| in all, at x = [-1, 2, 4] and y = 2."""
    tape = Tape(NumPyNumbers("float64", "float64"))
    x, y = (tape.lifted(np.asarray(array, float)) for array in ([-1, 2, 4], 2))
    for array in (x, y):
        array.wanted = True
    total = (x / y + tape.abs(x)).sum(0) + tape.take(x, np.array([2, 2])).sum(0) + 1.0 / y - y
    by_x, by_y = tape.gradients([total], [np.asarray(1.0)], [x, y])
    assert total.value == 2.5 + 7 + 8 + 0.5 - 2
    assert by_x.tolist() == [0.5 - 1, 0.5 + 1, 0.5 + 1 + 2]
    assert by_y == -5 / 4 - 1 / 4 - 1


# --- the bound ---


def by_a_tree(taps, tape):
    """The states by doubling, differentiated through all of its operations: no z and no y are formed."""
    (alpha, beta), seed = taps.coefficients(), taps.seed()
    then, step = taps.bound(coefficients.then), taps.bound(coefficients.step)
    order = slice(None, None, -1 if taps.call.backward else 1)
    addend, factor, reach = alpha[order], beta[order], 1
    while reach < taps.call.steps:
        one, other = then(addend[:-reach], factor[:-reach], addend[reach:], factor[reach:])
        addend, factor, reach = tape.joined(addend[:reach], one), tape.joined(factor[:reach], other), 2 * reach
    state = step(addend, factor, seed)[order]
    return taps.outputs(state, taps.beside(state, seed, taps.call.backward))


def by_pairs(taps, tape):
    """The same in blocks of 8, with a carry from block to block."""
    (alpha, beta), state = taps.coefficients(), taps.seed()
    then, step = taps.bound(coefficients.then), taps.bound(coefficients.step)
    order = range(taps.call.steps)[:: -1 if taps.call.backward else 1]
    states = []
    for first in range(0, taps.call.steps, 8):
        maps = []
        for t in order[first : first + 8]:
            maps.append((alpha[t], beta[t]) if not maps else then(*maps[-1], alpha[t], beta[t]))
        states += [step(*pair, state) for pair in maps]
        state = states[-1]
    state = tape.stacked(states[:: -1 if taps.call.backward else 1])
    return taps.outputs(state, taps.beside(state, taps.seed(), taps.call.backward))


class Otherwise(NumPyNumbers):
    """NumPy adds up in the order in which elements lie in memory."""

    def summed(self, array, function):
        return function(np.asfortranarray(array))


def numbers(dtype: str) -> Numbers:
    return NumPyNumbers(np.dtype(dtype), dtype)


@each_recurrence
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_order_of_evaluation_stays_within_the_bound(recurrence, dtype):
    for number, variant in enumerate(covering(variants(recurrence, ("per step", "0-d", "per row", "per time")))):
        call = check(recurrence, draw(recurrence, variant, (3, 67), dtype=dtype, seed=number), NumPyArrays())
        weights = cotangents_of(call, number)
        oracle, limits = gradients(call, weights), gradient_bound(call, weights)
        evaluations = {
            "the loop": gradients(call, weights, dtype),
            "a tree": pulled_back(call, weights, numbers(dtype), by_a_tree),
            "blocks": pulled_back(call, weights, numbers(dtype), by_pairs),
            "sums in another order": pulled_back(call, weights, Otherwise(np.dtype(dtype), dtype), by_a_tree),
        }
        for how, (name, limit) in itertools.product(evaluations, limits.items()):
            found = evaluations[how][name]
            assert found.dtype == dtype
            assert found.shape == limit.shape == call.arrays[name].shape
            assert np.isfinite(limit).all(), name
            worst = distance(found, oracle[name], limit).max(initial=0.0)
            assert worst <= 1, f"{how}, {variant}, {name}: {worst}"


@each_recurrence
def test_an_error_of_some_hundred_roundings_is_seen(recurrence):
    """Of the largest number in a row, at every floating argument."""
    variant = covering(variants(recurrence, ("per step",)))[0]
    call = check(recurrence, draw(recurrence, variant, (20, 16), seed=2), NumPyArrays())
    weights = cotangents_of(call)
    u = arithmetic_of(call.dtype).u
    for name, oracle in gradients(call, weights).items():
        off = oracle + 1000 * u * np.abs(oracle).max()
        assert (distance(off, oracle, gradient_bound(call, weights)[name]) > 1).any(), name


def test_the_bound_does_not_grow_with_the_length_where_factors_decay():
    random = np.random.default_rng(0)

    def widest(steps):
        addend, factor = random.uniform(0.5, 1.0, (1, steps)).astype(np.float32), np.full((1, steps), 0.9, np.float32)
        call = checked("affine_scan", addend=addend, factor=factor)
        return {name: limit.max() for name, limit in gradient_bound(call, [np.ones((1, steps), np.float32)]).items()}

    for name, limit in widest(2000).items():
        assert widest(1000)[name] == pytest.approx(limit, rel=0.05), name


def test_a_clip_that_rounding_can_turn_allows_either_derivative():
    """w = 1 lies at the bar, up to the rounding of the exponential; at w = 1/2 there is no doubt."""
    at_the_bar = {"log_rhos": np.array([0.0, -0.7], np.float32), "rewards": np.ones(2, np.float32), "values": np.zeros(2, np.float32)}
    call = checked("vtrace", **at_the_bar, next_values=np.zeros(2, np.float32), terminated=np.ones(2), gamma=1.0, lam=1.0, rho_bar=1.0, c_bar=1.0)
    weights = [np.ones(2, np.float32), np.zeros(2, np.float32)]
    limit, oracle = gradient_bound(call, weights)["log_rhos"], gradients(call, weights)["log_rhos"]
    assert distance(np.array([0.0, oracle[1]]), oracle, limit).max() <= 1
    assert distance(np.array([1.0, oracle[1]]), oracle, limit).max() <= 1
    assert distance(np.array([oracle[0], 0.0]), oracle, limit).max() > 1


# --- what is wrong ---


def changes_gradients(mutant):
    """What a rule says of NaN and infinity says nothing of a call in which every number is finite, and that is what is differentiated."""
    return mutant.mutation.rule not in ("B5", "B6", "B9")


@pytest.mark.parametrize("mutant", [mutant for recurrence in RECURRENCES.values() for mutant in mutants(recurrence) if changes_gradients(mutant)], ids=str)
def test_every_mutant_is_rejected(mutant):
    assert gradient_rejection(mutant, ALL_VARIANTS)


def test_mutants_that_read_nan_have_the_right_gradients():
    for mutant in mutants(RECURRENCES["retrace"]):
        if not changes_gradients(mutant):
            assert gradient_rejection(mutant, QUICK) is None, str(mutant)


class AsItIs(Finite):
    def number(self, x, logarithm=False, most=None):
        return x


class NotFinite(FiniteSteps):
    """NaN and infinity are differentiated as they stand."""

    @functools.cached_property
    def made_finite(self):
        return AsItIs(self.library.xp, self.library.array_type, self.call.dtype)


class Careful(FiniteSteps):
    """A factor of 0 is differentiated as the select that protects from what it multiplies."""

    def bound(self, function):
        return Steps.bound(self, function)


def one_step_late(taps, tape):
    """The states are right, and their derivative has the factor of the step beside."""
    (alpha, beta), seed = taps.coefficients(), taps.seed()
    right = tape.stacked
    backward = taps.call.backward
    shifted = tape.joined(beta[1:], beta[:1]) if backward else tape.joined(beta[-1:], beta[:-1])
    step, states, carried = taps.bound(coefficients.step), [], seed
    for t in range(taps.call.steps)[:: -1 if backward else 1]:
        exact, other = step(alpha[t], beta[t], carried), step(alpha[t], shifted[t], carried)
        other.value = exact.value
        states.append(other)
        carried = other
    state = right(states[:: -1 if backward else 1])
    return taps.outputs(state, taps.beside(state, seed, backward))


def unit_derivative_of_states(taps, tape):
    """The recurrence is not run the other way: what arrives for a state goes to its own step alone."""
    (alpha, beta), seed = taps.coefficients(), taps.seed()
    step, states, carried = taps.bound(coefficients.step), [], seed
    for t in range(taps.call.steps)[:: -1 if taps.call.backward else 1]:
        states.append(step(alpha[t], beta[t], tape.lifted(carried.value)))
        carried = states[-1]
    state = tape.stacked(states[:: -1 if taps.call.backward else 1])
    return taps.outputs(state, taps.beside(state, seed, taps.call.backward))


class Wrongly(NumPyLoop):
    """Another derivative of the loop."""

    name = "wrongly"

    def __init__(self, kind=FiniteSteps, outputs=None):
        self.kind, self.outputs = kind, outputs

    def gradients(self, problem, cotangents, device, recurrence=None):
        call = problem.call
        with np.errstate(all="ignore"):
            if self.outputs is None:
                return dict(gradients(call, cotangents, call.dtype, self.kind))
            return pulled_back(call, cotangents, numbers(call.dtype), self.outputs, self.kind)


WRONG = {
    "NaN is differentiated": (Wrongly(NotFinite), ("B1", "B2", "B5", "B6", "B7", "B8")),
    "a factor of 0 has no derivative": (Wrongly(Careful), ("random", "B6")),
    "the scan back is one step late": (Wrongly(outputs=one_step_late), ("random",)),
    "there is no scan back": (Wrongly(outputs=unit_derivative_of_states), ("random",)),
}


def rejections(recurrence, backend, scenarios):
    problems = itertools.chain.from_iterable(gradient_problems(recurrence, QUICK, name) for name in scenarios)
    return [fault for problem in problems if (fault := problem.wrong(backend.gradients(problem.problem, problem.cotangents, "cpu")))]


@pytest.mark.parametrize(
    ("recurrence", "wrong"),
    [
        pytest.param(recurrence, wrong, id=f"{recurrence.name}-{wrong}")
        for recurrence, wrong in itertools.product(RECURRENCES.values(), WRONG)
        # sums have the same derivative whatever they are of
        if wrong not in ("NaN is differentiated", "a factor of 0 has no derivative") or any(argument.shape == "parameter" for argument in recurrence.arguments)
    ],
)
def test_a_wrong_derivative_of_a_right_loop_is_rejected(recurrence, wrong):
    backend, scenarios = WRONG[wrong]
    assert rejections(recurrence, backend, scenarios)
    assert not rejections(recurrence, NumPyLoop(), scenarios)


class Faulty(NumPyLoop):
    """A backend in which something happens to the gradients."""

    name = "faulty"

    def __init__(self, spoil):
        self.spoil = spoil

    def gradients(self, problem, cotangents, device, recurrence=None):
        return self.spoil(super().gradients(problem, cotangents, device, recurrence))


def compared(recurrence, *backends, scenarios=("random", "B1")):
    return compare_gradients([recurrence], backends, Extent(), scenarios=scenarios)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda found: {}, "gave gradients by nothing, wanted them by rewards"),
        (lambda found: found | {"rewards": found["rewards"].astype(np.float16)}, "that by rewards is float16[6, 37], wanted float32[6, 37]"),
        (lambda found: found | {"gamma": found["gamma"].sum()}, "that by gamma is float32[], wanted float32[6, 37]"),
        (lambda found: found | {"lam": found["lam"] + 1}, "lam, row"),
        (lambda found: found | {"bootstrap_value": found["bootstrap_value"] + 1}, "t -"),
        (lambda found: {name: np.full_like(gradient, np.nan) for name, gradient in found.items()}, "nan"),
        (lambda found: 1 / 0, "ZeroDivisionError"),
    ],
    ids=["nothing", "dtype", "shape", "values", "row", "NaN", "exception"],
)
def test_a_faulty_backend_is_found(spoil, says):
    (tally,), _ = compared(RECURRENCES["gae"], Faulty(spoil))
    assert tally.failed == tally.problems > 0
    assert tally.failures[0].startswith("gradients of gae, random: ")
    assert says in tally.failures[0]
    assert not Report({}, [], [], [tally]).agrees


def test_the_worst_place_is_found():
    problem = next(gradient_problems(RECURRENCES["gae"], QUICK, "random"))
    found = {name: gradient.astype(np.float32) for name, gradient in problem.oracle.items()}
    found["lam"][2, 30] += 1000
    place = problem.worst_place(found)
    assert (place.output, place.row, place.t) == ("lam", (2,), 30)
    assert place.result == pytest.approx(place.oracle + 1000)
    time_axes = {argument.name: problem.time_axis(argument.name) for argument in RECURRENCES["gae"].arguments if argument.name in found}
    assert time_axes == {name: None if name == "bootstrap_value" else 1 for name in found}


# --- backends ---


def agrees(report):
    tallies, pairs = report
    assert tallies
    for tally in tallies:
        assert not tally.failed, tally.failures
        assert tally.elements > 0
        assert tally.undecided == 0
        assert 0 < tally.worst.distance <= 1
    for pair in pairs:
        assert pair.elements == tallies[0].elements
        assert pair.worst <= 2


@each_recurrence
def test_torch_agrees(recurrence):
    """In every scenario, with every argument and option, in float64, in each layout and with parameters of each form."""
    pytest.importorskip("torch")
    for problem in itertools.chain(
        *(gradient_problems(recurrence, ALL_VARIANTS, name) for name in ("random", *RULES)), map(GradientProblem, formed(recurrence, QUICK))
    ):
        assert problem.wrong(BACKENDS["torch"].gradients(problem.problem, problem.cotangents, "cpu")) is None


# JAX compiles for seconds each time: one of each direction, and one more in float64 with sums over all steps.
@pytest.mark.parametrize("name", ["vtrace", "episodic_prefix_sum"])
def test_jax_agrees_and_both_with_each_other(name):
    for framework in ("torch", "jax"):
        pytest.importorskip(framework)
    agrees(compare_gradients([RECURRENCES[name]], [BACKENDS["torch"], BACKENDS["jax"]], Extent()))


def test_jax_agrees_in_float64():
    pytest.importorskip("jax")
    wide = next(problem for problem in formed(RECURRENCES["discounted_returns"], QUICK) if problem.dtype == "float64" and "parameters 0-d" in problem.label)
    problem = GradientProblem(wide)
    assert problem.limits["gamma"].shape == ()
    assert problem.wrong(BACKENDS["jax"].gradients(wide, problem.cotangents, "cpu")) is None


@each_recurrence
def test_every_recurrence_has_gradients_in_a_quick_run(recurrence):
    (tally,), pairs = compare_gradients([recurrence], [NumPyLoop()], Extent())
    assert tally.problems >= 5
    agrees(([tally], pairs))


# --- the command ---


def run(*arguments):
    return command.main(["--device", "cpu", "--backends", "numpy", "--ops", "gae,affine_scan", *arguments])


def test_the_command_has_a_section_of_gradients(tmp_path, capsys):
    reports = {}
    for number, options in enumerate(([], ["--gradients", "no"], ["--gradients", "only"], ["--jobs", "2"])):
        file = tmp_path / f"{number}.json"
        assert run("--scenarios", "B5", "--json", str(file), *options) == 0
        reports[" ".join(options)] = Report.from_json(json.loads(file.read_text()))
        assert ("Gradients of backends and the float64 oracle" in capsys.readouterr().out) == (options[-1:] != ["no"])
    both, results, only, processes = reports.values()
    assert [tally.op for tally in both.gradients] == ["gae", "affine_scan"]
    assert (results.gradients, only.tallies) == ([], [])
    assert (both.tallies, both.gradients) == (results.tallies, only.gradients) == (processes.tallies, processes.gradients)
    assert "## Gradients of backends and the float64 oracle" in page(both)
    assert "radients" not in page(results)


def test_the_command_fails_where_gradients_alone_disagree(monkeypatch, capsys):
    monkeypatch.setitem(BACKENDS, "numpy", Faulty(lambda found: {name: gradient + 1 for name, gradient in found.items()}))
    assert run("--scenarios", "B5", "--gradients", "no") == 0
    assert run("--scenarios", "B5") == 1
    assert "times the bound; B5" in capsys.readouterr().out


def test_a_scenario_without_gradients_compares_none(capsys):
    assert run("--scenarios", "B11", "--gradients", "only") == 1
    assert "Nothing was compared." in capsys.readouterr().out
    assert run("--scenarios", "B11") == 0
    assert set(RULES) | {"random"} <= set(SCENARIOS)


def test_a_report_without_gradients_is_read_as_it_is():
    """Those of releases that compared none."""
    report = Report({}, [], [])
    old = {name: value for name, value in report.as_json().items() if "gradient" not in name}
    assert Report.from_json(old) == report


def test_gradients_survive_json():
    tallies, pairs = compared(RECURRENCES["gae"], NumPyLoop(), Faulty(lambda found: {}))
    report = Report({}, [], [], tallies, pairs)
    assert Report.from_json(json.loads(json.dumps(report.as_json()))) == report
    assert Report.together({}, [report]).gradients == tallies


def test_no_argument_without_numbers_is_differentiated():
    """Flags may be of a floating type."""
    call = checked("episodic_prefix_sum", inputs=np.ones(3), terminated=np.zeros(3))
    assert differentiated(call) == ("inputs",)


@each_recurrence
def test_an_empty_window_has_a_gradient_of_0(recurrence):
    for shape in ((3, 0), (0, 3)):
        call = check(recurrence, draw(recurrence, variants(recurrence)[-1], shape), NumPyArrays())
        for found in (gradients(call, cotangents_of(call)), gradient_bound(call, cotangents_of(call))):
            assert {name: gradient.shape for name, gradient in found.items()} == {name: call.arrays[name].shape for name in differentiated(call)}
            assert all((gradient == 0).all() for gradient in found.values())
