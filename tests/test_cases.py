"""The public reports in crosscheck/data on every implementation: the right result, and none of the faulty ones."""

import numpy as np
import pytest

from rlscan.crosscheck import cases
from rlscan.crosscheck.compare import wrong
from rlscan.crosscheck.draw import defaults, held
from rlscan.crosscheck.scenarios import Problem
from rlscan.spec.recurrences import RECURRENCES

CASES = {case.id: case for case in cases.load()}
FUNCTION_CASES = [case for case in CASES.values() if not case.is_gradient]
GRADIENT_CASES = [case for case in CASES.values() if case.is_gradient]
FIRST_CASES = list({case.op: case for case in reversed(FUNCTION_CASES)}.values())

# bfloat16 is for the floating arrays, all others for the flags.
FEEDS = [(case, dtype) for case in FUNCTION_CASES for dtype in case.feed_as]


def problem_of(case, dtype, flag_dtype="bool"):
    """The case with its floating arrays in `dtype`, and its flags in another."""
    arguments = {}
    for name, value in case.arguments.items():
        if not isinstance(value, np.ndarray):
            arguments[name] = value
        else:
            arguments[name] = value.astype(flag_dtype) if value.dtype == bool else held(value, dtype)
    return Problem("cases", case.id, RECURRENCES[case.op], defaults(RECURRENCES[case.op]) | arguments, dtype)


def check(case, implementation, dtype, flag_dtype="bool"):
    problem = problem_of(case, dtype, flag_dtype)
    results = dict(zip(problem.recurrence.output_names, implementation.run(problem), strict=True))
    assert cases.recognise(case, results) is None
    assert cases.check(case, results) == []
    implementation.assert_right(problem)


@pytest.mark.parametrize("case", FUNCTION_CASES, ids=lambda case: case.id)
@pytest.mark.parametrize("implementation", ["reference", "torch", "triton", "jax", "pallas"], indirect=True)
def test_cases(case, implementation):
    if implementation.name == "pallas" and implementation.is_interpreted and case not in FIRST_CASES:
        pytest.skip("Pallas' interpreter, which takes seconds to compile, runs one case of each operation")
    check(case, implementation, "float64" if implementation.name == "reference" else "float32")


@pytest.mark.parametrize(("case", "dtype"), FEEDS, ids=[f"{case.id}-{dtype}" for case, dtype in FEEDS])
@pytest.mark.parametrize("implementation", ["reference", "torch", "triton"], indirect=True)
def test_cases_in_other_dtypes(case, dtype, implementation):
    """Flags of any dtype; half precision in, float32 out."""
    if dtype == "bfloat16":
        # What bfloat16 holds, exactly: the case's numbers have few digits.
        assert all(np.array_equal(held(x, "bfloat16"), x, equal_nan=True) for x in case.arguments.values() if isinstance(x, np.ndarray) and x.dtype != bool)
        check(case, implementation, "bfloat16")
    else:
        check(case, implementation, "float32", dtype)


FAULTS = [(case, variant) for case in FUNCTION_CASES for variant in case.wrong]


@pytest.mark.parametrize(("case", "variant"), FAULTS, ids=[f"{case.id}-{variant}" for case, variant in FAULTS])
def test_each_faulty_result_is_beyond_the_bound(case, variant):
    """By the derived bound too, and not only by that of the case."""
    problem = problem_of(case, "float32")
    faulty = [whole(case, name, oracle, case.wrong[variant]) for name, oracle in zip(problem.recurrence.output_names, problem.oracle, strict=True)]
    assert cases.recognise(case, dict(zip(problem.recurrence.output_names, faulty, strict=True))) == variant
    assert wrong(problem, faulty) is not None


def whole(case, name, oracle, results):
    """The oracle's output with the results that the case states, where it states them."""
    faulty = oracle.astype(np.float32)
    if name in results:
        faulty[... if case.at is None else case.at] = results[name]
    return faulty


@pytest.mark.parametrize("case", GRADIENT_CASES, ids=lambda case: case.id)
def test_gradients_by_jax(case):
    jax = pytest.importorskip("jax")
    jax_pallas = pytest.importorskip("rlscan.jax_pallas")
    names = [name.removeprefix("grad_") for name in case.expected]
    arrays = {name: jax.numpy.asarray(x, np.float32 if x.dtype == np.float64 else None) for name, x in case.arguments.items() if isinstance(x, np.ndarray)}
    rest = {name: x for name, x in (case.arguments | arrays).items() if name not in names}

    def result(*wanted):
        arguments = defaults(RECURRENCES[case.op]) | rest | dict(zip(names, wanted, strict=True))
        results = jax_pallas.run(RECURRENCES[case.op], arguments, method="vectorised")
        return results[0] if isinstance(results, tuple) else results

    _, pull_back = jax.vjp(result, *(arrays[name] for name in names))
    gradients = pull_back(jax.numpy.asarray(case.grad_out, np.float32))
    assert cases.check(case, {f"grad_{name}": np.asarray(gradient) for name, gradient in zip(names, gradients, strict=True)}) == []


@pytest.mark.parametrize("case", GRADIENT_CASES, ids=lambda case: case.id)
def test_gradients_by_torch(case):
    torch = pytest.importorskip("torch")
    torch_triton = pytest.importorskip("rlscan.torch_triton")
    names = [name.removeprefix("grad_") for name in case.expected]
    arguments = {name: torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x for name, x in case.arguments.items()}
    wanted = [arguments[name].requires_grad_() for name in names]
    results = getattr(torch_triton, case.op)(**arguments)
    result = results[0] if isinstance(results, tuple) else results
    gradients = torch.autograd.grad(
        result, wanted, torch.from_numpy(np.asarray(case.grad_out, np.float64)).to(result), allow_unused=True, materialize_grads=True
    )
    assert cases.check(case, {f"grad_{name}": gradient.numpy() for name, gradient in zip(names, gradients, strict=True)}) == []
