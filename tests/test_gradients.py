"""Derivatives: by finite differences, of both backends alike, in every direction, and exactly 0 into what is not read."""

import functools
import importlib.util
import itertools
from typing import Any

import numpy as np
import pytest

from rlscan.crosscheck.draw import draw, variants
from rlscan.crosscheck.scenarios import Extent, covering, problems
from rlscan.crosscheck.unread import Window, unread
from rlscan.spec.recurrences import RECURRENCES

torch = pytest.importorskip("torch")
from rlscan import torch_triton  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")

each_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)
CALLS = [
    pytest.param(recurrence, variant, axis, id=f"{recurrence.name}-{variant}-{axis}")
    for recurrence in RECURRENCES.values()
    for number, variant in enumerate(covering(variants(recurrence, ("per step",))))
    for axis in [(-1, 0)[number % 2]]
]
each_call = pytest.mark.parametrize(("recurrence", "variant", "axis"), CALLS)


def smooth(recurrence, variant, axis):
    """Arguments in float64, without a factor or a weight of exactly 0: there a cut is, which is a rule and no limit of anything."""
    arguments = draw(recurrence, variant, (2, 4) if axis else (4, 2), axis, dtype="float64", seed=3)
    for name in ("factor", "gamma", "lam", "next_policy"):
        if isinstance(arguments.get(name), np.ndarray):
            array = arguments[name]
            array[...] = np.where((array == 0) | (array == 1), 0.5, array)
    return arguments


def floats(arguments):
    return [name for name, value in arguments.items() if isinstance(value, np.ndarray) and value.dtype.kind == "f"]


def in_torch(recurrence, arguments):
    """The outputs as a function of the floating arguments, and these."""
    names = floats(arguments)
    given = {name: torch.from_numpy(value.copy()).to(DEVICE) if isinstance(value, np.ndarray) else value for name, value in arguments.items()}

    def function(*tensors):
        results = torch_triton.run(recurrence, given | dict(zip(names, tensors, strict=True)))
        return results if isinstance(results, tuple) else (results,)

    return function, [given[name].requires_grad_() for name in names]


def weights(outputs):
    return [np.random.default_rng(number).normal(size=tuple(output.shape)) for number, output in enumerate(outputs)]


def gradients_by_torch(recurrence, arguments):
    function, tensors = in_torch(recurrence, arguments)
    outputs = function(*tensors)
    loss = sum((output * torch.from_numpy(weight).to(output)).sum() for output, weight in zip(outputs, weights(outputs), strict=True))
    found = torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)
    return {name: gradient.cpu().numpy() for name, gradient in zip(floats(arguments), found, strict=True)}


def gradients_by_jax(recurrence, arguments, method):
    import jax
    import jax.numpy as jnp

    from rlscan import jax_pallas

    names = floats(arguments)
    given = {name: jnp.asarray(value) if isinstance(value, np.ndarray) else value for name, value in arguments.items()}

    def loss(*arrays):
        results = jax_pallas.run(recurrence, given | dict(zip(names, arrays, strict=True)), method)
        results = results if isinstance(results, tuple) else (results,)
        return sum(jnp.sum(result * jnp.asarray(weight, result.dtype)) for result, weight in zip(results, weights(results), strict=True))

    found = jax.grad(loss, tuple(range(len(names))))(*(given[name] for name in names))
    return {name: np.asarray(gradient) for name, gradient in zip(names, found, strict=True)}


@each_call
def test_first_and_second_derivatives_are_those_of_finite_differences(recurrence, variant, axis):
    """By every floating argument, in reverse and in forward mode."""
    function, tensors = in_torch(recurrence, smooth(recurrence, variant, axis))
    assert torch.autograd.gradcheck(function, tensors, fast_mode=True, check_forward_ad=True)
    if variant == variants(recurrence, ("per step",))[-1]:
        assert torch.autograd.gradgradcheck(function, tensors, fast_mode=True)


@needs_jax
@each_call
def test_both_backends_have_the_same_gradients(recurrence, variant, axis):
    import jax

    arguments = smooth(recurrence, variant, axis)
    with jax.enable_x64(True):
        found = gradients_by_jax(recurrence, arguments, "vectorised")
        by_kernels = gradients_by_jax(recurrence, arguments, "kernels") if variant == variants(recurrence, ("per step",))[0] else found
    for name, gradient in gradients_by_torch(recurrence, arguments).items():
        # sums of some ten products of numbers about 1
        np.testing.assert_allclose(found[name], gradient, rtol=0, atol=1e-12 * max(1, np.abs(gradient).max()), err_msg=name)
        np.testing.assert_array_equal(by_kernels[name], found[name], err_msg=name)


PLANTED = [
    pytest.param(problem, rule, id=f"{problem.recurrence.name}-{rule}-{number}")
    for recurrence in RECURRENCES.values()
    for rule in ("B1", "B2", "B3", "B6", "B7", "B8")
    for number, problem in enumerate(
        itertools.islice((one for one in problems(recurrence, Extent(), [rule]) if one.clean is not None and one.untouched is None), 3)
    )
]


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=needs_jax)])
@pytest.mark.parametrize(("problem", "rule"), PLANTED)
def test_nothing_flows_into_what_is_not_read(problem, rule, backend):
    """Not even NaN, where NaN or infinity stands."""
    by = gradients_by_torch if backend == "torch" else functools.partial(gradients_by_jax, method="vectorised")
    gradients = by(problem.recurrence, problem.arguments)
    window = Window(problem.recurrence, problem.arguments | gradients)
    for name, mask in unread(problem.recurrence, problem.clean, rule).items():
        if name in gradients:
            gradient = gradients[name] if window.kinds[name].shape == "row" else window.along_time(name)
            assert (gradient[mask] == 0).all(), name
    for name, gradient in gradients.items():
        assert np.isfinite(gradient).all(), name


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=needs_jax)])
def test_a_ratio_that_overflows_and_is_clipped_has_a_gradient(backend):
    recurrence = RECURRENCES["vtrace"]
    arguments = draw(recurrence, variants(recurrence)[0], (2, 4), seed=1) | {"rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0}
    ratios: Any = arguments["log_rhos"]
    ratios[...] = [[100.0, -0.5, 1000.0, 0.25], [np.inf, -100.0, -0.1, 89.0]]
    gradients = gradients_by_torch(recurrence, arguments) if backend == "torch" else gradients_by_jax(recurrence, arguments, "vectorised")
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    assert (gradients["log_rhos"][ratios > 0] == 0).all()


def test_the_gradient_of_backward_sums_is_the_forward_trace():
    """By hand: with gamma lam = 1/2, sum_t A_t has the gradient 1, 3/2, 7/4 in the TD errors, and an end cuts it."""
    rewards = torch.zeros(1, 4, requires_grad=True)
    terminated = torch.tensor([[False, False, True, False]])
    values, next_values = torch.zeros(1, 4), torch.zeros(1, 4)
    advantages, _ = torch_triton.gae(rewards, values, terminated=terminated, next_values=next_values, gamma=1.0, lam=0.5)
    (gradient,) = torch.autograd.grad(advantages.sum(), rewards)
    assert gradient.tolist() == [[1.0, 1.5, 1.75, 1.0]]


def test_no_gradient_wanted_no_graph():
    inputs = torch.ones(2, 3)
    assert not torch_triton.affine_scan(inputs, 0.5).requires_grad
    with torch.no_grad():
        assert not torch_triton.affine_scan(inputs.requires_grad_(), 0.5).requires_grad
    assert torch_triton.affine_scan(inputs, 0.5).requires_grad


@needs_jax
def test_jax_differentiates_twice_through_jit_vmap_and_remat():
    import jax
    import jax.numpy as jnp
    from jax.test_util import check_grads

    from rlscan import jax_pallas

    arguments = smooth(RECURRENCES["gae"], variants(RECURRENCES["gae"], ("per step",))[0], -1)
    with jax.enable_x64(True):
        given = {name: jnp.asarray(value) if isinstance(value, np.ndarray) else value for name, value in arguments.items()}

        # finite differences are taken in NumPy
        def advantages(rewards, gamma):
            return jax_pallas.run(RECURRENCES["gae"], given | {"rewards": jnp.asarray(rewards), "gamma": jnp.asarray(gamma)}).advantages

        for function in (advantages, jax.jit(advantages), jax.checkpoint(advantages)):
            check_grads(function, (given["rewards"], given["gamma"]), order=2, modes=("fwd", "rev"))
        stacked = jnp.stack([given["rewards"]] * 2)
        found = jax.vmap(jax.grad(lambda rewards: advantages(rewards, given["gamma"]).sum()))(stacked)
        np.testing.assert_array_equal(found[0], found[1])
        assert jax.hessian(lambda gamma: jnp.sum(jax_pallas.run(RECURRENCES["gae"], given | {"gamma": gamma}).returns))(jnp.asarray(0.9)).shape == ()
