"""Tensors of the caller's to write results into."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from rlscan.spec.recurrences import Recurrence
from rlscan.torch_triton._private import is_transformed
from rlscan.torch_triton.arrays import Outs, Tensors, in_forward_mode, is_differentiated

_TENSORS = Tensors()


def check_out(recurrence: Recurrence, out: Any, like: torch.Tensor, device: torch.device, arguments: Iterable[Any]) -> Outs:
    """The tensors of `out`, or a `TypeError` or `ValueError`: each must be what a fresh result, which is like `like`, would be."""

    def wrong(kind: type[Exception], what: str) -> Exception:
        return kind(f"{recurrence.name}: out {what}")

    names = recurrence.output_names
    outs = tuple(out) if isinstance(out, tuple | list) else (out,)
    if len(outs) != len(names) or not all(map(_TENSORS.is_array, outs)):
        wanted = "a torch.Tensor" if len(names) == 1 else f"a tuple of tensors, {', '.join(names)}"
        raise wrong(TypeError, f"is a {type(out).__qualname__}; wanted {wanted}")
    wanted = (like.dtype, device, tuple(like.shape), _strides(like))
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    for number, one in enumerate(outs):
        if what := _TENSORS.not_dense(one):
            raise wrong(TypeError, f"has for {names[number]} a tensor that is {what}; wanted a dense (strided) torch.Tensor")
        found = (one.dtype, one.device, tuple(one.shape), _strides(one))
        for what, got, want in zip(("dtype", "device", "shape", "stride"), found, wanted, strict=True):
            if got != want:
                kind = TypeError if what == "dtype" else ValueError
                raise wrong(kind, f"has for {names[number]} a tensor of {what} {got}; wanted {want}, as of a fresh result")
        if one.is_inference() and not torch.is_inference_mode_enabled():
            raise wrong(ValueError, f"has for {names[number]} a tensor of torch.inference_mode(), which can be written to only there")
    if any(map(is_transformed, (*outs, *tensors))):
        raise wrong(ValueError, "was given inside of torch.func, whose results are new; pass none")
    if any(map(is_differentiated, (*outs, *tensors))):
        instead = "" if in_forward_mode() else ", or call under torch.no_grad()"
        raise wrong(ValueError, f"was given where a gradient is wanted; pass none{instead}")
    if like.numel() == 0:
        return outs
    ranges = [*map(_range, outs), *[_range(x) for x in tensors if x.numel() and x.device == device]]
    for number, (first, end) in enumerate(ranges[: len(outs)]):
        if not first:
            raise wrong(TypeError, f"has for {names[number]} a {type(outs[number]).__qualname__}, whose memory is not its own; wanted a torch.Tensor")
        if outs[number].is_neg() or any(first < other_end and other_first < end for other_first, other_end in ranges[number + 1 :]):
            raise wrong(ValueError, f"shares the memory of {names[number]} with an argument or another result")
    return outs


def _strides(x: torch.Tensor) -> tuple[int, ...]:
    """Those that matter."""
    return tuple([stride if size != 1 else 1 for size, stride in zip(x.shape, x.stride(), strict=True)])


def _range(x: torch.Tensor) -> tuple[int, int]:
    """The memory from the first element to the last. What meshes with another's without touching it counts as shared."""
    address = x.data_ptr()
    if x.is_contiguous():
        return address, address + x.nbytes
    last = sum([(size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)])
    return address, address + (last + 1) * x.element_size()
