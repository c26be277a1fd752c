"""What the spec asks about tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def in_forward_mode() -> bool:
    """Whether derivatives are carried along with tensors. The level is private; without it, never."""
    return getattr(forward_ad, "_current_level", -1) >= 0


class Tensors:
    """What the validator asks."""

    name = "torch.Tensor"

    def is_array(self, x: Any) -> bool:
        return isinstance(x, torch.Tensor)

    def shape(self, x: torch.Tensor) -> tuple[int, ...]:
        return tuple(x.shape)

    def dtype(self, x: torch.Tensor) -> str:
        dtype = str(x.dtype).removeprefix("torch.")
        return dtype if x.layout is torch.strided else f"{dtype} in the layout {x.layout}"

    def device(self, x: torch.Tensor) -> torch.device:
        return x.device


class WholeTensors:
    """Whole-array work, in the dtype computed in."""

    xp, array_type = torch, torch.Tensor

    def __init__(self, dtype: str, device: torch.device) -> None:
        self.dtype, self.device = DTYPES[dtype], device

    def number(self, x: Any) -> torch.Tensor:
        return x.to(self.dtype) if isinstance(x, torch.Tensor) else torch.full((), x, dtype=self.dtype, device=self.device)

    def flag(self, x: torch.Tensor) -> torch.Tensor:
        return x != 0

    def constant(self, value: float | bool) -> torch.Tensor:
        return torch.full((), value, dtype=torch.bool if isinstance(value, bool) else self.dtype, device=self.device)

    def numbered(self, length: int) -> torch.Tensor:
        return torch.arange(length, device=self.device)

    def take(self, array: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return torch.take_along_dim(array, place, 0)

    def nearest(self, place: torch.Tensor, backward: bool) -> torch.Tensor:
        if backward:
            return place.flip(0).cummin(0).values.flip(0)
        return place.cummax(0).values
