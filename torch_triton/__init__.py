"""Credit assignment on PyTorch tensors: Triton kernels on a GPU, vectorised PyTorch elsewhere."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import torch

from rlscan.spec.calls import Call, check, complete
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.spec.signatures import public_function
from rlscan.torch_triton._private import are_transforms_active, is_traced
from rlscan.torch_triton.arrays import DTYPES, Tensors, are_readable, in_forward_mode, is_differentiated, is_sharded, like_of, opaque
from rlscan.torch_triton.gradients import differentiable
from rlscan.torch_triton.launch import by_kernels
from rlscan.torch_triton.operators import define, given_to
from rlscan.torch_triton.out import check_out
from rlscan.torch_triton.repeated import find, keep
from rlscan.torch_triton.vectorised import by_whole_arrays

__all__ = ["run", *RECURRENCES]  # pyright: ignore[reportUnsupportedDunderAll]

_TENSORS = Tensors()


def run(
    recurrence: Recurrence,
    arguments: Mapping[str, Any],
    method: Literal["kernels", "vectorised"] | None = None,
    out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
) -> Any:
    """The results of any declared recurrence.

    Args:
        recurrence: its declaration.
        arguments: by public name.
        method: the Triton kernels, or whole-array PyTorch; None: the kernels on a GPU, PyTorch elsewhere. Kernels run on CPU
            tensors only in Triton's interpreter (TRITON_INTERPRET=1 before triton is imported).
        out: tensors to write the results into, as the functions take them.
    """
    arguments = complete(recurrence, arguments)
    if method not in (None, "kernels", "vectorised"):
        raise ValueError(f"method is {method!r}; wanted 'kernels', 'vectorised' or None")
    return _run(recurrence, arguments, out, method)


def _run(recurrence: Recurrence, arguments: Mapping[str, Any], out: Any = None, method: Literal["kernels", "vectorised"] | None = None) -> Any:
    return (_recorded if torch.compiler.is_compiling() else _computed)(recurrence, arguments, out, method)


def _recorded(recurrence: Recurrence, arguments: Mapping[str, Any], out: Any, method: Literal["kernels", "vectorised"] | None) -> Any:
    """What a compiler makes a program of, one operator where there is one."""
    if any(map(is_sharded, arguments.values())):
        return _on_each_device(check(recurrence, arguments, _TENSORS), arguments, out, method)
    if out is not None or method is not None or RECURRENCES.get(recurrence.name) is not recurrence:
        return opaque(_computed)(recurrence, arguments, out, method)
    given, forward = given_to(recurrence, arguments), in_forward_mode()
    # what `torch.func` and forward mode need of an operator can't be given
    if forward or are_transforms_active():
        from rlscan.torch_triton.recorded import FUNCTIONS

        made = FUNCTIONS[recurrence.name](forward, *given)
    else:
        made = _OPERATORS[recurrence.name](*given)
    return made if _RESULTS[recurrence.name] is None else _RESULTS[recurrence.name](*made)


def _computed(recurrence: Recurrence, arguments: Mapping[str, Any], out: Any = None, method: Literal["kernels", "vectorised"] | None = None) -> Any:
    repeated = find(recurrence, arguments) if method is None and not is_traced() else None
    if repeated is not None:
        prepared, given = repeated
        outs = None if out is None else check_out(recurrence, out, prepared.like, prepared.device, arguments.values())
        return recurrence.pack(prepared(given, outs))
    call = check(recurrence, arguments, _TENSORS)
    if not are_readable(call.arrays.values()):
        if any(map(is_sharded, call.arrays.values())):
            return _on_each_device(call, arguments, out, method)
        method = "vectorised"
    elif method is None:
        method = _method(call)
    outs = None
    if out is not None:
        outs = check_out(recurrence, out, _like(call, method), call.device, call.arrays.values())
    if any(map(is_differentiated, call.arrays.values())):
        return recurrence.pack(differentiable(call, _VALUES[method], functools.partial(_scan, method)))
    if method == "kernels":
        return recurrence.pack(by_kernels(call, outs, functools.partial(keep, recurrence, arguments)))
    results = by_whole_arrays(call)
    return recurrence.pack(results if outs is None else tuple(one.copy_(result) for one, result in zip(outs, results, strict=True)))


def _on_each_device(call: Call, arguments: Mapping[str, Any], out: Any, method: Literal["kernels", "vectorised"] | None) -> Any:
    from rlscan.torch_triton.sharded import gathered, local

    if out is not None:
        raise ValueError(f"{call.recurrence.name}: out was given beside arguments that are DTensors, whose results are new; pass none")
    layout, arrays = local(call)
    results = _run(call.recurrence, {**arguments, **arrays}, None, method)
    return call.recurrence.pack(gathered(call, layout, results if isinstance(results, tuple) else (results,)))


_VALUES = {"kernels": by_kernels, "vectorised": by_whole_arrays}


def _like(call: Call, method: Literal["kernels", "vectorised"]) -> torch.Tensor:
    """What every output is like, without memory: kernels lay it out as the arguments are."""
    return like_of(call) if method == "kernels" else torch.empty(call.shape, dtype=DTYPES[call.dtype], device="meta")


def _method(call: Call) -> Literal["kernels", "vectorised"]:
    return "kernels" if call.device.type == "cuda" and _kernels_can_run() else "vectorised"


def _scan(method: Literal["kernels", "vectorised"], alpha: torch.Tensor, beta: torch.Tensor, seed: torch.Tensor, backward: bool) -> torch.Tensor:
    """The states of a recurrence with these coefficients, `[T, rows..]`."""
    return run(RECURRENCES["affine_scan"], {"addend": alpha, "factor": beta, "initial": seed, "reverse": backward, "time_axis": 0}, method)


@functools.cache
def _kernels_can_run() -> bool:
    try:
        import triton

        if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 4):
            return True
        what = f"rlscan's kernels need Triton 3.4 or newer, which takes tuples, and this is {triton.__version__}"
    except ImportError as error:
        what = f"Triton can't be imported ({error})"
    warnings.warn(f"{what}; whole-array PyTorch takes their place", RuntimeWarning, stacklevel=4)
    return False


_OPERATORS = {
    name: define(
        recurrence,
        _computed,
        like=lambda call: _like(call, _method(call)),
        method=lambda call: _VALUES[_method(call)],
        scan=functools.partial(_scan, "vectorised"),
    )
    for name, recurrence in RECURRENCES.items()
}
# made beforehand, for compilers can't look into the lock of a cached property
_RESULTS: dict[str, Any] = {name: recurrence.result_type for name, recurrence in RECURRENCES.items()}

for _recurrence in RECURRENCES.values():
    globals()[_recurrence.name] = public_function(_recurrence, _run, __name__, "torch.Tensor", out=True)
