"""Calls that are made again: what was checked and prepared once is found by the types, shapes and strides of the arguments.

Nothing is skipped that depends on more than those: numbers are checked each time.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import torch

from rlscan.spec.calls import LARGEST
from rlscan.spec.recurrences import Recurrence
from rlscan.torch_triton._private import alike
from rlscan.torch_triton.arrays import in_forward_mode
from rlscan.torch_triton.launch import MOST

_is_nested = operator.attrgetter("is_nested")


@functools.cache
def _limits(recurrence: Recurrence) -> dict[str, tuple[float, float]]:
    """The least and the largest number that an argument can be, where it can be one."""
    return {
        argument.name: (-LARGEST if argument.low is None else argument.low, LARGEST if argument.high is None else argument.high)
        for argument in recurrence.arguments
        if argument.shape in ("parameter", "number")
    }


class Kept:
    """The preparation of a call, and what other calls must have in common with it beside the types of their arguments."""

    def __init__(self, recurrence: Recurrence, arguments: Mapping[str, Any], prepared: Any) -> None:
        self.prepared = prepared
        options = {argument.name: arguments[argument.name] for argument in recurrence.arguments if argument.shape == "option"}
        self.options, self.chosen = list(options), list(options.values())
        self.numbers, self.not_fading = [], []
        for name, (low, high) in _limits(recurrence).items():
            if type(arguments[name]) in (float, int):
                # kernels are compiled for factors in [0, 1], or for others too
                fades = 0 <= arguments[name] <= 1
                self.numbers.append((name, max(low, 0), min(high, 1)) if fades else (name, low, high))
                self.not_fading += [] if fades else [name]
        absent = [argument for argument in recurrence.arguments if arguments[argument.name] is None]
        self.nothing = {argument.name: argument.none_is for argument in absent if argument.none_is is not None}
        self.names = [name for name, x in arguments.items() if type(x) is torch.Tensor]
        tensors = [arguments[name] for name in self.names]
        self.alike = alike(tensors)
        # the guard looks at what tensors want only where gradients are recorded
        self.without_gradients = any(x.requires_grad for x in tensors)
        # and for addresses that 16 divides, or others too
        self.misaligned = [x.data_ptr() & 15 for x in tensors]

    def given(self, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """The addresses of the tensors, and the numbers, if the preparation is for a call of these."""
        if [arguments[name] for name in self.options] != self.chosen or (self.without_gradients and torch.is_grad_enabled()):
            return None
        given = self.nothing.copy()
        for name, low, high in self.numbers:
            given[name] = number = arguments[name]
            if not low <= number <= high:
                return None
        for name in self.not_fading:
            if 0 <= arguments[name] <= 1:
                return None
        tensors = [arguments[name] for name in self.names]
        # PyTorch's guard asks for strides, which those have none of
        if any(map(_is_nested, tensors)) or not self.alike(*tensors):
            return None
        try:
            addresses = [x.data_ptr() for x in tensors]
        except RuntimeError:  # torch.func's tensors have no storage
            return None
        if [address & 15 for address in addresses] != self.misaligned:
            return None
        given.update(zip(self.names, addresses, strict=True))
        return given


_kept: dict[tuple[Any, ...], dict[tuple[int, ...], list[Kept]]] = {}
"""By recurrence and types, which tell True from 1, then by shape, for a loop over many of them to find each at once."""


def find(recurrence: Recurrence, arguments: Mapping[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """The preparation of a call like this one, if there was one, and the addresses and numbers to make it with.

    Arguments are complete, and in the order of the declaration.
    """
    if in_forward_mode():  # a tangent is no part of a tensor
        return None
    by_shape = _kept.get((recurrence, *map(type, arguments.values())))
    if by_shape is None:
        return None
    try:
        candidates = by_shape.get(arguments[recurrence.frame.name].shape, ())
    except (RuntimeError, TypeError):  # nested tensors have no shape, and symbols in one have no hash
        return None
    for kept in candidates:
        given = kept.given(arguments)
        if given is not None:
            return kept.prepared, given
    return None


def keep(recurrence: Recurrence, arguments: Mapping[str, Any], prepared: Any) -> None:
    """To be found again, unless a tensor is none that kernels can read as it lies."""
    tensors = [x for x in arguments.values() if isinstance(x, torch.Tensor)]
    plain = all(type(x) is torch.Tensor and not x.is_neg() for x in tensors)
    numbers = [(arguments[name], low, high) for name, (low, high) in _limits(recurrence).items() if not isinstance(arguments[name], torch.Tensor)]
    # another number of these types is looked at; one of another type would not be
    if plain and all(x is None or (type(x) in (float, int) and low <= x <= high) for x, low, high in numbers):
        by_shape = _kept.setdefault((recurrence, *map(type, arguments.values())), {})
        if sum(map(len, list(by_shape.values()))) >= MOST:
            by_shape.clear()
        by_shape.setdefault(arguments[recurrence.frame.name].shape, []).append(Kept(recurrence, arguments, prepared))
