"""Any shape, any strides, any dtypes, any combination of options: the results are the oracle's, and the arguments stay as they were."""

import contextlib
import dataclasses
import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlscan.crosscheck.backends import tensor
from rlscan.crosscheck.compare import wrong
from rlscan.crosscheck.draw import DTYPES, FLAG_DTYPES, FORMS, draw, variants
from rlscan.crosscheck.scenarios import Problem
from rlscan.spec.recurrences import RECURRENCES

each_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)


def plain(array):
    return array


def beside(array):
    """What lies in memory beside the elements of an array, and must not be read: NaN, or a raised flag."""
    return array.dtype.type(np.nan if array.dtype.kind == "f" else 1)


def every_other(axis):
    """Each second element of a wider array along an axis."""

    def view(array):
        if not array.ndim:
            return array
        wide = np.repeat(array, 2, axis % array.ndim)
        wide[(slice(None),) * (axis % array.ndim) + (slice(1, None, 2),)] = beside(array)
        return wide[(slice(None),) * (axis % array.ndim) + (slice(None, None, 2),)]

    return view


def inner_part(array):
    """The middle of an array that is wider along every axis, so that it begins at no round address."""
    wide = np.full([size + 3 for size in array.shape], beside(array))
    middle = wide[(*(slice(1, size + 1) for size in array.shape), ...)]
    middle[...] = array
    return middle


def reordered(array):
    """The same in memory of the opposite order."""
    return np.asfortranarray(array) if array.ndim else array


def repeated(axis):
    """The first along an axis everywhere along it, by a stride of 0."""

    def view(array):
        if not array.ndim or not array.shape[axis % array.ndim]:
            return array
        return np.broadcast_to(np.take(array, [0], axis % array.ndim), array.shape)

    return view


VIEWS = (plain, every_other(0), every_other(-1), inner_part, reordered, repeated(0), repeated(-1))


@st.composite
def problems(choose, recurrence, most_rows, most_steps, forms=FORMS):
    variant = choose(st.sampled_from(variants(recurrence, forms)))
    # No rows at all is one case, and not every other one.
    shape = choose(st.lists(st.sampled_from([*range(most_rows, 0, -1)] * 3 + [0]), max_size=2))
    time_axis = choose(st.integers(0, len(shape)))
    shape.insert(time_axis, choose(st.sampled_from([1, 2, most_steps // 2, most_steps - 1, most_steps] * 2 + [0])))
    has_features = any(argument.shape == "inputs" for argument in recurrence.arguments)
    dtype = choose(st.sampled_from(DTYPES))
    arguments = draw(
        recurrence,
        variant,
        tuple(shape),
        choose(st.sampled_from([time_axis, time_axis - len(shape)])),
        features=tuple(choose(st.lists(st.sampled_from([2, 3, 1, 0]), max_size=2))) if has_features else (),
        actions=choose(st.integers(1, 5)),
        dtype=dtype,
        flag_dtype=choose(st.sampled_from(FLAG_DTYPES)),
        seed=choose(st.integers(0, 10**6)),
    )
    for name, array in arguments.items():
        if isinstance(array, np.ndarray | np.generic):
            arguments[name] = choose(st.sampled_from(VIEWS))(np.asarray(array))
    return Problem("properties", str(variant), recurrence, arguments, dtype)


# Slow is what Triton's interpreter is, and the fixtures hold no state.
EVERY_CHECK: Any = list(HealthCheck)


def check(most_rows, most_steps, examples):
    """A decorator for tests that take a problem of the recurrence that they are given."""

    def decorate(test):
        @settings(max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=EVERY_CHECK)
        @given(data=st.data())
        def run(recurrence, implementation, data):
            test(implementation, data.draw(problems(recurrence, most_rows, most_steps)))

        return run

    return decorate


@contextlib.contextmanager
def untouched(arguments):
    before = {name: x.clone() for name, x in arguments.items() if hasattr(x, "clone")}
    yield
    for name, x in before.items():
        equal = arguments[name].eq(x) | (x != x)
        assert equal.all(), f"{name} was modified"


def run_on_tensors(implementation, problem):
    """As the backend does it, but with the tensors in sight."""
    package = importlib.import_module("rlscan.torch_triton")
    arguments = {name: tensor(x, implementation.device, problem.dtype) if isinstance(x, np.ndarray) else x for name, x in problem.arguments.items()}
    with untouched(arguments):
        results = package.run(problem.recurrence, arguments, method=implementation.backend.method)
    return [result.cpu().numpy() for result in (results if isinstance(results, tuple) else (results,))]


@each_recurrence
@pytest.mark.parametrize("implementation", ["torch"], indirect=True)
@check(most_rows=4, most_steps=70, examples=80)
def test_whole_arrays(implementation, problem):
    assert wrong(problem, run_on_tensors(implementation, problem)) is None


@each_recurrence
@pytest.mark.parametrize("implementation", ["triton"], indirect=True)
@check(most_rows=3, most_steps=20, examples=16)
def test_kernels(implementation, problem):
    assert wrong(problem, run_on_tensors(implementation, problem)) is None


@each_recurrence
@pytest.mark.parametrize("implementation", ["reference", "numpy"], indirect=True)
@check(most_rows=4, most_steps=70, examples=25)
def test_loops(implementation, problem):
    implementation.assert_right(problem)


@each_recurrence
@pytest.mark.parametrize("implementation", ["jax"], indirect=True)
@check(most_rows=3, most_steps=20, examples=2)
def test_jax(implementation, problem):
    """A few: JAX compiles anew for each."""
    implementation.assert_right(problem)


@each_recurrence
@pytest.mark.parametrize("implementation", ["torch", "triton"], indirect=True)
def test_rows_of_a_tensor_do_not_mix(implementation, recurrence):
    """What is in one row never shows in another, not even NaN."""
    variant = variants(recurrence, ("per step",))[-1]
    arguments = draw(recurrence, variant, (4, 9), seed=21)
    kinds = {argument.name: argument for argument in recurrence.arguments}
    spoilt = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    for name, x in spoilt.items():
        if isinstance(x, np.ndarray) and x.ndim:
            x[2] = 1 - x[2] if kinds[name].flag else np.nan
    clean, other = (implementation.call(recurrence, each) for each in (arguments, spoilt))
    for one, two in zip(clean, other, strict=True):
        np.testing.assert_array_equal(np.delete(one, 2, 0), np.delete(two, 2, 0))
        assert np.isnan(two[2]).any()


@each_recurrence
def test_jax_in_its_strict_modes(recurrence):
    """No dtype is promoted by chance, and no axis is made up, so that a caller may forbid both."""
    jax = pytest.importorskip("jax")
    jax_pallas = pytest.importorskip("rlscan.jax_pallas")
    problem = Problem("strict", "", recurrence, draw(recurrence, variants(recurrence)[-1], (2, 3)))
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        arguments = {name: jax.numpy.asarray(x) if isinstance(x, np.ndarray) else x for name, x in problem.arguments.items()}
        for method in ("vectorised", "kernels"):
            results = jax_pallas.run(recurrence, arguments, method=method)
            assert wrong(problem, [np.asarray(result) for result in (results if isinstance(results, tuple) else (results,))]) is None


def test_named_tuples_have_the_declared_fields():
    torch_triton = pytest.importorskip("rlscan.torch_triton")
    torch = importlib.import_module("torch")
    for recurrence in RECURRENCES.values():
        arguments = draw(recurrence, variants(recurrence)[0], (2, 3))
        results = torch_triton.run(recurrence, {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()})
        if recurrence.result is None:
            assert isinstance(results, torch.Tensor)
        else:
            assert type(results).__name__ == recurrence.result
            assert results._fields == recurrence.output_names
            assert all(getattr(results, name) is result for name, result in zip(results._fields, results, strict=True))
            assert dataclasses.is_dataclass(type(results)) is False
