"""What PyTorch and Triton have and do not promise, each with what takes its place.

`alike` and `starter` make a repeated call cheap: what is used there takes a tenth of the time of what is public.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

try:
    from torch._C._dynamo.guards import TensorGuards  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
except ImportError:
    TensorGuards = None


_FUNCTORCH: Any = getattr(torch._C, "_functorch", None)


are_transforms_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
"""Whether a transformation of `torch.func` is at work; compilers know the answer when they record."""


def is_traced() -> bool:
    """Whether operations on tensors are recorded or looked at by something else than autograd, which would not see what kernels and NumPy do."""
    return torch.jit.is_tracing() or getattr(torch._C, "_len_torch_dispatch_stack", int)() > 0


def is_transformed(x: torch.Tensor) -> bool:
    """Whether it is a stand-in of `torch.func`'s, without memory of its own."""
    if hasattr(_FUNCTORCH, "is_functorch_wrapped_tensor"):
        return _FUNCTORCH.is_functorch_wrapped_tensor(x)
    try:
        x.data_ptr()
    except RuntimeError:
        return True
    return False


def is_empty(x: torch.Tensor) -> bool:
    """Whether it has no elements, be it that `torch.func.vmap` maps over nothing, which its stand-ins do not show."""
    while hasattr(_FUNCTORCH, "get_unwrapped") and is_transformed(x):
        x = _FUNCTORCH.get_unwrapped(x)
    return x.numel() == 0


def in_rows(function: Callable[..., torch.Tensor], *arrays: torch.Tensor) -> torch.Tensor:
    """`function(*arrays)`, which takes more rows behind the last axes: gradients that `is_grads_batched` hands over as one are rows.

    They come as stand-ins of another kind than those of `torch.func`, for which few operations are known.
    """
    batched = list(filter(_is_many, arrays))
    if not batched:
        return function(*arrays)
    # the thread that differentiates need not know how deep it is
    level = next((level for level in range(1, DEEPEST) if not any(_is_many(torch._remove_batch_dim(x, level, 1, 0)) for x in batched)), None)
    if level is None:
        raise NotImplementedError("is_grads_batched within is_grads_batched; take the outer gradients one by one, or use torch.func.vmap")
    size = torch._remove_batch_dim(batched[0], level, 1, 0).shape[0]
    rows = [torch._remove_batch_dim(x, level, size, x.ndim) if _is_many(x) else x.unsqueeze(-1).expand(*x.shape, size) for x in arrays]
    return torch._add_batch_dim(function(*rows), rows[0].ndim - 1, level)


_is_many: Callable[[torch.Tensor], bool] = getattr(_FUNCTORCH, "is_legacy_batchedtensor", lambda x: False)


def are_single(arrays: Iterable[torch.Tensor]) -> bool:
    """Whether none is many that `is_grads_batched` hands over as one."""
    return not any(map(_is_many, arrays))


DEEPEST = 64
"""No more levels of batches can lie in each other in PyTorch."""


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


def registers(kernel: Any) -> tuple[int, int] | None:
    """How many a thread of a compiled kernel has, and how many more it keeps in memory; None if that can't be told."""
    try:
        return kernel.n_regs, kernel.n_spills
    except AttributeError:
        return None
