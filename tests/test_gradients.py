"""Derivatives: by finite differences of the float64 loop, in every direction and twice, under every transformation, and exactly 0 into what is not read."""

import functools
import importlib.util
import itertools
import threading
from typing import Any

import numpy as np
import pytest

from rlscan.crosscheck.draw import draw, variants
from rlscan.crosscheck.scenarios import Extent, covering, problems
from rlscan.crosscheck.transformations import OPERATIONS, slope, within
from rlscan.crosscheck.unread import Window, unread
from rlscan.spec import reference
from rlscan.spec.bound import EXP_ERROR
from rlscan.spec.recurrences import RECURRENCES

torch = pytest.importorskip("torch")
from torch.autograd import forward_ad  # noqa: E402

from rlscan import torch_triton  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HAS_JAX = importlib.util.find_spec("jax") is not None
needs_jax = pytest.mark.skipif(not HAS_JAX, reason="JAX is not installed")
each_backend = pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=needs_jax)])
each_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)

NAN, INF = float("nan"), float("inf")

STEPS = 4


def within_derivatives(order):
    """Of two computations of one derivative, relative to the largest number in them."""
    return within(2 * OPERATIONS * STEPS * 3**order)


def ways(recurrence):
    return covering(variants(recurrence, ("per step",)))


each_call = pytest.mark.parametrize(
    ("recurrence", "variant", "axis"),
    [
        pytest.param(recurrence, variant, axis, id=f"{recurrence.name}-{variant}-{axis}")
        for recurrence in RECURRENCES.values()
        for number, variant in enumerate(ways(recurrence))
        for axis in [(-1, 0)[number % 2]]
    ],
)


def drawn(recurrence, variant, axis=-1):
    return draw(recurrence, variant, (2, STEPS) if axis else (STEPS, 2), axis, dtype="float64", seed=3)


def floats(arguments):
    return [name for name, value in arguments.items() if isinstance(value, np.ndarray) and value.dtype.kind == "f"]


def directions(arguments):
    random = np.random.default_rng(1)
    return {name: random.normal(size=arguments[name].shape) for name in floats(arguments)}


def as_tuple(results):
    return tuple(results) if isinstance(results, tuple) else (results,)


def weighted(results):
    """The sum of all results, each element with a weight of its own."""
    total = 0.0
    for number, result in enumerate(as_tuple(results)):
        random = np.random.default_rng(number).normal(size=tuple(result.shape))
        weights = torch.from_numpy(random).to(result) if isinstance(result, torch.Tensor) else np.asarray(random, result.dtype)
        total = total + (result * weights).sum()
    return total


class ByTorch:
    """The derivatives of `weighted`."""

    def __init__(self, recurrence, arguments):
        self.names = floats(arguments)
        self.recurrence = recurrence
        self.given = {name: torch.from_numpy(x.copy()).to(DEVICE) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
        self.at = [self.given[name] for name in self.names]

    def loss(self, *tensors):
        return weighted(torch_triton.run(self.recurrence, self.given | dict(zip(self.names, tensors, strict=True))))

    def gradients(self, create_graph=False):
        """In all floating arguments, and where these are."""
        tensors = [x.detach().clone().requires_grad_() for x in self.at]
        return torch.autograd.grad(self.loss(*tensors), tensors, create_graph=create_graph, allow_unused=True, materialize_grads=True), tensors

    def first(self):
        return self.named(self.gradients()[0])

    def second(self, along):
        """Those of the product of the gradients with `along`."""
        gradients, tensors = self.gradients(create_graph=True)
        parts = [(gradient * torch.from_numpy(along[name]).to(gradient)).sum() for name, gradient in zip(self.names, gradients, strict=True)]
        product = torch.stack(parts).sum()
        if not product.requires_grad:
            return self.named([torch.zeros_like(x) for x in tensors])
        return self.named(torch.autograd.grad(product, tensors, allow_unused=True, materialize_grads=True))

    def both(self, along):
        return self.first(), self.second(along)

    def named(self, gradients):
        return {name: gradient.detach().cpu().numpy() for name, gradient in zip(self.names, gradients, strict=True)}

    def forward(self, name, direction):
        place = self.names.index(name)
        with forward_ad.dual_level():
            moved = list(self.at)
            moved[place] = forward_ad.make_dual(moved[place], torch.from_numpy(direction).to(moved[place]))
            tangent = forward_ad.unpack_dual(self.loss(*moved)).tangent
        return 0.0 if tangent is None else tangent.item()


class ByJax:
    """The same, compiled once for all arguments of the same shapes."""

    def __init__(self, recurrence, arguments, method: Any = "vectorised"):
        import jax

        self.jax = jax
        self.wide = jax.enable_x64(any(arguments[name].dtype == np.float64 for name in floats(arguments)))
        arrays = {name: x for name, x in arguments.items() if isinstance(x, np.ndarray)}
        self.at = {name: arrays.pop(name) for name in floats(arguments)}
        self.rest = arrays
        self.found = _derivatives(recurrence, method, tuple((name, x) for name, x in arguments.items() if not isinstance(x, np.ndarray)))

    def all(self, along=None):
        """The gradients; with `along` also the derivative along it, and the gradients of that."""
        with self.wide:
            return self.jax.tree.map(np.asarray, self.found(self.at, self.rest, along))

    def first(self):
        return self.all()[0]

    def both(self, along):
        first, _, second = self.all(along)
        return first, second


@functools.cache
def _derivatives(recurrence, method, options):
    import jax

    from rlscan import jax_pallas

    @jax.jit
    def derivatives(at, rest, along):
        def loss(at):
            return weighted(jax_pallas.run(recurrence, dict(options) | rest | at, method))

        def forward(at):
            return jax.jvp(loss, (at,), (along,))[1]

        return (jax.grad(loss)(at), *(() if along is None else jax.value_and_grad(forward)(at)))

    return derivatives


BY = {"torch": ByTorch, "jax": ByJax}


@each_call
def test_derivatives_are_those_of_finite_differences(recurrence, variant, axis):
    """By every floating argument, in reverse and in forward mode, and once more; also at factors of exactly 0 and 1."""
    arguments = drawn(recurrence, variant, axis)
    along = directions(arguments)
    by = ByTorch(recurrence, arguments)
    first, second = by.both(along)

    def product(arguments):
        found = ByTorch(recurrence, arguments).first()
        return sum((found[name] * along[name]).sum() for name in found)

    for name, direction in along.items():
        wanted, within = slope(lambda arguments: weighted(reference.run(recurrence, arguments)), arguments, name, direction)
        assert abs((first[name] * direction).sum() - wanted) <= within, name
        assert abs(by.forward(name, direction) - wanted) <= within, name
        wanted, within = slope(product, arguments, name, direction)
        assert abs((second[name] * direction).sum() - wanted) <= within, name


@needs_jax
@each_recurrence
def test_both_backends_have_the_same_derivatives(recurrence):
    """In JAX the second ones are taken in reverse of the forward ones."""
    arguments = drawn(recurrence, ways(recurrence)[1])
    along = directions(arguments)
    by = ByTorch(recurrence, arguments)
    first, second = by.both(along)
    found, forward, found_second = ByJax(recurrence, arguments).all(along)
    assert abs(forward - sum(by.forward(name, direction) for name, direction in along.items())) <= within_derivatives(1) * max(1, abs(forward))
    for name in along:
        for order, wanted, gradient in ((1, first[name], found[name]), (2, second[name], found_second[name])):
            np.testing.assert_allclose(gradient, wanted, rtol=0, atol=within_derivatives(order) * max(1, np.abs(wanted).max()), err_msg=name)


@needs_jax
def test_kernels_of_jax_have_the_derivatives_of_whole_arrays():
    recurrence = RECURRENCES["vtrace"]
    arguments = drawn(recurrence, ways(recurrence)[1])
    wanted, found = (ByJax(recurrence, arguments, method).first() for method in ("vectorised", "kernels"))
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=within_derivatives(1) * max(1, np.abs(wanted[name]).max()), err_msg=name)


def planted(backend):
    """Some problems for each rule; fewer in JAX, which compiles for seconds what PyTorch just does."""
    rules = ("B1", "B2", "B3", "B6", "B7", "B8") if backend == "torch" else ("B1", "B6", "B7", "B8")
    for recurrence, rule in itertools.product(RECURRENCES.values(), rules):
        found = (one for one in problems(recurrence, Extent(), [rule]) if one.clean is not None and one.untouched is None)
        for number, problem in enumerate(itertools.islice(found, 3 if backend == "torch" else 1)):
            marks = [needs_jax] if backend == "jax" else []
            yield pytest.param(problem, rule, backend, id=f"{recurrence.name}-{rule}-{number}-{backend}", marks=marks)


@pytest.mark.parametrize(("problem", "rule", "backend"), [*planted("torch"), *planted("jax")])
def test_nothing_flows_into_what_is_not_read(problem, rule, backend):
    """Not even NaN, where NaN or infinity stands; and nothing flows from there into the second derivative."""
    along = {name: np.ones_like(problem.arguments[name]) for name in floats(problem.arguments)}
    # which JAX compiles for seconds: where there is most to it
    twice = backend == "torch" or (problem.recurrence.name == "vtrace" and rule == "B8")
    by = BY[backend](problem.recurrence, problem.arguments)
    for gradients in by.both(along) if twice else (by.first(),):
        window = Window(problem.recurrence, problem.arguments | gradients)
        for name, mask in unread(problem.recurrence, problem.clean, rule).items():
            if name in gradients:
                gradient = gradients[name] if window.kinds[name].shape == "row" else window.along_time(name)
                assert (gradient[mask] == 0).all(), name
        for name, gradient in gradients.items():
            assert np.isfinite(gradient).all(), name


ZEROS = np.zeros(4)
NEVER = np.zeros(4, bool)
# Name, arguments, by what, the step of the result, and its gradient: products of factors, and of a factor's product with what it multiplies.
KNOWN: dict[str, tuple[str, dict[str, Any], str, Any, Any]] = {
    "states of 0": (
        "gae", {"rewards": ZEROS, "values": ZEROS, "terminated": NEVER, "next_values": ZEROS, "gamma": 0.5, "lam": 1.0}, "rewards", ..., [1, 1.5, 1.75, 1.875],
    ),
    "returns of 0": ("discounted_returns", {"rewards": np.eye(4)[0], "terminated": NEVER, "gamma": 0.5}, "rewards", 0, [1, 0.5, 0.25, 0.125]),
    "a sum that is 0": ("episodic_prefix_sum", {"inputs": np.array([1.0, -1, 2, 3]), "terminated": NEVER}, "inputs", 3, [1, 1, 1, 1]),
    "a bootstrap of 0": (
        "lambda_returns",
        {"rewards": ZEROS, "values": ZEROS, "terminated": NEVER, "bootstrap_value": np.array(0.0), "gamma": 0.5, "lam": 1.0},
        "bootstrap_value", 0, 0.0625,
    ),
    # G_0 = r + g ((1-l) N_0 + l G_1), so -g N_0 + g G_1 = -0.5*8 + 0.5*(2 + 0.5*4)
    "all weight on the return": (
        "lambda_returns",
        {"rewards": np.array([1.0, 2]), "terminated": NEVER[:2], "next_values": np.array([8.0, 4]), "gamma": 0.5, "lam": np.array([1.0, 1])},
        "lam", 0, [-2, 0],
    ),
    "no discount": ("discounted_returns", {"rewards": np.array([1.0, 3]), "terminated": NEVER[:2], "gamma": np.array(0.0)}, "gamma", 0, 3),
    "no discount of what is not finite": (
        "lambda_returns", {"rewards": np.array([1.0]), "terminated": NEVER[:1], "next_values": np.array([INF]), "gamma": np.array(0.0)}, "gamma", 0, 0,
    ),
    # g q(a)
    "an action that is never taken": (
        "retrace",
        {
            "log_rhos": ZEROS[:1], "rewards": ZEROS[:1], "q_values": ZEROS[:1], "terminated": NEVER[:1], "gamma": 0.5,
            "next_q_values": np.array([[4.0, 6, NAN]]), "next_policy": np.array([[0.0, 1, 0]]),
        },
        "next_policy", 0, [[2, 3, 0]],
    ),
    # behind the cut a state overflows
    "a state that overflows": (
        "affine_scan", {"addend": np.array([1e308, 1e308, 1.0]), "factor": np.array([1.0, 1, 0])}, "factor", 2, [0, 0, 0],
    ),
    # min(2, w) r, where w is 0, 0.5, beyond numbers, and infinite
    "ratios": (
        "vtrace",
        {
            "log_rhos": np.array([-INF, np.log(0.5), 1000, INF]), "rewards": np.ones(4), "values": ZEROS, "next_values": ZEROS,
            "terminated": ~NEVER, "rho_bar": 2.0,
        },
        "rewards", ..., [0, 0.5, 2, 2],
    ),
    "of ratios": (
        "vtrace",
        {
            "log_rhos": np.array([-INF, np.log(0.5), 1000, INF]), "rewards": np.ones(4), "values": ZEROS, "next_values": ZEROS,
            "terminated": ~NEVER, "rho_bar": 2.0,
        },
        "log_rhos", ..., [0, 0.5, 0, 0],
    ),
}  # fmt: skip


def gradient_of(backend, name, arguments, by, place):
    if backend == "torch":
        given = {one: torch.from_numpy(x.copy()).to(DEVICE) if isinstance(x, np.ndarray) else x for one, x in arguments.items()}
        given[by].requires_grad_()
        result = as_tuple(getattr(torch_triton, name)(**given))[0]
        return torch.autograd.grad(result[place].sum(), given[by])[0].cpu().numpy()
    import jax

    from rlscan import jax_pallas

    with jax.enable_x64(True):
        given = {one: jax.numpy.asarray(x) if isinstance(x, np.ndarray) else x for one, x in arguments.items()}
        loss = lambda x: as_tuple(getattr(jax_pallas, name)(**given | {by: x}))[0][place].sum()  # noqa: E731
        return np.asarray(jax.grad(loss)(given[by]))


@each_backend
@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_known_gradients(known, backend):
    """Where a state, a factor or a weight is exactly 0 or 1, and where a number is beyond all numbers."""
    *call, wanted = known
    # at most exp(log(1/2)) times something
    np.testing.assert_allclose(gradient_of(backend, *call), np.asarray(wanted, float), rtol=within(1 + EXP_ERROR + 1))


@needs_jax
def test_forward_mode_of_jax_where_states_are_0():
    import jax

    from rlscan import jax_pallas

    zeros = jax.numpy.zeros(4)
    _, tangent = jax.jvp(lambda addend: jax_pallas.affine_scan(addend, 0.5), (zeros,), (zeros + 1,))
    assert tangent.tolist() == [1, 1.5, 1.75, 1.875]


def test_second_derivatives_where_no_gradient_comes_in():
    """G = [1 + g + g^2, 1 + g, 1] has the derivative [1 + 2g, 1, 0]; a squared error of 0 has twice the sum of its squares as the second."""
    rewards, never = torch.ones(3, dtype=torch.float64), torch.zeros(3)
    gamma = torch.tensor(0.9, dtype=torch.float64)

    def returns(gamma):
        return torch_triton.discounted_returns(rewards, terminated=never, gamma=gamma)

    tangent = torch.autograd.functional.jvp(returns, gamma, torch.ones_like(gamma))[1]
    # g and what is wanted are rounded, and one product and one sum
    np.testing.assert_allclose(tangent, [2.8, 1, 0], rtol=within(4))
    at_best = returns(gamma)
    hessian = torch.autograd.functional.hessian(lambda gamma: (returns(gamma) - at_best).square().sum(), gamma)
    # a square of that, which has its error twice
    np.testing.assert_allclose(hessian, 2 * (2.8**2 + 1), rtol=within(2 * 4))


@each_backend
def test_a_second_derivative_beside_what_is_not_read(backend):
    """vs_0 + vs_2 = V_0 + D_0 + V_2 + D_2 with D_2 = w_2 (2 + g - 1/2) and D_0 = w_0 (1 + g/2 - 1/2 + g D_2)."""
    w, gamma = np.exp([-0.1, -0.2]), 0.99
    last = w[1] * (2 + gamma - 0.5)
    # c = w too, for lam is 1
    first = w[0] * (1 + gamma * 0.5 - 0.5 + gamma * last)
    arguments = {
        "log_rhos": np.array([-0.1, NAN, -0.2]), "rewards": np.array([1, NAN, 2]), "values": np.array([0.5, NAN, 0.5]),
        "terminated": np.zeros(3), "valid": np.array([1, 0, 1]), "bootstrap_value": np.array(1.0), "gamma": gamma,
    }  # fmt: skip
    # ln w_0 enters through all of D_0, ln w_2 through D_2 and its part in D_0: the sum of the gradient, differentiated once more
    wanted = np.array([first + w[0] * gamma * last, 0, last + 2 * w[0] * gamma * last])
    assert np.round(wanted, 2).tolist() == [4.55, 0, 5.69]
    if backend == "torch":
        given: dict[str, Any] = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
        at = given["log_rhos"].requires_grad_()
        (gradient,) = torch.autograd.grad(torch_triton.vtrace(**given).vs.sum(), at, create_graph=True)
        found = torch.autograd.grad(gradient.sum(), at)[0].numpy()
    else:
        import jax

        from rlscan import jax_pallas

        with jax.enable_x64(True):
            given = {name: jax.numpy.asarray(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
            gradient = jax.grad(lambda log_rhos: jax_pallas.vtrace(**given | {"log_rhos": log_rhos}).vs.sum())
            found = np.asarray(jax.grad(lambda log_rhos: gradient(log_rhos).sum())(given["log_rhos"]))
    # two exponentials on either side, and what is done with them
    np.testing.assert_allclose(found, wanted, rtol=within(2 * (2 * EXP_ERROR + OPERATIONS)))


def vtrace_losses():
    arguments = draw(RECURRENCES["vtrace"], ways(RECURRENCES["vtrace"])[1], (3, 20), dtype="float64")
    arguments["rewards"][arguments["valid"] == 0] = NAN
    return ByTorch(RECURRENCES["vtrace"], arguments)


def test_threads_differentiate_side_by_side():
    by = vtrace_losses()
    wanted, wrong = by.first(), []

    def work():
        try:
            for _ in range(5):
                found = by.first()
                wrong.extend(name for name in wanted if not np.array_equal(found[name], wanted[name]))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_reverse_mode_in_a_level_of_forward_mode():
    by = vtrace_losses()
    wanted = by.first()
    tensors = [x.clone().requires_grad_() for x in by.at]
    loss = by.loss(*tensors)
    with forward_ad.dual_level():
        outside = by.named(torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True))
        inside = by.first()
    for name in wanted:
        # within a level the scan adds up in another order; what is exactly 0 stays so
        for found in (inside, outside):
            np.testing.assert_allclose(found[name], wanted[name], rtol=within_derivatives(1), atol=0, err_msg=name)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3)], ids=str)
@each_recurrence
def test_an_empty_window_has_a_gradient_of_0(recurrence, shape):
    for variant in (ways(recurrence)[0], ways(recurrence)[-1]):
        by = ByTorch(recurrence, draw(recurrence, variant, shape))
        tensors = [x.clone().requires_grad_() for x in by.at]
        results = as_tuple(torch_triton.run(recurrence, by.given | dict(zip(by.names, tensors, strict=True))))
        assert all(result.requires_grad and result.shape == shape for result in results)
        first = torch.autograd.grad(sum(result.sum() for result in results), tensors, create_graph=True)
        for gradient in (*first, *torch.autograd.grad(sum(gradient.sum() for gradient in first), tensors)):
            assert (gradient == 0).all()


def test_no_gradient_wanted_no_graph():
    inputs = torch.ones(2, 3)
    assert not torch_triton.affine_scan(inputs, 0.5).requires_grad
    with torch.no_grad():
        assert not torch_triton.affine_scan(inputs.requires_grad_(), 0.5).requires_grad
    assert torch_triton.affine_scan(inputs, 0.5).requires_grad


def advantages_with_constants(change=False):
    rewards, never = torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3)
    with torch.inference_mode():
        values, bootstrap = torch.ones(2, 3), torch.ones(2)
    lam = torch.full((2, 3), 0.5)
    advantages, _ = torch_triton.gae(rewards, values, terminated=never, bootstrap_value=bootstrap, gamma=1.0, lam=lam)
    if change:
        lam.zero_()
    advantages.sum().backward()
    assert rewards.grad is not None
    return rewards.grad.tolist()


def test_an_argument_without_a_gradient_may_come_from_inference_mode():
    assert advantages_with_constants() == [[1, 1.5, 1.75]] * 2


def test_an_argument_that_has_changed_since_is_an_error():
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        advantages_with_constants(change=True)


def advantages_of(rewards, gamma: Any = 0.9):
    never = torch.zeros(rewards.shape)
    return torch_triton.gae(rewards, rewards.cos(), terminated=never, bootstrap_value=rewards[..., 0], gamma=gamma, lam=0.5).advantages


def close(one, other):
    # sums of less than a hundred roundings each
    return torch.testing.assert_close(one, other, rtol=0, atol=100 * torch.finfo(other.dtype).eps * max(1.0, other.abs().max().item()))


def test_transformations_of_torch_func():
    func, rewards = torch.func, torch.randn(2, 3, 5, dtype=torch.float64)
    gamma = torch.tensor(0.9, dtype=torch.float64)
    close(func.vmap(advantages_of)(rewards), advantages_of(rewards))
    close(func.vmap(advantages_of, in_dims=(1, None), out_dims=1)(rewards, gamma), advantages_of(rewards))

    def loss(rewards, gamma):
        return advantages_of(rewards, gamma).square().sum()

    leaves = [rewards[0].clone().requires_grad_(), gamma.clone().requires_grad_()]
    wanted = torch.autograd.grad(loss(*leaves), leaves)
    for argument, gradient in enumerate(wanted):
        for transform in (func.grad, func.jacrev, func.jacfwd):
            close(transform(loss, argument)(rewards[0], gamma), gradient)
    close(func.vmap(func.grad(loss), in_dims=(0, None))(rewards, gamma)[0], wanted[0])
    close(func.grad(lambda rewards: func.vmap(loss, in_dims=(0, None))(rewards, gamma).sum())(rewards)[0], wanted[0])
    hessians = torch.autograd.functional.hessian(loss, (rewards[0], gamma))
    assert isinstance(hessians, tuple)
    for argument in (0, 1):
        close(func.hessian(loss, argument)(rewards[0], gamma), hessians[argument][argument])


@pytest.mark.filterwarnings("ignore")
def test_what_is_traced_is_no_constant():
    from torch.fx.experimental.proxy_tensor import make_fx

    one, other = torch.randn(2, 3, 5, dtype=torch.float64)
    gradient = torch.func.grad(lambda rewards: advantages_of(rewards).square().sum())
    for mode in ("real", "fake"):
        for function in (advantages_of, gradient):
            close(make_fx(lambda rewards: function(rewards), tracing_mode=mode)(one)(other), function(other))  # noqa: B023
    close(torch.jit.trace(advantages_of, one)(other), advantages_of(other))


@needs_jax
def test_jax_differentiates_through_jit_vmap_and_remat():
    import jax
    import jax.numpy as jnp

    from rlscan import jax_pallas

    inputs = jnp.arange(4.0)

    def loss(factor):
        return jnp.square(jax_pallas.affine_scan(inputs, factor)).sum()

    @jax.jit
    def found(factor):
        many = jax.grad(lambda factors: jax.vmap(jax.checkpoint(loss))(factors).sum())(jnp.stack([factor, factor]))
        return jax.grad(loss)(factor), *many, jax.hessian(loss)(factor)

    # y = [0, 1, 2 + f, 3 + 2f + f^2], whose derivatives are [0, 0, 1, 2 + 2f] and [0, 0, 0, 2]: at f = 1 the loss has 2 (3 + 6*4) and 2 (1 + 4*4 + 6*2)
    assert [x.item() for x in found(jnp.ones(()))] == [54, 54, 54, 58]


@needs_jax
@pytest.mark.parametrize("method", ["vectorised", "kernels"])
def test_a_program_of_jax_does_not_grow_with_the_number_of_actions(method):
    import jax

    from rlscan import jax_pallas

    def length(actions):
        given = {name: jax.numpy.ones((2, 3)) for name in ("log_rhos", "rewards", "q_values", "terminated")}
        many = jax.numpy.ones((2, 3, actions))
        loss = lambda q: jax_pallas.run(RECURRENCES["retrace"], given | {"next_q_values": q, "next_policy": many}, method).targets.sum()  # noqa: E731
        return str(jax.make_jaxpr(jax.value_and_grad(loss))(many)).count(" = ")

    assert length(600) == length(40)


def test_forward_mode_within_forward_mode():
    """1 + g + ... of three rewards of 1 is 3 + 2 g + g^2 in all, whose second derivative is 2; the second of sums of sines are minus sines of sums."""
    rewards, g = torch.ones(3, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)

    def returns(g):
        return torch_triton.discounted_returns(rewards, terminated=torch.zeros(3), gamma=g).sum()

    ways = [torch.func.jacfwd, torch.func.grad]
    for outer, inner in itertools.product(ways, ways):
        torch.testing.assert_close(outer(inner(returns))(g), torch.tensor(2.0, dtype=torch.float64))
    x = torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64)
    found = torch.func.jacfwd(torch.func.jacfwd(lambda x: torch_triton.affine_scan(x.sin(), 0.5).sum()))(x)
    torch.testing.assert_close(found, torch.diag(-x.sin() * torch.tensor([1.75, 1.5, 1.0], dtype=torch.float64)))


GARBAGE = {
    # gamma = 1/2, lam and ratios 1, q = 1 and E = 2 elsewhere: target_t = q_t + D_t, D_t = 1 + E_t / 2 - 1 + [not over] D_(t+1) / 2 at the steps that count
    "padding": ({"valid": [1.0, 0.0, 1.0]}, [1.0, 0.0, 1.5], 6.0),
    "an end": ({"terminated": [0.0, 1.0, 0.0]}, [1.0, 1.5, 1.0], 4.0),
}


@each_backend
@pytest.mark.parametrize(("given", "by_rewards", "by_gamma"), GARBAGE.values(), ids=GARBAGE)
def test_numbers_that_would_overflow_where_nothing_reads_them(given, by_rewards, by_gamma, backend):
    """Finite ones, whose products are not."""
    retrace, garbage = RECURRENCES["retrace"], np.array([[1, 1], [1e30, 1e30], [1, 1]], np.float32)
    arguments = {
        "log_rhos": np.zeros(3, np.float32),
        "rewards": np.ones(3, np.float32),
        "q_values": np.ones(3, np.float32),
        "terminated": np.zeros(3, np.float32),
    }
    arguments |= {name: np.array(x, np.float32) for name, x in given.items()} | {"next_q_values": garbage, "next_policy": garbage}
    if backend == "torch":
        rewards, gamma = torch.ones(3, requires_grad=True), torch.tensor(0.5, requires_grad=True)
        tensors = {name: torch.from_numpy(x) for name, x in arguments.items()}
        made = torch_triton.run(retrace, tensors | {"rewards": rewards, "gamma": gamma}, "vectorised")
        found = torch.autograd.grad(made.targets.sum(), [rewards, gamma])
    else:
        import jax

        from rlscan import jax_pallas

        def loss(rewards, gamma):
            return jax_pallas.run(retrace, arguments_in_jax | {"rewards": rewards, "gamma": gamma}, "vectorised").targets.sum()

        arguments_in_jax = {name: jax.numpy.asarray(x) for name, x in arguments.items()}
        found = jax.grad(loss, (0, 1))(jax.numpy.ones(3), jax.numpy.float32(0.5))
    np.testing.assert_array_equal(np.asarray(found[0]), by_rewards)
    assert float(found[1]) == by_gamma
