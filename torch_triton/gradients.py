"""Derivatives: the values of a call are those of kernels, NumPy or whole arrays, and their derivatives those of `FiniteSteps`, which PyTorch finds by itself.

All of it is plain differentiable operations but for the scan. That is linear in its addends, and its derivative in them is the recurrence run the other
way: with `y_t = alpha_t + beta_t y_(t+1)` and a gradient `g_t` that comes in for `y_t`,

    z_t = g_t + beta_(t-1) z_(t-1)        is the gradient of alpha_t,
    z_t y_(t+1)                           that of beta_t.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from rlscan.spec import coefficients
from rlscan.spec.adjoint import pulled_back_by, result_to_keep
from rlscan.spec.binding import bind
from rlscan.spec.calls import Call
from rlscan.spec.derivative import differentiated
from rlscan.spec.steps import FiniteSteps, beside
from rlscan.torch_triton import vectorised
from rlscan.torch_triton._private import are_single, in_rows, is_empty
from rlscan.torch_triton.arrays import Functions, Outs, WholeTensors, are_readable, in_forward_mode, opaque
from rlscan.torch_triton.vectorised import by_torch

times, step = (bind(function, Functions, torch.Tensor) for function in (coefficients.finite_times, coefficients.finite_step))

Scan = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]


def differentiable(call: Call, values: Callable[[Call], Outs], scan: Scan) -> Outs:
    """What `values` gives for a call, with a derivative.

    Args:
        call: a checked call.
        values: the outputs of a call, without one; of its adjoint too, which gives the gradients where there is one.
        scan: `scan(alpha, beta, seed, backward)` gives the states of a recurrence.
    """
    if not in_forward_mode() and are_readable(call.arrays.values()):
        return _Differentiable.apply(call.with_arrays(dict.fromkeys(call.arrays)), values, scan, *call.arrays.values())
    with torch.no_grad():
        exact = values(call.with_arrays({name: array.detach() for name, array in call.arrays.items()}))
    exactly = _plainly if in_forward_mode() else _Exactly.apply
    return tuple(exactly(value, other) for value, other in zip(exact, finite(call, scan), strict=True))


class _Differentiable(torch.autograd.Function):
    """A call, of which nothing is kept but what was given, and the result that tells the states where gradients depend on these."""

    @staticmethod
    def forward(ctx: Any, call: Call, values: Callable[[Call], Outs], scan: Scan, *arrays: torch.Tensor) -> Outs:
        ctx.call, ctx.values, ctx.scan = call, values, scan
        ctx.set_materialize_grads(False)
        call = call.with_arrays(dict(zip(call.arrays, arrays, strict=True)))
        results = values(call.with_arrays({name: array.detach() for name, array in call.arrays.items()}))
        told = result_to_keep(call, _wanted(ctx, call))
        ctx.kept = None if told is None or results[told].is_inference() else _Kept.of(results[told], told)
        # an alias with a version of its own, for whoever writes into results may
        aliases = [] if ctx.kept is None else [results[ctx.kept.place].data]
        ctx.save_for_backward(*(array.clone() if array.is_inference() else array for array in arrays), *aliases)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        saved, names = ctx.saved_tensors, ctx.call.recurrence.output_names
        call = ctx.call.with_arrays(dict(zip(ctx.call.arrays, saved, strict=False)))
        came_in = {name: gradient for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
        wanted = _wanted(ctx, call)
        results = {names[ctx.kept.place]: saved[-1]} if ctx.kept is not None and ctx.kept.is_unchanged() else None
        found = opaque(pulled_back)(call, came_in, wanted, ctx.values, ctx.scan, results) if came_in and wanted else {}
        return (*(None,) * (len(ctx.needs_input_grad) - len(call.arrays)), *map(found.get, call.arrays))


def _wanted(ctx: Any, call: Call) -> list[str]:
    """The arguments that gradients are wanted by."""
    needed = dict(zip(call.arrays, ctx.needs_input_grad[-len(call.arrays) :], strict=True))
    return [name for name in differentiated(call) if needed[name]]


@dataclasses.dataclass(frozen=True)
class _Kept:
    """What tells whether somebody wrote into a result that gradients are made of."""

    place: int
    result: TensorWeakRef
    version: int

    @staticmethod
    def of(result: torch.Tensor, place: int) -> _Kept:
        return _Kept(place, TensorWeakRef(result), result._version)

    def is_unchanged(self) -> bool:
        """What is gone may have left a view behind, through which it was written into."""
        result = self.result()
        return result is not None and result._version == self.version


def pulled_back(
    call: Call,
    gradients: Mapping[str, torch.Tensor],
    wanted: Sequence[str],
    values: Callable[[Call], Outs],
    scan: Scan,
    results: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """The gradients by the arguments `wanted`, where these come in for outputs, of which `results` may be at hand. Where gradients are recorded, they have
    a derivative too."""
    # an adjoint has none
    if not torch.is_grad_enabled() and not in_forward_mode() and 0 not in call.shape and are_single(gradients.values()) and are_readable(gradients.values()):
        found = pulled_back_by(values, WholeTensors(call.dtype, call.device), call, gradients, wanted, results)
        if found is not None:
            return {name: gradient.to(call.arrays[name].dtype) for name, gradient in found.items()}
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # one that was made of another is to have a gradient of its own; `torch.func` refuses `requires_grad_`
        arrays = {name: array.view_as(array) if create_graph or name in wanted else array.detach() for name, array in call.arrays.items()}
        results = dict(zip(call.recurrence.output_names, finite(call.with_arrays(arrays), scan), strict=True))
        outputs = [name for name in gradients if results[name].requires_grad]
        if not outputs:
            return {}
        at, came_in = [arrays[name] for name in wanted], [gradients[name] for name in outputs]
        found = torch.autograd.grad([results[name] for name in outputs], at, came_in, create_graph=create_graph, allow_unused=True)
        if create_graph and 0 in call.shape:
            # a gradient of what has no elements is 0 whatever is given, and yet is to have one itself
            total, never = _total(WholeTensors(call.dtype, call.device), call.with_arrays(arrays)), torch.zeros((), dtype=torch.bool, device=call.device)
            nothing = torch.where(never, total, 0.0)
            found = tuple(gradient if gradient is None else gradient + nothing.to(gradient.dtype) for gradient in found)
    return dict(zip(wanted, found, strict=True))


def finite(call: Call, scan: Scan) -> Outs:
    """The outputs as differentiable functions of all arrays, right to within rounding where no number is infinite or NaN."""
    library = WholeTensors(call.dtype, call.device)
    if any(map(is_empty, call.arrays.values())):
        nothing = _total(library, call)
        return tuple(nothing.expand(call.shape) for _ in call.recurrence.output_names)
    steps = FiniteSteps(call, library)

    def differentiable(alpha: torch.Tensor, beta: torch.Tensor, seed: torch.Tensor, backward: bool) -> torch.Tensor:
        if in_forward_mode():
            return steps.finite(vectorised.scan(alpha, beta, seed, backward, steps.bound))
        return steps.finite(_AffineScan.apply(alpha, beta, seed, backward, scan))

    return by_torch(steps, differentiable)


def _total(library: WholeTensors, call: Call) -> torch.Tensor:
    """Of all that is given."""
    return torch.stack([library.number(array.sum()) for array in call.arrays.values()]).sum()


def _plainly(exact: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A value with the derivative of another, by plain operations: in forward mode PyTorch forgets what a tangent depends on that a function of ours made."""
    return exact + torch.nan_to_num(other - other.detach(), 0.0, 0.0, 0.0)


class _Exactly(torch.autograd.Function):
    """A value with the derivative of another."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, gradients[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> torch.Tensor | None:
        return tangents[1]


class _AffineScan(torch.autograd.Function):
    """The states of the recurrence with these coefficients, `[T, rows..]`."""

    @staticmethod
    def forward(alpha: torch.Tensor, beta: torch.Tensor, seed: torch.Tensor, backward: bool, scan: Scan) -> torch.Tensor:
        # of a recorded program it would be a step, which PyTorch can't do for many gradients at once
        alpha, beta, seed = (x.detach() if in_forward_mode() else x for x in (alpha, beta, seed))
        return scan(alpha, beta, seed, backward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, beta, seed, ctx.along, ctx.scan = inputs
        # states are needed for the derivative in beta alone
        ctx.save_for_backward(beta, *([seed, output] if ctx.needs_input_grad[1] else []))
        ctx.save_for_forward(beta, seed, output)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        beta, *rest = ctx.saved_tensors
        nothing = torch.zeros_like(beta[0])
        adjoint = functools.partial(opaque(_states), not ctx.along, ctx.scan)
        of_alpha = in_rows(adjoint, gradients[0], _beside(beta, nothing, not ctx.along), nothing)
        of_beta = times(of_alpha, _beside(rest[1], rest[0], ctx.along)) if rest else None
        last = -1 if ctx.along else 0
        return of_alpha, of_beta, times(beta[last], of_alpha[last]), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> torch.Tensor:
        beta, seed, state = ctx.saved_tensors
        of_alpha, of_beta, of_seed = (
            torch.zeros_like(like) if tangent is None else tangent for tangent, like in zip(tangents[:3], (state, beta, seed), strict=True)
        )
        return _AffineScan.apply(step(of_alpha, of_beta, _beside(state, seed, ctx.along)), beta, of_seed, ctx.along, ctx.scan)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[torch.Tensor, int]:
        """More rows, the last ones."""
        *arrays, backward, scan = args
        rows = [x.unsqueeze(-1).expand(*x.shape, info.batch_size) if axis is None else x.movedim(axis, -1) for x, axis in zip(arrays, in_dims[:3], strict=True)]
        return _AffineScan.apply(*rows, backward, scan), rows[0].ndim - 1


def _states(backward: bool, scan: Scan, alpha: torch.Tensor, beta: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    return _AffineScan.apply(alpha, beta, seed, backward, scan)


def _beside(state: torch.Tensor, edge: torch.Tensor, backward: bool) -> torch.Tensor:
    """What the scan has one step before; 0 for a state that has overflowed, which a factor of 0 may have cut off."""
    return torch.nan_to_num(beside(WholeTensors.joined, state, edge[None], backward), 0.0, 0.0, 0.0)
