"""The operators that PyTorch's compilers record."""

import contextlib
import dataclasses
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

from rlscan import torch_triton  # noqa: E402
from rlscan.crosscheck.backends import tensor  # noqa: E402
from rlscan.crosscheck.draw import draw, variants  # noqa: E402
from rlscan.crosscheck.scenarios import covering  # noqa: E402
from rlscan.spec.adjoint import telling  # noqa: E402
from rlscan.spec.calls import complete  # noqa: E402
from rlscan.spec.recurrences import RECURRENCES  # noqa: E402
from rlscan.spec.taps import wire  # noqa: E402
from rlscan.torch_triton.operators import given_to  # noqa: E402

each_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.reset()


def arguments(recurrence, variant, device, shape=(3, 7), axis=-1, seed=0):
    drawn = draw(recurrence, variant, shape, axis, seed=seed)
    return {name: tensor(x, device, "float32") if isinstance(x, np.ndarray) else x for name, x in drawn.items()}


def results(found):
    return found if isinstance(found, tuple) else (found,)


def wanting(given):
    return {name: x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for name, x in given.items()}


def floating(recurrence):
    return [argument.name for argument in recurrence.arguments if not argument.flag and argument.shape not in ("option", "number")]


def unmasked(recurrence):
    return [one for one in variants(recurrence, ("per step",)) if not one.is_masked]


def gradients(made, given):
    loss = sum(out.nan_to_num().sin().sum() for out in results(made))
    wanted = [x for x in given.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    return torch.autograd.grad(loss, wanted, allow_unused=True)


@each_recurrence
def test_a_compiled_function_is_one_graph_with_the_same_results_and_gradients(recurrence, device):
    operation = getattr(torch_triton, recurrence.name)
    compiled = torch.compile(lambda **given: operation(**given), fullgraph=True, backend="aot_eager")
    for number, variant in enumerate(covering(variants(recurrence, ("number", "per step")))):
        torch._dynamo.reset()  # each has a program of its own, and there is a limit to their number
        given = arguments(recurrence, variant, device, *(((3, 7), -1), ((7, 3), 0))[number % 2], seed=number)
        made, eager = compiled(**given), operation(**given)
        assert type(made) is type(eager)
        assert all(torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)) for one, other in zip(results(made), results(eager), strict=True))
        if number < 2:
            one, other = wanting(given), wanting(given)
            for mine, theirs in zip(gradients(compiled(**one), one), gradients(operation(**other), other), strict=True):
                torch.testing.assert_close(mine, torch.zeros_like(mine) if theirs is None else theirs)


@each_recurrence
def test_the_operator_keeps_pytorch_s_rules(recurrence, device):
    """Its schema is true, nothing is written or aliased, shapes are known without values, and it has a derivative where it says so."""
    given = arguments(recurrence, variants(recurrence, ("per step",))[0], device)
    operator = getattr(torch.ops.rlscan, recurrence.name).default
    torch.library.opcheck(operator, tuple(given_to(recurrence, complete(recurrence, wanting(given)))))


def spaced(x):
    return torch.stack([x, x], -1)[..., 0]


LAYOUTS = {
    "turned": lambda x: x.t().contiguous().t(),
    "spaced": spaced,
    "one row": lambda x: x[:1].expand(x.shape),
    "one column": lambda x: x[:, :1].expand(x.shape),
}


def kept(recurrence, made):
    """Of results the one that tells the states, which is the first one that does."""
    told = telling(wire(recurrence, frozenset(recurrence.argument_names) - {"valid"}), "float32")
    assert told is not None
    return results(made)[recurrence.output_names.index(told.result)]


@pytest.mark.parametrize("layout", LAYOUTS)
@each_recurrence
def test_results_and_gradients_are_laid_out_as_was_promised(recurrence, layout, device):
    """A compiler writes what comes behind for the strides that it was told."""
    given = arguments(recurrence, variants(recurrence, ("per step",))[0], device)
    given = {name: LAYOUTS[layout](x) if isinstance(x, torch.Tensor) and x.ndim == 2 else x for name, x in given.items()}
    operators = getattr(torch.ops.rlscan, recurrence.name).default, getattr(torch.ops.rlscan, f"{recurrence.name}_backward").default
    wanted = [name for name, x in given.items() if isinstance(x, torch.Tensor) and x.is_floating_point()]
    came_in = [LAYOUTS[layout](torch.randn(3, 7, device=device)) for _ in recurrence.output_names]
    of_function = tuple(given_to(recurrence, complete(recurrence, given)))
    for operator, args in zip(operators, (of_function, (*came_in, kept(recurrence, operators[0](*of_function)), wanted, *of_function)), strict=True):
        torch.library.opcheck(operator, args, test_utils=("test_schema", "test_faketensor"))
        with FakeTensorMode(allow_non_fake_inputs=True):
            promised = results(operator(*args))
        assert [one.stride() for one in results(operator(*args))] == [one.stride() for one in promised]


@each_recurrence
def test_the_operators_map_over_any_axis_at_once(recurrence, device):
    """As rows of one call; what is not mapped over is the same for all, with a gradient for each."""
    for number, variant in enumerate(unmasked(recurrence)[:2]):
        layout = (((3, 7), -1), ((7, 3), 0))[number % 2]
        shared = complete(recurrence, arguments(recurrence, variant, device, *layout))
        other = complete(recurrence, arguments(recurrence, variant, device, *layout, seed=1))
        given, at, mapped = given_to(recurrence, shared), [], []
        for place, (one, two) in enumerate(zip(given, given_to(recurrence, other), strict=True)):
            axis = (0, -1)[place % 2] if isinstance(one, torch.Tensor) and place % 3 != 2 else None
            at.append(axis)
            mapped.append(one if axis is None else torch.stack([one, two], axis))
        operator = getattr(torch.ops.rlscan, recurrence.name)
        backward = getattr(torch.ops.rlscan, f"{recurrence.name}_backward")
        wanted = [name for name, x in shared.items() if isinstance(x, torch.Tensor) and x.is_floating_point()]
        came_in = [torch.randn(2, *layout[0], device=device) for _ in recurrence.output_names]

        with warnings.catch_warnings():
            warnings.simplefilter("error")  # row by row is a warning
            found = torch.func.vmap(operator, tuple(at))(*mapped)
            told = kept(recurrence, found)
            into = (*[0] * len(came_in), None if told is None else 0, None, *at)
            pulled = torch.func.vmap(backward, into, tuple(0 if name in wanted else None for name in floating(recurrence)))(*came_in, told, wanted, *mapped)
        for i in range(2):
            each = [x if axis is None else x.select(axis, i) for x, axis in zip(mapped, at, strict=True)]
            for mine, theirs in zip(results(found), results(operator(*each)), strict=True):
                torch.testing.assert_close(mine[i], theirs, equal_nan=True)
            for mine, theirs in zip(pulled, backward(*(one[i] for one in came_in), None, wanted, *each), strict=True):
                if theirs.numel():
                    torch.testing.assert_close(mine[i], theirs, equal_nan=True)


@each_recurrence
def test_the_operator_of_gradients_keeps_pytorch_s_rules(recurrence, device):
    given = arguments(recurrence, variants(recurrence, ("per step",))[0], device)
    operator = getattr(torch.ops.rlscan, f"{recurrence.name}_backward").default
    wanted = [name for name, x in given.items() if isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim == 2]
    came_in = [torch.randn(3, 7, device=device) for _ in recurrence.output_names]
    torch.library.opcheck(
        operator,
        (*came_in, None, wanted, *given_to(recurrence, complete(recurrence, given))),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


def test_gradients_of_a_compiled_function_are_one_operator_for_all_sizes(device):
    programs = []

    def backend(program, _):
        programs.append(str(program.graph))
        return program

    def loss(r, d, v):
        return (torch_triton.gae(r, r, terminated=d, next_values=v).advantages * 2).sum()

    from torch._dynamo.backends.common import aot_autograd

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend=aot_autograd(fw_compiler=backend, bw_compiler=backend))
    for shape in ((3, 7), (5, 11), (8, 2)):
        r, v, d = torch.randn(shape, device=device, requires_grad=True), torch.randn(shape, device=device), torch.rand(shape, device=device) < 0.3
        (found,), (right,) = torch.autograd.grad(compiled(r, d, v), [r]), torch.autograd.grad(loss(r, d, v), [r])
        torch.testing.assert_close(found, right)
    forward, backward = programs
    assert "rlscan.gae" in forward
    assert "rlscan.gae_backward" in backward


G, WANTED = torch.ones(2, 3), ["inputs"]


@pytest.mark.parametrize("is_fake", [False, True])
@pytest.mark.parametrize(
    ("gradient", "wanted", "more", "error", "message"),
    [
        # kernels would read beyond the memory of these
        (G[:, :2], WANTED, {}, ValueError, r"gradient_of_traces has shape \(2, 2\); wanted that of the result, \(2, 3\)"),
        (G[:1], WANTED, {}, ValueError, r"gradient_of_traces has shape \(1, 3\)"),
        (G[0, 0], WANTED, {}, ValueError, r"gradient_of_traces has shape \(\)"),
        (G.double(), WANTED, {}, TypeError, "gradient_of_traces is float64; wanted that of the result, float32"),
        (G.to("meta"), WANTED, {}, ValueError, "gradient_of_traces is on meta; wanted that of the result"),
        (G.to_sparse(), WANTED, {}, TypeError, "gradient_of_traces is in the layout torch.sparse_coo"),
        (G, ["terminated"], {}, ValueError, "wanted has 'terminated'; wanted some of the arrays that were given, inputs"),
        (G, ["initial"], {}, ValueError, "wanted has 'initial'"),
        (G, ["gamma"], {}, ValueError, "wanted has 'gamma'"),
    ],
)
def test_the_operator_of_gradients_says_what_it_can_t_take(gradient, wanted, more, error, message, is_fake, device):
    def here(x):
        return x if x.is_meta else x.to(device)

    recurrence = RECURRENCES["eligibility_traces"]
    given = {"inputs": here(G), "terminated": torch.zeros(2, 3, device=device), **{name: here(x) for name, x in more.items()}}
    with (
        FakeTensorMode(allow_non_fake_inputs=True) if is_fake else contextlib.nullcontext(),
        pytest.raises(error, match=f"eligibility_traces_backward: {message}"),
    ):
        torch.ops.rlscan.eligibility_traces_backward(here(gradient), None, wanted, *given_to(recurrence, complete(recurrence, given)))


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (G[:1], ValueError, r"kept_result has shape \(1, 3\); wanted that of the result, \(2, 3\)"),
        (G.double(), TypeError, "kept_result is float64; wanted that of the result, float32"),
        (G.to("meta"), ValueError, "kept_result is on meta; wanted that of the result"),
    ],
)
def test_nor_what_was_kept(result, error, message, device):
    recurrence = RECURRENCES["eligibility_traces"]
    given = given_to(recurrence, complete(recurrence, {"inputs": G.to(device), "terminated": torch.zeros(2, 3, device=device)}))
    with pytest.raises(error, match=f"eligibility_traces_backward: {message}"):
        torch.ops.rlscan.eligibility_traces_backward(G.to(device), result if result.is_meta else result.to(device), WANTED, *given)


def test_a_compiled_gradient_that_depends_on_states_takes_them_from_a_result(device):
    """Written into afterwards, as PPO does with advantages, the result is not what was kept."""
    programs = []

    def backend(program, _):
        programs.append(program)
        return program

    def loss(addend, factor):
        y = torch_triton.affine_scan(addend, factor)
        y.mul_(2)
        return (y * y).sum()

    from torch._dynamo.backends.common import aot_autograd

    given = [torch.randn(3, 7, device=device, requires_grad=True) for _ in range(2)]
    compiled = torch.compile(loss, fullgraph=True, backend=aot_autograd(fw_compiler=backend, bw_compiler=backend))
    for mine, right in zip(torch.autograd.grad(compiled(*given), given), torch.autograd.grad(loss(*given), given), strict=True):
        torch.testing.assert_close(mine, right)
    (of_gradients,) = [node for node in programs[1].graph.nodes if "affine_scan_backward" in str(node.target)]
    assert of_gradients.args[1] is not None


def test_the_operator_of_gradients_refuses_those_that_kernels_can_t_give(device):
    recurrence, ones = RECURRENCES["gae"], torch.ones(2, 3, device=device)
    flags = {"terminated": ones != ones, "truncated": ones != ones, "valid": ones == ones}
    given = {"rewards": ones, "values": ones, "bootstrap_value": ones[:, 0], "autoreset": "next_step", **flags}
    arguments = given_to(recurrence, complete(recurrence, given))
    with pytest.raises(NotImplementedError, match="gae_backward: kernels give no gradients by what is read at steps that are not valid; differentiate gae"):
        torch.ops.rlscan.gae_backward(ones, None, None, ["values"], *arguments)
    assert torch.ops.rlscan.gae_backward(ones, None, None, ["rewards"], *arguments)[0].shape == ones.shape


def test_other_sizes_are_one_program(device):
    compiled = torch.compile(lambda r, d, v: torch_triton.gae(r, r, terminated=d, next_values=v).advantages * 2, fullgraph=True, dynamic=True, backend="eager")
    for shape in ((3, 7), (5, 11), (8, 2)):
        r, v, d = torch.randn(shape, device=device), torch.randn(shape, device=device), torch.rand(shape, device=device) < 0.3
        torch.testing.assert_close(compiled(r, d, v), torch_triton.gae(r, r, terminated=d, next_values=v).advantages * 2)


def test_gradients_by_a_number_of_one_row(device):
    """Which has no axis."""
    initial = torch.ones((), device=device, requires_grad=True)
    given = torch.ones(3, device=device)
    torch.compile(lambda initial: torch_triton.affine_scan(given, 0.5, initial=initial).sum(), fullgraph=True, backend="aot_eager")(initial).backward()
    assert initial.grad is not None
    assert initial.grad.item() == 0.5 + 0.25 + 0.125


@pytest.mark.parametrize("order", [1, 2])
def test_a_compiler_on_the_way_back_looks_into_nothing(order, device):
    """PyTorch's compiled autograd, which would make something else of NumPy's work: gradients of memory that nobody wrote."""
    gamma = torch.tensor(0.5, device=device, requires_grad=True)
    rewards = torch.ones(2, 3, device=device)
    loss = torch_triton.discounted_returns(rewards, terminated=rewards * 0, gamma=gamma)[:, 0].sum()
    if order == 2:
        (loss,) = torch.autograd.grad(loss, gamma, create_graph=True)
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda loss: loss.backward(), backend="aot_eager")(loss)
    # 2 (1 + γ + γ²)
    assert gamma.grad is not None
    assert gamma.grad.item() == {1: 2 * (1 + 2 * 0.5), 2: 2 * 2}[order]


def test_what_has_no_operator_is_called_between_two_programs(device):
    mine = dataclasses.replace(RECURRENCES["discounted_returns"], name="mine")
    rewards, out = torch.ones(2, 3, device=device), torch.empty(2, 3, device=device)

    def calls(r):
        given = {"rewards": r + 0, "terminated": r * 0, "gamma": 0.5}
        returns = torch_triton.discounted_returns(**given, out=out)
        return torch_triton.run(mine, given) + torch_triton.run(mine, given, "vectorised") + returns

    made = torch.compile(calls, backend="eager")(rewards)
    assert made.tolist() == [[5.25, 4.5, 3.0]] * 2
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(calls, fullgraph=True, backend="eager")(rewards)


def test_another_recurrence_of_the_same_name_is_another(device):
    """Operators are those of the declared recurrences, and not of whatever is called alike."""
    sums = dataclasses.replace(RECURRENCES["affine_scan"], name="discounted_returns")
    given = {"addend": torch.ones(2, 5, device=device), "factor": 0.5}
    compiled = torch.compile(lambda given: torch_triton.run(sums, given), backend="eager")
    torch.testing.assert_close(compiled(given), torch_triton.run(RECURRENCES["affine_scan"], given))


def test_a_mistake_is_named_when_it_is_compiled(device):
    compiled = torch.compile(lambda r, d: torch_triton.discounted_returns(r, terminated=d), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="discounted_returns: terminated has shape"):
        compiled(torch.zeros(3, 7, device=device), torch.zeros(3, 6, device=device))
    for gamma in (True, "0.5"):
        with pytest.raises(Exception, match="discounted_returns: gamma is a"):
            torch.compile(lambda r, gamma: torch_triton.discounted_returns(r, terminated=r, gamma=gamma), fullgraph=True, backend="eager")(
                torch.zeros(3), gamma
            )


def test_an_exported_program_contains_the_operator(device):
    class Advantages(torch.nn.Module):
        def forward(self, rewards, values, terminated, bootstrap_value):
            return torch_triton.gae(rewards, values, terminated=terminated, bootstrap_value=bootstrap_value, gamma=0.9).advantages

    given = (torch.randn(2, 5, device=device), torch.randn(2, 5, device=device), torch.zeros(2, 5, device=device), torch.randn(2, device=device))
    exported = torch.export.export(Advantages(), given)
    assert any(node.target is torch.ops.rlscan.gae.default for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(*given), Advantages()(*given))


def advantages_of(device):
    values, never = torch.randn(2, 5, device=device), torch.zeros(2, 5, device=device)
    return lambda rewards: torch_triton.gae(rewards, values, terminated=never, next_values=values, gamma=0.9).advantages


each_backend = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


@each_backend
def test_many_gradients_of_a_compiled_function(backend, device):
    compiled = torch.compile(advantages_of(device), fullgraph=True, backend=backend)
    rewards = torch.randn(2, 5, device=device, requires_grad=True)
    made, many = compiled(rewards), torch.randn(3, 2, 5, device=device)
    found = torch.autograd.grad(made, rewards, many, is_grads_batched=True, retain_graph=True)[0]
    for mine, one in zip(found, many, strict=True):
        # one alone comes of the adjoint, many of the differentiated twin, which adds up in another order
        torch.testing.assert_close(mine, torch.autograd.grad(made, rewards, one, retain_graph=True)[0])


@each_backend
def test_forward_mode_around_and_inside_a_compiled_function(backend, device):
    function, rewards, direction = advantages_of(device), torch.randn(2, 5, device=device), torch.randn(2, 5, device=device)

    def tangent(function):
        def along(rewards, direction):
            with forward_ad.dual_level():
                return forward_ad.unpack_dual(function(forward_ad.make_dual(rewards, direction))).tangent

        return along

    wanted = tangent(function)(rewards, direction)
    assert torch.equal(tangent(torch.compile(function, fullgraph=True, backend=backend))(rewards, direction), wanted)
    assert torch.equal(torch.compile(tangent(function), backend=backend)(rewards, direction), wanted)


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
@pytest.mark.parametrize("of_rewards", [True, False])
def test_no_gradient_of_a_flag(of_rewards, backend, device):
    """Flags may be floating, and then ask for one."""
    rewards, terminated, valid = (torch.ones(2, 3, device=device, requires_grad=wanted) for wanted in (of_rewards, True, True))

    def function(rewards, terminated, **more):
        return torch_triton.discounted_returns(rewards, terminated=terminated, gamma=0.5, **more)

    for more in ({}, {"valid": valid}):
        made = (function if backend is None else torch.compile(function, fullgraph=True, backend=backend))(rewards, terminated, **more)
        asked = [*([rewards] if of_rewards else []), terminated, *more.values()]
        found = torch.autograd.grad(made.sum(), asked, allow_unused=True, materialize_grads=True)
        # every step ends an episode
        assert [one.unique().item() for one in found] == [*([1] if of_rewards else []), *(0 for _ in asked[of_rewards:])]


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("more", [{}, {"valid": torch.tensor([[1, 1, 0, 1, 1]]).expand(2, 5)}], ids=["all valid", "valid"])
def test_transformations_around_the_backward_pass_alone(backend, more, device):
    """Gradients are linear in those that come in, of which there may be many, or one with a tangent."""
    more = {name: x.to(device) for name, x in more.items()}
    values, never = torch.randn(2, 5, device=device), torch.zeros(2, 5, device=device)

    def function(rewards):
        return torch_triton.gae(rewards, values, terminated=never, next_values=values, **more, gamma=0.9).advantages

    rewards, many = torch.randn(2, 5, device=device, requires_grad=True), torch.randn(3, 2, 5, device=device)
    made = (function if backend is None else torch.compile(function, fullgraph=True, backend=backend))(rewards)

    def pulled_back(gradient):
        return torch.autograd.grad(made, rewards, gradient, retain_graph=True)[0]

    each = torch.stack([pulled_back(one) for one in many])
    torch.testing.assert_close(torch.func.vmap(pulled_back)(many), each)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(pulled_back(forward_ad.make_dual(many[0], many[1])))
        torch.testing.assert_close(tuple(found), tuple(each[:2]))
