"""Which places of which argument no rule lets be read: the boundary rules once more, on the arguments as the caller sees them.

This shares nothing with the coefficients. The crosscheck puts NaN and infinity into these places, and nothing may change.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from rlscan.spec.recurrences import Recurrence
from rlscan.spec.taps import parameters

SUCCESSORS: tuple[str, ...] = ("next_values", "final_values", "expected_next_q", "next_q_values", "next_policy")
"""What says V(s'_t), or Q, at step t itself."""


class Window:
    """The arguments of a call with time first, and what its flags say.

    Attributes:
        shape: of the flags, time first.
        terminated, truncated, starts, valid: flags of that shape, as booleans, whatever was given.
        ends: nothing flows between this step and the next valid one, by its flags.
    """

    def __init__(self, recurrence: Recurrence, arguments: dict[str, Any]) -> None:
        self.recurrence, self.arguments = recurrence, arguments
        self.backward = recurrence.direction == "backward" or bool(arguments.get("reverse"))
        self.kinds = {argument.name: argument for argument in recurrence.arguments}
        frame = next((name for name in arguments if self.kinds[name].shape == "steps"), recurrence.frame.name)
        self.frame_ndim = arguments[frame].ndim
        self.time_axis = arguments["time_axis"] % self.frame_ndim
        self.shape = self.along_time(frame).shape
        self.terminated, self.truncated, self.starts = map(self.flag, ("terminated", "truncated", "starts"))
        self.ends = self.terminated | self.truncated
        self.next_step = arguments.get("autoreset") == "next_step"
        if "valid" in arguments:
            self.valid = self.flag("valid")
        else:
            self.valid = ~self.after(self.ends) if self.next_step else np.ones(self.shape, bool)

    @property
    def steps(self) -> int:
        return self.shape[0]

    def along_time(self, name: str) -> np.ndarray:
        """A view of the argument with time first."""
        return np.moveaxis(self.arguments[name], self.time_axis, 0)

    def flag(self, name: str) -> np.ndarray:
        return self.along_time(name) != 0 if name in self.arguments else np.zeros(self.shape, bool)

    def per_step(self, name: str) -> bool:
        """Has the argument a number of its own for each step of each row?"""
        array = self.arguments.get(name)
        return isinstance(array, np.ndarray) and array.shape[: self.frame_ndim] == self.arguments_shape and self.kinds[name].shape != "row"

    @property
    def arguments_shape(self) -> tuple[int, ...]:
        return self.shape[1 : self.time_axis + 1] + self.shape[:1] + self.shape[self.time_axis + 1 :]

    def after(self, happened: np.ndarray) -> np.ndarray:
        """It happened one step before, as the steps are stored."""
        return np.concatenate([np.zeros_like(happened[:1]), happened[:-1]])

    def before_valid(self, happened: np.ndarray, at_first: bool = False) -> np.ndarray:
        """It happened at the nearest valid step before; `at_first` where there is none."""
        result, current = np.empty(self.shape, bool), np.full(self.shape[1:], at_first)
        for t in range(self.steps):
            result[t] = current
            current = np.where(self.valid[t], happened[t], current)
        return result

    @functools.cached_property
    def last(self) -> np.ndarray:
        """The last valid step of its row."""
        return self.valid & (np.cumsum(self.valid[::-1], axis=0)[::-1] == 1)

    @functools.cached_property
    def first(self) -> np.ndarray:
        return self.valid & (np.cumsum(self.valid, axis=0) == 1)

    @functools.cached_property
    def no_discount(self) -> np.ndarray:
        if "gamma" not in self.arguments:
            return np.zeros(self.shape, bool)
        whole = np.broadcast_to(np.asarray(self.arguments["gamma"]), self.arguments_shape)
        return np.moveaxis(whole, self.time_axis, 0) == 0


def unread(recurrence: Recurrence, arguments: dict[str, Any], rule: str) -> dict[str, np.ndarray]:
    """For each argument, where `rule` says that it is not read: time first, or without time for an argument that has none."""
    window = Window(recurrence, arguments)
    taps = {*parameters(recurrence.coefficients), *(parameters(recurrence.outputs) if recurrence.outputs else ())}
    masks = {"B1": _terminated, "B2": _truncated, "B3": _terminated, "B6": _no_discount, "B7": _edges, "B8": _invalid}[rule](window, taps)
    return {name: mask for name, mask in masks.items() if window.per_step(name) or (name in arguments and window.kinds[name].shape == "row")}


def _behind(window: Window, taps: set[str], unread_here: np.ndarray) -> dict[str, np.ndarray]:
    """The successor's value is not read at these steps, wherever it comes from."""
    masks = dict.fromkeys(SUCCESSORS, unread_here)
    masks["bootstrap_value"] = np.logical_not((window.last & ~unread_here).any(axis=0))
    if not taps & {"value", "q_value"} and not window.next_step:
        masks["values"] = window.before_valid(unread_here, at_first=True)
    return masks


def _terminated(window: Window, taps: set[str]) -> dict[str, np.ndarray]:
    if not window.backward:
        return {}
    return _behind(window, taps, window.terminated) | {"gamma": window.terminated, "lam": _trace_of(window, taps, window.ends)}


def _truncated(window: Window, taps: set[str]) -> dict[str, np.ndarray]:
    masks = {"final_values": ~window.truncated, "lam": _trace_of(window, taps, window.ends)}
    if "final_values" in window.arguments and not taps & {"value", "q_value"}:
        masks["values"] = window.before_valid(window.truncated, at_first=True)
    if window.recurrence.successor == "at cuts":
        masks["next_values"] = ~(window.truncated | window.last)
    return masks if window.backward else {}


def _trace_of(window: Window, taps: set[str], cut: np.ndarray) -> np.ndarray:
    """Where lam is not read because the trace is cut."""
    return window.before_valid(cut, at_first=True) if "next_lam" in taps else cut


def _no_discount(window: Window, taps: set[str]) -> dict[str, np.ndarray]:
    masks = _behind(window, taps, window.no_discount) if window.backward else {}
    masks["lam"] = _trace_of(window, taps, window.no_discount)
    if "next_policy" in window.arguments:
        masks["next_q_values"] = window.no_discount[..., None] | (window.along_time("next_policy") == 0)
    return masks


def _edges(window: Window, taps: set[str]) -> dict[str, np.ndarray]:
    """Forward: parameters stand on the edge out of their step, and a flag that starts a segment cuts what comes in."""
    if window.backward:
        return {}
    masks = dict.fromkeys(("gamma", "lam"), window.ends | window.last)
    return masks | {"initial": np.asarray((window.first & window.starts).any(axis=0))}


def _invalid(window: Window, taps: set[str]) -> dict[str, np.ndarray]:
    masks = {name: ~window.valid for name in window.arguments if name != "valid" and window.per_step(name)}
    if window.next_step:
        cut_at = window.truncated & ~window.terminated
        if "valid" in window.arguments:
            cut_at = cut_at & window.valid
        if "values" in masks:
            masks["values"] = ~window.valid & ~window.after(cut_at)
        if "valid" not in window.arguments:
            masks = {name: mask for name, mask in masks.items() if not window.kinds[name].flag}
    return masks
