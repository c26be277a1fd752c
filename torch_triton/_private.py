"""What PyTorch and Triton have and do not promise, each with what takes its place.

`alike` and `starter` make a repeated call cheap: what is used there takes a tenth of the time of what is public.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

try:
    from torch._C._dynamo.guards import TensorGuards  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
except ImportError:
    TensorGuards = None


def is_traced() -> bool:
    """Whether operations on tensors are recorded or looked at by something else than autograd, which would not see what kernels and NumPy do."""
    return torch.jit.is_tracing() or getattr(torch._C, "_len_torch_dispatch_stack", int)() > 0


def is_transformed(x: torch.Tensor) -> bool:
    """Whether it is a stand-in of `torch.func`'s, without memory of its own."""
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is not None and hasattr(functorch, "is_functorch_wrapped_tensor"):
        return functorch.is_functorch_wrapped_tensor(x)
    try:
        x.data_ptr()
    except RuntimeError:
        return True
    return False


def alike(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Whether other tensors are like these in all but what they hold and where: type, dtype, device, shape, strides, whether a gradient is wanted, and
    whether they stand for something else than what they store."""
    if TensorGuards is not None:
        try:
            check = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
            if check(*tensors):
                return check
        except (RuntimeError, TypeError):
            pass
    return _alike_by_facts(tensors)


def _alike_by_facts(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    wanted = [_facts(x) for x in tensors]
    return lambda *others: [_facts(x) for x in others] == wanted


def _facts(x: torch.Tensor) -> tuple[Any, ...]:
    strides = x.stride() if x.layout is torch.strided else x.layout
    return type(x), x.dtype, x.device, x.shape, strides, x.requires_grad, x.is_neg(), x.is_inference()


def starter(kernel: Any, grid: tuple[int, int], device: int) -> Callable[..., None]:
    """What starts a compiled kernel on the current stream of the current device, which is `device`. It calls none of the hooks of Triton's own profiler."""
    runner = kernel[(*grid, 1)]
    try:
        from triton.runtime import driver

        run, function, packed, stream_of = kernel.run, kernel.function, kernel.packed_metadata, driver.active.get_current_stream  # pyright: ignore[reportAttributeAccessIssue]
    except (AttributeError, ImportError):
        return runner

    def start(*arguments: Any) -> None:
        run(*grid, 1, stream_of(device), function, packed, None, None, None, *arguments)

    return start
