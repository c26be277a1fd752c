"""Credit assignment on PyTorch tensors: Triton kernels on a GPU, vectorised PyTorch elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from rlscan.spec.calls import check
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.spec.signatures import public_function
from rlscan.torch_triton.arrays import Tensors
from rlscan.torch_triton.launch import by_kernels
from rlscan.torch_triton.repeated import find, key_of
from rlscan.torch_triton.vectorised import by_whole_arrays

__all__ = ["affine_scan", "discounted_returns", "eligibility_traces", "episodic_prefix_sum", "gae", "lambda_returns", "retrace", "run", "vtrace"]

_TENSORS = Tensors()


def run(recurrence: Recurrence, arguments: Mapping[str, Any], method: Literal["kernels", "vectorised"] | None = None) -> Any:
    """The results of any declared recurrence.

    Args:
        recurrence: its declaration.
        arguments: by public name.
        method: the Triton kernels, or whole-array PyTorch; None: the kernels on a GPU, PyTorch elsewhere. Kernels run on CPU
            tensors only in Triton's interpreter (TRITON_INTERPRET=1 before triton is imported).
    """
    key = key_of(recurrence, arguments) if method is None else None
    prepared = find(key)
    if prepared is not None:
        return recurrence.pack(prepared(arguments, arguments))
    call = check(recurrence, arguments, _TENSORS)
    if torch.is_grad_enabled():
        for name, array in call.arrays.items():
            if array.requires_grad:
                raise NotImplementedError(
                    f"{recurrence.name}: {name} requires a gradient, which rlscan does not compute yet; call it under torch.no_grad() or detach {name}"
                )
    if method is None:
        method = "kernels" if call.device.type == "cuda" else "vectorised"
    return recurrence.pack(by_kernels(call, key) if method == "kernels" else by_whole_arrays(call))


gae = public_function(RECURRENCES["gae"], run, __name__, "torch.Tensor")
vtrace = public_function(RECURRENCES["vtrace"], run, __name__, "torch.Tensor")
retrace = public_function(RECURRENCES["retrace"], run, __name__, "torch.Tensor")
lambda_returns = public_function(RECURRENCES["lambda_returns"], run, __name__, "torch.Tensor")
discounted_returns = public_function(RECURRENCES["discounted_returns"], run, __name__, "torch.Tensor")
eligibility_traces = public_function(RECURRENCES["eligibility_traces"], run, __name__, "torch.Tensor")
episodic_prefix_sum = public_function(RECURRENCES["episodic_prefix_sum"], run, __name__, "torch.Tensor")
affine_scan = public_function(RECURRENCES["affine_scan"], run, __name__, "torch.Tensor")
