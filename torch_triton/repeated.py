"""Calls that are made again: what was checked and prepared once is found by the types and shapes of the arguments.

Nothing is skipped that depends on more than those: numbers are checked each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlscan.spec.calls import LARGEST
from rlscan.spec.recurrences import Recurrence
from rlscan.torch_triton.arrays import in_forward_mode

# A training loop has a handful of shapes; whoever has thousands pays the check again.
MOST = 1024

_prepared: dict[Any, Any] = {}


def may_repeat(recurrence: Recurrence, arguments: Mapping[str, Any]) -> bool:
    """Only kernels are prepared, and they run on a GPU; what carries a derivative along is checked each time."""
    frame = arguments[recurrence.frame.name]
    return isinstance(frame, torch.Tensor) and frame.is_cuda and not in_forward_mode()


def key_of(recurrence: Recurrence, arguments: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What a preparation depends on; None for a call that is made only once."""
    gradients = torch.is_grad_enabled()
    key: list[Any] = [recurrence, gradients]
    for argument in recurrence.arguments:
        x = arguments.get(argument.name, argument.default)
        kind = x.__class__
        if kind is torch.Tensor and x.layout is torch.strided and not x.is_neg():
            # kernels are compiled for 16-byte alignment
            try:
                key.append((x.dtype, x.device, x.shape, x.stride(), x.data_ptr() % 16, gradients and x.requires_grad))
            except RuntimeError:  # torch.func's tensors have no storage
                return None
        elif (kind is float or kind is int) and argument.shape != "option":
            if not argument.allows(x) or abs(x) > LARGEST:
                return None
            key.append(x <= 1)  # whether factors fade
        elif x is None or kind is int or kind is str or kind is bool:
            key += (kind, x)  # True is no 1 here
        else:
            return None
    return tuple(key)


def find(key: tuple[Any, ...] | None) -> Any:
    """The preparation of a call like this one, if there was one."""
    return None if key is None else _prepared.get(key)


def keep(key: tuple[Any, ...] | None, prepared: Any) -> None:
    if key is not None:
        if len(_prepared) >= MOST:
            _prepared.clear()
        _prepared[key] = prepared
