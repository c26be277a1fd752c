"""The operations as operators of PyTorch's, `torch.ops.rlscan`: `torch.compile` and `torch.export` record one call of one, and look no further.

An operator's arguments are those of the function, but for each that is a number or an array, which is two: a number, and an array that counts where
it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from rlscan.spec.arguments import Argument
from rlscan.spec.calls import check
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.torch_triton.arrays import Outs, Tensors, like_of
from rlscan.torch_triton.gradients import Scan, finite

NAMESPACE = "rlscan"
ARRAY = "_array"

_TENSORS = Tensors()

Run = Callable[[Recurrence, Mapping[str, Any]], Any]


def _schema(recurrence: Recurrence) -> str:
    arguments = [one for argument in recurrence.arguments for one in _declared(argument)]
    return f"({', '.join(arguments)}) -> ({', '.join(['Tensor'] * len(recurrence.output_names))})"


def _declared(argument: Argument) -> list[str]:
    name = argument.name
    if argument.name == "time_axis":
        return [f"int {name}"]
    if argument.choices == (False, True):
        return [f"bool {name}"]
    if argument.shape == "option":
        return [f"str? {name}"]
    if argument.shape == "parameter":
        return [f"float? {name}", f"Tensor? {name}{ARRAY}"]
    if argument.shape == "number":
        return [f"float? {name}"]
    return [f"Tensor? {name}"]


def arguments_of(recurrence: Recurrence, given: tuple[Any, ...]) -> dict[str, Any]:
    """The arguments of the function from those of its operator."""
    arguments, rest = {}, iter(given)
    for argument in recurrence.arguments:
        value = next(rest)
        if argument.shape == "parameter":
            array = next(rest)
            value = value if array is None else array
        arguments[argument.name] = value
    return arguments


def given_to(recurrence: Recurrence, arguments: Mapping[str, Any]) -> list[Any]:
    """The arguments of an operator from those of the function."""
    given: list[Any] = []
    for name, is_parameter in _PARAMETERS[recurrence.name]:
        x = arguments[name]
        if not is_parameter:
            given.append(x)
        elif isinstance(x, torch.Tensor):
            given += [None, x]
        elif x is None or type(x) in (float, int):
            given += [x, None]
        else:  # an operator would take True for a number
            raise TypeError(f"{recurrence.name}: {name} is a {type(x).__qualname__}; wanted a number or a torch.Tensor")
    return given


_PARAMETERS = {name: tuple((argument.name, argument.shape == "parameter") for argument in recurrence.arguments) for name, recurrence in RECURRENCES.items()}


def define(recurrence: Recurrence, run: Run, scan: Scan) -> Any:
    """The operator of a recurrence, whose results `run` computes, and `scan` that of its derivative."""

    def values(*given: Any) -> Any:
        with torch.no_grad():
            results = run(recurrence, {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in arguments_of(recurrence, given).items()})
            return tuple(results) if isinstance(results, tuple) else results

    def shaped(*given: Any) -> Any:
        call = check(recurrence, arguments_of(recurrence, given), _TENSORS)
        like = like_of(call)
        made: Any = tuple(torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=call.device) for _ in recurrence.output_names)
        return made if len(made) > 1 else made[0]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.others = [None if isinstance(x, torch.Tensor) else x for x in inputs]
        ctx.places = [place for place, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        ctx.save_for_backward(*[inputs[place] for place in ctx.places])

    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        wanted = [number for number, place in enumerate(ctx.places) if ctx.needs_input_grad[place]]
        saved = list(ctx.saved_tensors)

        def outputs(*differentiated: torch.Tensor) -> Outs:
            arrays = list(saved)
            for number, x in zip(wanted, differentiated, strict=True):
                arrays[number] = x
            given = list(ctx.others)
            for place, x in zip(ctx.places, arrays, strict=True):
                given[place] = x
            return finite(check(recurrence, arguments_of(recurrence, tuple(given)), _TENSORS), scan)

        pull_back: Any = torch.func.vjp(outputs, *[saved[number] for number in wanted])[1]
        found: list[Any] = [None] * len(ctx.others)
        for number, gradient in zip(wanted, pull_back(tuple(gradients)), strict=True):
            found[ctx.places[number]] = gradient
        return tuple(found)

    operator = torch.library.custom_op(f"{NAMESPACE}::{recurrence.name}", values, mutates_args=(), schema=_schema(recurrence))
    operator.register_fake(shaped)
    operator.register_autograd(backward, setup_context=setup_context)
    return getattr(getattr(torch.ops, NAMESPACE), recurrence.name).default
