"""The operations as operators of PyTorch's, `torch.ops.rlscan`: `torch.compile` and `torch.export` record one call of one, and look no further.

An operator's arguments are those of the function, but for each that is a number or an array, which is two: a number, and an array that counts where
it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from rlscan.spec.adjoint import adjoint, incoming, pulled_back_by, result_to_keep, telling
from rlscan.spec.arguments import Argument
from rlscan.spec.calls import Call, check
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.torch_triton._private import are_single
from rlscan.torch_triton.arrays import DTYPES, Outs, Tensors, WholeTensors, in_forward_mode, like_of
from rlscan.torch_triton.gradients import Scan, finite

NAMESPACE = "rlscan"
ARRAY = "_array"

KEPT = "kept_result"
"""What an operator of gradients is given beside the gradients: the result that tells the states (`rlscan.spec.adjoint.telling`), or nothing."""

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


def _may_be_floating(argument: Argument) -> bool:
    return not argument.flag and argument.shape not in ("option", "number")


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


_NAMES = {
    name: [argument.name for argument in recurrence.arguments for _ in range(1 + (argument.shape == "parameter"))] for name, recurrence in RECURRENCES.items()
}
"""The argument of the function for each of its operator."""

_FLOATING = {name: [argument.name for argument in recurrence.arguments if _may_be_floating(argument)] for name, recurrence in RECURRENCES.items()}
"""The arguments by which there may be a gradient."""

_PARAMETERS = {name: tuple((argument.name, argument.shape == "parameter") for argument in recurrence.arguments) for name, recurrence in RECURRENCES.items()}


def define(recurrence: Recurrence, run: Run, like: Callable[[Call], torch.Tensor], method: Callable[[Call], Callable[[Call], Outs]], scan: Scan) -> Any:
    """The operator of a recurrence, whose results `run` computes, which are laid out as `like` says; and another for its gradients, by the adjoint.

    `method` says for a call how it, and its adjoint, is computed; `scan` computes states where there is no adjoint.
    """

    def values(*given: Any) -> Any:
        with torch.no_grad():
            results = run(recurrence, {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in arguments_of(recurrence, given).items()})
            return tuple(results) if isinstance(results, tuple) else results

    def shaped(*given: Any) -> Any:
        call = check(recurrence, arguments_of(recurrence, given), _TENSORS)
        one = like(call)
        made: Any = tuple(torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=call.device) for _ in recurrence.output_names)
        return made if len(made) > 1 else made[0]

    def split(given: tuple[Any, ...]) -> tuple[Call, dict[str, torch.Tensor], dict[str, torch.Tensor], list[str]]:
        """A call, the gradients that came in for its outputs, the result that tells the states if it was kept, and the arguments by which gradients are
        wanted."""
        outputs = recurrence.output_names
        (kept, wanted), arguments = given[len(outputs) : len(outputs) + 2], given[len(outputs) + 2 :]
        call = check(recurrence, arguments_of(recurrence, arguments), _TENSORS)
        came_in = {name: x for name, x in zip(outputs, given, strict=False) if x is not None}
        told = telling(call.wiring, call.dtype)
        results = {told.result: kept} if told and kept is not None else {}
        _check_gradients(call, came_in, results, wanted)
        return call, came_in, results, wanted

    def gradients(*given: Any) -> tuple[torch.Tensor, ...]:
        call, came_in, results, wanted = split(given)
        with torch.no_grad():
            found = pulled_back_by(method(call), WholeTensors(call.dtype, call.device), call, came_in, wanted, results)
        assert found is not None
        # in new memory, and laid out as was promised
        return tuple(_new(call, name, wanted).copy_(found[name]) if name in wanted else _new(call, name, wanted) for name in _FLOATING[recurrence.name])

    def gradients_shaped(*given: Any) -> tuple[torch.Tensor, ...]:
        call, *_, wanted = split(given)
        return tuple(_new(call, name, wanted) for name in _FLOATING[recurrence.name])

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.others = [None if isinstance(x, torch.Tensor) else x for x in inputs]
        ctx.places = [place for place, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        call = check(recurrence, arguments_of(recurrence, inputs), _TENSORS)
        told = result_to_keep(call, [_NAMES[recurrence.name][place] for place in wanted_places(ctx)])
        # a copy, for results may be written into
        kept = [] if told is None else [(output if isinstance(output, tuple) else (output,))[told].clone()]
        ctx.save_for_backward(*[inputs[place] for place in ctx.places], *kept)

    def wanted_places(ctx: Any) -> list[int]:
        """Nothing flows to flags, floating or not."""
        return [place for place in ctx.places if ctx.needs_input_grad[place] and _NAMES[recurrence.name][place] in _FLOATING[recurrence.name]]

    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        own = [_NAMES[recurrence.name][place] for place in ctx.places]
        wanted = [ctx.places.index(place) for place in wanted_places(ctx)]
        saved, kept = list(ctx.saved_tensors[: len(own)]), next(iter(ctx.saved_tensors[len(own) :]), None)
        found: list[Any] = [None] * len(ctx.others)

        def with_arrays(arrays: Sequence[torch.Tensor]) -> tuple[Any, ...]:
            given = list(ctx.others)
            for place, x in zip(ctx.places, arrays, strict=True):
                given[place] = x
            return tuple(given)

        def outputs(*differentiated: torch.Tensor) -> Outs:
            arrays = list(saved)
            for number, x in zip(wanted, differentiated, strict=True):
                arrays[number] = x
            return finite(check(recurrence, arguments_of(recurrence, with_arrays(arrays)), _TENSORS), scan)

        if not wanted or all(gradient is None for gradient in gradients):
            return tuple(found)
        names = [own[number] for number in wanted]
        if _has_adjoint(check(recurrence, arguments_of(recurrence, with_arrays(saved)), _TENSORS), gradients, names):
            by_name = dict(zip(_FLOATING[recurrence.name], backward_operator(*gradients, kept, names, *with_arrays(saved)), strict=True))
            made = [by_name[name] for name in names]
        else:
            results, pull, *_ = torch.func.vjp(outputs, *[saved[number] for number in wanted])
            made = pull(tuple(torch.zeros_like(one) if gradient is None else gradient for gradient, one in zip(gradients, results, strict=True)))
        for number, gradient in zip(wanted, made, strict=True):
            found[ctx.places[number]] = gradient
        return tuple(found)

    def of_many(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Any, Any]:
        made: Any = operator(*_with_rows(recurrence, info.batch_size, in_dims, given)[1])
        return made, (0,) * len(made) if isinstance(made, tuple) else 0

    def gradients_of_many(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Any, Any]:
        # behind the gradients that come in there is what was kept, then what is wanted
        first = len(recurrence.output_names) + 2
        came_in = [None if x is None else _many(x, axis, info.batch_size) for x, axis in zip(given[: first - 1], in_dims, strict=False)]
        one, more = _with_rows(recurrence, info.batch_size, in_dims[first:], given[first:])
        wanted, names = given[first - 1], _FLOATING[recurrence.name]
        made = backward_operator(*came_in, wanted, *more)
        shaped = (x.reshape(info.batch_size, *one.arrays[name].shape) if name in wanted else x for name, x in zip(names, made, strict=True))
        return tuple(shaped), tuple(0 if name in wanted else None for name in names)

    schema = _schema(recurrence)
    operator = torch.library.custom_op(f"{NAMESPACE}::{recurrence.name}", values, mutates_args=(), schema=schema)
    operator.register_fake(shaped)
    operator.register_autograd(backward, setup_context=setup_context)
    operator.register_vmap(of_many)
    came_in = ", ".join(f"Tensor? {incoming(name)}" for name in recurrence.output_names)
    results = ", ".join(["Tensor"] * len(_FLOATING[recurrence.name]))
    of_gradients = f"({came_in}, Tensor? {KEPT}, str[] wanted, {schema.partition('->')[0].strip()[1:-1]}) -> ({results})"
    backward_operator = torch.library.custom_op(f"{NAMESPACE}::{recurrence.name}_backward", gradients, mutates_args=(), schema=of_gradients)
    backward_operator.register_fake(gradients_shaped)
    backward_operator.register_vmap(gradients_of_many)
    return getattr(getattr(torch.ops, NAMESPACE), recurrence.name).default


def _many(x: torch.Tensor, axis: int | None, size: int) -> torch.Tensor:
    """With the axis that is mapped over as the first."""
    return x.unsqueeze(0).expand(size, *x.shape) if axis is None else x.movedim(axis, 0)


def _with_rows(recurrence: Recurrence, size: int, in_dims: Sequence[Any], given: Sequence[Any]) -> tuple[Call, list[Any]]:
    """One of many calls, and the arguments of their operator with one more row axis, the first."""
    dims = [axis if isinstance(x, torch.Tensor) else None for x, axis in zip(given, in_dims, strict=True)]
    of_one = (x if axis is None else x.select(axis, 0) for x, axis in zip(given, dims, strict=True))
    # of which nothing but the form is looked at
    of_one = tuple(x.to("meta") if isinstance(x, torch.Tensor) else x for x in of_one)
    one, more, is_parameter = check(recurrence, arguments_of(recurrence, of_one), _TENSORS), [], dict(_PARAMETERS[recurrence.name])
    for name, x, axis in zip(_NAMES[recurrence.name], given, dims, strict=True):
        if name == "time_axis":
            more.append(one.time_axis + 1)
        elif not isinstance(x, torch.Tensor):
            more.append(x)
        else:
            x = _many(x, axis, size)
            # a parameter broadcasts by its last axes
            missing = one.frame_ndim + 1 - x.ndim if is_parameter[name] else 0
            more.append(x.reshape(size, *(1,) * missing, *x.shape[1:]))
    return one, more


def _check_gradients(call: Call, came_in: Mapping[str, torch.Tensor], results: Mapping[str, torch.Tensor], wanted: Sequence[str]) -> None:
    """An error that names what is wrong with what the operator of gradients is given: kernels read memory as far as a shape says."""
    name = f"{call.recurrence.name}_backward"
    given = [one for one in _FLOATING[call.recurrence.name] if one in call.arrays]
    for one in wanted:
        if one not in given:
            raise ValueError(f"{name}: wanted has {one!r}; wanted some of the arrays that were given, {', '.join(given)}")
    for given_as, x in [*((incoming(output), gradient) for output, gradient in came_in.items()), *((KEPT, result) for result in results.values())]:
        if what := _TENSORS.not_dense(x):
            raise TypeError(f"{name}: {given_as} is {what}; wanted a dense (strided) torch.Tensor")
        if tuple(x.shape) != call.shape:
            raise ValueError(f"{name}: {given_as} has shape {tuple(x.shape)}; wanted that of the result, {call.shape}")
        if x.dtype != DTYPES[call.dtype]:
            raise TypeError(f"{name}: {given_as} is {_TENSORS.dtype(x)}; wanted that of the result, {call.dtype}")
        if x.device != call.device:
            raise ValueError(f"{name}: {given_as} is on {x.device}; wanted that of the result, {call.device}")
    if adjoint(call.wiring, call.dtype, frozenset(wanted), frozenset(came_in)) is None:
        raise NotImplementedError(f"{name}: kernels give no gradients by what is read at steps that are not valid; differentiate {call.recurrence.name}")


def _has_adjoint(call: Call, gradients: Sequence[torch.Tensor | None], wanted: Sequence[str]) -> bool:
    """Whether there is one, and nothing but its values is asked for."""
    came_in = {name: gradient for name, gradient in zip(call.recurrence.output_names, gradients, strict=True) if gradient is not None}
    if torch.is_grad_enabled() or in_forward_mode() or 0 in call.shape or not are_single(came_in.values()):
        return False
    return adjoint(call.wiring, call.dtype, frozenset(wanted), frozenset(came_in)) is not None


def _new(call: Call, name: str, wanted: Sequence[str]) -> torch.Tensor:
    """For the gradient by an argument, where it is wanted: laid out like the frame, where it is of its shape, for so kernels make it."""
    if name not in wanted:
        return torch.empty(0, device=call.device)
    like, array = like_of(call), call.arrays[name]
    strides = like.stride() if array.shape == like.shape else torch.empty(array.shape, device="meta").stride()
    return torch.empty_strided(array.shape, strides, dtype=array.dtype, device=call.device)
