"""The one validator: what a caller may give, said in the same words whatever the framework.

`check` looks at names, types, shapes and devices, never at the contents of an array, so it costs no device sync.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any, Protocol

from rlscan.spec.arguments import REQUIRED, Argument
from rlscan.spec.recurrences import Recurrence, directed
from rlscan.spec.taps import NEXT_STEP, Wiring, wire

FLOATS = ("float16", "bfloat16", "float32", "float64")
LARGEST = 3.4028234663852886e38  # float32
FLAGS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", *FLOATS)


class ArrayLibrary(Protocol):
    """What the validator asks about an array."""

    name: str
    maker: str  # what makes an array of another library's, as its users call it

    def is_array(self, x: Any) -> bool: ...
    def shape(self, x: Any) -> tuple[int, ...]: ...
    def dtype(self, x: Any) -> str: ...
    def device(self, x: Any) -> Any: ...

    # what an array is whose elements do not lie in memory at strides of its axes; None where they do
    def not_dense(self, x: Any) -> str | None: ...

    # whether it stands for what is known only when a compiled program runs
    def is_traced(self, x: Any) -> bool: ...


STATIC = "; it is traced, and must be known when the program is compiled: mark it static (static_argnames)"
"""What a refusal ends with where what is given is traced."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One checked call.

    Attributes:
        wiring: the recurrence for the arguments that were given.
        arrays: the arrays given, untouched.
        numbers: the Python numbers given, with `None` replaced by what it stands for.
        shape: of the frame, and of every output: the rewards' (the inputs', with their features).
        time_axis: in `shape`, not negative.
        dtype: that is computed in and returned.
        device: of all arrays; None where it can't be told.
        fades: no factor of the scan is above 1 or below 0, as the numbers given promise.
    """

    wiring: Wiring
    arrays: Mapping[str, Any]
    numbers: Mapping[str, float]
    shape: tuple[int, ...]
    frame_ndim: int
    time_axis: int
    dtype: str
    device: Any
    fades: bool = False

    @property
    def recurrence(self) -> Recurrence:
        return self.wiring.recurrence

    @property
    def steps(self) -> int:
        return self.shape[self.time_axis]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[: self.time_axis] + self.shape[self.time_axis + 1 :]

    @property
    def backward(self) -> bool:
        return self.recurrence.direction == "backward"

    def with_arrays(self, arrays: Mapping[str, Any]) -> Call:
        """The same call of other arrays; `dataclasses.replace` takes three times as long, on the way of each call with gradients."""
        return Call(self.wiring, arrays, self.numbers, self.shape, self.frame_ndim, self.time_axis, self.dtype, self.device, self.fades)


def complete(recurrence: Recurrence, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments with the declared defaults, in the order of the declaration; a `TypeError` for a name that is none, or for one that is missing."""
    if not isinstance(recurrence, Recurrence):
        raise TypeError(f"recurrence is a {type(recurrence).__qualname__}; wanted a rlscan.spec.recurrences.Recurrence")
    if not isinstance(arguments, Mapping):
        raise TypeError(f"{recurrence.name}: arguments is a {type(arguments).__qualname__}; wanted a mapping from names to what is given")
    for name in arguments:
        if name not in recurrence.defaults:
            raise TypeError(f"{recurrence.name}: {name} is no argument; wanted some of {', '.join(recurrence.defaults)}")
    for name, default in recurrence.defaults.items():
        if default is REQUIRED and name not in arguments:
            raise TypeError(f"{recurrence.name}: {name} is required, and was not given")
    return {**recurrence.defaults, **arguments}


def check(recurrence: Recurrence, arguments: Mapping[str, Any], library: ArrayLibrary) -> Call:
    """The call that `arguments` describe, or a `TypeError` or `ValueError` that names the argument at fault."""
    return _Checker(recurrence, arguments, library).call()


class _Checker:
    def __init__(self, recurrence: Recurrence, arguments: Mapping[str, Any], library: ArrayLibrary) -> None:
        self.recurrence, self.library = recurrence, library
        self.given = {name: value for name, value in arguments.items() if value is not None}
        self.nothing = {name for name, value in arguments.items() if value is None}
        self.arguments = {argument.name: argument for argument in recurrence.arguments}
        self.arrays: dict[str, Any] = {}
        self.numbers: dict[str, float] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def call(self) -> Call:
        for argument in self.arguments.values():
            self.check_kind(argument)
        shape, frame_ndim, time_axis = self.check_frame()
        for argument in self.arguments.values():
            if argument.name in self.arrays:
                self.check_shape(argument, shape, frame_ndim, time_axis)
        dtype = self.check_dtypes()
        device = self.check_devices()
        self.check_choices()
        names = frozenset(self.arrays) | frozenset(self.numbers)
        options = frozenset([NEXT_STEP] if self.given.get("autoreset") == "next_step" else [])
        chosen = directed(self.recurrence, bool(self.given.get("reverse", False)))
        wiring = wire(chosen, names | options, frozenset(self.numbers))
        fades = chosen.fading is not None and all(0 <= self.numbers.get(name, math.inf) <= 1 for name in chosen.fading)
        return Call(wiring, self.arrays, self.numbers, shape, frame_ndim, time_axis, dtype, device, fades)

    def wrong(self, kind: type[Exception], name: str, what: str) -> Exception:
        return kind(f"{self.recurrence.name}: {name} {what}")

    def check_kind(self, argument: Argument) -> None:
        name, value = argument.name, self.given.get(argument.name)
        if value is None:
            if argument.default is REQUIRED:
                raise self.wrong(TypeError, name, f"is required, and was None; wanted {self.wanted(argument)}")
            if argument.name in self.nothing and argument.shape == "option" and argument.default is not None:
                raise self.wrong(TypeError, name, f"was None; wanted {self.wanted(argument)}")
            if argument.shape in ("parameter", "number"):
                if argument.none_is is None:
                    raise self.wrong(TypeError, name, f"was None; wanted {self.wanted(argument)}")
                self.numbers[name] = argument.none_is
            return
        if argument.shape == "option":
            self.check_option(argument, value)
        elif argument.shape in ("parameter", "number") and not self.library.is_array(value):
            self.check_number(argument, value)
        elif argument.shape == "number" or not self.library.is_array(value):
            traced = self.library.is_traced(value)
            instead = STATIC if traced else f"; {self.library.maker} makes one" if argument.shape != "number" and hasattr(value, "__array__") else ""
            raise self.wrong(TypeError, name, f"is a {self.type_of(value)}; wanted {self.wanted(argument)}{instead}")
        elif what := self.library.not_dense(value):
            raise self.wrong(TypeError, name, f"is {what}; wanted a dense (strided) {self.library.name}")
        else:
            self.arrays[name], self.shapes[name] = value, tuple(self.library.shape(value))

    def type_of(self, value: Any) -> str:
        """By its public name, where it is an array of the library."""
        return self.library.name if self.library.is_array(value) else f"{type(value).__module__}.{type(value).__qualname__}"

    def wanted(self, argument: Argument) -> str:
        array = f"a {self.library.name}"
        number = (
            "a number"
            if argument.low is None
            else f"a number in [{argument.low:g}, {argument.high:g}]"
            if argument.high is not None
            else "a number >= 0 or None"
        )
        option = f"one of {argument.choices}" if argument.choices else "an integer"
        return {"parameter": f"{number} or {array}", "number": number, "option": option}.get(argument.shape, array)

    def check_option(self, argument: Argument, value: Any) -> None:
        if self.library.is_array(value):
            raise self.wrong(TypeError, argument.name, f"is a {self.type_of(value)}; wanted {self.wanted(argument)}{STATIC * self.library.is_traced(value)}")
        if argument.name == "time_axis":
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise self.wrong(TypeError, "time_axis", f"is {value!r}; wanted an integer")
        elif not any(value is choice or (isinstance(value, str) and value == choice) for choice in argument.choices):
            raise self.wrong(ValueError, argument.name, f"is {value!r}; wanted one of {argument.choices}")

    def check_number(self, argument: Argument, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise self.wrong(TypeError, argument.name, f"is a {self.type_of(value)}; wanted {self.wanted(argument)}")
        try:
            number = float(value)
        except OverflowError:
            raise self.wrong(ValueError, argument.name, f"is beyond every floating type; wanted {self.wanted(argument)}") from None
        if not argument.allows(number):
            raise self.wrong(ValueError, argument.name, f"is {number!r}; wanted {self.wanted(argument)}")
        self.numbers[argument.name] = number

    def check_frame(self) -> tuple[tuple[int, ...], int, int]:
        frame = self.recurrence.frame
        shape = self.shapes[frame.name]
        ndim, axis_of = len(shape), frame.name
        if frame.shape == "inputs":
            flags = [name for name in self.arrays if self.arguments[name].shape == "steps"]
            if flags:
                ndim, axis_of = len(self.shapes[flags[0]]), flags[0]
        if ndim == 0:
            raise self.wrong(ValueError, axis_of, "has no axes; wanted at least a time axis")
        time_axis = int(self.given.get("time_axis", -1))
        if not -ndim <= time_axis < ndim:
            raise self.wrong(ValueError, "time_axis", f"is {time_axis}; wanted an axis of {axis_of}, whose shape is {self.shapes[axis_of]}")
        if ndim > len(shape):
            raise self.wrong(ValueError, axis_of, f"has shape {self.shapes[axis_of]}, which has more axes than {frame.name}, {shape}")
        return shape, ndim, time_axis % ndim

    def check_shape(self, argument: Argument, shape: tuple[int, ...], frame_ndim: int, time_axis: int) -> None:
        name, got = argument.name, self.shapes[argument.name]
        frame, frame_name = shape[:frame_ndim], self.recurrence.frame.name
        of = f"the shape of {frame_name}" if frame == shape else f"the first {frame_ndim} axes of the shape of {frame_name}"
        if argument.shape == "steps" and got != frame:
            raise self.wrong(ValueError, name, f"has shape {got}; wanted {of}, {frame}")
        if argument.shape == "row":
            wanted = shape[:time_axis] + shape[time_axis + 1 :]
            if got != wanted:
                raise self.wrong(ValueError, name, f"has shape {got}; wanted {wanted}, the shape of {frame_name} without its time axis")
        if argument.shape == "actions" and (len(got) != len(frame) + 1 or got[:-1] != frame or got[-1] == 0):
            raise self.wrong(ValueError, name, f"has shape {got}; wanted {of} and an axis of at least one action behind it, {(*frame, 'A')}")
        if argument.shape == "parameter":
            if argument.low is None:
                if got not in ((), frame):
                    raise self.wrong(ValueError, name, f"has shape {got}; wanted a number, a 0-d array, or {of}, {frame}")
            elif len(got) > len(frame) or any(mine not in (1, theirs) for mine, theirs in zip(reversed(got), reversed(frame), strict=False)):
                raise self.wrong(ValueError, name, f"has shape {got}, which does not broadcast to {of}, {frame}")

    def check_dtypes(self) -> str:
        frame = self.recurrence.frame.name
        wide = self.library.dtype(self.arrays[frame]) == "float64"
        # the frame first, which the others are held to
        for name, array in sorted(self.arrays.items(), key=lambda item: item[0] != frame):
            dtype = self.library.dtype(array)
            if self.arguments[name].flag:
                if dtype not in FLAGS:
                    raise self.wrong(TypeError, name, f"is {dtype}; wanted bool, an integer type or a floating type (nonzero is True)")
                continue
            number = self.arguments[name].shape == "parameter" and not self.shapes[name]
            if dtype not in FLOATS:
                traced = number and self.library.is_traced(array)
                instead = "a number that is traced is an array of its type: pass a float" if traced else "convert it (nothing is cast silently)"
                raise self.wrong(TypeError, name, f"is {dtype}; wanted one of {', '.join(FLOATS)}; {instead}")
            if not number and (dtype == "float64") != wide:
                theirs = self.library.dtype(self.arrays[frame])
                raise self.wrong(TypeError, name, f"is {dtype} and {frame} is {theirs}; wanted all float64 or none (nothing is cast silently)")
        for name, number in self.numbers.items():
            if not wide and LARGEST < abs(number) < math.inf:
                raise self.wrong(ValueError, name, f"is {number!r}, which is beyond float32, and {frame} is {self.library.dtype(self.arrays[frame])}")
        return "float64" if wide else "float32"

    def check_devices(self) -> Any:
        frame = self.recurrence.frame.name
        device = self.library.device(self.arrays[frame])
        for name, array in self.arrays.items():
            mine = self.library.device(array)
            if mine is not None and device is not None and mine != device:
                raise self.wrong(ValueError, name, f"is on {mine} and {frame} is on {device}; wanted one device")
        return device

    def check_choices(self) -> None:
        if "bootstrap_value" in self.arguments and "next_values" in self.arguments:
            self.check_successor()
        if "next_q_values" in self.arguments:
            both = [name for name in ("next_q_values", "next_policy") if name in self.arrays]
            if ("expected_next_q" in self.arrays) == bool(both) or len(both) == 1:
                raise self.wrong(
                    ValueError,
                    "expected_next_q",
                    f"or both next_q_values and next_policy must be given, and not all three; given: {self.listed('expected_next_q', *both)}",
                )
            if both and self.shapes[both[0]] != self.shapes[both[1]]:
                what = f"has shape {self.shapes['next_policy']}; wanted the shape of next_q_values, {self.shapes['next_q_values']}"
                raise self.wrong(ValueError, "next_policy", what)
        if {"starts", "terminated"} <= self.arguments.keys():
            ends = [name for name in ("terminated", "truncated") if name in self.arrays]
            if ("starts" in self.arrays) == bool(ends):
                raise self.wrong(ValueError, "starts", f"or terminated (and truncated) must be given, and not both; given: {self.listed('starts', *ends)}")

    def listed(self, *names: str) -> str:
        return ", ".join(name for name in names if name in self.arrays) or "none"

    def check_successor(self) -> None:
        given, next_step = self.arrays, self.given.get("autoreset") == "next_step"
        at_cuts = self.recurrence.successor == "at cuts"
        # where V(s_t) is an input of its own, it must be given
        values_are_successors = "values" in given and self.arguments["values"].default is None
        if "next_values" in given:
            for name in ("bootstrap_value", "final_values", *["values"] * values_are_successors):
                if name in given:
                    raise self.wrong(ValueError, name, "was given beside next_values, which already says V(s'_t) at every step; pass one of them")
            return
        if "bootstrap_value" not in given:
            if "final_values" in given:
                raise self.wrong(ValueError, "final_values", "goes with bootstrap_value, which was not given; pass bootstrap_value too")
            if not at_cuts or "truncated" in given:
                reason = "truncated was given, and V(s'_t) is read where it is true" if at_cuts else "V(s'_t) has no source"
                raise self.wrong(ValueError, "next_values", f"or bootstrap_value must be given: {reason}")
            if values_are_successors:
                raise self.wrong(ValueError, "values", "goes with bootstrap_value, which was not given; pass bootstrap_value too")
            return
        if "truncated" not in given:
            if "final_values" in given:
                raise self.wrong(ValueError, "final_values", "is read only where truncated, which was not given; pass truncated too")
        elif next_step and "final_values" in given:
            raise self.wrong(
                ValueError, "final_values", "was given beside autoreset='next_step', where values already holds V of the final observation; pass one of them"
            )
        elif not next_step and "final_values" not in given:
            raise self.wrong(
                ValueError, "truncated", "needs the values of the states it cut off at: pass final_values (V of the final observation, read where truncated), "
                "or next_values instead of bootstrap_value, or autoreset='next_step' if the row after an ending step holds the final observation",
            )  # fmt: skip
        if "values" not in given and (not at_cuts or (next_step and "truncated" in given)):
            raise self.wrong(ValueError, "values", "must be given with bootstrap_value: inside the window V(s'_t) is read from it")
