"""Derivatives: coefficients and outputs are differentiated by PyTorch, and the scan by another scan.

The derivative of a linear recurrence in its addends is the recurrence run the other way: with `y_t = alpha_t + beta_t y_(t+1)` and a gradient
`g_t` that comes in for `y_t`,

    z_t = g_t + beta_(t-1) z_(t-1)        is the gradient of alpha_t,
    z_t y_(t+1)                           that of beta_t, and 0 where beta_t cuts,

for a loss that is `sum_t g_t y_t` to first order. Both scans are kernels where kernels can run.

What a rule selects away may be NaN, and the product of NaN with a gradient of 0 is NaN. Functions of elements are therefore differentiated
forward: what is selected away has a derivative of exactly 0 there, and is selected away itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rlscan.spec import coefficients
from rlscan.spec.binding import bind
from rlscan.spec.calls import Call
from rlscan.spec.steps import Steps
from rlscan.torch_triton.arrays import Functions, in_forward_mode
from rlscan.torch_triton.vectorised import by_torch

times = bind(coefficients.times, Functions, torch.Tensor)

Scan = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]


def by_differentiable_arrays(call: Call, scan: Scan) -> tuple[torch.Tensor, ...]:
    """The outputs of a call that has elements, as functions of its tensors; `scan(alpha, beta, seed, backward)` computes one without a derivative."""

    def differentiable(alpha: torch.Tensor, beta: torch.Tensor, seed: torch.Tensor, backward: bool) -> torch.Tensor:
        return _AffineScan.apply(alpha, beta, seed.expand(alpha.shape[1:]), backward, scan)

    return tuple(output.contiguous() for output in by_torch(call, differentiable, _DifferentiableSteps))


def beside(state: torch.Tensor, edge: torch.Tensor, backward: bool) -> torch.Tensor:
    """What the scan has one step before."""
    return torch.cat([state[1:], edge[None]]) if backward else torch.cat([edge[None], state[:-1]])


def product(gradient: torch.Tensor, derivative: torch.Tensor) -> torch.Tensor:
    """Their product, and 0 where one is 0 and the other is not finite."""
    nothing = ((gradient == 0.0) & ~torch.isfinite(derivative)) | ((derivative == 0.0) & ~torch.isfinite(gradient))
    return torch.where(nothing, 0.0, gradient) * torch.where(nothing, 0.0, derivative)


class _DifferentiableSteps(Steps):
    def apply(self, function: Any, *taps: Any) -> Any:
        if in_forward_mode() or not any(tap.requires_grad for tap in taps):
            return function(*taps)
        shape = torch.broadcast_shapes(*(tap.shape for tap in taps))
        made = _Elementwise.apply(function, *(tap.expand(shape) for tap in taps))
        return made[0] if function is self.bound(coefficients.expectation) else made


class _Elementwise(torch.autograd.Function):
    """The results of a function of the elements of tensors of one shape, as a tuple."""

    @staticmethod
    def forward(function: Callable[..., Any], *taps: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = function(*taps)
        return tuple(result.expand(taps[0].shape).clone() for result in (made if isinstance(made, tuple) else (made,)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.function, *taps = inputs
        ctx.save_for_backward(*taps)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        taps, found = ctx.saved_tensors, []
        for i, tap in enumerate(taps):
            if not ctx.needs_input_grad[i + 1]:
                found.append(None)
                continue

            def of_one(x: torch.Tensor, i: int = i) -> tuple[torch.Tensor, ...]:
                made = ctx.function(*taps[:i], x, *taps[i + 1 :])
                return made if isinstance(made, tuple) else (made,)

            # a tangent can't lie where memory is repeated
            tap = tap.contiguous()
            derivatives = torch.func.jvp(of_one, (tap,), (torch.ones_like(tap),))[1]
            found.append(sum(product(gradient, derivative) for gradient, derivative in zip(gradients, derivatives, strict=True)))
        return None, *found


class _AffineScan(torch.autograd.Function):
    """The states of the recurrence with these coefficients, `[T, rows..]`."""

    @staticmethod
    def forward(alpha: torch.Tensor, beta: torch.Tensor, seed: torch.Tensor, backward: bool, scan: Scan) -> torch.Tensor:
        with torch.no_grad():
            return scan(alpha, beta, seed, backward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, beta, seed, ctx.along, ctx.scan = inputs
        ctx.save_for_backward(beta, seed, output)
        ctx.save_for_forward(beta, seed, output)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        beta, seed, state = ctx.saved_tensors
        (gradient,) = gradients
        nothing = torch.zeros_like(seed)
        of_alpha = _AffineScan.apply(gradient, beside(beta, nothing, not ctx.along), nothing, not ctx.along, ctx.scan)
        before = torch.where(beta == 0.0, 0.0, beside(state, seed, ctx.along))
        last = -1 if ctx.along else 0
        return of_alpha, times(of_alpha, before), times(beta[last], of_alpha[last]), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> torch.Tensor:
        beta, seed, state = ctx.saved_tensors
        of_alpha, of_beta, of_seed = (
            torch.zeros_like(like) if tangent is None else tangent for tangent, like in zip(tangents[:3], (state, beta, seed), strict=True)
        )
        before = torch.where(beta == 0.0, 0.0, beside(state, seed, ctx.along))
        return _AffineScan.apply(of_alpha + times(of_beta, before), beta, of_seed, ctx.along, ctx.scan)
