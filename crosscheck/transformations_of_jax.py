"""The transformations of JAX, with 64 bits."""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.flatten_util import ravel_pytree

from rlscan import jax_pallas
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
from rlscan.spec.recurrences import Recurrence

Arrays = dict[str, Any]


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """What runs once on small arrays is not worth optimising, which takes most of the time."""
    return jax.jit(function, compiler_options=_compiled_quickly(), **options)


@functools.cache
def _compiled_quickly() -> dict[str, Any]:
    quick = {"xla_backend_optimization_level": 0}
    quicker = quick | {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 0, compiler_options=quicker)()
    except jax.errors.JaxRuntimeError:  # XLA's options come and go
        return quick
    return quicker


def in_jax(arrays: dict[str, np.ndarray]) -> Arrays:
    return {name: jnp.asarray(x) for name, x in arrays.items()}


class Subject:
    """The public function of a case, of arrays by name; those that are not given are as they were."""

    def __init__(self, case: Case) -> None:
        self.case, self.given, self.floats = case, in_jax(case.arrays), in_jax(case.floats)
        self.function = getattr(jax_pallas, case.recurrence.name)
        self.weights, self.directions = case.weights, in_jax(case.directions)

    def __call__(self, given: Arrays) -> tuple[jax.Array, ...]:
        return as_tuple(self.function(**self.case.others | self.given | given))

    def loss(self, given: Arrays) -> jax.Array:
        return self.weighted(self(given))

    def weighted(self, results: tuple[jax.Array, ...]) -> jax.Array:
        return jnp.stack([(result * weight).sum() for result, weight in zip(results, self.weights, strict=True)]).sum()

    def gradients(self, floats: Arrays | None = None) -> Arrays:
        """Of the loss, by each floating argument."""
        return _gradients(self.case.recurrence)(floats or self.floats, self.given)


@functools.cache
def _gradients(recurrence: Recurrence) -> Callable[[Arrays, Arrays], Arrays]:
    subject = Subject(case(recurrence))
    return jit(jax.grad(lambda floats, rest: subject.loss(rest | floats)))


@contextlib.contextmanager
def on_cpu(wide: bool = True) -> Iterator[None]:
    with jax.enable_x64(wide), jax.default_device(jax.devices("cpu")[0]):
        yield


def on_arrays(check: Callable[[Subject], str | None]) -> Check:
    @functools.wraps(check)
    def run(case: Case) -> str | None:
        with on_cpu():
            return check(Subject(case))

    return run


@on_arrays
def grad(subject: Subject) -> None:
    must_be_slopes(subject.case, subject.case.loss, subject.gradients())


@on_arrays
def jvp(subject: Subject) -> None:
    tangent = jit(lambda at, along: jax.jvp(subject.loss, (at,), (along,))[1])(subject.floats, subject.directions)
    must_be_product(tangent, subject.gradients(), subject.case.directions)


@on_arrays
def linearize(subject: Subject) -> None:
    tangent = jit(lambda at, along: jax.linearize(subject.loss, at)[1](along))(subject.floats, subject.directions)
    must_be_product(tangent, subject.gradients(), subject.case.directions)


def contracted(subject: Subject, jacobian: Callable[..., Any]) -> None:
    """The weights times the Jacobian are the gradient of the loss."""
    at, back = ravel_pytree(subject.floats)
    wanted, _ = ravel_pytree(subject.gradients())
    blocks = jit(jacobian(lambda at: jnp.concatenate([result.ravel() for result in subject(back(at))])))(at)
    terms = blocks * np.concatenate([weight.ravel() for weight in subject.weights])[:, None]
    must_agree(terms.sum(0), wanted, largest=float(abs(terms).max()), terms=len(terms))


@on_arrays
def jacfwd(subject: Subject) -> None:
    contracted(subject, jax.jacfwd)


@on_arrays
def jacrev(subject: Subject) -> None:
    contracted(subject, jax.jacrev)


@on_arrays
def hessian(subject: Subject) -> None:
    at, back = ravel_pytree(subject.floats)
    terms = jit(jax.hessian(lambda at: subject.loss(back(at))))(at) * ravel_pytree(subject.directions)[0][None]

    def product(arguments: dict[str, Any]) -> float:
        gradients = subject.gradients({name: jnp.asarray(arguments[name]) for name in subject.floats})
        return sum(float((gradients[name] * subject.directions[name]).sum()) for name in gradients)

    must_be_slopes(subject.case, product, back(terms.sum(1)))


@on_arrays
def jitted(subject: Subject) -> None:
    must_be_right(subject.case.recurrence, subject.case.arguments, jit(subject)(subject.given))


def steps_of(jaxpr: Any) -> Iterator[Any]:
    """Every equation, of what is called inside too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from steps_of(inner)


def loops(function: Callable[..., Any], *arguments: Any) -> collections.Counter[Any]:
    """How often what loops, and how far, and how many kernels start."""
    wanted = ("scan", "while", "pallas_call")
    steps = steps_of(jax.make_jaxpr(function)(*arguments).jaxpr)
    return collections.Counter((step.primitive.name, step.params.get("length")) for step in steps if step.primitive.name in wanted)


def must_be_rows(subject: Subject, axes: Arrays, stacked: Arrays, method: Any) -> None:
    """Another row axis costs no other loop, and no other kernel."""

    def function(given: Arrays) -> Any:
        return jax_pallas.run(subject.case.recurrence, subject.case.arguments | subject.given | given, method)

    plain = loops(function, {name: subject.given[name] for name in axes})
    assert plain, "there is nothing to count"
    assert loops(jax.vmap(function, in_axes=(axes,)), stacked) == plain


@on_arrays
def vmap(subject: Subject) -> None:
    one, other = subject.case, case(subject.case.recurrence, seed=1)
    ways = [{name: number % (x.ndim + 1) for number, (name, x) in enumerate(one.arrays.items())}]
    ways += [{name: (number + 1) % (x.ndim + 1)} for number, (name, x) in enumerate(one.arrays.items())]
    pairs = [{name: jnp.stack([one.arrays[name], other.arrays[name]], axis) for name, axis in axes.items()} for axes in ways]
    for axes, stacked in zip(ways[:2], pairs, strict=False):
        for method in ("vectorised", "kernels"):
            must_be_rows(subject, axes, stacked, method)
    every = jit(lambda pairs: [jax.vmap(subject, in_axes=(axes,))(stacked) for axes, stacked in zip(ways, pairs, strict=True)])(pairs)
    for axes, results in zip(ways, every, strict=True):
        for number, each in enumerate((one, other)):
            arguments = one.arguments | {name: each.arrays[name] for name in axes}
            must_be_right(one.recurrence, arguments, tuple(result[number] for result in results))


@on_arrays
def vmap_over_a_parameter(subject: Subject) -> None:
    name = subject.case.parameter
    assert name is not None
    numbers = jnp.asarray([0.0, 0.5, 1.0])
    must_be_rows(subject, {name: 0}, {name: jnp.stack([subject.given[name]] * 3)}, "vectorised")
    results = jit(jax.vmap(lambda number: subject({name: number})))(numbers)
    for place, number in enumerate(numbers.tolist()):
        must_be_right(subject.case.recurrence, subject.case.arguments | {name: number}, tuple(result[place] for result in results))


@on_arrays
def vmap_over_nothing(subject: Subject) -> None:
    nothing = {name: jnp.zeros((0, *x.shape), x.dtype) for name, x in subject.given.items()}
    floats = {name: nothing[name] for name in subject.floats}
    results, gradients = jit(lambda nothing, floats: (jax.vmap(subject)(nothing), jax.vmap(jax.grad(subject.loss))(floats)))(nothing, floats)
    assert all(result.shape == (0, *SHAPE) for result in results)
    assert all(gradients[name].shape == x.shape for name, x in floats.items())


@on_arrays
def in_scan(subject: Subject) -> None:
    cases = (subject.case, case(subject.case.recurrence, seed=1))
    stacked = {name: jnp.stack([each.arrays[name] for each in cases]) for name in subject.given}
    floats = {name: stacked.pop(name) for name in subject.floats}

    def total(floats: Arrays) -> tuple[jax.Array, Any]:
        def body(total: jax.Array, given: Arrays) -> Any:
            results = subject(given)
            return total + subject.weighted(results), results

        return lax.scan(body, jnp.zeros(()), stacked | floats)

    gradients, results = jit(jax.grad(total, has_aux=True))(floats)
    for number, each in enumerate(cases):
        must_be_right(each.recurrence, subject.case.others | each.arrays, tuple(result[number] for result in results))
        wanted = _gradients(each.recurrence)(in_jax(each.floats), in_jax(each.arrays))
        must_agree_by_name({name: x[number] for name, x in gradients.items()}, wanted)


@on_arrays
def remat(subject: Subject) -> None:
    must_agree_by_name(jit(jax.grad(jax.checkpoint(subject.loss)))(subject.floats), subject.gradients())


@on_arrays
def donation(subject: Subject) -> None:
    name = subject.case.recurrence.frame.name
    donated = jnp.array(subject.given[name])
    results = jit(lambda given: subject({name: given}), donate_argnums=0)(donated)
    assert donated.is_deleted()
    must_be_right(subject.case.recurrence, subject.case.arguments, results)


@on_arrays
def exported(subject: Subject) -> None:
    sizes = dict(zip(SHAPE, export.symbolic_shape("n, t"), strict=True))
    # of an array of actions the last axis is none of these
    like = {
        name: jax.ShapeDtypeStruct((*(sizes[size] for size in x.shape[: len(SHAPE)]), *x.shape[len(SHAPE) :]), x.dtype) for name, x in subject.given.items()
    }
    program = export.export(jax.jit(subject), platforms=["cpu"])(like)
    if importlib.util.find_spec("flatbuffers"):  # which JAX writes with, and does not install
        program = export.deserialize(program.serialize())
    for seed, shape in enumerate((SHAPE, (4, 7))):
        one = case(subject.case.recurrence, seed, shape)
        must_be_right(one.recurrence, subject.case.others | one.arrays, program.call(in_jax(one.arrays)))


@on_arrays
def eval_shape(subject: Subject) -> None:
    for like, result in zip(jax.eval_shape(subject, subject.given), subject({}), strict=True):
        assert (like.shape, like.dtype) == (result.shape, result.dtype)


def x64(one: Case) -> None:
    recurrence = one.recurrence
    for dtype in ("float32", "float64"):
        narrow = case(recurrence, dtype=dtype)
        with on_cpu():
            must_be_right(recurrence, narrow.arguments, jit(Subject(narrow))({}))


def narrow(one: Case) -> str:
    with on_cpu():
        given = in_jax(one.arrays)
    with on_cpu(wide=False):
        return refusal(TypeError, lambda: getattr(jax_pallas, one.recurrence.name)(**one.others | given))


@on_arrays
def integers(subject: Subject) -> str:
    name = subject.case.recurrence.frame.name
    return refusal(TypeError, lambda: jax.grad(lambda floats: subject.loss(floats | {name: subject.given[name].astype(int)}))(subject.floats))


TRANSFORMATIONS = tuple(
    Transformation(name, "jax", says, check, **others)
    for name, says, check, others in (
        ("`grad`", "the gradient by every floating argument, against differences of the float64 loop.", grad, {}),
        ("`jvp`", "the derivative along a direction in all arguments, against the gradient.", jvp, {}),
        ("`linearize`", "the same.", linearize, {}),
        ("`jacfwd`", "weighted, against the gradient.", jacfwd, {}),
        ("`jacrev`", "weighted, against the gradient.", jacrev, {}),
        ("`hessian`", "times a direction, against differences of the gradient.", hessian, {}),
        ("`jit`", "values.", jitted, {}),
        ("`vmap`", "over every argument, at once and alone, by axes that differ; in the jaxpr, no other loop and no other kernel than without.", vmap, {}),
        ("`vmap` over a number", "over `gamma`, or `factor`, alone; no other loop than without.", vmap_over_a_parameter, {"lacks": lacks_parameters}),
        ("`vmap` over nothing", "no rows; values, and gradients.", vmap_over_nothing, {}),
        ("`lax.scan`", "over windows, differentiated; values, and gradients.", in_scan, {}),
        ("`checkpoint`", "(remat) against the gradient.", remat, {}),
        ("donation", "`donate_argnums`: the first argument's memory is taken, and values are right.", donation, {}),
        ("`export`", "for any N and T, as one program that is called at two sizes.", exported, {}),
        ("`eval_shape`", "shapes and types.", eval_shape, {}),
        ("x64", "float64 in 64 bits, and float32 in 32, in `jax_enable_x64`.", x64, {}),
        ("float64 without x64", "is refused, for JAX would compute in float32.", narrow, {}),
        ("integers", "are refused, for no gradient could reach them: pass floating arrays.", integers, {}),
    )
)
