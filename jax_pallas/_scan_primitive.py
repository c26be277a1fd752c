"""What Triton can do and Pallas' Triton lowering can't be asked for: an associative scan, and moving elements between and within threads.

Pallas lowers neither `lax.associative_scan` nor a reverse `cumsum` nor a gather to Triton, though Triton itself has `tt.scan` and `tt.gather`.
This module closes the gap with primitives of its own. Whatever touches private modules of JAX is in `_register` and nowhere else in the package:
where it fails, `AVAILABLE` is False, `WHY` says why, and the callers take a plan in which lanes exchange nothing.
"""

from __future__ import annotations

import functools
import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.interpreters import mlir

Combine = Callable[..., tuple[Any, ...]]

_associative_scan_p = core.Primitive("rlscan_associative_scan")
_associative_scan_p.multiple_results = True


def associative_scan(combine: Combine, operands: Sequence[jax.Array], *, axis: int, reverse: bool = False) -> tuple[jax.Array, ...]:
    """Inclusive scan of same-shaped arrays along `axis`, for use inside a Pallas kernel.

    `combine(*first, *second)` takes one element of every operand, twice, and returns one value for every operand, of its dtype. `first` is
    what the scan meets first: the lower index, or with `reverse` the HIGHER index. An affine pair `y -> addend + factor * y` that is applied
    in scan direction is therefore composed in the same way for both directions:

        def then(first_addend, first_factor, second_addend, second_factor):
            return second_addend + second_factor * first_addend, second_factor * first_factor

    `combine` has to be associative, elementwise and written in `jax.numpy`, since it is traced with scalars for Triton and with slices
    everywhere else. It is part of the compilation key: pass a function of the module, not one made anew for each call. `jnp.minimum` and
    `jnp.maximum` drop NaN in the Triton lowering and keep it elsewhere; `jnp.where` and a comparison are the same in both.
    """
    operands = tuple(operands)
    shape = operands[0].shape
    if any(operand.shape != shape for operand in operands):
        raise ValueError(f"the operands of a scan must have one shape, got {[operand.shape for operand in operands]}")
    axis = operator.index(axis)
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis {axis} is out of range for operands of shape {shape}")
    return tuple(_associative_scan_p.bind(*operands, combine=combine, axis=axis % len(shape), reverse=bool(reverse)))


@_associative_scan_p.def_abstract_eval
def _abstract(*operands, combine, axis, reverse):
    return [operand.update(weak_type=False) for operand in operands]


@_associative_scan_p.def_impl
def _generic(*operands, combine, axis, reverse):
    return list(lax.associative_scan(lambda first, second: tuple(combine(*first, *second)), operands, axis=axis, reverse=reverse))


# Pallas' interpret mode, and every backend but Triton.
mlir.register_lowering(_associative_scan_p, mlir.lower_fun(_generic, multiple_results=True))


def taken(x: jax.Array, index: jax.Array, axis: int) -> jax.Array:
    """`take_along_axis(x, index, axis)` of two matrices of one shape, whose indices lie within it."""
    return _taken_p.bind(x, index, axis=axis)


def halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The two elements of the last axis, which has two."""
    first, second = _halves_p.bind(x)
    return first, second


def joined(first: jax.Array, second: jax.Array) -> jax.Array:
    """What `halves` undoes."""
    return _joined_p.bind(first, second)


_taken_p = core.Primitive("rlscan_taken")
_halves_p = core.Primitive("rlscan_halves")
_halves_p.multiple_results = True
_joined_p = core.Primitive("rlscan_joined")

_taken_p.def_abstract_eval(lambda x, index, axis: x.update(weak_type=False))
_halves_p.def_abstract_eval(lambda x: [x.update(shape=x.shape[:-1], weak_type=False)] * 2)
_joined_p.def_abstract_eval(lambda first, second: first.update(shape=(*first.shape, 2), weak_type=False))

_GENERIC: dict[core.Primitive, Callable[..., Any]] = {
    _taken_p: lambda x, index, axis: jnp.take_along_axis(x, index, axis, mode="promise_in_bounds"),
    _halves_p: lambda x: [x[..., 0], x[..., 1]],
    _joined_p: lambda first, second: jnp.stack([first, second], -1),
}
for _primitive, _function in _GENERIC.items():
    _primitive.def_impl(_function)
    mlir.register_lowering(_primitive, mlir.lower_fun(_function, multiple_results=_primitive.multiple_results))


def _register() -> type:
    """Teach Pallas' Triton lowering the primitives; return the type of compiler parameters that lowers without the deprecation warning."""
    from jax._src.lib.mlir import ir
    from jax._src.lib.triton import dialect as tt
    from jax._src.pallas.triton import lowering, pallas_call_registration
    from jax.experimental.pallas import triton as plgpu
    from jax.extend.pallas import register_lowering_rule

    # Looked up here and not in the rules, so that a name that JAX dropped is noticed at import and not when a user's function is compiled.
    scan_op, scan_return, lower_fun = tt.ScanOp, tt.scan_return, lowering.lower_fun
    gather, split, join = tt.GatherOp, tt.SplitOp, tt.join
    lower_pallas_call = pallas_call_registration.pallas_call_lowering

    class QuietCompilerParams(plgpu.CompilerParams):
        pass

    def lower_quietly(*args, **kwargs):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
            return lower_pallas_call(*args, **kwargs)

    def lower_scan(ctx, *operands, combine, axis, reverse):
        scan = scan_op(operands, axis, reverse)
        scalars = [aval.update(shape=(), weak_type=False) for aval in ctx.avals_in]
        block = scan.regions[0].blocks.append(*(ir.RankedTensorType(operand.type).element_type for operand in operands * 2))
        with ir.InsertionPoint.at_block_begin(block):
            region = ctx.replace(avals_in=scalars * 2, avals_out=scalars, block_infos=[None] * len(scalars) * 2)
            scan_return(lower_fun(combine, multiple_results=True)(region, *block.arguments))
        scan.verify()
        return list(scan.result)

    def lower_taken(ctx, x, index, *, axis):
        return gather(x, index, axis, results=[x.type]).result

    def lower_halves(ctx, x):
        return list(split(x).results)

    def lower_joined(ctx, first, second):
        half = ir.RankedTensorType(first.type)
        return join(ir.RankedTensorType.get([*half.shape, 2], half.element_type), first, second)

    lowering.register_lowering(_associative_scan_p)(lower_scan)
    lowering.register_lowering(_taken_p)(lower_taken)
    lowering.register_lowering(_halves_p)(lower_halves)
    lowering.register_lowering(_joined_p)(lower_joined)
    # Pallas chooses the lowering by the exact type of the compiler parameters, at the time when the caller's outermost `jit` is lowered:
    # a context manager around our `pallas_call` would be left by then, and a filter set at import would silence kernels that are not ours.
    register_lowering_rule(QuietCompilerParams, lower_quietly, "gpu")
    return QuietCompilerParams


AVAILABLE = True
WHY = ""
_compiler_params_type: Any = None
try:
    _compiler_params_type = _register()
except Exception as error:  # private modules can fail in any way, and none of them may break `import rlscan.jax_pallas`
    AVAILABLE = False
    WHY = f"JAX {jax.__version__} does not take a scan of ours in Pallas' Triton lowering: {type(error).__name__}: {error}"


def addressable(array: jax.Array) -> jax.Array:
    """`array` in a dtype that a kernel can index everywhere: int16 in place of one byte where Pallas' offsets would overflow.

    The Triton lowering multiplies indices by strides in 64 bits for arrays of more than 2**32 BYTES and in 32 bits below, which are read as
    signed: an array of bytes with 2**31 to 2**32 elements is read at negative offsets. Keep the axes that make an array large (no flat
    view): the index along one axis stays below 2**31, and the product with the stride is the lowering's.
    """
    if array.dtype.itemsize == 1 and 2**31 < array.size <= 2**32:
        return array.astype(jnp.int16)
    return array


def shapes_beside(operands: Iterable[Any]) -> Callable[..., jax.ShapeDtypeStruct]:
    """What makes the shapes of a kernel's results: inside `jax.shard_map` they vary over the devices where any operand does, which Pallas wants to be told."""
    one_of_each = [jnp.ravel(x)[0].astype(bool) for x in operands]
    together = jax.typeof(functools.reduce(jnp.logical_or, one_of_each))
    # its name differs from release to release
    said = {name: getattr(together, name) for name in ("manual_axis_type", "vma") if hasattr(together, name)}
    known = inspect.signature(jax.ShapeDtypeStruct).parameters
    return functools.partial(jax.ShapeDtypeStruct, **{name: value for name, value in said.items() if name in known})


@functools.cache
def compiler_params(*, num_warps: int, num_stages: int = 1) -> Any:
    """Compiler parameters for our own `pallas_call`s: those of Pallas' Triton lowering, without its deprecation warning."""
    if AVAILABLE:
        return _compiler_params_type(num_warps=num_warps, num_stages=num_stages)
    from jax.experimental.pallas import triton as plgpu

    return plgpu.CompilerParams(num_warps=num_warps, num_stages=num_stages)
