"""The transformations of PyTorch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from rlscan import torch_triton
from rlscan.crosscheck.backends import as_tuple
from rlscan.crosscheck.transformations import (
    SHAPE,
    Case,
    Check,
    Transformation,
    case,
    lacks_parameters,
    must_agree,
    must_agree_by_name,
    must_be_product,
    must_be_right,
    must_be_slopes,
    refusal,
)
from rlscan.spec.calls import complete
from rlscan.torch_triton.operators import given_to

Tensors = dict[str, torch.Tensor]


def tensors(arrays: dict[str, np.ndarray], wanting: bool = False) -> Tensors:
    """Copies."""
    return {name: torch.from_numpy(x.copy()).requires_grad_(wanting and x.dtype.kind == "f") for name, x in arrays.items()}


class Subject:
    """The public function of a case, of tensors by name; those that are not given are as they were."""

    def __init__(self, case: Case) -> None:
        # compilers can't look into the cached properties of a case
        self.case, self.others, self.names = case, case.others, list(case.floats)
        self.given = tensors(case.arrays)
        self.function = getattr(torch_triton, case.recurrence.name)
        self.weights = [torch.from_numpy(weight) for weight in case.weights]
        self.directions = tensors(case.directions)

    def __call__(self, given: Tensors) -> tuple[torch.Tensor, ...]:
        return as_tuple(self.function(**self.others | self.given | given))

    def loss(self, given: Tensors) -> torch.Tensor:
        return torch.stack([(result * weight).sum() for result, weight in zip(self(given), self.weights, strict=True)]).sum()

    @property
    def floats(self) -> Tensors:
        return {name: self.given[name] for name in self.names}

    def gradients(self, function: Callable[[Tensors], torch.Tensor] | None = None, create_graph: bool = False) -> tuple[Tensors, Tensors]:
        """Of the loss, or of `function`, by each floating argument, and where those are."""
        at = tensors(self.case.floats, wanting=True)
        found = torch.autograd.grad((function or self.loss)(at), list(at.values()), create_graph=create_graph, allow_unused=True, materialize_grads=True)
        return dict(zip(at, found, strict=True)), at

    def second(self) -> Tensors:
        """The gradients of the derivative along `directions`."""
        gradients, at = self.gradients(create_graph=True)
        along = torch.stack([(gradients[name] * self.directions[name]).sum() for name in at]).sum()
        if not along.requires_grad:
            return {name: torch.zeros_like(x) for name, x in at.items()}
        found = torch.autograd.grad(along, list(at.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(at, found, strict=True))


def on_tensors(check: Callable[[Subject], str | None]) -> Check:
    @functools.wraps(check)
    def run(case: Case) -> str | None:
        torch._dynamo.reset()  # there is a limit to the number of programs
        return check(Subject(case))

    return run


@on_tensors
def grad(subject: Subject) -> None:
    must_be_slopes(subject.case, subject.case.loss, subject.gradients()[0])


@on_tensors
def second_order(subject: Subject) -> None:
    def product(arguments: dict[str, Any]) -> float:
        gradients, _ = Subject(Case(subject.case.recurrence, arguments)).gradients()
        return sum(float((gradients[name] * subject.directions[name]).sum()) for name in gradients)

    must_be_slopes(subject.case, product, subject.second())


@on_tensors
def many_gradients(subject: Subject) -> None:
    at = tensors(subject.case.floats, wanting=True)
    results, inputs = subject(at), list(at.values())
    many = [torch.stack([weight, -2 * weight.flip(0), torch.zeros_like(weight)]) for weight in subject.weights]
    options: dict[str, Any] = dict(retain_graph=True, allow_unused=True, materialize_grads=True)
    found = torch.autograd.grad(results, inputs, many, is_grads_batched=True, **options)
    for number in range(3):
        wanted = torch.autograd.grad(results, inputs, [one[number] for one in many], **options)
        for mine, theirs in zip(found, wanted, strict=True):
            must_agree(mine[number], theirs)


@on_tensors
def forward_mode(subject: Subject) -> None:
    with forward_ad.dual_level():
        moved = {name: forward_ad.make_dual(x, subject.directions[name]) for name, x in subject.floats.items()}
        tangent = forward_ad.unpack_dual(subject.loss(moved)).tangent
    must_be_product(tangent, subject.gradients()[0], subject.case.directions)


@on_tensors
def func_grad(subject: Subject) -> None:
    must_agree_by_name(torch.func.grad(subject.loss)(subject.floats), subject.gradients()[0])


def contracted(subject: Subject, jacobian: Callable[..., Any]) -> None:
    """The weights times the Jacobian are the gradient of the loss."""
    wanted, _ = subject.gradients()
    blocks = jacobian(subject)(subject.floats)
    for name, gradient in wanted.items():
        weighted = [block[name] * weight[(...,) + (None,) * gradient.ndim] for block, weight in zip(blocks, subject.weights, strict=True)]
        terms = torch.cat([products.flatten(0, 1) for products in weighted])
        must_agree(terms.sum(0), gradient, largest=float(terms.abs().max()), terms=len(terms))


@on_tensors
def jacrev(subject: Subject) -> None:
    contracted(subject, torch.func.jacrev)


@on_tensors
def jacfwd(subject: Subject) -> None:
    contracted(subject, torch.func.jacfwd)


@on_tensors
def hessian(subject: Subject) -> None:
    wanted, blocks = subject.second(), torch.func.hessian(subject.loss)(subject.floats)
    for name, product in wanted.items():
        terms = torch.cat([(blocks[name][other] * direction).reshape(*product.shape, -1) for other, direction in subject.directions.items()], -1)
        must_agree(terms.sum(-1), product, 2, largest=float(terms.abs().max()), terms=terms.shape[-1])


@contextlib.contextmanager
def no_loop_over_rows() -> Iterator[None]:
    """An error where `torch.func.vmap` knows no rule for an operation, and would go row by row."""
    enable: Any = getattr(torch._C, "_functorch")._set_vmap_fallback_enabled  # noqa: B009
    enable(False)
    try:
        yield
    finally:
        enable(True)


@on_tensors
def vmap(subject: Subject) -> None:
    one, other = subject.case, case(subject.case.recurrence, seed=1)
    axes = {name: number % (x.ndim + 1) for number, (name, x) in enumerate(one.arrays.items())}
    stacked = {name: torch.from_numpy(np.stack([one.arrays[name], other.arrays[name]], axis)) for name, axis in axes.items()}
    with no_loop_over_rows():
        results = torch.func.vmap(subject, in_dims=(axes,))(stacked)
        floats = {name: stacked[name] for name in one.floats}
        gradient = torch.func.grad(lambda floats, rest: subject.loss(rest | floats))
        gradients = torch.func.vmap(gradient, in_dims=({name: axes[name] for name in floats}, axes))(floats, stacked)
    for number, each in enumerate((one, other)):
        must_be_right(each.recurrence, one.others | each.arrays, tuple(result[number] for result in results))
        must_agree_by_name({name: x[number] for name, x in gradients.items()}, Subject(Case(each.recurrence, one.others | each.arrays)).gradients()[0])


@on_tensors
def vmap_over_a_parameter(subject: Subject) -> None:
    name = subject.case.parameter
    assert name is not None
    numbers = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    with no_loop_over_rows():
        results = torch.func.vmap(lambda number: subject({name: number}))(numbers)
    for place, number in enumerate(numbers.tolist()):
        must_be_right(subject.case.recurrence, subject.case.arguments | {name: number}, tuple(result[place] for result in results))


@on_tensors
def vmap_over_nothing(subject: Subject) -> None:
    nothing = {name: x.new_empty((0, *x.shape)) for name, x in subject.given.items()}
    for result in torch.func.vmap(subject)(nothing):
        assert result.shape == (0, *SHAPE)
    floats = {name: nothing[name] for name in subject.names}
    for name, gradient in torch.func.vmap(torch.func.grad(subject.loss))(floats).items():
        assert gradient.shape == floats[name].shape, name
    one = {name: nothing[name][:, 0] for name, x in nothing.items() if x.ndim > 2}
    number = {name: x.new_empty(0) for name, x in nothing.items() if name == subject.case.parameter}
    without = {name: x[0] for name, x in subject.given.items()}
    assert all(result.shape == (0, SHAPE[1]) for result in torch.func.vmap(lambda given: subject(without | given))({**one, **number}))


@on_tensors
def compiled(subject: Subject) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    function: Any = torch.compile(subject, fullgraph=True, backend=counter)
    at = tensors(subject.case.floats, wanting=True)
    results = function(at)
    assert counter.frame_count == 1
    for made, plain in zip(results, subject({}), strict=True):
        assert torch.equal(made, plain)
    found = torch.autograd.grad(results, list(at.values()), subject.weights, allow_unused=True, materialize_grads=True)
    must_agree_by_name(dict(zip(at, found, strict=True)), subject.gradients()[0])


@on_tensors
def compiled_for_any_size(subject: Subject) -> None:
    counter = CompileCounterWithBackend("eager")
    function: Any = torch.compile(lambda given: subject(given), fullgraph=True, dynamic=True, backend=counter)
    for seed, shape in enumerate((SHAPE, (4, 7), (6, 2))):
        one = case(subject.case.recurrence, seed, shape)
        must_be_right(one.recurrence, subject.others | one.arrays, function(tensors(one.arrays)))
    assert counter.frame_count == 1, f"{counter.frame_count} programs"


@on_tensors
def compiled_transformations(subject: Subject) -> None:
    pair = {name: torch.stack([x, x]) for name, x in subject.floats.items()}
    function: Any = torch.compile(torch.func.vmap(torch.func.grad(subject.loss)), fullgraph=True, backend="eager")
    with no_loop_over_rows():
        found = function(pair)
    for number in range(2):
        must_agree_by_name({name: x[number] for name, x in found.items()}, subject.gradients()[0])


class Program(torch.nn.Module):
    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject

    def forward(self, given: Tensors) -> tuple[torch.Tensor, ...]:
        return self.subject(given)


@on_tensors
def exported(subject: Subject) -> None:
    any_size = {name: dict.fromkeys(range(x.ndim), torch.export.Dim.AUTO) for name, x in subject.given.items()}
    program = torch.export.export(Program(subject), (subject.given,), dynamic_shapes=(any_size,))
    operator = getattr(torch.ops.rlscan, subject.case.recurrence.name).default
    assert [node.target for node in program.graph.nodes].count(operator) == 1
    for seed, shape in enumerate((SHAPE, (4, 7))):
        one = case(subject.case.recurrence, seed, shape)
        must_be_right(one.recurrence, subject.others | one.arrays, program.module()(tensors(one.arrays)))


@on_tensors
def opcheck(subject: Subject) -> None:
    operator = getattr(torch.ops.rlscan, subject.case.recurrence.name).default
    given = subject.others | tensors(subject.case.arrays, wanting=True)
    rules = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator, tuple(given_to(subject.case.recurrence, complete(subject.case.recurrence, given))), test_utils=rules)


@on_tensors
def autocast(subject: Subject) -> None:
    narrow = Subject(case(subject.case.recurrence, dtype="float32"))

    def both() -> tuple[torch.Tensor, ...]:
        # of gradients too, for what they are made of is not to be narrowed either
        at = tensors(narrow.case.floats, wanting=True)
        results = narrow(at)
        gradients = torch.autograd.grad(torch.stack([result.sum() for result in results]).sum(), list(at.values()), allow_unused=True, materialize_grads=True)
        return *results, *gradients

    plain = both()
    with torch.autocast("cpu", torch.bfloat16):
        within = both()
    for one, other in zip(within, plain, strict=True):
        assert one.dtype is torch.float32
        assert torch.equal(one, other)


def without_a_graph(mode: Callable[[], contextlib.AbstractContextManager[Any]]) -> Check:
    @on_tensors
    def check(subject: Subject) -> None:
        with mode():
            results = subject(tensors(subject.case.floats, wanting=True))
        assert not any(result.requires_grad for result in results)
        must_be_right(subject.case.recurrence, subject.case.arguments, tuple(result.numpy() for result in results))

    return check


@on_tensors
def checkpointed(subject: Subject) -> None:
    found, _ = subject.gradients(lambda at: checkpoint(subject.loss, at, use_reentrant=False))
    for name, wanted in subject.gradients()[0].items():
        assert torch.equal(found[name], wanted), name


@on_tensors
def meta(subject: Subject) -> None:
    at = {name: x.to("meta").requires_grad_(x.is_floating_point()) for name, x in subject.given.items()}
    results = subject(at)
    wanted = [x for x in at.values() if x.requires_grad]
    gradients = torch.autograd.grad(torch.stack([result.sum() for result in results]).sum(), wanted, allow_unused=True, materialize_grads=True)
    for made, like in (*zip(results, subject({}), strict=True), *zip(gradients, wanted, strict=True)):
        assert (made.device.type, made.shape, made.dtype) == ("meta", like.shape, like.dtype)


@on_tensors
def integers(subject: Subject) -> str:
    name = subject.case.recurrence.frame.name
    return refusal(TypeError, lambda: torch.func.grad(lambda floats: subject.loss(floats | {name: subject.given[name].long()}))(subject.floats))


TRANSFORMATIONS = tuple(
    Transformation(name, "torch", says, check, **others)
    for name, says, check, others in (
        ("`torch.autograd.grad`", "the gradient by every floating argument, against differences of the float64 loop.", grad, {}),
        ("twice", "the gradient of a product with the gradient, against differences of the gradient.", second_order, {}),
        ("`is_grads_batched`", "many gradients at once, against one after another.", many_gradients, {}),
        ("`forward_ad`", "the derivative along a direction in all arguments, against the gradient.", forward_mode, {}),
        ("`func.grad`", "against the gradient.", func_grad, {}),
        ("`func.jacrev`", "weighted, against the gradient.", jacrev, {}),
        ("`func.jacfwd`", "weighted, against the gradient.", jacfwd, {}),
        ("`func.hessian`", "times a direction, against the second derivative.", hessian, {}),
        ("`func.vmap`", "over every argument at once, each by an axis of its own; values, and gradients; never row by row.", vmap, {}),
        ("`func.vmap` over a number", "over `gamma`, or `factor`, alone.", vmap_over_a_parameter, {"lacks": lacks_parameters}),
        ("`func.vmap` over nothing", "no rows; values, and gradients.", vmap_over_nothing, {}),
        ("`compile`", "`fullgraph=True`: one graph, values equal to those without, and gradients.", compiled, {}),
        ("`compile` for any N, T", "`dynamic=True`: one program for three shapes.", compiled_for_any_size, {}),
        ("`compile` of `func`", "`fullgraph=True` around `vmap` of `grad`, against the gradient; never row by row.", compiled_transformations, {}),
        ("`export`", "for any N and T, as one call of the operator.", exported, {}),
        ("`library.opcheck`", "the operator's schema is true, nothing is written or aliased, and shapes are known without values.", opcheck, {}),
        ("`autocast`", "to bfloat16: values and gradients are computed in float32, and are equal to those without.", autocast, {}),
        ("`no_grad`", "no graph.", without_a_graph(torch.no_grad), {}),
        ("`inference_mode`", "no graph.", without_a_graph(torch.inference_mode), {}),
        ("`utils.checkpoint`", "gradients equal to those without.", checkpointed, {}),
        ("`meta` tensors", "shapes and types, of gradients too.", meta, {}),
        ("integers", "are refused, for no gradient could reach them: pass floating arrays.", integers, {}),
    )
)  # fmt: skip
