"""Calls that compilers record as they are, and then look into. It imports PyTorch's compiler, and is imported only where that is at work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from rlscan import torch_triton
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.torch_triton.arrays import as_in_forward_mode
from rlscan.torch_triton.operators import arguments_of


def _recorded(recurrence: Recurrence) -> Callable[..., Any]:
    """The function, of whether it is in forward mode and the arguments of its operator."""

    @torch.compiler.allow_in_graph
    def function(forward: bool, *given: Any) -> Any:
        with as_in_forward_mode() if forward else contextlib.nullcontext():
            results = torch_triton._computed(recurrence, arguments_of(recurrence, given))  # pyright: ignore[reportAttributeAccessIssue]
        return tuple(results) if isinstance(results, tuple) else results

    return function


FUNCTIONS = {name: _recorded(recurrence) for name, recurrence in RECURRENCES.items()}
