"""Gradients by the adjoint: it is right, it reads no more than it must, and it keeps out of the way where other derivatives are asked for."""

import dataclasses
import itertools
import linecache

import numpy as np
import numpy as xp
import pytest

from rlscan.crosscheck.backends import BACKENDS, as_tuple
from rlscan.crosscheck.draw import draw, variants
from rlscan.crosscheck.gradients import Differentiated, GradientProblem, gradient_problems
from rlscan.crosscheck.scenarios import Problem
from rlscan.crosscheck.transformations import slope
from rlscan.spec.adjoint import STATES, Telling, adjoint, incoming, pulled_back_by, telling
from rlscan.spec.bound import distance
from rlscan.spec.calls import check
from rlscan.spec.derivative import differentiated, gradients
from rlscan.spec.gradient_bound import gradient_bound
from rlscan.spec.plan import Plan
from rlscan.spec.recurrences import RECURRENCES
from rlscan.spec.reference import NumPyArrays, WholeNumPyArrays, loop
from rlscan.spec.taps import Read, wire
from rlscan.spec.terms import Term, Terms, function_of, pulled_back, symbol, symbols, with_symbols

each_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)

# --- terms ---

X, Y = symbol("x"), symbol("y")

FUNCTIONS = {
    "sum": lambda xp, x, y: x + y - 3.0,
    "product": lambda xp, x, y: 2.0 * x * y,
    "quotient": lambda xp, x, y: 1.0 / x - y / x,
    "negative": lambda xp, x, y: -(x - y),
    "selection": lambda xp, x, y: xp.where((x < y) | (x != x), x * y, y / 3.0) + xp.where((x >= y) & (y == y), 0.0, x),
    "functions": lambda xp, x, y: xp.exp(x) / y + y * xp.abs(x - 2.0),
    "twice": lambda xp, x, y: (x * y) * (x * y) + x * y,
    "constant": lambda xp, x, y: xp.where(False, x, 2.0) + 0.0 * y,
}


def made(*results: Term):
    return function_of("made", (("x", X), ("y", Y)), results)


def in_numpy(function):
    function.__globals__["xp"] = np
    return function


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_terms_is_the_function(name):
    x, y = np.array([0.5, 1.5, 3.0]), np.array([0.75, 1.25, 2.0])
    function = FUNCTIONS[name]
    np.testing.assert_array_equal(in_numpy(made(Terms.abs(function(Terms, X, Y))))(x, y), np.abs(function(np, x, y)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_derivative_of_terms_is_the_limit_of_differences(name):
    function = FUNCTIONS[name]
    found = pulled_back([(function(Terms, X, Y) + 0.0 * X, symbol("g"))])
    for one, by in ((X, "x"), (Y, "y")):
        gradient = with_symbols(found.get(one, X * 0.0), lambda own: Terms.where(True, 1.0, own) if own is symbol("g") else own)
        for x, y in ((0.5, 0.75), (1.5, 1.25), (3.0, 2.0)):
            wanted, limit = slope(lambda at: function(np, at["x"], at["y"]), {"x": x, "y": y}, by, np.ones(()))
            assert abs(in_numpy(made(gradient))(x, y) - wanted) <= limit


def test_equal_terms_are_one_and_are_computed_once():
    assert (X + Y) * 2.0 is (X + Y) * 2.0
    assert symbol(1) is not symbol(1.0)
    function = made((X + Y) * (X + Y), X + Y)
    source = "".join(linecache.getlines(function.__code__.co_filename))
    assert source.count("+") == 1


def test_a_function_keeps_its_source_where_others_lose_theirs():
    one = made(X + Y + 1.0)
    linecache.cache.pop(made(X + Y + 2.0).__code__.co_filename)
    other = made(X + Y + 3.0)
    assert one.__code__.co_filename != other.__code__.co_filename


def test_nothing_is_computed_with_0_or_a_flag_that_is_known():
    assert symbols([0.0 * X + Y * 1.0 - 0.0, Terms.where(X == X, Y, Y), Terms.where((X > 0.0) & False, X, Y)]) == [Y]
    assert (X > 0.0) | False is (X > 0.0)
    # a factor that is 1 or 0 is finite
    chosen = Terms.where(X > 0.0, 1.0, Terms.where(Y > 0.0, 0.0, -1.0))
    assert (Terms.abs(chosen) < 2.0).value is True
    assert Terms.abs(chosen) is Terms.where((X > 0.0), 1.0, Terms.where(Y > 0.0, 0.0, 1.0))
    negative = -X
    assert -negative is X


# --- the adjoint of a call ---


def by_the_loop(call, came_in, wanted):
    with np.errstate(all="ignore"):
        return pulled_back_by(loop, WholeNumPyArrays(np.float64, call.dtype), call, came_in, wanted)


def unmasked(recurrence, forms=("per step",)):
    return [one for one in variants(recurrence, forms) if not one.is_masked]


def drawn_call(recurrence, variant, seed=0):
    drawn = draw(recurrence, variant, (3, 9), seed=seed)
    # in float64, as the loop computes, so that the bound is that of its roundings
    numbers = {name: x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for name, x in drawn.items()}
    return check(recurrence, {**recurrence.defaults, **numbers}, NumPyArrays())


def cotangents(call, seed=1):
    return [np.random.default_rng(seed + i).normal(size=call.shape) for i, _ in enumerate(call.recurrence.output_names)]


@each_recurrence
def test_gradients_by_some_arguments_through_some_outputs_are_the_oracle_s(recurrence):
    """Whatever is asked for, and nothing else comes of it."""
    for variant in variants(recurrence, ("per step",)):
        call = drawn_call(recurrence, variant)
        names = recurrence.output_names
        for some in itertools.chain.from_iterable(itertools.combinations(range(len(names)), size) for size in range(1, len(names) + 1)):
            arriving = [one if i in some else np.zeros_like(one) for i, one in enumerate(cotangents(call))]
            right, limits = gradients(call, arriving), gradient_bound(call, arriving)
            for wanted in ([*right], *([name] for name in right)):
                found = by_the_loop(call, {names[i]: arriving[i] for i in some}, wanted)
                if found is None:
                    assert variant.is_masked
                    continue
                assert list(found) == wanted
                for name in wanted:
                    assert distance(found[name], right[name], limits[name]).max() <= 1, f"{variant}, {name} through {some}"


@each_recurrence
def test_only_what_a_step_that_is_none_is_given_by_a_neighbour_has_no_adjoint(recurrence):
    """With NEXT_STEP the true successor of a truncated step is stored at the reset behind it, and with `valid` that is no step."""
    for variant in variants(recurrence, ("per step",)):
        call = drawn_call(recurrence, variant)
        derived = adjoint(call.wiring, call.dtype, frozenset(differentiated(call)), frozenset(recurrence.output_names))
        stored_beside = {read.source for read in call.wiring.reads if read.at == "following"} & {*differentiated(call)}
        assert (derived is None) == (variant.gives("valid") and bool(stored_beside)), variant


@pytest.mark.parametrize("op", ["gae", "vtrace", "lambda_returns", "discounted_returns"])
@pytest.mark.parametrize(
    ("valid", "reads"),
    [
        # a step that was truncated reads the value at the reset behind it, and what lies behind the window only if it is the window's last
        ([1, 1, 0], False),
        ([1, 1, 1], True),
        ([1, 0, 1], True),
        ([1, 0, 0], True),
        ([0, 0, 0], False),
    ],
)
def test_what_lies_outside_is_read_where_the_neighbour_in_memory_is_or_the_next_valid_step(op, valid, reads):
    """By two reads of one array with one edge, each at a place of its own."""
    recurrence, row = RECURRENCES[op], np.zeros((1, 3))
    given = {"rewards": row, "values": row, "terminated": row, "truncated": np.array([[0, 1, 0]]), "valid": np.array([valid]), "bootstrap_value": np.ones(1)}
    given |= {"log_rhos": row} if op == "vtrace" else {}
    numbers = {"gamma": 0.5} | ({"lam": 0.5} if "lam" in recurrence.defaults else {})
    call = check(recurrence, {**recurrence.defaults, **given, **numbers, "autoreset": "next_step"}, NumPyArrays())
    arriving = [np.ones_like(one) for one in cotangents(call)]
    found = by_the_loop(call, dict(zip(recurrence.output_names, arriving, strict=True)), ["bootstrap_value"])
    assert found is not None
    assert found["bootstrap_value"] == pytest.approx(gradients(call, arriving)["bootstrap_value"])
    assert (found["bootstrap_value"] != 0) == reads


def test_what_a_scan_does_not_find_is_handed_over():
    """A scan looks for the nearest valid step on one side: what gradients need of the other one, the scan for the states finds."""
    recurrence = RECURRENCES["lambda_returns"]
    call = drawn_call(recurrence, next(one for one in variants(recurrence, ("per step",)) if one.gives("valid", "values") and not one.options))

    def handed_over(*wanted):
        derived = adjoint(call.wiring, call.dtype, frozenset(wanted), frozenset(recurrence.output_names))
        assert derived is not None
        return derived.states and derived.states.output_names

    assert handed_over("rewards") is None
    # the state at the next valid step, its value, and whether there is one
    assert handed_over("gamma") == ("handed_over_0", "handed_over_1", "handed_over_2")
    # whose own step finds the one before it
    assert handed_over("values") is None


def quotients(reward, next_value, final_value, last, truncated, gamma):
    successor = xp.where(truncated, final_value, next_value)
    return reward + successor / gamma, xp.where(truncated | last, 0.0, gamma / (1.0 + gamma))


def test_nothing_comes_of_the_step_before_the_first():
    """Where there is none, a kernel reads 0, and a quotient by it is infinite."""
    recurrence = dataclasses.replace(RECURRENCES["lambda_returns"], name="quotients", coefficients=quotients)
    for variant in unmasked(recurrence):
        call = drawn_call(recurrence, variant)
        arriving = cotangents(call)
        right, limits = gradients(call, arriving), gradient_bound(call, arriving)
        found = by_the_loop(call, dict(zip(recurrence.output_names, arriving, strict=True)), list(right))
        # it flows over terminations, and so over resets
        assert (found is None) == ("autoreset" in dict(variant.options)), variant
        for name, gradient in (found or {}).items():
            assert distance(gradient, right[name], limits[name]).max() <= 1, f"{variant}, {name}"


def reads(op, wanted, given, numbers=("gamma", "lam", "rho_bar", "c_bar", "pg_rho_bar"), outputs=None):
    recurrence = RECURRENCES[op]
    known = frozenset(numbers) & frozenset(recurrence.argument_names)
    derived = adjoint(wire(recurrence, frozenset(given) | known, known), "float32", frozenset(wanted), frozenset(outputs or recurrence.output_names))
    assert derived is not None
    sources = {source.source for _, (source,) in derived.recurrence.extra_taps if isinstance(source, Read)} - known
    return sources, derived.states is not None


def test_the_adjoint_reads_what_gradients_depend_on():
    window = ("rewards", "values", "terminated", "bootstrap_value")
    came_in = {incoming("advantages"), incoming("returns")}
    assert reads("gae", ("rewards", "values", "bootstrap_value"), window) == ({"terminated", *came_in}, False)
    # what no gradient arrives through is not read either
    assert reads("gae", ("rewards",), window, outputs=("returns",)) == ({"terminated", incoming("returns")}, False)
    # a product needs the other factor
    assert reads("gae", ("gamma",), (*window, "gamma"), numbers=("lam",)) == ({"terminated", "values", "gamma", "states", *came_in}, True)
    of_vtrace = {incoming("vs"), incoming("pg_advantages")}
    assert reads("vtrace", ("values",), ("log_rhos", *window)) == ({"log_rhos", "terminated", *of_vtrace}, False)


def test_a_result_tells_the_states():
    def told(op, *given):
        return telling(wire(RECURRENCES[op], frozenset(RECURRENCES[op].argument_names) - {"valid"} | {*given}), "float32")

    assert told("gae") == Telling("advantages", None)
    assert told("vtrace") == Telling("vs", "values")
    assert told("retrace") == Telling("targets", "q_values")
    assert told("affine_scan") == Telling("y", None)
    # there are states at steps that are none, where results are 0
    assert told("gae", "valid") is None


def test_a_sum_of_two_states_tells_neither():
    recurrence = dataclasses.replace(RECURRENCES["lambda_returns"], name="sums", outputs=lambda state, state_beyond: state + state_beyond)
    assert telling(drawn_call(recurrence, unmasked(recurrence)[0]).wiring, "float32") is None


@each_recurrence
def test_gradients_are_right_whether_results_are_kept_or_not(recurrence):
    for variant in unmasked(recurrence):
        call = drawn_call(recurrence, variant)
        arriving = cotangents(call)
        right, limits, asked = gradients(call, arriving), gradient_bound(call, arriving), []

        def by_loop(one, asked=asked):
            asked.append(one.recurrence.output_names)
            return loop(one)

        with np.errstate(all="ignore"):
            results = dict(zip(recurrence.output_names, by_loop(call), strict=True))
            for kept in (None, results):
                asked.clear()
                library = WholeNumPyArrays(np.float64, call.dtype)
                found = pulled_back_by(by_loop, library, call, dict(zip(recurrence.output_names, arriving, strict=True)), list(right), kept)
                assert found is not None
                for name, gradient in found.items():
                    assert distance(gradient, right[name], limits[name]).max() <= 1, f"{variant}, {name}"
                # the states by a scan of their own, or from a result
                assert asked.count((STATES,)) <= (kept is None)


def test_a_gradient_that_nothing_flows_to_is_0_and_starts_no_kernel():
    call = drawn_call(RECURRENCES["discounted_returns"], unmasked(RECURRENCES["discounted_returns"])[0])
    runs = []
    rewards = call.arrays["rewards"]
    found = pulled_back_by(lambda one: runs.append(one), WholeNumPyArrays(np.float64, "float32"), call, {}, ["rewards"])  # type: ignore[arg-type]
    assert found is not None
    assert not runs
    np.testing.assert_array_equal(found["rewards"], np.zeros_like(rewards))


@pytest.mark.parametrize("op", ["gae", "vtrace", "retrace", "affine_scan"])
def test_nothing_but_kernels_is_started_for_gradients(op):
    """A constant is a kernel of its own that fills it: PyTorch started one for each gradient, and nobody used it."""
    torch, launch = pytest.importorskip("torch"), pytest.importorskip("rlscan.torch_triton.launch")
    from torch.utils._python_dispatch import TorchDispatchMode

    from rlscan.torch_triton.arrays import Tensors, WholeTensors

    started = []

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            started.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    recurrence = RECURRENCES[op]
    arguments = draw(recurrence, unmasked(recurrence)[0], (3, 5), -1)
    given = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    call = check(recurrence, given, Tensors())
    came_in = {name: torch.ones(call.shape) for name in recurrence.output_names}
    pytest.importorskip("triton")

    def kernels(one):
        return tuple(new() for new in launch.Prepared(one).news)

    with torch.no_grad(), Recorded():
        found = pulled_back_by(kernels, WholeTensors(call.dtype, call.device), call, came_in, differentiated(call))
    assert found is not None
    assert started
    # the tests have PyTorch fill what is empty
    assert set(started) <= {"aten::empty_strided", "aten::empty_like", "aten::empty", "aten::view", "aten::fill_"}


# --- on the backends ---


def kernels_problems(recurrence):
    """Of the crosscheck's problems one in which the adjoint gives the gradients."""
    return [problem for problem in gradient_problems(recurrence, Differentiated(), "random") if problem.problem.call.wiring.validity != "given"][:1]


def recorded(backend, monkeypatch) -> list:
    """What the backend is given by the adjoint from now on."""
    asked = []
    module = pytest.importorskip("rlscan.jax_pallas.vectorised" if backend == "pallas" else "rlscan.torch_triton.gradients")
    original = module.pulled_back_by
    monkeypatch.setattr(module, "pulled_back_by", lambda *given: asked.append(original(*given)) or asked[-1])
    return asked


@pytest.mark.parametrize(
    ("recurrence", "backend"),
    [
        pytest.param(recurrence, backend, id=f"{recurrence.name}-{backend}")
        for recurrence, backend in itertools.product(RECURRENCES.values(), ("torch", "triton", "pallas"))
        # Pallas' interpreter compiles for a quarter of a minute: one with edges, one over actions, and a forward one
        if backend != "pallas" or recurrence.name in ("lambda_returns", "retrace", "affine_scan")
    ],
)
def test_kernels_give_the_oracle_s_gradients(recurrence, backend, device, monkeypatch):
    reason = BACKENDS[backend].missing(device)
    if reason:
        pytest.skip(reason)
    asked = recorded(backend, monkeypatch)
    problems = kernels_problems(recurrence)
    assert problems
    for problem in problems:
        assert problem.wrong(BACKENDS[backend].gradients(problem.problem, problem.cotangents, device)) is None
    # a program that JAX has compiled before is not traced again
    assert all(found is not None for found in asked)
    assert asked or backend == "pallas"


# The parameters are arrays too: gradients by them depend on states, and on the next valid step.
MASKED = {
    "gae": {"bootstrap_value", "valid"},
    "vtrace": {"bootstrap_value", "valid"},
    "retrace": {"expected_next_q", "valid"},
    "lambda_returns": {"values", "bootstrap_value", "valid"},
    "discounted_returns": {"bootstrap_value", "valid"},
    "eligibility_traces": {"initial", "valid"},
    "episodic_prefix_sum": {"terminated", "valid"},
}


def masked_problem(op, layout):
    """Also where a row ends with steps that are none, or has no step at all."""
    recurrence = RECURRENCES[op]
    fitting = [one for one in variants(recurrence, ("per step",)) if one.gives(*MASKED[op]) and not one.options]
    variant = min(fitting, key=lambda one: len(one.given))
    shape, axis = ((4, 9), -1) if layout == "rows" else ((9, 4), 0)
    arguments = draw(recurrence, variant, shape, axis, seed=3)
    valid = np.moveaxis(arguments["valid"], axis, -1)
    valid[0, -3:], valid[1], valid[2] = False, False, True
    return GradientProblem(Problem("masked", str(variant), recurrence, arguments))


@pytest.mark.parametrize(
    ("op", "layout", "backend"),
    [
        *(pytest.param(op, layout, "triton", id=f"{op}-{layout}-triton") for op, layout in itertools.product(MASKED, ("rows", "columns"))),
        *(pytest.param(op, "rows", "torch", id=f"{op}-torch") for op in MASKED),
        pytest.param("lambda_returns", "rows", "pallas", id="lambda_returns-pallas"),
    ],
)
def test_kernels_give_gradients_where_steps_are_masked(op, layout, backend, device, monkeypatch):
    if reason := BACKENDS[backend].missing(device):
        pytest.skip(reason)
    asked = recorded(backend, monkeypatch)
    problem = masked_problem(op, layout)
    assert problem.wrong(BACKENDS[backend].gradients(problem.problem, problem.cotangents, device)) is None
    assert all(found is not None for found in asked)
    assert asked


@pytest.mark.parametrize(("op", "layout"), itertools.product(MASKED, ("rows", "columns")))
def test_masked_rows_that_are_split_over_programs(op, layout, device, monkeypatch):
    if reason := BACKENDS["triton"].missing(device):
        pytest.skip(reason)
    launch = pytest.importorskip("rlscan.torch_triton.launch")
    steps = 4 if layout == "rows" else 2
    monkeypatch.setattr(launch, "plan", lambda *_: Plan(layout, rows=4, positions=1, steps=steps, segments=3, blocks=-(-9 // (3 * steps))))
    monkeypatch.setattr(launch, "_prepared", {})
    problem = masked_problem(op, layout)
    assert problem.wrong(BACKENDS["triton"].gradients(problem.problem, problem.cotangents, device)) is None


def test_jax_transforms_what_kernels_differentiate():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    from rlscan import jax_pallas

    # small whole numbers, as all that is made of them, so that nothing is rounded
    addends, factors = (jnp.asarray(np.random.default_rng(i).choice([-2, -1, 1], (2, 2, 3)), jnp.float32) for i in (0, 1))
    single, each = (addends[0], factors[0], jnp.float32(2.0)), (0, 0, None)
    along = (factors[1], addends[1], jnp.float32(1.0))

    def of(method):
        def loss(addend, factor, initial):
            given = {"addend": addend, "factor": factor, "initial": initial * jnp.ones(2)}
            found = jax_pallas.run(RECURRENCES["affine_scan"], given, method=method)
            return (found * found * found + found).sum()

        def many(axes):
            return lambda *given: jax.vmap(loss, axes)(*given).sum()

        def norm(*given):
            return sum((x * x).sum() for x in gradient(*given))

        at = (0, 1, 2)
        gradient = jax.grad(loss, at)
        yield "jit of grad", jax.jit(gradient)(*single)
        yield "vmap of grad", jax.vmap(gradient, each)(addends, factors, single[2])
        yield "grad of vmap", jax.grad(many(each), at)(addends, factors, single[2])
        yield "grad of vmap along another axis", jax.grad(many((1, None, None)), at)(jnp.moveaxis(addends, 0, 1), factors[0], single[2])
        yield "grad of remat", jax.grad(jax.checkpoint(loss), at)(*single)
        yield "jvp", jax.jvp(loss, single, along)[1]
        yield "linearize", jax.linearize(loss, *single)[1](*along)
        yield "jvp of grad", jax.jvp(gradient, single, along)[1]
        yield "grad of grad", jax.grad(norm, at)(*single)
        yield "hessian", jax.hessian(loss, 2)(*single)
        yield "grad of scan", jax.grad(lambda x: jax.lax.scan(lambda total, one: (total + loss(one, *single[1:]), None), 0.0, x)[0])(addends)

    for (name, found), (_, right) in zip(of("kernels"), of("vectorised"), strict=True):
        for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
            assert jnp.any(theirs != 0), name
            np.testing.assert_array_equal(mine, theirs, err_msg=name)


@pytest.mark.parametrize("method", ["kernels", "vectorised"])
def test_nothing_of_a_trace_of_jax_is_kept(method):
    jax = pytest.importorskip("jax")
    from rlscan import jax_pallas

    def loss(addend):
        return jax_pallas.run(RECURRENCES["affine_scan"], {"addend": addend, "factor": 0.5}, method=method).sum()

    with jax.check_tracer_leaks():
        np.testing.assert_array_equal(jax.grad(loss)(jax.numpy.ones((1, 2))), [[1.5, 1]])


@pytest.mark.parametrize("method", ["kernels", "vectorised"])
def test_torch_differentiates_gradients_that_the_adjoint_gave(method):
    torch = pytest.importorskip("torch")
    from rlscan import torch_triton

    if method == "kernels" and BACKENDS["triton"].missing("cpu"):
        pytest.skip(str(BACKENDS["triton"].missing("cpu")))
    torch.manual_seed(0)
    flags = torch.tensor([[False, True, False]])

    def outputs(log_rhos, rewards, values, gamma):
        given = {"log_rhos": log_rhos, "rewards": rewards, "values": values, "terminated": flags, "bootstrap_value": values[:, 0], "gamma": gamma}
        return tuple(torch_triton.run(RECURRENCES["vtrace"], {**given, "rho_bar": None, "c_bar": None, "pg_rho_bar": None}, method=method))

    inputs = [torch.randn(1, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)] + [torch.tensor(0.9, dtype=torch.float64, requires_grad=True)]
    assert torch.autograd.gradcheck(outputs, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(outputs, inputs, fast_mode=True)


@pytest.mark.parametrize("op", ["gae", "vtrace", "affine_scan"])
def test_whoever_writes_into_results_gets_the_same_gradients(op):
    """PyTorch's own operations fail then: what their gradients are made of is gone. Ours are made of the arguments."""
    torch = pytest.importorskip("torch")
    from rlscan import torch_triton

    recurrence = RECURRENCES[op]
    given = draw(recurrence, unmasked(recurrence, "per step")[0], (3, 5), -1)
    call = check(recurrence, {**recurrence.defaults, **given}, NumPyArrays())
    arriving = [np.ones(call.shape, np.float32) for _ in recurrence.output_names]
    right, limits = gradients(call, arriving), gradient_bound(call, arriving)

    def found(spoil):
        tensors = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
        floating = [tensors[name].clone().requires_grad_() for name in right]
        results = as_tuple(torch_triton.run(recurrence, {**tensors, **dict(zip(right, floating, strict=True))}))
        loss = sum(result.sum() for result in results)
        if spoil:
            views = [result.detach()[:2] for result in results]
            if spoil == "and drops them":
                del results
            for view in views:
                view.mul_(100)
        return dict(zip(right, torch.autograd.grad(loss, floating), strict=True))

    for spoil in (None, "through a view", "and drops them"):
        for name, gradient in found(spoil).items():
            assert distance(gradient.numpy(), right[name], limits[name]).max() <= 1, f"{spoil}, {name}"


def test_what_is_kept_is_pytorch_s_to_keep():
    """So that it is freed with all else, and hooks may put it elsewhere."""
    torch = pytest.importorskip("torch")
    from rlscan import torch_triton

    packed = []
    addend, factor = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        y = torch_triton.affine_scan(addend, factor)
    assert [x.data_ptr() for x in packed] == [addend.data_ptr(), factor.data_ptr(), y.data_ptr()]
    packed.clear()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        torch_triton.affine_scan(addend, factor.detach())
    # by the addends alone states are not needed
    assert len(packed) == 2


def test_no_version_is_asked_of_what_has_none():
    torch = pytest.importorskip("torch")
    from rlscan import torch_triton

    factor = torch.full((1, 3), 0.5, requires_grad=True)
    addend = torch.ones(1, 3)
    with torch.inference_mode(), torch.enable_grad():
        assert torch_triton.affine_scan(addend, factor).tolist() == [[1, 1.5, 1.75]]


@pytest.mark.parametrize("op", ["gae", "vtrace"])
def test_gradients_take_a_state_that_is_not_finite_for_0(op):
    """They say nothing of a result that is NaN, which the value does, but what flows elsewhere is not touched by it."""
    torch = pytest.importorskip("torch")
    from rlscan import torch_triton

    # V is 100 throughout, of which nothing is left in a state that is 0
    gamma, rewards = torch.full((1, 4), 0.5, requires_grad=True), torch.tensor([[1.0, 2.0, 1.0, torch.nan]])
    given = {"rewards": rewards, "values": torch.full((1, 4), 100.0), "terminated": torch.tensor([[False, True, False, False]])}
    given |= {"bootstrap_value": torch.ones(1), "gamma": gamma, "lam": 1.0} | ({"log_rhos": torch.zeros(1, 4)} if op == "vtrace" else {})
    first = as_tuple(getattr(torch_triton, op)(**given))[0]
    (found,) = torch.autograd.grad(first.sum(), gamma)
    assert first.isnan().tolist() == [[False, False, True, True]]
    # of the first episode A_1 = 2 - 100 and V = 100; of the second z_2 (V + 0)
    assert found[0, :3].tolist() == [2, 0, 100]
    assert found.isfinite().all()


def test_unread_arguments_may_be_anything():
    """They are not looked at, and their gradient is exactly 0."""
    torch = pytest.importorskip("torch")
    from rlscan import torch_triton

    rewards, values = torch.ones(1, 3, requires_grad=True), torch.zeros(1, 3, requires_grad=True)
    final = torch.full((1, 3), torch.nan, requires_grad=True)
    bootstrap = torch.full((1,), torch.inf, requires_grad=True)
    terminated, truncated = torch.tensor([[False, False, True]]), torch.tensor([[False, False, False]])
    made = torch_triton.gae(rewards, values, terminated=terminated, truncated=truncated, bootstrap_value=bootstrap, final_values=final, gamma=0.5, lam=1.0)
    found = torch.autograd.grad(made.advantages.sum(), [rewards, values, final, bootstrap])
    # of 1, 1 + .5 and 1 + .5 + .25; of values what their own step loses and the one before gains: -1, -1.5 + .5 * 1, -1.75 + .5 * 1.5
    assert [one.tolist() for one in found] == [[[1, 1.5, 1.75]], [[-1, -1, -1]], [[0, 0, 0]], [0]]
