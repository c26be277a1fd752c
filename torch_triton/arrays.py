"""What the spec asks about tensors."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.masked import MaskedTensor

from rlscan.spec.calls import Call
from rlscan.spec.steps import PlacesInNumPy, Steps, folded
from rlscan.spec.taps import Constant, Outside
from rlscan.torch_triton._private import is_traced, is_transformed

DTYPES = {"float32": torch.float32, "float64": torch.float64}

Outs = tuple[torch.Tensor, ...]


def like_of(call: Call) -> torch.Tensor:
    """What every output is like, without memory."""
    return torch.empty_like(call.arrays[call.recurrence.frame.name], dtype=DTYPES[call.dtype], device="meta")


def are_readable(arrays: Iterable[torch.Tensor]) -> bool:
    """Whether these are what they seem, with memory that kernels and NumPy can work in: nothing traces or transforms what is done with them."""
    dispatch = "__torch_dispatch__"
    return not is_traced() and not any(is_transformed(x) or getattr(type(x), dispatch) is not getattr(torch.Tensor, dispatch) for x in arrays)


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, which takes tensors of a CPU too."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def is_sharded(x: Any) -> bool:
    """Whether it is a `DTensor`. There is none where nothing has imported its module, which takes longer than PyTorch does without it."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def is_differentiated(array: torch.Tensor) -> bool:
    """Whether a derivative may be wanted; what `torch.func` transforms may be anything inside."""
    if is_transformed(array) or (torch.is_grad_enabled() and array.requires_grad):
        return True
    return in_forward_mode() and forward_ad.unpack_dual(array).tangent is not None


def in_forward_mode() -> bool:
    """Whether derivatives are carried along with tensors. The level is private; without it, never."""
    return getattr(forward_ad, "_current_level", -1) >= 0


@contextlib.contextmanager
def as_in_forward_mode() -> Iterator[None]:
    """What is recorded in forward mode runs in it too, which a recorded program does not say in this place."""
    before = forward_ad._current_level
    forward_ad._current_level = max(before, 0)
    try:
        yield
    finally:
        forward_ad._current_level = before


def opaque(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a compiler that is at work, such as on the way back: it must not look into NumPy's work or a launch, of which it makes something else."""
    return torch.compiler.disable(function) if torch.compiler.is_compiling() else function


class Tensors:
    """What the validator asks."""

    name, maker = "torch.Tensor", "torch.as_tensor"

    def is_array(self, x: Any) -> bool:
        return isinstance(x, torch.Tensor) and not isinstance(x, MaskedTensor)  # a mask is none of ours: pass `valid`

    def shape(self, x: torch.Tensor) -> tuple[int, ...]:
        return tuple(x.shape)

    def dtype(self, x: torch.Tensor) -> str:
        return str(x.dtype).removeprefix("torch.")

    def device(self, x: torch.Tensor) -> torch.device:
        return x.device

    def not_dense(self, x: torch.Tensor) -> str | None:
        if x.is_nested:
            return "nested"
        return None if x.layout is torch.strided else f"in the layout {x.layout}"

    def is_traced(self, x: Any) -> bool:
        return False


class Functions:
    """What is asked of `torch` itself."""

    where, exp, abs = staticmethod(torch.where), staticmethod(torch.exp), staticmethod(torch.abs)
    # its `moveaxis` has no rule for `torch.func.vmap`
    broadcast_to, moveaxis = staticmethod(torch.broadcast_to), staticmethod(torch.movedim)


class WholeTensors:
    """Whole-array work, in the dtype computed in."""

    xp, array_type = Functions, torch.Tensor
    folded = staticmethod(folded)

    def __init__(self, dtype: str, device: torch.device) -> None:
        self.dtype, self.device = DTYPES[dtype], device

    def number(self, x: Any) -> torch.Tensor:
        return x.to(self.dtype) if isinstance(x, torch.Tensor) else torch.full((), x, dtype=self.dtype, device=self.device)

    def flag(self, x: torch.Tensor) -> torch.Tensor:
        return x != 0

    def constant(self, value: float | bool) -> torch.Tensor:
        # `torch.jit.trace` knows no truth value to fill with
        return torch.full((), float(value), dtype=torch.bool if isinstance(value, bool) else self.dtype, device=self.device)

    def numbered(self, length: int) -> torch.Tensor:
        return torch.arange(length, device=self.device)

    @staticmethod
    def joined(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.cat([first, second])

    def take(self, array: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return torch.take_along_dim(array, place, 0)

    def nearest(self, place: torch.Tensor, backward: bool) -> torch.Tensor:
        if backward:
            return place.flip(0).cummin(0).values.flip(0)
        return place.cummax(0).values


def in_numpy(x: torch.Tensor) -> np.ndarray:
    """The same memory, unless the sign is still to be applied to it."""
    return x.numpy(force=True) if x.requires_grad or x.is_neg() else x.numpy()


class Flag:
    """Truth values to select by."""

    # Below this many elements it is the calls that cost.
    MANY = 4096

    def __init__(self, array: np.ndarray, dtype: np.dtype) -> None:
        self.array, self.dtype = array, dtype

    @functools.cached_property
    def unset(self) -> np.ndarray:
        """All bits where the flag is not set."""
        bits = self.array.astype(f"i{self.dtype.itemsize}")
        bits -= 1
        return bits

    def select(self, yes: Any, no: Any) -> np.ndarray:
        """By operations on bits: NumPy's own `where` goes element by element, at several times the cost of those."""
        if self.array.size < self.MANY or yes.dtype != self.dtype or no.dtype != self.dtype:
            return np.where(self.array, yes, no)
        yes, no = (x.view(self.unset.dtype) for x in (yes, no))
        if yes.ndim == 0 and yes == 0:
            return (no & self.unset).view(self.dtype)
        return (yes ^ ((yes ^ no) & self.unset)).view(self.dtype)


class Choice:
    """`yes` where a flag is set and `no` elsewhere: one number until it meets an array, so that most of what is done with flags takes no pass over one."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, flag: Flag, yes: Any, no: Any) -> None:
        self.flag, self.yes, self.no = flag, yes, no

    def spread(self) -> np.ndarray:
        yes, no = np.asarray(self.yes)[()], np.asarray(self.no)[()]
        if yes.dtype == bool and yes != no:
            return self.flag.array if yes else ~self.flag.array
        return self.flag.select(yes, no)

    def meet(self, other: Any, operation: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, Choice):
            if other.flag is not self.flag:
                return operation(self.spread(), other.spread())
            return Choice(self.flag, operation(self.yes, other.yes), operation(self.no, other.no))
        if np.ndim(other) == 0:
            return Choice(self.flag, operation(self.yes, other), operation(self.no, other))
        return operation(self.spread(), other)

    def __neg__(self) -> Choice:
        return Choice(self.flag, -self.yes, -self.no)


def _forward(operation: Callable[[Any, Any], Any]) -> Callable[[Choice, Any], Any]:
    return lambda self, other: self.meet(other, operation)


def _reflected(operation: Callable[[Any, Any], Any]) -> Callable[[Choice, Any], Any]:
    return lambda self, other: self.meet(other, lambda one, two: operation(two, one))


for _name in ("add", "sub", "mul", "truediv", "and", "or", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Choice, f"__{_name}__", _forward(getattr(operator, f"__{_name}__")))
    if _name in ("add", "sub", "mul", "truediv", "and", "or"):
        setattr(Choice, f"__r{_name}__", _reflected(getattr(operator, f"__{_name}__")))


def spread(x: Any) -> Any:
    return x.spread() if isinstance(x, Choice) else x


class _Numbers:
    """What is asked of NumPy, of `Choice` too."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype

    def exp(self, x: Any) -> Any:
        return np.exp(spread(x))

    def abs(self, x: Any) -> Any:
        return np.abs(spread(x))

    def moveaxis(self, x: Any, source: int, destination: int) -> Any:
        return x if source == destination else np.moveaxis(x, source, destination)

    def broadcast_to(self, x: Any, shape: tuple[int, ...]) -> Any:
        x = spread(x)
        return x if np.shape(x) == shape else np.broadcast_to(x, shape)

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        if isinstance(condition, Choice):
            yes, no, flag = yes if condition.yes else no, yes if condition.no else no, condition.flag
        elif np.ndim(condition) == 0:
            return self.array(yes if condition else no)
        else:
            flag = Flag(condition, self.dtype)
        # Where a branch is a choice by the same flag, only one side of it is seen.
        yes = self.array(yes.yes if isinstance(yes, Choice) and yes.flag is flag else yes)
        no = self.array(no.no if isinstance(no, Choice) and no.flag is flag else no)
        return Choice(flag, yes, no) if yes.ndim == no.ndim == 0 else flag.select(yes, no)

    def array(self, x: Any) -> Any:
        x = spread(x)
        return x if isinstance(x, np.ndarray) else self.dtype.type(x) if isinstance(x, float) else np.asarray(x)[()]


_numbers = functools.cache(_Numbers)


class HostArrays(PlacesInNumPy):
    """Whole-array work by NumPy, in the memory of CPU tensors. It has no derivative."""

    array_type = np.ndarray

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self.xp = _numbers(self.dtype)

    def number(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            x = in_numpy(x if x.is_floating_point() and x.dtype is not torch.bfloat16 else x.to(DTYPES[self.dtype.name]))
        return np.asarray(spread(x), self.dtype)[()]

    def flag(self, x: torch.Tensor) -> np.ndarray:
        array = in_numpy(x.float() if x.dtype is torch.bfloat16 else x)
        return array if x.dtype is torch.bool else array != 0

    def constant(self, value: float | bool) -> Any:
        return value if isinstance(value, bool) else self.dtype.type(value)


class HostSteps(Steps):
    """Taps in which flags are choices, so that what is found out about one to select by it is found out once."""

    def tap(self, tap: int | Constant | Outside | str) -> Any:
        x = super().tap(tap)
        return Choice(Flag(x, np.dtype(self.call.dtype)), True, False) if isinstance(x, np.ndarray) and x.dtype == bool else x
